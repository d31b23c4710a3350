"""Agreement of raters: people and judges who scored the same answers.

Every coefficient is `1 - D / E`: the disagreement D that there is, over the disagreement E that
chance alone would give. Its interval is Wilson's for the share of equal pairs, with as many cases
as the jackknife over rows says they are worth; so it has a width also where all agree.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError
from nbagent.contracts.nearest import nearest_or_all
from nbagent.contracts.records import ScoreRecord
from nbagent.lab.distributions import t_quantile
from nbagent.store.dataframes import frame_of

if TYPE_CHECKING:
    from pandas import DataFrame

Level = Literal["nominal", "ordinal", "interval"]
Matrix = NDArray[np.float64]
_SEPARATOR = " · "
FEWEST_CASES = 5
"""With fewer rows an interval would be a guess, so there is none."""
_Z = NormalDist().inv_cdf(0.975)
_MAX_VALUES = 500
"""Different numbers that are compared with each other; more are no labels."""
_TEXT_COLUMNS = ("raters", "method", "level", "note")
_NUMBER_COLUMNS = (
    *("agreement", "agreement_lo", "agreement_hi", "kappa", "lo", "hi"),
    *("alpha", "alpha_lo", "alpha_hi"),
)
_COLUMNS = ("raters", "n", *_NUMBER_COLUMNS, "method", "level", "note")
_DTYPES = {
    **dict.fromkeys(_TEXT_COLUMNS, "string"),
    "n": "Int64",
    **dict.fromkeys(_NUMBER_COLUMNS, "Float64"),
}


@dataclass(frozen=True, slots=True)
class _Ratings:
    """Ratings of all cases: a row for each case, a column for each rater."""

    codes: NDArray[np.int64]
    """Index of the value; -1 for no rating."""
    clusters: NDArray[np.int64]
    """Index of the table's row of each case: answers to one row are not independent."""
    values: Matrix
    """Numbers of the values, in their order; indexes for labels."""
    level: Level


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over the cases of each cluster, of which a coefficient is made."""

    differ: Matrix
    """Disagreement of the pairs."""
    unequal: Matrix
    """Disagreement of the pairs, if each unequal pair counts 1."""
    weight: Matrix
    left: Matrix
    """Number of each value in the first place of a pair; a row for each cluster."""
    right: Matrix
    distance: Matrix
    """Disagreement of two values."""
    n_less: int = 0
    """1 if a rating is not paired with itself by chance, as in Krippendorff's alpha."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """An agreement with its 95 % interval; NaN where it is not defined."""

    value: float = math.nan
    lo: float = math.nan
    hi: float = math.nan


# Public: cases → frame


def agreement(
    cases: Sequence[CaseResult],
    names: Sequence[str] = (),
    *,
    level: Level | None = None,
    right_from: float | None = None,
) -> DataFrame:
    """Build the frame of `agreement()` of a batch.

    Raises:
        UsageError: there is no such score, fewer than two raters, or their scores cannot be
            compared.
    """
    if level is not None and level not in get_args(Level):
        raise UsageError(f"level={level!r}: give {', '.join(map(repr, get_args(Level)))}")
    columns = _ratings_by_rater(cases, names)
    values = {rater: _rated_values(own, right_from) for rater, own in columns.items()}
    blocks = [values] if names else _blocks_of_kinds(values)
    rows = [row for block in blocks for row in _rows(block, _ratings(cases, block, level))]
    frame: Any = frame_of(rows)
    return frame[[*_COLUMNS]].astype(_DTYPES)


def _rows(raters: Iterable[str], ratings: _Ratings) -> list[dict[str, Any]]:
    names = [*raters]
    rows = [
        _pair_row((names[a], names[b]), ratings, (a, b))
        for a, b in combinations(range(len(names)), 2)
    ]
    return [*rows, _row_of_all(names, ratings)] if len(names) > 2 else rows


