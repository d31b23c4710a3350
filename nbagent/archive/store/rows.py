"""A record's values as rows of the store, and back. Pure: knows no database.

Texts pass through the filter for secrets here. A text with lone surrogates is kept as a BLOB of
its bytes, because SQLite's text is strict UTF-8.
"""

from __future__ import annotations

from typing import Any, cast

from nbagent.archive.store.moments import from_us, moment_of, to_us, us_of
from nbagent.contracts.canonical import dump_json, load_json
from nbagent.contracts.chat import (
    ChatResponse,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    Usage,
    parse_arguments,
)
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult, ToolRun, TurnRequest
from nbagent.contracts.secrets import redact, redact_json

Row = dict[str, Any]
Cells = tuple[Any, ...]

MESSAGE_COLUMNS = (
    *("run", "position", "idx", "role", "text", "reasoning", "tool_call_id", "tool_name"),
    *("n_tool_calls", "has_image", "chars", "body"),
)
TOOL_RUN_COLUMNS = (
    *("run", "idx", "position", "tool_call_id", "tool_name", "started", "ok", "error_code"),
    *("args", "result", "result_chars", "queued_at", "started_at", "duration_ms", "waited_ms"),
    *("ran_in", "approval", "approved_by", "truncated", "repeat_n", "tool_sha", "details"),
)
TURN_COLUMNS = (
    *("run", "idx", "turn_id", "open", "phase_before", "phase_after", "stop_reason"),
    *("finish_reason", "error_code", "model", "n_messages", "n_new", "n_tools", "tool_calls"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"),
    *("cost_usd", "started_at", "duration_ms", "model_ms", "ttft_ms", "retries"),
    *("system", "toolset", "message_at", "node", "agent", "details"),
)
RUN_COLUMNS = (
    *("run_id", "version", "session", "name", "tags", "parent_id", "shared_messages", "kind"),
    *(
        "has_words",
        "cell_id",
        "notebook",
        "model",
        "base_url",
        "template",
        "prompt",
        "options",
        "limits",
    ),
    *("phase", "stop_reason", "error_code", "error", "error_details", "started_at", "ended_at"),
    *("duration_ms", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"),
    *("reasoning_tokens", "cost_usd", "notices", "system_shas", "toolset_shas", "lease_id"),
)

_LARGEST = 2**63 - 1


def text_cell(text: str) -> str | bytes:
    """A text without secrets, as SQLite can hold it."""
    text = redact(text)
    return text if is_text(text) else text.encode("utf-8", "surrogatepass")


def is_text(text: str) -> bool:
    """Whether it is without lone surrogates, as SQLite's own text has to be."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _opt_cell(text: str | None) -> str | bytes | None:
    return None if text is None else text_cell(text)


def cell_text(cell: str | bytes) -> str:
    """The text of a cell."""
    return cell if isinstance(cell, str) else cell.decode("utf-8", "surrogatepass")


def _opt_text(cell: str | bytes | None) -> str | None:
    return None if cell is None else cell_text(cell)


def json_cell(value: Any) -> str:
    """A JSON value as text, without secrets."""
    return clean_json(dump_json(value).decode(), value)


def clean_json(text: str, value: Any) -> str:
    """The JSON text of a value; where a secret is in it, the text of the cleaned value."""
    return text if redact(text) == text else dump_json(redact_json(value)).decode()


def _plain(value: Any) -> Any:
    """A frozen value as plain JSON data, without the fields that have their defaults."""
    return value.model_dump(mode="json", exclude_defaults=True)


# Messages


def message_row(
    run: int, position: int, idx: int | None, message: Message, results: dict[str, str]
) -> Cells:
    """One message. `results`: the result texts of the turn's tool runs by call id."""
    content = message.content
    text = message.text
    body: dict[str, Any] = {}
    if len(content) > 1 or (content and not (isinstance(content[0], TextPart) and text)):
        body["content"] = [{**_plain(part), "type": part.type} for part in content]
    if message.tool_calls:
        body["tool_calls"] = [_call_body(call) for call in message.tool_calls]
    if message.raw is not None:
        body["raw"] = message.raw
    call_id = message.tool_call_id
    same = bool(not body and call_id is not None and results.get(call_id) == text)
    return (
        run,
        position,
        idx,
        message.role,
        None if same else text_cell(text),
        _opt_cell(message.reasoning),
        _opt_cell(call_id),
        _opt_cell(message.name),
        len(message.tool_calls),
        any(isinstance(part, ImagePart) for part in content),
        len(text),
        json_cell(body) if body else None,
    )


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


def message_of(row: Row) -> Message:
    """The message of a row, `text` filled in from its tool run where it is kept there."""
    body: dict[str, Any] = load_json(row["body"]) if row["body"] else {}
    text = cell_text(row["text"])
    content: Any = body.get("content")
    if content is None:
        content = (TextPart(text=text),) if text else ()
    return Message(
        role=row["role"],
        content=content,
        tool_calls=tuple(_call(call) for call in body.get("tool_calls", ())),
        tool_call_id=_opt_text(row["tool_call_id"]),
        name=_opt_text(row["tool_name"]),
        reasoning=_opt_text(row["reasoning"]),
        raw=body.get("raw"),
    )


# Tool runs


def result_text(run: ToolRun) -> str | None:
    """The result as the model is given it."""
    return None if run.result is None else run.result.to_json().decode()


def tool_run_row(run: int, idx: int, position: int, it: ToolRun, started: bool) -> Cells:
    """One tool run; `started` says that it may have done something."""
    result = it.result
    text = result_text(it)
    details: dict[str, Any] = {}
    if it.notes:
        details["notes"] = it.notes
    if it.error_detail is not None:
        details["error_detail"] = it.error_detail
    if result is not None and not _is_told_by_its_text(result):
        details["result"] = result.model_dump(mode="json")
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
        _opt_cell(it.approval),
        _opt_cell(it.approved_by),
        it.truncated,
        it.repeat_n,
        it.tool_sha,
        json_cell(details) if details else None,
    )


def _is_told_by_its_text(result: ToolResult) -> bool:
    if result.attachments:
        return False
    if result.ok:
        return result.error is None
    return result.data is None and result.error is not None


def tool_run_of(row: Row) -> ToolRun:
    """The tool run of a row."""
    details: dict[str, Any] = load_json(row["details"]) if row["details"] else {}
    result: ToolResult | None = None
    if "result" in details:
        result = ToolResult.model_validate(details["result"])
    elif row["result"] is not None:
        result = ToolResult.model_validate(load_json(row["result"]))
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
        approval=_opt_text(row["approval"]),
        approved_by=_opt_text(row["approved_by"]),
        truncated=bool(row["truncated"]),
        repeat_n=row["repeat_n"],
        tool_sha=row["tool_sha"],
        error_detail=details.get("error_detail"),
        notes=tuple(details.get("notes", ())),
    )


