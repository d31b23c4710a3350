"""offline:demo with hand-made tools of the hosts' names: errors, doubles, and prompts at random."""

from __future__ import annotations

import random
import re
from typing import Any
from zoneinfo import available_timezones

import pytest
from demo_talk import INTEGER, STRING, Called, Schema, Talk, Tool, offered, population

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.errors import ErrorCode, ToolError
from nbagent.providers.offline import zones as zone_table
from nbagent.providers.offline.known_answers import summary
from nbagent.providers.offline.known_words import read_prompt
from nbagent.providers.offline.zones import zones

REPOSITORY: Schema = {"repo_path": {"type": "string", "description": "Repo Path"}}
TEXT = "# Title\n\nFirst words. Second.\n"


def files(**results: Any) -> list[Tool]:
    """The file tools; each gives what it is told to, or raises it."""

    def run(name: str, value: Any) -> Tool:
        parameters, optional, _ = _FILES[name]

        def give(**arguments: Any) -> Any:
            found = results.get(name.partition(".")[2], value)
            if isinstance(found, ToolError):
                raise found
            return found

        return Tool(name, name, parameters, give, optional)

    return [run(name, value) for name, (_, _, value) in _FILES.items()]


_FILES: dict[str, tuple[Schema, list[str], Any]] = {
    "fs.read": (
        {"path": STRING, "offset": INTEGER, "limit": INTEGER},
        ["offset", "limit"],
        {"path": "@project/a.md", "bytes": 30, "truncated": False, "content": TEXT},
    ),
    "fs.list": (
        {"path": STRING, "glob": STRING, "depth": INTEGER},
        ["path", "glob", "depth"],
        {"path": "@project", "entries": []},
    ),
    "fs.search": (
        {"query": STRING, "path": STRING, "glob": STRING, "regex": STRING},
        ["path", "glob", "regex"],
        {"matches": [], "truncated": False, "stats": {"filesScanned": 7, "matchesFound": 0}},
    ),
    "fs.write": (
        {"path": STRING, "content": STRING},
        [],
        {"path": "@project/b.md", "bytesWritten": 3},
    ),
    "fs.apply_patch": (
        {"path": STRING, "oldText": STRING, "newText": STRING},
        ["oldText", "newText"],
        {"path": "@project/a.md"},
    ),
}
GIT = [
    Tool("git__git_status", "Shows the working tree status", REPOSITORY, offered("clean")),
    Tool("git__git_log", "Shows the commit logs", REPOSITORY, offered("Begin\nGo on")),
    Tool(
        "git__git_commit",
        "Records changes to the repository",
        {**REPOSITORY, "message": STRING},
        offered("made"),
    ),
    Tool(
        "git__git_branch",
        "List Git branches",
        {
            **REPOSITORY,
            "branch_type": {
                "type": "string",
                "description": "Local branches ('local'), remote branches ('remote') or ('all').",
            },
        },
        offered("* main"),
    ),
    Tool(
        "git__git_create_branch",
        "Creates a new branch",
        {**REPOSITORY, "branch_name": STRING},
        offered("made"),
    ),
]
HERE = {"repo_path": "."}
GIT_PROMPTS: list[tuple[str, list[Called]]] = [
    ("What is the status of the repository?", [("git__git_status", HERE)]),
    ("Show the git log", [("git__git_log", HERE)]),
    ("Which branches are there?", [("git__git_branch", {**HERE, "branch_type": "local"})]),
    ("Show the remote branches", [("git__git_branch", {**HERE, "branch_type": "remote"})]),
    ("What changed in the repository?", [("git__git_status", HERE)]),
    (
        "Commit with the message 'Go on'",
        [("git__git_commit", {**HERE, "message": "Go on"})],
    ),
    (
        "Status of the repository in src/lib",
        [("git__git_status", {"repo_path": "src/lib"})],
    ),
]


@pytest.mark.parametrize(("prompt", "calls"), GIT_PROMPTS, ids=[case[0] for case in GIT_PROMPTS])
def test_repository_of_a_server_is_the_folder_it_runs_in(prompt: str, calls: list[Called]) -> None:
    talk = Talk([*GIT, *files()])
    talk.ask(prompt)
    assert talk.calls == calls


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("E_DENIED", "I was not allowed to read `a.md` (it is dark). I leave it at that."),
        ("E_SANDBOX_VIOLATION", "I may not read `a.md`: it is dark."),
        ("ENOENT", "I could not read `a.md`: it is dark."),
        ("E_READ_LIMIT", "I could not read `a.md`: it is dark."),
    ],
)
def test_failed_call_ends_in_one_sentence(code: ErrorCode, said: str) -> None:
    talk = Talk(files(read=ToolError("it is dark", code=code)))
    assert talk.ask("Summarise a.md and write the summary to b.md") == said
    assert talk.calls == [("fs.read", {"path": "a.md"})]


def test_own_function_of_a_tools_name_keeps_the_general_rules() -> None:
    own = Tool("get_skill", "Level of a player in a game.", {"player": STRING}, offered(7))
    talk = Talk([own])
    assert "**7**" in talk.ask("What skill has Magnus?")
    assert talk.calls == [("get_skill", {"player": "Magnus"})]


