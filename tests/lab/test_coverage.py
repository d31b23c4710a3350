"""Simulations of the statistics: how often intervals hold the truth, and verdicts are false.

Each grid and seed was fixed before it was run. scipy and statsmodels are the oracles.
"""

# scipy and statsmodels say little about their types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.regression.linear_model import OLS
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

from nbagent.lab.distributions import t_quantile, t_tail
from nbagent.lab.intervals import (
    Interval,
    mean_difference,
    mean_interval,
    share_difference,
    share_interval,
)
from nbagent.lab.verdicts import holm, verdict_columns, verdict_names

Array = Any  # numpy's arrays of floats
PERCENT = np.arange(1, 100) / 100
FINE = np.arange(1, 1000) / 1000
WORSE = 0.02
"""Points of coverage that an interval may be below its oracle."""


def random_of(*names: object) -> np.random.Generator:
    """Random numbers of one cell of a grid, the same in each order of the tests."""
    return np.random.default_rng(zlib.crc32(repr((29, *names)).encode()))


def covering(intervals: list[tuple[float, float]] | Array, truth: float) -> float:
    ends = np.asarray(intervals, dtype=float)
    return float(((ends[:, 0] <= truth + 1e-12) & (ends[:, 1] >= truth - 1e-12)).mean())


def ends(interval: Any) -> tuple[float, float]:
    """The ends of an interval; no interval covers nothing."""
    return (math.nan, math.nan) if interval.lo is None else (interval.lo, interval.hi)


def student(rows: Array) -> Array:
    """scipy's intervals of Student of several samples."""
    n = rows.shape[1]
    with np.errstate(all="ignore"):
        return np.stack(
            stats.t.interval(0.95, n - 1, rows.mean(1), stats.sem(rows, axis=1)), axis=1
        )


# Shares


def rows_of(right: int, n: int) -> Array:
    return np.array([1.0] * right + [0.0] * (n - right))


def share_coverage(n: int, shares: Array) -> Array:
    """The exact coverage for each true share: no number is drawn."""
    each = np.array([ends(share_interval(rows_of(right, n), n)) for right in range(n + 1)])
    held = (each[:, :1] <= shares) & (shares <= each[:, 1:])
    return (stats.binom.pmf(np.arange(n + 1)[:, None], n, shares) * held).sum(0)


@pytest.mark.parametrize("n", [*range(3, 13), 15, 20, 30, 60, 100, 200])
def test_intervals_of_shares_hold_the_true_share(n: int) -> None:
    coverage, fine = share_coverage(n, PERCENT), share_coverage(n, FINE)
    assert 0.93 <= coverage.mean() <= 0.97
    least = 0.85 if n < 20 else 0.9
    assert min(coverage.min(), fine.min()) >= least


