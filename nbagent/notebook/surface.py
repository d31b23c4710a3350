"""Where runs are shown: a live view in a front end, one display without, lines in a terminal.

Chooses the form for each run. The live view is in `run_view`, the buttons below a run in `actions`.
"""

# IPython's display functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from IPython.core.getipython import get_ipython

from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.ports import Capture, RunCode, RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook import actions, kernel
from nbagent.notebook.frontends import TerminalFrontend
from nbagent.notebook.outputs import Output, display_once, forget_run
from nbagent.notebook.run_code import capture, run_code
from nbagent.notebook.run_view import OutputView, forget_views
from nbagent.runtime import Courier, Pump
from nbagent.session.frontend import Asker, Cell, NoticePrinter
from nbagent.settings import RunOptions
from nbagent.view import labels
from nbagent.view.question import ask_by_input


@dataclass(slots=True)
class _Shown:
    """What the present execution of a cell has shown, so that nothing is shown twice."""

    execution: str | None = None
    runs: set[str] = field(default_factory=set[str])

    def note(self, run_id: str) -> None:
        now = kernel.execution_id()
        if now != self.execution:
            self.execution, self.runs = now, set()
        self.runs.add(run_id)

    def has(self, run_id: str) -> bool:
        return kernel.execution_id() == self.execution and run_id in self.runs

    def forget(self) -> None:
        self.execution = None
        self.runs.clear()


_shown = _Shown()


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
            actions.offer()
            return OutputView(Output(), run, controls)
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
            forget_run(run_id)
            forget_views(run_id)
            _shown.runs.discard(run_id)
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
    _shown.note(run.id)
    if kernel.is_headless():
        display_once(run)
        return
    actions.offer()
    output = Output()
    output.add(run.id)
    output.show_saved(run)
