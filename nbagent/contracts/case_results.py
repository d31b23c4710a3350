"""Results of a batch's cases as plain values: the one form that tables, pages and gates read.

A live batch, a stored batch and a saved notebook all give a sequence of `CaseResult`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nbagent.contracts.records import ScoreRecord

CaseStatus = Literal["missing", "unfinished", "failed", "ended", "ok"]
"""missing: not asked yet; unfinished: stopped, will be resumed; failed: ended by an error, will be
asked again; ended: ended without an answer; ok: answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Calls of one tool in the runs of a case."""

    name: str
    calls: int
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """One row of a batch's table in one variant and repeat: its run, its answer, its scores."""

    row_key: str
    labels: Mapping[str, str]
    """Label of each axis, by the axis name."""
    attempt: int = 1
    cells: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Cells of its row, by column; empty if the table is not at hand."""
    status: CaseStatus = "missing"
    run_id: str = ""
    """Id of its last run; empty if there is none."""
    prompt: str = ""
    text: str = ""
    """Text of the answer."""
    why: str = ""
    """Reason why there is no answer: code and message."""
    stop_reason: str = ""
    turns: int | None = None
    total_tokens: int | None = None
    cost_usd: float | None = None
    """USD of all its runs; None if no price is known."""
    recorded_usd: float = 0.0
    """USD that answers from a recording cost when they were new."""
    duration_ms: float | None = None
    tools: tuple[ToolUse, ...] = ()
    output: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of an answer of a type, by column (`output_NAME`)."""
    scores: tuple[ScoreRecord, ...] = ()
    """Scores of the counting versions; several people may have given one name each a score."""

    @property
    def variant(self) -> str:
        """Its labels, joined."""
        return " · ".join(self.labels.values())

    @property
    def full_cost_usd(self) -> float | None:
        """Cost of its answer, also if a recording gave it: otherwise such a variant seems cheap."""
        return None if self.cost_usd is None else self.cost_usd + self.recorded_usd
