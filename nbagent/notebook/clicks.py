"""Runs that a click starts: in the kernel's main thread as soon as it is free; no cell waits.

Used by the buttons below a run and by the panel. Owns no view: the caller passes one.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nbagent.contracts.errors import NbagentError
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_truncated
from nbagent.contracts.tools import Capture
from nbagent.notebook import kernel
from nbagent.run import Run
from nbagent.runtime import RunTask
from nbagent.session.frontend import Cell, Frontend, frontend
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions
from nbagent.view.text_format import sanitize_value

OpenView = Callable[[RunRecord, RunControls], Sink]
OnError = Callable[[Exception], None]
_log = logging.getLogger("nbagent")


class ClickFrontend(Frontend):
    """The process's frontend with a view of the caller.

    No cell started these runs, so `cell()` has no cell id: a `--continue` cell must not take one
    for its own, and an interrupt of the last cell must not stop it.
    """

    wait_reason = "the kernel: a cell is running"

    def __init__(self, show: OpenView) -> None:
        """Show runs by `show`."""
        self._show, self._process = show, frontend()

    def namespace(self) -> Mapping[str, Any]:
        """Variables of the notebook."""
        return self._process.namespace()

    def capture(self, options: RunOptions) -> Capture | None:
        """Capture output of tools for their cards."""
        # Not by `options`: a run continued from a `--quiet` cell has a view here all the same.
        return self._process.capture(RunOptions())

    def cell(self) -> Cell:
        """Return the notebook without a cell."""
        return replace(self._process.cell(), cell_id=None, execution_count=None)

    def input_prompt(self) -> None:
        """Return None: no thread waits for these runs."""

    def serve_when_idle(self, courier: RunTask) -> None:
        """Let the idle kernel run the run's synchronous tools."""
        self._process.serve_when_idle(courier)

    def bind_variable(self, handle: object, name: str = "_run") -> None:
        """Bind a handle to a variable."""
        self._process.bind_variable(handle, name)

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink:
        """Open the caller's view."""
        return self._show(run, controls)


def reason(error: Exception) -> str:
    """Say in a page why a click failed, without the code of the error, which is for programs."""
    text = error.message if isinstance(error, NbagentError) else str(error)
    return sanitize_value(redact_truncated(text))


def _run_guarded(work: Callable[[], object], on_error: OnError) -> None:
    try:
        work()
    except Exception as error:
        _log.debug("the action of a click failed", exc_info=True)
        on_error(error)


def run_in_thread(
    work: Callable[[], object], *, on_error: OnError, context: contextvars.Context
) -> None:
    """Run `work` in a new thread, so that it works while a cell runs. See `run_on_main_loop`."""
    run = context.copy().run
    threading.Thread(target=run, args=(_run_guarded, work, on_error), daemon=True).start()


def run_on_main_loop(
    work: Callable[[], object], *, on_error: OnError, context: contextvars.Context | None = None
) -> None:
    """Run `work` in the kernel's main thread as soon as it is free. Any thread.

    Args:
        work: the function to call.
        on_error: gets the exception of `work`, in the same thread.
        context: prints and displays go to the cell of this context; without one they are lost.
    """
    # Copied: a context can be entered only once at a time.
    context = (context or contextvars.copy_context()).copy()
    loop = kernel.main_loop()
    if loop is None:
        context.run(_run_guarded, work, on_error)
    else:
        loop.call_soon_threadsafe(_run_guarded, work, on_error, context=context)


def start_by_click(
    make_request: Callable[[], RunRequest],
    *,
    show: OpenView,
    on_error: OnError,
    context: contextvars.Context | None = None,
) -> None:
    """Start a run in the kernel's main thread as soon as it is free. Any thread; does not wait.

    Args:
        make_request: builds the request in that thread; may read notebook variables and raise.
        show: opens the view of a run, which is its sink.
        on_error: gets the reason if there is no run.
        context: prints of the tools go to the cell of this context.
    """

    def start() -> None:
        with Run.starting(make_request(), front_end=ClickFrontend(show)):
            pass  # waiting here would block the kernel until the run has ended

    run_on_main_loop(start, on_error=on_error, context=context)
