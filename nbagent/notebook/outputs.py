"""Outputs of ours: pictures of runs below each other, which a later click may change.

Owns what an output holds and how it is displayed and saved. The live view is in `run_view`.
"""

from __future__ import annotations

import contextvars
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

from IPython.display import display
from ipywidgets import Output as OutputWidget
from ipywidgets.widgets.widget import _instances  # pyright: ignore[reportPrivateUsage]

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook import kernel
from nbagent.session.frontend import RunList
from nbagent.session.stores import current_store
from nbagent.settings.options import RunOptions
from nbagent.store.rows import packed
from nbagent.store.writer import Store
from nbagent.view.compare import compare_node, compare_text
from nbagent.view.node import Node, h, html
from nbagent.view.picture import ROOT, page, picture
from nbagent.view.run_tree import answers_listing
from nbagent.view.terminal import plain

KERNEL = secrets.token_hex(4)
"""Names this kernel in its pictures, so that the buttons of another one's stay hidden."""
_WIDGET = "application/vnd.jupyter.widget-view+json"

_MOST_OUTPUTS = 1_000
"""The buttons of earlier ones do nothing any more."""

Part = tuple[str, ...]
"""Ids: of one run, its picture; of two, how they differ; of more, the answers to one request, first
of the run that was asked again."""


@dataclass(frozen=True, slots=True)
class Views:
    """Of runs that a button starts side by side."""

    open: Callable[[RunRecord, RunControls], Sink]
    no_more: Callable[[], object]
    """Fewer begin than were wanted."""


_outputs: dict[str, Output] = {}
_numbers = count(1)


