"""Time of a run by kind: the segments of its time bar, and their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nbagent.contracts.records import EngineTurn, ToolRun
from nbagent.view.run_facts import is_failure
from nbagent.view.text_format import format_duration

Kind = Literal["model", "tool", "wait", "bad"]
KIND_WORDS: dict[Kind, str] = {
    "model": "model",
    "tool": "tools",
    "wait": "waiting for you",
    "bad": "retries, waits, failures",
}
_MAX_PIECES = 60
"""More segments are merged by kind: they would be too small to see."""


class Segment(NamedTuple):
    """A segment of the time bar."""

    kind: Kind
    ms: float


def turn_segments(turn: EngineTurn) -> list[Segment]:
    """Split the time of a turn by kind.

    The set of segments depends on events, not on durations, so nbval can compare outputs.
    """
    runs = [run for run in turn.tool_runs if run.result is not None]
    model = turn.model_ms
    if not model and not turn.tool_runs:
        model = turn.duration_ms - turn.retry_wait_ms
    rest = max(0.0, turn.duration_ms - model - turn.retry_wait_ms) if runs else 0.0
    # All calls of a turn start together, so their waits overlap: the longest one counts.
    waits = [run.waited_ms for run in runs if run.waited_ms and run.approved_by != "nobody"]
    waited = min(max(waits, default=0.0), rest)
    # By the attempts: a retry may have waited 0 ms, and the set of segments must not depend on it.
    retried = turn.attempts > 1 or turn.retry_wait_ms
    pieces = [Segment("bad", turn.retry_wait_ms)] if retried else []
    pieces.append(Segment("bad" if is_failure(turn.error) else "model", model))
    pieces += [Segment("wait", waited)] if waits else []
    pieces += _tool_segments(runs, rest - waited)
    return [Segment(kind, round(max(0.0, ms), 1)) for kind, ms in pieces]


def _tool_segments(runs: Sequence[ToolRun], rest: float) -> list[Segment]:
    # A denied call never started, so it took no time.
    began = [run for run in runs if run.started_at or (run.result and run.result.ok)]
    failed = [run for run in began if run.result and not run.result.ok]
    if not began:
        return []
    total = sum(run.duration_ms for run in began)
    share = sum(run.duration_ms for run in failed) / total if total else len(failed) / len(began)
    good = [Segment("tool", rest * (1 - share))] if len(failed) < len(began) else []
    return [*good, Segment("bad", rest * share)] if failed else good


def time_bar(turns: Sequence[EngineTurn]) -> list[Segment]:
    """Time bar of some turns, with a limited number of segments."""
    pieces = [piece for turn in turns for piece in turn_segments(turn)]
    size = -(-len(pieces) // _MAX_PIECES)
    if size < 2:
        return pieces
    # Twice the size, as a merged part mostly becomes two segments: model and tools.
    parts = [pieces[i : i + size * 2] for i in range(0, len(pieces), size * 2)]
    return [
        Segment(kind, round(ms, 1)) for part in parts for kind, ms in totals_by_kind(part).items()
    ]


def totals_by_kind(pieces: Sequence[Segment]) -> dict[Kind, float]:
    """Total time of each kind, in the order of `KIND_WORDS`."""
    kinds = {piece.kind for piece in pieces}
    return {k: sum(p.ms for p in pieces if p.kind == k) for k in KIND_WORDS if k in kinds}


def bar_text(pieces: Sequence[Segment]) -> str:
    """Print the time bar as text."""
    return " · ".join(
        f"{KIND_WORDS[kind]} {format_duration(ms)}" for kind, ms in totals_by_kind(pieces).items()
    )
