"""The engine thread, the calls that it sends to other threads, and waiting for a run.

Owns where a run's work is executed and how a stop reaches it. Imports contracts only; models, tools
and notebooks are not its business. Imports inside go one way: threads → interrupt → jobs →
run_task → waiting.
"""

from nbagent.runtime.garbage import rare_collections
from nbagent.runtime.interrupt import InterruptGuard
from nbagent.runtime.run_task import RunTask, inside_a_tool
from nbagent.runtime.threads import engine_loop, on_engine_thread
from nbagent.runtime.waiting import (
    EventChannel,
    Pump,
    check_interrupted,
    follow,
    use_nested_runner,
    wait,
    wait_async,
)

__all__ = [
    "EventChannel",
    "InterruptGuard",
    "Pump",
    "RunTask",
    "check_interrupted",
    "engine_loop",
    "follow",
    "inside_a_tool",
    "on_engine_thread",
    "rare_collections",
    "use_nested_runner",
    "wait",
    "wait_async",
]
