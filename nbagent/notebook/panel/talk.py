"""The conversation of the panel as it is seen: a person's words and a run view for each run.

Owns the views and how many of them stay open. Called on the kernel's main thread.
"""

# ipywidgets has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.ports import RunControls
from nbagent.contracts.records import RunRecord
from nbagent.notebook.live_view import LiveViewSink, RunView, live_view
from nbagent.notebook.panel.parts import Said
from nbagent.view.live_state import LiveState
from nbagent.view.view_state import view_of
from nbagent.view.words import count, money, seconds

KEPT = 8
"""So many runs of a conversation stay on the page; each holds a whole picture."""
_REOPENED = 3
_NAMED = 6
"""So many of the runs that are no longer shown are named."""


@dataclass(slots=True)
class _Entry:
    run_id: str
    said: Said
    view: RunView


@dataclass(frozen=True, slots=True)
class _Sums:
    """The figures of one run."""

    turns: int
    tokens: int
    cost_usd: float | None
    duration_ms: float


class Talk:
    """The runs of one conversation, in a box of widgets."""

    def __init__(self, place: Any) -> None:
        """Show nothing yet.

        Args:
            place: the box whose children the views are.
        """
        self._place = place
        self._entries: deque[_Entry] = deque()
        self._sums: dict[str, _Sums] = {}
        self.folded: tuple[str, ...] = ()
        """Runs that are no longer on the page."""

    @property
    def run_ids(self) -> tuple[str, ...]:
        """All runs of the conversation, also those that are no longer on the page."""
        return tuple(self._sums)

    def begin(self, run: RunRecord, controls: RunControls) -> tuple[RunView, LiveViewSink]:
        """A live view for a run that begins."""
        view, sink = live_view(LiveState(run), controls=controls)
        self._add(run, view)
        return view, sink

    def show(self, runs: Sequence[RunRecord]) -> None:
        """Views of the last of these runs, which are over; all of them count."""
        self.folded = tuple(run.id for run in runs[:-_REOPENED])
        for run in runs[-_REOPENED:]:
            self._add(run, RunView(view_of(run)))
        for run in runs:
            self.count(run)

    def end(self, run: RunRecord) -> None:
        """Draw a run as it ended, where its sink could not."""
        for entry in self._entries:
            if entry.run_id == run.id:
                entry.view.finish(view_of(run))
        self.count(run)

    def count(self, run: RunRecord) -> None:
        """Take a run's figures into the totals. Any thread."""
        tokens, cost = run.usage.total_tokens, run.cost_usd
        self._sums[run.id] = _Sums(len(run.turns), tokens, cost, run.duration_ms)

    def clear(self) -> None:
        """Take everything off the page."""
        entries = list(self._entries)
        self._entries.clear()
        self._sums.clear()
        self.folded = ()
        self._lay()
        for entry in entries:
            _close(entry)

    def drop(self, run_ids: Collection[str]) -> None:
        """Take runs out of the conversation and off the page."""
        dropped = [entry for entry in self._entries if entry.run_id in run_ids]
        self._entries = deque(entry for entry in self._entries if entry.run_id not in run_ids)
        self.folded = tuple(one for one in self.folded if one not in run_ids)
        for run_id in run_ids:
            self._sums.pop(run_id, None)
        self._lay()
        for entry in dropped:
            _close(entry)

    def totals(self) -> str:
        """Runs, turns, tokens, cost and time of the conversation, in words."""
        sums = [one for one in tuple(self._sums.values()) if one.turns]
        if not sums:
            return ""
        turns = sum(one.turns for one in sums)
        costs = [one.cost_usd for one in sums]
        known = [cost for cost in costs if cost is not None]
        pieces = [
            f"{count(len(sums))} run{'s' * (len(sums) != 1)}",
            f"{count(turns)} turn{'s' * (turns != 1)}",
            f"{count(sum(one.tokens for one in sums))} tokens",
        ]
        if known:
            least = "" if len(known) == len(costs) else "at least "
            pieces.append(least + money(sum(known)))
        else:
            pieces.append("price unknown")
        pieces.append(seconds(sum(one.duration_ms for one in sums)))
        return " · ".join(pieces)

    def note(self) -> str:
        """What is left out of the page."""
        if not self.folded:
            return ""
        n = len(self.folded)
        named = [run_id[:8] for run_id in self.folded[-_NAMED:]]
        names = ("…, " if n > _NAMED else "") + ", ".join(named)
        return (
            f"{count(n)} earlier run{'s' * (n != 1)} of this conversation "
            f"{'are' if n != 1 else 'is'} no longer shown here ({names}); "
            f"%agent show {named[-1]} shows {'that one' if n != 1 else 'it'} again."
        )

    def _add(self, run: RunRecord, view: RunView) -> None:
        said = Said(run.prompt if spoke(run) else "", who_spoke(run))
        self._entries.append(_Entry(run.id, said, view))
        dropped: list[_Entry] = []
        while len(self._entries) > KEPT:
            dropped.append(self._entries.popleft())
        self.folded += tuple(entry.run_id for entry in dropped)
        self._lay()
        for entry in dropped:
            _close(entry)

    def _lay(self) -> None:
        self._place.children = [part for one in self._entries for part in (one.said, one.view)]


def who_spoke(run: RunRecord) -> str:
    """What stands before the words that began a run, or instead of words."""
    if spoke(run):
        return "You"
    return {"resume": "Continued", "fork": "Asked again"}.get(run.kind, "Begun")


def spoke(run: RunRecord) -> bool:
    """Whether the person said something; else the run has the prompt of the one before."""
    own = run.messages[0].role == "user" if run.messages else False
    return bool(run.prompt) and run.kind != "resume" and (own or run.kind != "fork")


def _close(entry: _Entry) -> None:
    for widget in (entry.said, entry.view):
        # A widget does not close its layout by itself.
        layout: Any = widget.layout
        widget.close()
        layout.close()
