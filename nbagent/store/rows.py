"""Conversion of records to rows and back, for the store and for saved notebooks. Pure.

A row is a dictionary of JSON values by the columns of `columns`; a column with the name of a
record's field has that field's value. Each text, picture and message is stored once: responses and
tool messages refer to it, so storage grows linearly. Secrets are removed from texts here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar, cast

from nbagent.contracts.canonical import dump_json, json_object, load_json, sha256_hex, sha_of
from nbagent.contracts.messages import (
    DIRECTIVE_STARTS,
    ImagePart,
    Message,
    Part,
    TextPart,
    ToolCall,
    parse_arguments,
)
from nbagent.contracts.model import ToolSpec, Usage
from nbagent.contracts.records import (
    SUMMARY_CHARS,
    EngineTurn,
    RunRecord,
    RunSummary,
    ToolRun,
    recorded_cost,
    turn_id,
)
from nbagent.contracts.secrets import redact, redact_json
from nbagent.store.columns import (
    CORRUPT_ROW,
    OLDEST_READER,
    OLDEST_SAVED_VERSION,
    TABLE_COLUMNS,
    TABLES,
    TOKEN_COLUMNS,
    VERSION,
)
from nbagent.store.older_rows import current_row, current_rows
from nbagent.store.record_cells import Row, cells_of, fields_of, to_json, to_us

T = TypeVar("T")
Rows = dict[str, list[Row]]
"""Rows by table name."""

_JSON_TYPES = (dict, list, tuple)
_JSON_COLUMNS = {
    name: frozenset(column.name for column in table.columns if column.is_json)
    for name, table in TABLES.items()
}


def turn_end_us(turn: EngineTurn) -> int:
    """End of a turn, in microseconds since 1970."""
    return to_us(turn.started_at + timedelta(milliseconds=turn.duration_ms))


# Rows to cells and back


def text_cell(text: str) -> str | bytes:
    """Text without secrets; as bytes if it contains half a surrogate pair, which SQLite refuses."""
    text = redact(text)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def cell_text(cell: T | bytes) -> T | str:
    """Text of a cell; other values are returned as they are."""
    return cell.decode("utf-8", "surrogatepass") if isinstance(cell, bytes) else cell


def encode_row(table: str, row: Mapping[str, Any]) -> list[Any]:
    """Encode a row as cells in the order of its table's columns."""
    cells: list[Any] = [row.get(name) for name in TABLE_COLUMNS[table]]
    for i, cell in enumerate(cells):
        if isinstance(cell, str):
            cells[i] = text_cell(cell)
        elif isinstance(cell, _JSON_TYPES):
            text = dump_json(cell).decode()
            # Secrets are removed from the value, not from its JSON text: a match could end in the
            # middle of an escape sequence and make the JSON invalid.
            hidden = redact(text) != text
            cells[i] = dump_json(redact_json(cell)).decode() if hidden else text
    return cells


def decode_row(table: str, names: Sequence[str], cells: Sequence[Any]) -> Row:
    """Decode the cells of a row; None values are left out."""
    json_columns = _JSON_COLUMNS[table]
    row: Row = {}
    for name, cell in zip(names, cells, strict=True):
        if cell is not None:
            text = cell_text(cell)
            row[name] = load_json(text) if name in json_columns else text
    return row


# Records to rows


def run_row(run: RunRecord) -> Row:
    """Row of a run. An ended run also has the sums over its turns."""
    template_text = run.template if run.template is not None else run.prompt
    starts_conversation = run.kind in ("start", "fork") or run.parent_id is None
    row: Row = cells_of("runs", run) | {
        "conversation_id": run.id if starts_conversation else None,
        "root_id": None if run.parent_id else run.id,
        "template_sha": sha256_hex(redact(template_text)) if template_text else None,
    }
    # Tells `older_rows` the form of the documents of this run.
    doc: Row = row["doc"] or {}
    row["doc"] = {"version": VERSION, **doc}
    usages = [turn.response.usage for turn in run.turns if turn.response]
    if run.usage == Usage() and not any(usages):
        row |= dict.fromkeys(TOKEN_COLUMNS)
    if run.phase == "Running":
        return row | {"duration_ms": None, "n_unpriced": None}
    totals, last = run.totals(), run.turns[-1].request if run.turns else None
    return row | {
        "turns": totals.turns,
        "tool_calls": totals.tool_calls,
        "tool_errors": totals.tool_errors,
        "model_ms": totals.model_ms,
        "tools_ms": totals.tools_ms,
        "waited_ms": totals.waited_ms,
        "retry_wait_ms": totals.retry_wait_ms,
        "params": run.turns[0].request.params if run.turns else None,
        "system_sha": (last and last.system_sha) or None,
        "toolset_sha": (last and last.toolset_sha) or None,
    }


