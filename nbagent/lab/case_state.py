"""State of each case of a batch: its runs, their cost, its scores.

Values and rules only; nothing is started or stored here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from nbagent.contracts.case_results import CaseStatus, joint_scores
from nbagent.contracts.records import Case, EngineTurn, RunInfo, RunRecord, ScoreRecord
from nbagent.lab.plan import PlannedCase
from nbagent.store.batches import CaseRecord, CaseRun
from nbagent.view.batch import FailedCase, VariantSummary

_MAX_FAILURES = 10
_MAX_RUN_IDS = 5


@dataclass(slots=True)
class CaseState:
    """A case and its state."""

    planned: PlannedCase
    status: CaseStatus = "missing"
    run_id: str = ""
    """Id of its last run."""
    earlier_ids: list[str] = field(default_factory=list[str])
    """Ids of the earlier runs that the last one continues."""
    cost_usd: float | None = None
    """USD of all its runs."""
    why: str = ""
    """Reason why there is no answer: code and message."""
    scores: dict[str, float] = field(default_factory=dict[str, float])
    was_asked: bool = False
    """True if a model was asked in the present start of the batch."""
    is_unscored: bool = False
    """True if it has an answer that a scorer of the present start has not scored yet."""

    def add_run(self, run: CaseRecord) -> None:
        """Make this run the last one of the case."""
        if self.run_id:
            self.earlier_ids.append(self.run_id)
        self.run_id = run.id
        if run.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + run.cost_usd
        self.status, self.why = status_of(run)


class CaseCounts:
    """Number of cases in each state: kept, because a batch may have a million cases.

    A case at work changes only inside `changing`, so the counts cannot differ from the cases.
    """

    def __init__(self, cases: Iterable[CaseState]) -> None:
        self._counts = Counter(map(_count_key, cases))

    @contextmanager
    def changing(self, case: CaseState) -> Generator[None]:
        """Count a case anew after a change."""
        self._counts[_count_key(case)] -= 1
        try:
            yield
        finally:
            self._counts[_count_key(case)] += 1

    def n(self, *statuses: CaseStatus, asked_now: bool = False) -> int:
        """Count the cases with these statuses; with `asked_now`, those of the present start."""
        return sum(
            n
            for (status, was_asked, _), n in self._counts.items()
            if status in statuses and (was_asked or not asked_now)
        )

    @property
    def n_unscored(self) -> int:
        """Number of answers that are not scored yet."""
        return sum(n for (_, _, is_unscored), n in self._counts.items() if is_unscored)


def _count_key(case: CaseState) -> tuple[CaseStatus, bool, bool]:
    return case.status, case.was_asked, case.is_unscored


def status_of(run: CaseRecord) -> tuple[CaseStatus, str]:
    """Return the status of a case with this last run, and the reason if it has no answer.

    Only the whole record of a run tells that a call waits for an approval.
    """
    if run.ok:
        return "ok", ""
    # Checked first: its stop reason is only "stopped", and a resumed run would see the denial.
    tool_name = isinstance(run, RunRecord) and run.turns and unasked_call(run.turns[-1])
    if tool_name:
        return "failed", f"E_DENIED: {tool_name} needs approval; allow it, or give on_approval=…"
    why = f"{run.error.code}: {run.error.message}" if run.error else f"ended: {run.stop_reason}"
    # A dead process is no failed answer: the run is resumed, so finished turns are not paid twice.
    was_cut = run.error is not None and run.error.code == "ENGINE_INTERRUPTED"
    if run.stop_reason == "stopped" or run.phase == "Running" or was_cut:
        return "unfinished", why
    return ("failed" if run.stop_reason == "error" else "ended"), why


def unasked_call(turn: EngineTurn) -> str:
    """Return the tool of a call that was denied because nobody could be asked; empty: none."""
    calls = (
        tool_run
        for tool_run in turn.tool_runs
        if (tool_run.approval, tool_run.approved_by) == ("denied", "nobody")
    )
    return next((call.tool_name for call in calls), "")


def assign_earlier_runs(
    entries: Iterable[CaseState], runs: Sequence[CaseRun], *, keep: bool
) -> None:
    """Assign earlier runs to their cases; with `keep`, also runs with another prompt."""
    lines: dict[tuple[str, ...], list[list[CaseRecord]]] = defaultdict(list)
    line_of: dict[str, list[CaseRecord]] = {}
    for case_run in runs:
        line = line_of.get(case_run.run.parent_id or "")
        if line is None:
            line = list[CaseRecord]()
            for name in _case_keys(case_run.case):
                lines[name].append(line)
        line.append(case_run.run)
        line_of[case_run.run.id] = line
    taken: set[int] = set()
    for entry in entries:
        case = entry.planned.case
        names = _case_keys(case) if keep else _case_keys(case)[:1]
        candidates = [
            line for name in names for line in lines.get(name, ()) if id(line) not in taken
        ]
        # Two variants may be equal: each gets a run of its own, if possible one with its labels.
        # If two processes asked the same case, the run with an answer counts.
        candidates.sort(
            key=lambda line: (_has_other_labels(line[0], case), status_of(line[-1])[0] != "ok")
        )
        for line in candidates[:1]:
            taken.add(id(line))
            for run in line:
                entry.add_run(run)
            if entry.status == "ended" and _can_resume(line[-1], entry.planned.variant.max_turns):
                entry.status = "unfinished"


def _has_other_labels(run: RunInfo, case: Case) -> bool:
    return run.case is None or run.case.variant != case.variant


def _can_resume(run: RunInfo, max_turns: int) -> bool:
    """True if the limit that paused a run may be higher now; budgets are checked again later."""
    if run.stop_reason == "max_turns":
        return run.phase == "WaitingUser" and max_turns > run.limits.max_turns
    return run.stop_reason == "budget"


def _case_keys(case: Case) -> list[tuple[str, ...]]:
    """Return the keys of a case: its hash; and its labels, by which an old answer is kept."""
    labels = (f"{axis}={label}" for axis, label in sorted(case.variant.items()))
    return [("sha", case.row_key, case.sha), ("place", case.row_key, str(case.attempt), *labels)]


def scorer_name(score: ScoreRecord) -> str:
    """Return the scorer's name: for the score `exact.length` it is `exact`."""
    return score.scorer.partition(".")[0]


