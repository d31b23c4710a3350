"""Whole runs with an MCP server: who is asked, and when again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers.mcp_door import hand

import nbagent
from nbagent import offline
from nbagent.contracts.policy import PersonAnswer, Question
from nbagent.tools.mcp import McpServer, mcp


@pytest.fixture
def server() -> Iterator[McpServer]:
    made = mcp("runs", command=hand())
    yield made
    made.close()


def test_changed_definition_is_asked_about_again(server: McpServer) -> None:
    echo = offline.call("runs__echo", text="a")
    other = offline.call("runs__echo", text="b")
    model = offline.script([echo, other, offline.call("runs__change"), echo, "Done."])
    asked: list[str] = []

    def answer(question: Question) -> PersonAnswer:
        asked.append(question.tool)
        return PersonAnswer(choice="session")

    run = nbagent.Agent(model=model, tools=[server]).run("Go.", on_approval=answer)
    run.raise_for_error()
    assert asked == ["runs__echo", "runs__change", "runs__echo"]
    by = [run.turns[i].tool_runs[0].approved_by for i in range(4)]
    assert by == ["callback", "session", "callback", "callback"]
    shas = [run.turns[i].tool_runs[0].tool_sha for i in (0, 1, 3)]
    assert shas[0] == shas[1] != shas[2]


def test_server_that_cannot_start_starts_no_run() -> None:
    broken = mcp("broken", command=hand("--broken"))
    run = nbagent.Agent(model="offline:demo", tools=[broken]).run("Go.")
    broken.close()
    assert (run.phase, run.turns) == ("Failed", ())
    assert "no database at" in str(run.error)
