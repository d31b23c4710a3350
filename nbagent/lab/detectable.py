"""Smallest true differences of shares that a number of rows can show."""

from __future__ import annotations

import math
from functools import lru_cache

from nbagent.lab.distributions import TAIL, coin_p, incomplete_beta, z_quantile

ALPHA = 2 * TAIL
"""Share of comparisons of equal variants that may show a difference."""
POWER = 0.8
_MOST_EXACT = 500
"""With more rows the formula of large samples is as good, and faster."""
_STEPS = 30
_RARE = 1e-9


def detectable_share(other: float, n: float, n_comparisons: int) -> float | None:
    """Return the smallest difference of shares that McNemar's exact test shows in 4 of 5 tables.

    Rows change in the other direction as often as they did here, and half a row more, because few
    rows may show no such change by luck. Of several comparisons it has to pass the strictest step
    of Holm's method.

    Args:
        other: rows that change in the rarer direction.
        n: number of rows.
        n_comparisons: comparisons of the same table.
    """
    rows, rate = max(1, round(n)), (other + 0.5) / n

    def is_enough(difference: float) -> bool:
        if rows > _MOST_EXACT:
            return _is_enough_for_many(difference, rate, rows, n_comparisons)
        return _exact_power(difference, rate, rows, n_comparisons) >= POWER

    low, high = 0.0, 1 - 2 * rate
    if high <= 0 or not is_enough(high):
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _exact_power(difference: float, rate: float, rows: int, n_comparisons: int) -> float:
    """Return the chance that the test shows a difference in its direction."""
    up = min(1.0, (rate + difference) / (1 - rate))
    power = 0.0
    for down, fewest in enumerate(_fewest_ups(rows, n_comparisons)):
        chance = _binomial(down, rows, rate)
        if chance > _RARE:
            power += chance * incomplete_beta(fewest, rows - down - fewest + 1, up)
        elif down > rows * rate:
            break
    return power


@lru_cache(maxsize=100)
def _fewest_ups(rows: int, n_comparisons: int) -> tuple[int, ...]:
    """Return the fewest changes up that show a difference, for each number of changes down."""
    fewest: list[int] = []
    up = 1
    for down in range(rows):
        while up + down <= rows and coin_p(up, down) * n_comparisons > ALPHA:
            up += 1
        if up + down > rows:
            break
        fewest.append(up)
    return tuple(fewest)


def _binomial(k: int, n: int, p: float) -> float:
    if p <= 0:
        return float(k == 0)
    log_ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log_ways + k * math.log(p) + (n - k) * math.log1p(-p))


def _is_enough_for_many(difference: float, rate: float, n: int, n_comparisons: int) -> bool:
    """True by Connor's formula (1987, "Sample size for testing differences in proportions for the
    paired-sample design"), with the correction for whole numbers that an exact test amounts to."""
    z_test, z_power = z_quantile(TAIL / n_comparisons), z_quantile(1 - POWER)
    changed = difference + 2 * rate
    spread = z_test * math.sqrt(changed) + z_power * math.sqrt(max(0, changed - difference**2))
    return (difference - 1 / n) * math.sqrt(n) >= spread
