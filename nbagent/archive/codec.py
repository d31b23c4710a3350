"""Rows as cells of the store and as JSON of a saved notebook, and back into records. Pure.

Texts lose their secrets here. What the rows hold is said in `rows` and `schema`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from nbagent.archive.rows import (
    REQUEST_FIELDS,
    RUN_FIELDS,
    TOOL_RUN_FIELDS,
    TURN_FIELDS,
    Row,
    from_us,
    rows_of,
)
from nbagent.archive.schema import TABLES, TOKENS, VERSION, Kind
from nbagent.contracts.canonical import dump_json, load_json
from nbagent.contracts.chat import (
    Message,
    TextPart,
    Usage,
    parse_arguments,
)
from nbagent.contracts.records import (
    EngineTurn,
    RunRecord,
    ToolRun,
    turn_id,
)
from nbagent.contracts.secrets import redact, redact_json

# Cells


def is_text(text: str) -> bool:
    """Whether it is without lone surrogates, as SQLite's own text has to be."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cell_text(cell: str | bytes) -> str:
    """The text of a cell."""
    return cell if isinstance(cell, str) else cell.decode("utf-8", "surrogatepass")


def _text_cell(text: str) -> str | bytes:
    text = redact(text)
    return text if is_text(text) else text.encode("utf-8", "surrogatepass")


def _json_cell(value: Any) -> str:
    text = dump_json(value).decode()
    # Hidden in the value, not in its text: what is hidden may end in the middle of an escape.
    return text if redact(text) == text else dump_json(redact_json(value)).decode()


_ENCODERS: dict[Kind, Any] = {"text": _text_cell, "json": _json_cell}
_DECODERS: dict[Kind, Any] = {"text": cell_text, "json": load_json}
_ENCODED = {
    table: [(i, _ENCODERS[kind]) for i, kind in enumerate(columns.values()) if kind in _ENCODERS]
    for table, columns in TABLES.items()
}


def encoded(table: str, row: Mapping[str, Any]) -> list[Any]:
    """The cells of a row, in the order of the columns, without secrets."""
    cells = list(map(row.get, TABLES[table]))
    for i, encode in _ENCODED[table]:
        if cells[i] is not None:
            cells[i] = encode(cells[i])
    return cells


def decoded(table: str, cells: Mapping[str, Any]) -> Row:
    """The row that was encoded, or some columns of it."""
    kinds = TABLES[table]
    row = dict(cells)
    for name, cell in cells.items():
        decode = _DECODERS.get(kinds[name])
        if decode is not None and cell is not None:
            row[name] = decode(cell)
    return row


# Rows into records


def record_of(rows: Mapping[str, Sequence[Row]]) -> RunRecord:
    """The record whose rows these are; those of a table in the order of their turns and places."""
    (run,) = rows["runs"]
    doc = _doc_of(run)
    runs: dict[int, list[ToolRun]] = {}
    for row in rows["tool_runs"]:
        runs.setdefault(row["turn"], []).append(_tool_run(row))
    messages = {row["position"]: _message(row, runs) for row in rows["messages"]}
    turns = [_turn(row, run, messages, runs.get(row["turn"], [])) for row in rows["turns"]]
    texts = {row["sha"]: row["text"] for row in rows["texts"]}
    systems = {turn.request.system_sha for turn in turns}
    toolsets = {turn.request.toolset_sha for turn in turns}
    plain: Row = {
        **{name: run.get(name) for name in RUN_FIELDS},
        "version": doc["version"],
        "id": run["run_id"],
        "tags": run["tags"],
        "base_url": run.get("server"),
        "options": doc.get("options", {}),
        "limits": doc["limits"],
        "error": _error(run),
        "started_at": from_us(run["started_at"]),
        "ended_at": _moment(run.get("ended_at")),
        "duration_ms": run.get("duration_ms") or 0.0,
        "usage": _usage(run) or Usage(),
        "cost_usd": run.get("cost_usd"),
        "n_unpriced": run.get("n_unpriced") or 0,
        "notices": doc.get("notices", ()),
        "system_prompts": {sha: text for sha, text in texts.items() if sha in systems},
        "toolsets": {sha: load_json(text) for sha, text in texts.items() if sha in toolsets},
        "messages": tuple(messages[place] for place in sorted(messages) if place >= 0),
        "turns": tuple(turns),
    }
    return RunRecord.model_validate(plain)


