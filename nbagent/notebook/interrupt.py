"""Exceptions of cells that a person ended: by an interrupt without a run, or by a stop."""

from __future__ import annotations

from typing import Any

from nbagent.contracts.errors import EngineError


class Interrupt(KeyboardInterrupt):
    """Interrupt (■) that no run handled, shown as one line.

    A KeyboardInterrupt, so that it also ends a cell that catches every Exception.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class Stopped(EngineError):
    """A stopped run: the cell fails, so queued cells do not run, but no error box is shown."""


def show_no_traceback(shell: Any, *_error: object, **_more: object) -> None:
    """Show no traceback: the picture of the run says that it was stopped and what to do next."""
