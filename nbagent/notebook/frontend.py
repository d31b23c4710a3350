"""Chooses the view of each run: live in a front end, one display without, lines in a terminal.

The live view is in `run_widget`, the buttons below a run in `button_actions`.
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
from nbagent.notebook import button_actions, comms, kernel
from nbagent.notebook.batch_widget import BatchSnapshot, FinalBatch, LiveBatch, batch_metadata
from nbagent.notebook.capture import capture
from nbagent.notebook.case_page import cases_opener, show_cases
from nbagent.notebook.live_output import close_views
from nbagent.notebook.log_lines import LogLines
from nbagent.notebook.outputs import ListOutput, Output, display_final, forget_runs
from nbagent.notebook.page_proof import finish_after_cells
from nbagent.notebook.review_widget import show_review
from nbagent.notebook.run_code import run_code
from nbagent.notebook.run_widget import RunOutput
from nbagent.runtime import Pump, RunTask
from nbagent.session.frontend import (
    BatchControls,
    BatchView,
    CaseSource,
    Cell,
    Frontend,
    InputPrompt,
    NoticePrinter,
    PersonReview,
    RunList,
)
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import current_settings
from nbagent.view import run_status
from nbagent.view.batch import BatchProgress, is_active
from nbagent.view.question import ask_by_input
from nbagent.view.run_picture import page
from nbagent.view.terminal import run_text

_shown: dict[str, str | None] = {}
"""Runs that the last cell executions started or showed, so that none is shown twice."""


def was_shown_here(run_id: str) -> bool:
    """True if the present execution of a cell started or showed this run."""
    return run_id in _shown and _shown[run_id] == kernel.execution_id()


def _note_shown(run_id: str) -> None:
    execution = kernel.execution_id()
    # Another cell: what earlier ones showed does not matter any more.
    if execution not in _shown.values():
        _shown.clear()
    _shown[run_id] = execution


def _batch_key(progress: BatchProgress) -> str:
    """Key of a batch in `_shown`."""
    return f"batch {progress.name}"


class NotebookFrontend(Frontend):
    """Frontend for IPython, in a kernel or in a terminal."""

    def __init__(self) -> None:
        """Forget earlier views; in a kernel, prepare it for clicks and async tools."""
        _shown.clear()
        if kernel.in_kernel():
            kernel.prepare()
            finish_after_cells(get_ipython())

    def namespace(self) -> Mapping[str, Any]:
        return getattr(get_ipython(), "user_ns", {})

    def run_code(self) -> RunCode | None:
        return partial(run_code, get_ipython())

    def capture(self, options: RunOptions) -> Capture | None:
        # Without cards to put it into, output stays in the cell.
        if options.quiet or options.raw or not kernel.in_kernel():
            return None
        return partial(capture, get_ipython())

    def cell(self) -> Cell:
        return kernel.cell()

    def execution_id(self) -> str | None:
        return kernel.execution_id()

    def input_prompt(self) -> InputPrompt | None:
        if not kernel.in_kernel():
            return super().input_prompt()
        return partial(ask_by_input, in_prompt=True) if kernel.allow_stdin() else None

    def pump(self) -> Pump | None:
        return comms.pump()

    def serve_when_idle(self, courier: RunTask) -> None:
        if (loop := kernel.main_loop()) is None:
            return

        def drain_soon() -> None:
            with suppress(RuntimeError):  # the kernel is going down
                loop.call_soon_threadsafe(courier.run_queued_jobs)

        courier.on_idle_job = drain_soon

    def bind_variable(self, handle: object, name: str = "_run") -> None:
        if (shell := get_ipython()) is not None:
            shell.user_ns[name] = handle

    def advise(self, text: str) -> str:
        return text

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        """Open a view: none for `quiet`, plain text for `raw`, else by the front end."""
        _note_shown(run.id)
        if options.quiet:
            return None
        if options.raw:
            return RawSink()
        if not kernel.in_kernel():
            return self.printer()
        if not kernel.page_may_come():
            return HeadlessSink()
        try:
            button_actions.enable_buttons()
            return RunOutput(Output(), run, controls)
        except Exception:
            # Without working widgets, show the picture at the end. A run must not fail because of
            # its view.
            logging.getLogger("nbagent").debug("no live view", exc_info=True)
            return HeadlessSink()

    def show(self, run: RunRecord) -> bool:
        """Show a run that is the last expression of a cell, unless this cell has shown it."""
        if not was_shown_here(run.id):
            show_again(run)
        return True

    def open_batch(self, progress: BatchProgress, controls: BatchControls) -> BatchView | None:
        """Open one view for all runs of a batch: live, one final display, or a terminal line."""
        _note_shown(_batch_key(progress))
        if not kernel.in_kernel():
            return super().open_batch(progress, controls)
        if not kernel.page_may_come():
            return FinalBatch(controls)
        try:
            button_actions.enable_buttons()
            return LiveBatch(progress, controls)
        except Exception:
            logging.getLogger("nbagent").debug("no live view", exc_info=True)
            return FinalBatch(controls)

    def show_batch(self, progress: BatchProgress, controls: BatchControls) -> bool:
        """Show a batch that is the last expression of a cell, unless this cell has shown it."""
        if kernel.in_kernel() and was_shown_here(_batch_key(progress)):
            return True
        if is_active(progress):
            progress = replace(progress, why="Present state; show it again for the progress.")
        return _show_list(BatchSnapshot(progress), None, controls, progress.name)

    def review(self, review: PersonReview) -> bool:
        """Show a review widget; return False without a person at a front end."""
        return kernel.page_may_come() and show_review(review)

    def show_list(self, runs: RunList, *, search: Callable[[str], RunList] | None = None) -> bool:
        """Show a list of runs, and below it a place for the run that is clicked."""
        return _show_list(runs, search)

    def show_cases(self, source: CaseSource) -> bool:
        """Show the page over all cases; a plain table where no page shows it."""
        if not kernel.in_kernel():
            return False
        button_actions.enable_buttons()
        show_cases(source)
        return True

    def forget(self, run_ids: tuple[str, ...]) -> None:
        """Remove deleted runs from open pages and from this kernel's memory."""
        for run_id in run_ids:
            close_views(run_id)
            _shown.pop(run_id, None)
        forget_runs(run_ids)
        shell = get_ipython()
        if shell is not None and getattr(shell.user_ns.get("_run"), "id", None) in run_ids:
            del shell.user_ns["_run"]


