"""The tables of the store as data: each column once, with its dtype, its field and its meaning.

A declaration serves CREATE, ALTER TABLE, writing, reading, frames and their documentation. Fields
of a record without a column are stored in `doc`, as one JSON document that the model reads.

To add a column, declare it with `since` = VERSION + 1: VERSION follows, and stores of earlier
versions get the column when they are opened (`migrations`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

APPLICATION_ID = 0x6E626167
"""`nbag` in ASCII: marks our file among SQLite databases."""
OLDEST_VERSION = 6
"""Oldest version that is migrated. Versions 1 to 5 were never released."""
OLDEST_READER = 7
"""Oldest version whose code reads the stores of this version. Added columns and another key of a
table do not raise it, except a column for a field that earlier versions read in `doc`: they would
not find it there."""
STORE_ID = "store id"
"""Fact: the id that the person's entry of the folder has, too (`settings.trust`)."""
LAST_FOREIGN_RUN = "last foreign run"
"""Fact: number of the newest run that was there when the store was taken over."""
OLDEST_SAVED_VERSION = 5
"""Oldest version of the records in saved notebooks that is read. Version 6 only added columns."""
CORRUPT_ROW = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Exceptions of reading a row that was changed from outside or damaged."""

Dtype = Literal["string", "Int64", "Float64", "boolean", "category", "datetime64[us, UTC]"]
TIMESTAMP: Dtype = "datetime64[us, UTC]"
"""Tables store microseconds since 1970, UTC."""


COMPUTED = "-"
"""`path` of a cell that is computed from the record: it is not read back into one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table, of a frame, or of both."""

    name: str
    dtype: Dtype = "string"
    doc: str = ""
    """Meaning of a cell, for the documentation of frames."""
    path: str = ""
    """Field of the record that a cell holds (`case.batch`); empty: the field of its name."""
    sql: str = ""
    """SQL of a frame's column that is no stored cell of the frame's own table."""
    since: int = OLDEST_VERSION
    """Version of the store that has the column first."""
    is_json: bool = False
    """A cell holds JSON; NULL for no value."""
    is_hash: bool = False
    """A cell is the number of a row in `hashes`. Rows of version 6 hold the hash itself."""
    is_optional: bool = False
    """An empty value is stored as NULL."""
    in_frame: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table: its columns, and its primary key as the end of CREATE TABLE."""

    columns: tuple[Column, ...]
    key: str
    since: int = OLDEST_VERSION
    key_since: int = OLDEST_VERSION
    """Version that has this key first: earlier tables are rewritten (`schema`)."""
    earlier_key: str = ""
    """The key of earlier versions, if it was another one."""
    by_name: dict[str, Column] = field(init=False)

    def __post_init__(self) -> None:
        stored = {column.name: column for column in self.columns if not column.sql}
        object.__setattr__(self, "by_name", stored)


def _text(name: str, doc: str = "", *, path: str = "", sql: str = "", since: int = 6) -> Column:
    return Column(name=name, doc=doc, path=path, sql=sql, since=since)


def _json(
    name: str, doc: str = "", *, path: str = "", sql: str = "", is_optional: bool = False
) -> Column:
    return Column(name=name, doc=doc, path=path, sql=sql, is_json=True, is_optional=is_optional)


def _word(
    name: str, doc: str = "", *, path: str = "", sql: str = "", is_optional: bool = False
) -> Column:
    """Column of a word that many rows share."""
    return Column(name=name, dtype="category", doc=doc, path=path, sql=sql, is_optional=is_optional)


def _count(name: str, doc: str = "", *, path: str = "", sql: str = "") -> Column:
    return Column(name=name, dtype="Int64", doc=doc, path=path, sql=sql)


def _number(name: str, doc: str = "", *, path: str = "", is_optional: bool = False) -> Column:
    return Column(name=name, dtype="Float64", doc=doc, path=path, is_optional=is_optional)


def _flag(name: str, doc: str = "", *, path: str = "", sql: str = "") -> Column:
    return Column(name=name, dtype="boolean", doc=doc, path=path, sql=sql)


def _time(name: str, doc: str = "", *, path: str = "") -> Column:
    return Column(name=name, dtype=TIMESTAMP, doc=doc, path=path)


def _hash(name: str, doc: str = "", *, path: str = "") -> Column:
    return Column(name=name, dtype="category", doc=doc, path=path, is_hash=True, is_optional=True)


