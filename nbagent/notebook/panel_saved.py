"""The conversation of the panel as a file keeps it: its runs, their sums, the saved form."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from nbagent.contracts.records import RunRecord
from nbagent.notebook.outputs import metadata_of
from nbagent.session.stores import current_store
from nbagent.view.labels import status_of
from nbagent.view.node import h, html
from nbagent.view.picture import page, picture
from nbagent.view.text import plain
from nbagent.view.words import clean, count, money, one_line, seconds, things, visible

SAVED_BYTES = 2_000_000
"""Of the conversation in the saved file."""
_LINEAGE = 1_000
CLOSED = (
    "nbagent panel. It needs a running kernel: run this cell again to open it. Its runs are kept: "
    "“Runs” in the panel and %agent show bring them back."
)
HEADLESS = (
    "nbagent panel. This cell ran where nobody can type (nbclient, nbconvert, papermill): open the "
    "notebook in JupyterLab or Notebook 7 and run the cell there."
)


def lineage(run_id: str) -> list[RunRecord]:
    """A run and those that it goes on from, oldest first; a fork begins a line of its own."""
    store = current_store()
    runs = [store.load(run_id)]
    while len(runs) < _LINEAGE and runs[0].parent_id is not None and runs[0].kind != "fork":
        runs.insert(0, store.load(runs[0].parent_id))
    return runs


def totals(runs: Sequence[RunRecord]) -> str:
    """Runs, turns, tokens, cost and time of the conversation, in words."""
    runs = [run for run in runs if run.turns]
    if not runs:
        return ""
    turns = sum(len(run.turns) for run in runs)
    costs = [run.cost_usd for run in runs if run.cost_usd]
    pieces = [
        things(len(runs), "run"),
        things(turns, "turn"),
        f"{count(sum(run.usage.total_tokens for run in runs))} tokens",
        money(sum(costs)) if costs else "",
        seconds(sum(run.duration_ms for run in runs)),
    ]
    return " · ".join(filter(None, pieces))


def saved(runs: Sequence[RunRecord], words: str = CLOSED) -> tuple[dict[str, str], dict[str, Any]]:
    """What a file keeps: the conversation, folded; the newest runs where it is too long."""
    kept: list[RunRecord] = []
    folds: list[str] = []
    size = 0
    for run in reversed(runs):
        label = one_line(clean(run.prompt), 100) or run.id[:8]
        about = f"{status_of(run).word} · {visible(run.model)}"
        made = picture(run, actions=False)
        fold = h("summary", "", label, " ", h("small", "", about))
        text = html(h("details", "nba-saved-run", fold, made, open_=None if kept else ""))
        size += len(text)
        if size > SAVED_BYTES and kept:
            break
        kept.insert(0, run)
        folds.insert(0, text)
    left = len(runs) - len(kept)
    lines = [words, f"{left} earlier runs are in the store only." if left else ""]
    notes = [html(h("p", "nba-panel-words", line)) for line in lines if line]
    look = files("nbagent.notebook").joinpath("panel_saved.css").read_text("utf-8")
    body = f'<div class="nba-panel-saved">{"".join((*notes, *folds))}</div>'
    whole = f"{page('')}<style>{look}</style>{body}"
    texts = [*filter(None, lines), *map(plain, kept)]
    return {"text/html": whole, "text/plain": "\n\n".join(texts)}, metadata_of(*kept)
