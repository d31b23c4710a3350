"""Whole runs with MCP servers: who is asked and when again, servers that fail, a project's own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from frontends import StandIn
from legal_schema import check_legal
from mcp_stage import Door, until
from servers.mcp_door import hand
from session.approval_stage import Asked

import nbagent
from nbagent import offline
from nbagent.contracts.approval import PersonAnswer
from nbagent.contracts.errors import UsageError
from nbagent.session.frontend import use_frontend
from nbagent.session.project_trust import trust_items
from nbagent.settings.project_items import allow_item
from nbagent.tools.mcp.config import find_server, known_servers, mcp
from nbagent.tools.mcp.connection import connection_of
from nbagent.tools.mcp.server import McpServer


@pytest.fixture(autouse=True)
def project(nothing_known: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A project beside an empty home."""
    monkeypatch.setattr("nbagent.session.tool_hosts.project_folder", lambda: tmp_path)
    yield tmp_path
    nbagent.configure(allow=None, tools=None)


def run_of(tools: list[Any], *replies: Any, **options: Any) -> nbagent.Run:
    model = offline.script([*replies, "Done."])
    return nbagent.Agent(model=model, tools=tools).run("Go.", **options)


def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


def test_all_is_every_host_and_the_persons_servers_as_far_as_rules_allow(project: Path) -> None:
    use_frontend(StandIn({"look": nbagent.tool(look)}))
    servers = {name: {"command": hand()[0], "args": hand()[1:]} for name in ("own", "refused")}
    file = project / "home" / ".config" / "nbagent" / "mcp.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"mcpServers": servers}))
    (project / ".mcp.json").write_text("{")  # what a project describes has to be named
    skill = project / ".agents" / "skills" / "plot" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: plot\ndescription: Plots.\n---\nPlot.")
    mcp("made", command=hand())
    model = offline.script(["Done."])
    agent = nbagent.Agent(model=model, tools="all")
    agent.run("Go.", policy=nbagent.ToolPolicy(deny=["mcp:refused", "fs"])).raise_for_error()
    names = {tool.name for tool in model.requests[0].tools}
    assert {"look", "get_skill", "nb.inspect", "own__echo", "made__echo"} <= names
    assert {name.partition("__")[0] for name in names if "__" in name} == {"own", "made"}
    refused = find_server("refused", project)
    assert isinstance(refused, McpServer)
    assert not refused.is_running, "a server that is denied is not started"


def results(run: nbagent.Run) -> list[Any]:
    return [it.result for turn in run.turns for it in turn.tool_runs]


def person_who(choice: Any) -> Asked:
    return Asked(PersonAnswer(choice=choice))


def test_changed_definition_is_asked_about_again() -> None:
    echo, other = offline.call("runs__echo", text="a"), offline.call("runs__echo", text="b")
    person = person_who("session")
    tools = [mcp("runs", command=hand())]
    run = run_of(tools, echo, other, offline.call("runs__change"), echo, on_approval=person)
    run.raise_for_error()
    asked = [question.tool for question in person.questions]
    assert asked == ["runs__echo", "runs__change", "runs__echo"]
    by = [run.turns[i].tool_runs[0].approved_by for i in range(4)]
    assert by == ["callback", "session", "callback", "callback"]
    shas = [run.turns[i].tool_runs[0].tool_sha for i in (0, 1, 3)]
    assert shas[0] == shas[1] != shas[2]


def test_server_that_cannot_start_again_fails_its_calls_not_the_run(tmp_path: Path) -> None:
    once = mcp("once", command=hand("--once"), cwd=tmp_path)
    calls = [offline.call(f"once__{tool}") for tool in ("echo", "die", "echo")]
    run = run_of([once], *calls, on_approval=person_who("session"))
    assert run.ok
    assert [result.ok for result in results(run)] == [True, False, False]
    assert "FileExistsError" in results(run)[2].error.message


@pytest.mark.timed
def test_servers_start_side_by_side_within_their_timeout_and_the_run_says_so() -> None:
    names = ["one", "two"]
    tools = [mcp(name, command=hand("--silent"), start_timeout=1.5) for name in names]
    waits: list[str] = []

    def see(event: nbagent.events.Event) -> None:
        if isinstance(event, nbagent.events.Waiting):
            waits.append(event.text)

    began = time.monotonic()
    run = run_of([*tools], on_event=see)
    assert run.error is not None
    assert "within 1.5 s" in run.error.message
    assert 1.5 <= time.monotonic() - began < 3.0
    assert waits[1:] == ["the MCP server 'one' starts; the MCP server 'two' starts", ""]