def _internal(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, path=COMPUTED, in_frame=False) for name in names)


RUN_ID = _text("run_id", "run: 16 hex digits, to join frames", sql="r.run_id")
SESSION = _word("session", "session of the run", sql="r.session")
BATCH = _word("batch", "batch of the run; missing for other runs", sql="r.batch")
TURN_ID = _text(
    "turn_id",
    "turn: C01, C02, …, counted in the conversation",
    sql="CASE WHEN x.turn > 0 THEN printf('C%02d', x.turn) END",
)
PROVIDER = _word(
    "provider",
    "part of `model` before the colon",
    sql="substr(x.model, 1, instr(x.model, ':') - 1)",
)


def hash_sql(cell: str) -> str:
    """SQL of the hash in a cell, which is a number in `hashes`, or the hash itself in a row of
    version 6."""
    return f"coalesce((SELECT h.sha FROM hashes h WHERE h.n = {cell}), {cell})"


def json_text_sql(document: str, path: str) -> str:
    """SQL of a text in a JSON document, at a path that is SQL, too."""
    text = f"CAST(json_extract({document}, {path}) AS TEXT)"
    # A model may write half a surrogate pair, which SQLite cannot return as text: read it as bytes.
    return f"CASE WHEN instr({document}, '\\ud') THEN CAST({text} AS BLOB) ELSE {text} END"


_ATTEMPT_STATUSES = json_text_sql("x.doc", "'$.attempt_statuses'")
_PARENT_OF_LINE = "FROM line JOIN runs p ON p.run_id = line.parent_id AND p.n < line.n"
"""A run is stored after its parent; in a stranger's store one may be its own ancestor."""
DEPTH = Column(
    name="depth",
    dtype="Int64",
    doc="number of runs that it continues, one after the other; 0: it continues none",
    sql="CASE WHEN x.parent_id IS NULL THEN 0 ELSE (WITH RECURSIVE line(n, parent_id) AS ("
    f"SELECT x.n, x.parent_id UNION ALL SELECT p.n, p.parent_id {_PARENT_OF_LINE}) "
    "SELECT count(line.parent_id) FROM line) END",
)
PROMPT_BEFORE = (
    "coalesce((SELECT p.prompt_tokens FROM turns p WHERE p.run = x.run AND p.turn < x.turn "
    "AND p.prompt_tokens IS NOT NULL ORDER BY p.turn DESC LIMIT 1), "
    "CASE WHEN r.parent_id IS NOT NULL THEN (WITH RECURSIVE line(n, parent_id, bound) AS ("
    "SELECT r.n, r.parent_id, x.turn UNION ALL SELECT p.n, p.parent_id, min(line.bound, "
    "coalesce((SELECT min(t.turn) FROM turns t WHERE t.run = line.n), line.bound)) "
    f"{_PARENT_OF_LINE}) SELECT p.prompt_tokens FROM line JOIN turns p ON p.run = line.n "
    "AND p.turn < line.bound AND p.prompt_tokens IS NOT NULL "
    "ORDER BY line.n DESC, p.turn DESC LIMIT 1) END, 0)"
)
"""SQL of the prompt tokens of the request before, in this run or in those that it continues."""
RESENT_TOKENS = Column(
    name="resent_tokens",
    dtype="Int64",
    doc="part of prompt_tokens that the request before had sent, too; at most its prompt_tokens",
    sql=f"min(x.prompt_tokens, {PROMPT_BEFORE})",
)
NEW_PROMPT_TOKENS = Column(
    name="new_prompt_tokens",
    dtype="Int64",
    doc="part of prompt_tokens that was sent for the first time: the other part",
    sql=f"x.prompt_tokens - {RESENT_TOKENS.sql}",
)
TOOLSET_TOKENS_EST = Column(
    name="toolset_tokens_est",
    dtype="Int64",
    doc="tokens of the tool definitions; estimate: 4 characters a token",
    sql="CASE WHEN x.toolset_sha IS NULL THEN 0 ELSE (SELECT (coalesce((SELECT sum("
    "length(json_extract(v.value, '$.name')) + length(json_extract(v.value, '$.description')) "
    "+ length(json_extract(v.value, '$.parameters'))) FROM json_each("
    "CASE WHEN json_valid(s.text) THEN s.text ELSE '[]' END) v), 0) + 3) / 4 "
    f"FROM texts s WHERE s.kind = 'toolset' AND s.sha = {hash_sql('x.toolset_sha')}) END",
)
RESULT_TOKENS_EST = Column(
    name="result_tokens_est",
    dtype="Int64",
    doc="estimate: 4 characters a token",
    sql="(length(x.result) + 3) / 4",
)


