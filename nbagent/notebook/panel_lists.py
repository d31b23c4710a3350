"""Parts of the panel besides its runs: lists to choose from, totals, and its saved form."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any

from nbagent.contracts.records import RunRecord, RunSummary
from nbagent.notebook.complete import package_names
from nbagent.notebook.outputs import records_metadata
from nbagent.session.frontend import frontend
from nbagent.session.models import ProviderModels, list_models
from nbagent.session.notebook_runs import split_by_notebook
from nbagent.session.stores import current_store
from nbagent.settings.sources import current_settings
from nbagent.store.batches import batch_names
from nbagent.view.node import Node, h
from nbagent.view.printers import html
from nbagent.view.run_picture import ROOT_CLASS, page, picture
from nbagent.view.run_rows import run_row, typed_prompt
from nbagent.view.run_status import status_of
from nbagent.view.run_tree import count_runs, tree_node
from nbagent.view.terminal import run_text
from nbagent.view.text_format import (
    format_cost,
    format_count,
    format_duration,
    format_start,
    one_line,
    pluralize,
    sanitize_value,
)

MAX_SAVED_BYTES = 2_000_000
"""Size limit of the conversation in the saved notebook."""
MAX_LISTED = 200
_MAX_MODELS = 2_000
_MAX_SEARCHED = 5_000
_MAX_LINEAGE = 1_000
_MAX_WORDS = 8
CLOSED = (
    "nbagent panel. It needs a page and a running kernel: in JupyterLab or Notebook 7 run this "
    "cell again to open it, in a console write %%agent. Its runs are stored: “Runs” in the panel "
    "and %agent show open them."
)
HEADLESS = (
    "nbagent panel. This cell ran without a person (nbclient, nbconvert, papermill): open the "
    "notebook in JupyterLab or Notebook 7 and run the cell there."
)


def list_node(name: str, value: str, last: RunRecord | None) -> Node:
    """Draw a list that a person chooses from.

    Args:
        name: `models`, `packages`, `runs`, `session` or `batches`.
        value: the provider for models, the searched text for runs.
        last: the present run of the conversation.
    """
    made: dict[str, Callable[[], Iterable[Node]]] = {
        "models": lambda: _models(value),
        "packages": lambda: [_set_button("workflow", name, name) for name in package_names()],
        "runs": lambda: map(_run_row, _search_runs(value)),
        "session": lambda: _tree(last),
        "batches": lambda: map(_batch_row, batch_names(current_store())[:MAX_LISTED]),
    }
    rows = [*made[name]()] if name in made else []
    nothing = {"packages": "No packages in this project.", "runs": "No run contains this text."}
    nothing["batches"] = "No batches yet: agent.map(table, …) makes one."
    return h("div", "nba-rows", *(rows or [nothing.get(name, "Nothing yet.")]))


def _set_button(field: str, value: str, title: str) -> Node:
    """Return a button that writes a value into a field."""
    return h("button", "", title, type="button", data_do="set", data_field=field, value=value)


def _models(provider: str) -> list[Node]:
    """Draw the models of each provider as buttons; below, why others are not available."""
    offers = list_models(provider or None)
    off = [offer for offer in offers if not offer.reachable]
    names = h("summary", "", f"Not available here: {', '.join(offer.provider for offer in off)}")
    whys = [
        h("div", "", h("strong", "", offer.provider), " ", sanitize_value(offer.why))
        for offer in off
    ]
    rows = [_models_row(offer) for offer in offers if offer.reachable]
    return [*rows, h("details", "nba-off", names, *whys)] if off else rows


def _models_row(offer: ProviderModels) -> Node:
    ids = [model.id for model in offer.models[:_MAX_MODELS]]
    shown = [
        _set_button("model", f"{offer.provider}:{model_id}", sanitize_value(model_id))
        for model_id in ids
    ]
    if len(ids) < 2:  # mostly the default model of a server that was not asked yet
        attributes = {"type": "button", "data_do": "list", "data_field": "models"}
        shown.append(h("button", "", "List all", value=offer.provider, **attributes))
    if (more := len(offer.models) - len(ids)) > 0:
        shown.append(h("span", "", f"and {more:,} more: type the name"))
    return h("div", "", h("strong", "", offer.provider), " ", *shown)


def _search_runs(text: str) -> list[RunSummary]:
    """Find the newest ended runs that contain all words of a text."""
    store = current_store()
    search_words = text.casefold().split()[:_MAX_WORDS]
    run_ids_by_word = {
        word: frozenset(store.search(word, limit=_MAX_SEARCHED).run_ids) for word in search_words
    }
    runs: list[RunSummary] = []
    for run in store.runs(limit=_MAX_SEARCHED):
        known = " ".join([run.id, *_facts(run)]).casefold()
        if run.stop_reason and all(
            run.id in run_ids_by_word[word] or word in known for word in search_words
        ):
            runs.append(run)
    return runs[:MAX_LISTED]


def _facts(run: RunSummary) -> list[str]:
    return [run.name or "", run.session, run.model, status_of(run).word]


def _run_row(run: RunSummary) -> Node:
    """Return a button that opens a run."""
    prompt = run_row(run).prompt
    when = format_start(run.started_at)
    about = h(
        "small", "", " · ".join(sanitize_value(fact) for fact in (when, *_facts(run)) if fact)
    )
    return h("button", "nba-open", prompt, about, type="button", data_do="open", value=run.id)


def _batch_row(name: str) -> Node:
    """Return a button that shows all cases of a batch."""
    title = one_line(sanitize_value(name), 120)
    return h("button", "nba-open", title, type="button", data_do="cases", value=name)


def _tree(last: RunRecord | None) -> list[Node]:
    """Draw the runs of the session as a tree."""
    session = last.session if last else current_settings().session
    branches = current_store().tree(session)
    own, others = split_by_notebook(current_store(), branches, frontend().cell())
    current = last.id if last else None
    rows: list[Node] = [h("div", ROOT_CLASS, tree_node(own, current=current))] if own else []
    if others:
        title = f"{pluralize(sum(map(count_runs, others)), 'run')} of other notebooks"
        tree = h("div", ROOT_CLASS, tree_node(others, current=current))
        rows.append(h("details", "nba-off", h("summary", "", title), tree))
    return rows


def lineage(run_id: str) -> list[RunRecord]:
    """Load a run and the runs that it continues, oldest first. A fork starts a new line."""
    store = current_store()
    runs = [store.load(run_id)]
    # Limited: in a stranger's store the ids of parents may form a cycle.
    while len(runs) < _MAX_LINEAGE and runs[0].parent_id is not None and runs[0].kind != "fork":
        runs.insert(0, store.load(runs[0].parent_id))
    return runs


def totals_text(runs: Sequence[RunRecord]) -> str:
    """Print runs, turns, tokens, cost and time of the conversation."""
    runs = [run for run in runs if run.turns]
    costs = [run.cost_usd for run in runs if run.cost_usd]
    pieces = [
        pluralize(len(runs), "run"),
        pluralize(sum(len(run.turns) for run in runs), "turn"),
        f"{format_count(sum(run.usage.total_tokens for run in runs))} tokens",
        format_cost(sum(costs)) if costs else "",
        format_duration(sum(run.duration_ms for run in runs)),
    ]
    return " · ".join(filter(None, pieces)) if runs else ""


def saved_form(
    runs: Sequence[RunRecord], notice: str = CLOSED
) -> tuple[dict[str, str], dict[str, Any]]:
    """Build the saved form: the conversation as folds; only the newest runs if it is too long.

    Returns:
        The display bundle and its metadata.
    """
    shown: list[RunRecord] = []
    folds: list[str] = []
    for run in reversed(runs):
        label = typed_prompt(run) or run.id[:8]
        about = h("small", "", f"{status_of(run).word} · {sanitize_value(run.model)}")
        fold = h("summary", "", label, " ", about)
        made = h("details", "", fold, picture(run, actions=False), open_=None if shown else "")
        text = html(made)
        if shown and len(text) + sum(map(len, folds)) > MAX_SAVED_BYTES:
            break
        shown.insert(0, run)
        folds.insert(0, text)
    left = len(runs) - len(shown)
    lines = [notice, *([f"{left} earlier runs are in the store only."] if left else [])]
    notes = "".join(html(h("p", "nba-notes", line)) for line in lines)
    look = files("nbagent.notebook").joinpath("panel_saved.css").read_text("utf-8")
    body = f'<div class="nba-panel-saved">{notes}{"".join(folds)}</div>'
    whole = f"{page('')}<style>{look}</style>{body}"
    texts = [*lines, *map(run_text, shown)]
    return {"text/html": whole, "text/plain": "\n\n".join(texts)}, records_metadata(*shown)
