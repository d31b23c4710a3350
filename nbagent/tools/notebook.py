"""`nb.*`: what only a notebook has. Its variables, a look at one, running code there, setting one.

Owns the four tools and what a person is asked about them. The namespace and the thread come from
the call's context; a name that looks like a secret is never shown. In a script there is no
notebook, and the tools say so.

| call | by default |
|---|---|
| `nb.variables`, `nb.inspect` | allowed |
| `nb.set` | asks, shows the old and the new value |
| `nb.run` | asks always, whatever a policy allows: the code may do what the person may |
"""

from __future__ import annotations

import builtins
import functools
import json
import keyword
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import ToolError
from nbagent.contracts.policy import CallPreview, PreviewPiece
from nbagent.contracts.ports import ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.secrets import redact, register_named
from nbagent.tools.arguments import Bound
from nbagent.tools.base import HostOrder, unknown_name
from nbagent.tools.function_host import MethodHost
from nbagent.tools.function_tool import FunctionTool, method_tool
from nbagent.tools.notebook_code import Running, compiled, live_names
from nbagent.tools.notebook_details import inspected
from nbagent.tools.notebook_names import found, is_history, is_own, refuse_secret
from nbagent.tools.notebook_values import facts_of, glance, listed_names, type_text

HOST = "notebook"
_ALL = ("notebook", "nb", "nb.*")
_RUN, _SET = "nb.run", "nb.set"
_LOOK_TIMEOUT_S = 20.0
"""A value's own `repr` may take for ever."""
_WHY_RUN = "runs Python in your notebook, with everything that you may do"
_SEEN_CHARS = 4_000


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """The host of the notebook's tools that the words name.

    Raises:
        UsageError: a word names no tool of it; the message names the nearest.
    """
    tools = NotebookTools(order)
    available = tuple(tools.made)
    names: list[str] = []
    for word in order.words:
        if word not in _ALL and word not in available:
            raise unknown_name(word, available)
        names += available if word in _ALL else [word]
    return (NotebookHost(tools, tuple(dict.fromkeys(names))),)


class NotebookTools:
    """The four tools, as methods."""

    def __init__(self, order: HostOrder) -> None:
        self._order = order
        self._shown_chars = order.policy.limits.script_output_bytes
        make: Callable[..., FunctionTool] = functools.partial(
            method_tool, host=HOST, threaded=False
        )
        look: Callable[..., FunctionTool] = functools.partial(make, timeout_s=_LOOK_TIMEOUT_S)
        self.made: dict[str, FunctionTool] = {
            "nb.variables": look(self.variables, name="nb.variables"),
            "nb.inspect": look(self.inspect, name="nb.inspect"),
            _RUN: make(self.run, name=_RUN, ruling="ask"),
            _SET: make(self.set, name=_SET, ruling="ask", interruptible=False),
        }
        self.awaiting = make(self.run_awaiting, name=_RUN, loop="notebook")
        """`nb.run` for code that awaits something: it needs the notebook's own loop."""

    def names(self, context: ToolContext) -> dict[str, Any]:
        """The notebook's namespace itself. Raises ToolError where there is none."""
        return live_names(context.namespace() or self._order.namespace())

    def variables(
        self,
        context: ToolContext,
        pattern: str | None = None,
        limit: Annotated[int, Field(ge=1, le=1_000)] = 200,
    ) -> ToolOutcome:
        """List the notebook's variables: name, type, shape or length, size in bytes.

        Functions, classes and modules are listed by name. Values are shown of short plain ones
        only; nb.inspect shows more.

        Args:
            pattern: only names that fit, such as `df*`; without wildcards, names that contain it.
            limit: how many names.
        """
        names = self.names(context)
        register_named(names)
        return listed_names(names, pattern, limit)

    def inspect(self, context: ToolContext, name: str) -> ToolOutcome:
        """Look at one variable of the notebook in detail.

        A DataFrame: columns, dtypes, first rows, statistics. An array: shape, numbers. A function
        or class: signature, docstring, source. A figure: the image. Anything else: its value.

        Args:
            name: a name, also with keys, numbers and attributes: `df`, `df['price']`,
                `config['model']`, `rows[0]`, `module.function`. No calls.
        """
        names = self.names(context)
        register_named(names)
        value = found(names, name)
        return inspected(name, value)

    def run(self, context: ToolContext, code: str) -> ToolOutcome:
        """Run Python in the notebook, where its variables are, after the person agreed.

        Gives `value` (of the last expression, as in a cell), `stdout`, `stderr` and figures as
        images; the person sees them in the cell. What it assigns stays in the notebook. An error
        comes back with its traceback and what was printed before. Top-level `await` works;
        magics and shell lines (`%pip`, `!ls`) do not.

        Args:
            code: Python, as in a cell.
        """
        names = self.names(context)
        return Running(compiled(code, names), names, shown_chars=self._shown_chars).run()

    async def run_awaiting(self, context: ToolContext, code: str) -> ToolOutcome:
        """Run code with a top-level `await` on the notebook's own loop."""
        names = self.names(context)
        return await Running(compiled(code, names), names, shown_chars=self._shown_chars).arun()

    def set(self, context: ToolContext, name: str, value: Any) -> dict[str, Any]:
        """Set a variable of the notebook to a JSON value, after the person agreed.

        Args:
            name: of the variable; a new one or one that is replaced.
            value: text, number, true, false, null, list or object.
        """
        names = self.names(context)
        _check_settable(name, names)
        if context.approved and context.approved != _state_of(name, names):
            raise ToolError(
                f"{name} has changed since the person agreed; look at it with nb.inspect and ask "
                "again",
                code="E_PRECONDITION_FAILED",
            )
        before = {"type": type_text(names[name])} if name in names else None
        names[name] = value
        return {"name": name, "before": before, "now": facts_of(value)}


