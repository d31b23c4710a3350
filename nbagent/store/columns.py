"""Frames and the tables behind them, as data. Imports neither SQLite nor pandas.

A column of a frame is the table's column of the same name, or an SQL expression; its dtype follows
from its name. Tables never change within a VERSION: a store of an earlier version is set aside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from nbagent.contracts.approval import Approval
from nbagent.contracts.errors import ErrorCode
from nbagent.contracts.messages import Role
from nbagent.contracts.model import FinishReason
from nbagent.contracts.records import Phase, RanIn
from nbagent.contracts.stop_reasons import StopReason

APPLICATION_ID = 0x6E626167
"""`nbag` in ASCII: marks our file among SQLite databases."""
VERSION = 6
"""Version of the tables. Earlier versions of nbagent wrote 1 to 5."""
CORRUPT_ROW = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
"""Exceptions of reading a row that was changed from outside or damaged."""

Dtype = Literal["string", "Int64", "Float64", "boolean", "category", "datetime64[us, UTC]"]
TIMESTAMP: Dtype = "datetime64[us, UTC]"
"""Tables store microseconds since 1970, UTC."""
TOKEN_COLUMNS = (
    *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens"),
    "cache_write_tokens",
)
"""All NULL if the server reported no usage."""
_BOOLEAN_COLUMNS = frozenset(("ok", "truncated", "edited", "has_image", "accepted"))
_INTEGER_COLUMNS = frozenset(
    (
        *("execution_count", "turns", "turn", "tool_calls", "tool_errors", "n_unpriced"),
        *("attempts", "n_messages", "n_new", "trimmed", "position", "result_chars"),
        *("result_tokens_est", "repeat_n", "chars", "runs", "attempt", "version", *TOKEN_COLUMNS),
    )
)
_CATEGORY_COLUMNS = frozenset(
    (
        *("session", "kind", "notebook", "phase", "phase_before", "phase_after", "stop_reason"),
        *("finish_reason", "error_code", "agent", "workflow", "node", "provider", "server"),
        *("model", "served_model", "source", "host", "tool_name", "role", "approval"),
        *("approved_by", "ran_in", "isolation", "template_sha", "system_sha", "toolset_sha"),
        *("tool_sha", "nbagent_version", "from_node", "to_node", "label"),
        *("batch", "scorer", "by"),
    )
)
KNOWN_VALUES: dict[str, tuple[str, ...]] = {
    "error_code": get_args(ErrorCode),
    "finish_reason": get_args(FinishReason),
    "stop_reason": get_args(StopReason),
    **dict.fromkeys(("phase", "phase_before", "phase_after"), get_args(Phase)),
    "approval": get_args(Approval),
    "ran_in": get_args(RanIn),
    "role": get_args(Role),
}
"""Values that a filter accepts even if no row has them."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Definition of a frame as an SQL query. Its own row has the alias `x`, its run's row `r`."""

    columns: tuple[str, ...]
    source: str
    order: str
    time_column: str
    """SQL of the time for `since` and `until`; never NULL."""
    run_number: str = "x.run"
    """SQL of the number of the row's run."""
    expressions: dict[str, str] = field(default_factory=dict[str, str])
    """SQL of columns that are not the column of the same name in `x`."""
    json_columns: tuple[str, ...] = ("doc",)
    """Columns with JSON; NULL for no value. `doc` has the fields that no frame shows."""
    internal_columns: tuple[str, ...] = ()
    """Columns of the table that the frame does not show."""

    @property
    def table_columns(self) -> tuple[str, ...]:
        """Columns of its table."""
        own = (column for column in self.columns if column not in self.expressions)
        return (*self.internal_columns, *own, "doc")

    def expression(self, name: str) -> str:
        """SQL expression of a column."""
        return self.expressions.get(name, f"x.{name}")

    def dtype(self, name: str) -> Dtype:
        """Dtype of a column, by its name."""
        if name in self.json_columns:
            return "string"
        if name in _INTEGER_COLUMNS:
            return "Int64"
        if name in _BOOLEAN_COLUMNS:
            return "boolean"
        if name in _CATEGORY_COLUMNS:
            return "category"
        if name.endswith(("_ms", "_usd")) or name == "value":
            return "Float64"
        return TIMESTAMP if name.endswith(("_at", "_seen")) or name == "at" else "string"