def test_forced_choice_of_a_known_tool_makes_its_call() -> None:
    talk = Talk([*files(), population], tool_choice="fs.read")
    talk.ask("Good morning")
    assert [name for name, _ in talk.calls] == ["fs.read"]
    talk = Talk([*files(), population], tool_choice="required")
    talk.ask("What does a.md say?")
    assert talk.calls == [("fs.read", {"path": "a.md"})]


def test_long_file_is_told_in_part_and_what_is_left_is_counted() -> None:
    text = "".join(f"line {number}\n" for number in range(1, 201))
    found = {"path": "@project/a.md", "bytes": len(text), "truncated": False, "content": text}
    answer = Talk(files(read=found)).ask("What does a.md say?")
    assert "line 30\n" in answer
    assert "line 31" not in answer
    assert "and 170 more lines" in answer


def test_file_with_a_fence_in_it_is_told_in_a_longer_one() -> None:
    found = {"path": "@project/a.md", "content": "```\ncode\n```\n"}
    assert "````\n```\ncode\n```\n````" in Talk(files(read=found)).ask("Read a.md")


def test_summary_takes_the_heading_and_first_sentences() -> None:
    text = (
        "---\na: 1\n---\n# Title\n\nOne. Two.\n\n```\nx\n```\n\n- Three\n\nFour! Five.\n\nS.\n\nT."
    )
    assert summary(text) == "Title: One. Three. Four! S."
    assert summary("") == ""


@pytest.mark.parametrize(
    ("prompt", "paths", "quotes"),
    [
        ("Read README.md.", ["README.md"], []),
        ("Read `my notes.md` and .gitignore", ["my notes.md", ".gitignore"], []),
        ("See @data/a/b.csv, ./x/y.py and src/", ["@data/a/b.csv", "./x/y.py", "src/"], []),
        ("Write 'a/b or \"c\"' to out/x.txt", ["out/x.txt"], ['a/b or "c"']),
        ("Mail ada@example.org at 3.5 and/or see https://x.org/a.md", [], []),
        ("It isn't 2*3 or a.b", [], []),
    ],
    ids=["a sentence's end", "quoted", "mounts", "inside quotes", "none", "sums"],
)
def test_paths_and_quotations_are_told_apart(
    prompt: str, paths: list[str], quotes: list[str]
) -> None:
    reading = read_prompt(prompt)
    assert (reading.paths, reading.quotes) == (paths, quotes)


def test_each_place_of_the_table_has_a_zone_that_exists() -> None:
    known = available_timezones()
    if not known:
        pytest.skip("there is no time zone data here")
    prompt = (
        "Oslo, new york, São Paulo, Hong Kong, Bergen, India, San Francisco and Asia/Tokyo, UTC"
    )
    found = [zone.name for zone in zones(prompt)]
    assert found[:3] == ["Europe/Oslo", "America/New_York", "America/Sao_Paulo"]
    assert found[-2:] == ["Asia/Tokyo", "Etc/UTC"]
    assert set(vars(zone_table)["_BY_NAME"].values()) <= known


PIECES = re.findall(
    r"`[^`]+`|\S+",
    "read write list search find replace summarise use run set describe plot show it the file skill"
    " skills variable variables DataFrame df x in to with for and then from of what is which where"
    " defined save result summary a.md src/ @data out/b.md *.py 'Oslo' `1 + 1` \"b\" ``` 5 = Oslo"
    " population notes README lines first 3 how many script word-count ? . , : ‹p0› ‹q1› { [",
)
SKILLS = [
    Tool("list_skills", "", {}, offered({"skills": [{"name": "word-count", "description": "w"}]})),
    Tool(
        "get_skill",
        "",
        {"skill_name": STRING},
        offered({"skill_name": "word-count", "documentation": "d", "files": ["a.py"]}),
    ),
    Tool(
        "run_python_script",
        "",
        {"skill_name": STRING, "script": STRING, "args": {"type": "array", "items": STRING}},
        offered({"stdout": "1\n", "stderr": "", "returncode": 0, "isolation": "process"}),
        ["args"],
    ),
]
NOTEBOOK = [
    Tool(
        "nb.variables",
        "",
        {"pattern": STRING},
        offered({"variables": [{"name": "x"}]}),
        ["pattern"],
    ),
    Tool("nb.inspect", "", {"name": STRING}, offered({"name": "x", "type": "int", "value": 1})),
    Tool("nb.run", "", {"code": STRING}, offered({"value": None, "stdout": "", "stderr": ""})),
    Tool("nb.set", "", {"name": STRING, "value": {}}, offered({"name": "x", "now": {}})),
]


@pytest.mark.parametrize("seed", range(8))
def test_prompt_put_together_at_random_ends_and_repeats_no_call(seed: int) -> None:
    chance = random.Random(seed)
    broken = ToolError("no", code="ENOENT")
    for _ in range(40):
        prompt = " ".join(chance.choices(PIECES, k=chance.randint(1, 14)))
        mood = chance.choice([{}, {"read": broken}, {"write": broken}, {"search": None}])
        talk = Talk([*files(**mood), *SKILLS, *NOTEBOOK, population, *GIT])
        assert talk.ask(prompt), prompt
        seen = [canonical_json([name, arguments]) for name, arguments in talk.calls]
        assert len(seen) == len(set(seen)), prompt
