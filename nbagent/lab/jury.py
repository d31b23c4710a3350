"""Jury: the vote of several judges on one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nbagent.contracts.case_results import joint_value
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import ScoreRecord
from nbagent.lab.scorers import (
    TEXT_CHARS,
    Scorer,
    ScorerResult,
    ScoreValue,
    ScoringContext,
    as_scorers,
)
from nbagent.run import Run
from nbagent.shown.texts import cut_middle

_AUTHOR = "jury"


class Jury(Scorer):
    """Scorer that asks several judges one after the other, and counts their votes."""

    def __init__(self, judges: object, *, name: str, version: int) -> None:
        self._judges = as_scorers(judges)
        if len(self._judges) < 2:
            raise UsageError("a jury needs two judges or more, each with a name= of its own")
        super().__init__(name, version, [[j.name, j.version, j.code] for j in self._judges])
        self.by = _AUTHOR

    @property
    def costs(self) -> bool:
        return any(judge.costs for judge in self._judges)

    def check(self, columns: Sequence[str]) -> None:
        for judge in self._judges:
            judge.check(columns)

    async def _score(self, row: Mapping[str, Any], run: Run, at: ScoringContext) -> ScorerResult:
        votes: list[ScoreRecord] = []
        for judge in self._judges:
            records = await judge.records(row, run, at)
            # Without one vote there is no result, and all are asked again at the next start.
            if errors := [record for record in records if record.error is not None]:
                why = f"{judge.name}: {errors[0].error}"
                return ScorerResult([ScoreValue(self.name, error=why)], errors[0].by)
            own = [record for record in records if record.scorer == judge.name]
            if not own:
                why = f"{judge.name} gives several scores; a judge of a jury has to give one"
                return ScorerResult([ScoreValue(self.name, error=why)], self.by)
            votes += own
        return ScorerResult([self._result(votes), *map(self._vote, votes)], self.by)

    def _vote(self, vote: ScoreRecord) -> ScoreValue:
        """Return the vote of a judge as a score of its own: `jury.strict`."""
        return ScoreValue(
            f"{self.name}.{vote.scorer}",
            vote.value,
            vote.reason,
            by=vote.by,
            judge_run_id=vote.judge_run_id,
        )

    def _result(self, votes: Sequence[ScoreRecord]) -> ScoreValue:
        values = [vote.value for vote in votes if vote.value is not None]
        value = joint_value(values)
        each = "; ".join(f"{vote.scorer}: {_shown(vote)}" for vote in votes)
        head = "tie" if values and value is None else f"{len(values)} of {len(votes)} voted"
        return ScoreValue(self.name, value, cut_middle(f"{head}. {each}", TEXT_CHARS))


def _shown(vote: ScoreRecord) -> str:
    value = "no score" if vote.value is None else str(vote.value)
    return f"{value} ({vote.reason})" if vote.reason else value


def jury(judges: Sequence[Any], *, name: str = "jury", version: int = 1) -> Scorer:
    """Return a scorer that counts the votes of several judges.

    The verdict or label of the most is the score `NAME`; of numbers it is their mean. Where two are
    equally frequent there is no score, and the reason says so. Each vote is the score `NAME.JUDGE`,
    so `batch.agreement("NAME.a", "NAME.b")` compares the judges.

    Args:
        judges: two or more (`nbagent.judge(…, name=…)`), of different names and, if possible,
            models; functions may be among them.
        name: of the score.
        version: raise it when the judges change.

    Raises:
        UsageError: there are fewer than two, or two have one name.
    """
    return Jury(judges, name=name, version=version)
