"""`%%agent` and `%agent`, as `%load_ext nbagent` registers them. What they do is in `commands`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from nbagent.notebook import completion
from nbagent.notebook.help_text import help_text


def register(ipython: Any) -> None:
    """Register the magics and their completion; called by `%load_ext nbagent`."""
    unregister(ipython)
    ipython.register_magics(AgentMagics)
    ipython.input_transformers_cleanup.append(mended)
    completion.register(ipython)


def unregister(ipython: Any) -> None:
    """Take all of it back; called by `%unload_ext nbagent`."""
    completion.unregister(ipython)
    cleanups = ipython.input_transformers_cleanup
    cleanups[:] = [one for one in cleanups if getattr(one, "__module__", "") != __name__]
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("agent", None)


def mended(lines: list[str]) -> list[str]:
    """Let an `%%agent` reach us that IPython would refuse before it asks anybody.

    Of a cell magic without a body it says that the cell is empty (`%%agent --help` alone), and a
    no-break space behind the name, as it comes with copied text, it takes for a part of the name.
    """
    if not lines or lines[0].split()[:1] != ["%%agent"]:
        return lines
    if lines[0][7:8] == "\u00a0":
        lines = [f"%%agent {lines[0][8:]}", *lines[1:]]
    return lines if len(lines) > 1 else [f"{lines[0].rstrip()}\n", "\n"]


# A terminal asks the transformers whether the cell is whole; this one would always say so.
mended.has_side_effects = True  # pyright: ignore[reportFunctionMemberAccess]


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
        """Do what the line or the cell says. `%%agent?` shows the help in this place."""
        # Late: records, widgets and the session take longer to import than IPython itself.
        try:
            commands = import_module("nbagent.notebook.commands")
        except KeyboardInterrupt:
            raise Interrupt("interrupted while nbagent was loading; no run was started") from None
        commands.Commands(self.shell).execute(line, cell)


AgentMagics.agent.__doc__ = help_text()
