"""A tool host made of Python functions and methods of nbagent's own: `fs.read`, `nb.inspect`, …

Owns the host that they share. How a function becomes a tool is `definition`'s; what the functions
do, and what a call of theirs would do (`preview`), belongs to the host's own module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.policy import CallPreview, Ruling, stricter
from nbagent.contracts.ports import ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.tools.base import unknown_tool
from nbagent.tools.calling import is_async
from nbagent.tools.definition import FunctionTool, as_tool, tool
from nbagent.tools.results import summary


def method_tool(
    function: Callable[..., Any],
    *,
    name: str,
    host: str,
    ruling: Ruling = "allow",
    interruptible: bool = True,
    idempotent: bool = False,
    timeout_s: float | None = None,
    max_result_chars: int | None = None,
    threaded: bool = True,
) -> FunctionTool:
    """A function or bound method as a tool of a host.

    Schema and checks come from its hints, the texts from its docstring; a parameter annotated
    `ToolContext` is filled in and not shown to the model.

    Args:
        function: sync (runs in a worker thread or in the waiting one) or async (the engine's loop).
        name: what the model calls it.
        host: the name of its host.
        ruling: what happens to a call by default, as `%agent tools` says it.
        interruptible: False for whatever writes: a stop waits until it has finished.
        idempotent: it may run again after a crash.
        timeout_s: after so many seconds the call is `E_TIMEOUT`.
        max_result_chars: of the result's JSON.
        threaded: False runs a sync function in the thread that waits (the notebook's main thread).
    """
    marked = tool(
        name=name,
        threaded=threaded and not is_async(function),
        interruptible=interruptible,
        idempotent=idempotent,
        timeout=timeout_s,
        max_result_chars=max_result_chars,
        ask=ruling == "ask",
    )(function)
    made = as_tool(marked)
    traits = made.spec.traits.model_copy(update={"host": host, "ruling": ruling})
    return replace(made, spec=made.spec.model_copy(update={"traits": traits}))


class Refusals:
    """Calls that had nothing to approve because they would fail.

    Nobody was asked about such a call, so it must fail, even where what was wrong (a file that was
    not there) is put right before it runs. By the id of the call: a host serves one run.
    """

    def __init__(self) -> None:
        self._errors: dict[str, ErrorInfo] = {}

    def forget(self, call: ToolCall) -> None:
        """It is looked at anew."""
        self._errors.pop(call.id, None)

    def note(self, call: ToolCall, error: ErrorInfo) -> CallPreview:
        """The call would fail with this error; the preview that says so."""
        self._errors[call.id] = error
        return CallPreview(why=error.message)

    def take(self, call: ToolCall) -> ToolOutcome | None:
        """The outcome of a call that must not run; None for every other one."""
        error = self._errors.pop(call.id, None)
        return None if error is None else ToolOutcome(result=ToolResult.failure(error))


class MethodHost:
    """A host of fixed tools. Subclasses give `look`, which says what a call would do."""

    def __init__(self, name: str, tools: Sequence[FunctionTool]) -> None:
        self._name = name
        self._refusals = Refusals()
        self._tools = {tool.name: tool for tool in tools}

    @property
    def name(self) -> str:
        """Stands in the traits of its tools."""
        return self._name

    def visible_tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """All its tools, in the order given."""
        return [tool.spec for tool in self._tools.values()]

    async def execute(
        self, call: ToolCall, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        """Run one call; only CancelledError of the calling task comes out."""
        refused = self._refusals.take(call)
        if refused is not None:
            return refused
        tool = self._tools.get(call.name)
        if tool is None:
            return unknown_tool(call.name, tuple(self._tools))
        try:
            return await self.run_tool(tool, call, context, cancel)
        except Exception as error:
            # Not the tool's fault: what it raises is inside the outcome.
            info = ErrorInfo("E_INTERNAL", f"{call.name} could not be run: {summary(error)}")
            return ToolOutcome(result=ToolResult.failure(info))

    async def run_tool(
        self, tool: FunctionTool, call: ToolCall, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        """Run a call of one of its tools."""
        return await tool.run(call.arguments, context, cancel)

    async def preview(self, call: ToolCall, context: ToolContext) -> CallPreview:
        """What the call would do, by its checked arguments; never raises.

        A call that would fail now is allowed and fails when it is executed: there is nothing to
        approve in it.
        """
        self._refusals.forget(call)
        tool = self._tools.get(call.name)
        if tool is None:
            return CallPreview()
        try:
            arguments = tool.validate(call.arguments).values
            seen = await self.look(call.name, arguments, context)
            return replace(seen, arguments=tool.judged(seen.arguments or arguments))
        except ToolError as error:
            return self._refusals.note(call, error.info)
        except Exception as error:
            return CallPreview(
                ruling=stricter(tool.spec.traits.ruling, "ask"),
                firm=True,
                every_time=True,
                why=f"it cannot be looked at: {summary(error)}",
            )

    async def look(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallPreview:
        """What a call with these checked arguments would do. May raise ToolError."""
        return CallPreview(ruling=self._tools[name].spec.traits.ruling, arguments=arguments)
