"""The run that a `--continue` cell goes on with.

Looks only; what then happens to the run is the commands' matter.
"""

from __future__ import annotations

from nbagent.contracts.records import RunRecord
from nbagent.notebook import kernel, surface
from nbagent.session.stores import current_store, find_run


def continued_run(ref: str | None, session: str | None) -> tuple[str, tuple[str, ...]]:
    """The run to go on with, and what the person should know about it.

    Running a `--continue` cell again replaces what it added before. So this is the run before the
    first one of the conversation that an earlier execution of this cell added. What the present
    execution has added (a loop over `run_cell_magic`) stays. What other cells added after it was
    said in answer to what is replaced: it stays where it is, and is named.
    """
    run_id = find_run(ref or "last", session=session)
    here = surface.here_cell()
    if here is None or run_id.startswith(ref or "last"):
        return run_id, ()  # without a cell's id, or with a run's own, just this one is meant
    store = current_store()
    found, next_id = run_id, run_id
    others: list[str] = []
    later: list[str] = []
    while next_id is not None and not surface.was_shown_here(next_id):
        run = store.load(next_id)
        mine = run.kind == "continue" and run.cell_id == here and _is_of_this_notebook(run)
        if mine and run.parent_id is not None:
            found, later = run.parent_id, list(others)
        elif not mine:
            others.append(run.id)
        next_id = run.parent_id
    return found, (_left_out(found, run_id, later),) if later else ()


def _left_out(found: str, newest: str, later: list[str]) -> str:
    n = len(later)
    names = ", ".join(run_id[:8] for run_id in reversed(later))
    return (
        f"This cell was run before: it goes on from run {found[:8]} again. What {n} later "
        f"run{'s' * (n != 1)} added ({names}) is kept, but is no part of this conversation; "
        f"`%%agent --continue {newest[:8]}` goes on from there."
    )


def _is_of_this_notebook(run: RunRecord) -> bool:
    """False when another notebook made it: a copied notebook has the same ids of cells."""
    notebook = kernel.notebook()
    return notebook is None or run.notebook is None or run.notebook == notebook
