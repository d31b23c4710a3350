"""offline:demo with the real tool hosts: what a newcomer types, what it calls, what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import nbagent
from nbagent.providers.offline.known_tools import known_tools
from nbagent.session.front import Front, use_front
from nbagent.tools.mcp import McpServer

Calls = list[tuple[str, dict[str, Any]]]
FILES = {
    "README.md": "# Cities\n\nA small project about cities.\n\n- TODO: add Rome\n",
    "pyproject.toml": "[project]\nname = 'cities'\n",
    "notes.md": (
        "# Notes\n\nOslo is the capital. It rains.\n\nBergen is wetter.\n\nTODO: measure.\n"
    ),
    "notebooks/first.ipynb": "{}",
    "notebooks/second.ipynb": "{}",
    "src/city.py": "PEOPLE = {'Oslo': 700}\n\ndef population(city):\n    return PEOPLE[city]\n",
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
def names() -> Iterator[dict[str, Any]]:
    frame = pd.DataFrame({"city": ["Oslo", "Bergen"], "n": [700, 290]})
    made: dict[str, Any] = {"x": 3, "df": frame, "names": ["a", "b"], "api_key": "sk-secret-value"}
    use_front(Front(namespace=lambda: made))
    yield made
    use_front(None)


def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 709037, "Bergen": 291940}[city]


def _yes(question: nbagent.Question) -> bool:
    return True


def _no(question: nbagent.Question) -> str:
    return "not today"


def ask(prompt: str, tools: Sequence[object], *, allowed: bool = True, **options: Any):
    """A run of the demo; its calls with their arguments."""
    answers = _yes if allowed else _no
    agent = nbagent.Agent("offline:demo", tools=tools, on_approval=answers, **options)
    run = agent.run(prompt)
    assert run.ok, run.error
    assert run.stop_reason == "answered"
    return run


def calls_of(run: nbagent.Run) -> Calls:
    return [(one.tool_name, dict(one.args or {})) for turn in run.turns for one in turn.tool_runs]


SUMMARY = (
    "# Summary of @project/notes.md\n\n"
    "Notes: Oslo is the capital. Bergen is wetter. TODO: measure.\n"
)
FILE_PROMPTS: list[tuple[str, Calls, str]] = [
    ("What does README.md say?", [("fs.read", {"path": "README.md"})], "project about cities"),
    ("Read pyproject.toml", [("fs.read", {"path": "pyproject.toml"})], "name = 'cities'"),
    (
        "Which files are in notebooks?",
        [("fs.list", {"path": "notebooks"})],
        "2 files:\n\n- `first.ipynb`",
    ),
    ("List the files of the project", [("fs.list", {"path": "@project"})], "- `README.md`"),
    (
        "Which Python files are there?",
        [("fs.list", {"path": "@project", "glob": "*.py", "depth": 5})],
        "`src/city.py`",
    ),
    ("Search for TODO", [("fs.search", {"query": "TODO"})], "2 places in 2 files"),
    (
        "Find 'Oslo' in *.py",
        [("fs.search", {"query": "Oslo", "glob": "*.py"})],
        "`@project/src/city.py`, line 1: `PEOPLE = {'Oslo': 700}`",
    ),
    (
        "Does notes.md mention Bergen?",
        [("fs.search", {"query": "Bergen", "path": "notes.md"})],
        "line 5: `Bergen is wetter.`",
    ),
    ("Search for Atlantis", [("fs.search", {"query": "Atlantis"})], "I found no “Atlantis”"),
    (
        "Write 'hello' to out/hello.txt",
        [("fs.write", {"path": "out/hello.txt", "content": "hello"})],
        "I wrote 5 bytes to `@project/out/hello.txt`.",
    ),
    (
        "Replace Oslo with Bergen in notes.md",
        [("fs.apply_patch", {"path": "notes.md", "oldText": "Oslo", "newText": "Bergen"})],
        "I replaced “Oslo” with “Bergen” in `@project/notes.md`.",
    ),
    (
        "Read the first 5 lines of notes.md",
        [("fs.read", {"path": "notes.md", "limit": 5})],
        "lines 1 to 5 of 7",
    ),
    (
        "Summarise notes.md and write the summary to out/summary.md",
        [
            ("fs.read", {"path": "notes.md"}),
            ("fs.write", {"path": "out/summary.md", "content": SUMMARY}),
        ],
        "I wrote 93 bytes to `@project/out/summary.md`.",
    ),
    ("What is in @data/table.csv?", [("fs.read", {"path": "@data/table.csv"})], "Oslo,700"),
    (
        "Show me the README",
        [("fs.list", {"path": "@project", "glob": "README*"}), ("fs.read", {"path": "README.md"})],
        "A small project",
    ),
    ("How many lines does notes.md have?", [("fs.read", {"path": "notes.md"})], "**7 lines**"),
    ("Read nothing.md", [("fs.read", {"path": "nothing.md"})], "I could not read `nothing.md`"),
    ("Read ../a.txt", [("fs.read", {"path": "../a.txt"})], "I may not read `../a.txt`"),
    (
        "Replace Rome with Milan in notes.md",
        [("fs.apply_patch", {"path": "notes.md", "oldText": "Rome", "newText": "Milan"})],
        "I could not change `notes.md`",
    ),
    ("Hello", [], "rule-based demo"),
]


@pytest.mark.parametrize(
    ("prompt", "calls", "said"), FILE_PROMPTS, ids=[case[0] for case in FILE_PROMPTS]
)
def test_prompt_about_files_is_done_with_them(
    prompt: str, calls: Calls, said: str, project: Path
) -> None:
    run = ask(prompt, ["fs"], mounts=[f"data={project / 'table'}:ro"])
    assert calls_of(run) == calls
    assert said in run.text


def test_summary_is_in_the_file_that_was_asked_for(project: Path) -> None:
    ask("Summarise notes.md and write the summary to out/summary.md", ["fs"])
    assert (project / "out/summary.md").read_text() == SUMMARY


def test_definition_is_found_by_its_form_else_by_the_word(project: Path) -> None:
    run = ask("Where is population defined?", ["fs", population])
    assert [name for name, _ in calls_of(run)] == ["fs.search"]
    assert "`@project/src/city.py`, line 3: `def population(city):`" in run.text
    run = ask("Where is Rome defined?", ["fs"])
    assert [arguments.get("regex") for _, arguments in calls_of(run)] == [True, None]
    assert "- TODO: add Rome" in run.text


def test_conversation_goes_on_about_the_same_file(project: Path) -> None:
    run = ask("What does notes.md say?", ["fs"])
    run = run.resume("Summarise it")
    assert calls_of(run) == [("fs.read", {"path": "notes.md"})]
    assert "in short" in run.text
    said = run.text
    run = run.resume("Write it to out/again.md")
    assert (project / "out/again.md").read_text() == said


@pytest.mark.parametrize(
    ("prompt", "calls", "kept"),
    [
        ("Write 'a' to out/a.txt", ["fs.write"], "write `out/a.txt`"),
        ("Replace Oslo with Rome in notes.md", ["fs.apply_patch"], "change `notes.md`"),
        (
            "Summarise notes.md and write the summary to out/s.md",
            ["fs.read", "fs.write"],
            "write `out/s.md`",
        ),
        ("Run `1 + 1`", ["nb.run"], "run that code"),
        ("Set x to 5", ["nb.set"], "set `x`"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refusal_is_told_and_nothing_more_is_asked(
    prompt: str, calls: list[str], kept: str, project: Path, names: dict[str, Any]
) -> None:
    run = ask(prompt, ["fs", "notebook"], allowed=False)
    assert [name for name, _ in calls_of(run)] == calls
    assert f"I was not allowed to {kept} (not today)." in run.text
    assert not (project / "out").exists()
    assert names["x"] == 3


LIST: tuple[str, dict[str, Any]] = ("list_skills", {})
GET = ("get_skill", {"skill_name": "word-count"})


def script(*args: str) -> tuple[str, dict[str, Any]]:
    more = {"args": list(args)} if args else {}
    return "run_python_script", {
        "skill_name": "word-count",
        "script": "scripts/count.py",
        **more,
    }


SKILL_PROMPTS: list[tuple[str, list[str], Calls, str]] = [
    ("Which skills are there?", ["skills"], [LIST], "`word-count`: Counts the words of a text."),
    ("What does the skill word-count do?", ["skills"], [LIST, GET], "Run `scripts/count.py TEXT`"),
    (
        "Use the skill word-count on notes.md",
        ["skills"],
        [LIST, GET, script("notes.md")],
        "was given the name `notes.md`, not the file",
    ),
    (
        "Use the skill word-count on notes.md",
        ["skills", "fs"],
        [LIST, GET, ("fs.read", {"path": "notes.md"}), script(FILES["notes.md"])],
        "13 words",
    ),
    (
        "Use a skill to count the words of 'a b c'",
        ["skills"],
        [LIST, GET, script("a b c")],
        "3 words",
    ),
    ("Run the script of the skill word-count", ["skills"], [LIST, GET, script()], "0 words"),
    ("Use the skill tea-making", ["skills"], [LIST], "There is no skill `tea-making`."),
]


@pytest.mark.parametrize(
    ("prompt", "tools", "calls", "said"),
    SKILL_PROMPTS,
    ids=[f"{case[0]} ({', '.join(case[1])})" for case in SKILL_PROMPTS],
)
def test_prompt_about_a_skill_leads_to_its_script(
    prompt: str, tools: list[str], calls: Calls, said: str, project: Path
) -> None:
    run = ask(prompt, tools)
    assert calls_of(run) == calls
    assert said in run.text


NOTEBOOK_PROMPTS: list[tuple[str, Calls, str]] = [
    ("Which variables are there?", [("nb.variables", {})], "| `x` | int |  | `3` |"),
    ("Which variables start with n?", [("nb.variables", {"pattern": "n*"})], "1 variable:"),
    ("What is in df?", [("nb.inspect", {"name": "df"})], "2 rows and 2 columns"),
    ("Describe the DataFrame df", [("nb.inspect", {"name": "df"})], "| mean | 495 |"),
    (
        "Describe the DataFrame",
        [("nb.variables", {}), ("nb.inspect", {"name": "df"})],
        "`city` (",
    ),
    ("What is x?", [("nb.inspect", {"name": "x"})], "Its value: `3`"),
    ("What is in df['city']?", [("nb.inspect", {"name": "df['city']"})], "Bergen"),
    ("Set x to 5", [("nb.set", {"name": "x", "value": 5})], "`x` is now `5` (int)."),
    (
        "Set names to ['c', 'd']",
        [("nb.set", {"name": "names", "value": ["c", "d"]})],
        "`names` is now",
    ),
    ("Run `1 + 1`", [("nb.run", {"code": "1 + 1"})], "`1 + 1` gives **2**."),
    (
        "Run this:\n```python\nprint(x)\nx * 2\n```",
        [("nb.run", {"code": "print(x)\nx * 2"})],
        "The code gives **6**.\n\nIt printed:\n\n```\n3\n```",
    ),
    ("Plot df", [], "Give me the Python in backticks"),
    (
        "What is in nothing_there?",
        [("nb.inspect", {"name": "nothing_there"})],
        "I could not look at `nothing_there`",
    ),
    ("What is api_key?", [("nb.inspect", {"name": "api_key"})], "I was not allowed to look at"),
]


@pytest.mark.parametrize(
    ("prompt", "calls", "said"), NOTEBOOK_PROMPTS, ids=[case[0] for case in NOTEBOOK_PROMPTS]
)
def test_prompt_about_the_notebook_is_done_in_it(
    prompt: str, calls: Calls, said: str, project: Path, names: dict[str, Any]
) -> None:
    run = ask(prompt, ["notebook"])
    assert calls_of(run) == calls
    assert said in run.text
    assert "sk-secret-value" not in run.text


MIXED_PROMPTS: list[tuple[str, Calls, str]] = [
    ("What is the population of Oslo?", [("population", {"city": "Oslo"})], "709,037"),
    (
        "Which of Oslo and Bergen is larger?",
        [("population", {"city": "Oslo"}), ("population", {"city": "Bergen"})],
        "**Oslo** is larger",
    ),
    ("What does population.md say?", [("fs.read", {"path": "population.md"})], "I could not read"),
    (
        "Read notes.md and give me the population of Oslo",
        [("fs.read", {"path": "notes.md"}), ("population", {"city": "Oslo"})],
        "Bergen is wetter.",
    ),
    (
        "Write the population of Oslo to out/oslo.txt",
        [
            ("population", {"city": "Oslo"}),
            (
                "fs.write",
                {"path": "out/oslo.txt", "content": "**Oslo**: **709,037** (`population`)"},
            ),
        ],
        "I wrote 36 bytes",
    ),
    ("Which variables are there?", [("nb.variables", {})], "4 variables"),
    ("What is 12 * 7?", [], "**84**"),
]


@pytest.mark.parametrize(
    ("prompt", "calls", "said"), MIXED_PROMPTS, ids=[case[0] for case in MIXED_PROMPTS]
)
def test_own_function_and_hosts_share_the_prompts(
    prompt: str, calls: Calls, said: str, project: Path, names: dict[str, Any]
) -> None:
    run = ask(prompt, ["fs", "skills", "notebook", population])
    assert calls_of(run) == calls
    assert said in run.text


@pytest.fixture(scope="module")
def clock() -> Iterator[McpServer]:
    if not find_spec("mcp_server_time"):
        pytest.skip("mcp-server-time is not installed")
    server = nbagent.mcp("time", command=[sys.executable, "-m", "mcp_server_time"])
    yield server
    server.close()


OSLO = ("time__get_current_time", {"timezone": "Europe/Oslo"})
CLOCK_PROMPTS: list[tuple[str, Calls, str]] = [
    ("What time is it in Oslo?", [OSLO], "datetime: 20"),
    (
        "What time is it in Oslo and Tokyo?",
        [OSLO, ("time__get_current_time", {"timezone": "Asia/Tokyo"})],
        "| Asia/Tokyo |",
    ),
    (
        "Convert 14:00 from Europe/Oslo to Asia/Tokyo",
        [
            (
                "time__convert_time",
                {
                    "source_timezone": "Europe/Oslo",
                    "time": "14:00",
                    "target_timezone": "Asia/Tokyo",
                },
            )
        ],
        "target.timezone: Asia/Tokyo",
    ),
    ("What time is it in Atlantis?", [], "needs `timezone`"),
    ("What is the population of Oslo?", [("population", {"city": "Oslo"})], "709,037"),
]


@pytest.mark.parametrize(
    ("prompt", "calls", "said"), CLOCK_PROMPTS, ids=[case[0] for case in CLOCK_PROMPTS]
)
def test_prompt_about_the_time_is_done_by_the_server(
    prompt: str, calls: Calls, said: str, project: Path, clock: McpServer
) -> None:
    run = ask(prompt, ["fs", clock, population])
    assert calls_of(run) == calls
    assert said in run.text


def test_refused_server_is_told_and_left(project: Path, clock: McpServer) -> None:
    run = ask("What time is it in Oslo?", [clock], allowed=False)
    assert calls_of(run) == [OSLO]
    assert "I was not allowed to call `time__get_current_time`" in run.text


def test_each_tool_of_the_hosts_is_known_with_its_arguments(
    project: Path, names: dict[str, Any]
) -> None:
    run = ask("Hello", ["fs", "skills", "notebook"])
    specs = [spec for tools in run.record.toolsets.values() for spec in tools]
    assert len(specs) > 10
    assert set(known_tools(specs)) == {spec.name for spec in specs}
