"""The outcome of a call: a result within its budget, or the error that is shown."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.errors import ErrorInfo, NbagentError, ToolError
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_truncated
from nbagent.contracts.tools import ToolOutcome
from nbagent.shown.texts import clean, cut_middle, without_folders
from nbagent.shown.values import JsonBudget, to_json_within

MAX_RESULT_CHARS = 50_000
"""Of a result's JSON; `@tool(max_result_chars=…)` changes it for one tool."""


_MESSAGE_CHARS = 1_000


_DETAIL_CHARS = 6_000


_MOST_CAUSES = 4


_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep


_LOOP_MARKS = ("attached to a different loop", "bound to a different event loop", "Event loop is")


LOOP_HINT = '; mark it @nbagent.tool(loop="notebook") so that it runs on the notebook\'s own loop'


def result_of(value: object, budget_chars: int = MAX_RESULT_CHARS) -> ToolOutcome:
    """The outcome for a value. Reads the value: call it where the value's tool runs.

    Raises only what an iterator raises while it is read: that is the tool failing.
    """
    kind = type(value)
    if issubclass(kind, ToolOutcome):
        return cast("ToolOutcome", value)
    if issubclass(kind, ToolResult):
        return ToolOutcome(result=cast("ToolResult", value))
    shown = to_json_within(value, budget_chars)
    result = ToolResult(ok=True, data=shown.data, attachments=shown.parts)
    return ToolOutcome(result=result, truncated=shown.cut)


def failure_of(error: BaseException, *, hint: str = "") -> ToolOutcome:
    """The outcome for what a tool raised: a ToolError's own code, else E_TOOL_FAILED."""
    if isinstance(error, KeyboardInterrupt):
        hint = " (its own code raised it, nobody interrupted it)"
    info = ErrorInfo("E_TOOL_FAILED", summary(error) + hint)
    if isinstance(error, ToolError):
        details: Any = JsonBudget(_MESSAGE_CHARS * 4).json(error.details) if error.details else {}
        info = ErrorInfo(error.code, _for_model(error.message), details)
    return ToolOutcome(result=ToolResult.failure(info), error_detail=detail_of(error) + hint)


def summary(error: BaseException) -> str:
    """`Type: message`, short and without host folders."""
    texts = [type(error).__name__, _said(error)]
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions[:5]
        texts.append("; ".join(f"{type(one).__name__}: {_said(one)}" for one in inner))
    return _for_model(": ".join(filter(None, texts)))


def loop_hint(error: BaseException) -> str:
    """What to do about an object that belongs to another event loop; empty for other errors."""
    loops = (one for one in _chain(error) if isinstance(one, RuntimeError))
    return LOOP_HINT if any(mark in _said(one) for one in loops for mark in _LOOP_MARKS) else ""


def detail_of(error: BaseException) -> str:
    """For the person: type, message and the frames of the tool's own code, causes below."""
    pieces: list[str] = []
    for one in _chain(error):
        head = f"{type(one).__name__}: {cut_middle(_said(one), _MESSAGE_CHARS)}"
        pieces.append("\n".join([head, *_frames(one)]))
    return redact_truncated(clean(cut_middle("\ncaused by ".join(pieces), _DETAIL_CHARS)))


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and what caused it."""
    chain: list[BaseException] = []
    while error is not None and len(chain) < _MOST_CAUSES:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def _said(error: BaseException) -> str:
    try:
        return error.message if isinstance(error, NbagentError) else str(error)
    except BaseException:
        return "(its message cannot be shown)"


def _frames(error: BaseException) -> list[str]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_PACKAGE)]
    lines: list[str] = []
    for frame in own:
        path = Path(frame.filename)
        # ipykernel compiles each cell under /tmp/ipykernel_PID/HASH.py: a name that tells nothing.
        cell = path.parent.name.startswith("ipykernel_")
        place = f"  {'notebook cell' if cell else path.name}, line {frame.lineno}, in {frame.name}"
        lines.append(f"{place}\n    {cut_middle(frame.line, 200)}" if frame.line else place)
    return lines


def _for_model(text: str) -> str:
    return redact_truncated(without_folders(clean(cut_middle(text, _MESSAGE_CHARS))))