def _show_list(
    runs: RunList,
    search: Callable[[str], RunList] | None = None,
    controls: BatchControls | None = None,
    batch_name: str = "",
) -> bool:
    """Show a list in an output of the cell; `controls` and the name are those of a batch."""
    if not kernel.in_kernel():
        return False
    metadata = batch_metadata(controls) if controls else {}
    if kernel.is_headless():
        made = {"text/html": page(runs.node()), "text/plain": str(runs)}
        display(made, raw=True, metadata=metadata)
        return True
    button_actions.enable_buttons()
    output = ListOutput(search)
    if controls is not None:
        output.show_cases = cases_opener(batch_name, controls)
    output.show(runs, metadata)
    return True


class RawSink(NoticePrinter):
    """View for `--raw`: the text of the answer only."""

    name = "raw text"

    def print_line(self, text: str) -> None:
        """Print a notice to stderr."""
        print(text, file=sys.stderr)

    def handle(self, event: Event) -> None:
        """Print the answer when the run has ended."""
        super().handle(event)
        if isinstance(event, RunFinished):
            if event.run.text:
                print(event.run.text)
            if not event.run.ok:
                self.print_line(f"({run_status.status_of(event.run).word})")


class HeadlessSink:
    """View without a person at a front end (nbclient, papermill, nbval).

    It displays once, at the end: nbval ignores updates and compares the first display.
    """

    name = "final display"

    def __init__(self) -> None:
        """With the setting `log`, print lines to the console, too."""
        self._log = LogLines() if current_settings().log == "lines" else None

    def handle(self, event: Event) -> None:
        """Show the run when it has ended."""
        if self._log is not None:
            self._log.handle(event)
        if isinstance(event, RunFinished):
            display_final(event.run)

    def close(self) -> None:
        """Nothing to close."""


def show_again(run: RunRecord) -> None:
    """Show a run as a saved picture, which outlives the kernel (`%agent show`)."""
    _note_shown(run.id)
    if kernel.is_headless():
        display_final(run, run_text)
        return
    button_actions.enable_buttons()
    output = Output()
    output.run_text = run_text
    output.add(run.id)
    output.show_saved(run)