def _turn_row(turn: EngineTurn, provider: str, message_at: int | None) -> Row:
    """Row of a turn; its message is stored at `message_at`, its tool runs in their own table."""
    return cells_of("turns", turn) | {
        "model": f"{provider}:{turn.request.model}",
        "tool_calls": len(turn.response.message.tool_calls) if turn.response else 0,
        "tools_ms": turn.tools_ms,
        "waited_ms": turn.waited_ms,
        "trimmed": len(turn.request.trimmed),
        "message_at": message_at,
    }


def tool_run_row(run: ToolRun, turn: int, position: int, model: str) -> Row:
    """Row of a tool run; `position` is the index of its call in the response."""
    result = run.result
    error = result and result.error
    return cells_of("tool_runs", run) | {
        "turn": turn,
        "position": position,
        "model": model,
        "ok": result and result.ok,
        "error_code": error and error.code,
        "error": error and error.message,
        "args_sha": None if run.args is None else sha_of(run.args),
        "result": result and result.body,
    }


def message_row(message: Message, position: int, source: str, at: int) -> Row:
    """Row of a message with its content."""
    content, text = message.content, message.text
    plain = not content or (text and content == (TextPart(text=text),))
    return {
        **vars(message),
        "position": position,
        "source": source,
        "text": text,
        "tool_calls": [_call_body(call) for call in message.tool_calls] or None,
        "tool_name": message.name,
        "chars": len(text),
        "has_image": any(isinstance(part, ImagePart) for part in content),
        "at": at,
        "doc": _non_empty(content=None if plain else to_json(content), raw=message.raw),
    }


def turn_rows(turn: EngineTurn, messages: Sequence[Message], provider: str, position: int) -> Rows:
    """Rows of a finished turn and the messages that it added, the first one at `position`.

    Without messages the response is not part of the conversation (a failed turn). It is stored at
    a negative position then, so that the record keeps it and no request contains it.
    """
    response, index = turn.response, turn.index
    at = position if messages else -index
    own = _turn_row(turn, provider, None if response is None else at)
    rows: list[Row] = []
    if response is not None:
        model_time = timedelta(milliseconds=turn.model_ms + turn.retry_wait_ms)
        rows.append(message_row(response.message, at, "model", to_us(turn.started_at + model_time)))
    calls = {run.tool_call_id: i for i, run in enumerate(turn.tool_runs)}
    for message_position, message in enumerate(messages[1:], position + 1):
        rows.append(
            _tool_message_row(message, message_position, turn, calls[message.tool_call_id or ""])
        )
    return {
        "turns": [own],
        "tool_runs": [
            tool_run_row(run, index, i, own["model"]) for i, run in enumerate(turn.tool_runs)
        ],
        "messages": [{**row, "turn": index} for row in rows],
    }


def _tool_message_row(message: Message, position: int, turn: EngineTurn, call: int) -> Row:
    """Row of a tool message; it refers to the tool run's result if that is its whole content."""
    run = turn.tool_runs[call]
    began = run.started_at or turn.started_at
    at = to_us(began + timedelta(milliseconds=run.duration_ms))
    row = message_row(message, position, "tool", at)
    # With a text attachment the message's text is more than the result: store it in full then,
    # because frames show it.
    texts = sum(isinstance(part, TextPart) for part in message.content)
    if run.result and texts == 1 and message.content == run.result.as_content():
        row |= {"call": call, "text": None, "doc": None}
    return row


def rows_of_record(run: RunRecord) -> Rows:
    """All rows of a run."""
    provider = run.model.partition(":")[0]
    rows: Rows = {"runs": [run_row(run)], "turns": [], "tool_runs": [], "messages": []}
    ends: dict[int, int] = {}
    for turn in run.turns:
        positions = run.message_range(turn)
        added = run.messages[positions.start : positions.stop]
        ends.update(dict.fromkeys(positions, turn_end_us(turn)))
        for table, added_rows in turn_rows(turn, added, provider, positions.start).items():
            rows[table] += added_rows
    n_first = _count_first_messages(run, run.messages[: min(ends, default=len(run.messages))])
    at = to_us(run.started_at)
    for position, message in enumerate(run.messages):
        at = ends.get(position, at)
        if position not in ends:
            is_first = position < max(n_first, len(run.copied))
            source = source_of_first(run, position) if is_first else "directive"
            rows["messages"].append(message_row(message, position, source, at))
    return rows | {"texts": text_rows(run.system_prompts, run.toolsets)}