_TURN_ID_COLUMN = {"turn_id": "CASE WHEN x.turn > 0 THEN printf('C%02d', x.turn) END"}
_RUN_COLUMNS = {"run_id": "r.run_id", "session": "r.session", "batch": "r.batch"}
_CASE_COLUMNS = {name: f"r.{name}" for name in ("batch", "row_key", "variant", "attempt")}
_PROVIDER_COLUMN = {"provider": "substr(x.model, 1, instr(x.model, ':') - 1)"}
_LAST_ANSWER = (
    "(SELECT m.text FROM turns t JOIN messages m ON m.run = t.run AND m.position = t.message_at "
    "WHERE t.run = x.n AND m.text <> '' ORDER BY t.turn DESC LIMIT 1)"
)
_MESSAGES = """(
    SELECT m.run, m.position + s.shared_messages AS position, m.turn, m.role, m.source,
        coalesce(m.text, (SELECT c.result FROM tool_runs c
            WHERE c.run = m.run AND c.turn = m.turn AND c.position = m.call)) AS text,
        m.reasoning, m.tool_calls, m.tool_call_id, m.tool_name, m.chars, m.has_image, m.at
    FROM messages m JOIN runs s ON s.n = m.run WHERE m.position >= 0
    UNION ALL
    SELECT t.run, -1, min(t.turn), 'system', 'system', s.text, NULL, NULL, NULL, NULL,
        length(s.text), 0, t.started_at
    FROM turns t JOIN texts s ON s.sha = t.system_sha GROUP BY t.run, t.system_sha
) x JOIN runs r ON r.n = x.run"""
_PROMPTS = """(
    SELECT template_sha AS sha, 'template' AS kind, coalesce(template, prompt) AS text,
        min(started_at) AS first_seen, max(started_at) AS last_seen, count(*) AS runs
    FROM runs WHERE template_sha IS NOT NULL GROUP BY template_sha
    UNION ALL
    SELECT s.sha, 'system', s.text, min(t.started_at), max(t.started_at), count(DISTINCT t.run)
    FROM turns t JOIN texts s ON s.sha = t.system_sha GROUP BY s.sha
) x"""
_TARGET_NODE = '."currentNodeId.set"'
_TRANSITIONS = f"""(
    SELECT run, turn, position, tool_call_id, ok, error_code, error, workflow, at, agent, node, cut,
        CAST(CASE WHEN cut THEN args ELSE result END AS TEXT) AS body,
        CASE WHEN cut THEN '$.update' WHEN ok THEN '$.data.transition'
            ELSE '$.error.details.transition' END AS place
    FROM (
        SELECT c.*, w.workflow, t.node, coalesce(t.agent, w.agent) AS agent,
            coalesce(c.queued_at, c.started_at, w.started_at) AS at,
            c.error_code IS 'E_INTERRUPTED' AND c.started_at IS NOT NULL AS cut
        FROM tool_runs c JOIN runs w ON w.n = c.run
        LEFT JOIN turns t ON t.run = c.run AND t.turn = c.turn
        WHERE w.workflow IS NOT NULL AND c.tool_name = 'fs.apply_patch' AND c.host = 'fs'
    )
) x JOIN runs r ON r.n = x.run
    AND CASE WHEN json_valid(x.body) THEN json_type(x.body, x.place) END = 'object'
    AND (NOT x.cut OR json_type(x.body, x.place || '{_TARGET_NODE}') = 'text')"""
"""Patches of documents that moved a workflow to its next step, or tried to. If the kernel died
during the patch (`cut`), only its arguments are known, so the target is read from them."""
LINEAGE = """
    WITH RECURSIVE line(n, parent_id, shared, end) AS (
        SELECT n, parent_id, shared_messages, 1 << 60 FROM runs WHERE run_id = ?
        UNION ALL
        SELECT p.n, p.parent_id, p.shared_messages, min(line.end, line.shared)
        FROM line JOIN runs p ON p.run_id = line.parent_id
    ) SELECT n, end FROM line"""
"""Numbers of a run and its ancestors, newest first, each with the absolute end of its part of the
conversation."""


def _transition_field(key: str) -> str:
    text = f"CAST(json_extract(x.body, x.place || '{key}') AS TEXT)"
    # A model may write half a surrogate pair, which SQLite cannot return as text: read it as bytes.
    return f"CASE WHEN instr(x.body, '\\ud') THEN CAST({text} AS BLOB) ELSE {text} END"


