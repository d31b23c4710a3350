"""Registration by `%load_ext nbagent`: `%%agent`, `%agent`, completion, pictures of values.

`commands` executes the magics.
"""

from __future__ import annotations

import sys
from typing import Any

from IPython.core.inputtransformer2 import EscapedCommand
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from nbagent.contracts.errors import NbagentError
from nbagent.notebook import complete
from nbagent.notebook.help import help_of
from nbagent.notebook.interrupt import Interrupt, Stopped, show_no_traceback

_SHOWN_TYPES: tuple[Any, ...] = (
    "nbagent.contracts.records.EngineTurn",
    "nbagent.contracts.records.ToolRun",
    "nbagent.contracts.messages.Message",
    *(list, tuple),
)
"""Types that are shown as pictures if they are the last value of a cell."""


def register(ipython: Any) -> None:
    """Register everything; called by `%load_ext nbagent`."""
    unregister(ipython)  # `%reload_ext` would register everything twice
    ipython.register_magics(AgentMagics)
    ipython.input_transformers_cleanup.append(normalize_cell)
    ipython.input_transformer_manager.token_transformers.append(AgentLine)
    ipython.events.register("post_run_cell", note_error)
    if not ipython.custom_exceptions:  # IPython has one handler only; keep another package's
        ipython.set_custom_exc((Stopped,), show_no_traceback)
    complete.register(ipython)
    for kind in _SHOWN_TYPES:
        ipython.display_formatter.formatters["text/html"].for_type(kind, to_html)


def unregister(ipython: Any) -> None:
    """Unregister everything; called by `%unload_ext nbagent`."""
    complete.unregister(ipython)
    if ipython.custom_exceptions == (Stopped,):
        ipython.set_custom_exc((), None)
    for kind in _SHOWN_TYPES:
        ipython.display_formatter.formatters["text/html"].pop(kind, None)
    manager = ipython.input_transformer_manager
    callbacks = ipython.events.callbacks["post_run_cell"]
    for hooks in (manager.cleanup_transforms, manager.token_transformers, callbacks):
        # In place: IPython holds these lists.
        hooks[:] = [hook for hook in hooks if getattr(hook, "__module__", "") != __name__]
    for kind in ("line", "cell"):
        ipython.magics_manager.magics[kind].pop("agent", None)


def to_html(value: Any) -> str | None:
    """Draw a value as HTML; None for a list that holds other things than runs."""
    if isinstance(value, list | tuple):
        run = getattr(sys.modules.get("nbagent.run"), "Run", None)
        if not value or not all(type(item) is run for item in value):
            return None
        value = [item.record for item in value]
    # Late: these modules take longer to import than loading the extension may take.
    from nbagent.view.run_picture import page
    from nbagent.view.value_nodes import value_node

    node = value_node(value)
    return None if node is None else page(node)


def note_error(result: Any) -> None:
    """Keep the exception of a cell for `{{ _error }}`, except those of `%%agent` itself."""
    error = result.error_in_exec or result.error_before_exec
    ours = isinstance(error, NbagentError | Interrupt) and "%agent" in str(result.info.raw_cell)
    if error is not None and not ours:
        # Late: needed only after an error.
        from nbagent.notebook import prompt_names

        prompt_names.note_error(error)


def normalize_cell(lines: list[str]) -> list[str]:
    """Fix `%%agent` cells that IPython would refuse before it calls the magic.

    It rejects a cell magic without a body (`%%agent --help` alone), and takes a no-break space
    after the name, which copied text may have, for a part of the name.
    """
    if not lines or lines[0].split()[:1] != ["%%agent"]:
        return lines
    if lines[0][7:8] == "\u00a0":
        lines = [f"%%agent {lines[0][8:]}", *lines[1:]]
    return lines if len(lines) > 1 else [f"{lines[0].rstrip()}\n", "\n"]


# A terminal runs the transformers to test if a cell is complete. With this one it always would be:
# `has_side_effects` excludes it from that test.
normalize_cell.has_side_effects = True  # pyright: ignore[reportFunctionMemberAccess]


class AgentLine(EscapedCommand):
    """A line `%agent …?`, which IPython would otherwise read as a help request for a name."""

    priority = 4  # before IPython's help, which has 5

    @classmethod
    def find(cls, tokens_by_line: Any) -> Any:
        """Find the first such line at the start of a statement."""
        for line in tokens_by_line:
            texts = [text for token in line if (text := token.string.strip())]
            is_asked = texts[:2] == ["%", "agent"] and texts[-1].endswith("?")
            # `%agent?` alone is a request for the help of the magic, which IPython answers.
            if is_asked and not texts[2].startswith("?"):
                return cls(next(token.start for token in line if token.string.strip()))
        return None


@magics_class
class AgentMagics(Magics):
    """The two magics."""

    @no_var_expand
    @line_cell_magic
    def agent(self, line: str, cell: str | None = None) -> None:
        """Execute the line or the cell. The help replaces this docstring, for `%%agent?`."""
        # Late: the session and the widgets take longer to import than IPython itself.
        try:
            from nbagent.notebook.commands import Commands
        except KeyboardInterrupt:
            raise Interrupt("interrupted while nbagent was loading; no run was started") from None
        Commands(self.shell).execute(line, cell)


AgentMagics.agent.__doc__ = str(help_of())