def is_scored(scores: Iterable[ScoreRecord], name: str, version: int, row: dict[str, str]) -> bool:
    """True if this version of a scorer has scored the run with this row, without an error."""
    return any(
        score.error is None
        and (scorer_name(score), score.version) == (name, version)
        # A person's label has no row; it does not count as this scorer's.
        and score.row is not None
        and all(row.get(column, mark) == mark for column, mark in score.row.items())
        for score in scores
    )


def versions_of(scores: Iterable[ScoreRecord], now: Mapping[str, int]) -> dict[str, int]:
    """Return the version of each scorer that counts: the current one, else the highest."""
    versions: dict[str, int] = {}
    for score in scores:
        versions[scorer_name(score)] = max(score.version, versions.get(scorer_name(score), 0))
    return {**versions, **now}


def counting_scores(
    scores: Iterable[ScoreRecord], versions: Mapping[str, int]
) -> list[ScoreRecord]:
    """Return the scores of a run with the counting versions, of each person and scorer."""
    return [
        score
        for score in scores
        if score.version == versions.get(scorer_name(score), score.version)
    ]


def current_scores(
    scores: Iterable[ScoreRecord], versions: Mapping[str, int]
) -> dict[str, ScoreRecord]:
    """Return the one score of a run for each name, with the counting versions.

    The rule for several people is in `contracts.case_results`.
    """
    return joint_scores(counting_scores(scores, versions))


def numeric_scores(scores: Mapping[str, ScoreRecord]) -> dict[str, float]:
    """Return the numeric scores; true is 1."""
    values = {name: value.value for name, value in scores.items()}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, bool | int | float)
    }


def failures_of(
    entries: Iterable[CaseState], n_failed: int = _MAX_FAILURES
) -> tuple[FailedCase, ...]:
    """Return the first cases that ended without an answer; look no further than for `n_failed`."""
    failed = (entry for entry in entries if entry.status in ("failed", "ended"))
    return tuple(
        FailedCase(
            run_id=entry.run_id,
            row_key=entry.planned.case.row_key,
            variant=entry.planned.variant.name,
            why=entry.why,
        )
        for entry in islice(failed, min(n_failed, _MAX_FAILURES))
    )


def summaries_of(entries: Iterable[CaseState]) -> tuple[VariantSummary, ...]:
    """Summarize each variant."""
    by_variant: dict[str, list[CaseState]] = defaultdict(list)
    for entry in entries:
        by_variant[entry.planned.variant.name].append(entry)
    return tuple(_summary(name, some) for name, some in by_variant.items())


def _summary(name: str, entries: Sequence[CaseState]) -> VariantSummary:
    costs = [entry.cost_usd for entry in entries if entry.cost_usd is not None]
    scores: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for scorer, value in entry.scores.items():
            scores[scorer].append(value)
    return VariantSummary(
        variant=name,
        total=len(entries),
        ok=sum(entry.status == "ok" for entry in entries),
        failed=sum(entry.status in ("failed", "ended") for entry in entries),
        cost_usd=sum(costs) if costs else None,
        scores={scorer: sum(values) / len(values) for scorer, values in scores.items()},
        run_ids=tuple(entry.run_id for entry in entries if entry.run_id)[:_MAX_RUN_IDS],
    )
