"""Scores of cases as numbers to average, and their kind: shares, labels, other numbers.

Odd values are answered here: infinite ones are missing, very large ones are scaled, labels become
shares. What comes after needs no further case.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import Better
from nbagent.lab.verdicts import SHARES_OF_LABELS, VerdictNames, verdict_names
from nbagent.store.dataframes import frame_of

if TYPE_CHECKING:
    from pandas import DataFrame

_MAX_LABELS = 20
_MAX_EXPONENT = 300
"""Values beyond 2 to this power, or below its inverse, are scaled: their squares are no floats."""


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of all cases as numbers."""

    frame: Any
    """The cases; `value` is missing unless the case is scored."""
    is_share: bool
    """Each is 0 or 1."""
    has_rights: bool
    """A score of 1 is a right answer, so that right answers have a price."""
    names: VerdictNames
    only_value: float | None
    """The value of all of them, if they are equal."""
    largest: float
    """The largest absolute value."""
    scale: float = 1.0
    """Factor of the scores as they were, a power of 2."""
    label_column: str = ""
    """Column of the labels whose shares these are."""


def scores_of_cases(cells: DataFrame, better: Better, *, is_measure: bool = False) -> Scores:
    """Return the scores of cases; each label of a scorer of labels has cases of its own."""
    frame = cast("Any", cells)
    is_scored = frame["state"] == "scored"  # a person may have scored a failed run
    if labels := _labels(frame[is_scored]):
        return _shares_of_labels(frame, labels)
    frame = numeric(frame)
    values = frame["value"].dropna()
    largest = float(values.abs().max()) if len(values) else 0.0
    exponent = math.frexp(largest)[1] - 1
    scale = math.ldexp(1.0, exponent) if abs(exponent) > _MAX_EXPONENT else 1.0
    return Scores(
        frame=frame.assign(value=frame["value"] / scale),
        is_share=not is_measure and bool(values.isin([0, 1]).all()),
        has_rights=better == "higher" and bool(values.between(0, 1).all()),
        names=verdict_names(better),
        only_value=float(values.iloc[0]) if len(values) and values.nunique() == 1 else None,
        largest=largest / scale,
        scale=scale,
    )


def numeric(frame: Any) -> Any:
    """Return the cases with numeric, finite values of scored cases only.

    Raises:
        UsageError: the scores are labels.
    """
    is_scored = frame["state"] == "scored"
    if labels := _labels(frame[is_scored]):
        raise UsageError(
            f"the scores are labels, like {labels[0]!r}, and none is better; let the scorer "
            "return a number or a bool"
        )
    values = frame["value"].where(is_scored).astype("Float64")
    values = values.where(values.abs() < math.inf)
    state = frame["state"].mask(is_scored & values.isna(), "missing")
    return frame.assign(value=values, state=state)


def _labels(scored: Any) -> list[str]:
    """Return the labels that scored cases have; none if their scores are numbers."""
    if scored["value"].dtype.kind in "bif":
        return []
    values = scored["value"].dropna().tolist()
    if not any(isinstance(value, str) for value in values):
        return []
    return list(dict.fromkeys(str(value) for value in values))


def _shares_of_labels(frame: Any, labels: list[str]) -> Scores:
    if len(labels) > _MAX_LABELS:
        raise UsageError(
            f"the scores are {len(labels):,} labels, like {labels[0]!r}; at most {_MAX_LABELS} are "
            "compared by their shares: let the scorer return fewer labels, a number or a bool"
        )
    column = "label" if "label" not in frame.columns else "score_label"
    each = frame.merge(frame_of([{column: label} for label in labels]), how="cross")
    is_label = (each["value"].astype("string") == each[column]).astype("Float64")
    scored = each.assign(value=is_label.where(each["state"] == "scored"))
    return Scores(
        frame=numeric(scored),
        is_share=True,
        has_rights=False,
        names=SHARES_OF_LABELS,
        only_value=None,
        largest=1.0,
        label_column=column,
    )
