"""Statistics of a batch's scores: means with intervals, paired differences, changed rows.

Pure functions over a frame of cases, as `Batch.cells` makes it: `row_key`, a column of labels for
each axis, `attempt`, `run_id`, `state` (scored, failed, missing), `value`, `cost_usd`, `text`. Only
this module of the package imports numpy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.store.dataframes import empty_frame, frame_of

if TYPE_CHECKING:
    from pandas import DataFrame

Failed = Literal["leave out", "zero"]
"""Value of a case without an answer: none, or 0."""
Flips = Literal["changed", "better", "worse", "all"]
_IS_FLIP = {"changed": operator.ne, "better": operator.gt, "worse": operator.lt}
FEWEST_PAIRS = 6
"""Fewer pairs get no verdict: 5 rows all change in one direction by chance in 1 of 16 comparisons
(2 × ½⁵), more often than the 1 of 20 that a 95 % interval allows."""
_DTYPES = {
    **dict.fromkeys(("mean", "lo", "hi", "diff", "diff_lo", "diff_hi"), "Float64"),
    "verdict": "string",
    **dict.fromkeys(("pairs", "n", "missing", "failed"), "Int64"),
    **dict.fromkeys(("cost_usd", "cost_per_right"), "Float64"),
}
_MAX_DRAWN = 1_000_000
"""Values drawn at once: about 12 MB, for any number of samples."""
_DECIMALS = 12
"""Smaller differences are rounding errors of floats: 0.1 + 0.2 is no better than 0.3."""
_ONLY_AXIS = "variant"
"""Axis of a batch that varies nothing."""


def compare(
    cells: DataFrame,
    axes: Sequence[str],
    *,
    over: str | None = None,
    by: str | Sequence[str] | None = None,
    baseline: str | None = None,
    failed: Failed = "leave out",
    seed: int = 0,
    samples: int = 10_000,
) -> DataFrame:
    """Compare the labels of one axis.

    The unit is the row: attempts, and axes that are neither `over` nor `by`, are averaged within
    it. A higher score is better. A single row has no interval; rows that all have one value have an
    interval without width.

    Args:
        cells: the cases; see the module.
        axes: the names of the axes, in the order in which they are varied.
        over: the axis that is compared; the first one with several labels if not given.
        by: the axes that are kept apart; all others if not given, none for `()`.
        baseline: the label that the others are compared with; the first one if not given.
        failed: leave failed cases out of the means, or count them as 0.
        seed: seed of the random numbers; the same cells and seed give the same frame.
        samples: number of bootstrap samples.

    Returns:
        One row for each label of `over` within each combination of `by`: `mean` with its 95 %
        bootstrap interval `lo`, `hi`; `diff` to the baseline with `diff_lo`, `diff_hi`, over the
        `pairs` rows that both have; the `verdict`; `n` cases in the mean, `missing`, `failed`;
        `cost_usd` of all cases, and `cost_per_right`, for scores from 0 to 1.

    Raises:
        UsageError: there is no such axis or label, or the scores are labels.
    """
    frame, names = _numbers(cells), list(axes)
    if not names:
        frame, names = frame.assign(**{_ONLY_AXIS: "the only one"}), [_ONLY_AXIS]
    if failed not in get_args(Failed):
        raise UsageError(f"failed={failed!r} is unknown; it is 'leave out' or 'zero'")
    over = _axis(names, over) if over is not None else _first_varied_axis(frame, names)
    apart = (
        [name for name in names if name != over] if by is None else _grouping_axes(names, over, by)
    )
    labels = _labels(frame, over)
    if baseline is not None and baseline not in labels and labels:
        hint = nearest_or_all(baseline, labels, "it has")
        raise UsageError(f"{over!r} has no label {baseline!r}{hint}")
    base = baseline if baseline is not None else next(iter(labels), "")
    is_share = bool(frame["value"].dropna().between(0, 1).all())
    rows: list[dict[str, Any]] = []
    for group_labels, group in _groups(frame, apart):
        values = _counted(group, failed)
        means, pairs = _row_means(values, [name for name in names if name != over], over, base)
        for label in _labels(group, over):
            mine = group[group[over] == label]
            row = _mean_columns(means.get(label), seed, samples)
            row |= _difference_columns(pairs.get(label), label == base, seed, samples)
            row |= _count_columns(mine, values[values[over] == label]["value"], is_share)
            rows.append({**dict(zip(apart, group_labels, strict=True)), over: label, **row})
    made: Any = frame_of(rows)
    dtypes = {**dict.fromkeys((*apart, over), "string"), **_DTYPES}
    return made.reindex(columns=list(dtypes)).astype(dtypes)


def flips(
    cells: DataFrame,
    axes: Sequence[str],
    a: str,
    b: str,
    *,
    only: Flips = "changed",
    over: str | None = None,
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
        frame = _numbers(cells)
    over = _axis_with_labels(frame, axes, a, b, over)
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
        is_flip = _IS_FLIP[only](both[f"value_{b}"], both[f"value_{a}"])
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


# Axes and labels


def _axis(axes: Sequence[str], name: str) -> str:
    if name not in axes:
        hint = nearest_or_all(name, axes, "the axes are") or "; nothing is varied"
        raise UsageError(f"there is no axis {name!r}{hint}")
    return name


def _first_varied_axis(frame: Any, axes: Sequence[str]) -> str:
    return next((axis for axis in axes if len(_labels(frame, axis)) > 1), axes[0])


def _grouping_axes(axes: Sequence[str], over: str, by: str | Sequence[str]) -> list[str]:
    names = [_axis(axes, name) for name in ([by] if isinstance(by, str) else by)]
    if over in names:
        raise UsageError(
            f"{over!r} cannot be in both over= and by=; choose another axis for one of them"
        )
    return list(dict.fromkeys(names))


def _axis_with_labels(frame: Any, axes: Sequence[str], a: str, b: str, over: str | None) -> str:
    """Return the axis that has both labels; raise UsageError if none or several have."""
    if a == b:
        raise UsageError(f"{a!r} is compared with itself; give two labels of one axis")
    among = [_axis(axes, over)] if over is not None else axes
    labels = {name: _labels(frame, name) for name in among}
    matches = [name for name, there in labels.items() if {a, b} <= set(there)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(
            f"{a!r} and {b!r} are labels of {', '.join(matches)}; choose one with over="
        )
    there = "; ".join(f"{name}: {', '.join(axis_labels)}" for name, axis_labels in labels.items())
    raise UsageError(f"no axis has both {a!r} and {b!r}; the labels are {there or 'none'}")


def _labels(frame: Any, axis: str) -> list[str]:
    """Return the labels of an axis, in the order of the cases."""
    return list(dict.fromkeys(frame[axis].tolist()))


def _groups(frame: Any, names: list[str]) -> list[tuple[tuple[str, ...], Any]]:
    """Return the cases of each combination of labels."""
    if not names:
        return [((), frame)] if len(frame) else []
    return list(frame.groupby(names, sort=False, observed=True))


# Cases → one value for each row


def _numbers(cells: DataFrame) -> Any:
    """Return the cases with numeric values, of scored cases only."""
    frame = cast("Any", cells)
    texts = [value for value in frame["value"].dropna().tolist() if isinstance(value, str)]
    if texts:
        raise UsageError(
            f"the scores are labels, like {texts[0]!r}, and have no mean; let the scorer return a "
            "number or a bool"
        )
    values = frame["value"].astype("Float64")  # a person may have scored a failed run
    return frame.assign(value=values.where(frame["state"] == "scored"))


def _counted(frame: Any, failed: Failed) -> Any:
    """Return the cases that count in means: those with a value."""
    if failed == "zero":
        frame = frame.assign(value=frame["value"].mask(frame["state"] == "failed", 0.0))
    return frame[frame["value"].notna()]


def _row_means(
    counted: Any, others: list[str], over: str, base: str
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """Return by label the values of the rows, and their differences to the baseline.

    Attempts are averaged first. A difference is taken within the same labels of the other axes, so
    that a row that is missing for some of them is compared with its equals.
    """
    keys = ["row_key", *others]
    cases = counted.groupby([*keys, over], observed=True)["value"].mean().unstack(over)
    pairs = cases.sub(cases[base], axis=0) if base in cases else cases.iloc[:, :0]
    return _column_means(cases), _column_means(pairs)


def _column_means(table: Any) -> dict[str, NDArray[np.float64]]:
    """Return by column the means of the rows that have any value."""
    rows = table.groupby("row_key").mean()
    return {name: rows[name].dropna().to_numpy(dtype=np.float64) for name in rows.columns}


# Values → columns of the comparison


def _mean_columns(values: NDArray[np.float64] | None, seed: int, samples: int) -> dict[str, Any]:
    if values is None:
        return {}
    lo, hi = _interval(values, seed, samples)
    return {"mean": float(values.mean()), "lo": lo, "hi": hi}


def _difference_columns(
    values: NDArray[np.float64] | None, is_base: bool, seed: int, samples: int
) -> dict[str, Any]:
    if is_base:
        return {"verdict": "baseline", "pairs": 0 if values is None else len(values)}
    if values is None or not len(values):
        return {"verdict": "too few pairs", "pairs": 0}
    lo, hi = _interval(values, seed, samples)
    result = {"diff": float(values.mean()), "diff_lo": lo, "diff_hi": hi, "pairs": len(values)}
    if lo is None or hi is None or len(values) < FEWEST_PAIRS:
        return {**result, "verdict": "too few pairs"}
    verdict = "better" if lo > 0 else "worse" if hi < 0 else "no difference"
    return {**result, "verdict": verdict}


def _count_columns(cases: Any, values: Any, is_share: bool) -> dict[str, Any]:
    """Count the cases of each state, and add up their cost.

    A failed run without a price counts as free: it has no answer to pay for.
    """
    unknown = cases["run_id"].notna() & (cases["state"] != "failed") & cases["cost_usd"].isna()
    cost = None if bool(unknown.any()) else float(cases["cost_usd"].sum())
    right = float(values.sum()) if is_share else 0.0
    return {
        "n": len(values),
        "missing": int((cases["state"] == "missing").sum()),
        "failed": int((cases["state"] == "failed").sum()),
        "cost_usd": cost,
        "cost_per_right": cost / right if cost is not None and right > 0 else None,
    }


def _interval(
    values: NDArray[np.float64], seed: int, samples: int
) -> tuple[float | None, float | None]:
    """Return the 95 % percentile bootstrap interval of the mean; none for fewer than 2 values.

    The same values and seed give the same interval, whatever else is compared.
    """
    n = len(values)
    if n < 2:
        return None, None
    random, means = np.random.default_rng(seed), np.empty(samples)
    step = max(1, _MAX_DRAWN // n)
    for start in range(0, samples, step):
        size = (min(step, samples - start), n)
        # uint32: half the memory of the default.
        drawn = random.integers(0, n, size, dtype=np.uint32)
        means[start : start + step] = values[drawn].mean(axis=1)
    tail = _tail(n)
    # numpy's overloads of quantile are partly unknown to a type checker.
    quantile: Any = cast("Any", np).quantile
    lo, hi = quantile(means, [tail, 1 - tail]).round(_DECIMALS).tolist()
    return lo, hi


def _tail(n: int) -> float:
    """Return the share of means that is cut off at each end: 0.025, less for few values.

    Means of n drawn values spread less than means of n new ones; cut at 0.025, the interval of 6
    values holds the true mean in 87 % of all cases only. At this share it is as wide as Student's
    interval where the values are normal (Hesterberg 2015, "What teachers should know about the
    bootstrap", 3.3, "expanded percentile").
    """
    z, df = NormalDist().inv_cdf(0.975), n - 1
    # Student's t by its expansion around z (Abramowitz & Stegun 26.7.5).
    t = z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    t += (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    return NormalDist().cdf(-t * (n / df) ** 0.5)
