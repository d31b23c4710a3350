"""Results of a batch's cases as plain values: the one form that tables, pages and gates read.

A live batch, a stored batch and a saved notebook all give a sequence of `CaseResult`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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


def joint_scores(scores: Iterable[ScoreRecord]) -> dict[str, ScoreRecord]:
    """Return one score of a run for each name.

    Several people may have labelled the run. The value is then the mean of their numbers, or the
    label or verdict of the most; there is none if two labels are equally frequent, or if some are
    numbers and some are not.
    """
    labels: dict[str, dict[str, ScoreRecord]] = {}
    by_name: dict[str, ScoreRecord] = {}
    for score in scores:
        if score.is_label:
            labels.setdefault(score.scorer, {})[score.by] = score
        by_name[score.scorer] = score
    # If two processes scored at once, a scorer may have the name, too: the people's labels count.
    return by_name | {name: _joint_score([*own.values()]) for name, own in labels.items()}


def _joint_score(labels: Sequence[ScoreRecord]) -> ScoreRecord:
    if len(labels) == 1:
        return labels[0]
    values = [label.value for label in labels if label.value is not None]
    people = ", ".join(label.by for label in labels)
    return labels[-1].model_copy(
        update={"value": joint_value(values), "by": people, "reason": None}
    )


def joint_value(values: Sequence[bool | float | str]) -> bool | float | str | None:
    """Return the mean of numbers, else the most frequent value; None for a tie or mixed kinds."""
    numbers = [float(value) for value in values if not isinstance(value, bool | str)]
    if numbers and len(numbers) == len(values):
        return math.fsum(numbers) / len(numbers)
    if len({type(value) for value in values}) != 1:
        return None
    (first, n), *others = Counter(values).most_common(2)
    return None if others and others[0][1] == n else first


MEASURES: dict[str, Callable[[CaseResult], float | None]] = {
    "cost_usd": lambda case: case.full_cost_usd,
    "tokens": lambda case: case.total_tokens,
    "duration_ms": lambda case: case.duration_ms,
    "turns": lambda case: case.turns,
}
"""Measures of a case that need no scorer; of each, less is better. A score of the name counts."""
