"""Statistics of a batch's scores: means with intervals, paired differences, changed rows.

Pure functions over a frame of cases, as `BatchResults.cells` makes it: `row_key`, a column of
labels for each axis, `attempt`, `run_id`, `state` (scored, failed, missing), `value`, `cost_usd`,
`text`; further columns are those of the table. The state is `tied` where people disagree. Intervals
are in `intervals`, words in `verdicts`.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.records import Better
from nbagent.lab.intervals import (
    Difference,
    Interval,
    Values,
    mean_difference,
    mean_interval,
    share_difference,
    share_interval,
    without_noise,
)
from nbagent.lab.repeats import Repeats, check_attempts, estimates, repeats_of
from nbagent.lab.score_kinds import Scores, numeric, scores_of_cases
from nbagent.lab.variant_axes import (
    axis_with_labels,
    checked_axis,
    first_varied_axis,
    grouping_columns,
    labels_of,
)
from nbagent.lab.verdicts import FEWEST_PAIRS, holm, interval_notes, verdict_columns
from nbagent.store.dataframes import empty_frame, frame_of

if TYPE_CHECKING:
    from pandas import DataFrame

Failed = Literal["leave out", "zero"]
"""Value of a case without an answer: none, or 0."""
Flips = Literal["changed", "better", "worse", "all"]
_IS_FLIP = {"changed": operator.ne, "better": operator.gt, "worse": operator.lt}
_SCALED = ("mean", "lo", "hi", "diff", "diff_lo", "diff_hi", "detectable")
_DTYPES = {
    **dict.fromkeys(("mean", "lo", "hi", "diff", "diff_lo", "diff_hi"), "Float64"),
    **dict.fromkeys(("adjusted", "detectable"), "Float64"),
    "verdict": "string",
    **dict.fromkeys(("pairs", "n", "missing", "failed"), "Int64"),
    **dict.fromkeys(("cost_usd", "cost_per_right"), "Float64"),
    "note": "string",
}
_OF_CASES = ("row_key", "attempt", "run_id", "state", "value", "cost_usd", "text")
"""Columns that are neither an axis nor the table's."""
_ONLY_AXIS = "variant"
"""Axis of a batch that varies nothing."""


@dataclass(frozen=True, slots=True)
class _Options:
    """What is compared, checked."""

    over: str
    apart: list[str]
    """Columns whose values are kept apart."""
    within: list[str]
    """All axes but the compared one."""
    base: str
    failed: Failed
    repeats: Repeats | None


@dataclass(frozen=True, slots=True)
class _Cell:
    """One label of the compared axis within a group."""

    labels: dict[str, Any]
    is_base: bool
    rows: Values | None
    """The mean of each row."""
    pairs: Values | None
    """The difference to the baseline of each row that both have."""
    n_attempts: float
    counts: dict[str, Any]
    base_mean: float | None
    """The mean of the baseline's rows."""
    remarks: tuple[str, ...]
    """On its rows and cases."""

    @property
    def n_pairs(self) -> int:
        return 0 if self.pairs is None else len(self.pairs)

    @property
    def is_tested(self) -> bool:
        return not self.is_base and self.n_pairs >= FEWEST_PAIRS