def _blocks_of_kinds(
    values: Mapping[str, Mapping[int, bool | float | str]],
) -> list[Mapping[str, Mapping[int, bool | float | str]]]:
    """Return the raters by the kind of their values, if each then has another to agree with."""
    blocks: dict[frozenset[str], dict[str, Mapping[int, bool | float | str]]] = {}
    for rater, own in values.items():
        blocks.setdefault(frozenset(map(_kind, own.values())), {})[rater] = own
    is_whole = all(len(kinds) == 1 and len(block) > 1 for kinds, block in blocks.items())
    return [*blocks.values()] if is_whole else [values]


def _ratings_by_rater(
    cases: Sequence[CaseResult], names: Sequence[str]
) -> dict[str, dict[int, ScoreRecord]]:
    """Return the scores of each rater, by the index of the case."""
    known = dict.fromkeys(score.scorer for case in cases for score in case.scores)
    for name in names:
        if name not in known:
            raise UsageError(f"{name!r} is no score of this batch{nearest_or_all(name, known)}")
    chosen = names or _names_of_raters(cases) or known
    by_key: dict[tuple[str, str, bool], dict[int, ScoreRecord]] = {}
    for index, case in enumerate(cases):
        for score in case.scores:
            if score.scorer in chosen and score.value is not None:
                # The version and the model of a judge may change within a batch.
                key = (score.scorer, score.by if score.is_label else "", score.is_label)
                by_key.setdefault(key, {})[index] = score
    if len(by_key) < 2:
        there = ", ".join(map(repr, known)) or "none"
        raise UsageError(
            f"agreement needs two raters of the same answers, and there is {len(by_key)}: let a "
            "second person label them with batch.review(by='ben'), or name the score of a judge "
            f"too; the scores are {there}"
        )
    shares_name = Counter(by for _, by, is_label in by_key if is_label)
    raters: dict[str, dict[int, ScoreRecord]] = {}
    for (name, by, is_label), own in by_key.items():
        person = by if shares_name[by] == 1 else f"{by} ({name})"
        raters[person if is_label else name if name not in shares_name else f"{name} (scorer)"] = (
            own
        )
    return raters


def _names_of_raters(cases: Sequence[CaseResult]) -> dict[str, None]:
    """Return the scores that people or judges gave."""
    scores = (score for case in cases for score in case.scores)
    return dict.fromkeys(
        score.scorer for score in scores if score.is_label or score.judge_run_id is not None
    )


def _rated_values(
    own: Mapping[int, ScoreRecord], right_from: float | None
) -> dict[int, bool | float | str]:
    values: dict[int, bool | float | str] = {}
    for index, score in own.items():
        value = score.value
        if value is None:
            continue
        is_number = not isinstance(value, bool | str)
        values[index] = value >= right_from if is_number and right_from is not None else value
    return values


def _ratings(
    cases: Sequence[CaseResult],
    raters: Mapping[str, Mapping[int, bool | float | str]],
    level: Level | None,
) -> _Ratings:
    kinds = {rater: {_kind(value) for value in own.values()} for rater, own in raters.items()}
    all_kinds = set[str]().union(*kinds.values())
    if len(all_kinds) > 1:
        shown = "; ".join(f"{rater}: {', '.join(sorted(own))}" for rater, own in kinds.items())
        raise UsageError(
            f"these scores cannot be compared ({shown}); give right_from=4 to count numbers of at "
            "least 4 as true, or name scores of one kind"
        )
    is_number = all_kinds == {"number"}
    if level in ("ordinal", "interval") and not is_number:
        raise UsageError(f"level={level!r} needs numbers; these scores are {all_kinds.pop()}s")
    values = sorted({value for own in raters.values() for value in own.values()}, key=_order)
    if len(values) > _MAX_VALUES:
        raise UsageError(f"{len(values):,} different values are no labels; the most is 500")
    codes = np.full((len(cases), len(raters)), -1, dtype=np.int64)
    index_of = {value: index for index, value in enumerate(values)}
    for column, own in enumerate(raters.values()):
        for row, value in own.items():
            codes[row, column] = index_of[value]
    rows = {key: i for i, key in enumerate(dict.fromkeys(case.row_key for case in cases))}
    return _Ratings(
        codes=codes,
        clusters=np.array([rows[case.row_key] for case in cases], dtype=np.int64),
        values=np.array(values if is_number else range(len(values)), dtype=np.float64),
        level=level or ("ordinal" if is_number else "nominal"),
    )


