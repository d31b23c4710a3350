"""Scores of a batch's answers: which are missing, how they are made, and which scorers failed.

The scorers themselves are in `scorers` and `judges`; the rules of counting scores in `case_state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.lab.case_state import (
    CaseState,
    current_scores,
    is_scored,
    numeric_scores,
    scorer_name,
    versions_of,
)
from nbagent.lab.local import Executor
from nbagent.lab.plan import fingerprints_of
from nbagent.lab.scorers import Scorer, ScoringContext
from nbagent.run import Run
from nbagent.store.batches import save_scores, scores_of
from nbagent.store.writer import Store
from nbagent.view.text_format import pluralize

_CODE_COLUMN = "()"
"""Key of the scorer's own code hash among the fingerprints of a row's columns."""
_MAX_NOTES = 3
_FEWEST_JUDGED = 10
"""Fewer equal verdicts of a judge say nothing about it."""


class Scoring:
    """Scores the answers of a batch during one start."""

    def __init__(self, store: Store, scorers: Sequence[Scorer]) -> None:
        self._store, self._scorers = store, scorers
        self.is_stopped = False
        """True: start no further scorer. A scorer that the stop interrupted has not failed."""
        self._versions = {scorer.name: scorer.version for scorer in scorers}
        self._earlier: dict[str, list[ScoreRecord]] = {}
        """Scores of earlier starts, by run id."""
        self._errors: dict[str, dict[str, str]] = {}
        """Errors by scorer and run id."""
        self._judges = {scorer.name for scorer in scorers if scorer.costs}
        self._judged: dict[str, dict[str, bool | float | str]] = {}
        """Values that judges gave, by score and run id."""

    def read(self, cases: Iterable[CaseState]) -> list[int]:
        """Read all existing scores at once; return the indexes of answers with missing ones.

        Raises:
            UsageError: a person's label has the name and version of a scorer; it would not count.
        """
        cases = tuple(cases)
        scores = scores_of(self._store, [case.run_id for case in cases if case.status == "ok"])
        for score in scores:
            self._earlier.setdefault(score.run_id, []).append(score)
            if score.is_label and self._versions.get(scorer_name(score)) == score.version:
                raise UsageError(
                    f"run {score.run_id[:8]} has the score {score.scorer!r} by {score.by!r}, which "
                    "would be lost; give the scorer another name, or a higher version"
                )
        versions = versions_of(scores, self._versions)
        for score in scores:
            if score.version == versions[scorer_name(score)]:
                self._note(score)
        for case in cases:
            earlier = self._earlier.get(case.run_id, ())
            case.scores = numeric_scores(current_scores(earlier, versions))
        return [i for i, case in enumerate(cases) if case.status == "ok" and self._missing(case)]

    def _missing(self, case: CaseState) -> list[tuple[Scorer, dict[str, str]]]:
        """Return the scorers that have not scored a case yet, each with the row as it sees it."""
        if not self._scorers:
            return []
        scores = self._earlier.get(case.run_id, ())
        row = fingerprints_of(case.planned.row, case.planned.row)
        marked = [
            (scorer, {**row, _CODE_COLUMN: scorer.code_of(case.run_id)})
            for scorer in self._scorers
            if scorer.applies_to(case.run_id)
        ]
        return [
            (scorer, marks)
            for scorer, marks in marked
            if not is_scored(scores, scorer.name, scorer.version, marks)
        ]

    async def score(self, case: CaseState, record: RunRecord, judges: Executor) -> bool:
        """Score an answer with the missing scorers; return False if a stop came before their end.

        Args:
            case: its scores are brought up to date.
            record: its run.
            judges: makes the runs of judges.
        """
        run = Run(record, self._store)
        at = ScoringContext(
            executor=judges,
            case=case.planned.case,
            template=case.planned.variant.template.text,
        )
        new_scores: list[ScoreRecord] = []
        for scorer, marks in self._missing(case):
            if not self.is_stopped:
                records = await scorer.records(case.planned.row, run, at)
                new_scores += [score.model_copy(update={"row": marks}) for score in records]
        if self.is_stopped:
            new_scores = [score for score in new_scores if score.error is None]
        for score in new_scores:
            self._note(score)
        save_scores(self._store, new_scores)
        case.scores = numeric_scores(
            current_scores([*self._earlier.pop(case.run_id, ()), *new_scores], self._versions)
        )
        return not self.is_stopped

    def _note(self, score: ScoreRecord) -> None:
        if score.value is not None and scorer_name(score) in self._judges:
            self._judged.setdefault(score.scorer, {})[score.run_id] = score.value
        if score.error is not None:
            self._errors.setdefault(scorer_name(score), {})[score.run_id] = score.error
        else:
            self._errors.get(scorer_name(score), {}).pop(score.run_id, None)

    def notes(self) -> tuple[str, ...]:
        """Return a summary of the errors of scorers, and the judges that tell nothing apart."""
        failed = [(name, [*errors.values()]) for name, errors in self._errors.items() if errors]
        notes = [
            f"{name} failed on {pluralize(len(errors), 'answer')}: {errors[0]}"
            for name, errors in failed[:_MAX_NOTES]
        ]
        constant = [
            f"{name} gave all {len(values):,} answers the same score "
            f"({next(iter(values.values()))}), so it shows no difference; label some answers "
            "yourself (batch.review()) and see batch.agreement()"
            for name, values in self._judged.items()
            if len(values) >= _FEWEST_JUDGED and len({*values.values()}) == 1
        ]
        return (*notes, *constant[:_MAX_NOTES])
