"""How far each case of a batch is: what answered it, what that cost, what it scored.

Values and rules only; nothing is started or kept here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from nbagent.contracts.records import Case, EngineTurn, RunRecord, ScoreRecord
from nbagent.lab.plan import PlannedCase
from nbagent.store.batches import CaseRun
from nbagent.view.batch import FailedCase, VariantSummary

Standing = Literal["missing", "unfinished", "failed", "ended", "ok"]
"""Of a case: not asked; stopped, to be resumed; ended by an error, to be resumed; ended without an
answer; answered."""
_FIRST = 10
_OPENED = 5


@dataclass(slots=True)
class Entry:
    """A case, and how far it is."""

    planned: PlannedCase
    standing: Standing = "missing"
    run_id: str = ""
    """Of its last run."""
    earlier_ids: list[str] = field(default_factory=list[str])
    """Of the runs before it, from which it goes on."""
    cost_usd: float | None = None
    """Of all of its runs."""
    why: str = ""
    """Why there is no answer: the code and the message."""
    scores: dict[str, float] = field(default_factory=dict[str, float])

    def take(self, run: RunRecord) -> None:
        """Its last run is this one."""
        if self.run_id:
            self.earlier_ids.append(self.run_id)
        self.run_id = run.id
        if run.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + run.cost_usd
        self.standing, self.why = standing_of(run)


def standing_of(run: RunRecord) -> tuple[Standing, str]:
    """How far a case is whose last run this is, and why it has no answer."""
    if run.stop_reason in ("answered", "workflow_complete"):
        return "ok", ""
    asked = run.turns and unasked_call(run.turns[-1])
    if asked:
        return "failed", f"E_DENIED: {asked} needs approval; allow it, or give on_approval=…"
    why = f"{run.error.code}: {run.error.message}" if run.error else f"ended: {run.stop_reason}"
    was_cut = run.error is not None and run.error.code == "ENGINE_INTERRUPTED"
    if run.stop_reason == "stopped" or run.phase == "Running" or was_cut:
        return "unfinished", why
    return ("failed" if run.stop_reason == "error" else "ended"), why


def unasked_call(turn: EngineTurn) -> str:
    """The tool of a call that was denied because nobody could be asked; empty: none."""
    calls = (it for it in turn.tool_runs if (it.approval, it.approved_by) == ("denied", "nobody"))
    return next((call.tool_name for call in calls), "")


def note_earlier(entries: Iterable[Entry], runs: Sequence[CaseRun], *, keep: bool) -> None:
    """Give each case the runs that answered it before; of `keep`, also those of other prompts."""
    lines: dict[tuple[str, ...], list[list[RunRecord]]] = defaultdict(list)
    line_of: dict[str, list[RunRecord]] = {}
    for one in runs:
        line = line_of.get(one.run.parent_id or "")
        if line is None:
            line = list[RunRecord]()
            for name in _names(one.case):
                lines[name].append(line)
        line.append(one.run)
        line_of[one.run.id] = line
    taken: set[int] = set()
    for entry in entries:
        case = entry.planned.case
        names = _names(case) if keep else _names(case)[:1]
        found = [line for name in names for line in lines.get(name, ()) if id(line) not in taken]
        # Two variants may be the same: each has a run of its own, if it can be one of its labels.
        # And of two processes that asked the same the one with an answer counts.
        found.sort(key=lambda line: (_is_other(line[0], case), standing_of(line[-1])[0] != "ok"))
        for line in found[:1]:
            taken.add(id(line))
            for run in line:
                entry.take(run)
            if entry.standing == "ended" and _can_go_on(line[-1], entry.planned.variant.max_turns):
                entry.standing = "unfinished"


def _is_other(run: RunRecord, case: Case) -> bool:
    return run.case is None or run.case.variant != case.variant


def _can_go_on(run: RunRecord, max_turns: int) -> bool:
    """Whether the limit that paused a run may be higher now; a budget is looked at once more."""
    if run.stop_reason == "max_turns":
        return run.phase == "WaitingUser" and max_turns > run.limits.max_turns
    return run.stop_reason == "budget"


def _names(case: Case) -> list[tuple[str, ...]]:
    """What a case is found by: its hash, or, where an old answer is kept, its labels."""
    labels = (f"{axis}={label}" for axis, label in sorted(case.variant.items()))
    return [("sha", case.row_key, case.sha), ("place", case.row_key, str(case.attempt), *labels)]


def root_of(score: ScoreRecord) -> str:
    """The name of the scorer whose score it is: of `exact.length`, `exact`."""
    return score.scorer.partition(".")[0]


def is_scored(held: Iterable[ScoreRecord], name: str, version: int, row: dict[str, str]) -> bool:
    """Whether this version of a scorer has scored the run without an error, with this row."""
    return any(
        it.error is None
        and (root_of(it), it.version) == (name, version)
        and it.row is not None
        and all(row.get(column, mark) == mark for column, mark in it.row.items())
        for it in held
    )


def versions_of(held: Iterable[ScoreRecord], now: Mapping[str, int]) -> dict[str, int]:
    """Which version of each scorer counts: that of now, else the highest."""
    found: dict[str, int] = {}
    for score in held:
        found[root_of(score)] = max(score.version, found.get(root_of(score), 0))
    return {**found, **now}


def counting(held: Iterable[ScoreRecord], versions: Mapping[str, int]) -> dict[str, ScoreRecord]:
    """The scores of a run that count, by their names."""
    return {it.scorer: it for it in held if it.version == versions.get(root_of(it), it.version)}


def means(scores: Mapping[str, ScoreRecord]) -> dict[str, float]:
    """The numbers among scores; true is 1."""
    values = {name: it.value for name, it in scores.items()}
    return {name: float(it) for name, it in values.items() if isinstance(it, bool | int | float)}


def failures_of(entries: Iterable[Entry]) -> tuple[FailedCase, ...]:
    """The first cases that ended without an answer."""
    failed = (entry for entry in entries if entry.standing in ("failed", "ended"))
    return tuple(
        FailedCase(
            run_id=entry.run_id,
            row_key=entry.planned.case.row_key,
            variant=entry.planned.variant.name,
            why=entry.why,
        )
        for entry in islice(failed, _FIRST)
    )


def summaries_of(entries: Iterable[Entry]) -> tuple[VariantSummary, ...]:
    """What is known of each variant."""
    by_variant: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_variant[entry.planned.variant.name].append(entry)
    return tuple(_summary(name, some) for name, some in by_variant.items())


def _summary(name: str, entries: Sequence[Entry]) -> VariantSummary:
    costs = [entry.cost_usd for entry in entries if entry.cost_usd is not None]
    scores: dict[str, list[float]] = defaultdict(list)
    for entry in entries:
        for scorer, value in entry.scores.items():
            scores[scorer].append(value)
    return VariantSummary(
        variant=name,
        total=len(entries),
        ok=sum(entry.standing == "ok" for entry in entries),
        failed=sum(entry.standing in ("failed", "ended") for entry in entries),
        cost_usd=sum(costs) if costs else None,
        scores={scorer: sum(values) / len(values) for scorer, values in scores.items()},
        run_ids=tuple(entry.run_id for entry in entries if entry.run_id)[:_OPENED],
    )