def _turn(
    row: Row, run: Row, messages: Mapping[int, Message], runs: Sequence[ToolRun]
) -> EngineTurn:
    doc = _doc_of(row)
    place = row.get("message_at")
    response: Row | None = None
    if place is not None:
        source, dropped = row["source"], row.get("dropped_params") or ()
        response = {
            "message": messages[place],
            "usage": _usage(row),
            "model": row.get("served_model") or "",
            "finish_reason": row["finish_reason"],
            "meta": {**doc.get("meta", {}), "source": source, "dropped_params": dropped},
        }
    request: Row = {
        **{name: row[name] for name in REQUEST_FIELDS},
        "model": row["model"].removeprefix(run["model"].partition(":")[0] + ":"),
        "params": doc.get("params", {}),
        "system_sha": row.get("system_sha") or "",
        "toolset_sha": row.get("toolset_sha") or "",
        "trimmed": doc.get("trimmed"),
    }
    plain: Row = {
        **{name: row.get(name) for name in TURN_FIELDS},
        "id": turn_id(row["turn"]),
        "run_id": run["run_id"],
        "index": row["turn"],
        "request": request,
        "response": response,
        "tool_runs": tuple(runs),
        "started_at": from_us(row["started_at"]),
        "error": _error(row),
        "notices": doc.get("notices", ()),
    }
    return EngineTurn.model_validate(plain)


def _tool_run(row: Row) -> ToolRun:
    doc = _doc_of(row)
    body: Row | None = doc.get("result") or row.get("result")
    plain: Row = {
        **{name: row.get(name) for name in TOOL_RUN_FIELDS},
        "result": body and {**body, "attachments": doc.get("attachments", ())},
        "queued_at": _moment(row.get("queued_at")),
        "started_at": _moment(row.get("started_at")),
        "error_detail": doc.get("error_detail"),
        "display_name": doc.get("display_name") or "",
        "notes": row.get("notes") or (),
    }
    return ToolRun.model_validate(plain)


def _message(row: Row, runs: Mapping[int, Sequence[ToolRun]]) -> Message:
    doc = _doc_of(row)
    content: Any = doc.get("content")
    call: int | None = row.get("call")
    if call is not None:
        run = runs[row["turn"]][call]
        content = run.result.as_content() if run.result else ()
    elif content is None:
        content = (TextPart(text=row["text"]),) if row["text"] else ()
    calls: list[Row] = row.get("tool_calls") or []
    plain: Row = {
        "role": row["role"],
        "content": content,
        "tool_calls": [{"arguments": parse_arguments(it["arguments_raw"]), **it} for it in calls],
        "tool_call_id": row.get("tool_call_id"),
        "name": row.get("tool_name"),
        "reasoning": row.get("reasoning"),
        "raw": doc.get("raw"),
    }
    return Message.model_validate(plain)


def _doc_of(row: Row) -> Row:
    return row.get("doc") or {}


def _error(row: Row) -> Row | None:
    if row.get("error_code") is None:
        return None
    details = _doc_of(row).get("error_details", {})
    return {"code": row["error_code"], "message": row["error"], "details": details}


def _usage(row: Row) -> Usage | None:
    if row.get("prompt_tokens") is None:
        return None
    return Usage.model_validate({name: row[name] for name in TOKENS})


def _moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


# A saved notebook


def packed(run: RunRecord) -> Row:
    """The rows of a run as JSON for a saved notebook, without what is None."""
    tables = {
        table: [{name: it for name, it in row.items() if it is not None} for row in rows]
        for table, rows in rows_of(run).items()
    }
    plain: Row = redact_json({"version": VERSION, **tables})
    try:
        json.dumps(plain, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # Half a character (a lone surrogate), which no front end could be sent.
        return {"escaped": json.dumps(plain)}
    return plain


def unpacked(plain: Any) -> RunRecord:
    """The record that `packed` was given.

    Raises:
        ValueError: this is not a packed record, or one of another version of nbagent.
    """
    try:
        if "escaped" in plain:
            plain = json.loads(plain["escaped"])
        if plain.get("version") != VERSION:
            raise ValueError("the record was saved by another version of nbagent; run it anew")
        return record_of(plain)
    except (LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is not a packed record ({error!r})") from None
