"""Where a run's work happens, and how it comes back. Interrupts have their own file in faults/."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from engine.laws import codes

from nbagent import Agent, tool
from nbagent.providers.offline import call, calls, script, step


def test_process_ends_quietly_while_runs_are_at_work() -> None:
    # Development mode also reports each callback that took 0.1 s, which a busy machine causes.
    code = """
import asyncio, logging
logging.getLogger("asyncio").setLevel(logging.ERROR)
from nbagent import Agent, tool
from nbagent.runtime import RunTask, wait
run_task = RunTask()
async def stubborn():
    while True:
        try: await asyncio.sleep(60)
        finally: pass
async def broken():
    asyncio.ensure_future(crash())
    return (await run_task.run(lambda: asyncio.sleep(0, "kept"), where="tool loop"))[0]
async def crash(): raise ValueError("nobody looks")
print(wait(run_task.start(broken)))
RunTask().start(stubborn)
import time; time.sleep(0.1)
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("kept\n", "", 0)
    assert time.monotonic() - started < 20


async def holds_its_loop() -> str:
    """Never wait."""
    while True:
        pass


async def yields_for_ever() -> AsyncIterator[int]:
    """Give one number after the other, without waiting."""
    while True:
        yield 1


async def waits() -> str:
    """Wait a moment, as every well-behaved tool."""
    await asyncio.sleep(0.01)
    return "waited"


@pytest.mark.parametrize("held", [holds_its_loop, yields_for_ever])
@pytest.mark.parametrize("end", ["timeout", "stop"])
def test_async_tool_that_never_waits_ends_alone(held: Any, end: str) -> None:
    limit = tool(timeout=0.3)(held) if end == "timeout" else tool(held)
    first = Agent(model=script([call(held.__name__), "went on"]), tools=[limit]).start("Go.")
    time.sleep(0.1)
    began = time.monotonic()
    others = [
        Agent(model=script([call("waits"), "done"]), tools=[waits], timeout_s=30).start("Go.")
        for _ in range(3)
    ]
    if end == "stop":
        first.stop()
    ended = [run.wait() for run in (first, *others)]
    assert time.monotonic() - began < 20
    assert codes(first) == ["E_TIMEOUT" if end == "timeout" else "E_INTERRUPTED"]
    assert [run.text for run in ended] == ["went on" if end == "timeout" else "", *["done"] * 3]


@pytest.mark.timed
@pytest.mark.parametrize("within", ["a cell", "a tool"])
def test_a_wait_serves_all_runs_that_were_started_in_its_place(within: str) -> None:
    threads: list[int] = []

    def look() -> str:
        """Look."""
        threads.append(threading.get_ident())
        return "seen"

    def slow() -> Any:
        return script([step(calls=[call("look")], wait_ms=600), step(text="Done.", wait_ms=600)])

    Agent(model=slow(), tools=[look]).run("Warm up.")
    took: list[float] = []

    def five() -> str:
        """Start five runs, and wait for them."""
        began = time.monotonic()
        runs = [Agent(model=slow(), tools=[look]).start("Go.") for _ in range(5)]
        texts = [run.wait().text for run in runs]
        took.append(time.monotonic() - began)
        return " ".join(texts)

    if within == "a cell":
        assert five() == "Done. Done. Done. Done. Done."
    else:
        Agent(model=script([call("five"), "Done."]), tools=[five]).run("Go.")
    assert took[0] < 3.0  # 1.2 for one, and 0.6 more for each if one by one
    assert threads == [threading.get_ident()] * 6


def test_a_tool_that_waits_does_not_run_the_calls_of_other_runs() -> None:
    order: list[str] = []

    def outer() -> str:
        """Ask another agent."""
        slow = script([step(calls=[call("inner")], wait_ms=400), "Done."])
        Agent(model=slow, tools=[inner]).run("Go.")
        order.append("outer")
        return "asked"

    def inner() -> str:
        """Note it."""
        order.append("inner")
        return "noted"

    def other() -> str:
        """Note it."""
        order.append("other")
        return "noted"

    beside = script([step(calls=[call("other")], wait_ms=200), "Done."])
    left = Agent(model=beside, tools=[other]).start("Go.")
    both = calls([call("outer"), call("inner")])
    run = Agent(model=script([both, step(text="Done.", wait_ms=200)]), tools=[outer, inner])
    assert (run.run("Go.").text, left.wait().text) == ("Done.", "Done.")
    assert order[:2] == ["inner", "outer"]
    assert sorted(order[2:]) == ["inner", "other"]
