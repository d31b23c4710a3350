"""The frontend of a process without IPython, and the choice between it and IPython's.

Everything else here is imported when it is needed: a script that shows nothing needs none of it.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.session.frontend import Asker, Frontend
from nbagent.settings import RunOptions


class TerminalFrontend(Frontend):
    """A script's: plain lines where it wants them, and questions where somebody types."""

    def asker(self) -> Asker | None:
        """What asks by `input()`, where stdin is a terminal."""
        stdin: Any = sys.stdin
        if stdin is None or stdin.closed or not stdin.isatty():
            return None
        from nbagent.view.question import ask_by_input

        return ask_by_input

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        """Plain lines for `echo=True`, else notices only."""
        if options.quiet or not options.echo:
            return super().open(run, controls, options)
        return self.printer()

    def printer(self) -> Sink:
        """Prints events as plain lines while they happen."""
        from nbagent.view.text import PlainPrinter

        write, asks = sys.stdout.write, self.asker() is not None
        return PlainPrinter(write, asked_by_input=asks, renders=sys.stdout.isatty())


def chosen_frontend() -> Frontend:
    """IPython's, in a kernel or a terminal, else that of a script."""
    ipython = sys.modules.get("IPython")
    if ipython is None or cast("Any", ipython).get_ipython() is None:
        return TerminalFrontend()
    from nbagent.notebook.surface import NotebookFrontend

    return NotebookFrontend()
