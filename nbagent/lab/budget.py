"""Budget of a batch: the money that its cases and judges have cost, and whether one more may begin.

A plain value: it starts and stores nothing. Every USD of a batch is counted here, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class _RunningCase:
    """A case at work."""

    variant: str
    usd: float | None = None
    """Its cost so far, judges included; None: no price is known."""


@dataclass(slots=True)
class Budget:
    """Spending of a batch under its limit. On the engine thread."""

    limit_usd: float | None = None
    """None: no limit."""
    asked_usd: float | None = None
    """Cost of the cases' own runs, earlier starts included; None: no price is known."""
    judged_usd: float = 0.0
    """Cost of the judges' runs, earlier starts included."""
    _ended: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Sum and number of the known costs of ended cases, by variant."""
    _running: dict[int, _RunningCase] = field(default_factory=dict[int, _RunningCase])
    """Cases at work, by index."""

    def learn(self, costs: Iterable[tuple[str, float]]) -> None:
        """Estimate further cases by the costs of ended ones: pairs of variant and USD."""
        for variant, usd in costs:
            total = self._ended.setdefault(variant, [0.0, 0])
            total[0] += usd
            total[1] += 1

    def begin(self, case: int, variant: str) -> None:
        """Note that a case of this variant starts."""
        self._running[case] = _RunningCase(variant)

    def spend(self, case: int, usd: float | None, *, by_judge: bool = False) -> None:
        """Count the cost of a turn or a run of a case at work; None: no price is known."""
        if usd is None:
            return
        running = self._running[case]
        running.usd = (running.usd or 0.0) + usd
        if by_judge:
            self.judged_usd += usd
        else:
            self.asked_usd = (self.asked_usd or 0.0) + usd

    def end(self, case: int) -> None:
        """Note that a case has ended; its cost is an estimate for the next ones."""
        ended = self._running.pop(case)
        if ended.usd is not None:
            self.learn([(ended.variant, ended.usd)])

    @property
    def n_running(self) -> int:
        """Number of cases at work."""
        return len(self._running)

    @property
    def left_usd(self) -> float | None:
        """USD that may still be spent; None without a limit."""
        spent = (self.asked_usd or 0.0) + self.judged_usd
        return None if self.limit_usd is None else self.limit_usd - spent

    @property
    def is_used_up(self) -> bool:
        """True if nothing may be spent any more."""
        left = self.left_usd
        return left is not None and left <= 0

    def may_begin(self, variant: str) -> bool:
        """Return True if the remaining budget is enough for one more case of this variant.

        The cost of a variant is unknown until one of its cases has ended, so the first one runs
        alone: in parallel, every case of an expensive variant could pass the budget.
        """
        left = self.left_usd
        if left is None:
            return True
        mean = self._mean_usd(variant)
        if mean is None:
            return left > 0 and not self._running
        for running in self._running.values():
            # What it has cost so far is subtracted already.
            left -= max((self._mean_usd(running.variant) or 0.0) - (running.usd or 0.0), 0.0)
        return left > 0 and mean <= left

    def _mean_usd(self, variant: str) -> float | None:
        total, n = self._ended.get(variant, (0.0, 0))
        return total / n if n else None
