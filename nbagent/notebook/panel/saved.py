"""What a saved notebook keeps of the panel: its last runs in their static form, and what to do.

It stands below the panel as an output of its own. A style sheet hides the one that is not needed:
the saved form while the panel is alive, what is left of the panel when it is not.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from nbagent.contracts.records import RunRecord
from nbagent.notebook.panel.parts import sheet
from nbagent.notebook.panel.talk import spoke, who_spoke
from nbagent.view.static_html import html, style
from nbagent.view.static_text import markdown, plain
from nbagent.view.view_state import view_of
from nbagent.view.words import clean, one_line

KEPT = 3
"""So many runs are saved with the notebook; all of them are in the store."""
_SAID_CHARS = 2_000

CLOSED = (
    "nbagent panel. It needs a running kernel: run this cell again to open it. "
    "Its runs are kept; “Last runs” in the panel and %agent show bring them back."
)
HEADLESS = (
    "nbagent panel. This cell ran where nobody can type (nbclient, nbconvert, papermill): open the "
    "notebook in JupyterLab or Notebook 7 and run the cell there."
)


def saved(runs: Sequence[RunRecord], words: str = CLOSED) -> dict[str, str]:
    """The display bundle.

    Args:
        runs: the conversation's runs, oldest first; the last `KEPT` are drawn.
        words: what stands above them.
    """
    last = [(_said(run), view_of(run)) for run in runs[-KEPT:]]
    pieces = [f"<style>{style()}{sheet('saved')}</style>", '<div class="nba-panel-saved">']
    pieces.append(f'<p class="nba-panel-words">{escape(words)}</p>')
    for said, state in last:
        pieces.append(f'<p class="nba-said">{escape(said)}</p>')
        pieces.append(html(state).replace(f"<style>{style()}</style>", "", 1))
    pieces.append("</div>")
    texts = [words, *(f"{said}\n\n{plain(state)}" for said, state in last)]
    marked = [words, *(f"{_code(said)}\n\n{markdown(state)}" for said, state in last)]
    return {
        "text/html": "\n".join(pieces),
        "text/markdown": "\n\n".join(marked),
        "text/plain": "\n\n".join(texts),
    }


def _said(run: RunRecord) -> str:
    words = one_line(clean(run.prompt), _SAID_CHARS) if spoke(run) else ""
    return f"{who_spoke(run)}: {words}" if words else who_spoke(run)


def _code(text: str) -> str:
    """A text that Markdown leaves alone."""
    ticks = "`"
    while ticks in text:
        ticks += "`"
    return f"{ticks} {text} {ticks}"
