"""The frames' columns as data: name, where its values come from, dtype. Knows no pandas.

`{dead}` in an expression stands for the runs whose kernel is gone; they read as interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from nbagent.archive.interrupted import RUN_INTERRUPTED, TOOL_INTERRUPTED, TOOL_NOT_STARTED

Dtype = Literal["string", "Int64", "Float64", "boolean", "category", "datetime64[us, UTC]"]
Lookup = Literal["run_id", "session", "sha"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a frame."""

    name: str
    sql: str
    """An expression over the table's row."""
    dtype: Dtype = "Int64"
    lookup: Lookup | None = None
    """The expression is a row number; its value stands in `runs` or `blobs`."""
    long: bool = False
    """Texts of any length."""


@dataclass(frozen=True, slots=True)
class Table:
    """The rows that a frame is made of."""

    source: str
    run: str
    """The number of the row's run."""
    order: tuple[str, ...]
    started_at: str
    columns: tuple[Column, ...]
    texts: tuple[Column, ...] = ()
    """Columns that are there only when asked for."""


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _same(names: str, prefix: str, dtype: Dtype = "Int64") -> tuple[Column, ...]:
    return tuple(Column(name, f"{prefix}.{name}", dtype) for name in names.split())


_TOKENS = (
    "prompt_tokens completion_tokens total_tokens cached_tokens reasoning_tokens cache_write_tokens"
)
_WHEN: Dtype = "datetime64[us, UTC]"


def _ended(name: str, interrupted: str | None = None) -> str:
    """A column of a run; what `dead` says of it when its kernel is gone."""
    return f"CASE WHEN d.n IS NULL THEN r.{name} ELSE {interrupted or 'd.' + name} END"


_ANSWER = (
    "(SELECT m.text FROM turns t JOIN messages m ON m.run = t.run AND m.position = t.message_at "
    "WHERE t.run = r.n AND m.text <> '' ORDER BY t.idx DESC LIMIT 1)"
)
RUNS = Table(
    source="runs r LEFT JOIN dead d ON d.n = r.n",
    run="r.n",
    order=("r.n",),
    started_at="r.started_at",
    columns=(
        Column("run_id", "r.run_id", "string"),
        Column("session", "r.session", "category"),
        Column("name", "r.name", "string"),
        Column("kind", "r.kind", "category"),
        Column("parent_id", "r.parent_id", "string"),
        Column("model", "r.model", "category"),
        Column("provider", "substr(r.model, 1, instr(r.model, ':') - 1)", "category"),
        Column("phase", _ended("phase", "'Failed'"), "category"),
        Column("stop_reason", _ended("stop_reason", "'error'"), "category"),
        Column("error_code", _ended("error_code", _quoted(RUN_INTERRUPTED.code)), "category"),
        Column("error", _ended("error", _quoted(RUN_INTERRUPTED.message)), "string", long=True),
        Column("prompt", "r.prompt", "string", long=True),
        Column("text", f"coalesce({_ANSWER}, '')", "string", long=True),
        Column("turns", "(SELECT count(*) FROM turns t WHERE t.run = r.n)"),
        Column(
            "tool_calls", "(SELECT coalesce(sum(tool_calls), 0) FROM turns t WHERE t.run = r.n)"
        ),
        *(Column(name, _ended(name)) for name in _TOKENS.split()),
        Column("cost_usd", _ended("cost_usd"), "Float64"),
        Column("started_at", "r.started_at", _WHEN),
        Column("ended_at", _ended("ended_at"), _WHEN),
        Column("duration_ms", _ended("duration_ms"), "Float64"),
        Column("cell_id", "r.cell_id", "string"),
        Column("notebook", "r.notebook", "category"),
        Column(
            "tags",
            "coalesce((SELECT group_concat(value, ',') FROM json_each(r.tags)), '')",
            "string",
        ),
    ),
)


def _cut(name: str, interrupted: str) -> str:
    """A column of a turn; its value when the kernel ended during its calls."""
    return f"CASE WHEN t.open AND t.run IN {{dead}} THEN {interrupted} ELSE t.{name} END"