def _kind(value: bool | float | str) -> str:
    return "verdict" if isinstance(value, bool) else "label" if isinstance(value, str) else "number"


def _order(value: bool | float | str) -> Any:
    return value


# Rows of the frame


def _pair_row(raters: Sequence[str], ratings: _Ratings, pair: tuple[int, int]) -> dict[str, Any]:
    codes = ratings.codes[:, list(pair)]
    both = (codes >= 0).all(axis=1)
    part = replace(ratings, codes=codes[both], clusters=ratings.clusters[both])
    weights = "" if ratings.level == "nominal" else ", quadratic weights"
    return _row(raters, part, cohen_sums, f"Cohen's kappa{weights}")


def _row_of_all(raters: Sequence[str], ratings: _Ratings) -> dict[str, Any]:
    enough = (ratings.codes >= 0).sum(axis=1) >= 2
    part = replace(ratings, codes=ratings.codes[enough], clusters=ratings.clusters[enough])
    row = _row(raters, part, fleiss_sums, "Fleiss' kappa")
    n_whole = int((part.codes >= 0).all(axis=1).sum())
    if n_whole < row["n"]:
        note = f"kappa is of the {n_whole} cases that all have scored"
        row["note"] = "; ".join(filter(None, (row["note"], note)))
    return row


def _row(
    raters: Sequence[str], ratings: _Ratings, kappa_sums: Callable[[_Ratings], _Sums], method: str
) -> dict[str, Any]:
    share = _share_of_equal(alpha_sums(ratings))
    kappa, alpha = coefficient(kappa_sums(ratings)), coefficient(alpha_sums(ratings))
    row: dict[str, Any] = {
        "raters": _SEPARATOR.join(raters) if len(raters) == 2 else "all",
        "n": len(ratings.codes),
        "method": method,
        "level": ratings.level,
        "note": _note(raters, ratings, alpha),
    }
    for name, ends, made in (
        ("agreement", ("agreement_lo", "agreement_hi"), share),
        ("kappa", ("lo", "hi"), kappa),
        ("alpha", ("alpha_lo", "alpha_hi"), alpha),
    ):
        cells = (made.value, made.lo, made.hi)
        row |= dict(zip((name, *ends), map(_cell, cells), strict=True))
    return row


def _cell(number: float) -> float | None:
    return None if math.isnan(number) else number


def _note(raters: Sequence[str], ratings: _Ratings, alpha: Coefficient) -> str | None:
    n, n_rows = len(ratings.codes), len({*ratings.clusters.tolist()})
    if not n:
        return "no answer was scored by both"
    if math.isnan(alpha.value):
        return "all scores are equal, so agreement by chance is certain and kappa is not defined"
    for rater, column in zip(raters, ratings.codes.T, strict=True):
        if len({*column[column >= 0].tolist()}) == 1:
            return f"{rater} gave every answer the same score, which agrees by chance only"
    if n_rows < FEWEST_CASES:
        return f"too few for an interval: {n_rows} rows"
    return None


# Coefficients


def cohen_sums(ratings: _Ratings) -> _Sums:
    """Sums for Cohen's kappa of two raters, with quadratic weights for numbers."""
    level: Level = "nominal" if ratings.level == "nominal" else "interval"
    distance = _distances(ratings.values, level, np.ones(len(ratings.values)))
    a, b = ratings.codes[:, 0], ratings.codes[:, 1]
    return _Sums(
        differ=_by_cluster(ratings, distance[a, b]),
        unequal=_by_cluster(ratings, (a != b).astype(np.float64)),
        weight=_by_cluster(ratings, np.ones(len(a))),
        left=_by_cluster(ratings, _counts(ratings.codes[:, :1], len(ratings.values))),
        right=_by_cluster(ratings, _counts(ratings.codes[:, 1:], len(ratings.values))),
        distance=distance,
    )


