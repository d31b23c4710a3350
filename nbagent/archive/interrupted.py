"""What a run reads as when its kernel ended in the middle of it. Pure functions of values.

Law: a tool that had started and has no stored result is not run again; its result says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from nbagent.contracts.chat import Message, TextPart, Usage
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


def tool_message(run: ToolRun) -> Message:
    """The message that gives a tool run's result to the model."""
    result = run.result or TOOL_INTERRUPTED
    return Message(
        role="tool",
        content=(TextPart(text=result.to_json().decode()), *result.attachments),
        tool_call_id=run.tool_call_id,
        name=run.tool_name,
    )


def finish_turn(
    turn: EngineTurn,
    *,
    not_started: Collection[str] = (),
    results: Mapping[str, ToolRun] | None = None,
) -> tuple[EngineTurn, tuple[Message, ...]]:
    """Finish a turn that was left open; return it with one tool message per call, in order.

    Args:
        turn: the open turn, with a tool run for every call.
        not_started: ids of calls that certainly did nothing.
        results: tool runs that take the place of the stored ones, by call id.
    """
    runs = tuple(
        _finish(run, run.tool_call_id in not_started, results or {}) for run in turn.tool_runs
    )
    finished = turn.model_copy(
        update={
            "tool_runs": runs,
            "phase_after": "Failed",
            "stop_reason": "error",
            "error": RUN_INTERRUPTED,
            "duration_ms": max(turn.duration_ms, turn.model_ms + turn.retry_wait_ms),
        }
    )
    return finished, tuple(tool_message(run) for run in runs)


def _finish(run: ToolRun, untouched: bool, results: Mapping[str, ToolRun]) -> ToolRun:
    if run.result is not None:
        return run
    given = results.get(run.tool_call_id)
    if given is not None and given.result is not None:
        return given
    return run.model_copy(update={"result": TOOL_NOT_STARTED if untouched else TOOL_INTERRUPTED})


def sum_of(turns: Sequence[EngineTurn]) -> tuple[Usage, float | None]:
    """Usage and cost of some turns; the cost is None when a price is unknown."""
    usage, cost = Usage(), 0.0
    known = True
    for turn in turns:
        if turn.response is None:
            continue
        if turn.response.usage is not None:
            usage = usage + turn.response.usage
        if turn.cost_usd is None:
            known = False
        else:
            cost += turn.cost_usd
    return usage, (cost if known and turns else None)


def finish_run(record: RunRecord, ended_at: datetime) -> RunRecord:
    """A record that still says Running as it reads once its kernel is gone."""
    usage, cost = sum_of(record.turns)
    return record.model_copy(
        update={
            "phase": "Failed",
            "stop_reason": "error",
            "error": RUN_INTERRUPTED,
            "ended_at": ended_at,
            "duration_ms": (ended_at - record.started_at).total_seconds() * 1000,
            "usage": usage,
            "cost_usd": cost,
        }
    )
