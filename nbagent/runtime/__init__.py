"""The engine thread, and the queue of the thread that waits for a run.

Owns where a run's work happens and how a stop reaches it. Knows nothing of models, tools or
notebooks: only the standard library and contracts.

Inside, imports go: loop → interrupt → jobs → courier → waiting.
"""

from nbagent.runtime.interrupt import Watch
from nbagent.runtime.run_task import Courier, inside_a_tool
from nbagent.runtime.threads import engine_loop, on_engine_thread
from nbagent.runtime.waiting import (
    EventChannel,
    Pump,
    await_here,
    check_interrupted,
    follow,
    use_nested_runner,
    wait,
)

__all__ = [
    "Courier",
    "EventChannel",
    "Pump",
    "Watch",
    "await_here",
    "check_interrupted",
    "engine_loop",
    "follow",
    "inside_a_tool",
    "on_engine_thread",
    "use_nested_runner",
    "wait",
]
