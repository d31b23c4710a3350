"""Where runs are shown: a live view in a front end, one display without, lines in a terminal.

Chooses the form for each run. The live view is in `run_view`, the buttons below a run in `actions`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import Capture, RunCode
from nbagent.notebook import actions, comms, kernel
from nbagent.notebook.batch_widget import BatchShown, FinalBatch, LiveBatch
from nbagent.notebook.capture import capture
from nbagent.notebook.outputs import ListOutput, Output, display_once, forget_runs
from nbagent.notebook.review_widget import show_review
from nbagent.notebook.run_code import run_code
from nbagent.notebook.run_widget import OutputView, forget_views
from nbagent.runtime import Courier, Pump
from nbagent.session.frontend import (
    Asker,
    BatchControls,
    BatchView,
    Cell,
    Frontend,
    NoticePrinter,
    PersonReview,
    RunList,
)
from nbagent.settings.options import RunOptions
from nbagent.view import labels
from nbagent.view.batch import BatchProgress, is_going
from nbagent.view.picture import page
from nbagent.view.question import ask_by_input

_shown: dict[str, str | None] = {}
"""The runs that were made or shown last, and by which execution of a cell: none is shown twice."""


def was_shown_here(run_id: str) -> bool:
    """Whether the execution of the cell that is running now made or showed this run."""
    return run_id in _shown and _shown[run_id] == kernel.execution_id()


def _note(run_id: str) -> None:
    execution = kernel.execution_id()
    if execution not in _shown.values():
        _shown.clear()
    _shown[run_id] = execution


def _key_of(progress: BatchProgress) -> str:
    """What stands for a batch among the ids of runs."""
    return f"batch {progress.name}"


class NotebookFrontend(Frontend):
    """An IPython: a kernel's, or a terminal's."""

    def __init__(self) -> None:
        """Begin with nothing shown."""
        _shown.clear()
        if kernel.in_kernel():
            kernel.prepare()

    def namespace(self) -> Mapping[str, Any]:
        return getattr(get_ipython(), "user_ns", {})

    def run_code(self) -> RunCode | None:
        return partial(run_code, get_ipython())

    def capture(self, options: RunOptions) -> Capture | None:
        if options.quiet or options.raw or not kernel.in_kernel():
            return None
        return partial(capture, get_ipython())

    def cell(self) -> Cell:
        return kernel.cell()

    def execution_id(self) -> str | None:
        return kernel.execution_id()

    def asker(self) -> Asker | None:
        if not kernel.in_kernel():
            return super().asker()
        return ask_by_input if kernel.allow_stdin() else None

    def pump(self) -> Pump | None:
        return comms.pump()

    def adopt(self, courier: Courier) -> None:
        if (loop := kernel.main_loop()) is None:
            return

        def drain_soon() -> None:
            with suppress(RuntimeError):  # the kernel is going down
                loop.call_soon_threadsafe(courier.drain)

        courier.on_idle_job = drain_soon

    def set_last(self, handle: object, name: str = "_run") -> None:
        if (shell := get_ipython()) is not None:
            shell.user_ns[name] = handle

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        """The view that fits: none when quiet, the text when raw, else by what is there."""
        _note(run.id)
        if options.quiet:
            return None
        if options.raw:
            return RawSink()
        if not kernel.in_kernel():
            return self.printer()
        if kernel.is_headless():
            return HeadlessSink()
        try:
            actions.offer()
            return OutputView(Output()).open(run, controls)
        except Exception:
            # A front end or kernel without working widgets: the picture at the end is better
            # than nothing, and the run itself does not depend on it.
            logging.getLogger("nbagent").debug("no live view", exc_info=True)
            return HeadlessSink()

    def show(self, run: RunRecord) -> bool:
        """The last expression of a cell that is a run shows itself, unless the cell did so."""
        if not was_shown_here(run.id):
            show_again(run)
        return True

    def open_batch(self, progress: BatchProgress, controls: BatchControls) -> BatchView | None:
        """One view for all of its runs: live, one display at the end, or a line of a terminal."""
        _note(_key_of(progress))
        if not kernel.in_kernel():
            return super().open_batch(progress, controls)
        if kernel.is_headless():
            return FinalBatch()
        try:
            actions.offer()
            return LiveBatch(progress, controls)
        except Exception:
            logging.getLogger("nbagent").debug("no live view", exc_info=True)
            return FinalBatch()

    def show_batch(self, progress: BatchProgress) -> bool:
        """The last expression of a cell that is a batch shows itself, unless the cell did so."""
        if kernel.in_kernel() and was_shown_here(_key_of(progress)):
            return True
        if is_going(progress):
            progress = replace(progress, why="As of now; show it again to see how far it is.")
        return self.show_list(BatchShown(progress))

    def review(self, review: PersonReview) -> bool:
        """A widget, where somebody looks on."""
        if not kernel.in_kernel() or kernel.is_headless():
            return False
        show_review(review)
        return True

    def show_list(self, runs: RunList, *, search: Callable[[str], RunList] | None = None) -> bool:
        """The list, and a place below for the run that is clicked."""
        if not kernel.in_kernel():
            return False
        if kernel.is_headless():
            display({"text/html": page(runs.node()), "text/plain": str(runs)}, raw=True)
        else:
            actions.offer()
            ListOutput(search).show(runs)
        return True

    def forget(self, run_ids: tuple[str, ...]) -> None:
        """Empty the open pages' outputs of these runs, and drop what this kernel holds of them."""
        for run_id in run_ids:
            forget_views(run_id)
            _shown.pop(run_id, None)
        forget_runs(run_ids)
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
                self.say(f"({labels.status_of(event.run).word})")


class HeadlessSink:
    """No person at a front end (nbclient, papermill, nbval): exactly one, final display."""

    name = "final display"

    def handle(self, event: Event) -> None:
        """Show the run when it is over."""
        if isinstance(event, RunFinished):
            display_once(event.run)

    def close(self) -> None:
        """Nothing to close."""


def show_again(run: RunRecord) -> None:
    """`%agent show`: the picture of a run as it is saved, so that it outlives the kernel."""
    _note(run.id)
    if kernel.is_headless():
        display_once(run)
        return
    actions.offer()
    output = Output()
    output.add(run.id)
    output.show_saved(run)
