"""A conversation with tools over the three endpoints of llama.cpp's own server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.laws import check_run

import nbagent
from nbagent.contracts.events import Event, TextDelta, ToolCallDelta
from nbagent.providers import local

asked: list[str] = []


@nbagent.tool
def population(city: str) -> int:
    """People living in a city."""
    asked.append(city)
    return 717_710


def prompt_tokens(run: nbagent.Run) -> list[int]:
    usages = [turn.response.usage for turn in run.turns if turn.response]
    return [usage.prompt_tokens for usage in usages if usage]


@pytest.fixture(scope="module")
def server(tiny_model: Path) -> Iterator[local.ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(local.PARAMS_VARIABLE, '{"cpuparams.n_threads": 1}')
        server = local.ServerProcess(tiny_model)
    yield server
    server.stop()


@pytest.mark.parametrize("provider", ["llamacpp", "openai-responses", "anthropic"])
def test_conversation_with_tools_goes_over_each_endpoint(
    provider: str, server: local.ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_SERVER", server.key.reveal())
    asked.clear()
    agent = nbagent.Agent(
        f"{provider}:tiny",
        tools=[population],
        base_url=f"{asyncio.run(server.started(60))}/v1",
        key_variable="KEY_OF_THE_SERVER",
        max_tokens=300,
    )
    events: list[Event] = []
    run = agent.run("How many?", tool_choice="population", temperature=0, on_event=events.append)
    check_run(run.raise_for_error())
    [tool_run] = run.turns[0].tool_runs
    assert tool_run.result is not None
    assert (tool_run.result.data, run.stop_reason) == (717_710, "answered")
    assert asked == [(tool_run.args or {})["city"]]
    arguments = "".join(e.arguments for e in events if isinstance(e, ToolCallDelta))
    assert tool_run.args == json.loads(arguments)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == run.text
    # The template of the model lets a text follow only behind a tool's result.
    assert run.text
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    first, last = prompt_tokens(run)
    assert last > first > 0

    second = check_run(run.resume("And now?").raise_for_error())
    assert (second.stop_reason, bool(second.text)) == ("answered", True)
    assert [tool_run.tool_name for turn in second.turns for tool_run in turn.tool_runs]
    assert prompt_tokens(second)[0] > last
