"""The query of each frame, as data. Imports neither SQLite nor pandas.

The frame's own row has the alias `x`, its run's row `r`. `columns` declares the columns. CROSS JOIN
fixes the order: first the runs, newest first if so ordered, or found by an index of a filter, then
their rows by key. SQLite itself would sort all rows of a session with a million runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import get_args

from nbagent.contracts.approval import Approval
from nbagent.contracts.errors import ErrorCode
from nbagent.contracts.messages import Role
from nbagent.contracts.model import FinishReason
from nbagent.contracts.records import Phase, RanIn
from nbagent.contracts.stop_reasons import StopReason
from nbagent.store import columns as declared
from nbagent.store.columns import TIMESTAMP, Column, Dtype, hash_sql, json_text_sql

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


ALIASES = {
    "id": "run_id",
    "cost": "cost_usd",
    "tokens": "total_tokens",
    "duration": "duration_ms",
    "started": "started_at",
    "state": "phase",
    "status": "phase",
    "tool": "tool_name",
    "ended": "ended_at",
}
"""Short names of columns, for filters and `sort`."""
TEXT_FILTER = "text"
"""Filter that finds texts which contain its value; other filters find equal values."""


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A frame: its columns, and the query of its rows."""

    columns: tuple[Column, ...]
    sources: tuple[str, ...]
    """SQL behind FROM; with several, the frame has the rows of each, sorted after they were read:
    SQLite would copy and sort a UNION with all its texts."""
    order: str
    time_column: str
    """SQL of the time for `since` and `until`; never NULL."""
    sorted_by: tuple[str, ...] = ("turn", "position")
    """Columns by which rows of several sources are sorted within a run; the last one first."""
    run_number: str = "x.run"
    """SQL of the number of the row's run."""
    is_nested: bool = False
    """The rows come from a subquery, into which conditions on the run do not reach."""
    run_condition: str = ""
    """SQL condition of the runs that can have rows."""
    filters: dict[str, str] | None = None
    """SQL of filters that are no column of the frame."""
    first: tuple[str, ...] = ()
    """Columns that a person looks at first; the others follow as they are declared."""

    @property
    def newest_first(self) -> str:
        """SQL of the reversed order."""
        return self.order.replace(",", " DESC,") + " DESC"

    @cached_property
    def by_name(self) -> dict[str, Column]:
        """Columns of the frame by name, in the order of the frame."""
        declared_columns = {column.name: column for column in self.columns if column.in_frame}
        return {name: declared_columns[name] for name in (*self.first, *declared_columns)}

    def expression(self, name: str) -> str:
        """SQL of a column or a filter."""
        column = self.by_name.get(name)
        if column is None:
            return (self.filters or {})[name]
        return column.sql or f"x.{name}"

    def is_of_run(self, name: str) -> bool:
        """True if a column is one of the row's run."""
        return self.by_name[name].sql.startswith("r.")

    def dtype(self, name: str) -> Dtype:
        """Dtype of a column; filters that are no column are words, or text to be contained."""
        column = self.by_name.get(name)
        if column is None:
            return "string" if name == TEXT_FILTER else "category"
        return column.dtype


_RUN_FILTERS = {"session": "r.session", "batch": "r.batch", "model": "r.model"}
"""Facts of the run by which each frame with runs can be filtered."""
_SYSTEM_SHA = hash_sql("t.system_sha")
_MESSAGES = """(
    SELECT m.run, m.position + s.shared_messages AS position, m.turn, m.role, m.source,
        coalesce(m.text, (SELECT c.result FROM tool_runs c
            WHERE c.run = m.run AND c.turn = m.turn AND c.position = m.call)) AS text,
        m.reasoning, m.tool_calls, m.tool_call_id, m.tool_name, m.chars, m.has_image, m.at
    FROM messages m JOIN runs s ON s.n = m.run WHERE m.position >= 0
) x JOIN runs r ON r.n = x.run"""
# `+`: grouped in the order of the index of hashes, it would scan the turns of all runs. The texts
# are joined after that: sorting would copy them.
_SYSTEM_MESSAGES = f"""(
    SELECT g.run, -1 AS position, g.turn, 'system' AS role, 'system' AS source, s.text,
        NULL AS reasoning, NULL AS tool_calls, NULL AS tool_call_id, NULL AS tool_name,
        length(s.text) AS chars, 0 AS has_image, g.at
    FROM (
        SELECT t.run, min(t.turn) AS turn, t.system_sha, t.started_at AS at
        FROM turns t GROUP BY t.run, +t.system_sha
    ) g JOIN texts s ON s.sha = {hash_sql("g.system_sha")}
) x JOIN runs r ON r.n = x.run"""
_TOOLS_OF_TOOLSET = "json_each(CASE WHEN json_valid(s.text) THEN s.text ELSE '[]' END) v"
_TOOL_SHA = "json_extract(v.value, '$.traits.sha')"
_HAS_TOOL_SHA = f"{_TOOL_SHA} <> '' AND {_TOOL_SHA} NOT GLOB '*[^0-9a-f]*'"
"""A stranger's store may have any text there, which SQLite could not return."""
_TOOL_TEXT = "json_remove(v.value, '$.traits')"


