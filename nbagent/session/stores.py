"""The stores of this process, one per folder, and the run that a reference means."""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from typing import Any

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import RunStore
from nbagent.session.frontend import frontend
from nbagent.session.notebook_runs import last_notebook_run
from nbagent.settings.sources import store_home, to_path
from nbagent.store.database import FILE_NAME
from nbagent.store.writer import Store

_lock = threading.Lock()
_stores: dict[Path, Store] = {}
_last_run_ids: dict[RunStore, str] = {}
"""By store, the run that the person started last in this process."""


def current_store() -> Store:
    """The current store, opened once; in memory, with a warning, if the folder cannot be used."""
    return _open_once(store_home())


def store_at(path: str | os.PathLike[str]) -> Store:
    """The store in a folder (`.nbagent`), or of a file; UsageError if there is none."""
    folder = to_path(path, "store")
    # Links to the folder that the person names are resolved; those in it are refused.
    home = Path(os.path.realpath(folder.parent if folder.name == FILE_NAME else folder))
    if not os.path.isfile(home / FILE_NAME):
        raise UsageError(f"there is no store at {folder}; give a folder that holds {FILE_NAME}")
    return _open_once(home)


def _open_once(home: Path) -> Store:
    # One store per folder: two would not know each other's runs. The path has no link.
    with _lock:
        if home not in _stores:
            _stores[home] = Store.open(home)
        return _stores[home]


def cache_file(store: RunStore, run_id: str) -> Path:
    """Cache file of a run: each run has its own, so that `forget` can delete it."""
    home = store.path.parent if store.path else store_home()
    return home.absolute() / "cache" / f"{run_id}.jsonl"


def close_stores() -> None:
    """Close all stores; the next call opens them again."""
    for store in _stores.values():
        store.close()
    _stores.clear()
    _last_run_ids.clear()


# Runs that are still active then are read as interrupted.
atexit.register(close_stores)


def find_run(ref: str, *, session: str | None = None) -> str:
    """Id of the run with this reference: `last`, a name, or the start of an id; else UsageError.

    `last` is the last run of the session where one is named, else the one that the person started
    last in this process, and in a fresh process the last one of this notebook.
    """
    reference: Any = ref
    if not isinstance(reference, str):
        raise UsageError(f'{ref!r} is not a run; give "last", its name or the start of its id')
    store = current_store()
    if ref != "last":
        return store.find(ref)
    here = _last_run_ids.get(store) if session is None else None
    if here is not None:
        return store.find(here)  # raises if it was deleted: no other run is meant
    run_id = (
        last_notebook_run(store, frontend().cell()) if session is None else store.last_run(session)
    )
    if run_id is None:
        of = f"session {session!r}" if session else "this notebook"
        raise UsageError(f"there is no run of {of} yet; name another (nbagent.runs() lists them)")
    return run_id


def set_last_run(run_id: str, store: RunStore) -> None:
    """Remember the run that the user started last."""
    _last_run_ids[store] = run_id


def _before_fork() -> None:
    # A forked child cannot use an open SQLite connection, nor a lock that another thread has taken.
    _lock.acquire()
    for store in _stores.values():
        store.database.pause()


def _after_fork() -> None:
    for store in _stores.values():
        store.database.resume()
    _lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    _stores.clear()  # the leases are the parent's
    _last_run_ids.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
