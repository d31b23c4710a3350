"""What the panel draws beside its runs: lists to choose from, sums, and its saved form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any

from nbagent.contracts.records import RunRecord
from nbagent.notebook.complete import package_names
from nbagent.notebook.outputs import metadata_of
from nbagent.session.models import Listing, listings
from nbagent.session.stores import current_store
from nbagent.settings.sources import effective
from nbagent.view.labels import status_of
from nbagent.view.node import Node, h, html
from nbagent.view.picture import ROOT, page, picture
from nbagent.view.run_tree import tree_node
from nbagent.view.terminal import plain
from nbagent.view.words import began, clean, count, money, one_line, seconds, things, visible

SAVED_BYTES = 2_000_000
"""Of the conversation in the saved file."""
LISTED = 200
_LOOKED_AT = 5_000
_LINEAGE = 1_000
_WORDS = 8
CLOSED = (
    "nbagent panel. It needs a running kernel: run this cell again to open it. Its runs are kept: "
    "“Runs” in the panel and %agent show bring them back."
)
HEADLESS = (
    "nbagent panel. This cell ran where nobody can type (nbclient, nbconvert, papermill): open the "
    "notebook in JupyterLab or Notebook 7 and run the cell there."
)


def listed(name: str, value: str, last: RunRecord | None) -> Node:
    """A list that a person chooses from.

    Args:
        name: `models`, `packages`, `runs` or `session`.
        value: of the models the provider, of the runs the words to find.
        last: where the conversation is now.
    """
    made: dict[str, Callable[[], Iterable[Node]]] = {
        "models": lambda: _models(value),
        "packages": lambda: [_setter("workflow", name, name) for name in package_names()],
        "runs": lambda: map(_run_row, _found(value)),
        "session": lambda: _tree(last),
    }
    rows = [*made[name]()] if name in made else []
    nothing = {"packages": "No packages in this project.", "runs": "No run has these words."}
    return h("div", "nba-rows", *(rows or [nothing.get(name, "Nothing yet.")]))


def _setter(field: str, value: str, words: str) -> Node:
    """A button that writes a value into a field."""
    return h("button", "", words, type="button", data_do="set", data_field=field, value=value)


def _models(provider: str) -> list[Node]:
    """What each provider offers, as buttons; below, what keeps others from being asked."""
    offers = listings(provider or None)
    off = [offer for offer in offers if not offer.reachable]
    names = h("summary", "", f"Not available here: {', '.join(offer.provider for offer in off)}")
    whys = [h("div", "", h("strong", "", it.provider), " ", visible(it.why)) for it in off]
    rows = [_models_row(offer) for offer in offers if offer.reachable]
    return [*rows, h("details", "nba-off", names, *whys)] if off else rows


def _models_row(offer: Listing) -> Node:
    ids = [model.id for model in offer.models[:LISTED]]
    shown = [_setter("model", f"{offer.provider}:{it}", visible(it)) for it in ids]
    if len(ids) < 2:
        given = {"type": "button", "data_do": "list", "data_field": "models"}
        shown.append(h("button", "", "List all", value=offer.provider, **given))
    return h("div", "", h("strong", "", offer.provider), " ", *shown)


def _found(text: str) -> list[RunRecord]:
    """The newest runs that are over and have all these words in their texts or facts."""
    store = current_store()
    words = text.casefold().split()[:_WORDS]
    said = {word: frozenset(store.search(word, limit=_LOOKED_AT)) for word in words}
    found: list[RunRecord] = []
    for run in store.runs(limit=_LOOKED_AT):
        known = " ".join([run.id, *_facts(run)]).casefold()
        if run.stop_reason and all(run.id in said[word] or word in known for word in words):
            found.append(run)
    return found[:LISTED]


def _facts(run: RunRecord) -> list[str]:
    return [run.name or "", run.session, run.model, status_of(run).word]


def _run_row(run: RunRecord) -> Node:
    """A button that opens a run."""
    prompt = one_line(visible(run.prompt), 120) or "(no prompt)"
    when = began(run.started_at)
    about = h("small", "", " · ".join(visible(fact) for fact in (when, *_facts(run)) if fact))
    return h("button", "nba-open", prompt, about, type="button", data_do="open", value=run.id)


def _tree(last: RunRecord | None) -> list[Node]:
    """All runs of the session, as they branch."""
    session = last.session if last else effective().session
    branches = current_store().tree(session)
    tree = tree_node(branches, current=last.id if last else None)
    return [h("div", ROOT, tree)] if branches else []


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
    costs = [run.cost_usd for run in runs if run.cost_usd]
    pieces = [
        things(len(runs), "run"),
        things(sum(len(run.turns) for run in runs), "turn"),
        f"{count(sum(run.usage.total_tokens for run in runs))} tokens",
        money(sum(costs)) if costs else "",
        seconds(sum(run.duration_ms for run in runs)),
    ]
    return " · ".join(filter(None, pieces)) if runs else ""


def saved(runs: Sequence[RunRecord], words: str = CLOSED) -> tuple[dict[str, str], dict[str, Any]]:
    """What a file keeps: the conversation, folded; the newest runs where it is too long."""
    kept: list[RunRecord] = []
    folds: list[str] = []
    for run in reversed(runs):
        label = one_line(clean(run.prompt), 100) or run.id[:8]
        about = h("small", "", f"{status_of(run).word} · {visible(run.model)}")
        fold = h("summary", "", label, " ", about)
        made = h("details", "", fold, picture(run, actions=False), open_=None if kept else "")
        text = html(made)
        if kept and len(text) + sum(map(len, folds)) > SAVED_BYTES:
            break
        kept.insert(0, run)
        folds.insert(0, text)
    left = len(runs) - len(kept)
    lines = [words, *([f"{left} earlier runs are in the store only."] if left else [])]
    notes = "".join(html(h("p", "nba-notes", line)) for line in lines)
    look = files("nbagent.notebook").joinpath("panel_saved.css").read_text("utf-8")
    body = f'<div class="nba-panel-saved">{notes}{"".join(folds)}</div>'
    whole = f"{page('')}<style>{look}</style>{body}"
    texts = [*lines, *map(plain, kept)]
    return {"text/html": whole, "text/plain": "\n\n".join(texts)}, metadata_of(*kept)
