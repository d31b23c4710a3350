"""The engine thread, and the queue of the thread that waits for a run.

Owns where a run's work happens and how a stop reaches it. Knows nothing of models, tools or
notebooks: only the standard library and contracts.

Inside, imports go: loop → watch → guard → jobs → courier → task → waiting; channel stands alone.
"""

from nbagent.runtime.channel import EventChannel
from nbagent.runtime.courier import Courier, inside_a_tool, use_nested_runner
from nbagent.runtime.guard import Guard
from nbagent.runtime.loop import engine_loop, on_engine_thread
from nbagent.runtime.task import RunTask
from nbagent.runtime.waiting import Pump, await_here, check_interrupted, follow, wait

__all__ = [
    "Courier",
    "EventChannel",
    "Guard",
    "Pump",
    "RunTask",
    "await_here",
    "check_interrupted",
    "engine_loop",
    "follow",
    "inside_a_tool",
    "on_engine_thread",
    "use_nested_runner",
    "wait",
]
