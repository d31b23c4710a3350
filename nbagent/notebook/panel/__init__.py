"""The panel: a prompt box with a form, beside the cells. `panel()` opens it.

`form` has its widgets, `runs` what they do, `talk` the conversation, `saved` what a file keeps.
"""

# IPython's display functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from IPython.display import display

from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import register_environment
from nbagent.notebook import kernel
from nbagent.notebook.panel.runs import panel_of_this_kernel
from nbagent.notebook.panel.saved import HEADLESS, saved

__all__ = ["panel"]


def panel() -> None:
    """Open the panel below this cell; `%agent panel` is the same.

    A kernel has one panel. Called again, it shows the same one with its conversation once more.

    Raises:
        UsageError: this is no notebook.
    """
    if not kernel.in_kernel():
        raise UsageError(
            "the panel needs a notebook: run nbagent.panel() in a cell of JupyterLab or "
            "Notebook 7; in a script write nbagent.Agent(model=…).run('…'), in a terminal %%agent"
        )
    register_environment()
    if kernel.is_headless():
        display(saved((), HEADLESS), raw=True)
    else:
        panel_of_this_kernel().show()
