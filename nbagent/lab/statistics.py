"""What the scores of a batch tell: means with intervals, paired differences, rows that flipped.

Pure functions over a frame of cases, as `Batch.cells` makes it: `row_key`, a column of labels for
each axis, `attempt`, `run_id`, `state` (scored, failed, missing), `value`, `cost_usd`, `text`. The
only module of the lab that knows numpy.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from nbagent.contracts.errors import UsageError
from nbagent.store.dataframes import frame_of

if TYPE_CHECKING:
    from pandas import DataFrame

Failed = Literal["leave out", "zero"]
"""What becomes of a case whose run or scorer failed: no value, or a value of 0."""
Flips = Literal["changed", "better", "worse", "all"]
_IS_FLIP = {"changed": operator.ne, "better": operator.gt, "worse": operator.lt}
FEWEST_PAIRS = 6
"""Of fewer pairs no verdict is given: that 5 rows all change in one direction happens by chance in
1 of 16 comparisons (2 × ½⁵), more often than the 1 of 20 that a 95 % interval allows."""
_DTYPES = {
    **dict.fromkeys(("mean", "lo", "hi", "diff", "diff_lo", "diff_hi"), "Float64"),
    "verdict": "string",
    **dict.fromkeys(("pairs", "n", "missing", "failed"), "Int64"),
    **dict.fromkeys(("cost_usd", "cost_per_right"), "Float64"),
}
_DRAWN_AT_ONCE = 1_000_000
_DECIMALS = 12
"""What is less is the noise of floats: 0.1 + 0.2 is no better than 0.3."""
_ALONE = "variant"
"""The axis of a batch that varies nothing."""


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
    """Hold the labels of one axis against each other.

    The unit is the row: attempts, and axes that are neither `over` nor `by`, are averaged within
    it. A higher score is better. Of 1 row there is no interval; of rows that all have one value it
    has no width.

    Args:
        cells: the cases; see the module.
        axes: the names of the axes, in the order in which they are varied.
        over: the axis that is compared; the first one with several labels if not given.
        by: the axes that are kept apart; all others if not given, none for `()`.
        baseline: the label that the others are held against; the first one if not given.
        failed: whether a failed case is left out of the means, or counts as 0.
        seed: of the random numbers; the same cells and seed give the same frame.
        samples: how often the rows are drawn.

    Returns:
        One row for each label of `over` within each combination of `by`: `mean` with its 95 %
        bootstrap interval `lo`, `hi`; `diff` to the baseline with `diff_lo`, `diff_hi`, over the
        `pairs` rows that both have; the `verdict`; `n` cases in the mean, `missing`, `failed`;
        `cost_usd` of all cases, and `cost_per_right`, for scores from 0 to 1.

    Raises:
        UsageError: there is no such axis or label, or the scores are words.
    """
    frame, names = _numbers(cells), list(axes)
    if not names:
        frame, names = frame.assign(**{_ALONE: "the only one"}), [_ALONE]
    if failed not in get_args(Failed):
        raise UsageError(f"failed={failed!r} is unknown; it is 'leave out' or 'zero'")
    over = _axis(names, over) if over is not None else _varied(frame, names)
    apart = [it for it in names if it != over] if by is None else _apart(names, over, by)
    labels = _labels(frame, over)
    if baseline is not None and baseline not in labels and labels:
        raise UsageError(f"{over!r} has no label {baseline!r}; it has {', '.join(labels)}")
    base = baseline if baseline is not None else next(iter(labels), "")
    is_share = bool(frame["value"].dropna().between(0, 1).all())
    rows: list[dict[str, Any]] = []
    for place, group in _groups(frame, apart):
        values = _counted(group, failed)
        means, pairs = _of_rows(values, [it for it in names if it != over], over, base)
        for label in _labels(group, over):
            mine = group[group[over] == label]
            found = _mean(means.get(label), seed, samples)
            found |= _difference(pairs.get(label), label == base, seed, samples)
            found |= _counts(mine, values[values[over] == label]["value"], is_share)
            rows.append({**dict(zip(apart, place, strict=True)), over: label, **found})
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
    """The cases whose score differs between two labels of one axis, side by side.

    Cases are paired by row, the other axes and attempt; one that is not scored on both sides is
    left out.

    Args:
        cells: the cases; see the module.
        axes: the names of the axes.
        a: a label.
        b: another label of the same axis.
        only: `changed`, those where b is `better` or `worse`, or `all`.
        over: the axis, where several have both labels.

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
    over = _with_both(frame, axes, a, b, over)
    same = ["row_key", *(it for it in axes if it != over), "attempt"]
    columns = {"value": "value", "text": "text", "run_id": "run"}
    scored = frame[(frame["state"] == "scored") & frame["value"].notna()]
    sides = [
        scored[scored[over] == label][[*same, *columns]].rename(
            columns={name: f"{short}_{label}" for name, short in columns.items()}
        )
        for label in (a, b)
    ]
    both = sides[0].merge(sides[1], on=same)
    if only != "all":
        kept = _IS_FLIP[only](both[f"value_{b}"], both[f"value_{a}"])
        both = both[kept.astype(bool)].reset_index(drop=True)
    return both[[*same, *(f"{short}_{label}" for short in columns.values() for label in (a, b))]]


# Which axes and labels are meant


def _axis(axes: Sequence[str], name: str) -> str:
    if name not in axes:
        there = f"the axes are {', '.join(axes)}" if axes else "nothing is varied"
        raise UsageError(f"there is no axis {name!r}; {there}")
    return name


