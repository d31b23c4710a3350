"""Messages and tool runs as rows of the store, and back. Pure: knows no database.

What a tool gave back, its text and its pictures, is in the row of its tool run; the message that
gives it to the model refers to that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.archive.store.moments import moment_of, us_of
from nbagent.archive.store.rows import (
    Cells,
    Row,
    cell_text,
    clean_json,
    json_cell,
    opt_cell,
    opt_text,
    plain_of,
    text_cell,
)
from nbagent.contracts.canonical import load_json
from nbagent.contracts.chat import ImagePart, Message, Part, TextPart, ToolCall, parse_arguments
from nbagent.contracts.records import ToolResult, ToolRun

MESSAGE_COLUMNS = (
    *("run", "position", "idx", "role", "text", "reasoning", "tool_call_id", "tool_name"),
    *("n_tool_calls", "has_image", "chars", "body", "attached"),
)
TOOL_RUN_COLUMNS = (
    *("run", "idx", "position", "tool_call_id", "tool_name", "started", "ok", "error_code"),
    *("args", "result", "result_chars", "queued_at", "started_at", "duration_ms", "waited_ms"),
    *("ran_in", "approval", "approved_by", "truncated", "repeat_n", "tool_sha", "details"),
)


# Messages


def message_row(
    run: int,
    position: int,
    idx: int | None,
    message: Message,
    results: Mapping[str, ToolResult | None],
) -> Cells:
    """One message. `results`: what the turn's tool runs gave back, by call id."""
    content, text, call_id = message.content, message.text, message.tool_call_id
    result = None if call_id is None else results.get(call_id)
    same = result is not None and result.is_given_by(message)
    # A text among the attachments is a part of the message's text, as the frames show it.
    first = content[0].text if content and isinstance(content[0], TextPart) else ""
    body: dict[str, Any] = {}
    if not same and not _is_told_by_its_text(content, text):
        body["content"] = _bodies(content)
    if message.tool_calls:
        body["tool_calls"] = [_call_body(call) for call in message.tool_calls]
    if message.raw is not None:
        body["raw"] = message.raw
    return (
        run,
        position,
        idx,
        message.role,
        None if same and text == first else text_cell(text),
        opt_cell(message.reasoning),
        opt_cell(call_id),
        opt_cell(message.name),
        len(message.tool_calls),
        any(isinstance(part, ImagePart) for part in content),
        len(text),
        json_cell(body) if body else None,
        same and len(content) > 1,
    )


def _is_told_by_its_text(content: Sequence[Part], text: str) -> bool:
    if not content:
        return True
    return len(content) == 1 and isinstance(content[0], TextPart) and bool(text)


def _bodies(parts: Sequence[Part]) -> list[dict[str, Any]]:
    return [{**plain_of(part), "type": part.type} for part in parts]


def _call_body(call: ToolCall) -> dict[str, Any]:
    body: dict[str, Any] = {"id": call.id, "name": call.name, "raw": call.arguments_raw}
    if call.arguments != parse_arguments(call.arguments_raw):
        body["arguments"] = call.arguments
    if call.extra is not None:
        body["extra"] = call.extra
    return body


def _call(body: dict[str, Any]) -> ToolCall:
    raw = body["raw"]
    return ToolCall(
        id=body["id"],
        name=body["name"],
        arguments=body["arguments"] if "arguments" in body else parse_arguments(raw),
        arguments_raw=raw,
        extra=body.get("extra"),
    )


def message_of(row: Row, attachments: Sequence[Part] = ()) -> Message:
    """The message of a row.

    Args:
        row: its `text` taken from the tool run where it is kept there.
        attachments: those of the tool run, where the row says that it has them.
    """
    body: dict[str, Any] = load_json(row["body"]) if row["body"] else {}
    text = cell_text(row["text"])
    content: Any = body.get("content")
    if content is None:
        content = (TextPart(text=text),) if text else ()
    if row["attached"]:
        content = (*content, *attachments)
    return Message(
        role=row["role"],
        content=content,
        tool_calls=tuple(_call(call) for call in body.get("tool_calls", ())),
        tool_call_id=opt_text(row["tool_call_id"]),
        name=opt_text(row["tool_name"]),
        reasoning=opt_text(row["reasoning"]),
        raw=body.get("raw"),
    )


# Tool runs


def tool_run_row(run: int, idx: int, position: int, it: ToolRun, started: bool) -> Cells:
    """One tool run; `started` says that it may have done something."""
    result = it.result
    text = None if result is None else result.to_json().decode()
    details: dict[str, Any] = {}
    if it.notes:
        details["notes"] = it.notes
    if it.error_detail is not None:
        details["error_detail"] = it.error_detail
    if result is not None and not result.is_told_by_its_json:
        details["result"] = result.model_dump(mode="json")
    elif result is not None and result.attachments:
        details["attachments"] = _bodies(result.attachments)
    return (
        run,
        idx,
        position,
        text_cell(it.tool_call_id),
        text_cell(it.tool_name),
        started,
        None if result is None else result.ok,
        None if result is None or result.error is None else result.error.code,
        None if it.args is None else json_cell(it.args),
        None if text is None else clean_json(text, load_json(text)),
        None if text is None else len(text),
        us_of(it.queued_at),
        us_of(it.started_at),
        it.duration_ms,
        it.waited_ms,
        it.ran_in,
        opt_cell(it.approval),
        opt_cell(it.approved_by),
        it.truncated,
        it.repeat_n,
        it.tool_sha,
        json_cell(details) if details else None,
    )


def tool_run_of(row: Row) -> ToolRun:
    """The tool run of a row."""
    details: dict[str, Any] = load_json(row["details"]) if row["details"] else {}
    result: ToolResult | None = None
    if "result" in details:
        result = ToolResult.model_validate(details["result"])
    elif row["result"] is not None:
        told = load_json(row["result"])
        result = ToolResult(**told, attachments=details.get("attachments", ()))
    return ToolRun(
        tool_call_id=cell_text(row["tool_call_id"]),
        tool_name=cell_text(row["tool_name"]),
        args=None if row["args"] is None else load_json(row["args"]),
        result=result,
        queued_at=moment_of(row["queued_at"]),
        started_at=moment_of(row["started_at"]),
        duration_ms=row["duration_ms"],
        waited_ms=row["waited_ms"],
        ran_in=row["ran_in"],
        approval=opt_text(row["approval"]),
        approved_by=opt_text(row["approved_by"]),
        truncated=bool(row["truncated"]),
        repeat_n=row["repeat_n"],
        tool_sha=row["tool_sha"],
        error_detail=details.get("error_detail"),
        notes=tuple(details.get("notes", ())),
    )
