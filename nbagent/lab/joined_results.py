"""Two batches as one, with the batch as the first axis: to compare them row by row. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError
from nbagent.store.saved_batches import plain_cell, short_name
from nbagent.view.text_format import pluralize

BATCH_AXIS = "batch"
"""Name of the axis whose labels are the batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedResults:
    """Cases of two batches, and the rows that they do not share."""

    labels: tuple[str, str]
    results: tuple[CaseResult, ...]
    only_first: tuple[str, ...]
    only_second: tuple[str, ...]
    changed: tuple[str, ...]
    """Rows of the same key whose cells differ. They are no pair."""
    n_pairs: int

    def sentences(self) -> list[str]:
        """Say which rows are not compared; empty if all are."""
        first, second = self.labels
        made: list[str] = []
        for keys, where in (
            (self.only_first, f"only in {first!r}"),
            (self.only_second, f"only in {second!r}"),
            (self.changed, f"not the same in {first!r} and {second!r}, although the key is"),
        ):
            if keys:
                verb = "is" if len(keys) == 1 else "are"
                made.append(f"{pluralize(len(keys), 'row')} {verb} {where} (first: {keys[0]!r})")
        return made


def join_results(
    first: Sequence[CaseResult], second: Sequence[CaseResult], labels: tuple[str, str]
) -> JoinedResults:
    """Join the cases of two batches under these labels; rows with the same cells are pairs.

    Raises:
        UsageError: they vary different axes, or one has an axis `batch`.
    """
    first, second = with_short_names(first), with_short_names(second)
    _check_axes(first, second, labels)
    rows = [{result.row_key: result.cells for result in results} for results in (first, second)]
    common = [key for key in rows[0] if key in rows[1]]
    changed = [key for key in common if not _is_same_row(rows[0][key], rows[1][key])]
    unpaired, cases = {*changed}, list[CaseResult]()
    for label, results in zip(labels, (first, second), strict=True):
        for result in results:
            key = result.row_key
            # Another row of the same key is no pair of this one.
            key = f"{key} ({label})" if key in unpaired else key
            cases.append(replace(result, row_key=key, labels={BATCH_AXIS: label, **result.labels}))
    return JoinedResults(
        labels=labels,
        results=tuple(cases),
        only_first=tuple(key for key in rows[0] if key not in rows[1]),
        only_second=tuple(key for key in rows[1] if key not in rows[0]),
        changed=tuple(changed),
        n_pairs=len(common) - len(changed),
    )


def with_short_names(results: Sequence[CaseResult]) -> list[CaseResult]:
    """Shorten keys and labels as a file does, so that a batch fits its own baseline."""
    return [
        replace(
            result,
            row_key=short_name(result.row_key),
            labels={short_name(axis): short_name(label) for axis, label in result.labels.items()},
        )
        for result in results
    ]


def _check_axes(
    first: Sequence[CaseResult], second: Sequence[CaseResult], labels: tuple[str, str]
) -> None:
    axes = [
        dict.fromkeys(axis for case in cases for axis in case.labels) for cases in (first, second)
    ]
    if BATCH_AXIS in axes[0] or BATCH_AXIS in axes[1]:
        raise UsageError(f"an axis of a batch is named {BATCH_AXIS!r}; rename it to compare two")
    if first and second and axes[0].keys() != axes[1].keys():
        names = [", ".join(batch_axes) or "nothing" for batch_axes in axes]
        raise UsageError(
            f"{labels[0]!r} varies {names[0]}, {labels[1]!r} varies {names[1]}; take one "
            "variant of the batch that varies more: batch.only(prompt='v1')"
        )


def _is_same_row(first: Mapping[str, object], second: Mapping[str, object]) -> bool:
    """Compare the cells of the columns that both have; cells that were not saved are unknown."""
    return all(
        plain_cell(cell) == plain_cell(second[column])
        for column, cell in first.items()
        if column in second
    )


def joined_labels(first: str, second: str) -> tuple[str, str]:
    """Return labels for two batches of these names; the second gets a number if they are equal."""
    return (first, second) if first != second else (first, f"{second} (2)")