# Turns


def usage_cells(usage: Usage | None) -> Cells:
    """The five counts; all None without usage."""
    if usage is None:
        return (None,) * 5
    return (
        min(usage.prompt_tokens, _LARGEST),
        min(usage.completion_tokens, _LARGEST),
        min(usage.total_tokens, _LARGEST),
        min(usage.cached_tokens, _LARGEST),
        min(usage.reasoning_tokens, _LARGEST),
    )


def _usage(row: Row) -> Usage:
    return Usage(
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        total_tokens=row["total_tokens"],
        cached_tokens=row["cached_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
    )


def _error_body(error: ErrorInfo) -> dict[str, Any]:
    return {"code": error.code, "message": error.message, "details": error.details}


def _model_id(run_model: str, model: str) -> str:
    """`provider:model` of a turn: frames of all turns are filtered by it."""
    provider = run_model.partition(":")[0] + ":"
    return model if model.startswith(provider) else provider + model


def _turn_details(turn: EngineTurn, model_id: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if turn.request.model != model_id:
        details["request_model"] = turn.request.model
    if turn.request.params:
        details["params"] = turn.request.params
    if turn.request.trimmed is not None:
        details["trimmed"] = turn.request.trimmed.model_dump(mode="json")
    response = turn.response
    if response is not None:
        if response.model:
            details["model"] = response.model
        meta = _plain(response.meta)
        if meta:
            details["meta"] = meta
    if turn.error is not None:
        details["error"] = _error_body(turn.error)
    if turn.notices:
        details["notices"] = turn.notices
    return details


def turn_row(
    run: int,
    turn: EngineTurn,
    *,
    run_model: str,
    is_open: bool,
    system: int | None,
    toolset: int | None,
    message_at: int | None,
) -> Cells:
    """One turn. `system` and `toolset` are rows of blobs, `message_at` is the response's place."""
    request, response = turn.request, turn.response
    model_id = _model_id(run_model, request.model)
    details = _turn_details(turn, model_id)
    return (
        run,
        turn.index,
        turn.id,
        is_open,
        turn.phase_before,
        turn.phase_after,
        turn.stop_reason,
        None if response is None else response.finish_reason,
        None if turn.error is None else turn.error.code,
        text_cell(model_id),
        request.n_messages,
        request.n_new,
        request.n_tools,
        0 if response is None else len(response.message.tool_calls),
        *usage_cells(None if response is None else response.usage),
        turn.cost_usd,
        to_us(turn.started_at),
        turn.duration_ms,
        turn.model_ms,
        turn.ttft_ms,
        0 if response is None else response.meta.retries,
        system,
        toolset,
        message_at,
        _opt_cell(turn.node),
        _opt_cell(turn.agent),
        json_cell(details) if details else None,
    )


def turn_of(
    row: Row, run_id: str, message: Message | None, tool_runs: tuple[ToolRun, ...]
) -> EngineTurn:
    """The turn of a row, which has `system_sha` and `toolset_sha` joined to it."""
    details: dict[str, Any] = load_json(row["details"]) if row["details"] else {}
    response: ChatResponse | None = None
    if message is not None:
        response = ChatResponse(
            message=message,
            usage=None if row["prompt_tokens"] is None else _usage(row),
            model=details.get("model", ""),
            finish_reason=row["finish_reason"],
            meta=details.get("meta", {}),
        )
    request = TurnRequest(
        n_messages=row["n_messages"],
        n_new=row["n_new"],
        model=details.get("request_model") or cell_text(row["model"]),
        params=details.get("params", {}),
        system_sha=row["system_sha"] or "",
        toolset_sha=row["toolset_sha"] or "",
        n_tools=row["n_tools"],
        trimmed=details.get("trimmed"),
    )
    return EngineTurn(
        id=row["turn_id"],
        run_id=run_id,
        index=row["idx"],
        phase_before=row["phase_before"],
        request=request,
        response=response,
        tool_runs=tool_runs,
        phase_after=row["phase_after"],
        stop_reason=row["stop_reason"],
        started_at=from_us(row["started_at"]),
        duration_ms=row["duration_ms"],
        model_ms=row["model_ms"],
        ttft_ms=row["ttft_ms"],
        cost_usd=row["cost_usd"],
        node=_opt_text(row["node"]),
        agent=_opt_text(row["agent"]),
        error=None if "error" not in details else ErrorInfo(**details["error"]),
        notices=tuple(details.get("notices", ())),
    )


# Runs


def run_row(record: RunRecord, *, has_words: bool, lease_id: str | None) -> Cells:
    """One run without its messages and turns."""
    error = record.error
    ended = record.phase != "Running"
    return (
        record.id,
        record.version,
        text_cell(record.session),
        _opt_cell(record.name),
        json_cell(record.tags),
        record.parent_id,
        record.shared_messages,
        record.kind,
        has_words,
        _opt_cell(record.cell_id),
        _opt_cell(record.notebook),
        text_cell(record.model),
        _opt_cell(record.base_url),
        _opt_cell(record.template),
        text_cell(record.prompt),
        json_cell(record.options),
        json_cell(record.limits.model_dump(mode="json")),
        record.phase,
        record.stop_reason,
        None if error is None else error.code,
        None if error is None else text_cell(error.message),
        None if error is None else json_cell(error.details),
        to_us(record.started_at),
        us_of(record.ended_at),
        record.duration_ms,
        *usage_cells(record.usage),
        record.cost_usd,
        json_cell(record.notices),
        json_cell(list(record.system_prompts)) if ended else None,
        json_cell(list(record.toolsets)) if ended else None,
        lease_id,
    )


def run_of(row: Row) -> dict[str, Any]:
    """The fields of a record that are in its row."""
    error: ErrorInfo | None = None
    if row["error_code"] is not None:
        details: dict[str, Any] = load_json(row["error_details"])
        error = ErrorInfo(row["error_code"], cell_text(row["error"]), details)
    fields = {
        name: _opt_text(cast("str | bytes | None", row[name]))
        for name in (
            "session",
            "name",
            "cell_id",
            "notebook",
            "model",
            "base_url",
            "template",
            "prompt",
        )
    }
    same = ("version", "parent_id", "shared_messages", "kind", "phase", "stop_reason")
    return {
        **fields,
        **{name: row[name] for name in (*same, "duration_ms", "cost_usd")},
        "id": row["run_id"],
        "tags": load_json(row["tags"]),
        "options": load_json(row["options"]),
        "limits": load_json(row["limits"]),
        "error": error,
        "started_at": from_us(row["started_at"]),
        "ended_at": moment_of(row["ended_at"]),
        "usage": _usage(row),
        "notices": load_json(row["notices"]),
    }
