"""Distributions that intervals and tests need: normal, Student's t, and the fair coin.

In plain Python: scipy has them, too, and is only the oracle of the tests.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

TAIL = 0.025
"""Probability that a 95 % interval leaves out at each end."""
Z = NormalDist().inv_cdf(1 - TAIL)
_MAX_TERMS = 100_000
_PRECISION = 1e-14
_SMALLEST = 1e-300


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, the base of the other distributions."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there the fraction converges slowly
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _beta_fraction(a, b, x)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Return the denominator of the continued fraction (DLMF 8.17.22), by Lentz's method."""
    value, c, d = 1.0, 1.0, 0.0
    for term in range(1, _MAX_TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (1 + factor * d or _SMALLEST)
        c = 1 + factor / c or _SMALLEST
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


@lru_cache(maxsize=10_000)
def t_tail(t: float, df: float) -> float:
    """Return the probability that Student's t is above a value of at least 0."""
    return incomplete_beta(df / 2, 0.5, df / (df + t * t)) / 2


@lru_cache(maxsize=10_000)
def t_quantile(tail: float, df: float) -> float:
    """Return the value above which Student's t is with this probability, at most one half."""
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, high * 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > tail else (low, middle)
    return high


def z_quantile(tail: float) -> float:
    """Return the value above which a standard normal variable is with this probability."""
    return -NormalDist().inv_cdf(tail)


def coin_p(up: int, down: int) -> float:
    """Return the two-sided p that a fair coin falls at least as unevenly: the sign test."""
    most, n = max(up, down), up + down
    return min(1.0, 2 * incomplete_beta(most, n - most + 1, 0.5)) if n else 1.0


def smallest_coin_p(n: int) -> float:
    """Return the sign test's p for `n` changes in one direction; no data can give a smaller one."""
    return 2.0 ** (1 - n) if n else 1.0
