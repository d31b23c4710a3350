"""The stores of this process, one per folder, and the run that a reference means.

`store.home` decides which folder is the person's own.
"""

from __future__ import annotations

import atexit
import os
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.nearest import nearest_hint
from nbagent.contracts.ports import RunStore
from nbagent.session.frontend import frontend
from nbagent.session.notebook_runs import last_notebook_run
from nbagent.settings.sources import project_folder, to_path
from nbagent.store.connections import FILE_NAME
from nbagent.store.home import (
    StoreHome,
    create_id,
    current_home,
    forget_homes,
    home_at,
    not_lasting,
    note_created,
    short_path,
    stand_in_of,
    writing_folder,
)
from nbagent.store.store_facts import read_facts
from nbagent.store.writer import Store
from nbagent.view.text_format import pluralize

_lock = threading.Lock()
_stores: dict[Path, Store] = {}
_strangers: dict[Path, Store] = {}
"""Stores of others, opened to read only."""
_replaced: list[Store] = []
"""Own stores whose folder became a stranger's while they were open. A run may be at work in one, so
they are closed at the end."""
_notices: dict[RunStore, str] = {}
"""By store, what the person has to know about its place and was not told yet."""
_announced: set[Path] = set()
"""Folders whose stranger's store was announced in this process."""
_TAKE_OVER = "`%agent trust` takes it over (in a shell: `python -m nbagent trust`)"
_last_run_ids: dict[RunStore, str] = {}
"""By store, the run that the person started last in this process."""


def current_store() -> Store:
    """The store that runs are kept in, opened once; in memory, with a warning, if its folder cannot
    be used. It is not a stranger's: instead of one, it is in the person's data folder."""
    home = current_home()
    if home.is_own:
        return _open_own(home)
    with _lock:
        if (replaced := _stores.pop(home.folder, None)) is not None:
            _replaced.append(replaced)
            _notices.pop(replaced, None)
    stand_in = stand_in_of(home.folder)
    store = _open_own(StoreHome(stand_in))
    if home.folder not in _announced:
        _announced.add(home.folder)
        _notices[store] = stranger_notice(home, stand_in)
    return store


def store_to_read() -> Store:
    """The store that runs are kept in, to look at: an empty one in memory while there is none.

    To look creates nothing.
    """
    return current_store() if has_store() else _empty_store()


def has_store() -> bool:
    """True if a run was kept in the store, or if its folder cannot hold one."""
    folder = writing_folder()
    if folder in _stores or os.path.lexists(folder / FILE_NAME):
        return True
    there = next((p for p in (folder, *folder.parents) if os.path.lexists(p)), folder)
    # `current_store` says then that nothing can be kept, and creates nothing either.
    return not (os.path.isdir(there) and os.access(there, os.W_OK))


@cache
def _empty_store() -> Store:
    return Store.memory()


def store_at(path: str | os.PathLike[str]) -> Store:
    """The store in a folder (`.nbagent`), or of a file; UsageError if there is none.

    A stranger's store is opened to read only.
    """
    folder = to_path(path, "store")
    # Links to the folder that the person names are resolved; those in it are refused.
    home = Path(os.path.realpath(folder.parent if folder.name == FILE_NAME else folder))
    if not os.path.isfile(home / FILE_NAME):
        raise UsageError(f"there is no store at {folder}; give a folder that holds {FILE_NAME}")
    examined = home_at(home)
    with _lock:
        if (opened := _stores.get(examined.folder)) is not None:
            return opened
    return _open_own(examined) if examined.is_own else _open_to_read(examined)


def own_stores_for(file: Path) -> list[Store]:
    """The person's own stores in which the runs of a notebook may be: the current one, then that
    of its folder. A stranger's store is not among them."""
    stores = [store_to_read()]
    for folder in file.absolute().parents:
        home = Path(os.path.realpath(folder / ".nbagent"))
        if os.path.isfile(home / FILE_NAME):
            stores += [store_at(home)] if home_at(home).is_own else []
            break
    return stores


def _open_own(home: StoreHome) -> Store:
    # One store per folder, also if a link leads to it: two would not know each other's runs.
    with _lock:
        if home.folder not in _stores:
            home, notice = create_id(home)
            _stores[home.folder] = store = Store.open(home.folder, store_id=home.store_id)
            if notice:
                _notices[store] = notice
                note_created(home.folder, store.store_id())
        return _stores[home.folder]


def _open_to_read(home: StoreHome) -> Store:
    with _lock:
        if home.folder not in _strangers:
            _strangers[home.folder] = Store.open_to_read(home.folder, read_only_reason(home))
        return _strangers[home.folder]


def drop_store(folder: Path) -> None:
    """Close the store of a folder, so that the next call decides anew and opens it."""
    with _lock:
        for stores in (_stores, _strangers):
            if (store := stores.pop(folder, None)) is not None:
                store.close()
                _notices.pop(store, None)
    _announced.discard(folder)


