"""The frames as data: their columns in their order, and where the values come from.

A column's dtype follows its name; its value is the column of the same name in the table, or an
expression. Knows no pandas.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from nbagent.contracts.chat import FinishReason, Role
from nbagent.contracts.errors import ErrorCode
from nbagent.contracts.policy import Approval
from nbagent.contracts.records import Phase, RanIn, StopReason

Dtype = Literal["string", "Int64", "Float64", "boolean", "category", "datetime64[us, UTC]"]
WHEN: Dtype = "datetime64[us, UTC]"
_FLAGS = frozenset(("ok", "truncated", "edited", "has_image", "reachable"))
_COUNTS = frozenset(
    (
        *("execution_count", "turns", "turn", "tool_calls", "tool_errors", "prompt_tokens"),
        *("completion_tokens", "total_tokens", "cached_tokens", "reasoning_tokens", "n_unpriced"),
        *("attempts", "n_messages", "n_new", "trimmed", "position", "result_chars"),
        *("result_tokens_est", "repeat_n", "chars", "runs", "context_length"),
    )
)
_WORDS = frozenset(
    (
        *("session", "kind", "notebook", "phase", "phase_before", "phase_after", "stop_reason"),
        *("finish_reason", "error_code", "agent", "workflow", "node", "provider", "server"),
        *("model", "served_model", "source", "host", "tool_name", "role", "approval"),
        *("approved_by", "ran_in", "isolation", "template_sha", "system_sha", "toolset_sha"),
        *("tool_sha", "nbagent_version"),
    )
)
VOCABULARY: dict[str, tuple[str, ...]] = {
    "error_code": get_args(ErrorCode),
    "finish_reason": get_args(FinishReason),
    "stop_reason": get_args(StopReason),
    **dict.fromkeys(("phase", "phase_before", "phase_after"), get_args(Phase)),
    "approval": get_args(Approval),
    "ran_in": get_args(RanIn),
    "role": get_args(Role),
}
"""Words that are known also where no row has them."""


@dataclass(frozen=True, slots=True)
class Table:
    """What the rows of a frame are made of. Its own row is called `x`, that of its run `r`."""

    columns: tuple[str, ...]
    source: str
    order: str
    when: str
    """The time that `since` and `until` cut by; never NULL."""
    run: str = "x.run"
    """The number of the row's run."""
    values: dict[str, str] = field(default_factory=dict[str, str])
    """Columns that are not the one of the same name in `x`."""
    texts: frozenset[str] = frozenset()
    """Columns that hold JSON here and a count elsewhere."""

    def value(self, name: str) -> str:
        """The SQL expression of a column."""
        if name in ("session", "model") and name not in self.columns:
            return f"r.{name}"
        return self.values.get(name, f"x.{name}")

    def dtype(self, name: str) -> Dtype:
        """The dtype of a column."""
        if name in _COUNTS and name not in self.texts:
            return "Int64"
        if name in _FLAGS:
            return "boolean"
        if name in _WORDS:
            return "category"
        if name.endswith(("_ms", "_usd")):
            return "Float64"
        if name.endswith(("_at", "_seen")) or name == "at":
            return WHEN
        return "string"


_TURN_ID = {"turn_id": "CASE WHEN x.turn > 0 THEN printf('C%02d', x.turn) END"}
_OF_RUN = {"run_id": "r.run_id", "session": "r.session"}
_PROVIDER = {"provider": "substr(x.model, 1, instr(x.model, ':') - 1)"}
_ANSWER = (
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
LINEAGE = """
    WITH RECURSIVE line(n, parent_id, shared, end) AS (
        SELECT n, parent_id, shared_messages, 1 << 60 FROM runs WHERE run_id = ?
        UNION ALL
        SELECT p.n, p.parent_id, p.shared_messages, min(line.end, line.shared)
        FROM line JOIN runs p ON p.run_id = line.parent_id
    ) SELECT n, end FROM line"""

TABLES = {
    "runs": Table(
        columns=(
            *("run_id", "session", "conversation_id", "root_id", "parent_id", "kind"),
            *("forked_from", "name", "tags", "notebook", "cell_id", "execution_count"),
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
        when="x.started_at",
        run="x.n",
        values={
            **_PROVIDER,
            "text": _ANSWER,
            "ok": "CASE WHEN x.phase <> 'Running' "
            "THEN coalesce(x.stop_reason IN ('answered', 'workflow_complete'), 0) END",
        },
    ),
    "turns": Table(
        columns=(
            *("run_id", "turn_id", "turn", "session", "provider", "server", "model"),
            *("served_model", "agent", "node", "ok", "phase_before", "phase_after"),
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
        when="x.started_at",
        values={
            **_OF_RUN,
            **_TURN_ID,
            **_PROVIDER,
            "server": "r.server",
            "ok": "CASE WHEN NOT x.open THEN x.error_code IS NULL END",
            "text": "m.text",
            "reasoning": "m.reasoning",
        },
    ),
    "tool_runs": Table(
        columns=(
            *("run_id", "turn_id", "turn", "tool_call_id", "position", "session", "model"),
            *("host", "tool_name", "ok", "error_code", "error", "args", "args_sha", "asked_args"),
            *("reason", "result", "result_chars", "result_tokens_est", "truncated", "notes"),
            *("approval", "approved_by", "edited", "waited_ms", "queued_at", "started_at"),
            *("duration_ms", "ran_in", "isolation", "repeat_n", "tool_sha"),
        ),
        source="tool_runs x JOIN runs r ON r.n = x.run",
        order="x.run, x.turn, x.position",
        when="coalesce(x.queued_at, x.started_at, r.started_at)",
        values={
            **_OF_RUN,
            **_TURN_ID,
            "result_tokens_est": "(x.result_chars + 3) / 4",
            "edited": "coalesce(x.approval, '') = 'edited'",
        },
    ),
    "messages": Table(
        columns=(
            *("run_id", "position", "turn_id", "role", "source", "text", "reasoning"),
            *("tool_calls", "tool_call_id", "tool_name", "chars", "has_image", "at"),
        ),
        source=_MESSAGES,
        order="x.run, x.position, x.turn",
        when="coalesce(x.at, r.started_at)",
        values={"run_id": "r.run_id", **_TURN_ID},
        texts=frozenset(("tool_calls",)),
    ),
    "prompts": Table(
        columns=("sha", "kind", "text", "first_seen", "last_seen", "runs"),
        source=_PROMPTS,
        order="x.first_seen, x.sha",
        when="x.last_seen",
    ),
}
