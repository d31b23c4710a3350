"""`nb.*`: what only a notebook has. Its variables, a look at one, running code there, setting one.

Owns the four tools and what a person is asked about them: looking is allowed, `nb.set` asks and
shows both values, `nb.run` asks always, for the code may do what the person may. The namespace, the
thread and the shell that runs code come from the call's context; a name that looks like a secret is
never shown. In a script there is no notebook, and the tools say so.
"""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import types
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from nbagent.contracts.approval import CallPreview, PreviewPiece
from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import ErrorInfo, ToolError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact, redact_truncated, register_named_secrets
from nbagent.contracts.tools import CodeOutcome, PreparedCall, ToolContext, ToolOutcome
from nbagent.tools.functions.definition import method_tool
from nbagent.tools.functions.host import MethodHost
from nbagent.tools.functions.outcome import detail_of, summary
from nbagent.tools.host_config import HostOrder
from nbagent.tools.notebook_values import (
    facts_of,
    glance,
    inspected,
    is_own,
    listed_names,
    masked,
    refuse_secret,
    type_text,
    value_of,
    value_shown,
)
from nbagent.tools.progress import captured

HOST = "notebook"
_ALL = ("notebook", "nb", "nb.*")
_LOOK_TIMEOUT_S = 20.0
"""A value's own `repr` may take for ever."""


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    return [NotebookHost(order)]


class NotebookHost(MethodHost):
    """The chosen ones of the four tools, which are its methods."""

    def __init__(self, order: HostOrder) -> None:
        self._keep_bytes = order.policy.limits.script_output_bytes
        tool = partial(method_tool, host=HOST, threaded=False)
        made = (
            tool(self.variables, name="nb.variables", timeout_s=_LOOK_TIMEOUT_S),
            tool(self.inspect, name="nb.inspect", timeout_s=_LOOK_TIMEOUT_S),
            # In the thread that waits; what it gives for code with an await, on the notebook's loop
            tool(self.run, name="nb.run", ruling="ask", loop="notebook"),
            tool(self.set, name="nb.set", ruling="ask", interruptible=False),
        )
        super().__init__(HOST, made, order.words, _ALL)

    def variables(
        self,
        context: ToolContext,
        pattern: str = "",
        limit: Annotated[int, Field(ge=1, le=1_000)] = 200,
    ) -> dict[str, Any]:
        """List the notebook's variables: name, type, shape or length, size in bytes.

        Functions, classes and modules are among them. Values are shown of short plain ones only;
        nb.inspect shows more.

        Args:
            pattern: only names that fit, such as `df*`; without wildcards, names that contain it.
            limit: how many names.
        """
        return listed_names(self._names(context), pattern, limit)

    def inspect(self, context: ToolContext, name: str) -> ToolOutcome:
        """Look at one variable of the notebook in detail.

        A DataFrame: columns, dtypes, first rows, statistics. An array: shape, numbers. A function
        or class: signature, docstring, source. A figure: the image. Anything else: its value.

        Args:
            name: of the variable; nb.run looks at what is inside it.
        """
        return inspected(name, value_of(self._names(context), name))

    def run(
        self, context: ToolContext, code: str
    ) -> ToolOutcome | Coroutine[Any, Any, ToolOutcome]:
        """Run Python in the notebook, where its variables are, after the person agreed.

        Gives `value` (of the last expression, as in a cell), `stdout`, `stderr`, and what was
        `displayed`, figures as images; the person sees them in the cell. What it assigns stays in
        the notebook. An error comes back with its traceback and what was printed before. Top-level
        `await` works; magics and shell lines (`%pip`, `!ls`) do not.

        Args:
            code: Python, as in a cell.
        """
        names, run_code = self._names(context), context.run_code
        if run_code is None:
            raise _no_notebook()
        outcome = run_code(code, keep_bytes=self._keep_bytes)
        if isinstance(outcome, CodeOutcome):
            return _shown_outcome(outcome, names)
        return _awaited(outcome, names, context)

    def set(self, context: ToolContext, name: str, value: Any) -> dict[str, Any]:
        """Set a variable of the notebook to a JSON value, after the person agreed.

        Args:
            name: of the variable; a new one or one that is replaced.
            value: text, number, true, false, null, list or object.
        """
        names = self._names(context)
        before = {"type": type_text(names[name])} if name in names else None
        names[name] = value
        return {"name": name, "before": before, "now": facts_of(value)}

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call, and look at what it would do; runs no code of any value."""
        tool, bound = self._checked(call)
        names, arguments = self._names(context), bound.plain
        preview = CallPreview()
        if tool.name == "nb.run":
            preview = _look_at_run(arguments["code"])
        elif tool.name == "nb.set":
            preview = _look_at_set(arguments["name"], arguments["value"], names)
        return tool.prepared(bound, preview)

    def _names(self, context: ToolContext) -> dict[str, Any]:
        """The notebook's namespace itself; the secrets in it are known from now on."""
        names = context.namespace()
        if not names or not isinstance(names, dict):
            raise _no_notebook()
        register_named_secrets(names)
        return names