class NotebookHost(MethodHost):
    """The chosen ones of the notebook's tools."""

    def __init__(self, tools: NotebookTools, names: Sequence[str]) -> None:
        super().__init__(HOST, [tools.made[name] for name in names])
        self._own = tools

    async def run_tool(self, tool: FunctionTool, bound: Bound, context: ToolContext) -> ToolOutcome:
        """Run one call; code that awaits goes to the notebook's own loop."""
        if tool.name != _RUN or not self._awaits(bound.values["code"], context):
            return await super().run_tool(tool, bound, context)
        return replace(await self._own.awaiting.call(bound, context), tool_sha=tool.sha)

    def _awaits(self, code: str, context: ToolContext) -> bool:
        if not ("await" in code or "async" in code):
            return False
        try:
            return compiled(code, self._own.names(context)).waits
        except ToolError:
            return False  # The call says what is wrong.

    async def look(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallPreview:
        """What a call would do; runs no code of any value."""
        if name == _RUN:
            piece = PreviewPiece("code", redact(arguments["code"]), "code")
            return CallPreview(
                ruling="ask",
                firm=True,
                every_time=True,
                why=_WHY_RUN,
                pieces=(piece,),
            )
        if name == _SET:
            return self._look_at_set(arguments, context)
        return CallPreview()

    def _look_at_set(self, arguments: dict[str, Any], context: ToolContext) -> CallPreview:
        names, name = self._own.names(context), arguments["name"]
        _check_word(name)
        old = glance(names[name]) if name in names else "(there is no such variable yet)"
        return CallPreview(
            ruling="ask",
            why=f"sets the variable {name} of your notebook",
            pieces=(
                PreviewPiece("now", old),
                PreviewPiece("then", _whole(arguments["value"])),
            ),
            binds=_state_of(name, names),
        )


def _whole(value: Any) -> str:
    return redact(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _state_of(name: str, names: Mapping[str, Any]) -> str:
    """Hash of what a variable holds, as far as that is seen without running its code."""
    if name not in names:
        return sha_of([])
    return sha_of([type_text(names[name]), glance(names[name], _SEEN_CHARS)])


def _check_word(name: str) -> None:
    """Refuse what can be no variable, whatever there is in the notebook."""
    refuse_secret(name)
    why = ""
    if not name.isidentifier() or keyword.iskeyword(name):
        why = "is no name for a variable"
    elif is_history(name) or is_own(name, None):
        why = "is a name of Python's or IPython's own"
    elif hasattr(builtins, name):
        why = "is a built-in of Python"
    if why:
        raise ToolError(f"{name[:100]!r} {why}; choose another", code="E_INVALID_ARGUMENTS")


def _check_settable(name: str, names: Mapping[str, Any]) -> None:
    _check_word(name)
    if issubclass(type(names.get(name)), types.ModuleType):
        raise ToolError(
            f"{name!r} is a module that the notebook uses; choose another name",
            code="E_INVALID_ARGUMENTS",
        )