@pytest.mark.parametrize("n", [2, 7, 20, 60, 1000])
def test_an_interval_of_a_share_is_wilsons_except_for_rare_counts(n: int) -> None:
    for right in range(0, n + 1, max(1, n // 100)):
        mine = ends(share_interval(rows_of(right, n), n))
        wilson: Any = proportion_confint(right, n, method="wilson")
        rare = [0 < count <= 3 for count in (right, n - right)]
        for i in range(2):
            if rare[i]:
                assert (wilson[i] - mine[i]) * (1 - 2 * i) >= -1e-12
            else:
                assert mine[i] == pytest.approx(wilson[i], abs=1e-9)
        assert 0 <= mine[0] < mine[1] <= 1


# Repeats of shares: (rows, attempts, share, correlation of the attempts of a row)

FEW_REPEATS = [(10, 5, 0.9, 0.3), (20, 3, 0.5, 0.1), (20, 5, 0.5, 0.6), (20, 5, 0.95, 0.6)]
REPEATS = [
    (n, m, share, correlation)
    for n in (5, 10, 20, 50)
    for m in (2, 5, 25)
    for share in (0.5, 0.8, 0.9, 0.95, 0.98)
    for correlation in (0.0, 0.1, 0.3, 0.6, 1.0)
]


def row_shares(random: Any, share: float, correlation: float, size: tuple[int, int]) -> Array:
    """The true share of each row."""
    if correlation in (0, 1):
        return (random.random(size) < share) * 1.0 if correlation else np.full(size, share)
    total = 1 / correlation - 1
    return random.beta(share * total, (1 - share) * total, size)


def check_repeats(n: int, m: int, share: float, correlation: float, samples: int) -> None:
    random = random_of("repeats", n, m, share, correlation)
    true = row_shares(random, share, correlation, (samples, n))
    rows = random.binomial(m, true) / m
    mine = covering([ends(share_interval(each, n * m)) for each in rows], share)
    assert mine >= covering(student(rows), share) - WORSE
    # Two variants whose rows are as hard, the second one worse by a tenth of its share.
    other = random.binomial(m, 0.9 * true) / m
    pairs = other - rows
    mine = covering([ends(share_difference(each, n * m)) for each in pairs], -share / 10)
    assert mine >= covering(student(pairs), -share / 10) - WORSE


@pytest.mark.parametrize("cell", FEW_REPEATS, ids=str)
def test_repeats_are_covered_as_well_as_by_their_oracle(cell: Any) -> None:
    check_repeats(*cell, samples=300)


@pytest.mark.proof
@pytest.mark.parametrize("n", [5, 10, 20, 50])
def test_repeats_are_covered_as_well_as_by_their_oracle_in_the_whole_grid(n: int) -> None:
    for cell in REPEATS:
        if cell[0] == n:
            check_repeats(*cell, samples=600)


def test_the_oracle_of_repeats_is_the_cluster_robust_interval_of_statsmodels() -> None:
    random = random_of("oracle")
    attempts = random.binomial(1, random.beta(2, 1, (12, 1)), (12, 4)).astype(float)
    rows = attempts.mean(1)
    groups = np.repeat(np.arange(12), 4)
    fit: Any = OLS(attempts.ravel(), np.ones(48)).fit(
        cov_type="cluster", cov_kwds={"groups": groups}, use_t=True
    )
    assert fit.conf_int()[0] == pytest.approx(student(rows[None])[0])


# Paired shares: all tables of (up, down, equal) rows, with their probabilities

PAIRED = [
    (up, down)
    for up in (0.005, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
    for down in (0.005, 0.05, 0.1, 0.2, 0.3)
    if up + down < 1
]


@pytest.mark.parametrize("n", [3, 6, 10, 20, pytest.param(40, marks=pytest.mark.proof)])
def test_differences_of_paired_shares_hold_the_truth(n: int) -> None:
    tables = [(up, down) for up in range(n + 1) for down in range(n + 1 - up)]
    pairs = np.array([[1.0] * up + [-1.0] * down + [0.0] * (n - up - down) for up, down in tables])
    mine = np.array([ends(share_difference(each, n)) for each in pairs])
    assert (mine[:, 0] < mine[:, 1]).all()
    counts = [(up, down, n - up - down) for up, down in tables]
    oracle = student(pairs)
    for up, down in PAIRED:
        weights = stats.multinomial.pmf(counts, n, [up, down, 1 - up - down])
        truth = up - down
        held, by_oracle = (
            float((weights * ((e[:, 0] <= truth) & (truth <= e[:, 1]))).sum())
            for e in (mine, oracle)
        )
        assert held >= max(0.85 if n < 20 else 0.9, by_oracle - WORSE), (up, down)


@pytest.mark.parametrize("n", [1, 5, 6, 12, 25])
def test_verdict_and_interval_agree_in_every_table_of_paired_shares(n: int) -> None:
    for up in range(n + 1):
        for down in range(n + 1 - up):
            pairs = np.array([1.0] * up + [-1.0] * down + [0.0] * (n - up - down))
            difference = share_difference(pairs, n)
            exact: Any = mcnemar([[0, up], [down, 0]], exact=True)
            if n > 1:
                assert difference.p == pytest.approx(exact.pvalue)
            row, _ = verdict_columns(difference, n, difference.p, verdict_names("higher"))
            shown = row["verdict"] in ("better", "worse")
            assert shown == (n > 1 and exact.pvalue <= 0.05)
            if n > 1:
                assert shown == (row["diff_lo"] > 0 or row["diff_hi"] < 0)


# Means

Draw = Callable[[Any, tuple[int, int]], Array]
MEANS: dict[str, tuple[Draw, float]] = {
    "normal": (lambda random, size: random.normal(0, 1, size), 0.0),
    "log-normal": (lambda random, size: random.lognormal(0, 1, size), math.exp(0.5)),
    "exponential": (lambda random, size: random.exponential(1, size), 1.0),
    "t with 3 degrees": (lambda random, size: random.standard_t(3, size), 0.0),
    "Pareto": (lambda random, size: random.pareto(3, size), 0.5),
    "near 1": (lambda random, size: random.beta(5, 0.5, size), 5 / 5.5),
    "marks": (
        lambda random, size: random.choice([1.0, 2, 3, 4, 5], size, p=[0.05, 0.1, 0.2, 0.35, 0.3]),
        3.75,
    ),
}


SKEWED = ("log-normal", "Pareto")
"""Of these Student's intervals hold the mean far too seldom."""


def check_means(name: str, n: int, samples: int, resamples: int) -> None:
    draw, truth = MEANS[name]
    rows = draw(random_of("means", name, n), (samples, n))
    mine = [ends(mean_interval(each)) for each in rows]
    assert all(not lo >= hi for lo, hi in mine)
    held = covering(mine, truth)
    by_student = covering(student(rows), truth)
    assert held >= by_student - WORSE
    if name in SKEWED and n >= 5:
        assert held >= by_student + 0.025
    for method in ("BCa", "percentile") if resamples else ():
        drawn: Any = stats.bootstrap(
            (rows,), np.mean, axis=1, n_resamples=resamples, method=method, rng=random_of(method)
        )
        low, high = drawn.confidence_interval
        assert held >= covering(np.stack([low, high], axis=1), truth) - WORSE
    # Paired differences: what both have in common falls out.
    other = draw(random_of("other means", name, n), (samples, n))
    pairs = other - rows
    differences = [mean_difference(each) for each in pairs]
    held = covering([ends(each) for each in differences], 0.0)
    assert held >= covering(student(pairs), 0.0) - WORSE
    for each in differences:
        if each.lo is not None and each.hi is not None and n >= 6:
            assert (each.p <= 0.05) <= (each.lo > 0 or each.hi < 0)


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("n", [5, 20])
def test_means_are_covered_as_well_as_by_their_oracle(name: str, n: int) -> None:
    check_means(name, n, samples=200, resamples=0)


@pytest.mark.proof
@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("n", [3, 5, 10, 20, 50])
@pytest.mark.filterwarnings("ignore:The BCa confidence interval")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_means_are_covered_as_well_as_by_their_oracles_in_the_whole_grid(name: str, n: int) -> None:
    check_means(name, n, samples=2000, resamples=999 if n >= 10 else 0)


# False verdicts of equal variants

EQUAL: dict[str, Callable[[Any, int, int], tuple[Array, int]]] = {
    "shares": lambda random, k, n: ((random.random((k, n)) < 0.8) * 1.0, 1),
    "shares near 1": lambda random, k, n: ((random.random((k, n)) < 0.95) * 1.0, 1),
    "shares of hard and easy rows": lambda random, k, n: (
        (random.random((k, n)) < random.beta(1, 1, n)) * 1.0,
        1,
    ),
    "repeats": lambda random, k, n: (random.binomial(3, random.beta(2, 1, n), (k, n)) / 3, 3),
    "normal": lambda random, k, n: (random.normal(0, 1, (k, n)) + random.normal(0, 2, n), 0),
    "log-normal": lambda random, k, n: (random.lognormal(0, 1, (k, n)), 0),
    "marks": lambda random, k, n: (random.choice([1.0, 4, 5], (k, n), p=[0.1, 0.2, 0.7]), 0),
}


def false_verdicts(name: str, n_variants: int, n: int, tables: int) -> float:
    """The share of tables in which any of the equal variants is better or worse."""
    random, false = random_of("equal", name, n_variants, n), 0
    for _ in range(tables):
        rows, m = EQUAL[name](random, n_variants, n)
        pairs = rows[1:] - rows[0]
        several = [
            share_difference(each, n * m, n_variants - 1) if m else mean_difference(each)
            for each in pairs
        ]
        adjusted = holm([each.p for each in several])
        false += any(p is not None and p <= 0.05 for p in adjusted)
    return false / tables


@pytest.mark.parametrize("name", EQUAL)
def test_eight_equal_variants_seldom_differ(name: str) -> None:
    assert false_verdicts(name, 8, 60, tables=60) <= 0.05 + 0.05


@pytest.mark.proof
@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize(("n_variants", "n"), [(2, 10), (2, 60), (8, 20), (8, 60)])
def test_equal_variants_differ_in_at_most_5_of_100_tables(
    name: str, n_variants: int, n: int
) -> None:
    tables = 1000 if n_variants == 8 else 3000
    # Two standard errors of so many tables.
    noise = 2 * math.sqrt(0.05 * 0.95 / tables)
    assert false_verdicts(name, n_variants, n, tables) <= 0.05 + noise


@pytest.mark.parametrize(
    "values",
    [[], [0.5], [0.001, 0.02, 0.3], [0.01, 0.01, 0.04, 0.9], [0.0, 1.0, 1.0, 0.03]],
    ids=str,
)
def test_holm_is_that_of_statsmodels(values: list[float]) -> None:
    adjusted: Any = multipletests(values, method="holm")[1] if values else np.array([])
    oracle = adjusted.tolist()
    assert holm(values) == pytest.approx(oracle)
    apart = holm([None, *values, None])
    assert apart[0] is apart[-1] is None
    assert apart[1:-1] == pytest.approx(oracle)


# What a difference would have to be


@pytest.mark.proof
@pytest.mark.parametrize("n", [20, 60, 200])
@pytest.mark.parametrize("other", [0.03, 0.1])
def test_a_detectable_difference_is_shown_in_about_4_of_5_tables(n: int, other: float) -> None:
    random = random_of("detectable", n, other)

    def tables(difference: float, samples: int) -> list[Any]:
        drawn = random.random((samples, n))
        pairs = np.where(drawn < other + difference, 1.0, 0.0) - (drawn > 1 - other)
        return [share_difference(each, n) for each in pairs]

    # A few noisy tables of 20 rows can show no difference at all.
    each_detectable = [each.detectable or np.inf for each in tables(0.0, 200)]
    detectable = float(np.median(each_detectable))
    power = float(np.mean([each.p <= 0.05 for each in tables(detectable, 1000)]))
    assert 0.7 <= power <= 0.95


@pytest.mark.proof
@pytest.mark.parametrize("n", [10, 60])
def test_a_detectable_difference_of_means_is_shown_in_about_4_of_5_tables(n: int) -> None:
    random = random_of("detectable means", n)
    equal = [mean_difference(each).detectable for each in random.normal(0, 1, (200, n))]
    shifted = random.normal(float(np.median([d or 0.0 for d in equal])), 1, (1000, n))
    power = float(np.mean([mean_difference(each).p <= 0.05 for each in shifted]))
    assert 0.7 <= power <= 0.95


def test_the_quantiles_are_those_of_scipy() -> None:
    for df in (1, 2, 7, 59, 1000, 100_000):
        for t in (0, 0.1, 1, 2, 5, 30):
            assert t_tail(t, df) == pytest.approx(float(stats.t.sf(t, df)), rel=1e-6, abs=1e-200)
        for tail in (0.2, 0.025, 0.025 / 7, 1e-6):
            assert t_quantile(tail, df) == pytest.approx(float(stats.t.isf(tail, df)))


def test_equal_rows_have_no_interval_but_shares_have() -> None:
    assert mean_interval(np.array([0.3] * 20)) == Interval()
    lo, hi = ends(share_interval(np.ones(20), 20))
    assert (lo, hi) == (pytest.approx(0.8389, abs=1e-4), 1.0)