def _varied(frame: Any, axes: Sequence[str]) -> str:
    return next((it for it in axes if len(_labels(frame, it)) > 1), axes[0])


def _apart(axes: Sequence[str], over: str, by: str | Sequence[str]) -> list[str]:
    names = [_axis(axes, it) for it in ([by] if isinstance(by, str) else by)]
    if over in names:
        raise UsageError(f"{over!r} is compared; give other axes in by=, or another one in over=")
    return list(dict.fromkeys(names))


def _with_both(frame: Any, axes: Sequence[str], a: str, b: str, over: str | None) -> str:
    """The axis that has two labels."""
    if a == b:
        raise UsageError(f"{a!r} is compared with itself; give two labels of one axis")
    among = [_axis(axes, over)] if over is not None else axes
    labels = {name: _labels(frame, name) for name in among}
    found = [name for name, there in labels.items() if {a, b} <= set(there)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{a!r} and {b!r} are labels of {', '.join(found)}; say which with over=")
    there = "; ".join(f"{name}: {', '.join(words)}" for name, words in labels.items())
    raise UsageError(f"no axis has both {a!r} and {b!r}; the labels are {there or 'none'}")


def _labels(frame: Any, axis: str) -> list[str]:
    """The labels of an axis, in the order of the cases."""
    return list(dict.fromkeys(frame[axis].tolist()))


def _groups(frame: Any, names: list[str]) -> list[tuple[tuple[str, ...], Any]]:
    """The cases of each combination of labels."""
    if not names:
        return [((), frame)] if len(frame) else []
    return list(frame.groupby(names, sort=False, observed=True))


# Cases → one value for each row


def _numbers(cells: DataFrame) -> Any:
    """The cases, with values that can be added up: those of scored cases only."""
    frame = cast("Any", cells)
    words = [it for it in frame["value"].dropna().tolist() if isinstance(it, str)]
    if words:
        raise UsageError(
            f"the scores are words, like {words[0]!r}, and have no mean; let the scorer return a "
            "number or a bool"
        )
    values = frame["value"].astype("Float64")  # a person may have scored a run that failed
    return frame.assign(value=values.where(frame["state"] == "scored"))


def _counted(frame: Any, failed: Failed) -> Any:
    """The cases that count in means: those that have a value."""
    if failed == "zero":
        frame = frame.assign(value=frame["value"].mask(frame["state"] == "failed", 0.0))
    return frame[frame["value"].notna()]


def _of_rows(
    counted: Any, others: list[str], over: str, base: str
) -> tuple[dict[str, NDArray[np.float64]], dict[str, NDArray[np.float64]]]:
    """For each label the values of the rows, and their differences to the baseline.

    Attempts are averaged first. A difference is taken within the same labels of the other axes, so
    that a row that was asked with fewer of them is held against like.
    """
    keys = ["row_key", *others]
    cases = counted.groupby([*keys, over], observed=True)["value"].mean().unstack(over)
    pairs = cases.sub(cases[base], axis=0) if base in cases else cases.iloc[:, :0]
    return _columns(cases), _columns(pairs)


def _columns(table: Any) -> dict[str, NDArray[np.float64]]:
    """For each column the means of the rows that have any."""
    rows = table.groupby("row_key").mean()
    return {name: rows[name].dropna().to_numpy(dtype=np.float64) for name in rows.columns}


# Values → what is said


def _mean(values: NDArray[np.float64] | None, seed: int, samples: int) -> dict[str, Any]:
    if values is None:
        return {}
    lo, hi = _interval(values, seed, samples)
    return {"mean": float(values.mean()), "lo": lo, "hi": hi}


def _difference(
    values: NDArray[np.float64] | None, is_base: bool, seed: int, samples: int
) -> dict[str, Any]:
    if is_base:
        return {"verdict": "baseline", "pairs": 0 if values is None else len(values)}
    if values is None or not len(values):
        return {"verdict": "too few pairs", "pairs": 0}
    lo, hi = _interval(values, seed, samples)
    found = {"diff": float(values.mean()), "diff_lo": lo, "diff_hi": hi, "pairs": len(values)}
    if lo is None or hi is None or len(values) < FEWEST_PAIRS:
        return {**found, "verdict": "too few pairs"}
    verdict = "better" if lo > 0 else "worse" if hi < 0 else "no difference"
    return {**found, "verdict": verdict}


def _counts(cases: Any, values: Any, is_share: bool) -> dict[str, Any]:
    """How many cases there are of each state, and what they cost.

    A run that failed without a price is taken to have cost nothing: it had no answer to pay for.
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
    """The 95 % percentile bootstrap interval of the mean; none of fewer than 2 values.

    The same values and seed give the same interval, whatever else is compared.
    """
    n = len(values)
    if n < 2:
        return None, None
    random, means = np.random.default_rng(seed), np.empty(samples)
    step = max(1, _DRAWN_AT_ONCE // n)
    for start in range(0, samples, step):
        size = (min(step, samples - start), n)
        drawn = random.integers(0, n, size, dtype=np.uint32)
        means[start : start + step] = values[drawn].mean(axis=1)
    tail = _tail(n)
    # Its overloads are partly unknown to a type checker.
    quantile: Any = cast("Any", np).quantile
    lo, hi = quantile(means, [tail, 1 - tail]).round(_DECIMALS).tolist()
    return lo, hi


def _tail(n: int) -> float:
    """The share of means that is cut off at each end: 0.025, less for few values.

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