class Output:
    """One output: what it shows, and the cell that what is printed for it goes to."""

    def __init__(self) -> None:
        """Show nothing yet, in the cell that runs now."""
        self.id = f"{KERNEL}-{next(_numbers)}"
        """In `data-kernel` of its pictures."""
        self.context = contextvars.copy_context()
        """A click has no cell: what is displayed and printed for it goes to the one of this."""
        boxes = [it for it in [*_instances.values()] if isinstance(it, OutputWidget)]
        is_boxed = any(it.msg_id and it.msg_id == kernel.execution_id() for it in boxes)
        self.takes_updates = not is_boxed
        """Not in an `ipywidgets.Output` or a page that was loaded anew: a live view stays."""
        self.parts: list[Part] = []
        """What it shows; of a run that was deleted, here or elsewhere, nothing is drawn."""
        self.at_work = ""
        """The id of the run that it shows live."""
        self.take_out: Callable[[Sequence[Part]], object] | None = None
        """Takes parts out of its live view, while there is one."""
        self.view: Callable[[int], Views] | None = None
        """Opens so many runs that a button starts here, where it is not an `OutputView`."""
        self.unfolded: dict[str, frozenset[str]] = {}
        """By run, the keys of what a person has open in its picture."""
        self._store: Store = current_store()
        self._is_shown = False
        _outputs[self.id] = self
        while len(_outputs) > _MOST_OUTPUTS:
            del _outputs[next(iter(_outputs))]

    @property
    def run_ids(self) -> list[str]:
        """The runs that can be clicked."""
        return [part[0] for part in self.parts if len(part) == 1]

    def options(self, run: RunRecord) -> tuple[RunOptions, tuple[str, ...]]:
        """Of a run that a button starts from `run`; and which of its options do not go on."""
        return RunOptions(), ()

    def load(self, run_id: str) -> RunRecord:
        """One of its runs, as it is kept."""
        return self._store.load(run_id)

    def nodes(self, first: int) -> list[Node]:
        """The pictures of its first parts."""
        return [self._node(records) for records in self._loaded(self.parts[:first])]

    def add(self, *run_ids: str) -> None:
        """Show below what is there one run, or how several differ."""
        self.parts.append(run_ids)
        _outputs[self.id] = _outputs.pop(self.id, self)  # in use: not the next to be forgotten

    def show_live(self, model_id: str, saved: str = "") -> None:
        """Show a widget, which holds all pictures; `saved` is what a file keeps of them now."""
        view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        made = {_WIDGET: view, "text/plain": "nbagent run view"}
        self._display({**made, "text/html": saved} if saved else made)

    def show_saved(self, *at_hand: RunRecord) -> None:
        """Show the pictures as they are saved; records at hand need not be loaded."""
        parts = self._loaded(self.parts, *at_hand)
        if self.parts and not parts:
            self._display({"text/plain": f"Run {self.parts[0][0][:8]} was forgotten."})
            return
        drawn = "".join(html(self._node(records)) for records in parts)
        drawn = page("") + drawn if drawn else ""
        made = {"text/html": drawn, "text/plain": "\n\n".join(map(_text, parts))}
        self._display(made, metadata_of(*(part[0] for part in parts if len(part) == 1)))

    def drop(self, run_ids: Collection[str]) -> None:
        """Show runs no more, as they were deleted."""
        gone = [part for part in self.parts if not set(part).isdisjoint(run_ids)]
        if gone and self.take_out:
            self.take_out(gone)
        elif gone:
            self.show_saved()

    def _loaded(self, parts: Sequence[Part], *at_hand: RunRecord) -> list[list[RunRecord]]:
        """The records of parts, without those that cannot be loaded."""
        known = {run.id: run for run in at_hand}
        loaded: list[list[RunRecord]] = []
        for part in parts:
            with suppress(NbagentError):
                loaded.append([known.get(i) or self.load(i) for i in part])
        return loaded

    def _node(self, records: list[RunRecord]) -> Node:
        if len(records) > 2:
            ids = " ".join(run.id for run in records)
            listing = h("div", "nba-wide", answers_listing(*records).node())
            return h("div", ROOT, listing, data_run=ids)
        if len(records) > 1:
            return compare_node(records)
        (run,) = records
        unfolded = self.unfolded.get(run.id, frozenset())
        return picture(run, unfolded=unfolded, kernel=self.id)

    def _display(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        given: dict[str, Any] = {"display_id": f"nbagent-{self.id}", "update": self._is_shown}
        self._is_shown = True
        display(data, raw=True, metadata=dict(metadata or {}), **given)


class ListOutput(Output):
    """Runs in a list; the one that is clicked is shown in an output below."""

    def __init__(self, search: Callable[[str], RunList] | None = None) -> None:
        """Show nothing yet; `search` gives the runs of the list that have a text."""
        super().__init__()
        self.search = search
        self._below: Output | None = None

    def show(self, runs: RunList) -> None:
        """Show the list, as it is saved."""
        self._display({"text/html": page(runs.node(self.id)), "text/plain": str(runs)})
        self.make_place_below()

    def make_place_below(self) -> None:
        """Show the place for the run that is clicked, which is empty yet. Once."""
        if self._below is None:
            self._below = Output()
            self._below.show_saved()

    def open(self, run_id: str) -> None:
        """Show a run of the store below, instead of what stands there."""
        if self._below is None or self._below.at_work:
            raise UsageError("a run below this list is still running; wait for its end")
        run = current_store().load(run_id)
        self._below.parts = [(run.id,)]
        self._below.show_saved(run)


def _text(records: list[RunRecord]) -> str:
    if len(records) > 2:
        return str(answers_listing(*records))
    return compare_text(records) if len(records) > 1 else plain(*records)


def output_of(output_id: object) -> Output | None:
    """The output of that id."""
    return _outputs.get(output_id) if isinstance(output_id, str) else None


def loaded_anew() -> None:
    """A page was loaded once more: a front end updates only what it was sent, not what it read."""
    for output in list(_outputs.values()):
        # A widget of its own is fed by messages.
        output.takes_updates = output.view is not None


def forget_runs(run_ids: Collection[str]) -> None:
    """Take runs that were deleted out of the open pages."""
    for output in list(_outputs.values()):
        output.drop(run_ids)


def metadata_of(*runs: RunRecord) -> dict[str, Any]:
    """The whole records, for the output's metadata: a saved notebook is a loadable record."""
    made = [packed(run) for run in runs]
    return {"nbagent": made[0] if len(made) == 1 else made}


def display_once(run: RunRecord) -> None:
    """Show a run where nobody can click."""
    made = {"text/html": page(picture(run, actions=False)), "text/plain": plain(run)}
    display(made, raw=True, metadata=metadata_of(run))