_OF_RESPONSE = "(SELECT m.{} FROM messages m WHERE m.run = t.run AND m.position = t.message_at)"
# Looked for in the text first: most turns have none, and reading JSON costs ten times as much.
_DROPPED = (
    "CASE WHEN instr(t.details, '\"dropped_params\"') THEN coalesce((SELECT "
    "group_concat(value, ',') FROM json_each(t.details, '$.meta.dropped_params')), '') ELSE '' END"
)
_SOURCE = (
    "CASE WHEN t.message_at IS NULL THEN NULL WHEN instr(t.details, '\"source\"') "
    "THEN coalesce(json_extract(t.details, '$.meta.source'), 'live') ELSE 'live' END"
)
_TRIMMED = (
    "CASE WHEN instr(t.details, '\"trimmed\"') "
    "THEN coalesce(json_array_length(t.details, '$.trimmed.places'), 0) ELSE 0 END"
)
_LEAST_MS = "max(t.duration_ms, t.model_ms + t.retry_wait_ms)"
TURNS = Table(
    source="turns t",
    run="t.run",
    order=("t.run", "t.idx"),
    started_at="t.started_at",
    columns=(
        Column("run_id", "t.run", "string", lookup="run_id"),
        Column("turn_id", "t.turn_id", "string"),
        Column("index", "t.idx"),
        Column("session", "t.run", "category", lookup="session"),
        Column("model", "t.model", "category"),
        Column("phase_after", _cut("phase_after", "'Failed'"), "category"),
        Column("stop_reason", _cut("stop_reason", "'error'"), "category"),
        Column("finish_reason", "t.finish_reason", "category"),
        Column("error_code", _cut("error_code", _quoted(RUN_INTERRUPTED.code)), "category"),
        *_same("n_messages n_new tool_calls " + _TOKENS, "t"),
        Column("cost_usd", "t.cost_usd", "Float64"),
        Column("started_at", "t.started_at", _WHEN),
        Column("duration_ms", _cut("duration_ms", _LEAST_MS), "Float64"),
        *_same("model_ms ttft_ms", "t", "Float64"),
        Column("attempts", "t.retries + 1"),
        Column("retries", "t.retries"),
        Column("retry_wait_ms", "t.retry_wait_ms", "Float64"),
        Column("source", _SOURCE, "category"),
        Column("dropped_params", _DROPPED, "string"),
        Column("trimmed", _TRIMMED),
        Column("toolset_sha", "t.toolset", "category", lookup="sha"),
        Column("system_sha", "t.system", "category", lookup="sha"),
    ),
    texts=(
        Column("text", f"coalesce({_OF_RESPONSE.format('text')}, '')", "string", long=True),
        Column("reasoning", _OF_RESPONSE.format("reasoning"), "string", long=True),
    ),
)


def _lost(value: str, otherwise: str) -> str:
    """A column of a tool run; its value when the kernel ended before it finished."""
    return f"CASE WHEN x.ok IS NULL AND x.run IN {{dead}} THEN {value} ELSE {otherwise} END"


def _by_start(started: str, untouched: str) -> str:
    return f"iif(x.started, {_quoted(started)}, {_quoted(untouched)})"


_STARTED = TOOL_INTERRUPTED.to_json().decode()
_UNTOUCHED = TOOL_NOT_STARTED.to_json().decode()
_LOST_RESULT = _by_start(_STARTED, _UNTOUCHED)
_LOST_ERROR = _by_start(
    TOOL_INTERRUPTED.error.message if TOOL_INTERRUPTED.error else "",
    TOOL_NOT_STARTED.error.message if TOOL_NOT_STARTED.error else "",
)
_ERROR = "CASE WHEN x.ok = 0 THEN json_extract(x.result, '$.error.message') END"
_CHARS = _lost(f"length({_LOST_RESULT})", "x.result_chars")