def _started_at(number: str) -> str:
    """SQL of the start of a run."""
    return f"(SELECT r.started_at FROM runs r WHERE r.n = {number})"


_PROMPTS_BY_SCAN = f"""(
    SELECT template_sha AS sha, 'template' AS kind, coalesce(template, prompt) AS text,
        min(started_at) AS first_seen, max(started_at) AS last_seen, count(*) AS runs
    FROM runs WHERE template_sha IS NOT NULL GROUP BY template_sha
    UNION ALL
    SELECT s.sha, 'system', s.text, min(t.started_at), max(t.started_at), count(DISTINCT t.run)
    FROM turns t JOIN texts s ON s.sha = {_SYSTEM_SHA}
    WHERE t.run IN (SELECT n FROM runs) GROUP BY s.sha
    UNION ALL
    SELECT d.sha, 'tool', d.text, {_started_at("d.first")}, {_started_at("d.last")}, d.runs FROM (
        SELECT {_TOOL_SHA} AS sha, min({_TOOL_TEXT}) AS text, min(t.run) AS first,
            max(t.run) AS last, count(DISTINCT t.run) AS runs
        FROM turns t JOIN texts s ON s.sha = {hash_sql("t.toolset_sha")} AND s.kind = 'toolset',
            {_TOOLS_OF_TOOLSET}
        WHERE {_HAS_TOOL_SHA} AND t.run IN (SELECT n FROM runs) GROUP BY 1
    ) d
) x"""
"""Prompts of a store whose table `prompts` is not complete yet."""
# `+h.n`: without the type of `hashes.n`, or SQLite would not use the index of `turns.system_sha`,
# which has no type.
_OF_TEMPLATE = "FROM runs r WHERE r.template_sha = x.sha"
_OF_SYSTEM = (
    "FROM turns t WHERE t.system_sha = (SELECT +h.n FROM hashes h WHERE h.sha = x.sha) "
    "AND t.run NOT IN (SELECT run FROM forgotten)"
)
# Runs are numbered in the order of their start: the index of toolsets has the first and last use.
_USE_OF_TOOLSET = (
    "(SELECT {}(t.run) FROM turns t "
    "WHERE t.toolset_sha = (SELECT +h.n FROM hashes h WHERE h.sha = s.sha) "
    "AND t.run NOT IN (SELECT run FROM forgotten))"
)
_PROMPTS = "(SELECT p.*, NULL AS text FROM prompts p) x"
_TOOLS = f"""(
    SELECT d.sha, 'tool' AS kind, d.text, {_started_at("d.first")} AS first_seen,
        {_started_at("d.last")} AS last_seen
    FROM (
        SELECT {_TOOL_SHA} AS sha, min({_TOOL_TEXT}) AS text,
            min({_USE_OF_TOOLSET.format("min")}) AS first,
            max({_USE_OF_TOOLSET.format("max")}) AS last
        FROM texts s, {_TOOLS_OF_TOOLSET}
        WHERE s.kind = 'toolset' AND {_HAS_TOOL_SHA} GROUP BY 1
    ) d WHERE d.first IS NOT NULL
) x"""
_OF_TOOL = (
    "FROM turns t WHERE t.toolset_sha IN (SELECT +h.n FROM texts s JOIN hashes h ON h.sha = s.sha, "
    f"{_TOOLS_OF_TOOLSET} WHERE s.kind = 'toolset' AND {_TOOL_SHA} = x.sha) "
    "AND t.run NOT IN (SELECT run FROM forgotten)"
)
_TARGET_NODES = (".currentNodeId.set", '."currentNodeId.set"')
"""Both forms in which an update of a document may name the next step."""
_NAMES_TARGET = " OR ".join(
    f"json_type(x.body, x.place || '{key}') = 'text'" for key in _TARGET_NODES
)
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
    AND (NOT x.cut OR {_NAMES_TARGET})"""
"""Patches of documents that moved a workflow to its next step, or tried to. If the kernel died
during the patch (`cut`), only its arguments are known, so the target is read from them."""
LINEAGE = """
    WITH RECURSIVE line(n, parent_id, shared, end) AS (
        SELECT n, parent_id, shared_messages, 1 << 60 FROM runs WHERE run_id = ?
        UNION ALL
        SELECT p.n, p.parent_id, p.shared_messages, min(line.end, line.shared)
        -- A run is stored after its parent; in a stranger's store one may be its own ancestor.
        FROM line JOIN runs p ON p.run_id = line.parent_id AND p.n < line.n
    ) SELECT n, end FROM line"""
"""Numbers of a run and its ancestors, newest first, each with the absolute end of its part of the
conversation."""


def _transition_field(key: str) -> str:
    return json_text_sql("x.body", f"x.place || '{key}'")


def _moved(key: str) -> str:
    return f"CASE WHEN x.cut THEN x.node ELSE {_transition_field(key)} END"


_TRANSITION_COLUMNS = (
    declared.RUN_ID,
    declared.TURN_ID,
    Column(name="turn", dtype="Int64", doc="number of the turn in its conversation"),
    Column(name="tool_call_id", doc="id of the call"),
    declared.SESSION,
    Column(name="at", dtype=TIMESTAMP, doc="time, in UTC"),
    Column(name="workflow", dtype="category", doc="workflow of the run"),
    Column(name="from_node", dtype="category", doc="step that was left", sql=_moved(".from")),
    Column(
        name="to_node",
        dtype="category",
        doc="step that was entered",
        sql=f"CASE WHEN x.cut THEN coalesce({', '.join(map(_transition_field, _TARGET_NODES))}) "
        f"ELSE {_transition_field('.to')} END",
    ),
    Column(
        name="label", dtype="category", doc="label of the move", sql=_transition_field(".label")
    ),
    Column(
        name="accepted",
        dtype="boolean",
        doc="false for a refused move; missing if the kernel died during it",
        sql="CASE WHEN NOT x.cut THEN x.ok END",
    ),
    Column(name="error_code", dtype="category", doc="code of the refusal"),
    Column(name="error", doc="its message"),
    Column(name="agent", dtype="category", doc="agent at work"),
)
_PROMPT_COLUMNS = (
    Column(name="sha", doc="hash, to join on template_sha, system_sha or tool_sha"),
    Column(name="kind", dtype="category", doc="template, system or tool"),
    Column(
        name="text",
        doc="text of the prompt; definition of the tool, as JSON",
        sql=f"CASE x.kind WHEN 'template' THEN (SELECT coalesce(r.template, r.prompt) "
        f"{_OF_TEMPLATE} ORDER BY r.started_at LIMIT 1) WHEN 'tool' THEN x.text "
        "ELSE (SELECT s.text FROM texts s WHERE s.sha = x.sha) END",
    ),
    Column(name="first_seen", dtype=TIMESTAMP, doc="start of its first use"),
    Column(name="last_seen", dtype=TIMESTAMP, doc="start of its last use"),
    Column(
        name="runs",
        dtype="Int64",
        doc="number of runs with it",
        sql=f"CASE x.kind WHEN 'template' THEN (SELECT count(*) {_OF_TEMPLATE}) "
        f"WHEN 'tool' THEN (SELECT count(DISTINCT t.run) {_OF_TOOL}) "
        f"ELSE (SELECT count(DISTINCT t.run) {_OF_SYSTEM}) END",
    ),
)

FRAMES = {
    "runs": Frame(
        columns=declared.RUNS,
        sources=("runs x",),
        order="x.n",
        time_column="x.started_at",
        run_number="x.n",
        first=(
            *("run_id", "name", "started_at", "model", "prompt", "text", "ok", "stop_reason"),
            *("turns", "tool_calls", "total_tokens", "cost_usd", "duration_ms", "error"),
        ),
    ),
    "turns": Frame(
        columns=declared.TURNS,
        sources=(
            "runs r CROSS JOIN turns x ON x.run = r.n "
            "LEFT JOIN messages m ON m.run = x.run AND m.position = x.message_at",
        ),
        order="r.n, x.turn",
        time_column="x.started_at",
    ),
    "tool_runs": Frame(
        columns=declared.TOOL_RUNS,
        sources=(
            "runs r CROSS JOIN tool_runs x ON x.run = r.n "
            "LEFT JOIN turns t ON t.run = x.run AND t.turn = x.turn",
        ),
        order="r.n, x.turn, x.position",
        time_column="coalesce(x.queued_at, x.started_at, r.started_at)",
        filters={TEXT_FILTER: "coalesce(x.args, '') || char(10) || coalesce(x.result, '')"},
    ),
    "messages": Frame(
        columns=declared.MESSAGES,
        sources=(_MESSAGES, _SYSTEM_MESSAGES),
        order="x.run, x.position, x.turn",
        time_column="coalesce(x.at, r.started_at)",
        is_nested=True,
        filters=_RUN_FILTERS,
    ),
    "transitions": Frame(
        columns=_TRANSITION_COLUMNS,
        sources=(_TRANSITIONS,),
        order="x.run, x.turn, x.position",
        time_column="x.at",
        is_nested=True,
        run_condition="r.workflow IS NOT NULL",
        filters=_RUN_FILTERS,
    ),
    "scores": Frame(
        columns=declared.SCORES,
        sources=("runs r CROSS JOIN scores x ON x.run = r.n",),
        order="r.n, x.scorer, x.version, x.scored_by",
        time_column="x.at",
        filters=_RUN_FILTERS,
    ),
    "prompts": Frame(
        columns=_PROMPT_COLUMNS,
        sources=(_PROMPTS, _TOOLS),
        sorted_by=("sha", "first_seen"),
        order="x.first_seen, x.sha",
        time_column="x.last_seen",
        run_number="",
    ),
}
PROMPTS_BY_SCAN = replace(
    FRAMES["prompts"],
    columns=tuple(replace(column, sql="") for column in _PROMPT_COLUMNS),
    sources=(_PROMPTS_BY_SCAN,),
)
"""The frame of prompts from all runs and turns, for a store whose table is not complete yet."""
