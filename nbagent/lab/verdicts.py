"""Verdicts of comparisons: corrections for many of them, words, and notes on intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.records import Better
from nbagent.lab.detectable import ALPHA
from nbagent.lab.intervals import Difference

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
    difference: Difference | None,
    n_pairs: int,
    adjusted: float | None,
    names: VerdictNames,
    base_share: float | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of a comparison with the baseline, and remarks on them.

    The interval is that of this comparison alone. It reaches 0 where its own p is above 0.05: the
    exact test needs more than the interval does. Where only the other comparisons make the verdict
    fail, the interval stays as it is, and a remark says so.

    Args:
        difference: None if there is no pair.
        n_pairs: rows that both have.
        adjusted: p, adjusted for all comparisons; None if it was not tested.
        names: the verdicts.
        base_share: the baseline's share, if the scores are shares.
    """
    if difference is None:
        return {"verdict": "too few pairs", "pairs": n_pairs}, []
    lo, hi, detectable = difference.lo, difference.hi, difference.detectable
    notes: list[str] = []
    verdict = "too few pairs" if n_pairs < FEWEST_PAIRS else "no difference shown"
    is_shown = adjusted is not None and adjusted <= ALPHA
    if is_shown:
        verdict = names.above if difference.mean > 0 else names.below
    if lo is None or hi is None:
        notes += ["equal differences: no interval of diff"] if n_pairs > 1 else []
    elif difference.p > ALPHA:
        if lo > 0 or hi < 0:
            notes.append("diff's interval is widened to 0, because the exact test shows nothing")
        lo, hi = min(lo, 0.0), max(hi, 0.0)
    elif not is_shown:
        notes.append(
            "diff's interval is of this comparison alone; adjusted for all, it shows nothing"
        )
    if adjusted is not None and not is_shown and base_share is not None:
        detectable, more = _possible(detectable, base_share, n_pairs)
        notes += more
    columns = {"diff": difference.mean, "diff_lo": lo, "diff_hi": hi, "adjusted": adjusted}
    columns |= {"detectable": detectable, "verdict": verdict, "pairs": n_pairs}
    return columns, notes


def _possible(
    detectable: float | None, base_share: float, n_pairs: int
) -> tuple[float | None, list[str]]:
    """Return a detectable difference of shares if it can happen, and a remark where it cannot."""
    needed = math.inf if detectable is None else detectable
    no_rise, no_fall = needed > 1 - base_share, needed > base_share
    if no_rise and no_fall:
        return None, [f"no possible difference can be shown with {n_pairs} rows"]
    which = "rise" if no_rise else "fall"
    remark = f"no possible {which} from {base_share:.3g} can be shown with {n_pairs} rows"
    return detectable, [remark] if no_rise or no_fall else []


def interval_notes(
    n_rows: int, *, is_share: bool, has_interval: bool, only_value: float | None
) -> list[str]:
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
    return notes
