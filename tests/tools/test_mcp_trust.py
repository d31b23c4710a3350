"""Servers that a project's files describe: what starts is what the person allowed, and no other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers.mcp_door import HAND
from session.approval_stage import Asked

import nbagent
from nbagent import offline
from nbagent.contracts.approval import PersonAnswer, Question
from nbagent.contracts.errors import UsageError
from nbagent.session.project_trust import trust_items
from nbagent.settings.project_items import allow_item
from nbagent.testing import fresh_process
from nbagent.tools.mcp import config
from nbagent.tools.mcp.config import find_server, mcp
from nbagent.tools.mcp.server import McpServer

START, ECHO = offline.call("git__start_server"), offline.call("git__echo", text="a")


@pytest.fixture(autouse=True)
def project(nothing_known: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A clone with a server of its own; the environment's kind of trust allows nothing here."""
    folder = tmp_path / "clone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NBAGENT_TRUST", str(folder))
    monkeypatch.setattr(config, "_allowed_identities", set[str]())
    monkeypatch.setattr(config, "_refused_servers", dict[str, Any]())
    (folder / "server.py").write_bytes(HAND.read_bytes())
    write(folder)
    return folder


def write(folder: Path, file: str = ".mcp.json", **entry: Any) -> None:
    whole = {"command": sys.executable, "args": ["-I", "server.py"], **entry}
    (folder / file).write_text(json.dumps({"mcpServers": {"git": whole}}))


def run_of(*replies: Any, answer: Any, tools: Any = ("mcp:git",)) -> tuple[Asked, list[Any]]:
    """The questions of a run, and the results of its calls."""
    person = Asked(answer)
    model = offline.script([*replies, "Done."])
    run = nbagent.Agent(model=model, tools=list(tools)).run("Go.", on_approval=person)
    return person, [it.result for turn in run.turns for it in turn.tool_runs]


def allow_all() -> None:
    for item in trust_items():
        allow_item(item)


ONCE, DENY = PersonAnswer(choice="once"), PersonAnswer(choice="deny")


def test_an_allowed_entry_starts_unasked_and_a_changed_one_shows_the_difference(
    project: Path,
) -> None:
    (item,) = trust_items()
    assert item.name == ".mcp.json: git"
    assert json.dumps(sys.executable) in item.text
    assert "server.py: sha256 " in item.text
    allow_all()
    person, results = run_of(ECHO, answer=ONCE)
    assert [question.tool for question in person.questions] == ["git__echo"]
    assert results[0].ok

    write(project, env={"EVIL": "1"})
    person, results = run_of(ECHO, START, answer=DENY)
    assert [result.error.code for result in results] == ["E_UNKNOWN_TOOL", "E_DENIED"]
    (question,) = person.questions
    (diff,) = [piece for piece in question.pieces if piece.kind == "diff"]
    assert '+    "EVIL": "1"' in diff.text
    write(project)
    assert isinstance(find_server("git", project), McpServer), "as it was allowed"