def compare(
    cells: DataFrame,
    axes: Sequence[str],
    *,
    over: str | None = None,
    by: str | Sequence[str] | None = None,
    baseline: str | None = None,
    failed: Failed = "leave out",
    better: Better = "higher",
    is_measure: bool = False,
    pass_at: int | None = None,
    pass_all: int | None = None,
) -> DataFrame:
    """Compare the labels of one axis.

    The unit is the row: attempts, and axes that are neither `over` nor `by`, are averaged within
    it. Scores of True and False, or of 0 and 1, are shares; labels are compared by the share of
    each. A single row, and equal rows of other scores, have no interval.

    A difference is better or worse where `adjusted` is at most 0.05. Its 95 % interval is of this
    comparison alone; where it leaves out 0 and the verdict, adjusted for all comparisons, shows
    nothing, the `note` says so.

    Args:
        cells: the cases; see the module.
        axes: the names of the axes, in the order in which they are varied.
        over: the axis that is compared; the first one with several labels if not given.
        by: axes and columns of the table that are kept apart; all other axes if not given, none
            for `()`.
        baseline: the label that the others are compared with; the first one if not given.
        failed: leave failed cases out of the means, or count them as 0.
        better: direction of the score.
        is_measure: the values are amounts, like tokens; 0 and 1 are then no shares.
        pass_at: compare the chance that at least one of so many attempts is right (pass@k).
        pass_all: compare the chance that all of so many attempts are right (pass^k).

    Returns:
        One row for each label of `over` within each combination of `by`: `mean` with its 95 %
        interval `lo`, `hi`; `diff` to the baseline with `diff_lo`, `diff_hi`, over the `pairs` rows
        that both have; `adjusted`, the p of the difference, adjusted for all comparisons of the
        table (Holm); `detectable`, the smallest true difference that 4 of 5 such comparisons would
        show, if rows vary as they did here and Holm's strictest step is to be passed, up or down;
        the `verdict`; `n` cases in the mean, `missing`, `failed`; `cost_usd` of all cases, and
        `cost_per_right`, for scores from 0 to 1; a `note` on intervals, rows without a partner in
        the baseline, ties between people, and changes that so few rows cannot show.

    Raises:
        UsageError: there is no such axis, column or label, or an option does not fit the scores.
    """
    frame, names = cast("Any", cells), list(axes)
    if not names:
        frame, names = frame.assign(**{_ONLY_AXIS: "the only one"}), [_ONLY_AXIS]
    _check_failed(failed, better)
    over = checked_axis(names, over) if over is not None else first_varied_axis(frame, names)
    of_table = [name for name in frame.columns if name not in (*_OF_CASES, *names)]
    apart = grouping_columns(names, of_table, over, by)
    scores = scores_of_cases(frame, better, is_measure=is_measure)
    options = _Options(
        over=over,
        apart=[*apart, scores.label_column] if scores.label_column else apart,
        within=[name for name in names if name != over],
        base=_baseline(labels_of(frame, over), over, baseline),
        failed=failed,
        repeats=repeats_of(pass_at, pass_all),
    )
    if options.repeats is not None:
        keys = list(dict.fromkeys([*options.apart, *names]))
        check_attempts(_counted(scores.frame, failed), keys, options.repeats)
    dtypes = {**dict.fromkeys((*options.apart, over), "string"), **_DTYPES}
    made: Any = frame_of(_rows([*_cells(scores, options)], scores))
    return made.reindex(columns=list(dtypes)).astype(dtypes)


def flips(
    cells: DataFrame,
    axes: Sequence[str],
    a: str,
    b: str,
    *,
    only: Flips = "changed",
    over: str | None = None,
    better: Better = "higher",
) -> DataFrame:
    """Return the cases whose score differs between two labels of one axis, side by side.

    Cases are paired by row, the other axes and attempt. A pair with only one score is left out.

    Args:
        cells: the cases; see the module.
        axes: the names of the axes.
        a: a label.
        b: another label of the same axis.
        only: `changed`; only those where b is `better` or `worse`; or `all`.
        over: the axis; needed if several have both labels.
        better: direction of the score.

    Returns:
        `row_key`, the other axes, `attempt`, then value, text and run of each label: `value_v1`,
        `value_v2`, `text_v1`, …

    Raises:
        UsageError: no axis has both labels, or several have.
    """
    frame: Any = cells
    if only not in get_args(Flips):
        raise UsageError(f"only={only!r} is unknown; it is one of {', '.join(get_args(Flips))}")
    if only in ("better", "worse"):
        frame = numeric(frame)
    over = axis_with_labels(frame, axes, a, b, over)
    same = ["row_key", *(name for name in axes if name != over), "attempt"]
    columns = {"value": "value", "text": "text", "run_id": "run"}
    scored = frame[(frame["state"] == "scored") & frame["value"].notna()]
    sides = [
        scored[scored[over] == label][[*same, *columns]].rename(
            columns={name: f"{short}_{label}" for name, short in columns.items()}
        )
        for label in (a, b)
    ]
    both = sides[0].merge(sides[1], on=same)
    n_both = len(both)
    if only != "all":
        above, below = (b, a) if better == "higher" else (a, b)
        is_flip = _IS_FLIP[only](both[f"value_{above}"], both[f"value_{below}"])
        both = both[is_flip.astype(bool)].reset_index(drop=True)
    rows = both[[*same, *(f"{short}_{label}" for short in columns.values() for label in (a, b))]]
    return rows if len(rows) else empty_frame(rows, _no_flips(a, b, only, n_both))


