"""Stopping: in the model's answer, in each kind of tool, between turns, after a turn."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from engine.laws import check_run, codes, error_code, results

import nbagent
from nbagent.contracts.events import (
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    ToolProgress,
    TurnStarted,
)
from nbagent.providers.offline import call, calls, script, step
from nbagent.run import Run

MOST_S = 20.0
"""Far below what the tools would take; a busy machine may need some of it."""


def run_and_stop(agent: nbagent.Agent, kind: type, after: float = 0.0) -> Run:
    """A run that is stopped so many seconds after its first event of a kind."""
    reached = threading.Event()
    began = time.monotonic()
    run = agent.start("Go.", on_event=lambda event: isinstance(event, kind) and reached.set())

    def stop() -> None:
        reached.wait(MOST_S)
        time.sleep(after)
        run.stop()

    threading.Thread(target=stop).start()
    run.wait()
    assert time.monotonic() - began < MOST_S
    return run


def check_stopped(run: Run) -> None:
    assert (run.phase, run.stop_reason, error_code(run)) == ("Failed", "stopped", "ENGINE_ABORTED")


def test_stopped_run_keeps_its_partial_text_and_goes_on() -> None:
    model = script([step(text="One two three four five six.", delay_ms=200), "And seven."])
    run = run_and_stop(nbagent.Agent(model=model), TextDelta)
    check_stopped(check_run(run, model))
    assert run.text.startswith("One")
    assert "six" not in run.text
    child = check_run(run.resume(), model)
    assert child.text == "And seven."
    assert child.messages[1].text == run.text
    assert child.messages[2].role == "user"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_stopped_before_the_first_token_asks_the_same_again(stream: bool) -> None:
    model = script([step(text="Late.", wait_ms=20_000), "Now."])
    run = run_and_stop(nbagent.Agent(model=model, stream=stream), TurnStarted, 0.1)
    check_stopped(check_run(run, model))
    assert [m.role for m in run.messages] == ["user"]
    child = check_run(run.resume(), model)
    assert child.ok
    assert model.requests[1].messages == model.requests[0].messages


def test_stopped_before_the_request_leaves_waits_for_no_answer() -> None:
    started: queue.SimpleQueue[Run] = queue.SimpleQueue()
    agent = nbagent.Agent(model=script([step(text="Late.", wait_ms=20_000)]))
    run = agent.start("Go.", on_event=lambda e: isinstance(e, TurnStarted) and started.get().stop())
    started.put(run)
    check_stopped(run.wait(timeout=MOST_S))


async def steps() -> AsyncIterator[str]:
    """Work step by step."""
    yield "one"
    yield "done"


def test_progress_of_a_tool_is_told_beside_its_call() -> None:
    told: list[Any] = []
    agent = nbagent.Agent(model=script([call("steps"), "Fine."]), tools=[steps])
    agent.start("Go.", on_event=told.append).wait()
    progress = [(e.turn_id, e.text) for e in told if isinstance(e, ToolProgress)]
    assert progress == [("C01", "one")]


def test_stopped_in_the_middle_of_a_call_answers_the_call() -> None:
    asked = call("look", what="x" * 400)
    model = script([step(calls=[asked], delay_ms=100), "Fine."])
    run = run_and_stop(nbagent.Agent(model=model, tools=[look]), ToolCallDelta, 0.15)
    check_stopped(check_run(run, model))
    assert codes(run) == ["E_INTERRUPTED"]
    assert check_run(run.resume(), model).text == "Fine."


looked: list[str] = []


def look(what: str) -> str:
    """Look at something."""
    looked.append(what)
    return what


def slow() -> str:
    """Take a long time, in Python."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        time.sleep(0.01)
    return "never"


async def slow_async() -> str:
    """Take a long time, on the loop."""
    await asyncio.sleep(30)
    return "never"


@nbagent.tool(threaded=True)
def slow_threaded() -> str:
    """Take a long time, in a thread."""
    time.sleep(30)
    return "never"


@nbagent.tool(loop="notebook")
async def slow_there() -> str:
    """Take a long time, on the notebook's loop."""
    await asyncio.sleep(30)
    return "never"


async def stubborn() -> str:
    """Go on whatever happens, for some seconds."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.5)
    return "never"


@pytest.mark.parametrize(
    "tool",
    [slow, slow_async, slow_threaded, slow_there, stubborn],
    ids=["sync", "async", "thread", "notebook", "stubborn"],
)
def test_stopped_tool_is_interrupted_and_answered(tool: Any) -> None:
    looked.clear()
    model = script([calls([call(tool.__name__), call("look", what="y")]), "Then without."])
    run = run_and_stop(nbagent.Agent(model=model, tools=[tool, look]), ToolCallStarted, 0.2)
    check_stopped(check_run(run, model))
    assert codes(run)[0] == "E_INTERRUPTED"
    assert "what it did so far is unknown" in results(run)[0]["error"]["message"]
    assert tool is not slow or (codes(run)[1], looked) == ("E_INTERRUPTED", [])
    assert check_run(run.resume(), model).text == "Then without."


@pytest.mark.parametrize("kind", ["sync", "async", "thread"])
def test_stopped_tool_that_may_not_be_interrupted_finishes_first(kind: str) -> None:
    lines: list[str] = []

    def work() -> str:
        """Write two lines."""
        lines.append("one")
        time.sleep(1.3)  # longer than a stop waits for other tools
        lines.append("two")
        return "written"

    async def work_async() -> str:
        """Write two lines."""
        return await asyncio.to_thread(work)

    function: Any = work_async if kind == "async" else work
    write = nbagent.tool(name="write", interruptible=False, threaded=kind == "thread")(function)
    model = script([call("write"), "Good."])
    run = run_and_stop(nbagent.Agent(model=model, tools=[write]), ToolCallStarted, 0.1)
    check_stopped(check_run(run, model))
    assert lines == ["one", "two"]
    assert results(run) == [{"ok": True, "data": "written"}]
    assert check_run(run.resume(), model).text == "Good."
    assert lines == ["one", "two"]


def test_stop_after_the_turn_pauses_with_all_results() -> None:
    def look_and_pause() -> str:
        """Ask for a pause in the middle of the turn."""
        run.stop(after_turn=True)
        return "seen"

    model = script([call("look_and_pause"), "Here."])
    run = nbagent.Agent(model=model, tools=[look_and_pause]).start("Go.")
    check_run(run.wait(), model)
    assert (run.phase, run.stop_reason, run.error) == ("WaitingUser", "stopped", None)
    assert results(run) == [{"ok": True, "data": "seen"}]
    assert check_run(run.resume(), model).text == "Here."


def test_stopped_before_it_began_asks_nobody() -> None:
    model = script(["Never."])
    agent = nbagent.Agent(model=model)
    block = threading.Event()
    first = agent.start("Go.", on_event=lambda event: block.wait(5))
    second = agent.start("Go too.")
    second.stop()
    block.set()
    first.wait()
    check_stopped(check_run(second.wait()))
    before = second.record
    second.stop()
    second.stop(after_turn=True)
    assert check_run(second).record is before, "a stop after the end changes nothing"
    assert (second.turns, len(model.requests)) == ((), 1)
    assert [m.text for m in second.messages] == ["Go too."]
