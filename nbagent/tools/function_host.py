"""Hosts of function tools: the notebook's own `@nbagent.tool` functions, and the built-in ones.

Owns names and redefinition. What a function tool is stands in `function_tool`; what a built-in
host's functions do, and what a call of theirs would do (`look`), belongs to the host's own module.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import NbagentError, ToolError, UsageError
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import PreparedCall, ToolContext
from nbagent.shown.texts import BROKEN
from nbagent.tools.arguments import Bound
from nbagent.tools.base import unknown_call, unknown_name
from nbagent.tools.function_tool import HOST_NAME, FunctionTool, as_tool, options_of, own_name
from nbagent.tools.hosts import checked_name
from nbagent.tools.results import summary


def namespace_tools(namespace: Mapping[str, Any]) -> dict[str, object]:
    """The notebook's own tools by tool name: marked with `@tool`, no name with an underscore.

    Raises:
        UsageError: two different functions have the same tool name.
    """
    return {name: namespace[variable] for name, variable in _variables(namespace).items()}


def _variables(namespace: Mapping[str, Any]) -> dict[str, str]:
    """The variable that holds each marked tool, by tool name."""
    found: dict[str, str] = {}
    for variable, obj in list(namespace.items()):
        options = None if variable.startswith("_") else options_of(obj)
        if options is None or issubclass(type(obj), type):
            continue
        try:
            name = options.name or own_name(obj) or variable
        except BROKEN:
            name = variable  # Its definition says what is wrong.
        first = found.setdefault(name, variable)
        if first == variable or namespace[first] is obj:
            continue
        if options.name is None and variable == name:
            # `population = wrapped(old)`: the variable that bears the name is the one meant.
            found[name] = variable
        elif first != name:
            raise _same_name(name, first, variable)
    return found


def _same_name(name: str, *variables: str) -> UsageError:
    """The error for two tools of one name, in these variables where they are known."""
    which = " and ".join(map(repr, variables))
    which = f"{which} are two tools of" if which else "two tools have"
    return UsageError(f"{which} the name {name!r}; give one another with @nbagent.tool(name=…)")


@dataclass(slots=True)
class _Entry:
    """One tool of a host: how it was when the run began, and how it was last read."""

    first_sha: str
    last: FunctionTool
    source: object
    """What `last` was made from."""
    path: str | None = None
    """Where it stands in the namespace (`population`, `db.query`); None when given by hand."""


class FunctionHost:
    """Runs functions. One host serves one run: redefinition counts from its construction.

    Args:
        tools: functions, bound methods, partials, callables or FunctionTools.
        namespace: the notebook's names, asked anew at each listing and each call.
        names: which tools of the namespace; all marked ones by default. A plain function may be
            named too, and a method as `db.query`.

    Raises:
        UsageError: a name is unknown or taken twice, or a function cannot be a tool.
    """

    lists_at_once = True
    """No listing waits for anything."""

    def __init__(
        self,
        tools: Sequence[object] = (),
        *,
        namespace: Callable[[], Mapping[str, Any]] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._namespace = namespace
        self._entries: dict[str, _Entry] = {}
        there: Mapping[str, Any] = namespace() if namespace is not None else {}
        for obj in tools:
            self._add(as_tool(obj, namespace=there), obj)
        if namespace is not None:
            marked = _variables(there)
            for name in dict.fromkeys(marked if names is None else names):
                self._add_named(name, marked, there)
        elif names:
            raise UsageError(f"the tools {list(names)!r} are named, but there is no namespace")

    @property
    def name(self) -> str:
        """Stands in the traits of its tools."""
        return HOST_NAME

    @property
    def specs(self) -> list[ToolSpec]:
        """The tools as they are now; one that can no longer be read stays as it was."""
        for entry in self._entries.values():
            try:
                entry.last = self._now(entry)
            except NbagentError:
                continue
        return [entry.last.spec for entry in self._entries.values()]

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools as they are now."""
        return self.specs

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call against the function as it is now.

        Raises:
            ToolError: there is no such tool, its arguments do not fit, or it cannot be read now.
        """
        entry = self._entries.get(call.name)
        if entry is None:
            raise unknown_call(call.name, tuple(self._entries))
        try:
            entry.last = current = self._now(entry)
        except NbagentError as error:
            message = f"{call.name} was redefined and cannot be called: {error.message}"
            raise ToolError(message) from error
        except Exception as error:
            # Not the tool's fault: what it raises is inside the outcome.
            message = f"{call.name} could not be run: {summary(error)}"
            raise ToolError(message, code="E_INTERNAL") from error
        bound = current.validate(call.arguments)
        if current.sha != entry.first_sha:
            note = f"{call.name} was redefined since this run began"
            bound = replace(bound, notes=(note, *bound.notes))
        return current.prepared(bound)

    def _add(self, definition: FunctionTool, source: object, path: str | None = None) -> None:
        taken = self._entries.get(definition.name)
        if taken is None:
            self._entries[definition.name] = _Entry(definition.sha, definition, source, path)
        elif taken.last.target != definition.target:
            raise _same_name(definition.name)

    def _add_named(self, name: str, marked: Mapping[str, str], there: Mapping[str, Any]) -> None:
        if name in self._entries:
            return  # Given by hand under this name: that one is meant.
        path = marked.get(name, name)
        found = _lookup(path, there)
        if found is None:
            plain = [n for n, o in there.items() if _is_own_function(n, o)]
            raise unknown_name(name, tuple(dict.fromkeys([*marked, *self._entries, *plain])))
        definition = as_tool(found, namespace=there)
        if "." in path or name not in (path, definition.name):
            definition = definition.renamed(checked_name(name))
        self._add(definition, found, path)

    def _now(self, entry: _Entry) -> FunctionTool:
        """The tool as the namespace has it now; as last read when it is gone from there."""
        there: Mapping[str, Any] = self._namespace() if self._namespace is not None else {}
        found = entry.source if entry.path is None else _lookup(entry.path, there)
        if found is None or issubclass(type(found), type):
            return entry.last
        function = type(found) in (types.FunctionType, types.MethodType)
        if found is entry.source and not function:
            # Of partials and callables no definition is kept; a function may get new code in place.
            return entry.last
        made = as_tool(found, namespace=there).renamed(entry.last.name)
        entry.source = found
        return made


class MethodHost:
    """A built-in host of fixed tools. Subclasses say in `look`, or `prepare`, what a call does."""

    lists_at_once = True
    """No listing waits for anything."""

    def __init__(self, name: str, tools: Sequence[FunctionTool]) -> None:
        self._name = name
        self._tools = {tool.name: tool for tool in tools}

    @property
    def name(self) -> str:
        """Stands in the traits of its tools."""
        return self._name

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """All its tools, in the order given."""
        return [tool.spec for tool in self._tools.values()]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call, and look at what it would do.

        Raises:
            ToolError: there is no such tool, its arguments do not fit, or it would fail now.
        """
        tool, bound = self._checked(call)
        preview = await self.look(tool.name, bound.plain, context)
        return tool.prepared(bound, preview)

    def _checked(self, call: ToolCall) -> tuple[FunctionTool, Bound]:
        """The tool of a call, and its arguments."""
        tool = self._tools.get(call.name)
        if tool is None:
            raise unknown_call(call.name, tuple(self._tools))
        return tool, tool.validate(call.arguments)

    async def look(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallPreview:
        """What a call with these checked arguments would do. May raise ToolError."""
        return CallPreview(ruling=self._tools[name].spec.traits.ruling)


def _lookup(path: str, there: Mapping[str, Any]) -> object | None:
    first, *rest = path.split(".")
    found = there.get(first)
    for name in rest:
        if name.startswith("_"):
            return None
        try:
            found = getattr(found, name)
        except Exception:
            return None
    return found if callable(found) else None


def _is_own_function(name: str, obj: object) -> bool:
    if type(obj) is not types.FunctionType or name.startswith("_"):
        return False
    # IPython puts functions of its own among the person's names; its `open` says it is of `_io`.
    return not str(obj.__globals__.get("__name__", "")).startswith("IPython")
