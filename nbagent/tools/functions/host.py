"""Tool hosts: one of the notebook's functions, and the base class of the built-in hosts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.tools import PreparedCall, ToolContext
from nbagent.shown.texts import VALUE_ERRORS
from nbagent.tools.functions.arguments import CheckedArguments
from nbagent.tools.functions.definition import (
    FunctionTool,
    ToolDefinition,
    as_tool,
    cached_definition,
    callable_name,
    tool_options,
)
from nbagent.tools.tool_names import FUNCTION_HOST, unknown_call_error, unknown_name_error


def namespace_tools(namespace: Mapping[str, Any]) -> dict[str, object]:
    """Find the functions marked with `@tool`, by tool name; names with an underscore are private.

    Raises:
        UsageError: two different functions have the same tool name.
    """
    variables: dict[str, str] = {}
    for variable, obj in list(namespace.items()):
        options = None if variable.startswith("_") else tool_options(obj)
        if options is None or issubclass(type(obj), type):
            continue
        try:
            name = options.name or callable_name(obj) or variable
        except VALUE_ERRORS:
            name = variable  # The definition is made later and raises with the reason.
        first = variables.setdefault(name, variable)
        if variable == name:
            # A function and a partial of it have one name: the variable of that name wins.
            variables[name] = variable
        elif first != name and namespace[first] is not obj:
            raise _duplicate_name_error(name, f"{first!r} and {variable!r} are two tools of")
    return {name: namespace[variable] for name, variable in variables.items()}


def _duplicate_name_error(name: str, which: str) -> UsageError:
    return UsageError(f"{which} the name {name!r}; rename one with @nbagent.tool(name=…)")


class MethodHost:
    """A host of fixed tools. Subclasses override `prepare` to plan and preview calls.

    A tool that only its `prepare` runs is a `ToolDefinition`, the others are `FunctionTool`s. Each
    of `names` is a tool's name or one of `all_names`, which select all tools; any other raises
    UsageError.
    """

    lists_at_once = True
    """The tools are listed without waiting."""

    def __init__(
        self,
        name: str,
        tools: Iterable[FunctionTool | ToolDefinition],
        names: Sequence[str] = ("",),
        all_names: Sequence[str] = ("",),
    ) -> None:
        self.name = name
        tools_by_name = {tool.name: tool for tool in tools}
        for wanted in names:
            if wanted not in (*all_names, *tools_by_name):
                raise unknown_name_error(wanted, (*all_names, *tools_by_name))
        has_all = not {*all_names}.isdisjoint(names)
        self._tools: dict[str, FunctionTool | ToolDefinition] = {
            key: tool for key, tool in tools_by_name.items() if has_all or key in names
        }

    @property
    def specs(self) -> list[ToolSpec]:
        """Specs of all tools, in the order of their definition."""
        return [tool.spec for tool in self._tools.values()]

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        return self.specs

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call; raise ToolError if the tool is unknown or its arguments are not valid."""
        tool = self._tools.get(call.name)
        if not isinstance(tool, FunctionTool):
            raise unknown_call_error(call.name, tuple(self._tools))
        definition = tool.definition
        check = functools.partial(definition.arguments.validate, call.arguments)
        if not definition.arguments.runs_foreign_code:
            return tool.prepare_call(check())
        limit_s = definition.options.timeout_s
        try:
            # Foreign code must not block the engine's thread.
            checked, _ = await context.runner.run(
                check, where="worker thread", timeout_s=limit_s, label=tool.name
            )
        except TimeoutError:
            text = f"checking the arguments of {tool.name} took longer than {limit_s:g} s"
            raise ToolError(text, code="E_TIMEOUT") from None
        return tool.prepare_call(checked)

    def _check_call(self, call: ToolCall) -> tuple[ToolDefinition, CheckedArguments]:
        """Check a call that the host plans itself; raise ToolError as `prepare` does."""
        tool = self._tools.get(call.name)
        if tool is None:
            raise unknown_call_error(call.name, tuple(self._tools))
        definition = tool.definition if isinstance(tool, FunctionTool) else tool
        return definition, definition.arguments.validate(call.arguments)


class FunctionHost(MethodHost):
    """The functions that are tools of one run, as they were when it started.

    `names` are names in the namespace, also of unmarked functions; by default all marked ones.
    """

    def __init__(
        self,
        tools: Sequence[object] = (),
        *,
        namespace: Callable[[], Mapping[str, Any]] = dict,
        names: Sequence[str] | None = None,
    ) -> None:
        self._namespace = namespace
        variables = namespace()
        tools_by_name: dict[str, FunctionTool] = {}
        for obj in tools:
            tool = as_tool(obj, namespace=variables)
            if tools_by_name.setdefault(tool.name, tool).target != tool.target:
                raise _duplicate_name_error(tool.name, "two tools have")
        marked = namespace_tools(variables)
        for name in marked if names is None else names:
            if name in tools_by_name:
                continue  # A function in `tools=` wins over a notebook function of that name.
            obj = marked.get(name, variables.get(name))
            if not callable(obj):
                raise unknown_name_error(name, tuple({**marked, **tools_by_name}))
            tool = as_tool(obj, namespace=variables)
            tools_by_name.setdefault(tool.name, tool)
        super().__init__(FUNCTION_HOST, tools_by_name.values())

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call against the present code: autoreload changes functions in place."""
        tool = self._tools.get(call.name)
        if isinstance(tool, FunctionTool):
            options, names = tool.definition.options, self._namespace()
            definition = cached_definition(tool.target, options, FUNCTION_HOST, names)
            self._tools[call.name] = FunctionTool(definition, tool.target)
        return await super().prepare(call, context)
