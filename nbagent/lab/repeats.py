"""pass@k and pass^k: chances of k attempts of a row, estimated from more attempts.

pass@k is the chance that at least one of k attempts is right (Chen et al. 2021, "Evaluating large
language models trained on code"), pass^k that all k are (Yao et al. 2024, "τ-bench"). Both
estimates are unbiased: they count the samples of k among the n attempts, without replacement.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

from nbagent.contracts.errors import UsageError


@dataclass(frozen=True, slots=True)
class Repeats:
    """A chance of several attempts."""

    k: int
    all_of: bool = False
    """All k attempts are right, not at least one."""

    @property
    def name(self) -> str:
        return f"pass^{self.k}" if self.all_of else f"pass@{self.k}"

    def estimate(self, right: int, n: int) -> float:
        """Estimate the chance from `n` attempts, at least k, of which some are right."""
        if self.all_of:
            return comb(right, self.k) / comb(n, self.k)
        return 1 - comb(n - right, self.k) / comb(n, self.k)


def repeats_of(pass_at: object, pass_all: object) -> Repeats | None:
    """Return the chance that options ask for; raise UsageError if they are no such number."""
    if pass_at is not None and pass_all is not None:
        raise UsageError("pass_at and pass_all are two chances; give one of them")
    k = pass_all if pass_at is None else pass_at
    if k is None:
        return None
    if type(k) is not int or k < 1:
        name = "pass_all" if pass_at is None else "pass_at"
        raise UsageError(f"{name}={k!r} is no number of attempts; give 1 or more")
    return Repeats(k, all_of=pass_at is None)


def check_attempts(cases: Any, keys: list[str], repeats: Repeats) -> None:
    """Check that a chance can be estimated.

    Args:
        cases: all cases with a value.
        keys: the axes, and what else makes attempts of a row different cases.
        repeats: the chance.

    Raises:
        UsageError: values are neither 0 nor 1, or no row has k attempts.
    """
    if not bool(cases["value"].isin([0, 1]).all()):
        raise UsageError(f"{repeats.name} needs a scorer of True and False, or of 0 and 1")
    most = cases.groupby(["row_key", *keys], observed=True, dropna=False)["value"].count().max()
    if len(cases) and most < repeats.k:
        raise UsageError(
            f"{repeats.name} needs {repeats.k} scored attempts of a row; the most are {most}: ask "
            f"again with repeat={repeats.k} or more"
        )


def estimates(cases: Any, axes: list[str], repeats: Repeats) -> Any:
    """Return the estimate of each row in each variant, as cases with one attempt.

    Rows with fewer than k attempts have none. `n_attempts` counts those of an estimate.
    """
    counts = cases.groupby(["row_key", *axes], sort=False, observed=True)["value"]
    counts = counts.agg(["sum", "count"]).reset_index()
    enough = counts[counts["count"] >= repeats.k]
    values = [
        repeats.estimate(round(right), n)
        for right, n in zip(enough["sum"].tolist(), enough["count"].tolist(), strict=True)
    ]
    made = enough.drop(columns=["sum", "count"])
    return made.assign(value=values, n_attempts=enough["count"]).astype({"value": "Float64"})
