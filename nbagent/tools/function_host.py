"""Hosts of function tools: the notebook's own `@nbagent.tool` functions, and the built-in ones.

Owns names. What a function tool is stands in `function_tool`; what a built-in host's functions do,
and what a call of theirs would do (`look`), belongs to the host's own module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import PreparedCall, ToolContext
from nbagent.shown.texts import BROKEN
from nbagent.tools.arguments import Bound
from nbagent.tools.base import unknown_call, unknown_name
from nbagent.tools.function_tool import HOST_NAME, FunctionTool, as_tool, options_of, own_name


def namespace_tools(namespace: Mapping[str, Any]) -> dict[str, object]:
    """The notebook's own tools by tool name: marked with `@tool`, no name with an underscore.

    Raises:
        UsageError: two different functions have the same tool name.
    """
    variables: dict[str, str] = {}
    for variable, obj in list(namespace.items()):
        options = None if variable.startswith("_") else options_of(obj)
        if options is None or issubclass(type(obj), type):
            continue
        try:
            name = options.name or own_name(obj) or variable
        except BROKEN:
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
    """A host of fixed tools. Subclasses say in `look`, or `prepare`, what a call does."""

    lists_at_once = True
    """No listing waits for anything."""

    def __init__(self, name: str, tools: Iterable[FunctionTool]) -> None:
        self.name = name
        """Stands in the traits of its tools."""
        self._tools = {tool.name: tool for tool in tools}

    @property
    def specs(self) -> list[ToolSpec]:
        """All its tools, in the order given."""
        return [tool.spec for tool in self._tools.values()]

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """All its tools, in the order given."""
        return self.specs

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call, and look at what it would do.

        Raises:
            ToolError: there is no such tool, its arguments do not fit, or it would fail now.
        """
        tool, bound = self._checked(call)
        return tool.prepared(bound, await self.look(tool.name, bound.plain, context))

    def _checked(self, call: ToolCall) -> tuple[FunctionTool, Bound]:
        """The tool of a call, and its arguments."""
        tool = self._tools.get(call.name)
        if tool is None:
            raise unknown_call(call.name, tuple(self._tools))
        return tool, tool.validate(call.arguments)

    async def look(
        self, name: str, arguments: dict[str, Any], context: ToolContext
    ) -> CallPreview | None:
        """What a call with these checked arguments would do. May raise ToolError."""
        return None


class FunctionHost(MethodHost):
    """Functions as the tools of one run, as they were when it began.

    Args:
        tools: functions, bound methods, partials, callables or FunctionTools.
        namespace: the notebook's names.
        names: which tools of the namespace, all marked ones by default; plain functions, too.

    Raises:
        UsageError: a name is unknown or taken twice, or a function cannot be a tool.
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
        super().__init__(HOST_NAME, made.values())

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call against the function as it is now: autoreload changes one in place.

        Raises:
            ToolError: there is no such tool, or its arguments do not fit.
        """
        if call.name in self._tools:
            self._tools[call.name] = self._tools[call.name].reread(self._namespace())
        return await super().prepare(call, context)
