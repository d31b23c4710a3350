"""Outcomes of tool calls: a result cut to its budget, or an error for the model and the person."""

from __future__ import annotations

import inspect
import os
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.errors import ErrorInfo, NbagentError, ToolError
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_truncated
from nbagent.contracts.tools import ToolOutcome
from nbagent.shown.host_paths import with_mount_names
from nbagent.shown.texts import clean, cut_middle
from nbagent.shown.values import JsonBudget, to_json_within

MAX_RESULT_CHARS = 50_000
"""Size limit of a result as JSON; `@tool(max_result_chars=…)` changes it for one tool."""
_MESSAGE_CHARS = 1_000
_DETAIL_CHARS = 6_000
_MAX_CAUSES = 4
_NO_FOLDERS: Mapping[str, str] = {}
_PACKAGE = str(Path(__file__).resolve().parents[2]) + os.sep


_LOOP_MESSAGES = (
    "attached to a different loop",
    "bound to a different event loop",
    "Event loop is",
)
_RUNNING_LOOP_MESSAGES = (
    "cannot be called from a running event loop",
    "event loop is already running",
    "Cannot run the event loop while another loop is running",
    "Already running asyncio in this thread",
    "AsyncToSync in the same thread as an async event loop",
)
"""Of asyncio's `run`, `Runner.run` and `run_until_complete`, uvloop's, anyio's and asgiref's."""


LOOP_HINT = '; mark it @nbagent.tool(loop="notebook") so that it runs on the notebook\'s own loop'
RUNNING_LOOP_HINT = "; write the tool as async def and await the coroutine instead of running it"


def value_outcome(value: object, budget_chars: int = MAX_RESULT_CHARS) -> ToolOutcome:
    """Outcome for a returned value.

    Reading a value runs its code, so call this in the thread of the tool. If an iterator raises
    while it is read, the error is raised here: it is an error of the tool.
    """
    kind = type(value)
    if issubclass(kind, ToolOutcome):
        return cast("ToolOutcome", value)
    if issubclass(kind, ToolResult):
        return ToolOutcome(result=cast("ToolResult", value))
    shown = to_json_within(value, budget_chars)
    result = ToolResult(ok=True, data=shown.data, attachments=shown.parts)
    return ToolOutcome(result=result, truncated=shown.cut)


def failure_outcome(
    error: BaseException, *, hint: str = "", folders: Mapping[str, str] = _NO_FOLDERS
) -> ToolOutcome:
    """Outcome for an exception of a tool: the code of a ToolError, else E_TOOL_FAILED.

    Paths in its message are written with the names of the mounts, `folders`.
    """
    if isinstance(error, KeyboardInterrupt):
        hint = " (raised by the tool's own code, not by an interrupt)"
    info = ErrorInfo("E_TOOL_FAILED", error_summary(error, folders) + hint)
    if isinstance(error, ToolError):
        details: Any = JsonBudget(_MESSAGE_CHARS * 4).json(error.details) if error.details else {}
        info = ErrorInfo(error.code, _for_model(error.message, folders), details)
    return ToolOutcome(result=ToolResult.failure(info), error_detail=error_detail(error) + hint)


def error_summary(error: BaseException, folders: Mapping[str, str] = _NO_FOLDERS) -> str:
    """`Type: message` for the model, short and without folders of this machine."""
    texts = [type(error).__name__, _message(error)]
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions[:5]
        texts.append("; ".join(f"{type(member).__name__}: {_message(member)}" for member in inner))
    return _for_model(": ".join(filter(None, texts)), folders)


def loop_hint(error: BaseException) -> str:
    """Advice if an object belongs to another event loop; empty for other errors.

    asyncio and libraries such as aiohttp bind clients and locks to the loop of their first use,
    and tools run on a loop of their own.
    """
    return LOOP_HINT if _has_message(error, _LOOP_MESSAGES) else ""


def running_loop_hint(error: BaseException) -> str:
    """Advice if a tool starts an event loop inside a running one; empty for other errors.

    The coroutines that it could not run are closed, so that Python does not warn in the cell that
    they were never awaited.
    """
    if not _has_message(error, _RUNNING_LOOP_MESSAGES):
        return ""
    for cause in _causes(error):
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            for value in [*frame.f_locals.values()]:
                _close_unstarted(value)
    return RUNNING_LOOP_HINT


def _close_unstarted(value: Any) -> None:
    """Close a coroutine that never ran, or those in a list."""
    if type(value) in (list, tuple):
        for item in cast("Sequence[Any]", value):
            if type(item) is types.CoroutineType:
                _close_unstarted(item)
    elif type(value) is types.CoroutineType:
        coroutine = cast("types.CoroutineType[Any, Any, Any]", value)
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            coroutine.close()


def _has_message(error: BaseException, messages: Sequence[str]) -> bool:
    """True if the error or a cause of it is a RuntimeError with one of these texts."""
    texts = [_message(cause) for cause in _causes(error) if isinstance(cause, RuntimeError)]
    return any(message in text for text in texts for message in messages)


def error_detail(error: BaseException) -> str:
    """Text for the person: type, message and frames of the tool's code, then the causes."""
    pieces: list[str] = []
    for cause in _causes(error):
        head = f"{type(cause).__name__}: {cut_middle(_message(cause), _MESSAGE_CHARS)}"
        pieces.append("\n".join([head, *_own_frames(cause)]))
    return redact_truncated(clean(cut_middle("\ncaused by ".join(pieces), _DETAIL_CHARS)))


def _causes(error: BaseException | None) -> list[BaseException]:
    """The error and its chain of causes, at most four."""
    chain: list[BaseException] = []
    while error is not None and len(chain) < _MAX_CAUSES:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def _message(error: BaseException) -> str:
    try:
        return error.message if isinstance(error, NbagentError) else str(error)
    except BaseException:
        return "(its message cannot be shown)"


def _own_frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    lines: list[str] = []
    for frame in own:
        path = Path(frame.filename)
        # ipykernel compiles each cell as /tmp/ipykernel_PID/HASH.py, a useless name for a person.
        cell = path.parent.name.startswith("ipykernel_")
        location = (
            f"  {'notebook cell' if cell else path.name}, line {frame.lineno}, in {frame.name}"
        )
        lines.append(f"{location}\n    {cut_middle(frame.line, 200)}" if frame.line else location)
    return lines


def _for_model(text: str, folders: Mapping[str, str]) -> str:
    return redact_truncated(with_mount_names(clean(cut_middle(text, _MESSAGE_CHARS)), folders))