def fleiss_sums(ratings: _Ratings) -> _Sums:
    """Sums for Fleiss' kappa, from the cases that all raters have scored."""
    whole = (ratings.codes >= 0).all(axis=1)
    part = replace(ratings, codes=ratings.codes[whole], clusters=ratings.clusters[whole])
    counts = _counts(part.codes, len(part.values))
    distance = _distances(part.values, "nominal", np.ones(len(part.values)))
    raters = ratings.codes.shape[1]
    pairs = ((counts @ distance) * counts).sum(axis=1) / (raters * (raters - 1))
    values = _by_cluster(part, counts)
    weight = _by_cluster(part, np.ones(len(counts)))
    differ = _by_cluster(part, pairs)
    return _Sums(differ, differ, weight, values, values, distance)


def alpha_sums(ratings: _Ratings) -> _Sums:
    """Sums for Krippendorff's alpha, from the cases with two ratings or more."""
    counts = _counts(ratings.codes, len(ratings.values))
    counts = np.where(counts.sum(axis=1, keepdims=True) >= 2, counts, 0.0)
    distance = _distances(ratings.values, ratings.level, counts.sum(axis=0))
    unequal = (distance > 0).astype(np.float64)
    others = np.maximum(counts.sum(axis=1) - 1, 1)
    values = _by_cluster(ratings, counts)
    return _Sums(
        differ=_by_cluster(ratings, ((counts @ distance) * counts).sum(axis=1) / others),
        unequal=_by_cluster(ratings, ((counts @ unequal) * counts).sum(axis=1) / others),
        weight=_by_cluster(ratings, counts.sum(axis=1)),
        left=values,
        right=values,
        distance=distance,
        n_less=1,
    )


def _distances(values: Matrix, level: Level, counts: Matrix) -> Matrix:
    """Return the disagreement of each pair of values."""
    if level == "nominal":
        return 1.0 - np.eye(len(values))
    if level == "ordinal":
        # Ranks: the ratings between two values, with half of those that have one of them.
        values = np.cumsum(counts) - counts / 2
    return (values[:, None] - values[None, :]) ** 2


def _counts(codes: NDArray[np.int64], n_values: int) -> Matrix:
    """Count how often each case has each value."""
    return (codes[:, :, None] == np.arange(n_values)).sum(axis=1).astype(np.float64)


def _by_cluster(ratings: _Ratings, cells: Matrix) -> Matrix:
    """Sum a row for each case up to a row for each cluster."""
    _, index = np.unique(ratings.clusters, return_inverse=True)
    sums = np.zeros((int(index.max()) + 1 if len(index) else 0, *cells.shape[1:]))
    np.add.at(sums, index, cells)
    return sums


def coefficient(sums: _Sums) -> Coefficient:
    """Return `1 - D / E` with its interval."""
    value = _one_less_ratio(sums, sums.differ.sum(), sums.weight.sum(), sums.left, sums.right)
    value = float(value[0])
    n_clusters = len(sums.weight)
    if math.isnan(value) or n_clusters < FEWEST_CASES:
        return Coefficient(value)
    without = _without_each(sums)
    chance = float(_expected(sums, sums.left.sum(0)[None], sums.right.sum(0)[None])[0])
    share = 1 - float(sums.unequal.sum() / sums.weight.sum())
    # A distance may be of any size: here in units of the mean distance of unequal pairs.
    unequal = float(sums.unequal.sum())
    size = float(sums.differ.sum()) / unequal if unequal else _mean_distance(sums, chance)
    chance /= size
    variance = _jackknife_variance(without)
    ends = _wilson(share, _worth(share, chance**2 * variance, n_clusters))
    half = t_quantile(0.025, n_clusters - 1) * math.sqrt(variance)
    # Wilson's is too narrow where distances vary, the jackknife's where nearly all agree.
    lo = min(1 - (1 - ends[0]) / chance, value - half)
    hi = max(1 - (1 - ends[1]) / chance, value + half)
    return Coefficient(value, max(lo, -1.0), min(hi, 1.0))