def _error_columns(of: str) -> tuple[Column, ...]:
    return (
        _word("error_code", f"code of the error of the {of}", path="error.code"),
        _text("error", "its message", path="error.message"),
    )


def _token_columns(path: str) -> tuple[Column, ...]:
    """Columns of usage; all missing if the server reported none."""
    return (
        _count("prompt_tokens", "tokens sent, cached ones included", path=f"{path}.prompt_tokens"),
        _count(
            "completion_tokens",
            "tokens of answers, with reasoning",
            path=f"{path}.completion_tokens",
        ),
        _count("total_tokens", "sum of both", path=f"{path}.total_tokens"),
        _count(
            "cached_tokens", "part of prompt_tokens read from a cache", path=f"{path}.cached_tokens"
        ),
        _count("reasoning_tokens", "part of completion_tokens", path=f"{path}.reasoning_tokens"),
    )


def _cache_write(path: str) -> Column:
    return Column(
        name="cache_write_tokens",
        dtype="Int64",
        path=f"{path}.cache_write_tokens",
        in_frame=False,
    )


TOKEN_COLUMNS = (*(column.name for column in _token_columns("usage")), "cache_write_tokens")

# `n`: number in the order of start. `lease_id`: the process at work on it; NULL after its end.
# `case_sha`: hash of everything that decides the answer of a batch case.
RUNS = (
    *_internal("n", "lease_id"),
    Column(name="shared_messages", in_frame=False),
    Column(name="case_sha", path="case.sha", in_frame=False),
    Column(name="kernel_id", since=7, in_frame=False),
    Column(name="file_id", since=7, in_frame=False),
    _cache_write("usage"),
    _text("run_id", "id: 16 hex digits, to join frames", path="id"),
    _word("session", "tree of runs that it belongs to"),
    _text("conversation_id", "run that began the conversation", path=COMPUTED),
    _text("root_id", "run that began the tree of continued and forked runs", path=COMPUTED),
    _text("parent_id", "run that it continues or forks"),
    DEPTH,
    _word("kind", "start, continue, resume or fork"),
    _text("forked_from", "turn of the parent that a fork repeats", path="forked_from.turn_id"),
    _text("name", "name given with --name"),
    _json("tags", "tags, as a JSON array"),
    _word("notebook", "file name of the notebook, if the front end reports it"),
    _text("cell_id", "id of the cell"),
    _count("execution_count", "number of the cell's execution"),
    _word("batch", "batch that it belongs to; missing for other runs", path="case.batch"),
    _text("row_key", "row of the batch's table", path="case.row_key"),
    _json("variant", "labels of the variant, as JSON", path="case.variant"),
    _count("attempt", "number of the repeat, from 1", path="case.attempt"),
    _text("template", "text of the cell before {{ expressions }} were evaluated"),
    _word("template_sha", "hash of the template, or of the prompt without one", path=COMPUTED),
    _text("prompt", "prompt as it was sent"),
    _text(
        "text",
        "last answer of the model",
        sql="(SELECT m.text FROM turns t JOIN messages m ON m.run = t.run AND "
        "m.position = t.message_at WHERE t.run = x.n AND m.text <> '' "
        "ORDER BY t.turn DESC LIMIT 1)",
    ),
    _flag(
        "ok",
        "true if it was answered or its workflow is complete; missing while it runs",
        sql="CASE WHEN x.phase <> 'Running' "
        "THEN coalesce(x.stop_reason IN ('answered', 'workflow_complete'), 0) END",
    ),
    _word("phase", "Running, WaitingUser, Completed or Failed"),
    _word("stop_reason", "why it ended or paused"),
    *_error_columns("run"),
    _word("agent", "agent of the workflow"),
    _word("workflow", "workflow that it works on", path="workflow.name"),
    PROVIDER,
    _word("server", "address of the model's server, if it was set", path="base_url"),
    _word("model", "provider:model"),
    _json("params", "parameters of the first request, as JSON", path=COMPUTED),
    _hash("system_sha", "system prompt of the last request", path=COMPUTED),
    _hash("toolset_sha", "toolset of the last request", path=COMPUTED),
    _count("turns", "number of turns", path=COMPUTED),
    _count("tool_calls", "number of tool calls", path=COMPUTED),
    _count("tool_errors", "number of tool calls that failed", path=COMPUTED),
    *_token_columns("usage"),
    _count("n_unpriced", "turns whose price is not known"),
    _number("cost_usd", "cost of the turns whose price is known"),
    _time("started_at", "start, in UTC"),
    _time("ended_at", "end, in UTC"),
    _number("duration_ms", "time from start to end"),
    _number("model_ms", "time in which the model answered", path=COMPUTED),
    _number("tools_ms", "time in which tools ran; parallel calls count once", path=COMPUTED),
    _number("waited_ms", "time waited for a person", path=COMPUTED),
    _number("retry_wait_ms", "time waited between attempts", path=COMPUTED),
    _word("nbagent_version", "version of nbagent"),
)
# Long texts are stored in `messages`, so that a scan of all turns reads few pages.
# `message_at`: position of the response; NULL if there was none.
TURNS = (
    *_internal("run", "message_at"),
    _cache_write("response.usage"),
    RUN_ID,
    TURN_ID,
    _count("turn", "number of the turn in its conversation", path="index"),
    SESSION,
    BATCH,
    PROVIDER,
    _word("server", "address of the model's server, if it was set", sql="r.server"),
    _word("model", "provider:model that was asked", path=COMPUTED),
    _word(
        "served_model", "model as the server reports it", path="response.model", is_optional=True
    ),
    _word("workflow", "workflow of the run", sql="r.workflow"),
    _word("agent", "agent at work"),
    _word("node", "step of the workflow"),
    _flag("ok", "true without an error", sql="x.error_code IS NULL"),
    _word("phase_before", "phase before the turn"),
    _word("phase_after", "phase after it"),
    _word("stop_reason", "why the run ended or paused after it"),
    _word("finish_reason", "why the model stopped", path="response.finish_reason"),
    *_error_columns("turn"),
    _text("text", "answer of the model", sql="m.text"),
    _text("reasoning", "reasoning of the model, if it was sent", sql="m.reasoning"),
    _count("attempts", "requests that were sent for it"),
    _text(
        "attempt_statuses",
        "status of each failed attempt, as 429,503; a code where no status came",
        sql="CASE WHEN instr(x.doc, 'attempt_statuses') AND json_valid(x.doc) "
        f"THEN {_ATTEMPT_STATUSES} END",
    ),
    _number("retry_wait_ms", "time waited between attempts"),
    _word(
        "source", "live, hit (cache), replay (recording) or offline", path="response.meta.source"
    ),
    _count("n_messages", "messages in the request", path="request.n_messages"),
    _count("n_new", "messages that the turn before did not send", path="request.n_new"),
    _count("tool_calls", "tool calls in the answer", path=COMPUTED),
    *_token_columns("response.usage"),
    RESENT_TOKENS,
    NEW_PROMPT_TOKENS,
    TOOLSET_TOKENS_EST,
    _number("cost_usd", "cost; missing if the price is not known"),
    _number("cost_input_usd", "part for prompt tokens that were not cached"),
    _number("cost_cached_usd", "part for tokens read from or written to a cache"),
    _number("cost_output_usd", "part for the answer"),
    _number("saved_usd", "additional cost without the cache or the recording"),
    _number("ttft_ms", "time to the first token"),
    _number("model_ms", "time from the request to the end of the answer"),
    _number("tools_ms", "time in which its tools ran; parallel calls count once", path=COMPUTED),
    _number("waited_ms", "time waited for a person", path=COMPUTED),
    _number("duration_ms", "time from its start to its end"),
    _time("started_at", "start, in UTC"),
    _json(
        "dropped_params",
        "parameters that the server refused, as a JSON array",
        path="response.meta.dropped_params",
        is_optional=True,
    ),
    _count("trimmed", "number of older results that were sent trimmed", path=COMPUTED),
    _hash("system_sha", "system prompt; text in nbagent.prompts()", path="request.system_sha"),
    _hash("toolset_sha", "toolset that the model was shown", path="request.toolset_sha"),
)
TOOL_RUNS = (
    *_internal("run"),
    RUN_ID,
    TURN_ID,
    _count("turn", "number of the turn in its conversation", path=COMPUTED),
    _text("tool_call_id", "id of the call"),
    _count("position", "index of the call in its answer, from 0", path=COMPUTED),
    SESSION,
    BATCH,
    _word("model", "provider:model that made the call", path=COMPUTED),
    _word("workflow", "workflow of the run", sql="r.workflow"),
    _word("agent", "agent at work", sql="t.agent"),
    _word("node", "step of the workflow", sql="t.node"),
    _word("host", "source of the tool: functions, filesystem, mcp:NAME", is_optional=True),
    _word("tool_name", "name of the tool"),
    _flag("ok", "true if it gave data, false if an error", path=COMPUTED),
    _word("error_code", "code of its error", path=COMPUTED),
    _text("error", "message of its error", path=COMPUTED),
    _json("args", "arguments that were used, as JSON; see nbagent.expand"),
    _text("args_sha", "hash of the arguments: equal for equal calls", path=COMPUTED),
    _json("asked_args", "arguments that the model wrote, if a person changed them"),
    _text("reason", "reason that the person or the rule gave"),
    _json("result", "result that the model was given, as JSON", path=COMPUTED),
    _count("result_chars", "length of the result", sql="length(x.result)"),
    RESULT_TOKENS_EST,
    _flag("truncated", "true if the result was cut to its budget"),
    _json("notes", "remarks for the person, as a JSON array", is_optional=True),
    _word("approval", "allowed, denied or edited; missing if no approval was needed"),
    _word("approved_by", "person, callback, session, policy or nobody"),
    _flag(
        "edited",
        "true if a person changed the arguments",
        sql="coalesce(x.approval, '') = 'edited'",
    ),
    _number("waited_ms", "time waited for a person"),
    _time("queued_at", "time at which the model asked for it"),
    _time("started_at", "start; missing if it never started"),
    _number("duration_ms", "time from start to end", is_optional=True),
    _word("ran_in", "thread or loop in which it ran"),
    _word("isolation", "isolation of a script"),
    _count("repeat_n", "how often this call was made in the run so far"),
    _hash("tool_sha", "hash of the tool's definition"),
)
# `position`: in its own run, from 0; below 0 for responses outside of the conversation.
# `turn`: the turn that added it. `call`: position of the tool run whose result is its content, so
# that a result is stored once.
MESSAGES = (
    *_internal("run", "turn", "call"),
    RUN_ID,
    _count("position", "place in the conversation, from 0; -1: system prompt", path=COMPUTED),
    TURN_ID,
    _word("role", "system, user, assistant or tool"),
    _word("source", "person, model, tool, directive, copy or system", path=COMPUTED),
    _text("text", "text of the message", path=COMPUTED),
    _text("reasoning", "reasoning of the model, if it was sent"),
    _json("tool_calls", "tool calls, as a JSON array"),
    _text("tool_call_id", "call that a tool message answers"),
    _word("tool_name", "tool that a tool message comes from", path="name"),
    _count("chars", "length of the text", path=COMPUTED),
    _flag("has_image", "true if it has an image", path=COMPUTED),
    _time("at", "time, in UTC", path=COMPUTED),
)
SCORES = (
    *_internal("run", "scored_by"),
    RUN_ID,
    BATCH,
    _text("row_key", "row of the batch's table", sql="r.row_key"),
    _json("variant", "labels of the variant, as JSON", sql="r.variant"),
    _count("attempt", "number of the repeat, from 1", sql="r.attempt"),
    _word("model", "provider:model of the run", sql="r.model"),
    _word("scorer", "name of the scorer"),
    _count("version", "version of the scorer"),
    _word("kind", "bool, number or label"),
    _number("value", "number, or 1 and 0 for true and false"),
    _word("label", "label"),
    _text("reason", "reason that was given"),
    # `by` is a keyword of SQL, so the table's column is `scored_by`.
    _word("by", "function, a person's name, or the model of a judge", sql="x.scored_by"),
    _text("error", "error of the scorer"),
    _time("at", "time, in UTC"),
    _text("judge_run_id", "run in which a model judged"),
)
_DOC = Column(name="doc", is_json=True, in_frame=False)


