"""Values of a run that are computed once: `ok`, the sums over its turns, the record of its end."""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from typing import get_args

import pytest
from made_records import START, Maker

from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.model import Usage
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.contracts.stop_reasons import StopReason

SEEDS = range(60)


def made(seed: int) -> RunRecord:
    return Maker(seed).run()[0]


@pytest.mark.parametrize("reason", [None, *get_args(StopReason)])
def test_run_is_ok_if_it_was_answered_or_its_workflow_is_complete(
    reason: StopReason | None,
) -> None:
    record = made(1).model_copy(update={"stop_reason": reason})
    expected = reason in ("answered", "workflow_complete")
    assert record.ok == record.summary().ok == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_of_a_run_are_the_sums_of_those_of_its_turns(seed: int) -> None:
    record = made(seed)
    totals = record.totals()
    parts = [record.model_copy(update={"turns": (turn,)}).totals() for turn in record.turns]
    assert totals.turns == len(record.turns)
    assert totals.usage == reduce(Usage.__add__, [part.usage for part in parts], Usage())
    for name in ("tool_calls", "tool_errors", "n_unpriced", "model_ms", "retry_wait_ms"):
        expected = sum(getattr(part, name) for part in parts)
        assert getattr(totals, name) == pytest.approx(expected), name
    costs = [part.cost_usd for part in parts if part.cost_usd is not None]
    assert totals.cost_usd == (pytest.approx(sum(costs)) if costs else None)
    n_answered = sum(turn.response is not None for turn in record.turns)
    assert totals.n_unpriced + len(costs) == n_answered
    assert totals.usage == record.usage


def turn_of(*runs: ToolRun) -> EngineTurn:
    turn = next(turn for seed in SEEDS for turn in made(seed).turns)
    return turn.model_copy(update={"tool_runs": runs})


def test_time_of_parallel_calls_counts_once() -> None:
    def run(start_ms: float, ms: float) -> ToolRun:
        at = START + timedelta(milliseconds=start_ms)
        times = {"queued_at": at, "waited_ms": ms / 2, "started_at": at, "duration_ms": ms}
        return ToolRun.model_validate({"tool_call_id": "c", "tool_name": "t", **times})

    both = turn_of(run(0, 100), run(40, 100), run(200, 10), run(50, 20))
    assert both.tools_ms == pytest.approx(150, abs=0.01)
    assert both.waited_ms == pytest.approx(95, abs=0.01)
    totals = made(1).model_copy(update={"turns": (both, both)}).totals()
    assert (totals.tools_ms, totals.waited_ms) == (both.tools_ms, both.waited_ms)


@pytest.mark.parametrize("seed", SEEDS)
def test_ended_record_has_the_end_and_the_sums_and_all_else_as_before(seed: int) -> None:
    at_work = made(seed).model_copy(
        update={"phase": "Running", "stop_reason": None, "usage": Usage(), "cost_usd": None}
    )
    error, ended_at = ErrorInfo("UNKNOWN", "no"), at_work.started_at + timedelta(seconds=2)
    ended = at_work.ended(phase="Failed", stop_reason="error", error=error, ended_at=ended_at)
    totals = at_work.totals()
    end = {"phase": "Failed", "stop_reason": "error", "error": error, "ended_at": ended_at}
    sums = {name: getattr(totals, name) for name in ("usage", "cost_usd", "n_unpriced")}
    assert ended == at_work.model_copy(update={**end, **sums, "duration_ms": 2000.0})
    paused = at_work.ended(
        phase="WaitingUser", stop_reason=None, error=None, ended_at=ended_at, duration_ms=7.5
    )
    assert (paused.duration_ms, paused.ok, paused.totals()) == (7.5, False, totals)
