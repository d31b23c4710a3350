"""offline:demo with the real tool hosts: what a newcomer types, what it calls, what it says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from code_shell import runs_code
from demo_talk import calls_of, written
from frontends import StandIn

import nbagent
from nbagent.session.frontend import use_frontend

FILES = {
    "README.md": "# Cities\n\nA small project about cities.\n\n- TODO: add Rome\n",
    "notes.md": "# Notes\n\nOslo is the capital.\n\nBergen is wetter.\n\nTODO: measure.\n",
    "notebooks/first.ipynb": "{}",
    "src/city.py": "PEOPLE = {'Oslo': 700}\n",
    "table/table.csv": "city,n\nOslo,700\n",
    ".agents/skills/word-count/SKILL.md": (
        "---\nname: word-count\ndescription: Counts the words of a text.\n---\n"
        "# Word count\n\nRun `scripts/count.py TEXT`.\n"
    ),
    ".agents/skills/word-count/scripts/count.py": (
        "import sys\nprint(len(' '.join(sys.argv[1:]).split()), 'words')\n"
    ),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setattr("nbagent.session.hosts.project_folder", lambda: folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    return folder


@pytest.fixture
def names() -> dict[str, Any]:
    frame = pd.DataFrame({"city": ["Oslo", "Bergen"], "n": [700, 290]})
    made: dict[str, Any] = {"x": 3, "df": frame, "names": ["a", "b"], "api_key": "sk-secret-value"}
    use_frontend(StandIn(made, run_code=runs_code(made)))
    return made


def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 709037, "Bergen": 291940}[city]


def ask(
    prompt: str, tools: Sequence[object], *, allowed: bool | str = True, **options: Any
) -> nbagent.Run:
    """A run of the demo, whose questions are answered so."""
    agent = nbagent.Agent("offline:demo", tools=tools, on_approval=lambda _: allowed, **options)
    run = agent.run(prompt)
    assert run.ok, run.error
    assert run.stop_reason == "answered"
    return run


PROMPTS: list[tuple[str, str, str]] = [
    ("What does README.md say?", 'fs.read(path="README.md")', "project about cities"),
    ("Read notes.md.", 'fs.read(path="notes.md")', "Bergen is wetter."),
    ("What is in @data/table.csv?", 'fs.read(path="@data/table.csv")', "Oslo,700"),
    ("What does population.md say?", 'fs.read(path="population.md")', "Failed:"),
    ("List the files of the project", "fs.list()", " README.md, "),
    ("Search for Oslo in src", 'fs.search(query="Oslo", path="src")', "city.py"),
    (
        "Write 'hello' to out/hello.txt",
        'fs.write(path="out/hello.txt", content="hello")',
        "- bytesWritten: 5",
    ),
    (
        "Replace Oslo with Bergen in notes.md",
        'fs.apply_patch(path="notes.md", oldText="Oslo", newText="Bergen")',
        "- path: @project/notes.md",
    ),
    ("Which skills are there?", "list_skills()", "| word-count | Counts the words"),
    (
        "What does the skill word-count do?",
        'get_skill(skill_name="word-count")',
        "Run `scripts/count.py TEXT`",
    ),
    (
        'Run `run_python_script("word-count", "scripts/count.py", args=["a b c"])`',
        'run_python_script(skill_name="word-count", script="scripts/count.py", args=["a b c"])',
        "3 words",
    ),
    ("Which variables are there?", "nb.variables()", "| names | list |"),
    ("What is in df?", 'nb.inspect(name="df")', "- type: pandas.DataFrame"),
    ("What is api_key?", 'nb.inspect(name="api_key")', "I was not allowed to call"),
    ("Set x to 5", 'nb.set(name="x", value=5)', "- now.value: 5"),
    (
        "Run this:\n```python\nprint(x)\nx * 2\n```",
        'nb.run(code="print(x)\\nx * 2")',
        "- value: 6\n\nstdout:\n\n```\n3\n```",
    ),
    ("Find the population of Oslo", 'population(city="Oslo")', "709,037"),
]


@pytest.mark.parametrize(("prompt", "calls", "said"), PROMPTS, ids=[case[0] for case in PROMPTS])
def test_sentence_about_files_skills_and_variables_makes_its_call(
    prompt: str, calls: str, said: str, project: Path, names: dict[str, Any]
) -> None:
    mounts = [f"data={project / 'table'}:ro"]
    run = ask(prompt, ["fs", "skills", "notebook", population], mounts=mounts)
    assert written(calls_of(run)) == calls
    assert said in run.text
    assert "sk-secret-value" not in run.text


@pytest.mark.parametrize(
    "prompt",
    ["Write 'a' to out/a.txt", "Replace Oslo with Rome in notes.md", "Run `1 + 1`", "Set x to 5"],
)
def test_refusal_is_told_and_nothing_more_is_asked(
    prompt: str, project: Path, names: dict[str, Any]
) -> None:
    run = ask(prompt, ["fs", "notebook"], allowed="not today")
    ((name, _),) = calls_of(run)
    assert f"I was not allowed to call `{name}(" in run.text
    assert run.text.endswith("not today")
    assert not (project / "out").exists()
    assert names["x"] == 3


def test_file_that_changed_is_read_again(project: Path) -> None:
    run = ask("Read notes.md", ["fs"])
    (project / "notes.md").write_text("It is new.")
    assert "It is new." in run.resume("Read notes.md").text
