"""Outputs of nbagent: pictures of runs below each other, which a later click can change.

Owns the content of an output and how it is displayed and saved. The live view is in `run_widget`.
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

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook import kernel
from nbagent.session.frontend import RunList
from nbagent.session.stores import current_store
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import current_settings, project_file_error
from nbagent.store.rows import run_reference
from nbagent.store.saved_records import saved_record
from nbagent.store.writer import Store
from nbagent.view.compare import compare_node, compare_text
from nbagent.view.node import Node
from nbagent.view.printers import html
from nbagent.view.run_picture import page, picture, styled
from nbagent.view.terminal import saved_text

KERNEL = secrets.token_hex(4)
"""Id of this kernel in its pictures: buttons of pictures from other kernels stay hidden."""
_WIDGET = "application/vnd.jupyter.widget-view+json"

MOVED = "(shown below)"
"""Text of a display whose content was shown again in a display of its own."""
_MAX_OUTPUTS = 1_000
"""Outputs in memory. Buttons of older outputs stop working."""

Part = tuple[str, ...]
"""Run ids of one part of an output. One id: its picture. Two: their comparison."""


_outputs: dict[str, Output] = {}
_numbers = count(1)
_loaded_tabs: dict[str, int] = {}
"""Number of the last output that was there when a tab was loaded, by the tab's id."""
_MAX_TABS = 1_000