def _no_flips(a: str, b: str, only: Flips, n_both: int) -> str:
    """A sentence for a table of differences that has no row."""
    if not n_both:
        return f"no row has a score for both {a!r} and {b!r}"
    rows = f"{n_both:,} row{'s' * (n_both != 1)} with both"
    if only == "changed":
        return f"no score differs between {a!r} and {b!r}, in {rows}"
    return f"no row is {only} with {b!r} than with {a!r}, in {rows}"


# Options


def _check_failed(failed: Failed, better: Better) -> None:
    if failed not in get_args(Failed):
        raise UsageError(f"failed={failed!r} is unknown; it is 'leave out' or 'zero'")
    if failed == "zero" and better == "lower":
        raise UsageError(
            "failed='zero' would count a failed case as the best, because lower is better here; "
            "leave it out, and read the column failed"
        )


def _baseline(labels: list[str], over: str, baseline: str | None) -> str:
    if baseline is not None and baseline not in labels and labels:
        hint = nearest_or_all(baseline, labels, "it has")
        raise UsageError(f"{over!r} has no label {baseline!r}{hint}")
    return baseline if baseline is not None else next(iter(labels), "")


# Cases → one value for each row


def _cells(scores: Scores, options: _Options) -> Iterator[_Cell]:
    """Yield each label within each group, in the order of the cases."""
    over, repeats = options.over, options.repeats
    for group_labels, group in _groups(scores.frame, options.apart):
        counted = _counted(group, options.failed)
        cases = counted.assign(n_attempts=1)
        if repeats is not None:
            cases = estimates(counted, [*options.within, over], repeats)
        rows, pairs, alone = _row_means(cases, options)
        base_rows = rows.get(options.base)
        for label in labels_of(group, over):
            attempts = cases[cases[over] == label]["n_attempts"]
            values = counted[counted[over] == label]["value"]
            own = group[group[over] == label]
            yield _Cell(
                labels={**dict(zip(options.apart, group_labels, strict=True)), over: label},
                is_base=label == options.base,
                rows=rows.get(label),
                pairs=None if label not in pairs else without_noise(pairs[label], scores.largest),
                n_attempts=float(attempts.sum()) / (repeats.k if repeats else 1),
                counts=_count_columns(own, values, int(attempts.sum()), scores.has_rights),
                base_mean=None if base_rows is None else float(base_rows.mean()),
                remarks=_remarks(alone.get(label, 0), int((own["state"] == "tied").sum())),
            )


