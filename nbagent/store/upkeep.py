"""Work on many rows, done in slices: the index for text search, indexes and hashes of older rows,
and the rows of deleted runs.

Each slice is one transaction, so that a kill leaves the work before or after it; what is left is in
the tables `upkeep`, `unindexed` and `forgotten`. Queries are right at any moment in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nbagent.contracts.errors import StoreError
from nbagent.store.columns import TABLES
from nbagent.store.database import Connection, Database, Locked
from nbagent.store.schema import LATER_INDEXES
from nbagent.store.text_index import (
    create_text_index,
    entries_of,
    has_text_index,
    index_entry,
    merge_entries,
    unindex_entry,
)

SLICE_S = 0.01
"""Time after which a slice takes no more rows. Its commit comes on top: another process waits for
the write lock for 20 ms at most."""
_HASHES = "hashes"
_MERGE = "merge the index of texts"
_CHILD_TABLES = ("messages", "tool_runs", "turns", "scores", "open")
_ROWS_A_STEP = 50
_RUNS_A_STEP = 10
_MERGE_PAGES = 16
_HASH_COLUMNS = {
    name: [column.name for column in table.columns if column.is_hash]
    for name, table in TABLES.items()
}
_NOTE_PROMPTS = "INSERT INTO prompts(kind, sha, first_seen, last_seen) "
_WIDEN = (
    " ON CONFLICT DO UPDATE SET first_seen = min(first_seen, excluded.first_seen), "
    "last_seen = max(last_seen, excluded.last_seen)"
)
NOTE_PROMPT = f"{_NOTE_PROMPTS} VALUES(?, ?, ?, ?){_WIDEN}"
"""Statement that notes a use of a prompt; its kind, hash, and the time twice."""
# `+`: grouped in the order of the index of templates, every slice would scan all runs.
_NOTE_TEMPLATES = (
    f"{_NOTE_PROMPTS} SELECT 'template', template_sha, min(started_at), max(started_at) FROM runs "
    f"WHERE n BETWEEN :first AND :last AND template_sha IS NOT NULL "
    f"GROUP BY +template_sha{_WIDEN}"
)
_NOTE_SYSTEM_PROMPTS = (
    f"{_NOTE_PROMPTS} SELECT 'system', h.sha, min(t.started_at), max(t.started_at) FROM turns t "
    "JOIN hashes h ON h.n = t.system_sha WHERE t.run BETWEEN :first AND :last "
    f"GROUP BY h.sha{_WIDEN}"
)


def plan_upkeep(c: Connection) -> None:
    """Note the work that the rows of a store of version 6 need."""
    for name, statement in LATER_INDEXES.items():
        if " ON prompts(" in statement:  # empty so far
            c.execute(statement)
        else:
            c.execute("INSERT INTO upkeep(task, position) VALUES(?, 0)", (name,))
    create_text_index(c)
    newest = c.execute("SELECT max(n) FROM runs").fetchone()[0]
    if newest is not None:
        c.execute("INSERT INTO upkeep(task, position) VALUES(?, ?)", (_HASHES, newest))
        c.execute("INSERT INTO unindexed(run) SELECT n FROM runs")


def is_hashed(c: Connection) -> bool:
    """True if all rows have their hashes in `hashes`, and `prompts` is complete."""
    return c.execute("SELECT 1 FROM upkeep WHERE task = ?", (_HASHES,)).fetchone() is None


def has_upkeep(c: Connection) -> bool:
    """True if there is work left."""
    sql = (
        "SELECT EXISTS (SELECT 1 FROM upkeep) OR EXISTS (SELECT 1 FROM forgotten) "
        "OR EXISTS (SELECT 1 FROM unindexed u JOIN runs r ON r.n = u.run "
        "WHERE r.phase <> 'Running')"
    )
    return bool(c.execute(sql).fetchone()[0])


def do_slice(c: Connection) -> bool:
    """Do a slice of the work in the transaction at work.

    Returns:
        True if work was done; False if there was none.
    """
    until = time.monotonic() + SLICE_S
    for work in (_delete_forgotten, _create_index, _move_hashes, _index_texts, _merge_texts):
        if work(c, until):
            return True
    return False


def do_deletion_slice(c: Connection) -> bool:
    """Do a slice of the work that a deletion left. Returns False if there was none."""
    until = time.monotonic() + SLICE_S
    return _delete_forgotten(c, until) or _merge_texts(c, until)


def _has_deletion(c: Connection) -> bool:
    return bool(c.execute("SELECT EXISTS (SELECT 1 FROM forgotten)").fetchone()[0])


def _delete_forgotten(c: Connection, until: float) -> bool:
    """Delete rows of runs that were forgotten, a few at a time; first their texts in the index."""
    found = c.execute("SELECT run, position FROM forgotten ORDER BY run LIMIT 1").fetchone()
    if found is None:
        return False
    run, position = found
    if position is not None:
        for i, text in enumerate(entries_of(c, run)):
            if i >= position:
                if time.monotonic() > until:
                    c.execute("UPDATE forgotten SET position = ? WHERE run = ?", (i, run))
                    return True
                unindex_entry(c, run, i, text)
        c.execute("UPDATE forgotten SET position = NULL WHERE run = ?", (run,))
        c.execute("INSERT OR IGNORE INTO upkeep(task, position) VALUES(?, 0)", (_MERGE,))
        # Not further in this slice: the rows may be many.
        return True
    for table in _CHILD_TABLES:
        while True:
            deleted = c.execute(_delete_some(table), (run, _ROWS_A_STEP)).rowcount
            if deleted < _ROWS_A_STEP:
                break
            if time.monotonic() > until:
                return True
    c.execute("DELETE FROM forgotten WHERE run = ?", (run,))
    return True


def _delete_some(table: str) -> str:
    if "WITHOUT ROWID" not in TABLES[table].key:
        found = f"SELECT rowid FROM {table} WHERE run = ? LIMIT ?"
        return f"DELETE FROM {table} WHERE rowid IN ({found})"
    second = TABLES[table].key.split("(")[1].split(")")[0].split(", ")[1]
    found = f"SELECT {second} FROM {table} WHERE run = ?1 LIMIT ?2"
    return f"DELETE FROM {table} WHERE run = ?1 AND {second} IN ({found})"


def _create_index(c: Connection, until: float) -> bool:
    """Create one index. It cannot be divided: a table is read once for it."""
    for name, statement in LATER_INDEXES.items():
        found = c.execute("SELECT 1 FROM upkeep WHERE task = ?", (name,)).fetchone()
        # The indexes of turns come after their hashes have become numbers.
        if found and (" ON runs(" in statement or is_hashed(c)):
            c.execute(statement.replace(" INDEX ", " INDEX IF NOT EXISTS ", 1))
            c.execute("DELETE FROM upkeep WHERE task = ?", (name,))
            return True
    return False


def _move_hashes(c: Connection, until: float) -> bool:
    """Replace hashes in older rows by their numbers, and note their prompts; newest runs first."""
    found = c.execute("SELECT position FROM upkeep WHERE task = ?", (_HASHES,)).fetchone()
    if found is None:
        return False
    (last,) = found
    while last > 0 and time.monotonic() < until:
        between = {"first": last - _RUNS_A_STEP + 1, "last": last}
        for table, columns in _HASH_COLUMNS.items():
            number = "n" if table == "runs" else "run"
            for column in columns:
                rows = f"{number} BETWEEN :first AND :last AND typeof({column}) = 'text'"
                c.execute(
                    f"INSERT OR IGNORE INTO hashes(sha) SELECT {column} FROM {table} WHERE {rows}",
                    between,
                )
                sha = f"(SELECT h.n FROM hashes h WHERE h.sha = {table}.{column})"
                c.execute(f"UPDATE {table} SET {column} = {sha} WHERE {rows}", between)
        c.execute(_NOTE_TEMPLATES, between)
        c.execute(_NOTE_SYSTEM_PROMPTS, between)
        last -= _RUNS_A_STEP
    if last > 0:
        c.execute("UPDATE upkeep SET position = ? WHERE task = ?", (last, _HASHES))
    else:
        c.execute("DELETE FROM upkeep WHERE task = ?", (_HASHES,))
    return True


_NEXT_UNINDEXED = (
    "SELECT u.run, u.position FROM unindexed u JOIN runs r ON r.n = u.run "
    "WHERE r.phase <> 'Running' ORDER BY u.run DESC LIMIT 1"
)


def _index_texts(c: Connection, until: float) -> bool:
    """Index the texts of runs that have ended; newest runs first."""
    found = c.execute(_NEXT_UNINDEXED).fetchone()
    if found is None or not has_text_index(c):
        return False
    while found is not None and time.monotonic() < until:
        run, position = found
        for i, text in enumerate(entries_of(c, run)):
            if i >= (position or 0):
                if time.monotonic() > until:
                    c.execute("UPDATE unindexed SET position = ? WHERE run = ?", (i, run))
                    return True
                index_entry(c, run, i, text)
        c.execute("DELETE FROM unindexed WHERE run = ?", (run,))
        found = c.execute(_NEXT_UNINDEXED).fetchone()
    return True


def _merge_texts(c: Connection, until: float) -> bool:
    """Rewrite the index without the words of deleted runs."""
    found = c.execute("SELECT position FROM upkeep WHERE task = ?", (_MERGE,)).fetchone()
    if found is None:
        return False
    begin = not found[0]
    while merge_entries(c, -_MERGE_PAGES if begin else _MERGE_PAGES):
        begin = False
        if time.monotonic() > until:
            c.execute("UPDATE upkeep SET position = 1 WHERE task = ?", (_MERGE,))
            return True
    c.execute("DELETE FROM upkeep WHERE task = ?", (_MERGE,))
    return True


_IDLE_S = 2.0
"""Time without a run at work after which texts are indexed."""
_PAUSE = 4.0
"""Pause after a slice, in times of its length: four fifths of a processor stay free."""
_MERGE_WAIT_S = 1.0


class UpkeepThread:
    """Does the work of a store in a daemon thread, while no run is at work in this process."""

    def __init__(self, database: Database, is_idle: Callable[[], bool]) -> None:
        self._database = database
        self._is_idle = is_idle
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def wake(self) -> None:
        """Begin after a moment, if there is work; a thread at work looks again by itself."""
        if self._database.path is None or self._stopped.is_set():
            return
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._work, name="nbagent store upkeep", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=2)

    def finish_deletion(self) -> None:
        """Delete the rows of runs that were forgotten; rewrite the index for a moment."""
        until = time.monotonic() + _MERGE_WAIT_S
        while self._database.transact(_has_deletion, durable=False) or time.monotonic() < until:
            if not self._database.transact(do_deletion_slice, durable=False):
                return
        self.wake()

    def _work(self) -> None:
        while not self._stopped.wait(_IDLE_S):
            while self._is_idle() and not self._stopped.is_set():
                began = time.monotonic()
                try:
                    if not self._database.transact(do_slice, wait_s=0, durable=False):
                        return
                except Locked:
                    break
                except StoreError:
                    return  # the next run says what is wrong with the store
                self._stopped.wait(_PAUSE * (time.monotonic() - began))
