"""How a cell ends that a person ended: by an interrupt that no run could take, or by a stop."""

from __future__ import annotations

from typing import Any

from nbagent.contracts.errors import EngineError


class Interrupt(KeyboardInterrupt):
    """■ where no run could take it, as one line. Ends also a cell that catches every Exception."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class Stopped(EngineError):
    """A stop of the run: the cell fails, so that queued ones do not run, without an error box."""


def shown_already(shell: Any, *_error: object, **_more: object) -> None:
    """Show no traceback: the picture of the run says that it was stopped, and what to do next."""