FRAMES = {
    "runs": Frame(
        columns=(
            *("run_id", "session", "conversation_id", "root_id", "parent_id", "kind"),
            *("forked_from", "name", "tags", "notebook", "cell_id", "execution_count"),
            *("batch", "row_key", "variant", "attempt"),
            *("template", "template_sha", "prompt", "text", "ok", "phase", "stop_reason"),
            *("error_code", "error", "agent", "workflow", "provider", "server", "model", "params"),
            *("system_sha", "toolset_sha", "turns", "tool_calls", "tool_errors"),
            *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"),
            *("reasoning_tokens", "n_unpriced", "cost_usd", "started_at", "ended_at"),
            *("duration_ms", "model_ms", "tools_ms", "waited_ms", "retry_wait_ms"),
            "nbagent_version",
        ),
        source="runs x",
        order="x.n",
        time_column="x.started_at",
        run_number="x.n",
        expressions={
            **_PROVIDER_COLUMN,
            "text": _LAST_ANSWER,
            "ok": "CASE WHEN x.phase <> 'Running' "
            "THEN coalesce(x.stop_reason IN ('answered', 'workflow_complete'), 0) END",
        },
        json_columns=("tags", "params", "variant", "doc"),
        # `n`: number in the order of start. `lease_id`: the process at work on it; NULL after its
        # end. `case_sha`: hash of everything that decides the answer of a batch case.
        internal_columns=("n", "shared_messages", "cache_write_tokens", "lease_id", "case_sha"),
    ),
    # Long texts are stored in `messages`, so that a scan of all turns reads few pages.
    "turns": Frame(
        columns=(
            *("run_id", "turn_id", "turn", "session", "batch", "provider", "server", "model"),
            *("served_model", "workflow", "agent", "node", "ok", "phase_before", "phase_after"),
            *("stop_reason", "finish_reason", "error_code", "error", "text", "reasoning"),
            *("attempts", "retry_wait_ms", "source", "n_messages", "n_new", "tool_calls"),
            *("prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"),
            *("reasoning_tokens", "cost_usd", "cost_input_usd", "cost_cached_usd"),
            *("cost_output_usd", "saved_usd", "ttft_ms", "model_ms", "tools_ms", "waited_ms"),
            *("duration_ms", "started_at", "dropped_params", "trimmed", "system_sha"),
            "toolset_sha",
        ),
        source="turns x JOIN runs r ON r.n = x.run "
        "LEFT JOIN messages m ON m.run = x.run AND m.position = x.message_at",
        order="x.run, x.turn",
        time_column="x.started_at",
        expressions={
            **_RUN_COLUMNS,
            **_TURN_ID_COLUMN,
            **_PROVIDER_COLUMN,
            "server": "r.server",
            "workflow": "r.workflow",
            "ok": "x.error_code IS NULL",
            "text": "m.text",
            "reasoning": "m.reasoning",
        },
        json_columns=("dropped_params", "doc"),
        # `message_at`: position of its response; NULL if there was none.
        internal_columns=("run", "message_at", "cache_write_tokens"),
    ),
    "tool_runs": Frame(
        columns=(
            *("run_id", "turn_id", "turn", "tool_call_id", "position", "session", "batch", "model"),
            *("workflow", "agent", "node"),
            *("host", "tool_name", "ok", "error_code", "error", "args", "args_sha", "asked_args"),
            *("reason", "result", "result_chars", "result_tokens_est", "truncated", "notes"),
            *("approval", "approved_by", "edited", "waited_ms", "queued_at", "started_at"),
            *("duration_ms", "ran_in", "isolation", "repeat_n", "tool_sha"),
        ),
        source="tool_runs x JOIN runs r ON r.n = x.run "
        "LEFT JOIN turns t ON t.run = x.run AND t.turn = x.turn",
        order="x.run, x.turn, x.position",
        time_column="coalesce(x.queued_at, x.started_at, r.started_at)",
        expressions={
            **_RUN_COLUMNS,
            **_TURN_ID_COLUMN,
            "workflow": "r.workflow",
            "agent": "t.agent",
            "node": "t.node",
            "result_chars": "length(x.result)",
            "result_tokens_est": "(length(x.result) + 3) / 4",
            "edited": "coalesce(x.approval, '') = 'edited'",
        },
        json_columns=("args", "asked_args", "result", "notes", "doc"),
        internal_columns=("run",),  # `position`: of the call in its response, counted from 0
    ),
    "messages": Frame(
        columns=(
            *("run_id", "position", "turn_id", "role", "source", "text", "reasoning"),
            *("tool_calls", "tool_call_id", "tool_name", "chars", "has_image", "at"),
        ),
        source=_MESSAGES,
        order="x.run, x.position, x.turn",
        time_column="coalesce(x.at, r.started_at)",
        expressions={**_RUN_COLUMNS, **_TURN_ID_COLUMN, "model": "r.model"},
        json_columns=("tool_calls", "doc"),
        # `position`: in its own run, from 0; below 0 for responses outside of the conversation.
        # `turn`: the turn that added it. `call`: position of the tool run whose result is its
        # content, so that a result is stored once.
        internal_columns=("run", "turn", "call"),
    ),
    "transitions": Frame(
        columns=(
            *("run_id", "turn_id", "turn", "tool_call_id", "session", "at", "workflow"),
            *("from_node", "to_node", "label", "accepted", "error_code", "error", "agent"),
        ),
        source=_TRANSITIONS,
        order="x.run, x.turn, x.position",
        time_column="x.at",
        expressions={
            **_RUN_COLUMNS,
            **_TURN_ID_COLUMN,
            "model": "r.model",
            "accepted": "CASE WHEN NOT x.cut THEN x.ok END",
            "from_node": f"CASE WHEN x.cut THEN x.node ELSE {_transition_field('.from')} END",
            "to_node": f"CASE WHEN x.cut THEN {_transition_field(_TARGET_NODE)} "
            f"ELSE {_transition_field('.to')} END",
            "label": _transition_field(".label"),
        },
    ),
    "scores": Frame(
        columns=(
            *("run_id", "batch", "row_key", "variant", "attempt", "model", "scorer", "version"),
            *("kind", "value", "label", "reason", "by", "error", "at", "judge_run_id"),
        ),
        source="scores x JOIN runs r ON r.n = x.run",
        order="x.run, x.scorer, x.version",
        time_column="x.at",
        # `by` is a keyword of SQL, so the table's column is `scored_by`.
        expressions={**_RUN_COLUMNS, **_CASE_COLUMNS, "model": "r.model", "by": "x.scored_by"},
        json_columns=("variant",),
        internal_columns=("run", "scored_by"),
    ),
    "prompts": Frame(
        columns=("sha", "kind", "text", "first_seen", "last_seen", "runs"),
        source=_PROMPTS,
        order="x.first_seen, x.sha",
        time_column="x.last_seen",
    ),
}
TABLE_COLUMNS = {
    **{
        name: FRAMES[name].table_columns
        for name in ("runs", "turns", "tool_runs", "messages", "scores")
    },
    # The data of a batch as JSON, and the process at work on it.
    "batches": ("name", "lease_id", "doc"),
    # System prompts, and toolsets as JSON, each stored once: most turns of a run repeat them.
    "texts": ("sha", "kind", "text"),
    # The turn of a run at work whose calls have begun, as JSON: one row before the tools run,
    # instead of rows in several tables. The end of the turn writes those and ends this row.
    "open": ("run", "doc"),
    # One row for each process that may have runs at work.
    "leases": ("id", "pid", "pid_started", "boot_id", "host", "heartbeat"),
}
"""Columns of each table."""
_PRIMARY_KEYS = {
    "turns": "PRIMARY KEY(run, turn)) WITHOUT ROWID",
    "tool_runs": "PRIMARY KEY(run, turn, position))",
    "messages": "PRIMARY KEY(run, position))",
    "scores": "PRIMARY KEY(run, scorer, version)) WITHOUT ROWID",
    "batches": "PRIMARY KEY(name))",
    "texts": "PRIMARY KEY(sha))",
    "open": "PRIMARY KEY(run))",
    "leases": "PRIMARY KEY(id))",
}


def create_statements() -> list[str]:
    """SQL statements that create the tables and indexes."""
    runs = ", ".join(TABLE_COLUMNS["runs"]).replace("n,", "n INTEGER PRIMARY KEY,", 1)
    # `run` needs the type of `runs.n`: with another affinity SQLite does not use the key for
    # `run = runs.n`, and loading a run would scan all rows.
    columns = {
        name: ", ".join("run INTEGER" if table == "run" else table for table in TABLE_COLUMNS[name])
        for name in _PRIMARY_KEYS
    }
    return [
        f"CREATE TABLE runs({runs})",
        *(f"CREATE TABLE {table}({columns[table]}, {key}" for table, key in _PRIMARY_KEYS.items()),
        "CREATE UNIQUE INDEX runs_by_id ON runs(run_id)",
        "CREATE INDEX runs_by_name ON runs(name) WHERE name IS NOT NULL",
        "CREATE INDEX runs_by_batch ON runs(batch) WHERE batch IS NOT NULL",
        "CREATE INDEX runs_at_work ON runs(phase) WHERE phase = 'Running'",
        "CREATE INDEX runs_by_parent ON runs(parent_id) WHERE parent_id IS NOT NULL",
    ]
