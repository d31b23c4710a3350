"""Where the time of a run went: the pieces of its time bar, and their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nbagent.contracts.records import EngineTurn, ToolRun
from nbagent.view.labels import is_failure
from nbagent.view.words import seconds

Kind = Literal["model", "tool", "wait", "bad"]
KIND_WORDS: dict[Kind, str] = {
    "model": "model",
    "tool": "tools",
    "wait": "waiting for you",
    "bad": "retries, waits, failures",
}
_MOST_PIECES = 60
"""More pieces of a time bar are put together: none of them could be seen."""


class Segment(NamedTuple):
    """A piece of the time bar."""

    kind: Kind
    ms: float


def segments_of(turn: EngineTurn) -> list[Segment]:
    """Where the time of a turn went. Which pieces there are depends on events, not on times."""
    runs = [run for run in turn.tool_runs if run.result is not None]
    model = turn.model_ms
    if not model and not turn.tool_runs:
        model = turn.duration_ms - turn.retry_wait_ms
    rest = max(0.0, turn.duration_ms - model - turn.retry_wait_ms) if runs else 0.0
    # All calls of a turn begin together, so their waits lie upon one another.
    waits = [run.waited_ms for run in runs if run.waited_ms and run.approved_by != "nobody"]
    waited = min(max(waits, default=0.0), rest)
    retried = turn.attempts > 1 or turn.retry_wait_ms
    pieces = [Segment("bad", turn.retry_wait_ms)] if retried else []
    pieces.append(Segment("bad" if is_failure(turn.error) else "model", model))
    pieces += [Segment("wait", waited)] if waits else []
    pieces += _tool_segments(runs, rest - waited)
    return [Segment(kind, round(max(0.0, ms), 1)) for kind, ms in pieces]


def _tool_segments(runs: Sequence[ToolRun], rest: float) -> list[Segment]:
    # A call that was denied never began, so no time went to it.
    began = [run for run in runs if run.started_at or (run.result and run.result.ok)]
    failed = [run for run in began if run.result and not run.result.ok]
    if not began:
        return []
    total = sum(run.duration_ms for run in began)
    share = sum(run.duration_ms for run in failed) / total if total else len(failed) / len(began)
    good = [Segment("tool", rest * (1 - share))] if len(failed) < len(began) else []
    return [*good, Segment("bad", rest * share)] if failed else good


def bar_of(turns: Sequence[EngineTurn]) -> list[Segment]:
    """The time bar of some turns, of a bounded number of pieces."""
    pieces = [piece for turn in turns for piece in segments_of(turn)]
    size = -(-len(pieces) // _MOST_PIECES)
    if size < 2:
        return pieces
    parts = [pieces[i : i + size * 2] for i in range(0, len(pieces), size * 2)]
    return [Segment(kind, round(ms, 1)) for part in parts for kind, ms in sums_of(part).items()]


def sums_of(pieces: Sequence[Segment]) -> dict[Kind, float]:
    """How long each kind took together, in the order of the words."""
    kinds = {piece.kind for piece in pieces}
    return {k: sum(p.ms for p in pieces if p.kind == k) for k in KIND_WORDS if k in kinds}


def bar_words(pieces: Sequence[Segment]) -> str:
    """The time bar as words and figures."""
    return " · ".join(f"{KIND_WORDS[kind]} {seconds(ms)}" for kind, ms in sums_of(pieces).items())
