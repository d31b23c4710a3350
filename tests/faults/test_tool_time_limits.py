"""A tool that runs over its own time limit fails alone: the run goes on, in every place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

import nbagent


@nbagent.tool(timeout=0.2)
def busy() -> str:
    """Work in the main thread for long."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        pass
    return "done"


@nbagent.tool(timeout=0.2)
def asleep() -> str:
    """Sleep in the main thread for long."""
    time.sleep(20)
    return "done"


@nbagent.tool(timeout=0.2)
async def awaiting() -> str:
    """Wait on the engine's loop for long."""
    await asyncio.sleep(20)
    return "done"


@nbagent.tool(timeout=0.2, threaded=True)
def aside() -> str:
    """Work in a worker thread for long."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.01)
    return "done"


@pytest.mark.parametrize("tool", [busy, asleep, awaiting, aside], ids=lambda tool: tool.__name__)
def test_the_run_goes_on_after_a_tool_ran_over_its_limit(tool: Callable[[], str]) -> None:
    script = nbagent.offline.script([nbagent.offline.call(tool.__name__), "went on"])
    run = nbagent.Agent(model=script, tools=[tool]).run("go")
    result = run.turns[0].tool_runs[0].result
    assert result is not None
    assert result.error is not None
    assert (result.error.code, run.text, run.stop_reason) == ("E_TIMEOUT", "went on", "answered")
