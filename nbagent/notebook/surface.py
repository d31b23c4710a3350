"""Where runs are shown: the widget in a front end, one final display without, lines in a terminal.

Chooses the form for each run, and swaps the live view for the saved picture at its end.
"""

# IPython's display functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from IPython.core.getipython import get_ipython
from IPython.display import display

from nbagent.archive.codec import packed
from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.ports import Capture, RunCode, RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook import kernel
from nbagent.notebook.frontends import TerminalFrontend
from nbagent.notebook.live_view import Action, RunView, live_view
from nbagent.notebook.run_code import capture, run_code
from nbagent.runtime import Courier, Pump
from nbagent.session.frontend import Asker, Cell, NoticePrinter
from nbagent.settings import RunOptions, effective
from nbagent.view.live_state import LiveState
from nbagent.view.question import ask_by_input
from nbagent.view.static_html import bundle
from nbagent.view.view_state import status_of, view_of

_KEPT_OPEN = 3
_WIDGET = "application/vnd.jupyter.widget-view+json"


@dataclass(slots=True)
class _Shown:
    """What this kernel has shown, so that nothing is shown twice."""

    execution: str | None = None
    runs: set[str] = field(default_factory=set[str])
    replaced: deque[tuple[str, RunView]] = field(default_factory=deque[tuple[str, RunView]])
    """Replaced by a saved picture; a page that is loaded anew may still show the last ones."""
    staying: dict[str, RunView] = field(default_factory=dict[str, RunView])
    """Ended and still shown live (`after_run="live"`), by the id of the run."""

    def note(self, run_id: str) -> None:
        now = kernel.execution_id()
        if now != self.execution:
            self.execution, self.runs = now, set()
        self.runs.add(run_id)

    def replace(self, run_id: str, view: RunView) -> None:
        """Keep the last few replaced views open, close the others: each holds a whole picture."""
        self.replaced.append((run_id, view))
        while len(self.replaced) > _KEPT_OPEN:
            self.replaced.popleft()[1].close()

    def drop(self, run_id: str) -> None:
        """Close the views of a run that was deleted, and remember it no more."""
        for pair in [pair for pair in self.replaced if pair[0] == run_id]:
            self.replaced.remove(pair)
            pair[1].close()
        if (view := self.staying.pop(run_id, None)) is not None:
            view.close()
        self.runs.discard(run_id)

    def has(self, run_id: str) -> bool:
        return kernel.execution_id() == self.execution and run_id in self.runs

    def forget(self) -> None:
        self.execution = None
        self.runs.clear()


_shown = _Shown()
_hearers_of_forgotten: list[Callable[[tuple[str, ...]], None]] = []


def here_cell() -> str | None:
    """The id of the cell that is running, where the front end tells."""
    return kernel.cell_id()


def was_shown_here(run_id: str) -> bool:
    """Whether the execution of the cell that is running now made or showed this run."""
    return _shown.has(run_id)


class NotebookFrontend(TerminalFrontend):
    """An IPython: a kernel's, or a terminal's."""

    def __init__(self) -> None:
        """Begin with nothing shown."""
        _shown.forget()
        if kernel.in_kernel():
            kernel.prepare()

    def namespace(self) -> Mapping[str, Any]:
        """The names of the notebook."""
        return kernel.namespace()

    def run_code(self) -> RunCode | None:
        """Runs Python as a cell does."""
        return partial(run_code, get_ipython())

    def capture(self, options: RunOptions) -> Capture | None:
        """Takes what tools print and display, where a view of the run is in the cell."""
        if options.quiet or options.raw or not kernel.in_kernel():
            return None
        return partial(capture, get_ipython())

    def cell(self) -> Cell:
        """The cell that runs now."""
        return Cell(
            cell_id=kernel.cell_id(),
            execution_count=kernel.execution_count(),
            notebook=kernel.notebook(),
        )

    def execution_id(self) -> str | None:
        """Tells one execution of a cell from the next."""
        return kernel.execution_id()

    def asker(self) -> Asker | None:
        """What asks by `input()`: from a cell with stdin, or in a terminal."""
        if not kernel.in_kernel():
            return super().asker()
        return ask_by_input if kernel.allow_stdin() else None

    def pump(self) -> Pump | None:
        """Delivers the front end's messages while the main thread waits; None in a terminal."""
        return kernel.KernelPump() if kernel.in_kernel() else None

    def adopt(self, courier: Courier) -> None:
        """Let the idle kernel run synchronous tools."""
        kernel.adopt(courier)

    def set_last(self, run: object) -> None:
        """Put a handle into `_run`."""
        if (shell := get_ipython()) is not None:
            shell.user_ns["_run"] = run

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        """The view that fits: none when quiet, the text when raw, else by what is there."""
        _shown.note(run.id)
        if options.quiet:
            return None
        if options.raw:
            return RawSink()
        if not kernel.in_kernel():
            return self.printer()
        if kernel.is_headless():
            return HeadlessSink()
        try:
            return WidgetSink(run, controls)
        except Exception:
            # A front end or kernel without working widgets: the picture at the end is better
            # than nothing, and the run itself does not depend on it.
            logging.getLogger("nbagent").debug("no live view", exc_info=True)
            return HeadlessSink()

    def show(self, run: RunRecord) -> bool:
        """The last expression of a cell that is a run shows itself, unless the cell did so."""
        if not _shown.has(run.id):
            show_again(run)
        return True

    def forget(self, run_ids: tuple[str, ...]) -> None:
        """Empty the open pages' outputs of these runs, and drop what this kernel holds of them."""
        for run_id in run_ids:
            if kernel.in_kernel():
                said = {"text/plain": f"Run {run_id[:8]} was forgotten."}
                display(said, raw=True, display_id=_display_id(run_id), update=True)
            _shown.drop(run_id)
        for hear in _hearers_of_forgotten:
            hear(run_ids)
        shell = get_ipython()
        if shell is not None and getattr(shell.user_ns.get("_run"), "id", None) in run_ids:
            del shell.user_ns["_run"]


