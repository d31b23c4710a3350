"""State of a running run that its record does not have: drafts, open questions, waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from nbagent.contracts.approval import Question
from nbagent.view import timing
from nbagent.view.live_text import TurnDraft

STOPPING, PAUSING = "Stopping…", "Pausing after this turn…"


@dataclass(slots=True)
class LiveState:
    """State of a running run that is not in its record."""

    elapsed_ms: float = 0.0
    time_kind: timing.Kind = "model"
    """Kind of the time that passes now, for the time bar."""
    activity: str = ""
    """Text about a retry or a wait; empty if there is none."""
    retry_at_ms: float = 0.0
    """Time of the next attempt, on the clock of `elapsed_ms`."""
    stopping: str = ""
    """`STOPPING` or `PAUSING`, once the person asked for it."""
    drafts: dict[str, TurnDraft] = field(default_factory=dict[str, TurnDraft])
    """Unfinished responses by turn id."""
    progress: dict[str, str] = field(default_factory=dict[str, str])
    """Last progress text of a call by the key of its card."""
    open_questions: dict[str, tuple[str, Question]] = field(
        default_factory=dict[str, tuple[str, Question]]
    )
    """Open questions with their ids, by the key of the call's card."""
