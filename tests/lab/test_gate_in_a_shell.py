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


def check(checkout: Path, *options: str, prompt: str = "") -> subprocess.CompletedProcess[str]:
    if prompt:
        (checkout / "prompt.txt").write_text(prompt, "utf-8")
    environment = clean_environment(checkout.parent / "home")
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
    red = check(checkout, "gate.py", "--junit", "worse.xml", "--markdown", "out.md", prompt=WORSE)
    assert red.returncode == 1, red.stderr
    assert "exact ≥ 0.9" in red.stdout
    assert "exact 1 → 0" in red.stdout
    suites = {name: ET.parse(checkout / f"{name}.xml").getroot() for name in ("good", "worse")}
    assert [suite.get("failures") for suite in suites.values()] == ["0", "2"]
    failures = [failure.text or "" for failure in suites["worse"].iter("failure")]
    assert all("row 11: exact" in text for text in failures)
    assert "row 11: exact" in (checkout / "out.md").read_text("utf-8")
    # A prompt whose answers nobody recorded is not asked: there is no key.
    unknown = check(checkout, "gate.py", prompt="Parity of {{ n }}?")
    assert unknown.returncode == 1
    assert "12 of 12" in unknown.stdout
