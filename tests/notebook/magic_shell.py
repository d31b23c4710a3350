"""A real IPython in the test's own process, whose cells raise what they raised.

There is no kernel in it: runs print plain lines, as in a terminal.
"""

from __future__ import annotations

import io
import traceback
from contextlib import redirect_stdout
from typing import Any

from IPython.core.completer import provisionalcompleter, rectify_completions
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbagent.contracts.errors import NbagentError

TOOLS = """
@nbagent.tool
def population(city: str) -> int:
    "People living in a city."
    return {"Oslo": 717_710, "Bergen": 291_940}[city]

def area(city: str) -> float:
    "Area of a city in square kilometres."
    return 454.1
"""


class MagicShell(InteractiveShell):
    """Raises the error of a cell, after it was shown."""

    at_first: dict[str, Any]
    """The names that it began with."""

    def cell(self, *lines: str) -> Any:
        """Run a cell; what its last expression was."""
        result: Any = self.run_cell("\n".join(lines), store_history=True)
        result.raise_error()
        return result.result

    def agent(self, line: str, *body: str) -> Any:
        """Run an `%%agent` cell; the run that it leaves in `_run`."""
        self.cell(f"%%agent {line}", *(body or ("Hello?",)))
        return self.user_ns["_run"]

    def said(self, *lines: str) -> str:
        """Run a cell; what it printed."""
        with redirect_stdout(io.StringIO()) as printed:
            self.cell(*lines)
        return printed.getvalue()

    def refused(self, *lines: str) -> NbagentError:
        """The error of a cell that has to fail with one of nbagent's."""
        try:
            self.cell(*lines)
        except NbagentError as error:
            return error
        except Exception as error:
            raise AssertionError("".join(traceback.format_exception(error))) from error
        raise AssertionError(f"the cell did not fail: {lines}")


def started_shell() -> MagicShell:
    config = Config()
    config.HistoryManager.enabled = False
    shell = MagicShell.instance(config=config, colors="nocolor")
    shell.at_first = dict(shell.user_ns)
    return shell


def begin(shell: MagicShell) -> None:
    """Make it as new, with the extension loaded."""
    # `reset` collects garbage each time, which takes as long as the tests do.
    shell.user_ns.clear()
    shell.user_ns.update(shell.at_first)
    shell.cell("%reload_ext nbagent", "import nbagent")


def tab(shell: MagicShell, typed: str) -> list[str]:
    """The whole cells that Tab offers where `|` stands, with what was typed replaced."""
    place = typed.index("|")
    text = typed.replace("|", "", 1)
    completer: Any = shell.Completer
    with provisionalcompleter():
        found = list(rectify_completions(text, completer.completions(text, place)))
    return [text[: one.start] + one.text + text[one.end :] for one in found]
