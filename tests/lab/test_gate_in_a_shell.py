"""A prompt tested on every push: a fresh checkout without a store, a key or a network."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kernels import clean_environment
from servers.loopback import Visit
from servers.model_server import ModelServer

import nbagent
from nbagent import offline
from nbagent.__main__ import main

GOOD, WORSE = "Is {{ n }} even? Answer yes or no.", "Number {{ n }}: even?"
TABLE = pd.DataFrame({"n": range(12), "expected": ["yes", "no"] * 6})
GATE = """
import pandas
import nbagent

@nbagent.scorer
def exact(row, run):
    return run.text == row.expected

agent = nbagent.Agent(
    "openai:little", base_url="BASE_URL", tools="none", cache="replay", cassette="answers.jsonl"
)
with open("prompt.txt") as file:
    prompt = file.read()
batch = agent.map(pandas.read_csv("table.csv"), prompt, score=exact, name="parity")
check = {"min": {"exact": 0.9}, "not_worse_than": "baseline.json"}
"""


@nbagent.scorer
def exact(row: Any, run: Any) -> bool:
    return run.text == row.expected


def answer(visit: Visit) -> str:
    """Answer the good prompt right, and the worse one always with yes."""
    prompt: str = visit.body["messages"][-1]["content"]
    number = int("".join(filter(str.isdigit, prompt)))
    return "no" if "yes or no" in prompt and number % 2 else "yes"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Record both prompts as their author does, and commit the files."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-author-0123456789abcdef")
    with ModelServer([answer] * 24) as server:
        agent = nbagent.Agent(
            "openai:little",
            base_url=server.url,
            tools="none",
            quiet=True,
            cassette=str(folder / "answers.jsonl"),
        )
        for name, prompt in (("good", GOOD), ("worse", WORSE)):
            batch = agent.map(TABLE, prompt, score=exact, name=name).wait()
            if name == "good":
                batch.save(folder / "baseline.json")
        (folder / "gate.py").write_text(GATE.replace("BASE_URL", server.url), "utf-8")
    TABLE.to_csv(folder / "table.csv", index=False)
    return folder


def check(
    checkout: Path, *options: str, prompt: str, encoding: str = "utf-8"
) -> subprocess.CompletedProcess[str]:
    (checkout / "prompt.txt").write_text(prompt, "utf-8")
    environment = clean_environment(checkout.parent / "home", PYTHONIOENCODING=encoding)
    del environment["NBAGENT_HOME"]  # a machine of a forge has a checkout only
    return subprocess.run(
        [sys.executable, "-m", "nbagent", "check", *options],
        cwd=checkout,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
    )


def test_a_prompt_that_got_worse_turns_a_push_red(checkout: Path) -> None:
    green = check(checkout, "gate.py", "--junit", "good.xml", "--markdown", "-", prompt=GOOD)
    assert green.returncode == 0, green.stderr
    assert "✅ parity: passed" in green.stdout
    reports = ("--junit", "worse.xml", "--markdown", "out.md")
    red = check(checkout, "gate.py", *reports, prompt=WORSE, encoding="ascii")
    assert red.returncode == 1, red.stderr
    assert "exact ? 0.9" in red.stdout
    assert "exact 1 ? 0" in red.stdout
    suites = {name: ET.parse(checkout / f"{name}.xml").getroot() for name in ("good", "worse")}
    assert [suite.get("failures") for suite in suites.values()] == ["0", "2"]
    failures = [failure.text or "" for failure in suites["worse"].iter("failure")]
    assert all("row 11: exact" in text for text in failures)
    assert "row 11: exact" in (checkout / "out.md").read_text("utf-8")


def test_a_prompt_that_nobody_recorded_fails_and_is_not_asked(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    monkeypatch.delenv("OPENAI_API_KEY")
    (checkout / "prompt.txt").write_text("Parity of {{ n }}?", "utf-8")
    assert main(["check", "gate.py"]) == 1
    out = capsys.readouterr().out
    assert "12 of 12 cases" in out
    assert "answers.jsonl" in out


GATE_FILES: dict[str, tuple[str, int, str]] = {
    "nothing-required": ("", 0, "passed; no score was checked: require one, such as min="),
    "no-scores": ("batch = ask(score=None, name='plain')", 0, "the batch has none"),
    "limits": ("check = {'min': {'right': 0.9}}", 1, "right ≥ 0.9"),
    "its-own-check": ("check = batch.wait().check(min={'right': 0})", 0, "right ≥ 0"),
    "only-one": ("batch = batch.wait().only(prompt='v2')", 0, "passed"),
    "not-started": ("batch = ask(start=False, name='later')", 0, "8 of 8 cases"),
    "no-batch": ("del batch", 2, "defines no batch; write batch = agent.map"),
    "no-dict": ("check = 0.9", 2, "check is a float"),
    "a-slip": ("check = {'minimum': {'right': 0.9}}", 2, "check has no 'minimum'; it has min"),
    "raises": ("1 / 0", 2, "ZeroDivisionError"),
    "exits": ("raise SystemExit(0)", 2, "ended itself before its batch was checked"),
    "wrong-score": ("check = {'min': {'rigth': 0.9}}", 2, "did you mean 'right'"),
}
OFFLINE = """
import pandas
import nbagent
from nbagent import offline

