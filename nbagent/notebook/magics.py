"""What `%load_ext nbagent` registers: `%%agent` and `%agent`, completion, pictures of values.

What the magics do is in `commands`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from IPython.core.inputtransformer2 import EscapedCommand
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from nbagent.contracts.errors import NbagentError
from nbagent.notebook import complete
from nbagent.notebook.help import help_of
from nbagent.notebook.interrupt import Interrupt, Stopped, shown_already

_DRAWN: tuple[Any, ...] = (
    "nbagent.contracts.records.EngineTurn",
    "nbagent.contracts.records.ToolRun",
    "nbagent.contracts.messages.Message",
    *(list, tuple),
)
"""Values that are shown as pictures where they are the last of a cell."""


def register(ipython: Any) -> None:
    """Register all of it; called by `%load_ext nbagent`."""
    unregister(ipython)
    ipython.register_magics(AgentMagics)
    ipython.input_transformers_cleanup.append(mended)
    ipython.input_transformer_manager.token_transformers.append(AgentLine)
    ipython.events.register("post_run_cell", note_error)
    if not ipython.custom_exceptions:  # there is one place for a handler, which may be taken
        ipython.set_custom_exc((Stopped,), shown_already)
    complete.register(ipython)
    for kind in _DRAWN:
        ipython.display_formatter.formatters["text/html"].for_type(kind, drawn)


def unregister(ipython: Any) -> None:
    """Take all of it back; called by `%unload_ext nbagent`."""
    complete.unregister(ipython)
    if ipython.custom_exceptions == (Stopped,):
        ipython.set_custom_exc((), None)
    for kind in _DRAWN:
        ipython.display_formatter.formatters["text/html"].pop(kind, None)
    manager = ipython.input_transformer_manager
    callbacks = ipython.events.callbacks["post_run_cell"]
    for hooks in (manager.cleanup_transforms, manager.token_transformers, callbacks):
        hooks[:] = [one for one in hooks if getattr(one, "__module__", "") != __name__]
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("agent", None)


def drawn(value: Any) -> str | None:
    """The picture of a value; None leaves a list that holds other things than runs as it is."""
    if isinstance(value, list | tuple):
        run = getattr(sys.modules.get("nbagent.run"), "Run", None)
        if not value or not all(type(one) is run for one in value):
            return None
        value = [one.record for one in value]
    # Late: what draws takes longer to import than the extension may.
    node = import_module("nbagent.view.value_nodes").value_node(value)
    return None if node is None else import_module("nbagent.view.picture").page(node)


def note_error(result: Any) -> None:
    """Keep the exception of a cell for `{{ _error }}`, unless it is one of `%%agent` itself."""
    error = result.error_in_exec or result.error_before_exec
    ours = isinstance(error, NbagentError | Interrupt) and "%agent" in str(result.info.raw_cell)
    if error is not None and not ours:
        # Late, as all that a cell without an error does not need.
        import_module("nbagent.notebook.prompt_names").note_error(error)


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


class AgentLine(EscapedCommand):
    """A line `%agent …?`, which IPython would read as a question about the name before the `?`."""

    priority = 4  # before IPython's help, which has 5

    @classmethod
    def find(cls, tokens_by_line: Any) -> Any:
        """The first such line, where a statement can begin."""
        for line in tokens_by_line:
            words = [word for token in line if (word := token.string.strip())]
            is_asked = words[:2] == ["%", "agent"] and words[-1].endswith("?")
            if is_asked and not words[2].startswith("?"):
                return cls(next(token.start for token in line if token.string.strip()))
        return None


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


AgentMagics.agent.__doc__ = str(help_of())