TOOL_RUNS = Table(
    source="tool_runs x JOIN turns t ON t.run = x.run AND t.idx = x.idx",
    run="x.run",
    order=("x.run", "x.idx", "x.position"),
    started_at="x.started_at",
    columns=(
        Column("run_id", "x.run", "string", lookup="run_id"),
        Column("turn_id", "t.turn_id", "string"),
        Column("tool_call_id", "x.tool_call_id", "string"),
        Column("position", "x.position"),
        Column("session", "x.run", "category", lookup="session"),
        Column("model", "t.model", "category"),
        Column("tool_name", "x.tool_name", "category"),
        Column("ok", _lost("0", "x.ok"), "boolean"),
        Column("error_code", _lost("'E_INTERRUPTED'", "x.error_code"), "category"),
        Column("error", _lost(_LOST_ERROR, _ERROR), "string", long=True),
        Column("args", "x.args", "string", long=True),
        Column("result", _lost(_LOST_RESULT, "x.result"), "string", long=True),
        Column("result_chars", _CHARS),
        Column("result_tokens_est", f"(({_CHARS}) + 3) / 4"),
        Column("started_at", "x.started_at", _WHEN),
        *_same("duration_ms waited_ms", "x", "Float64"),
        *_same("ran_in approval approved_by", "x", "category"),
        Column("edited", "coalesce(x.approval = 'edited', 0)", "boolean"),
        Column("truncated", "x.truncated", "boolean"),
        Column("repeat_n", "x.repeat_n"),
        Column("tool_sha", "x.tool_sha", "category"),
    ),
)

# The second place is that of files that were written before pictures were stored once.
_GIVES_IMAGE = (
    "EXISTS (SELECT 1 FROM json_each(coalesce(json_extract(x.details, '$.attachments'), "
    "json_extract(x.details, '$.result.attachments'), '[]')) "
    "WHERE json_extract(value, '$.type') = 'image')"
)
_ANSWERS_LOST = (
    "SELECT x.run, t.message_at + 1 + x.position, x.idx, 'tool', "
    f"coalesce(x.result, {_LOST_RESULT}), x.tool_call_id, x.tool_name, 0, {_GIVES_IMAGE}, "
    f"coalesce(x.result_chars, length({_LOST_RESULT})) "
    "FROM tool_runs x JOIN turns t ON t.run = x.run AND t.idx = x.idx "
    "WHERE t.open AND t.run IN {dead}"
)
MESSAGES = Table(
    source=(
        "(SELECT m.run AS run, m.position AS position, m.idx AS idx, m.role AS role, "
        "coalesce(m.text, (SELECT x.result FROM tool_runs x WHERE x.run = m.run "
        "AND x.idx = m.idx AND x.tool_call_id = m.tool_call_id)) AS text, "
        "m.tool_call_id AS tool_call_id, m.tool_name AS tool_name, "
        "m.n_tool_calls AS n_tool_calls, m.has_image AS has_image, m.chars AS chars "
        f"FROM messages m WHERE m.position >= 0 UNION ALL {_ANSWERS_LOST}) m"
    ),
    run="m.run",
    order=("m.run", "m.position"),
    started_at="(SELECT t.started_at FROM turns t WHERE t.run = m.run AND t.idx = m.idx)",
    columns=(
        Column("run_id", "m.run", "string", lookup="run_id"),
        Column(
            "turn_id",
            "(SELECT t.turn_id FROM turns t WHERE t.run = m.run AND t.idx = m.idx)",
            "string",
        ),
        Column("index", "m.position + (SELECT shared_messages FROM runs WHERE n = m.run)"),
        Column("role", "m.role", "category"),
        Column("text", "m.text", "string", long=True),
        Column("tool_call_id", "m.tool_call_id", "string"),
        Column("tool_name", "m.tool_name", "category"),
        Column("n_tool_calls", "m.n_tool_calls"),
        Column("has_image", "m.has_image", "boolean"),
        Column("chars", "m.chars"),
    ),
)
