"""95 % intervals and tests of one array: a value for each row of a table.

Pure functions without random numbers. A share is a mean of values from 0 to 1 whose single attempts
are right (1) or wrong (0); a mean is one of any other numbers. A row may have several attempts: its
value is then their mean, and rows, not attempts, are what is drawn independently.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nbagent.lab.detectable import POWER, detectable_share
from nbagent.lab.distributions import (
    TAIL,
    Z,
    coin_p,
    smallest_coin_p,
    t_quantile,
    t_tail,
)

Values = NDArray[np.float64]
_NOISE = 1e-12
"""Relative size of rounding errors of floats: 0.1 + 0.2 is no better than 0.3."""
_RARE = (0.0, 0.05129, 0.35536, 0.81769, 1.36632)
"""Expected number of events of which at least 0, 1, 2, 3, 4 happen in 5 % of cases."""
_FEW, _MANY = 5, 50
"""Numbers of rows from which more rare counts are corrected."""
_STEPS = 60


@dataclass(frozen=True, slots=True)
class Interval:
    """95 % interval of a share or mean; no ends if the values do not bound it."""

    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of paired rows, with its interval and two-sided p."""

    mean: float
    lo: float | None
    hi: float | None
    p: float
    detectable: float | None
    """Smallest true difference that 4 of 5 such comparisons would show."""


# Shares


def share_interval(values: Values, n_attempts: float) -> Interval:
    """Return Wilson's interval of a share; with several attempts for an effective number of rows.

    Args:
        values: the share of right attempts of each row.
        n_attempts: attempts of all rows together.
    """
    if len(values) < 2:
        return Interval()
    share = float(values.mean())
    n = _effective_rows(values, share * (1 - share), n_attempts)
    return Interval(max(0.0, _lower_share(share, n)), min(1.0, 1 - _lower_share(1 - share, n)))


def _lower_share(share: float, n: float) -> float:
    """Return the lower end of Wilson's interval.

    Near 0 it holds the true share in 83 % of cases only. There the Poisson limit takes its place
    (Brown, Cai and DasGupta 2001, "Interval estimation for a binomial proportion", 4.1.1).
    """
    centre = share + Z**2 / (2 * n)
    half = Z * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    wilson = (centre - half) / (1 + Z**2 / n)
    count, rare = share * n, 1 if n < _FEW else 2 if n <= _MANY else 3
    return min(wilson, _rare_count(count) / n) if count <= rare else wilson


def _rare_count(count: float) -> float:
    """Return the lower limit of a small count; an effective count may lie between two integers."""
    below = int(count)
    return _RARE[below] + (count - below) * (_RARE[below + 1] - _RARE[below])


def _effective_rows(values: Values, largest_variance: float, n_attempts: float) -> float:
    """Return the number of independent draws that would give a share the same standard error.

    It is the number of attempts by the design effect (Kish 1965), smaller for few rows, whose
    variance is not known well (Korn and Graubard 1998), but at least the number of rows: nothing
    varies more than attempts of a row that all agree.

    Args:
        values: a value for each row.
        largest_variance: variance of the rows if all attempts of a row agreed.
        n_attempts: attempts of all rows together.
    """
    n, variance = len(values), float(values.var(ddof=1))
    if variance <= _NOISE**2:
        return n
    for_few_rows = (Z / t_quantile(TAIL, n - 1)) ** 2
    return min(max(n, n * largest_variance / variance * for_few_rows), max(n, n_attempts))


def share_difference(values: Values, n_attempts: float, n_comparisons: int = 1) -> Difference:
    """Compare two shares in the same rows.

    The interval is Tango's score interval, for the effective number of rows. p is McNemar's exact
    one where each row is wholly right or wrong, else that of the score by Student's t. Where p is
    at most 0.05, the interval does not contain 0.

    Args:
        values: difference of the shares of each row.
        n_attempts: attempts of all rows together, of one side.
        n_comparisons: comparisons of the same table, for the detectable difference.
    """
    if len(values) < 2:
        return Difference(float(values.mean()), None, None, 1.0, None)
    up, down = float(values.clip(min=0).mean()), float((-values).clip(min=0).mean())
    n = _effective_rows(values, up + down - (up - down) ** 2, n_attempts)
    lo, hi = _score_interval(n * up, n * down, n)
    if not bool(np.isin(values, (-1, 0, 1)).all()):
        return _widened_by_student(values, (lo, hi), n * up, n * down, n_comparisons)
    p = coin_p(round(n * up), round(n * down))
    detectable = detectable_share(n * min(up, down), n, n_comparisons)
    return Difference(up - down, lo, hi, p, detectable)


