"""Lines of a run in the kernel's console: what papermill, nbclient or a server writes as its log.

They do not become output of the cell, so the saved notebook is the same with and without them.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from nbagent.contracts.events import Event, ReasoningDelta, RunStarted, TextDelta, TurnCorrected
from nbagent.view.terminal import PlainPrinter


class LogLines(PlainPrinter):
    """Prints the start of a run, its calls when they begin and end, its turns and its end."""

    name = "log lines"

    def __init__(self) -> None:
        """Print to the console of the kernel."""
        super().__init__(self._write_lines)
        self._run_id = ""

    def handle(self, event: Event) -> None:
        """Print an event; streamed pieces are left out, since several runs share the console."""
        if isinstance(event, RunStarted):
            self._run_id = event.run.id[:8]
        if not isinstance(event, TextDelta | ReasoningDelta | TurnCorrected):
            super().handle(event)

    def _write_lines(self, text: str) -> None:
        lines = (f"nbagent {self._run_id}  {line}\n" for line in text.splitlines())
        write_to_console("".join(lines))


def write_to_console(text: str) -> None:
    """Write to the stderr that the kernel's process was started with."""
    # ipykernel publishes what is written to file descriptor 2; the original one is a copy of it.
    number: Any = getattr(sys.stderr, "_original_stdstream_copy", None)
    with suppress(OSError, ValueError):  # a closed console must not end the view of a run
        if isinstance(number, int):
            os.write(number, text.encode("utf-8", "backslashreplace"))
        elif sys.__stderr__ is not None:
            sys.__stderr__.write(text)
            sys.__stderr__.flush()