def _share_of_equal(sums: _Sums) -> Coefficient:
    total = float(sums.weight.sum())
    if not total:
        return Coefficient()
    share = 1 - float(sums.unequal.sum()) / total
    if len(sums.weight) < FEWEST_CASES:
        return Coefficient(share)
    weights = total - sums.weight
    shares = 1 - (sums.unequal.sum() - sums.unequal) / np.where(weights > 0, weights, np.nan)
    worth = _worth(share, _jackknife_variance(shares), len(sums.weight))
    return Coefficient(share, *_wilson(share, worth))


def share_interval(
    values: Sequence[float], rows: Sequence[str]
) -> tuple[float | None, float | None, float | None]:
    """Return the mean of values from 0 to 1 with its 95 % interval, clustered by rows."""
    if not values:
        return None, None, None
    keys = [*dict.fromkeys(rows)]
    sums, sizes = np.zeros(len(keys)), np.zeros(len(keys))
    index = [keys.index(row) for row in rows]
    np.add.at(sums, index, values)
    np.add.at(sizes, index, 1.0)
    share = float(sums.sum() / sizes.sum())
    if len(keys) < FEWEST_CASES:
        return share, None, None
    without = (sums.sum() - sums) / (sizes.sum() - sizes)
    return share, *_wilson(share, _worth(share, _jackknife_variance(without), len(keys)))


def _without_each(sums: _Sums) -> Matrix:
    """Return the coefficient without each of the clusters."""
    return _one_less_ratio(
        sums,
        sums.differ.sum() - sums.differ,
        sums.weight.sum() - sums.weight,
        sums.left.sum(0) - sums.left,
        sums.right.sum(0) - sums.right,
        is_total=True,
    )


def _one_less_ratio(
    sums: _Sums, differ: Any, weight: Any, left: Matrix, right: Matrix, *, is_total: bool = False
) -> Matrix:
    if not is_total:
        left, right = left.sum(0)[None], right.sum(0)[None]
    chance = _expected(sums, left, right)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.atleast_1d(differ / weight) / chance
    return np.where(chance > 0, 1 - ratio, np.nan)


def _expected(sums: _Sums, left: Matrix, right: Matrix) -> Matrix:
    """Return the disagreement by chance, for each row of sums."""
    n_left, n_right = left.sum(axis=1), right.sum(axis=1) - sums.n_less
    with np.errstate(invalid="ignore", divide="ignore"):
        return ((left @ sums.distance) * right).sum(axis=1) / (n_left * n_right)


def _mean_distance(sums: _Sums, chance: float) -> float:
    """Return the mean distance of two unequal values by chance."""
    left, right = sums.left.sum(0), sums.right.sum(0)
    unequal = float(left @ (sums.distance > 0) @ right)
    n_pairs = float(left.sum() * (right.sum() - sums.n_less))
    return chance * n_pairs / unequal


def _jackknife_variance(without: Matrix) -> float:
    defined = without[~np.isnan(without)]
    n = len(defined)
    return float((n - 1) / n * ((defined - defined.mean()) ** 2).sum()) if n > 1 else 0.0


def _worth(share: float, variance: float, n_clusters: int) -> float:
    """Return the number of independent cases with this variance, at most that of the clusters."""
    binomial = share * (1 - share)
    return n_clusters if variance <= 0 or binomial <= 0 else min(binomial / variance, n_clusters)


def _wilson(share: float, n: float) -> tuple[float, float]:
    """Return Wilson's interval of a share."""
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    # Exact at both ends, where rounding would leave 0.9999999999999998.
    return 0.0 if share <= 0 else middle - half, 1.0 if share >= 1 else middle + half
