"""Runs and turns as rows of the store, and back, and the cells of all rows. Pure: no database.

Texts pass through the filter for secrets here. A text with lone surrogates is kept as a BLOB of
its bytes, because SQLite's text is strict UTF-8.
"""

from __future__ import annotations

from typing import Any, cast

from nbagent.archive.store.moments import from_us, moment_of, to_us, us_of
from nbagent.contracts.canonical import dump_json, load_json
from nbagent.contracts.chat import (
    ChatResponse,
    Message,
    Usage,
)
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun, TurnRequest
from nbagent.contracts.secrets import redact, redact_json

Row = dict[str, Any]
Cells = tuple[Any, ...]

TURN_COLUMNS = (
    *("run", "idx", "turn_id", "open", "phase_before", "phase_after", "stop_reason"),
    *("finish_reason", "error_code", "model", "n_messages", "n_new", "n_tools", "tool_calls"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"),
    *("cache_write_tokens", "cost_usd", "started_at", "duration_ms", "model_ms", "ttft_ms"),
    *("retries", "retry_wait_ms"),
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
    *("reasoning_tokens", "cache_write_tokens", "cost_usd", "notices", "system_shas"),
    *("toolset_shas", "lease_id"),
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


def opt_cell(text: str | None) -> str | bytes | None:
    """The same where there may be no text."""
    return None if text is None else text_cell(text)


def cell_text(cell: str | bytes) -> str:
    """The text of a cell."""
    return cell if isinstance(cell, str) else cell.decode("utf-8", "surrogatepass")


def opt_text(cell: str | bytes | None) -> str | None:
    """The same where there may be no text."""
    return None if cell is None else cell_text(cell)


def json_cell(value: Any) -> str:
    """A JSON value as text, without secrets."""
    return clean_json(dump_json(value).decode(), value)


def clean_json(text: str, value: Any) -> str:
    """The JSON text of a value; where a secret is in it, the text of the cleaned value."""
    return text if redact(text) == text else dump_json(redact_json(value)).decode()


def plain_of(value: Any) -> Any:
    """A frozen value as plain JSON data, without the fields that have their defaults."""
    return value.model_dump(mode="json", exclude_defaults=True)


# Turns


def usage_cells(usage: Usage | None) -> Cells:
    """The six counts; all None without usage."""
    if usage is None:
        return (None,) * 6
    return (
        min(usage.prompt_tokens, _LARGEST),
        min(usage.completion_tokens, _LARGEST),
        min(usage.total_tokens, _LARGEST),
        min(usage.cached_tokens, _LARGEST),
        min(usage.reasoning_tokens, _LARGEST),
        min(usage.cache_write_tokens, _LARGEST),
    )


def _usage(row: Row) -> Usage:
    return Usage(
        prompt_tokens=row["prompt_tokens"],
        completion_tokens=row["completion_tokens"],
        total_tokens=row["total_tokens"],
        cached_tokens=row["cached_tokens"],
        reasoning_tokens=row["reasoning_tokens"],
        cache_write_tokens=row["cache_write_tokens"],
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
        meta = plain_of(response.meta)
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
        turn.attempts - 1,
        turn.retry_wait_ms,
        system,
        toolset,
        message_at,
        opt_cell(turn.node),
        opt_cell(turn.agent),
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
        attempts=row["retries"] + 1,
        retry_wait_ms=row["retry_wait_ms"],
        cost_usd=row["cost_usd"],
        node=opt_text(row["node"]),
        agent=opt_text(row["agent"]),
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
        opt_cell(record.name),
        json_cell(record.tags),
        record.parent_id,
        record.shared_messages,
        record.kind,
        has_words,
        opt_cell(record.cell_id),
        opt_cell(record.notebook),
        text_cell(record.model),
        opt_cell(record.base_url),
        opt_cell(record.template),
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
        name: opt_text(cast("str | bytes | None", row[name]))
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
