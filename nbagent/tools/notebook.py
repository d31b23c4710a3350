"""The `nb.*` tools: list, inspect and set variables of the notebook, and run code in it.

Owns the four tools and their questions: reading is allowed, `nb.set` asks and shows both values,
`nb.run` always asks, because the code may do whatever the person may do. The namespace, the thread
and the shell come from the call's context. Values whose names look like secrets are never shown.
Outside of a notebook every call fails with a message.
"""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import types
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
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
from nbagent.shown.host_paths import with_mount_names
from nbagent.tools.functions.definition import method_tool
from nbagent.tools.functions.host import MethodHost
from nbagent.tools.functions.outcome import error_detail, error_summary
from nbagent.tools.host_config import HostConfig
from nbagent.tools.notebook_values import (
    check_not_secret,
    inspect_value,
    is_internal_name,
    list_variables,
    mask_secrets,
    preview_text,
    qualified_type_name,
    value_excerpt,
    value_facts,
    variable_value,
)
from nbagent.tools.progress import capture_output

HOST = "notebook"
_HOST_NAMES = ("notebook", "nb", "nb.*")
_LOOK_TIMEOUT_S = 20.0
"""The `repr` of a value is foreign code and may never return."""


def open_hosts(config: HostConfig) -> Sequence[ToolHost]:
    return [NotebookHost(config)]


class NotebookHost(MethodHost):
    """The `nb` tools that a run has; each is a method of this class."""

    def __init__(self, config: HostConfig) -> None:
        self._keep_bytes = config.policy.limits.script_output_bytes
        # In the waiting thread: values of a notebook may belong to it, such as SQLite connections.
        tool = partial(method_tool, host=HOST, threaded=False)
        tools = (
            tool(self.variables, name="nb.variables", timeout_s=_LOOK_TIMEOUT_S),
            tool(self.inspect, name="nb.inspect", timeout_s=_LOOK_TIMEOUT_S),
            # Runs in the waiting thread. Code with a top-level `await` gives a coroutine, which
            # runs on the notebook's loop.
            tool(self.run, name="nb.run", ruling="ask", loop="notebook"),
            tool(self.set, name="nb.set", ruling="ask", interruptible=False),
        )
        super().__init__(HOST, tools, config.names, _HOST_NAMES)

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
        return list_variables(self._names(context), pattern, limit)

    def inspect(self, context: ToolContext, name: str) -> ToolOutcome:
        """Look at one variable of the notebook in detail.

        A DataFrame: columns, dtypes, first rows, statistics. An array: shape, numbers. A function
        or class: signature, docstring, source. A figure: the image. Anything else: its value.

        Args:
            name: of the variable; nb.run looks at what is inside it.
        """
        return inspect_value(name, variable_value(self._names(context), name))

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
            return _code_outcome(outcome, names, context.folders)
        return _await_outcome(outcome, names, context)

    def set(self, context: ToolContext, name: str, value: Any) -> dict[str, Any]:
        """Set a variable of the notebook to a JSON value, after the person agreed.

        Args:
            name: of the variable; a new one or one that is replaced.
            value: text, number, true, false, null, list or object.
        """
        names = self._names(context)
        before = {"type": qualified_type_name(names[name])} if name in names else None
        names[name] = value
        return {"name": name, "before": before, "now": value_facts(value)}

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call and show its effect; runs no code of any value."""
        prepared = await super().prepare(call, context)
        names, arguments = self._names(context), prepared.arguments
        preview = CallPreview()
        if call.name == "nb.run":
            preview = _run_preview(arguments["code"])
        elif call.name == "nb.set":
            preview = _set_preview(arguments["name"], arguments["value"], names)
        return replace(prepared, preview=preview)

    def _names(self, context: ToolContext) -> dict[str, Any]:
        """Return the notebook's namespace itself and register the secrets in it for redaction."""
        names = context.namespace()
        if not names or not isinstance(names, dict):
            raise _no_notebook()
        register_named_secrets(names)
        return names


