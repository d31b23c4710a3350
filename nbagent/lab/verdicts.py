"""Verdicts of comparisons: corrections for many of them, words, and notes on intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.records import Better
from nbagent.lab.intervals import ALPHA, Difference

FEWEST_PAIRS = 6
"""Fewer pairs are not tested: 5 rows all change in one direction by chance in 1 of 16 comparisons
(2 × ½⁵), more often than in the 1 of 20 that a verdict allows."""
_FEW_ROWS = 20


@dataclass(frozen=True, slots=True)
class VerdictNames:
    """Verdicts of a difference above and below 0."""

    above: str = "better"
    below: str = "worse"


SHARES_OF_LABELS = VerdictNames("more", "fewer")


def verdict_names(better: Better) -> VerdictNames:
    """Return the verdicts of a score with this direction."""
    return VerdictNames() if better == "higher" else VerdictNames("worse", "better")


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Adjust p values for their number, by Holm's method; None is no comparison."""
    tested = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(tested):
        largest = max(largest, min(1.0, p * (len(tested) - rank)))
        adjusted[i] = largest
    return adjusted


def verdict_columns(
    difference: Difference | None, n_pairs: int, adjusted: float | None, names: VerdictNames
) -> dict[str, Any]:
    """Return the columns of a comparison with the baseline.

    Where nothing is shown, the interval reaches 0: it would else say more than the verdict, which
    is adjusted for all comparisons.
    """
    if difference is None:
        return {"verdict": "too few pairs", "pairs": n_pairs}
    lo, hi = difference.lo, difference.hi
    verdict = "too few pairs" if n_pairs < FEWEST_PAIRS else "no difference shown"
    if adjusted is not None and adjusted <= ALPHA:
        verdict = names.above if difference.mean > 0 else names.below
    elif lo is not None and hi is not None:
        lo, hi = min(lo, 0.0), max(hi, 0.0)
    columns = {"diff": difference.mean, "diff_lo": lo, "diff_hi": hi, "adjusted": adjusted}
    return columns | {
        "detectable": difference.detectable,
        "verdict": verdict,
        "pairs": n_pairs,
    }


def note_of(n_rows: int, *, is_share: bool, has_interval: bool, only_value: float | None) -> str:
    """Return the remarks on an interval: how sure few rows are, and why there is none.

    Args:
        n_rows: rows in the mean.
        is_share: all scores are 0 or 1.
        has_interval: the mean has one.
        only_value: the value of all scores of the table, if they are equal.
    """
    notes: list[str] = []
    if n_rows == 1:
        notes.append("1 row: no interval")
    elif n_rows and not has_interval:
        notes.append("equal rows: no interval")
    elif 1 < n_rows < _FEW_ROWS:
        sure = "85 % or more" if is_share else "95 % if scores are about normal, less if skewed"
        notes.append(f"{n_rows} rows: the interval covers {sure}")
    if n_rows > 1 and only_value is not None:
        notes.append(f"every score is {only_value:g}")
    return "; ".join(notes)
