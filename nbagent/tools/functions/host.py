"""Tool hosts of plain functions and of methods."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.tools import PreparedCall, ToolContext
from nbagent.shown.texts import VALUE_ERRORS
from nbagent.tools.functions.arguments import (
    Bound,
)
from nbagent.tools.functions.definition import (
    FunctionTool,
    as_tool,
    cached_definition,
    options_of,
    own_name,
)
from nbagent.tools.tool_names import OWN, unknown_call, unknown_name


def namespace_tools(namespace: Mapping[str, Any]) -> dict[str, object]:
    """The notebook's own tools by tool name: marked with `@tool`, no name with an underscore.

    UsageError where two different functions have the same tool name.
    """
    variables: dict[str, str] = {}
    for variable, obj in list(namespace.items()):
        options = None if variable.startswith("_") else options_of(obj)
        if options is None or issubclass(type(obj), type):
            continue
        try:
            name = options.name or own_name(obj) or variable
        except VALUE_ERRORS:
            name = variable  # Its definition says what is wrong.
        first = variables.setdefault(name, variable)
        if variable == name:
            variables[name] = variable  # Of a function and a partial of it, it is the one meant.
        elif first != name and namespace[first] is not obj:
            raise _same_name(name, f"{first!r} and {variable!r} are two tools of")
    return {name: namespace[variable] for name, variable in variables.items()}


def _same_name(name: str, which: str) -> UsageError:
    return UsageError(f"{which} the name {name!r}; give one another with @nbagent.tool(name=…)")


class MethodHost:
    """A host of fixed tools. Subclasses say in `prepare` what a call would do.

    Each of `words` names a tool, or is one of `alls`, which stand for all of them; else UsageError.
    """

    lists_at_once = True
    """No listing waits for anything."""

    def __init__(
        self,
        name: str,
        tools: Iterable[FunctionTool],
        words: Sequence[str] = ("",),
        alls: Sequence[str] = ("",),
    ) -> None:
        self.name = name
        there = {tool.name: tool for tool in tools}
        for word in words:
            if word not in (*alls, *there):
                raise unknown_name(word, (*alls, *there))
        whole = not {*alls}.isdisjoint(words)
        self._tools = {key: tool for key, tool in there.items() if whole or key in words}

    @property
    def specs(self) -> list[ToolSpec]:
        """All its tools, in the order given."""
        return [tool.spec for tool in self._tools.values()]

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        return self.specs

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call; ToolError where there is no such tool or its arguments do not fit."""
        tool = self._called(call)
        check = functools.partial(tool.arguments.validate, call.arguments)
        if not tool.arguments.runs_foreign_code:
            return tool.prepared(check())
        limit_s = tool.options.timeout_s
        try:
            # The engine's thread waits for no code of the person's.
            bound, _ = await context.runner.run(
                check, where="worker thread", timeout_s=limit_s, label=tool.name
            )
        except TimeoutError:
            text = f"checking the arguments of {tool.name} took longer than {limit_s:g} s"
            raise ToolError(text, code="E_TIMEOUT") from None
        return tool.prepared(bound)

    def _called(self, call: ToolCall) -> FunctionTool:
        tool = self._tools.get(call.name)
        if tool is None:
            raise unknown_call(call.name, tuple(self._tools))
        return tool

    def _checked(self, call: ToolCall) -> tuple[FunctionTool, Bound]:
        tool = self._called(call)
        return tool, tool.arguments.validate(call.arguments)


class FunctionHost(MethodHost):
    """Functions as the tools of one run, as they were when it began.

    `names` are names of the namespace, of plain functions too; all that are marked by default.
    """

    def __init__(
        self,
        tools: Sequence[object] = (),
        *,
        namespace: Callable[[], Mapping[str, Any]] = dict,
        names: Sequence[str] | None = None,
    ) -> None:
        self._namespace = namespace
        there = namespace()
        made: dict[str, FunctionTool] = {}
        for obj in tools:
            tool = as_tool(obj, namespace=there)
            if made.setdefault(tool.name, tool).target != tool.target:
                raise _same_name(tool.name, "two tools have")
        marked = namespace_tools(there)
        for name in marked if names is None else names:
            if name in made:
                continue  # Given by hand under this name: that one is meant.
            obj = marked.get(name, there.get(name))
            if not callable(obj):
                raise unknown_name(name, tuple({**marked, **made}))
            tool = as_tool(obj, namespace=there)
            made.setdefault(tool.name, tool)
        super().__init__(OWN, made.values())

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call against the function as it is now: autoreload changes one in place."""
        if (tool := self._tools.get(call.name)) is not None:
            now = cached_definition(tool.target, tool.options, OWN, self._namespace())
            self._tools[call.name] = now
        return await super().prepare(call, context)