CHANGES: dict[str, Callable[[Path], object]] = {
    "another program": lambda project: write(project, command="evil"),
    "another argument": lambda project: write(project, args=["-I", "server.py", "--evil"]),
    "another script": lambda project: (project / "server.py").write_text("evil"),
    "another folder": lambda project: write(project, cwd="evil"),
    "another variable": lambda project: write(project, env={"PYTHONSTARTUP": "evil.py"}),
    "another key": lambda project: write(project, env={"API_KEY": "tok-4711-abcdeg"}),
    "an address": lambda project: write(project, url="https://evil.example/mcp"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_of_anything_that_starts_needs_the_person_again(case: str, project: Path) -> None:
    write(project, env={"API_KEY": "tok-4711-abcdef"} if case == "another key" else {})
    allow_all()
    assert isinstance(find_server("git", project), McpServer)
    CHANGES[case](project)
    assert not isinstance(find_server("git", project), McpServer)


@pytest.mark.parametrize("case", ["another program", "another argument", "another variable"])
def test_an_entry_that_changes_under_its_question_starts_as_it_was_shown(
    case: str, project: Path
) -> None:
    def swap(question: Question) -> PersonAnswer:
        CHANGES[case](project)
        return ONCE

    person, results = run_of(START, ECHO, answer=swap)
    assert "evil" not in str(person.questions[0].pieces)
    assert results[1].ok, "the server of the entry that was shown"


def test_a_script_that_changes_under_its_question_is_asked_about_again(project: Path) -> None:
    def swap(question: Question) -> PersonAnswer:
        (project / "server.py").write_text("open('pwned', 'w')\n")
        return ONCE if len(person.questions) == 1 else DENY

    person = Asked(swap)
    model = offline.script([START, "Done."])
    run = nbagent.Agent(model=model, tools=["mcp:git"]).run("Go.", on_approval=person)
    (first, second) = [question.pieces[-1].text for question in person.questions]
    assert first != second
    (call,) = run.turns[0].tool_runs
    assert (call.result and call.result.error and call.result.error.code) == "E_DENIED"
    assert not (project / "pwned").exists()


def test_code_that_names_a_server_of_the_project_does_not_allow_its_content(project: Path) -> None:
    with pytest.raises(UsageError, match=r"'git' as \.mcp\.json .* use --tools mcp:git"):
        mcp("git")
    write(project, "servers.json")
    with pytest.raises(UsageError, match=r"as servers\.json of this project .*; %agent trust"):
        mcp("git", file="servers.json")
    assert [item.name for item in trust_items()] == [".mcp.json: git", "servers.json: git"]
    allow_all()
    (project / ".mcp.json").unlink()
    assert mcp("git", file=project / "servers.json").cwd == str(project)
    write(project, "servers.json", args=["evil"])
    with pytest.raises(UsageError, match="not allowed"):
        mcp("git", file="servers.json")


def test_a_server_runs_in_the_folder_of_its_file_wherever_the_process_went(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    allow_all()
    monkeypatch.chdir(tmp_path)
    server = find_server("git", project)
    assert isinstance(server, McpServer)
    assert server.cwd == str(project)


def test_a_key_in_an_entry_is_not_shown_and_a_variable_is_by_its_name(project: Path) -> None:
    values = {"API_KEY": "tok-4711-abcdef", "GH_TOKEN": "${GH_TOKEN}", "ZONE": "UTC"}
    write(project, env=values, headers={"X-Team": "blue whale"})
    (item,) = trust_items()
    assert "tok-4711" not in item.text
    assert "whale" not in item.text
    assert '"GH_TOKEN": "${GH_TOKEN}"' in item.text
    assert '"ZONE": "UTC"' in item.text


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": 5}'])
def test_a_broken_file_offers_nothing_and_hides_nothing_else(text: str, project: Path) -> None:
    (project / ".mcp.json").write_text(text)
    (project / "pyproject.toml").write_text("[tool.nbagent]\nsystem = 'Obey.'")
    assert [item.name for item in trust_items()] == ["pyproject.toml: system"]


@pytest.mark.parametrize(
    ("entry", "file"),
    [
        ({"command": "python3", "args": ["server.py"], "cwd": "${SUB_DIR:-sub}"}, "sub/server.py"),
        ({"command": "python3", "args": ["-m", "tools.server"]}, "tools/server.py"),
        ({"command": "python3", "args": ["."]}, "__main__.py"),
        ({"command": "npm", "args": ["start"]}, "package.json"),
        ({"command": "node", "args": ["server"]}, "server.js"),
        ({"command": "java", "args": ["@opts.txt"]}, "opts.txt"),
        ({"command": "sh", "args": ["-c", "cd sub;python server.py"]}, "sub/server.py"),
        ({"command": "sh", "args": ["-c", ". $PWD/run.sh"]}, "run.sh"),
        ({"command": "node", "env": {"NODE_OPTIONS": "--require=./x.js"}}, "x.js"),
    ],
)
def test_an_item_changes_with_each_file_that_its_command_may_mean(
    entry: dict[str, Any], file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"it": entry}}))
    program = tmp_path / file
    program.parent.mkdir(exist_ok=True)
    texts: list[str] = []
    for content in ("one", "two"):
        program.write_text(content)
        with fresh_process():
            (item,) = trust_items()
        texts.append(item.text)
    assert texts[0] != texts[1]


def test_a_name_with_line_ends_is_one_line_of_the_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "docs\n.mcp.json: other\x1b[2J\u202e"
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {name: {"command": "x"}}}))
    with fresh_process():
        (item,) = trust_items()
    assert item.name.isprintable()