def _count_first_messages(run: RunRecord, before_turns: Sequence[Message]) -> int:
    """Count the messages that the run began with, of those before its first turn."""
    n_with_prompt = (i + 1 for i, item in enumerate(before_turns) if item.text == run.prompt)
    n_default = 0 if run.kind == "resume" else len(before_turns)
    return max(n_with_prompt, default=len(before_turns) if run.workflow else n_default)


def source_of_first(run: RunRecord, position: int) -> str:
    """Return the source of a message that a run begins with."""
    if position < len(run.copied):
        return "copy"
    is_directive = run.workflow and run.messages[position].text.startswith(DIRECTIVE_STARTS)
    return "directive" if is_directive else "person"


def text_rows(prompts: Mapping[str, str], toolsets: Mapping[str, Sequence[ToolSpec]]) -> list[Row]:
    """Rows of system prompts and toolsets, by their hashes."""
    rows = [{"sha": sha, "kind": "system", "text": text} for sha, text in prompts.items()]
    for sha, tools in toolsets.items():
        text = dump_json([tool.model_dump() for tool in tools]).decode()
        rows.append({"sha": sha, "kind": "toolset", "text": text})
    return rows


def _non_empty(**values: Any) -> Row | None:
    """The values that are not empty, for `doc`: fields that few rows have; None without any."""
    return {name: value for name, value in values.items() if value} or None


def _call_body(call: ToolCall) -> Row:
    body: Row = {"id": call.id, "name": call.name, "arguments_raw": call.arguments_raw}
    if call.arguments != parse_arguments(call.arguments_raw):
        body["arguments"] = call.arguments
    return body if call.extra is None else {**body, "extra": call.extra}


# Rows to records


def record_from_rows(rows: Mapping[str, Sequence[Row]]) -> RunRecord:
    """Build a record from its rows; those of each table are sorted by turn and position."""
    rows = current_rows(rows)
    (run,) = rows["runs"]
    runs: dict[int, list[ToolRun]] = defaultdict(list)
    for row in rows["tool_runs"]:
        runs[row["turn"]].append(_tool_run(row))
    messages = {row["position"]: _message(row, runs) for row in rows["messages"]}
    turns = [_turn(row, run, messages, runs[row["turn"]]) for row in rows["turns"]]
    for row in rows.get("open", ()):
        turn = EngineTurn.model_validate(row["doc"])
        if turn.response is not None and turn.index not in [other.index for other in turns]:
            finished = {other.tool_call_id: other for other in runs[turn.index]}
            tool_runs = tuple(finished.get(other.tool_call_id, other) for other in turn.tool_runs)
            turns.append(turn.model_copy(update={"tool_runs": tool_runs}))
            messages[max(messages, default=-1) + 1] = turn.response.message
    fields: Row = {
        **_run_fields(run),
        "messages": tuple(messages[position] for position in sorted(messages) if position >= 0),
        "turns": tuple(turns),
        "system_prompts": {
            row["sha"]: row["text"] for row in rows["texts"] if row["kind"] == "system"
        },
        "toolsets": {
            row["sha"]: load_json(row["text"]) for row in rows["texts"] if row["kind"] == "toolset"
        },
    }
    return RunRecord.model_validate(fields)


def summary_from_rows(run: Row, turns: Sequence[Row], text: str) -> RunSummary:
    """Build the summary of an ended run from its row, those of its turns, and its last answer."""
    run = current_row("runs", run)
    last = turns[-1] if turns else Row()
    sources = [row["source"] for row in turns if row.get("source") in ("hit", "replay")]
    recorded_usd = recorded_cost((row.get("source", ""), row.get("saved_usd")) for row in turns)
    fields: Row = {
        **_run_fields(run),
        **{name: run[name] for name in ("turns", "tool_calls", "tool_errors") if name in run},
        "text": text[:SUMMARY_CHARS],
        "tokens_by_turn": [row["total_tokens"] for row in turns if "total_tokens" in row],
        "last_node": last.get("node"),
        "last_agent": last.get("agent"),
        "replayed": sources[0] if sources else None,
        "recorded_usd": recorded_usd,
    }
    return RunSummary.model_validate(fields)


def _run_fields(run: Row) -> Row:
    """The fields that the record and the summary of a run share; further ones are ignored."""
    fields = fields_of("runs", run)
    if "batch" not in run:
        fields.pop("case", None)
    return fields


def _turn(
    row: Row, run: Row, messages: Mapping[int, Message], runs: Sequence[ToolRun]
) -> EngineTurn:
    fields = fields_of("turns", row)
    model = row["model"].removeprefix(run["model"].partition(":")[0] + ":")
    response = fields.pop("response", {})
    if "message_at" in row:
        fields["response"] = {**response, "message": messages[row["message_at"]]}
    return EngineTurn.model_validate(
        {
            **fields,
            "id": turn_id(row["turn"]),
            "run_id": run["run_id"],
            "request": {**fields.get("request", {}), "model": model},
            "tool_runs": tuple(runs),
        }
    )


