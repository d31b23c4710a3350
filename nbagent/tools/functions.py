"""Functions as a tool host: the notebook's own `@nbagent.tool` functions and those given by hand.

Owns names and redefinition. What a function tool is stands in `definition`; `tool`, `as_tool` and
`FunctionTool` are to be had from here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ErrorInfo, NbagentError, ToolError, UsageError
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.shown.texts import BROKEN
from nbagent.tools.base import unknown_name, unknown_tool
from nbagent.tools.calling import ToolOptions
from nbagent.tools.definition import HOST_NAME, FunctionTool, as_tool, options_of, state_of, tool
from nbagent.tools.methods import Refusals
from nbagent.tools.results import summary

__all__ = [
    "FunctionHost",
    "FunctionTool",
    "ToolOptions",
    "as_tool",
    "namespace_tools",
    "tool",
]


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
        if variable.startswith("_") or issubclass(type(obj), type):
            continue
        options = options_of(obj)
        if options is None:
            continue
        name = options.name or _name_of(obj) or variable
        first = found.setdefault(name, variable)
        if first == variable or namespace[first] is obj:
            continue
        if options.name is None and variable == name:
            # `population = wrapped(old)`: the variable that bears the name is the one meant.
            found[name] = variable
        elif first != name:
            raise UsageError(
                f"{first!r} and {variable!r} are two tools of the name {name!r}; "
                "give one of them another with @nbagent.tool(name=…)"
            )
    return found


def _name_of(obj: object) -> str:
    """Its own name; none where it raises, which its definition says then."""
    try:
        name: object = getattr(obj, "__name__", "")
    except BROKEN:
        return ""
    return name if isinstance(name, str) and name.strip() else ""


@dataclass(slots=True)
class _Entry:
    """One tool of a host: how it was when the run began, and how it was last found."""

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

    def __init__(
        self,
        tools: Sequence[object] = (),
        *,
        namespace: Callable[[], Mapping[str, Any]] | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self._namespace = namespace
        self._entries: dict[str, _Entry] = {}
        self._refusals = Refusals()
        self._looked_at: dict[str, str] = {}
        """What a tool was when a call of it was looked at, by the id of the call."""
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
    def tools(self) -> tuple[FunctionTool, ...]:
        """The definitions as last found."""
        return tuple(entry.last for entry in self._entries.values())

    def visible_tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools as they are now; one that can no longer be read stays as it was."""
        for entry in self._entries.values():
            try:
                entry.last = self._now(entry)
            except NbagentError:
                continue
        return [entry.last.spec for entry in self._entries.values()]

    async def execute(
        self, call: ToolCall, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        """Run one call; only CancelledError of the calling task comes out."""
        refused = self._refusals.take(call)
        looked_at = self._looked_at.pop(call.id, "")
        if refused is not None:
            return refused
        entry = self._entries.get(call.name)
        if entry is None:
            return unknown_tool(call.name, tuple(self._entries))
        try:
            entry.last = current = self._now(entry)
            # One that asks now and did not when it was looked at must not run unasked.
            agreed = context.approved or (looked_at if current.options.ask else "")
            if agreed and agreed != state_of(current):
                return _failed(
                    ErrorInfo(
                        "E_PRECONDITION_FAILED",
                        f"{call.name} was redefined after the call was looked at; call it again "
                        "to have it decided anew",
                    )
                )
            outcome = await current.run(call.arguments, context, cancel)
        except UsageError as error:
            message = f"{call.name} was redefined and cannot be called: {error.message}"
            return _failed(ErrorInfo("E_TOOL_FAILED", message))
        except Exception as error:
            # Not the tool's fault: what it raises is inside the outcome.
            return _failed(
                ErrorInfo("E_INTERNAL", f"{call.name} could not be run: {summary(error)}")
            )
        if current.sha == entry.first_sha:
            return outcome
        note = f"{call.name} was redefined since this run began"
        return replace(outcome, notes=(note, *outcome.notes))

    async def preview(self, call: ToolCall, context: ToolContext) -> CallPreview:
        """Whether it asks first, and its arguments as the function will get them."""
        self._refusals.forget(call)
        entry = self._entries.get(call.name)
        if entry is None:
            return CallPreview()
        try:
            tool = self._now(entry)
            arguments = tool.judged(tool.validate(call.arguments).values)
            binds = self._looked_at[call.id] = state_of(tool)
        except ToolError as error:
            return self._refusals.note(call, error.info)
        except NbagentError as error:
            message = f"{call.name} was redefined and cannot be called: {error.message}"
            return self._refusals.note(call, ErrorInfo("E_TOOL_FAILED", message))
        why = "it is marked with ask=True" if tool.options.ask else ""
        return CallPreview(
            ruling=tool.spec.traits.ruling, why=why, binds=binds, arguments=arguments
        )

    def _add(self, definition: FunctionTool, source: object, path: str | None = None) -> None:
        taken = self._entries.get(definition.name)
        if taken is None:
            self._entries[definition.name] = _Entry(definition.sha, definition, source, path)
        elif taken.last.target != definition.target:
            raise UsageError(
                f"two tools have the name {definition.name!r}; "
                "give one of them another with @nbagent.tool(name=…)"
            )

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
            definition = definition.renamed(name)
        self._add(definition, found, path)

    def _now(self, entry: _Entry) -> FunctionTool:
        """The tool as the namespace has it now; as last found when it is gone from there."""
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


def _failed(error: ErrorInfo) -> ToolOutcome:
    return ToolOutcome(result=ToolResult.failure(error))