class Output:
    """One output: its pictures, and the context of its cell for prints and displays."""

    def __init__(self) -> None:
        """Create an empty output in the cell that runs now."""
        self.number = next(_numbers)
        self.id = f"{KERNEL}-{self.number}"
        """`data-kernel` of its pictures."""
        self.context = contextvars.copy_context()
        """Context of the cell. A click has none, so its prints and displays use this one."""
        boxes = [box for box in [*_instances.values()] if isinstance(box, OutputWidget)]
        is_boxed = any(box.msg_id and box.msg_id == kernel.execution_id() for box in boxes)
        self.is_boxed = is_boxed
        """True in an `ipywidgets.Output`: no display is updated there."""
        self.updated_tabs: set[str] = set()
        """Tabs that are known to have applied an update of it."""
        self.parts: list[Part] = []
        """The parts that it shows. Deleted runs are not drawn."""
        self.running_id = ""
        """Id of the run that it shows live; empty if there is none."""
        self.remove_live: Callable[[Sequence[Part]], object] | None = None
        """Removes parts from its live view; None if there is none."""
        self.open_view: Callable[[RunRecord, RunControls], Sink] | None = None
        """Opens the view of a run that a button starts; None uses a `RunOutput`."""
        self.unfolded: dict[str, frozenset[str]] = {}
        """Keys of the opened folds by run id."""
        self.run_text: Callable[[RunRecord], str] = saved_text
        """Text of a run; the run of a cell has no times and ids there, for diffs of files."""
        self._store: Store = current_store()
        self._is_shown = False
        self._display_id = f"nbagent-{self.id}"
        _outputs[self.id] = self
        while len(_outputs) > _MAX_OUTPUTS:
            del _outputs[next(iter(_outputs))]

    def takes_updates(self, tab: str) -> bool:
        """True if a tab applies updates of this output.

        A tab that was loaded later read the output from the file, and ignores them. An output with
        its own widget, such as the panel, is updated by messages.
        """
        if self.open_view is not None or tab in self.updated_tabs:
            return True
        return not self.is_boxed and _loaded_tabs.get(tab, 0) < self.number

    @property
    def run_ids(self) -> list[str]:
        """Ids of the runs with buttons."""
        return [part[0] for part in self.parts if len(part) == 1]

    def options(self, run: RunRecord) -> tuple[RunOptions, tuple[str, ...]]:
        """Options for a run that a button starts from `run`, and names of options not inherited."""
        return RunOptions(), ()

    def load(self, run_id: str) -> RunRecord:
        """Load one of its runs from the store."""
        return self._store.load(run_id)

    def nodes(self, first: int) -> list[Node]:
        """Draw its first parts."""
        return self._draw(self._load_parts(self.parts[:first]))

    def add(self, *run_ids: str) -> None:
        """Add a part at the end: one run, or a comparison of several."""
        self.parts.append(run_ids)
        _outputs[self.id] = _outputs.pop(self.id, self)  # recently used outputs are dropped last

    @property
    def is_shown(self) -> bool:
        """True if the front end has got this output."""
        return self._is_shown

    def show_live(
        self, model_id: str, *, html: str, text: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Show a widget that holds all pictures.

        Args:
            model_id: the widget's model; empty for a front end that shows no widgets.
            html: the present picture, for a file that is saved now and a page without widgets.
            text: the same in one line.
            metadata: of the output; see `running_metadata`.
        """
        # 2.0 is the version of the MIME type, not of a package.
        view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        widget = {_WIDGET: view} if model_id else {}
        self._display({**widget, "text/html": html, "text/plain": text}, metadata)

    def move_below(self, *, may_update: bool) -> None:
        """Show the output from now on in a new display, below what the cell has shown."""
        if may_update:
            self._display({"text/plain": MOVED})  # for a front end that applies updates after all
        self._display_id = f"nbagent-{self.id}-below"
        self._is_shown = False

    def show_saved(self, *at_hand: RunRecord) -> None:
        """Show the saved pictures. Records passed in `at_hand` are not loaded again."""
        parts = self._load_parts(self.parts, *at_hand)
        if self.parts and not parts:
            self._display({"text/plain": f"Run {self.parts[0][0][:8]} was deleted."})
            return
        drawn = "\n".join(map(html, self._draw(parts)))
        drawn = styled(drawn) if drawn else ""  # one style sheet for all parts
        made = {"text/html": drawn, "text/plain": "\n\n".join(map(self._text, parts))}
        self._display(made, records_metadata(*(part[0] for part in parts if len(part) == 1)))

    def remove_runs(self, run_ids: Collection[str]) -> None:
        """Remove deleted runs from the output."""
        removed = [part for part in self.parts if not set(part).isdisjoint(run_ids)]
        if removed and self.remove_live:
            self.remove_live(removed)
        elif removed:
            self.show_saved()

    def _load_parts(self, parts: Sequence[Part], *at_hand: RunRecord) -> list[list[RunRecord]]:
        """Load the records of parts; parts that cannot be loaded are omitted."""
        known = {run.id: run for run in at_hand}
        loaded: list[list[RunRecord]] = []
        for part in parts:
            with suppress(NbagentError):  # deleted, or failed before it was stored
                loaded.append([known.get(i) or self.load(i) for i in part])
        return loaded

    def _draw(self, parts: Sequence[list[RunRecord]]) -> list[Node]:
        """Draw loaded parts. The settings are read once, and not at all without a part."""
        choice = _records_choice() if parts else ""
        return [self._node(records, choice) for records in parts]

    def _node(self, records: list[RunRecord], choice: str) -> Node:
        if len(records) > 1:
            return compare_node(records)
        (run,) = records
        unfolded = self.unfolded.get(run.id, frozenset())
        return picture(run, unfolded=unfolded, kernel=self.id, records=choice)

    def _text(self, records: list[RunRecord]) -> str:
        return compare_text(records) if len(records) > 1 else self.run_text(*records)

    def _display(self, data: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> None:
        options: dict[str, Any] = {"display_id": self._display_id, "update": self._is_shown}
        self._is_shown = True
        display(data, raw=True, metadata=dict(metadata or {}), **options)


class ListOutput(Output):
    """A list of runs; a clicked run is shown in an output below it."""

    def __init__(self, search: Callable[[str], RunList] | None = None) -> None:
        """Create an empty list; `search` returns the runs that contain a text."""
        super().__init__()
        self.search = search
        self.show_cases: Callable[[Output], object] | None = None
        """Shows the page over all cases of a batch in an output."""
        self._below: Output | None = None

    def show(self, runs: RunList, metadata: Mapping[str, Any] | None = None) -> None:
        """Show the saved form of the list, with metadata for the output."""
        made = {"text/html": page(runs.node(self.id)), "text/plain": str(runs)}
        self._display(made, metadata)
        self.show_empty_below()

    def show_empty_below(self) -> None:
        """Show an empty output for the clicked run, once."""
        if self._below is None:
            self._below = Output()
            self._below.show_saved()

    def open(self, run_id: str) -> None:
        """Show a run of the store below the list, in place of the previous one."""
        below = self._free_output()
        run = current_store().load(run_id)
        below.parts = [(run.id,)]
        below.show_saved(run)

    def open_cases(self) -> None:
        """Show all cases of the batch below it, in place of a run."""
        if self.show_cases is None:
            raise UsageError("its cases cannot be shown here; write batch.page() in a cell")
        below = self._free_output()
        below.parts = []
        self.show_cases(below)

    def _free_output(self) -> Output:
        if self._below is None or self._below.running_id:
            raise UsageError("a run below this list is still running; wait for its end")
        return self._below


def find_output(output_id: object) -> Output | None:
    """Return the output with that id; None if it is unknown."""
    return _outputs.get(output_id) if isinstance(output_id, str) else None


def note_tab(tab: str) -> None:
    """Note that a browser tab has loaded the buttons. Each tab says so once."""
    if not _loaded_tabs:
        _loaded_tabs[tab] = 0  # it has run the first cell, or was there when it ran
        return
    latest = max((output.number for output in [*_outputs.values()]), default=0)
    if tab == "":
        _loaded_tabs[tab] = latest  # a front end without ids: each time it is another page
    _loaded_tabs.setdefault(tab, latest)
    while len(_loaded_tabs) > _MAX_TABS:
        del _loaded_tabs[next(iter(_loaded_tabs))]


def has_tabs() -> bool:
    """True if a browser tab has loaded the buttons."""
    return bool(_loaded_tabs)


def forget_tabs() -> None:
    """Forget the tabs: the buttons have a new widget."""
    _loaded_tabs.clear()


def forget_runs(run_ids: Collection[str]) -> None:
    """Remove deleted runs from the open pages."""
    for output in list(_outputs.values()):
        output.remove_runs(run_ids)


def records_metadata(*runs: RunRecord) -> dict[str, Any]:
    """Records for the output's metadata, so that a saved notebook can load its runs."""
    choice = _records_choice()
    made = [saved_record(run, choice) for run in runs]
    return {"nbagent": made[0] if len(made) == 1 else made}


def _records_choice() -> str:
    # A broken file of the project stops no picture of a run.
    return current_settings(without_project=bool(project_file_error())).records


def running_metadata(run_id: str) -> dict[str, Any]:
    """Reference to a running run: a file that is saved now leads to its record in the store."""
    return {"nbagent": run_reference(run_id)}


def display_final(run: RunRecord, text: Callable[[RunRecord], str] = saved_text) -> None:
    """Show a run without buttons, in one final display with its text."""
    drawn = page(picture(run, actions=False, records=_records_choice()))
    made = {"text/html": drawn, "text/plain": text(run)}
    display(made, raw=True, metadata=records_metadata(run))
