"""A run that a click starts: in the kernel's main thread when it is free, so that no cell waits.

The buttons below a run and the panel begin their runs here. Owns no view: who calls brings one.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import Capture
from nbagent.notebook import kernel
from nbagent.run import Run, open_run
from nbagent.runtime import Courier
from nbagent.session.frontend import Cell, Frontend, frontend
from nbagent.session.request import Ask
from nbagent.session.stores import current_store, note_last
from nbagent.settings.options import RunOptions

Show = Callable[[RunRecord, RunControls], Sink]
Failed = Callable[[Exception], None]
_log = logging.getLogger("nbagent")


class ClickFrontend(Frontend):
    """The process's frontend, with a view of the caller's.

    No cell made these runs: a cell that goes on must not take one for its own, and an interrupt of
    the last cell does not mean it.
    """

    waits_for = "the kernel, which a cell keeps busy"

    def __init__(self, show: Show) -> None:
        """Show runs by `show`."""
        self._show, self._process = show, frontend()

    def namespace(self) -> Mapping[str, Any]:
        """The names of the notebook."""
        return self._process.namespace()

    def capture(self, options: RunOptions) -> Capture | None:
        """Takes what tools print and display to their cards."""
        return self._process.capture(RunOptions())

    def cell(self) -> Cell:
        """The notebook alone."""
        return Cell(notebook=self._process.cell().notebook)

    def asker(self) -> None:
        """Nobody: no thread waits for these runs."""

    def adopt(self, courier: Courier) -> None:
        """Let the idle kernel run synchronous tools."""
        self._process.adopt(courier)

    def set_last(self, handle: object, name: str = "_run") -> None:
        """Put a handle into a variable."""
        self._process.set_last(handle, name)

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink:
        """The caller's view."""
        return self._show(run, controls)


def _guarded(work: Callable[[], object], failed: Failed) -> None:
    try:
        work()
    except Exception as error:
        _log.debug("what a click asked for failed", exc_info=True)
        failed(error)


def aside(work: Callable[[], object], *, failed: Failed, context: contextvars.Context) -> None:
    """Do this in a thread of its own: it reads and shows, also while a cell runs. As `later`."""
    run = context.copy().run
    threading.Thread(target=run, args=(_guarded, work, failed), daemon=True).start()


def later(
    work: Callable[[], object], *, failed: Failed, context: contextvars.Context | None = None
) -> None:
    """Do this in the kernel's main thread, as soon as it is free. Any thread.

    Args:
        work: what to do.
        failed: is told what `work` raised, in the same thread.
        context: what it prints and displays goes to the cell of this context; else it is lost.
    """

    # Copied, as a context can be entered once at a time only.
    context = (context or contextvars.copy_context()).copy()
    loop = kernel.main_loop()
    if loop is None:
        context.run(_guarded, work, failed)
    else:
        loop.call_soon_threadsafe(_guarded, work, failed, context=context)


def start_by_click(
    ask: Callable[[], Ask],
    *,
    show: Show,
    failed: Failed,
    context: contextvars.Context | None = None,
    n: int = 1,
    no_more: Callable[[], object] = lambda: None,
) -> None:
    """Start a run in the kernel's main thread, as soon as it is free. Any thread; nobody waits.

    Args:
        ask: makes what is wanted, in that thread (it may read the notebook's names, and raise).
        show: opens the view of the run, which is its sink.
        failed: is told why there is no run.
        context: what its tools print goes to the cell of this context.
        n: starts so many of it side by side; none of several becomes the last run.
        no_more: is called where fewer begin, before `failed`.
    """

    def start() -> None:
        wanted = ask()
        try:
            for _ in range(n):
                with Run.starting(wanted, here=ClickFrontend(show)):
                    pass
        except Exception:
            no_more()
            raise
        if n > 1 and wanted.parent_id:
            # Until one is chosen, the person goes on with the run that was asked again.
            note_last(wanted.parent_id, current_store())
            frontend().set_last(open_run(wanted.parent_id))

    later(start, failed=failed, context=context)