def _widened_by_student(
    values: Values, score_ends: tuple[float, float], ups: float, downs: float, n_comparisons: int
) -> Difference:
    """Return the wider of a score interval and Student's; it is so for many attempts of few rows.

    p is the larger one of both, so that it belongs to the interval.
    """
    n, mean = len(values), float(values.mean())
    t, error = t_quantile(TAIL, n - 1), float(values.std(ddof=1)) / math.sqrt(n)
    lo = max(-1.0, min(score_ends[0], mean - t * error))
    hi = min(1.0, max(score_ends[1], mean + t * error))
    score = abs(ups - downs) / math.sqrt(ups + downs) * t / Z
    tested = min(score, abs(mean) / error) if error > _NOISE else score
    p = max(2 * t_tail(tested, n - 1), smallest_coin_p(int(np.count_nonzero(values))))
    of_test = t_quantile(TAIL / n_comparisons, n - 1) + t_quantile(1 - POWER, n - 1)
    detectable = (hi - lo) / 2 * of_test / t
    return Difference(mean, lo, hi, p, detectable if detectable < 1 else None)


def _score_interval(ups: float, downs: float, n: float) -> tuple[float, float]:
    """Return Tango's interval: the differences whose score is within ±Z."""
    mean = (ups - downs) / n
    lo = _bisect(lambda d: _score(ups, downs, n, d) > Z, -1.0, mean)
    hi = _bisect(lambda d: _score(ups, downs, n, d) > -Z, mean, 1.0)
    return lo, hi


def _score(ups: float, downs: float, n: float, difference: float) -> float:
    """Return the score of a difference (Tango 1998, "Equivalence test and confidence interval for
    the difference in proportions for the paired-sample design")."""
    a = 2 * n
    b = (2 * n - ups + downs) * difference - ups - downs
    c = -downs * difference * (1 - difference)
    rate = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    variance = n * (2 * rate + difference * (1 - difference))
    return (ups - downs - n * difference) / math.sqrt(max(variance, 1e-300))


def _bisect(is_below: Callable[[float], bool], low: float, high: float) -> float:
    """Return the point between two ends up to which a condition holds."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


# Means


def mean_interval(values: Values) -> Interval:
    """Return the interval of a mean: Student's, and as far as Hall's where the values are skewed.

    Equal values have no interval: they say nothing about how far others may be.
    """
    if len(values) < 2 or is_constant(values):
        return Interval()
    return Interval(*_mean_ends(values, TAIL))


def _mean_ends(values: Values, tail: float) -> tuple[float, float]:
    mean, error, skew = _moments(values)
    t = t_quantile(tail, len(values) - 1)
    lo, hi = max(t, _unskewed(t, skew)), min(-t, _unskewed(-t, skew))
    return mean - error * lo, mean - error * hi


def mean_difference(values: Values, n_comparisons: int = 1) -> Difference:
    """Compare two means in the same rows, by an array of their differences.

    p belongs to the interval: it is at most 0.05 where 0 is outside. It is never below that of a
    sign test whose changes all have one direction, so a few changed rows show nothing.
    """
    n, mean = len(values), float(values.mean())
    floor = smallest_coin_p(int(np.count_nonzero(values)))
    if n < 2 or is_constant(values):
        return Difference(mean, None, None, floor, None)
    _, error, skew = _moments(values)
    t = mean / error
    tested = max(0.0, min(abs(t), math.copysign(1, t) * _skewed(t, skew)))
    p = max(floor, 2 * t_tail(tested, n - 1))
    lo, hi = _mean_ends(values, TAIL)
    for_all = _mean_ends(values, TAIL / n_comparisons)
    detectable = (for_all[1] - for_all[0]) / 2 + error * t_quantile(1 - POWER, n - 1)
    return Difference(mean, lo, hi, p, detectable)


def is_constant(values: Values) -> bool:
    """True if all values are equal, except for rounding errors."""
    return float(np.ptp(values)) <= _NOISE * float(np.abs(values).max())


def without_noise(differences: Values, scale: float) -> Values:
    """Return differences of values up to `scale`, with rounding errors set to 0."""
    return np.where(np.abs(differences) <= _NOISE * scale, 0.0, differences)


def _moments(values: Values) -> tuple[float, float, float]:
    """Return the mean, its standard error, and the skewness divided by √n."""
    n, mean = len(values), float(values.mean())
    centred = values - mean
    variance = float((centred**2).mean())
    skew = float((centred**3).mean()) / variance**1.5 / math.sqrt(n)
    return mean, math.sqrt(variance / (n - 1)), skew


# Hall 1992, "On the removal of skewness by transformation": a cubic of t that is distributed like t
# of values without skewness, and its inverse. Alone it is too narrow for heavy tails, where t is
# right; t is too narrow for skewed values. The wider one is as wide as t for normal values.


def _skewed(t: float, skew: float) -> float:
    return t + skew / 6 + skew * t**2 / 3 + skew**2 * t**3 / 27


def _unskewed(t: float, skew: float) -> float:
    if abs(skew) < 1e-6:
        return t
    return 3 / skew * (math.cbrt(1 + skew * (t - skew / 6)) - 1)