class RawSink(NoticePrinter):
    """`--raw`: the text of the answer, and nothing else."""

    name = "raw text"

    def say(self, text: str) -> None:
        """Print a notice, which goes to stderr."""
        print(text, file=sys.stderr)

    def handle(self, event: Event) -> None:
        """Print the answer when it is whole."""
        super().handle(event)
        if isinstance(event, RunFinished):
            if event.run.text:
                print(event.run.text)
            if event.run.stop_reason not in ("answered", "workflow_complete"):
                self.say(f"({status_of(event.run)['word']})")


class HeadlessSink:
    """No person at a front end (nbclient, papermill, nbval): exactly one, final display."""

    name = "final display"

    def handle(self, event: Event) -> None:
        """Show the run when it is over."""
        if isinstance(event, RunFinished):
            _display_saved(event.run)

    def close(self) -> None:
        """Nothing to close."""


class WidgetSink:
    """The live view, and its swap to the saved picture at the end."""

    name = "live view"

    def __init__(self, run: RunRecord, controls: RunControls) -> None:
        self._run_id = run.id
        self._display_id = _display_id(run.id)
        self._controls = controls
        self._stays = effective().after_run == "live"
        self._unfolded: set[str] = set()
        self._failure: Exception | None = None
        """What broke the live view; told when the saved picture is there."""
        self._view, self._sink = live_view(LiveState(run), controls=controls, stays=self._stays)
        self._view.on_action(self._on_action)
        kernel.register(comm_id(self._view), self._view.act)
        show_widget(self._view, display_id=self._display_id)

    @property
    def can_answer(self) -> bool:
        """Whether a front end with buttons is there."""
        return self._failure is None and self._sink.can_answer

    def handle(self, event: Event) -> None:
        """Feed the view; at the end let the saved picture take its place, come what may."""
        try:
            if self._failure is None:
                self._sink.handle(event)
        except Exception as error:
            self._failure = error
        if isinstance(event, RunFinished):
            if not self._stays:
                self._swap(event.run)
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Stop feeding the view. Its model stays open, so that a reloaded page can show it."""
        self._sink.close()
        kernel.unregister(comm_id(self._view))
        if self._stays:
            _shown.staying[self._run_id] = self._view
        else:
            _shown.replace(self._run_id, self._view)

    def _swap(self, run: RunRecord) -> None:
        display(
            bundle(view_of(run), unfolded=frozenset(self._unfolded)),
            raw=True,
            display_id=self._display_id,
            update=True,
            metadata=metadata_of(run),
        )

    def _on_action(self, action: Action) -> None:
        if action.get("kind") == "stop":
            self._controls.stop()
        elif action.get("kind") == "fold":
            # What the person reads stays unfolded when the saved picture takes the view's place.
            keep = self._unfolded.add if action.get("open") is True else self._unfolded.discard
            keep(str(action.get("key")))


def metadata_of(run: RunRecord) -> dict[str, Any]:
    """The whole record, for the output's metadata: a saved notebook is a loadable record."""
    return {"nbagent": packed(run)}


def comm_id(view: RunView) -> str:
    """The id that the front end's messages to this view carry."""
    return str(cast("Any", view).model_id)


def show_widget(view: RunView, *, display_id: str) -> None:
    """Display a view by its model's id."""
    data = {
        _WIDGET: {"version_major": 2, "version_minor": 0, "model_id": comm_id(view)},
        "text/plain": "nbagent run view",
    }
    display(data, raw=True, display_id=display_id)


def _display_id(run_id: str) -> str:
    return f"nbagent-{run_id}"


def _display_saved(run: RunRecord) -> None:
    display(bundle(view_of(run)), raw=True, metadata=metadata_of(run))


def show_again(run: RunRecord) -> None:
    """`%agent show`: the picture of a run as it is saved, so that it outlives the kernel."""
    _shown.note(run.id)
    saved = bundle(view_of(run))
    display(saved, raw=True, metadata=metadata_of(run), display_id=_display_id(run.id))


def when_forgotten(hear: Callable[[tuple[str, ...]], None]) -> None:
    """Call back with the ids of runs that were deleted."""
    _hearers_of_forgotten.append(hear)
