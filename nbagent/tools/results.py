"""What a tool gave back or raised, as an outcome: the model's result and the person's detail.

Every text passes `redact`; host folders are left out. Running the tool is `running`'s.
"""

from __future__ import annotations

import linecache
import os
import traceback
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.errors import ErrorInfo, NbagentError, ToolError
from nbagent.contracts.ports import ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_cut, redact_json
from nbagent.shown import (
    PATIENCE_S,
    Normal,
    clean,
    cut_middle,
    fitted,
    is_iterator,
    without_folders,
)

MAX_RESULT_CHARS = 50_000
"""Of a result's JSON; `@tool(max_result_chars=…)` changes it for one tool."""
_MESSAGE_CHARS = 1_000
_DETAIL_CHARS = 6_000
_MOST_FRAMES = 6
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
    # A plain function that returns an iterator means its items, and they may take their time.
    patience_s = None if is_iterator(value) else PATIENCE_S
    it = fitted(value, budget_chars, patience_s=patience_s)
    result = ToolResult(ok=True, data=redact_json(it.data), attachments=it.parts)
    return ToolOutcome(result=result, truncated=it.cut)


def failure_of(error: BaseException, *, hint: str = "") -> ToolOutcome:
    """The outcome for what a tool raised: a ToolError's own code, else E_TOOL_FAILED."""
    if isinstance(error, KeyboardInterrupt):
        hint = " (its own code raised it, nobody interrupted it)"
    info = ErrorInfo("E_TOOL_FAILED", summary(error) + hint)
    if isinstance(error, ToolError):
        normal = Normal(_MESSAGE_CHARS * 4)
        details: dict[str, Any] = normal.json(error.details) if error.details else {}
        info = ErrorInfo(error.code, _for_model(error.message), redact_json(details))
    detail = detail_of(error) + hint
    return ToolOutcome(result=ToolResult.failure(info), error_detail=detail)


def summary(error: BaseException) -> str:
    """`Type: message`, short and without host folders."""
    name, text = type(error).__name__, _said(error)
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        inner = "; ".join(f"{type(e).__name__}: {_said(e)}" for e in group.exceptions[:5])
        text = f"{text}: {inner}"
    return _for_model(f"{name}: {text}" if text else name)


def _said(error: object) -> str:
    try:
        return error.message if isinstance(error, NbagentError) else str(error)
    except BaseException:
        return "(its message cannot be shown)"


def loop_hint(error: BaseException | None) -> str:
    """What to do about an object that belongs to another event loop; empty for other errors."""
    for _ in range(5):
        if error is None:
            break
        if isinstance(error, RuntimeError) and any(mark in _said(error) for mark in _LOOP_MARKS):
            return LOOP_HINT
        error = error.__cause__ or error.__context__
    return ""


def detail_of(error: BaseException) -> str:
    """For the person: type, message and the last frames of the tool's own code, causes below."""
    pieces: list[str] = []
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < 4:
        seen.add(id(current))
        head = f"{type(current).__name__}: {cut_middle(_said(current), _MESSAGE_CHARS)}"
        pieces.append("\n".join([head, *_frames(current)]))
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)
    return redact_cut(clean(cut_middle("\ncaused by ".join(pieces), _DETAIL_CHARS)))


def _frames(error: BaseException) -> list[str]:
    walked = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    kept = [entry for entry in walked if not _is_ours(entry[0])]
    if len(kept) > _MOST_FRAMES:
        # The tool's own first frame says where, the last ones say what.
        left_out = len(kept) - _MOST_FRAMES
        kept = [kept[0], ("", left_out, ""), *kept[-(_MOST_FRAMES - 1) :]]
    lines: list[str] = []
    for file, line, function in kept:
        if not file:
            lines.append(f"  … {line} more frames …")
            continue
        lines.append(f"  {_file_name(file)}, line {line}, in {function}")
        source = linecache.getline(file, line).strip()
        if source:
            lines.append(f"    {cut_middle(source, 200)}")
    return lines


def _is_ours(file: str) -> bool:
    return file.startswith(_PACKAGE)


def _file_name(file: str) -> str:
    path = Path(file)
    # ipykernel compiles each cell under /tmp/ipykernel_PID/HASH.py: a name that tells nothing.
    return "notebook cell" if path.parent.name.startswith("ipykernel_") else path.name


def _for_model(text: str) -> str:
    return redact_cut(without_folders(clean(cut_middle(text, _MESSAGE_CHARS))))