def _no_notebook() -> ToolError:
    return ToolError(
        "there is no notebook here, so there are no variables to look at and nothing runs code; "
        "go on without the nb tools",
        code="E_PRECONDITION_FAILED",
    )


# nb.run


def _look_at_run(code: str) -> CallPreview:
    """The code; raises ToolError for what is no Python, and for what would end the kernel."""
    try:
        tree = ast.parse(code)
        compile(tree, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ToolError(
            f"{summary(error)}; nb.run takes plain Python that fits in a cell: no magics, no shell "
            "lines (use subprocess), no help lines (call help())",
            code="E_INVALID_ARGUMENTS",
        ) from None
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in ("exit", "quit"):
            raise ToolError(
                f"{called.id}() in line {called.lineno} would end the notebook's kernel with all "
                "its variables; leave it out, or raise an exception to stop early",
                code="E_INVALID_ARGUMENTS",
            )
    return CallPreview(
        ruling="ask",
        minimum=True,
        session_scope="none",
        why="runs Python in your notebook, with everything that you may do",
        pieces=(PreviewPiece("code", redact(code), "code", ("code",)),),
        approval_key=sha_of([code]),
    )


class _Display:
    """What code displayed, as an object that displays itself so."""

    def __init__(self, forms: Mapping[str, Any]) -> None:
        self._forms = forms

    def _repr_mimebundle_(self, **options: object) -> Mapping[str, Any]:
        return self._forms


async def _awaited(
    work: Coroutine[Any, Any, CodeOutcome], names: Mapping[str, Any], context: ToolContext
) -> ToolOutcome:
    with captured(context):
        return _shown_outcome(await work, names)


def _shown_outcome(outcome: CodeOutcome, names: Mapping[str, Any]) -> ToolOutcome:
    """What the model gets of it, without the secrets that the code made."""
    register_named_secrets(names)
    displayed = value_shown([_Display(forms) for forms in outcome.displays])
    # A picture among the displays is most often the value itself.
    value = value_shown(outcome.value, draws=not displayed.parts)
    # Each was cut before it was read: half a key is hidden too.
    streams = {"stdout": redact_truncated(outcome.stdout), "stderr": redact_truncated(outcome.stderr)}
    shown: dict[str, Any] = masked(streams)
    if outcome.displays:
        shown["displayed"] = displayed.data
    images = (*displayed.parts, *value.parts)
    if (error := outcome.error) is None:
        data = {"value": value.data, **shown}
        result = ToolResult(ok=True, data=data, attachments=images)
        return ToolOutcome(result=result, truncated=value.cut or displayed.cut)
    details = {"traceback": masked(detail_of(error)).splitlines(), **shown}
    info = ErrorInfo("E_TOOL_FAILED", masked(summary(error)), details)
    return ToolOutcome(result=ToolResult(ok=False, error=info, attachments=images))


# nb.set


def _look_at_set(name: str, value: Any, names: Mapping[str, Any]) -> CallPreview:
    """The old and the new value; raises ToolError for a name that is not the person's to set."""
    refuse_secret(name)
    is_name = name.isidentifier() and not keyword.iskeyword(name)
    is_taken = is_own(name) or hasattr(builtins, name)
    if not is_name or is_taken or issubclass(type(names.get(name)), types.ModuleType):
        why = "is no name for a variable, a name of Python's or IPython's own, or a module's"
        raise ToolError(f"{name[:100]!r} {why}; choose another", code="E_INVALID_ARGUMENTS")
    now = glance(names[name]) if name in names else "(there is no such variable yet)"
    then = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return CallPreview(
        ruling="ask",
        why=f"sets the variable {name} of your notebook",
        pieces=(
            PreviewPiece("now", now),
            PreviewPiece("then", redact(then), replaced_arguments=("value",)),
        ),
        approval_key=sha_of([type_text(names.get(name)), now]),
    )
