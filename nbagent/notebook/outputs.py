"""Outputs of ours: pictures of runs below each other, which a later click may change.

Owns what an output holds and how it is displayed and saved. The live view is in `run_view`.
"""

from __future__ import annotations

import contextvars
import secrets
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from IPython.display import display

from nbagent.archive.codec import packed
from nbagent.archive.store import Store
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.session.frontend import RunList
from nbagent.session.stores import current_store
from nbagent.settings import RunOptions
from nbagent.view.compare import compare_node, compare_text
from nbagent.view.node import Node, h, html
from nbagent.view.picture import ROOT, page, picture
from nbagent.view.text import plain
from nbagent.view.tree import answers_listing

KERNEL = secrets.token_hex(4)
"""Names this kernel in its pictures, so that the buttons of another one's stay hidden."""
_WIDGET = "application/vnd.jupyter.widget-view+json"

_MOST_OUTPUTS = 1_000
"""The buttons of earlier ones do nothing any more."""

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
        self.parts: list[tuple[str, ...]] = []
        """Ids: of one run, its picture; of two, how they differ; of more, the answers to one
        request, first of the run that was asked again."""
        self.at_work = ""
        """The id of the run that it shows live."""
        self.view: Callable[[RunRecord, RunControls], Sink] | None = None
        """Opens the view of a run that a button starts here, where it is not an `OutputView`."""
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

    def nodes(self) -> list[Node]:
        """Its pictures."""
        return [self._node([self.load(run_id) for run_id in part]) for part in self.parts]

    def add(self, *run_ids: str) -> None:
        """Show below what is there one run, or how several differ."""
        self.parts.append(run_ids)

    def show_live(self, model_id: str, saved: str = "") -> None:
        """Show a widget, which holds all pictures; `saved` is what a file keeps of them now."""
        view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        made = {_WIDGET: view, "text/plain": "nbagent run view"}
        self._display({**made, "text/html": saved} if saved else made)

    def show_saved(self, *at_hand: RunRecord) -> None:
        """Show the pictures as they are saved; records at hand need not be loaded."""
        known = {run.id: run for run in at_hand}
        parts = [[known.get(i) or self.load(i) for i in part] for part in self.parts]
        drawn = "".join(html(self._node(records)) for records in parts)
        drawn = page("") + drawn if drawn else ""
        made = {"text/html": drawn, "text/plain": "\n\n".join(map(_text, parts))}
        self._display(made, metadata_of(*(part[0] for part in parts if len(part) == 1)))

    def drop(self, run_id: str) -> None:
        """Show a run no more, as it was deleted."""
        self.parts = [part for part in self.parts if run_id not in part]
        if self.parts:
            self.show_saved()
        else:
            self._display({"text/plain": f"Run {run_id[:8]} was forgotten."})

    def _node(self, records: list[RunRecord]) -> Node:
        if len(records) > 2:
            return h("div", ROOT, h("div", "nba-wide", answers_listing(*records).node()))
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

    def __init__(self, runs: RunList, search: Callable[[str], RunList] | None = None) -> None:
        """Show the list, and the place below it, which is empty yet."""
        super().__init__()
        self.search = search
        made = {"text/html": page(runs.node(self.id)), "text/plain": str(runs)}
        self._display(made)
        self._below = Output()
        self._below.show_saved()

    def open(self, run_id: str) -> None:
        """Show a run of the store below, instead of what stands there."""
        if self._below.at_work:
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


def forget_run(run_id: str) -> None:
    """Take a run that was deleted out of the open pages."""
    for output in list(_outputs.values()):
        if any(run_id in part for part in output.parts):
            output.drop(run_id)


def metadata_of(*runs: RunRecord) -> dict[str, Any]:
    """The whole records, for the output's metadata: a saved notebook is a loadable record."""
    made = [packed(run) for run in runs]
    return {"nbagent": made[0] if len(made) == 1 else made}


def display_once(run: RunRecord) -> None:
    """Show a run where nobody can click."""
    made = {"text/html": page(picture(run, actions=False)), "text/plain": plain(run)}
    display(made, raw=True, metadata=metadata_of(run))