def _tool_run(row: Row) -> ToolRun:
    fields = fields_of("tool_runs", row)
    if "result" in row:
        fields["result"] = {**row["result"], **fields.get("result", {})}
    return ToolRun.model_validate(fields)


def _message(row: Row, runs: Mapping[int, list[ToolRun]]) -> Message:
    content: tuple[Part, ...] = (TextPart(text=row["text"]),) if row.get("text") else ()
    if "call" in row:
        call: int = row["call"]
        result = runs[row["turn"]][call].result
        content = result.as_content() if result else ()
    calls: list[Row] = [
        {"arguments": parse_arguments(call_body["arguments_raw"]), **call_body}
        for call_body in row.get("tool_calls", ())
    ]
    fields: Row = {**row, "content": content, "name": row.get("tool_name"), "tool_calls": calls}
    return Message.model_validate(fields | row.get("doc", {}))


# A saved notebook


def to_notebook_json(run: RunRecord) -> Row:
    """Encode a run for the metadata of a saved notebook; None values are left out.

    JSON values are texts, as in the store: Jupyter sorts the keys of objects when it saves.
    """
    document: Row = {"version": VERSION, "oldest_reader": OLDEST_READER}
    for table, rows in rows_of_record(run).items():
        cells = [zip(TABLE_COLUMNS[table], encode_row(table, row), strict=True) for row in rows]
        document[table] = [
            {name: cell_text(cell) for name, cell in row if cell is not None} for row in cells
        ]
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        # A lone surrogate is not valid UTF-8, so Jupyter could not send it to a front end.
        return {"escaped": json.dumps(document)}
    return document


def to_notebook_line(run: RunRecord) -> Row:
    """Encode a run as one line of a saved notebook, in the form for escaped records.

    A record has dozens of times and ids; each on a line of its own would fill every diff.
    """
    document = to_notebook_json(run)
    if "escaped" in document:
        return document
    return {"escaped": json.dumps(document, ensure_ascii=False, separators=(",", ":"))}


def run_reference(run_id: str) -> Row:
    """Refer to a run in the metadata of a notebook that may be saved before its record exists."""
    return {"version": VERSION, "oldest_reader": OLDEST_READER, "runs": [{"run_id": run_id}]}


def is_run_reference(document: Any) -> bool:
    """True if a saved document names a run and holds no record."""
    runs = (json_object(document) or {}).get("runs")
    rows = cast("list[Any]", runs) if isinstance(runs, list) else []
    return len(rows) == 1 and [*(json_object(rows[0]) or {})] == ["run_id"]


def all_from_notebook_json(saved: Any) -> list[RunRecord]:
    """Decode the records of an output: one document, or a list of them. References are skipped.

    Raises:
        ValueError: see `from_notebook_json`.
    """
    documents = cast("list[Any]", saved) if isinstance(saved, list) else [saved]
    return [
        from_notebook_json(document) for document in documents if not is_run_reference(document)
    ]


def saved_run_ids(saved: Any) -> Iterator[str]:
    """Ids of the records of an output, without decoding them; nothing for what is no record."""
    for document in cast("list[Any]", saved) if isinstance(saved, list) else [saved]:
        with suppress(*CORRUPT_ROW):
            escaped = document.get("escaped")
            (run,) = (document if escaped is None else json.loads(escaped))["runs"]
            if isinstance(run["run_id"], str):
                yield run["run_id"]


def from_notebook_json(document: Any) -> RunRecord:
    """Decode a record from `to_notebook_json`.

    Raises:
        ValueError: it is not such a document, or of another version of nbagent.
    """
    try:
        if "escaped" in document:
            document = json.loads(document["escaped"])
        version = document["version"]
        if document.get("oldest_reader", version) > VERSION:
            raise ValueError(
                f"the record was saved by a newer nbagent (version {version} of records; this one "
                f"reads up to {VERSION}); upgrade nbagent"
            )
        if version < OLDEST_SAVED_VERSION:
            raise ValueError("the record was saved by a very old nbagent; run it again")
        tables = {name: document[name] for name in document if name in TABLE_COLUMNS}
        for name, rows in tables.items():
            tables[name] = [decode_row(name, [*row], [*row.values()]) for row in rows]
        return record_from_rows(tables)
    except (LookupError, TypeError, AttributeError, OverflowError):
        raise ValueError("this is not a saved record") from None
