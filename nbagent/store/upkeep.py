"""Work on many rows, done in slices: the index for text search, hashes of older rows, and the rows
of deleted runs.

Each slice is one transaction, so that a kill leaves the work before or after it; what is left is in
the tables `upkeep`, `forgotten` and `blocks`. Queries are right at any moment in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from nbagent.contracts.canonical import new_id, utc_now
from nbagent.contracts.errors import StoreError
from nbagent.store.columns import TABLES, TABLES_OF_RUN
from nbagent.store.connections import Connection
from nbagent.store.database import Database, Locked
from nbagent.store.leases import leases_of
from nbagent.store.schema import TURN_INDEXES
from nbagent.store.text_index import (
    begin_block,
    end_block,
    index_rows,
    next_block,
    write_rows,
)

SLICE_S = 0.01
"""Time after which a slice takes no more rows. Its commit comes on top: another process waits for
the write lock for 20 ms at most."""
_HASHES = "hashes"
_ROWS_A_STEP = 50
_RUNS_A_STEP = 10
_INDEX_ROWS_A_SLICE = 2_000
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
    newest = c.execute("SELECT coalesce(max(n), 0) FROM runs").fetchone()[0]
    tasks = {_HASHES: newest, **dict.fromkeys(TURN_INDEXES, 0)}
    c.executemany("INSERT INTO upkeep(task, position) VALUES(?, ?)", tasks.items())


def is_current(c: Connection) -> bool:
    """True if no rows of version 6 are left: hashes are numbers, `prompts` is complete."""
    return c.execute("SELECT 1 FROM upkeep").fetchone() is None


def has_slices(c: Connection) -> bool:
    """True if `do_slice` has work."""
    sql = "SELECT EXISTS (SELECT 1 FROM upkeep) OR EXISTS (SELECT 1 FROM forgotten)"
    return bool(c.execute(sql).fetchone()[0])


def has_upkeep(c: Connection) -> bool:
    """True if there is work on rows, or a block of runs to index."""
    return has_slices(c) or next_block(c) is not None


def do_slice(c: Connection) -> bool:
    """Do a slice of the work in the transaction at work; False if there was none."""
    until = time.monotonic() + SLICE_S
    return any(work(c, until) for work in (_delete_forgotten, _move_hashes, _create_index))


def delete_slice(c: Connection) -> bool:
    """Delete some rows of runs that were forgotten; False if there were none."""
    return _delete_forgotten(c, time.monotonic() + SLICE_S)


def _delete_forgotten(c: Connection, until: float) -> bool:
    row = c.execute("SELECT run FROM forgotten ORDER BY run LIMIT 1").fetchone()
    if row is None:
        return False
    (run,) = row
    for table in TABLES_OF_RUN:
        rows = 1  # a row may hold megabytes
        # More than `rows` where several rows share a part of their key.
        while c.execute(_delete_some(table), (run, rows)).rowcount >= rows:
            if time.monotonic() > until:
                return True
            rows = min(2 * rows, _ROWS_A_STEP)
    c.execute("DELETE FROM forgotten WHERE run = ?", (run,))
    return True


def _delete_some(table: str) -> str:
    if "WITHOUT ROWID" not in TABLES[table].key:
        selected = f"SELECT rowid FROM {table} WHERE run = ? LIMIT ?"
        return f"DELETE FROM {table} WHERE rowid IN ({selected})"
    second = TABLES[table].key.split("(")[1].split(")")[0].split(", ")[1]
    selected = f"SELECT {second} FROM {table} WHERE run = ?1 LIMIT ?2"
    return f"DELETE FROM {table} WHERE run = ?1 AND {second} IN ({selected})"


def _move_hashes(c: Connection, until: float) -> bool:
    """Replace hashes in older rows by their numbers, and note their prompts; newest runs first."""
    row = c.execute("SELECT position FROM upkeep WHERE task = ?", (_HASHES,)).fetchone()
    if row is None:
        return False
    (last,) = row
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


def _create_index(c: Connection, until: float) -> bool:
    """Create one index of turns. It cannot be divided, and holds the write lock for seconds on a
    million runs, so it waits until no other process has the store open."""
    row = c.execute("SELECT task FROM upkeep ORDER BY task LIMIT 1").fetchone()
    now = utc_now()
    if row is None or sum(lease.is_alive(now) for lease in leases_of(c).values()) > 1:
        return False
    c.execute(TURN_INDEXES[row[0]])
    c.execute("DELETE FROM upkeep WHERE task = ?", row)
    return True


def index_block(database: Database) -> bool:
    """Index the texts of a block of runs; False if there is no block to index.

    The texts are read outside of a transaction: making the rows takes 0.3 s.
    """
    with database.reading() as c:
        block = next_block(c)
    if block is None:
        return False
    token = new_id()
    # First the note, then the texts: a run that is deleted from now on removes the note.
    database.transact(partial(begin_block, block=block, token=token), durable=False)
    with database.reading() as c:
        rows = index_rows(c, block)
    for i in range(0, len(rows), _INDEX_ROWS_A_SLICE):
        part = rows[i : i + _INDEX_ROWS_A_SLICE]
        work = partial(write_rows, block=block, token=token, rows=part)
        if not database.transact(work, durable=False):
            return True
    database.transact(partial(end_block, block=block, token=token), durable=False)
    return True


def finish_upkeep(database: Database) -> None:
    """Do all the work that is left."""
    while database.transact(do_slice, durable=False) or index_block(database):
        pass


_IDLE_S = 2.0
"""Time without a run at work after which texts are indexed."""
_PAUSE = 4.0
"""Pause after a slice, in times of its length: four fifths of a processor stay free."""


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

    def _work(self) -> None:
        while not self._stopped.wait(_IDLE_S):
            while self._is_idle() and not self._stopped.is_set():
                began = time.monotonic()
                try:
                    if not self._do_some():
                        return
                except Locked:
                    break
                except StoreError:
                    return  # the next run says what is wrong with the store
                self._stopped.wait(_PAUSE * (time.monotonic() - began))

    def _do_some(self) -> bool:
        with self._database.reading() as c:
            has_work = has_slices(c)
        if has_work and self._database.transact(do_slice, wait_s=0, durable=False):
            return True
        return index_block(self._database)