def right(row, run):
    return run.text == f"Say {row.n}"

def ask(**how):
    model = offline.script([lambda request: request.messages[-1].text] * 99, name="echo")
    agent = nbagent.Agent(model, tools="none", quiet=True)
    return agent.map(
        pandas.DataFrame({"n": range(4)}),
        vary={"prompt": {"v1": "Say {{ n }}", "v2": "{{ n }}"}},
        **{"score": right, **how},
    )

batch = ask()
"""


ONLY: dict[str, tuple[str, int, str]] = {
    "the-good-one": ("--min right=1 --only prompt=v1", 0, "check of gate · v1: passed"),
    "the-other": ("--min right=1 --only prompt=v2", 1, "right ≥ 1"),
    "from-the-store": ("--only prompt=v1 --not-worse-than gate", 0, "4 pairs"),
    "a-slip": ("--only promt=v1", 2, "there is no axis 'promt'"),
    "no-such-label": ("--only prompt=v3", 2, "'prompt' has no label 'v3'"),
    "no-label": ("--only v1", 2, "write --only AXIS=LABEL"),
    "two-labels": ("--only prompt=v1 --only prompt=v2", 2, "--only prompt= is given twice"),
}


def check_here(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    """Run the command in this process; an error of its use is printed on stderr."""
    assert main(["check", *arguments]) == code
    printed = capsys.readouterr()
    assert message in (printed.err if code == 2 else printed.out)


@pytest.mark.parametrize("name", ONLY)
def test_one_variant_is_checked_in_a_shell(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options, code, message = ONLY[name]
    file = tmp_path / "gate.py"
    file.write_text(OFFLINE.replace("batch = ask()", "batch = ask(name='gate')"), "utf-8")
    check_here(capsys, [str(file), *options.split()], code, message)


def test_the_help_says_how_a_gate_file_requires(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    assert "check = {'min': {'exact': 0.9}" in capsys.readouterr().out


@pytest.mark.parametrize("name", GATE_FILES)
def test_a_gate_file_passes_fails_or_says_what_is_wrong(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, code, message = GATE_FILES[name]
    file = tmp_path / "gate.py"
    file.write_text(f"{OFFLINE}{line}\n", "utf-8")
    check_here(capsys, [str(file)], code, message)


COMMANDS: dict[str, tuple[str, int, str]] = {
    "by-name": ("parity --min exact=0.4", 0, "passed"),
    "limits": ("parity --min exact=0.9 --max exact=0.9", 1, "exact ≥ 0.9"),
    "failed": ("parity --max-failed 0.5", 0, "cases without an answer ≤ 6"),
    "a-file": ("saved.json --min exact=0.4 --baseline saved.json", 0, "passed"),
    "store": ("parity --not-worse-than last", 2, "no other batch with these rows"),
    "no-batch": ("paritty", 2, "did you mean 'parity'"),
    "no-file": ("gates.py", 2, "there is no file gates.py"),
    "no-baseline": ("no.json", 2, "no.json cannot be read"),
    "no-notebook": ("no.ipynb", 2, "is not a readable notebook"),
    "no-number": ("parity --min exact=high", 2, "'high' is not a number"),
    "no-score": ("parity --min 0.9", 2, "write --min SCORE=NUMBER"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_batch_is_checked_by_its_name_or_file(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, code, message = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    script = offline.script(["yes"] * 12, name="yes")
    agent = nbagent.Agent(script, tools="none", quiet=True)
    agent.map(TABLE, "{{ n }}?", score=exact, name="parity").wait().save("saved.json")
    check_here(capsys, command.split(), code, message)
