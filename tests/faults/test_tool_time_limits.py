"""A tool that does not come back from the system meets its time limit, and the run goes on."""

from __future__ import annotations

import time

import nbagent


@nbagent.tool(timeout=0.2)
def asleep() -> str:
    """Sleep in the main thread for long."""
    time.sleep(20)
    return "done"


def test_the_run_goes_on_after_a_tool_slept_over_its_limit_in_the_main_thread() -> None:
    script = nbagent.offline.script([nbagent.offline.call("asleep"), "went on"])
    run = nbagent.Agent(model=script, tools=[asleep]).run("go")
    (done,) = run.turns[0].tool_runs
    assert done.result is not None
    assert done.result.error is not None
    assert (done.result.error.code, run.text, run.stop_reason) == (
        "E_TIMEOUT",
        "went on",
        "answered",
    )