def test_stop_does_not_wait_for_a_server_that_starts() -> None:
    made = mcp("slow", command=hand("--silent"))
    run = nbagent.Agent(model=offline.script(["Done."]), tools=[made]).start("Go.")
    time.sleep(0.3)
    began = time.monotonic()
    run.stop()
    run.wait()
    assert run.stop_reason == "stopped"
    assert time.monotonic() - began < 10
    life = connection_of(made).session
    assert life is not None
    assert until(life.task.done), "its process has ended"


def write(project: Path, **entry: Any) -> None:
    whole = {"mcpServers": {"git": {"command": hand()[0], "args": hand()[1:], **entry}}}
    (project / ".mcp.json").write_text(json.dumps(whole))


START, ECHO = offline.call("git__start_server"), offline.call("git__echo", text="a")


def test_projects_server_starts_once_the_person_has_seen_it_whatever_the_rules_say(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CITY_KEY", "tok-4711-abcdef")
    write(project, env={"KEY": "${CITY_KEY}", "MORE": "${NOT_SET_4711:-}"})
    nbagent.configure(allow=["mcp:git"])

    person = person_who("deny")
    run = run_of(["mcp:git"], START, ECHO, on_approval=person)
    assert [result.error.code for result in results(run)] == ["E_DENIED", "E_UNKNOWN_TOOL"]
    shown = person.questions[0].pieces[-1].text
    assert "${CITY_KEY}" in shown
    assert "mcp_hand.py" in shown
    assert not known_servers()

    person = person_who("once")
    run = run_of(["mcp:git"], START, ECHO, on_approval=person)
    assert [question.tool for question in person.questions] == ["git__start_server"]
    assert "git__echo" in results(run)[0].data["tools"]
    assert results(run)[1].ok

    # Known from now on, till the file says something else.
    assert results(run_of(["mcp:git"], ECHO, on_approval=person))[0].ok
    assert len(person.questions) == 1
    write(project, env={"KEY": "${CITY_KEY}", "MORE": "other"})
    run = run_of(["mcp:git"], ECHO, START, on_approval=person_who("deny"))
    assert [result.error.code for result in results(run)] == ["E_UNKNOWN_TOOL", "E_DENIED"]


def test_projects_server_that_does_not_start_says_so_to_the_model(project: Path) -> None:
    write(project, args=[*hand()[1:], "--broken"])
    run = run_of(["mcp:git"], START, on_approval=person_who("session"))
    assert run.ok
    assert "no database at" in results(run)[0].error.message
    write(project, env={"KEY": "${NOT_SET_4711}"})
    run = run_of(["mcp:git"], START, on_approval=person_who("session"))
    assert "needs the variable NOT_SET_4711" in results(run)[0].error.message
    assert str(project) not in str(results(run))


def test_what_the_person_allowed_or_describes_in_their_own_file_is_theirs(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project)
    monkeypatch.chdir(project)
    nbagent.configure(allow=["mcp:git"])
    with pytest.raises(UsageError, match="not allowed the MCP server 'git'"):
        mcp("git")
    for item in trust_items():
        allow_item(item)
    assert results(run_of([mcp("git")], ECHO))[0].ok
    assert results(run_of(["mcp:git"], ECHO))[0].ok
    own = project / "home" / ".config" / "nbagent"
    own.mkdir(parents=True)
    write(own)
    (own / ".mcp.json").rename(own / "mcp.json")
    write(project, args=["--evil"])
    assert results(run_of(["mcp:git"], ECHO))[0].ok


def test_time_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is installed beside Python is found without its folder on the PATH.
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    command = ["mcp-server-time", "--local-timezone", "UTC"]
    door = Door(mcp("time", command=command)).listed()
    for spec in door.specs.values():
        check_legal(spec)
    answer = door.data("get_current_time", timezone="Europe/Paris")
    assert answer["timezone"] == "Europe/Paris"