def _groups(frame: Any, names: list[str]) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the cases of each combination of values."""
    if not names:
        return [((), frame)] if len(frame) else []
    # Cells of a table may be anything: they are compared by their text.
    keys = [frame[name].astype("string") for name in names]
    return list(frame.groupby(keys, sort=False, observed=True, dropna=False))


def _counted(frame: Any, failed: Failed) -> Any:
    """Return the cases that count in means: those with a value."""
    if failed == "zero":
        frame = frame.assign(value=frame["value"].mask(frame["state"] == "failed", 0.0))
    return frame[frame["value"].notna()]


def _remarks(n_alone: int, n_tied: int) -> tuple[str, ...]:
    remarks: list[str] = []
    if n_alone:
        remarks.append(f"{n_alone:,} row{'s' * (n_alone != 1)} without a partner, not in diff")
    if n_tied:
        remarks.append(f"{n_tied:,} tie{'s' * (n_tied != 1)} between people, counted as missing")
    return tuple(remarks)


def _row_means(
    cases: Any, options: _Options
) -> tuple[dict[str, Values], dict[str, Values], dict[str, int]]:
    """Return by label the values of the rows, their differences to the baseline, and the number of
    rows that only one of both has.

    Attempts are averaged first. A difference is taken within the same labels of the other axes, so
    that a row that is missing for some of them is compared with its equals.
    """
    keys, base = ["row_key", *options.within], options.base
    means = (
        cases.groupby([*keys, options.over], observed=True)["value"].mean().unstack(options.over)
    )
    pairs = means.sub(means[base], axis=0) if base in means else means.iloc[:, :0]
    alone = means.iloc[:, :0].isna()
    if base in means:
        alone = means.isna().ne(means[base].isna(), axis=0).groupby("row_key").any()
    return _column_means(means), _column_means(pairs), alone.sum().astype(int).to_dict()


def _column_means(table: Any) -> dict[str, Values]:
    """Return by column the means of the rows that have any value."""
    rows = table.groupby("row_key").mean()
    columns = {name: rows[name].dropna() for name in rows.columns}
    return {name: rows.to_numpy(dtype=float) for name, rows in columns.items() if len(rows)}


def _count_columns(cases: Any, values: Any, n: int, has_rights: bool) -> dict[str, Any]:
    """Count the cases of each state, and add up their cost.

    A failed run without a price counts as free: it has no answer to pay for.
    """
    unknown = cases["run_id"].notna() & (cases["state"] != "failed") & cases["cost_usd"].isna()
    cost = None if bool(unknown.any()) else float(cases["cost_usd"].sum())
    right = float(values.sum()) if has_rights else 0.0
    return {
        "n": n,
        "missing": int(cases["state"].isin(["missing", "tied"]).sum()),
        "failed": int((cases["state"] == "failed").sum()),
        "cost_usd": cost,
        "cost_per_right": cost / right if cost is not None and right > 0 else None,
    }


# Values → columns of the comparison


def _rows(table: Sequence[_Cell], scores: Scores) -> list[dict[str, Any]]:
    """Return the rows of a comparison."""
    n_tests = sum(cell.is_tested for cell in table)
    differences = [_difference(cell, scores, max(1, n_tests)) for cell in table]
    adjusted = holm(
        [
            difference.p if difference is not None and cell.is_tested else None
            for cell, difference in zip(table, differences, strict=True)
        ]
    )
    rows: list[dict[str, Any]] = []
    for cell, difference, p in zip(table, differences, adjusted, strict=True):
        means, notes = _mean_columns(cell, scores)
        row = {**cell.labels, **means, **cell.counts}
        if cell.is_base:
            row |= {"verdict": "baseline", "pairs": cell.n_pairs}
        else:
            base_share = cell.base_mean if scores.is_share else None
            columns, more = verdict_columns(difference, cell.n_pairs, p, scores.names, base_share)
            row, notes = row | columns, notes + more
        row["note"] = "; ".join([*notes, *cell.remarks]) or None
        rows.append(row | {name: _times(row.get(name), scores.scale) for name in _SCALED})
    return rows


def _difference(cell: _Cell, scores: Scores, n_tests: int) -> Difference | None:
    if cell.is_base or cell.pairs is None or cell.rows is None:
        return None
    if not scores.is_share:
        return mean_difference(cell.pairs, n_tests)
    n_attempts = cell.n_attempts * cell.n_pairs / len(cell.rows)
    return share_difference(cell.pairs, n_attempts, n_tests)


def _mean_columns(cell: _Cell, scores: Scores) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of a mean, and remarks on its interval."""
    if cell.rows is None:
        return {}, []
    is_share, rows = scores.is_share, cell.rows
    interval = share_interval(rows, cell.n_attempts) if is_share else mean_interval(rows)
    notes = interval_notes(
        len(rows),
        is_share=is_share,
        has_interval=interval != Interval(),
        only_value=scores.only_value,
    )
    return {"mean": float(rows.mean()), "lo": interval.lo, "hi": interval.hi}, notes


def _times(value: float | None, scale: float) -> float | None:
    """Return a scaled value, at most the largest float: a difference may be beyond it."""
    most = sys.float_info.max
    return None if value is None else max(-most, min(most, value * scale))