def _plain(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name=name, is_json=name == "doc", in_frame=False) for name in names)


TABLES = {
    "runs": Table(columns=(*RUNS, _DOC), key=")"),
    "turns": Table(columns=(*TURNS, _DOC), key=", PRIMARY KEY(run, turn)) WITHOUT ROWID"),
    "tool_runs": Table(columns=(*TOOL_RUNS, _DOC), key=", PRIMARY KEY(run, turn, position))"),
    "messages": Table(columns=(*MESSAGES, _DOC), key=", PRIMARY KEY(run, position))"),
    # With the author in the key: several people label one answer.
    "scores": Table(
        columns=(*SCORES, _DOC),
        key=", PRIMARY KEY(run, scorer, version, scored_by)) WITHOUT ROWID",
        key_since=8,
        earlier_key=", PRIMARY KEY(run, scorer, version)) WITHOUT ROWID",
    ),
    # The data of a batch as JSON, and the process at work on it.
    "batches": Table(columns=_plain("name", "lease_id", "doc"), key=", PRIMARY KEY(name))"),
    # System prompts, and toolsets as JSON, each stored once: most turns of a run repeat them.
    "texts": Table(columns=_plain("sha", "kind", "text"), key=", PRIMARY KEY(sha))"),
    # The turn of a run at work whose calls have begun, as JSON: one row before the tools run,
    # instead of rows in several tables. The end of the turn writes those and ends this row.
    "open": Table(columns=_plain("run", "doc"), key=", PRIMARY KEY(run))"),
    # One row for each process that may have runs at work.
    "leases": Table(
        columns=_plain("id", "pid", "pid_started", "boot_id", "host", "heartbeat"),
        key=", PRIMARY KEY(id))",
    ),
    # Each hash once: a turn has three of them, and 64 digits in every row were a tenth of a store.
    "hashes": Table(columns=_plain("n", "sha"), key=", UNIQUE(sha))", since=7),
    # Templates and system prompts with the times of their first and last use. Without this table a
    # list of them would scan all turns.
    "prompts": Table(
        columns=_plain("kind", "sha", "first_seen", "last_seen"),
        key=", PRIMARY KEY(kind, sha)) WITHOUT ROWID",
        since=7,
    ),
    # Work on older rows that is done in slices (`migrations`): what is left of it.
    "upkeep": Table(columns=_plain("task", "position"), key=", PRIMARY KEY(task))", since=7),
    # Deleted runs whose other rows are deleted in slices.
    "forgotten": Table(columns=_plain("run"), key=", PRIMARY KEY(run))", since=7),
    # The index for text search (`text_index`). `token`: the process that is making a block.
    "grams": Table(
        columns=_plain("block", "gram", "runs"),
        key=", PRIMARY KEY(block, gram)) WITHOUT ROWID",
        since=7,
    ),
    "blocks": Table(columns=_plain("block", "token"), key=", PRIMARY KEY(block))", since=7),
    # Facts about the file: the oldest version of nbagent that reads it.
    "facts": Table(columns=_plain("name", "value"), key=", PRIMARY KEY(name))", since=7),
}
"""All tables by name."""
TABLE_COLUMNS = {name: tuple(table.by_name) for name, table in TABLES.items()}
"""Columns of each table."""
TABLES_OF_RUN = tuple(
    name for name, table in TABLES.items() if "run" in table.by_name and name != "forgotten"
)
"""Tables whose rows belong to a run: they are deleted with it."""


# `run` needs the type of `runs.n`: with another affinity SQLite does not use the key for
# `run = runs.n`, and loading a run would scan all rows. All other columns have no type.
_TYPES = {"n": " INTEGER PRIMARY KEY", "run": " INTEGER"}


def create_table(name: str, *, earlier_key: bool = False) -> str:
    """SQL statement that creates a table, or one with the key that it had before."""
    table = TABLES[name]
    columns = ", ".join(column + _TYPES.get(column, "") for column in table.by_name)
    return f"CREATE TABLE {name}({columns}{table.earlier_key if earlier_key else table.key}"


VERSION = max(
    *(max(table.since, table.key_since) for table in TABLES.values()),
    *(column.since for table in TABLES.values() for column in table.columns),
)
"""Version of the tables."""


def changed_keys(version: int) -> list[str]:
    """Tables of earlier versions whose key a version changed."""
    return [name for name, table in TABLES.items() if table.key_since == version > table.since]


def added_columns(version: int) -> list[tuple[str, str]]:
    """Columns that a version added to tables of earlier versions, as (table, column)."""
    return [
        (name, column.name)
        for name, table in TABLES.items()
        for column in table.by_name.values()
        if column.since == version > table.since
    ]
