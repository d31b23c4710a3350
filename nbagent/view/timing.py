"""Where the time of a run went: the pieces of its time bar, and their words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from nbagent.contracts.records import EngineTurn, ToolRun
from nbagent.view.labels import is_failure
from nbagent.view.words import seconds

Kind = Literal["model", "tool", "wait", "bad"]
_MOST_PIECES = 60
"""More pieces of a time bar are put together: none of them could be seen."""
_BAR_WORDS = {
    "model": "model",
    "tool": "tools",
    "wait": "waiting for you",
    "bad": "retries, waits, failures",
}


class Segment(NamedTuple):
    """A piece of the time bar."""

    kind: Kind
    ms: float
    turn: str


def segments_of(turn: EngineTurn) -> list[Segment]:
    """Where the time of a turn went. Which pieces there are depends on events, not on times."""
    model = turn.model_ms
    if not model and not turn.tool_runs:
        model = turn.duration_ms - turn.retry_wait_ms
    pieces: list[tuple[Kind, float]] = []
    if turn.attempts > 1 or turn.retry_wait_ms:
        pieces.append(("bad", turn.retry_wait_ms))
    kind: Kind = "bad" if is_failure(turn.error) else "model"
    pieces.append((kind, model))
    runs = [run for run in turn.tool_runs if run.result is not None]
    if runs:
        rest = max(0.0, turn.duration_ms - model - turn.retry_wait_ms)
        # All calls of a turn begin together, so their waits lie upon one another.
        waited = min(max(run.waited_ms for run in runs), rest)
        if waited:
            pieces.append(("wait", waited))
        pieces += _tool_pieces(runs, rest - waited)
    return [Segment(kind, round(max(0.0, ms), 1), turn.id) for kind, ms in pieces]


def _tool_pieces(runs: Sequence[ToolRun], rest: float) -> list[tuple[Kind, float]]:
    # A call that was denied never began, so no time went to it.
    began = [run for run in runs if run.started_at or (run.result and run.result.ok)]
    failed = [run for run in began if run.result and not run.result.ok]
    if not began:
        return []
    total = sum(run.duration_ms for run in began)
    lost = sum(run.duration_ms for run in failed)
    share = lost / total if total else len(failed) / len(began)
    good: list[tuple[Kind, float]] = [("tool", rest * (1 - share))]
    bad: list[tuple[Kind, float]] = [("bad", rest * share)]
    return [*(good if len(failed) < len(began) else []), *(bad if failed else [])]


def bar_of(turns: Sequence[EngineTurn]) -> list[Segment]:
    """The time bar of some turns, of a bounded number of pieces."""
    pieces = [piece for turn in turns for piece in segments_of(turn)]
    size = -(-len(pieces) // _MOST_PIECES)
    if size < 2:
        return pieces
    parts = [pieces[i : i + size * 2] for i in range(0, len(pieces), size * 2)]
    merged: list[Segment] = []
    for part in parts:
        merged += [Segment(kind, round(ms, 1), part[0].turn) for kind, ms in sums_of(part).items()]
    return merged


def sums_of(pieces: Sequence[Segment]) -> dict[Kind, float]:
    """How long each kind took together, in the order of the words."""
    order: tuple[Kind, ...] = ("model", "tool", "wait", "bad")
    kinds = {piece.kind for piece in pieces}
    return {k: sum(p.ms for p in pieces if p.kind == k) for k in order if k in kinds}


def bar_words(pieces: Sequence[Segment]) -> str:
    """The time bar as words and figures."""
    return " · ".join(f"{_BAR_WORDS[kind]} {seconds(ms)}" for kind, ms in sums_of(pieces).items())


def kind_word(kind: Kind) -> str:
    """`tools`, `waiting for you`."""
    return _BAR_WORDS[kind]
