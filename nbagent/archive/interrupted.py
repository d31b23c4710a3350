"""Runs whose kernel ended in the middle of them: which these are, and how they ended.

Law: a tool that had started and has no result on disk is not run again; its result says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from nbagent.archive.database import Connection
from nbagent.archive.lease import Lease
from nbagent.archive.reading import load_row, select
from nbagent.archive.rows import Row
from nbagent.contracts.chat import Message, Usage
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult, ToolRun

RUN_INTERRUPTED = ErrorInfo(
    "ENGINE_INTERRUPTED",
    "the kernel ended while this run was at work; every finished turn is kept. "
    "Go on with `%agent resume` or `run.resume()`",
)
TOOL_INTERRUPTED = ToolResult.failure(
    ErrorInfo(
        "E_INTERRUPTED",
        "started, and the kernel ended before it finished; it was not run again, "
        "and what it did until then is not known",
    )
)
TOOL_NOT_STARTED = ToolResult.failure(
    ErrorInfo("E_INTERRUPTED", "the kernel ended before this call was started; it was not run")
)


def leases(c: Connection) -> dict[str, Lease]:
    """All leases that were taken and not given back, by their id."""
    found = select(c, "leases", "")
    return {row["id"]: Lease.of_row(row) for row in found}


def dead_runs(c: Connection, own_lease: str, now: datetime) -> list[Row]:
    """The runs that say Running while nobody is at work on them."""
    found = select(c, "runs", "WHERE phase = 'Running' AND lease_id IS NOT ?", (own_lease,))
    alive = {it.id for it in leases(c).values() if it.is_alive(now)} if found else set[str]()
    return [row for row in found if row["lease_id"] not in alive]


def ended_runs(c: Connection, rows: Sequence[Row]) -> list[tuple[Row, RunRecord]]:
    """How each of these runs has ended."""
    holders = leases(c)
    return [
        (row, interrupted(load_row(c, row), holder.heartbeat if holder else None))
        for row in rows
        for holder in (holders.get(row["lease_id"]),)
    ]


def interrupted(run: RunRecord, last_sign: datetime | None) -> RunRecord:
    """The record of a run at work, as it ended with its kernel.

    Args:
        run: the calls of its last message may be unanswered.
        last_sign: when its kernel was last known to live.
    """
    turns, messages = list(run.turns), list(run.messages)
    if turns and messages and messages[-1].tool_calls:
        turns[-1] = _finished(turns[-1])
        messages += map(_answer, turns[-1].tool_runs)
    last = [turn.started_at + timedelta(milliseconds=turn.duration_ms) for turn in turns[-1:]]
    ended_at = max(run.started_at, last_sign or run.started_at, *last)
    usage, cost, unpriced = sum_of(turns)
    return run.model_copy(
        update={
            "phase": "Failed",
            "stop_reason": "error",
            "error": RUN_INTERRUPTED,
            "ended_at": ended_at,
            "duration_ms": (ended_at - run.started_at).total_seconds() * 1000,
            "usage": usage,
            "cost_usd": cost,
            "n_unpriced": unpriced,
            "turns": tuple(turns),
            "messages": tuple(messages),
        }
    )


def _finished(turn: EngineTurn) -> EngineTurn:
    return turn.model_copy(
        update={
            "tool_runs": tuple(map(_ended, turn.tool_runs)),
            "phase_after": "Failed",
            "stop_reason": "error",
            "error": RUN_INTERRUPTED,
            "duration_ms": max(turn.duration_ms, turn.model_ms + turn.retry_wait_ms),
        }
    )


def _ended(run: ToolRun) -> ToolRun:
    if run.result is not None:
        return run
    result = TOOL_NOT_STARTED if run.started_at is None else TOOL_INTERRUPTED
    return run.model_copy(update={"result": result})


def _answer(run: ToolRun) -> Message:
    """The message that gives a tool run's result to the model."""
    content = run.result.as_content() if run.result else ()
    return Message(role="tool", content=content, tool_call_id=run.tool_call_id, name=run.tool_name)


def sum_of(turns: Sequence[EngineTurn]) -> tuple[Usage, float | None, int]:
    """Usage of some turns, their cost as far as it is known, and how many have no price."""
    answered = [turn for turn in turns if turn.response is not None]
    usage = sum(
        (it.response.usage for it in answered if it.response and it.response.usage), Usage()
    )
    costs = [turn.cost_usd for turn in answered if turn.cost_usd is not None]
    return usage, sum(costs) if costs else None, len(answered) - len(costs)
