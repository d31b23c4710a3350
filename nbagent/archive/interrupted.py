"""How a run ended whose kernel ended in the middle of it. Pure.

Law: a tool that had started and has no result on disk is not run again; its result says so.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from nbagent.contracts.chat import Usage
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult

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


def interrupted(run: RunRecord, last_sign: datetime | None) -> RunRecord:
    """The record of a run at work, as it ended with its kernel.

    Args:
        run: the calls of its last message may be unanswered.
        last_sign: when its kernel was last known to live.
    """
    turns, messages = list(run.turns), list(run.messages)
    if turns and messages and messages[-1].tool_calls:
        turns[-1] = _ended(turns[-1])
        messages += [tool_run.as_message() for tool_run in turns[-1].tool_runs]
    last = [turn.started_at + timedelta(milliseconds=turn.duration_ms) for turn in turns[-1:]]
    ended_at = max(run.started_at, last_sign or run.started_at, *last)
    usages = [turn.response.usage for turn in turns if turn.response and turn.response.usage]
    costs = [turn.cost_usd for turn in turns if turn.response and turn.cost_usd is not None]
    return run.model_copy(
        update={
            "phase": "Failed",
            "stop_reason": "error",
            "error": RUN_INTERRUPTED,
            "ended_at": ended_at,
            "duration_ms": (ended_at - run.started_at).total_seconds() * 1000,
            "usage": sum(usages, Usage()),
            "cost_usd": sum(costs) if costs else None,
            "n_unpriced": sum(turn.response is not None for turn in turns) - len(costs),
            "turns": tuple(turns),
            "messages": tuple(messages),
        }
    )


def _ended(turn: EngineTurn) -> EngineTurn:
    ended = {"result": TOOL_INTERRUPTED}
    runs = (run if run.result else run.model_copy(update=ended) for run in turn.tool_runs)
    return turn.model_copy(
        update={
            "tool_runs": tuple(runs),
            "phase_after": "Failed",
            "stop_reason": "error",
            "error": RUN_INTERRUPTED,
            "duration_ms": max(turn.duration_ms, turn.model_ms + turn.retry_wait_ms),
        }
    )
