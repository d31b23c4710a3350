"""Outputs of ours: pictures of runs below each other, which a later click may change.

Owns what an output holds and how it is displayed and saved. The live view is in `run_view`.
"""

from __future__ import annotations

import contextvars
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from IPython.display import display
from ipywidgets import Output as OutputWidget
from ipywidgets.widgets.widget import _instances  # pyright: ignore[reportPrivateUsage]

from nbagent.archive.codec import packed
from nbagent.archive.store import Store
from nbagent.contracts.errors import NbagentError
from nbagent.contracts.records import RunRecord
from nbagent.notebook import kernel
from nbagent.session.stores import current_store
from nbagent.view.compare import compare_node, compare_text
from nbagent.view.node import Node, html
from nbagent.view.picture import page, picture
from nbagent.view.text import plain

KERNEL = secrets.token_hex(4)
"""Names this kernel in its pictures, so that the buttons of another one's stay hidden."""
_WIDGET = "application/vnd.jupyter.widget-view+json"

_MOST_OUTPUTS = 1_000
"""The buttons of earlier ones do nothing any more."""

Part = tuple[str, ...]
"""Ids: of one run, its picture; of several, how they differ."""

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
        self.is_boxed = any(it.msg_id and it.msg_id == kernel.execution_id() for it in boxes)
        """In an `ipywidgets.Output`, which takes no updates: the live view stays."""
        self.parts: list[Part] = []
        """What it shows; of a run that was deleted, here or elsewhere, nothing is drawn."""
        self.at_work: Callable[[Sequence[Part]], object] | None = None
        """Takes parts out of its live view, while a run in it is at work."""
        self._unfolded: dict[str, frozenset[str]] = {}
        self._store: Store = current_store()
        self._is_shown = False
        _outputs[self.id] = self
        while len(_outputs) > _MOST_OUTPUTS:
            del _outputs[next(iter(_outputs))]

    @property
    def run_ids(self) -> list[str]:
        """The runs that can be clicked."""
        return [part[0] for part in self.parts if len(part) == 1]

    def load(self, run_id: str) -> RunRecord:
        """One of its runs, as it is kept."""
        return self._store.load(run_id)

    def nodes(self, first: int) -> list[Node]:
        """The pictures of its first parts."""
        return [self._node(records) for records in self._loaded(self.parts[:first], {})]

    def add(self, *run_ids: str) -> None:
        """Show below what is there one run, or how several differ."""
        self.parts.append(run_ids)

    def show_live(self, model_id: str, saved: str = "") -> None:
        """Show a widget, which holds all pictures; `saved` is what a file keeps of them now."""
        view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        made = {_WIDGET: view, "text/plain": "nbagent run view"}
        self._display({**made, "text/html": saved} if saved else made)

    def show_saved(self, *at_hand: RunRecord, unfolded: frozenset[str] = frozenset()) -> None:
        """Show the pictures as they are saved.

        Args:
            at_hand: records that need not be loaded.
            unfolded: keys of what is unfolded in the first of them.
        """
        known = {run.id: run for run in at_hand}
        if at_hand:
            self._unfolded[at_hand[0].id] = unfolded
        parts = self._loaded(self.parts, known)
        if not parts:
            self._display({"text/plain": f"Run {self.parts[0][0][:8]} was forgotten."})
            return
        first, *others = map(self._node, parts)
        text = "\n\n".join(plain(*it) if len(it) == 1 else compare_text(it) for it in parts)
        made = {"text/html": page(first) + "".join(map(html, others)), "text/plain": text}
        self._display(made, metadata_of(*(part[0] for part in parts if len(part) == 1)))

    def drop(self, run_ids: Collection[str]) -> None:
        """Show runs no more, as they were deleted."""
        gone = [part for part in self.parts if not set(part).isdisjoint(run_ids)]
        if gone and self.at_work:
            self.at_work(gone)
        elif gone:
            self.show_saved()

    def _loaded(
        self, parts: Sequence[Part], known: Mapping[str, RunRecord]
    ) -> list[list[RunRecord]]:
        """The records of parts, without those that cannot be loaded."""
        loaded: list[list[RunRecord]] = []
        for part in parts:
            with suppress(NbagentError):
                loaded.append([known.get(i) or self.load(i) for i in part])
        return loaded

    def _node(self, records: list[RunRecord]) -> Node:
        if len(records) > 1:
            return compare_node(records)
        (run,) = records
        unfolded = self._unfolded.get(run.id, frozenset())
        return picture(run, unfolded=unfolded, kernel=self.id)

    def _display(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        given: dict[str, Any] = {"display_id": f"nbagent-{self.id}", "update": self._is_shown}
        self._is_shown = True
        display(data, raw=True, metadata=dict(metadata or {}), **given)


def output_of(output_id: object) -> Output | None:
    """The output of that id."""
    return _outputs.get(output_id) if isinstance(output_id, str) else None


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