def _no_notebook() -> ToolError:
    return ToolError(
        "there is no notebook here, so there are no variables and no code can run; "
        "continue without the nb tools",
        code="E_PRECONDITION_FAILED",
    )


# nb.run


def _run_preview(code: str) -> CallPreview:
    """Show the code; raise ToolError if it is not valid Python or would end the kernel."""
    try:
        tree = ast.parse(code)
        # `compile` finds errors that `parse` does not, such as `return` outside of a function.
        compile(tree, "<code>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise ToolError(
            f"{error_summary(error)}; nb.run takes plain Python that fits in a cell: no magics, no "
            "shell lines (use subprocess), no help lines (call help())",
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
        # Without an approval key: the code is an argument, so an edit has no other effect to show.
        pieces=(PreviewPiece("code", redact(code), "code", ("code",)),),
    )


class _DisplayedValue:
    """A displayed value again as an object that can be displayed."""

    def __init__(self, mime_bundle: Mapping[str, Any]) -> None:
        self._mime_bundle = mime_bundle

    def _repr_mimebundle_(self, **options: object) -> Mapping[str, Any]:
        return self._mime_bundle


async def _await_outcome(
    work: Coroutine[Any, Any, CodeOutcome], names: Mapping[str, Any], context: ToolContext
) -> ToolOutcome:
    with capture_output(context):
        return _code_outcome(await work, names, context.folders)


def _code_outcome(
    outcome: CodeOutcome, names: Mapping[str, Any], folders: Mapping[str, str]
) -> ToolOutcome:
    """Outcome for the model, without secrets that the code created."""
    register_named_secrets(names)
    displayed = value_excerpt([_DisplayedValue(forms) for forms in outcome.displays])
    # If a picture was displayed, the value is usually the same figure: do not draw it twice.
    value = value_excerpt(outcome.value, draws=not displayed.parts)
    # Both were cut already, so half a key may stand at the cut: `redact_truncated` hides that too.
    streams = {
        "stdout": redact_truncated(outcome.stdout),
        "stderr": redact_truncated(outcome.stderr),
    }
    shown: dict[str, Any] = mask_secrets(streams)
    if outcome.displays:
        shown["displayed"] = displayed.data
    images = (*displayed.parts, *value.parts)
    if (error := outcome.error) is None:
        data = {"value": value.data, **shown}
        result = ToolResult(ok=True, data=data, attachments=images)
        return ToolOutcome(result=result, truncated=value.cut or displayed.cut)
    trace = mask_secrets(with_mount_names(error_detail(error), folders))
    details = {"traceback": trace.splitlines(), **shown}
    info = ErrorInfo("E_TOOL_FAILED", mask_secrets(error_summary(error, folders)), details)
    return ToolOutcome(result=ToolResult(ok=False, error=info, attachments=images))


# nb.set


def _set_preview(name: str, value: Any, names: Mapping[str, Any]) -> CallPreview:
    """Show the old and the new value; raise ToolError for a name that must not be set."""
    check_not_secret(name)
    is_name = name.isidentifier() and not keyword.iskeyword(name)
    is_taken = is_internal_name(name) or hasattr(builtins, name)
    if not is_name or is_taken or issubclass(type(names.get(name)), types.ModuleType):
        why = "is not a valid variable name, or belongs to Python, IPython or a module"
        raise ToolError(f"{name[:100]!r} {why}; choose another", code="E_INVALID_ARGUMENTS")
    old_text = preview_text(names[name]) if name in names else "(there is no such variable yet)"
    new_text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return CallPreview(
        ruling="ask",
        why=f"sets the variable {name} of your notebook",
        pieces=(
            PreviewPiece("now", old_text),
            PreviewPiece("then", redact(new_text), replaced_arguments=("value",)),
        ),
        # The person saw this old value: a yes is for no other one.
        approval_key=sha_of([qualified_type_name(names.get(name)), old_text]),
    )