def take_over_store(folder: Path, store_id: str) -> int:
    """Open a stranger's store to write, migrate it, and give it an id; return its number of runs.

    Raises:
        StoreError: it cannot be written.
    """
    drop_store(folder)
    store = Store.open(folder, store_id=store_id, is_own=False)
    try:
        is_there = store.path is not None and Path(os.path.realpath(store.path.parent)) == folder
        if store.read_only or not is_there:
            raise StoreError(store.read_only or store.warning or f"{folder} cannot hold a store")
        store.take_over(store_id)
        return store.counts("runs")["runs"]
    finally:
        store.close()


def notice_of(store: RunStore, *, is_said: bool = True) -> str:
    """Notice about the place of the store, once per process; empty if there is none.

    Args:
        is_said: False if the person may not see it, as in a dry run: it is returned again then.
    """
    return _notices.pop(store, "") if is_said else _notices.get(store, "")


def stranger_notice(home: StoreHome, stand_in: Path) -> str:
    """One line: which store is not used and why, where runs are kept instead, and what to do."""
    return " ".join(
        (
            f"The store in {short_path(home.folder)} is not yours: {home.why_not}.",
            *filter(None, (waiting_runs(home),)),
            f"New runs are kept in {short_path(stand_in)}.",
            *filter(None, (not_lasting(stand_in),)),
            f"{_TAKE_OVER}.",
        )
    )


def waiting_runs(home: StoreHome) -> str:
    """A sentence about the runs in a stranger's store; empty without any."""
    with suppress(StoreError, OSError):
        is_link = os.path.islink(home.folder)
        facts = None if is_link else read_facts(home.folder / FILE_NAME, count=True)
        if facts is not None and facts.runs:
            runs = pluralize(facts.runs, "run")
            is_near = str(home.folder.parent) == os.path.realpath(project_folder())
            folder = home.folder.name if is_near else str(home.folder)
            verb = "waits" if facts.runs == 1 else "wait"
            return f"{runs} {verb} in it; nbagent.runs(store={folder!r}) reads them."
    return ""


def read_only_reason(home: StoreHome) -> str:
    """Reason why nothing is written to a stranger's store, and what to do."""
    return (
        f"the store in {short_path(home.folder)} is not yours: {home.why_not}; its runs can only "
        f"be read. {_TAKE_OVER}."
    )


def cache_file(store: RunStore, run_id: str) -> Path:
    """Cache file of a run: each run has its own, so that `forget` can delete it."""
    home = store.path.parent if store.path else writing_folder()
    return home.absolute() / "cache" / f"{run_id}.jsonl"


def _opened() -> list[Store]:
    return [*_stores.values(), *_strangers.values(), *_replaced]


def close_stores() -> None:
    """Close all stores; the next call opens them again."""
    for store in _opened():
        store.close()
    for known in (_stores, _strangers, _replaced, _last_run_ids, _notices):
        known.clear()
    if _empty_store.cache_info().currsize:
        _empty_store().close()
        _empty_store.cache_clear()
    _announced.clear()
    forget_homes()


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
    store = store_to_read()
    if ref != "last":
        try:
            return store.find(ref)
        except UsageError as error:
            raise UsageError(f"{error.message}{_elsewhere()}", code=error.code) from None
    here = _last_run_ids.get(store) if session is None else None
    if here is not None:
        return store.find(here)  # raises if it was deleted: no other run is meant
    run_id = (
        last_notebook_run(store, frontend().cell()) if session is None else store.last_run(session)
    )
    if run_id is None:
        of = f"session {session!r}" if session else "this notebook"
        hint = nearest_hint(session, store.newest_words("session")) if session else ""
        hint = hint or "; name another (nbagent.runs() lists them)"
        raise UsageError(f"there is no run of {of} yet{hint}{_elsewhere()}")
    return run_id


def _elsewhere() -> str:
    """The end of an error about a run: it may be in a stranger's store."""
    home = current_home()
    if home.is_own or not (waiting := waiting_runs(home)):
        return ""
    return f". The store in {short_path(home.folder)} is not yours: {waiting} {_TAKE_OVER}"


def set_last_run(run_id: str, store: RunStore) -> None:
    """Remember the run that the user started last."""
    _last_run_ids[store] = run_id


def _before_fork() -> None:
    # A forked child cannot use an open SQLite connection, nor a lock that another thread has taken.
    _lock.acquire()
    for store in _opened():
        store.database.pause()


def _after_fork() -> None:
    for store in _opened():
        store.database.resume()
    _lock.release()


def _after_fork_in_child() -> None:
    _after_fork()
    _stores.clear()  # the leases are the parent's
    _strangers.clear()
    _replaced.clear()
    _empty_store.cache_clear()
    _last_run_ids.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
