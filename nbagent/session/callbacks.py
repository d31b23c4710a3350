"""The person's functions that are called while a run is at work, as sinks.

They are called on the engine thread. One that raises is detached and named; the run continues.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import Event, ToolCallFinished, ToolCallStarted
from nbagent.contracts.ports import Sink
from nbagent.contracts.records import ToolResult

OnEvent = Callable[[Event], object]
OnToolCall = Callable[[str, dict[str, Any]], object]
"""Takes the name and the arguments of a tool that starts."""
OnToolResult = Callable[[str, ToolResult], object]
"""Takes the name of a tool and the result of its call, also of one that was refused."""


@dataclass(frozen=True, slots=True)
class CallbackSink:
    """Passes events to one function of the person."""

    name: str
    callback: OnEvent

    def handle(self, event: Event) -> None:
        self.callback(event)

    def close(self) -> None:
        pass


def callback_sinks(
    on_event: OnEvent | None,
    on_tool_call: OnToolCall | None = None,
    on_tool_result: OnToolResult | None = None,
) -> list[Sink]:
    """Make a sink of each function.

    Raises:
        UsageError: one is not a plain function.
    """
    sinks: list[Sink] = []
    if on_event is not None:
        sinks.append(CallbackSink("on_event", _checked("on_event", on_event)))
    if on_tool_call is not None:
        call_started = _checked("on_tool_call", on_tool_call)

        def pass_call(event: Event) -> None:
            if isinstance(event, ToolCallStarted):
                # A copy: a function that changes it must not change the record.
                call_started(event.tool_name, deepcopy(event.args))

        sinks.append(CallbackSink("on_tool_call", pass_call))
    if on_tool_result is not None:
        call_finished = _checked("on_tool_result", on_tool_result)

        def pass_result(event: Event) -> None:
            if isinstance(event, ToolCallFinished) and event.tool_run.result is not None:
                call_finished(event.tool_run.tool_name, event.tool_run.result)

        sinks.append(CallbackSink("on_tool_result", pass_result))
    return sinks


def _checked(name: str, function: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        raise UsageError(f"{name} takes a plain function; to await, follow agent.stream(…)")
    if not callable(function):
        raise UsageError(f"{name}={function!r} is not a function; write {name}=print")
    return function
