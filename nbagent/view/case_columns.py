"""Columns of the table of all cases, and the verdict of each case: chosen from the cases alone.

`case_table` draws them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nbagent.contracts.case_results import CaseResult, CaseStatus, joint_scores
from nbagent.contracts.records import ScoreRecord
from nbagent.view.case_names import CaseNames, names_of_cases

DEFAULT_LABEL = "review"
Verdict = Literal["wrong", "failed", "no answer", "unfinished", "not run", "no score", "right"]

VERDICT_LOOKS: dict[Verdict, tuple[str, str]] = {
    "wrong": ("✕", "nba-error"),
    "failed": ("!", "nba-error"),
    "no answer": ("–", "nba-error"),
    "unfinished": ("…", "nba-note"),
    "not run": ("·", "nba-note"),
    "no score": ("○", "nba-note"),
    "right": ("✓", "nba-fine"),
}
"""Mark and class of each verdict, in the order of sorting."""
FAILURES: frozenset[Verdict] = frozenset({"wrong", "failed", "no answer"})
_OF_STATUS: Mapping[CaseStatus, Verdict] = {
    "missing": "not run",
    "unfinished": "unfinished",
    "failed": "failed",
    "ended": "no answer",
}
_MAX_AXES, _MAX_SCORES = 4, 6
_MAX_CELLS = 2
SHORT_CELL_CHARS = 120
"""Cells of the batch's table up to this length stand beside an answer, and filter rows."""
_EXPECTED = frozenset({"expected", "target", "truth", "gold", "label", "correct"})
_HALF = 0.5
"""The mean of several people's 0 and 1 is right from here on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseColumns:
    """Columns of the table and rules of its verdicts: the same for all cases of one page."""

    name: str
    """Name of the batch."""
    names: CaseNames = field(default_factory=CaseNames)
    """Numbers and short texts of the rows and variants."""
    axes: tuple[str, ...] = ()
    """Axes with a column, those with several labels first."""
    scores: tuple[str, ...] = ()
    """Names of the scores with a column; the label of the person first."""
    deciding: frozenset[str] = frozenset()
    """Names of the scores that say right or wrong."""
    has_attempts: bool = False
    label: str = DEFAULT_LABEL
    """Name of the score that the page's labels are stored under."""
    scale: int = 5
    """Best label from 2 to 5; 0 for yes and no."""
    by: str = "person"
    is_blind: bool = False
    """True hides the variants, their cost and time, and the labels of others."""
    cells: tuple[str, ...] = ()
    """Columns of the batch's table with a column here: those that a scorer compares with."""
    legend: tuple[tuple[str, str, str], ...] = ()
    """Axis, label and text of each variant's text, such as a system prompt."""
    has_prompt: bool = True
    """False if the prompts of one row differ in a blind page: they would name the variants."""


def columns_of_cases(
    results: Iterable[CaseResult], name: str, scores: Sequence[str] = (), **options: Any
) -> CaseColumns:
    """Choose the columns for these cases.

    Args:
        results: the cases.
        name: name of the batch.
        scores: names of scores that may come.
        options: `label`, `scale`, `by`, `is_blind` and `legend` of `CaseColumns`.
    """
    columns = CaseColumns(name=name, **options)
    results = [*results]
    names = names_of_cases(results)
    by_name: dict[str, list[ScoreRecord]] = {columns.label: [], **{n: [] for n in scores}}
    prompts: dict[str, str] = {}
    has_attempts, has_shared_prompts = False, True
    longest: dict[str, int] = {}
    used: set[str] = set()
    untold: set[str] = set()
    """Columns that say more than the row's key and prompt."""
    for result in results:
        has_attempts = has_attempts or result.attempt > 1
        for column, cell in result.cells.items():
            size = len(cell) if isinstance(cell, str) else 0
            longest[column] = max(longest.get(column, 0), size)
            if str(cell) != result.row_key and str(cell) not in result.prompt:
                untold.add(column)
        if result.prompt:
            shared = prompts.setdefault(result.row_key, result.prompt)
            has_shared_prompts = has_shared_prompts and shared == result.prompt
        for score in result.scores:
            by_name.setdefault(score.scorer, []).append(score)
            used.update(score.row or ())
    scored = [name for name in by_name if not _is_replaced(name, by_name, columns.label)]
    return replace(
        columns,
        names=names,
        cells=_expected_columns(longest, used & untold),
        axes=() if columns.is_blind else tuple(names.varying())[:_MAX_AXES],
        scores=tuple(scored)[:_MAX_SCORES] if not columns.is_blind else (columns.label,),
        deciding=frozenset(n for n, records in by_name.items() if _is_deciding(records)),
        has_attempts=has_attempts,
        has_prompt=has_shared_prompts or not columns.is_blind,
    )


def _expected_columns(longest: Mapping[str, int], used: Collection[str]) -> tuple[str, ...]:
    """Choose the columns that an answer is compared with.

    These are columns with short texts that a scorer uses; before there are scores, those whose
    name says so.
    """
    short = [column for column, size in longest.items() if size <= SHORT_CELL_CHARS]
    named = [column for column in short if column.lower() in _EXPECTED]
    return tuple([*named, *(c for c in short if c in used and c not in named)][:_MAX_CELLS])


def _is_replaced(name: str, by_name: Mapping[str, Sequence[ScoreRecord]], label: str) -> bool:
    """True if a scorer gives scores of its own names: `exact.length` instead of `exact`."""
    parts = any(other.startswith(f"{name}.") for other in by_name)
    return parts and not by_name[name] and name != label


def _is_deciding(scores: Sequence[ScoreRecord]) -> bool:
    """True if these scores of one name say right or wrong: booleans, or numbers that are 0 or 1.

    A person's label 1 of 5 is no "right": numbers count if a 0 is among them, or a function gave
    them.
    """
    values = [score.value for score in scores if score.value is not None]
    if not values or any(value not in (0, 1) for value in values):
        return False
    return (
        0 in values
        or any(isinstance(value, bool) for value in values)
        or all(score.by == "function" for score in scores)
    )


def verdict_of(result: CaseResult, deciding: frozenset[str]) -> Verdict:
    """Judge a case by its status and its deciding scores; one of these that is 0 makes it wrong.

    Of several people's labels their joint value counts.
    """
    if result.status != "ok":
        return _OF_STATUS[result.status]
    joint = joint_scores(score for score in result.scores if score.scorer in deciding)
    rights = [_is_right(score) for score in joint.values() if score.value is not None]
    if not rights:
        return "no score"
    return "right" if all(rights) else "wrong"


def _is_right(score: ScoreRecord) -> bool:
    is_high = float(score.value or 0.0) >= _HALF
    return is_high == (score.better == "higher")


def verdict_counts(results: Iterable[CaseResult], columns: CaseColumns) -> dict[Verdict, int]:
    """Count the verdicts, the failures first."""
    counts = Counter(verdict_of(result, columns.deciding) for result in results)
    return {verdict: counts[verdict] for verdict in VERDICT_LOOKS if counts[verdict]}
