"""`%%agent` and `%agent`, as `%load_ext nbagent` registers them. What they do is in `commands`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand


def register(ipython: Any) -> None:
    """Register the magics; called by `%load_ext nbagent`."""
    ipython.register_magics(AgentMagics)


class Interrupt(KeyboardInterrupt):
    """■ where no run could take it, as one line. Ends also a cell that catches every Exception."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


@magics_class
class AgentMagics(Magics):
    """The two magics."""

    @no_var_expand
    @line_cell_magic
    def agent(self, line: str, cell: str | None = None) -> None:
        """Ask a model and watch it use tools: `%%agent [options]`, the prompt on the next lines.

        `%agent COMMAND` does the rest: tools, models, show, resume, stop, config, doctor, help.
        `%agent help` lists all options with examples.
        """
        # Late: records, widgets and the session take longer to import than IPython itself.
        try:
            commands = import_module("nbagent.notebook.commands")
        except KeyboardInterrupt:
            raise Interrupt("interrupted while nbagent was loading; no run was started") from None
        commands.Commands(self.shell).execute(line, cell)
