"""The store of runs: commits the events of runs, closes runs of dead kernels, deletes runs.

Owns the file `runs.sqlite` and the leases in it. Queries are in `reader`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import StoreError
from nbagent.contracts.events import (
    Event,
    MessagesAdded,
    ResponseReceived,
    RunFinished,
    RunStarted,
    ToolCallFinished,
    TurnFinished,
)
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun
from nbagent.store.columns import (
    LAST_FOREIGN_RUN,
    STORE_ID,
    TABLE_COLUMNS,
    TABLES,
    TABLES_OF_RUN,
)
from nbagent.store.connections import FILE_NAME, Connection
from nbagent.store.database import Database, Locked
from nbagent.store.deletion import delete_runs
from nbagent.store.leases import RUN_INTERRUPTED, Lease, as_interrupted, leases_of
from nbagent.store.migrations import upgrade
from nbagent.store.reader import StoreReader, find_run_row, load_record, select_keys
from nbagent.store.record_cells import from_us, to_us
from nbagent.store.rows import (
    Row,
    encode_row,
    message_row,
    rows_of_record,
    run_row,
    source_of_first,
    text_rows,
    tool_run_row,
    turn_end_us,
    turn_rows,
)
from nbagent.store.schema import set_fact
from nbagent.store.text_index import RUNS_A_BLOCK, drop_block_of
from nbagent.store.upkeep import NOTE_PROMPT, UpkeepThread, delete_slice, has_slices, has_upkeep

_TABLES_OF_RECORD = tuple(name for name in TABLES_OF_RUN if name != "scores")
"""Tables that a record is written to. A score is a record of its own."""
_HASH_PLACES = {
    name: [i for i, column in enumerate(table.by_name.values()) if column.is_hash]
    for name, table in TABLES.items()
}
"""Indexes of the cells with a hash, by table."""


def _place_sql(table: str, name: str) -> str:
    is_hash = TABLES[table].by_name[name].is_hash
    return "(SELECT h.n FROM hashes h WHERE h.sha = ?)" if is_hash else "?"


def _value_sql(table: str, name: str) -> str:
    return f"{name} = {_place_sql(table, name)}"


def _insert_sql(table: str, verb: str, **values: str) -> str:
    places = {name: _place_sql(table, name) for name in TABLES[table].by_name} | values
    return f"{verb} INTO {table}({', '.join(places)}) VALUES({', '.join(places.values())})"


_UPSERTS = {
    # The key of a text is its hash, so an existing row is already equal.
    table: _insert_sql(table, "INSERT OR IGNORE" if table == "texts" else "INSERT OR REPLACE")
    for table in TABLE_COLUMNS
}
# Not SQLite's own next number: that is the number of the newest run again after it was deleted, and
# its other rows may still be there.
_NEXT_RUN = (
    "coalesce(?, (SELECT max(n) FROM (SELECT max(n) AS n FROM runs UNION ALL "
    "SELECT max(run) FROM forgotten UNION ALL "
    # The number of a deleted foreign run would make a new run a foreign one.
    f"SELECT value FROM facts WHERE name = '{LAST_FOREIGN_RUN}')) + 1, 1)"
)
# The end of a run does not change these. Without them an UPDATE writes four indexes instead of all.
_FROM_START = frozenset(
    (
        *("n", "run_id", "session", "conversation_id", "root_id", "parent_id", "notebook"),
        *("cell_id", "kernel_id", "file_id", "batch", "template_sha", "started_at"),
    )
)
_END_PLACES = [i for i, name in enumerate(TABLE_COLUMNS["runs"]) if name not in _FROM_START]
_UPDATE_RUN = (
    "UPDATE runs SET "
    + ", ".join(_value_sql("runs", TABLE_COLUMNS["runs"][i]) for i in _END_PLACES)
    + " WHERE n = ?"
)
_END_DAMAGED = (
    "UPDATE runs SET phase = 'Failed', stop_reason = 'error', lease_id = NULL, error_code = ?, "
    "error = ? WHERE n = ?"
)
_INSERT_RUN = _insert_sql("runs", "INSERT", n=_NEXT_RUN)


class _RunCursor(NamedTuple):
    """The committed part of a run at work in this process."""

    row: Row
    messages: int
    """Number of messages, which is the position of the next one."""
    last_turn_end_us: int
    turns: int = 0
    text_hashes: frozenset[str] = frozenset(("",))
    """Hashes of texts that committed turns refer to: they are in the store and stay there."""
    open_turn: EngineTurn | None = None
    """The turn whose calls are running."""

    @property
    def provider(self) -> str:
        return self.row["model"].partition(":")[0]


class Store(StoreReader):
    """All runs of one folder. One thread at a time may write; any thread may read."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._lease = Lease.of_this_process(utc_now())
        self._cursors: dict[str, _RunCursor] = {}
        self._upkeep = UpkeepThread(database, is_idle=lambda: not self._cursors)
        if not database.read_only and database.transact(self._begin):
            self._upkeep.wake()

    @classmethod
    def open(cls, home: Path, *, store_id: str = "", is_own: bool = True) -> Store:
        """Open or create the store in a folder; if that fails, in memory with a warning.

        Args:
            store_id: the id of a store that is created, or that is the person's own.
            is_own: False if the person takes over a stranger's, with the log beside it.

        Raises:
            StoreError: the file belongs to another program, to a newer nbagent, or is locked.
        """
        database = Database.open(
            home, partial(upgrade, store_id=store_id), store_id=store_id if is_own else ""
        )
        try:
            store = cls(database)
            # A journal that was replayed may have replaced the id that was compared before.
            if is_own and store_id and store.path and store.store_id() not in ("", store_id):
                raise StoreError(f"{store.path} was replaced while it was opened; try again")
            return store
        except BaseException:  # locked by another process, or interrupted
            database.close()
            raise

    @classmethod
    def open_to_read(cls, home: Path, reason: str) -> Store:
        """Open the store of another owner. Nothing is written to its file, and none is created.

        Args:
            reason: the reason why nothing can be written, with what to do.

        Raises:
            StoreError: the file cannot be read.
        """
        return cls(Database.open_to_read(home / FILE_NAME, upgrade, reason))

    @classmethod
    def memory(cls) -> Store:
        """Create a store in memory."""
        return cls(Database.memory(upgrade))

    @property
    def warning(self) -> str | None:
        return self.database.warning

    @property
    def path(self) -> Path | None:
        return self.database.path

    @property
    def read_only(self) -> str:
        """Reason why nothing can be written; empty if it can."""
        return self.database.read_only

    def store_id(self) -> str:
        """Id of the store; empty without one."""
        with self.database.reading() as c:
            row = c.execute("SELECT value FROM facts WHERE name = ?", (STORE_ID,)).fetchone()
        return str(row[0]) if row else ""

    def take_over(self, store_id: str) -> None:
        """Make another owner's store the person's own. Its runs stay marked as foreign."""

        def work(c: Connection) -> None:
            newest = c.execute("SELECT coalesce(max(n), 0) FROM runs").fetchone()[0]
            # Rows without their run would become a part of the next one.
            for table in TABLES_OF_RUN:
                c.execute(f"DELETE FROM {table} WHERE run > ?", (newest,))
            set_fact(c, LAST_FOREIGN_RUN, newest)
            set_fact(c, STORE_ID, store_id)

        self.database.transact(work)

    def set_store_id(self, store_id: str) -> None:
        """Write another id, so that no entry fits any more."""
        self.database.transact(lambda c: set_fact(c, STORE_ID, store_id))

    def on_warning(self, callback: Callable[[str], None]) -> None:
        """Call a function with the warning if the file can no longer be written."""
        self.database.on_warning = callback

    # Writing

    async def commit(self, event: Event, on_wait: Callable[[], None] = lambda: None) -> None:
        """Commit the data of an event; when this returns, it is committed.

        The event loop is not blocked while another process is writing; `on_wait` is called once
        if that takes long.
        """
        # Two events are fsynced: a response with calls, because its tools have side effects that
        # must not be repeated, and the end of a run. An fsync covers everything written before it.
        # The other commits survive a kill; only a power cut may undo them. At the start of a run
        # nothing can be lost yet, so the run fails then if the store is locked; later it moves to
        # memory instead.
        without_fsync, with_fsync = (
            {"durable": False, "memory_if_busy": True},
            {"durable": True, "memory_if_busy": True},
        )
        work: Callable[[Connection], _RunCursor | None]
        match event:
            case RunStarted(run=run):
                options = {"durable": False, "memory_if_busy": False}
                run_id, work = run.id, partial(self._insert_run, run=run)
            case ResponseReceived(turn=turn):
                run_id, options = turn.run_id, with_fsync
                work = partial(_write_response, self._cursors[run_id], event)
            # The last result of a turn (nothing pending) is committed by TurnFinished, the next
            # event: one transaction less per turn.
            case ToolCallFinished(run_id=run_id, pending=pending) if pending:
                options, work = (
                    without_fsync,
                    partial(_write_result, self._cursors[run_id], event.tool_run),
                )
            case TurnFinished(turn=turn):
                run_id, options = turn.run_id, without_fsync
                work = partial(_write_turn, self._cursors[run_id], event)
            case MessagesAdded(run_id=run_id):
                options, work = (
                    without_fsync,
                    partial(_write_messages, self._cursors[run_id], event),
                )
            case RunFinished(run=run):
                run_id, options, work = (
                    run.id,
                    with_fsync,
                    partial(_write_run_end, self._cursors[run.id], run),
                )
            case _:
                return
        # Alone, a run would only wait for the next round of the loop.
        grouped = len(self._cursors) > 1
        cursor = await self.database.commit(work, on_wait=on_wait, grouped=grouped, **options)
        if cursor is None:
            ended = self._cursors.pop(run_id)
            if ended.row["n"] % RUNS_A_BLOCK == 0:  # a block of runs is full
                self._upkeep.wake()
        else:
            self._cursors[run_id] = cursor

    def _insert_run(self, c: Connection, run: RunRecord) -> _RunCursor:
        row = {**run_row(run), "lease_id": self._lease.id}
        if run.parent_id is not None:
            sql = "SELECT root_id, conversation_id FROM runs WHERE run_id = ?"
            parent_ids = c.execute(sql, (run.parent_id,)).fetchone()
            root, conversation = parent_ids or (run.parent_id, run.parent_id)
            row |= {"root_id": root, "conversation_id": row["conversation_id"] or conversation}
        c.execute(_INSERT_RUN, encode_row("runs", row))
        row["n"] = n = c.execute("SELECT last_insert_rowid()").fetchone()[0]
        # The number of a deleted run is used again, perhaps in a block that was indexed since.
        drop_block_of(c, n)
        if row["template_sha"]:
            started = row["started_at"]
            c.execute(NOTE_PROMPT, ("template", row["template_sha"], started, started))
        at = to_us(run.started_at)
        rows = [
            message_row(message, i, source_of_first(run, i), at)
            for i, message in enumerate(run.messages)
        ]
        upsert(c, "messages", rows, run=row["n"])
        return _RunCursor(row, len(run.messages), at)

    def add(self, *runs: RunRecord) -> None:
        """Write whole runs that ended elsewhere; parents before the runs that continue them."""

        def work(c: Connection) -> None:
            for run in runs:
                _write_record(c, self._insert_run(c, run), run)

        self.database.transact(work)

    def abandon(self, run_id: str) -> None:
        """Give up a run that this process cannot finish; it is then read as ENGINE_INTERRUPTED."""
        self._cursors.pop(run_id, None)
        sql = "UPDATE runs SET lease_id = NULL WHERE run_id = ? AND lease_id = ?"
        self.database.transact(lambda c: c.execute(sql, (run_id, self._lease.id)))

    # Leases, and runs of dead kernels

    def heartbeat(self) -> bool:
        """Renew the lease of this process. Call this every 10 s while a run is at work.

        Returns:
            False if another process is writing: call again soon.
        """
        self._lease = replace(self._lease, heartbeat=to_us(utc_now()))
        try:
            self.database.transact(self._write_lease, wait_s=0, durable=False)
            if self.database.deleted_data_in_log:
                self.database.checkpoint(0)
        except Locked:
            return False
        return True

    @property
    def lease_id(self) -> str:
        """Marks the rows that this process is at work on."""
        return self._lease.id

    def is_leased_elsewhere(self, c: Connection, lease_id: str | None) -> bool:
        """True if this lease belongs to another process that is alive."""
        holder = None if lease_id in (None, self._lease.id) else leases_of(c).get(lease_id or "")
        return holder is not None and holder.is_alive(utc_now())

    def _write_lease(self, c: Connection) -> None:
        upsert(c, "leases", [asdict(self._lease)])

    def _begin(self, c: Connection) -> bool:
        """Take the lease of this process; return True if there is upkeep to do."""
        self._take_lease(c)
        return has_upkeep(c)

    def _take_lease(self, c: Connection) -> None:
        # The heartbeat of a dead kernel tells when its open runs ended, so its lease stays until
        # they are closed.
        used = "SELECT lease_id FROM runs WHERE phase = 'Running' AND lease_id IS NOT NULL"
        dead = [(lease.id,) for lease in leases_of(c).values() if not lease.is_alive(utc_now())]
        c.executemany(f"DELETE FROM leases WHERE id = ? AND id NOT IN ({used})", dead)
        self._write_lease(c)

    def _dead_runs(self, c: Connection) -> list[tuple[Row, Lease | None]]:
        """Keys of the runs in the phase Running whose process is dead, with its lease, if any."""
        rest = "WHERE phase = 'Running' AND lease_id IS NOT ?"
        rows = select_keys(c, rest, (self._lease.id,))
        leases = leases_of(c) if rows else {}
        owned_rows = [(row, leases.get(row["lease_id"])) for row in rows]
        return [
            (row, lease)
            for row, lease in owned_rows
            if lease is None or not lease.is_alive(utc_now())
        ]

    def _close_dead_runs(self, c: Connection) -> None:
        """Write the end of the runs of dead kernels."""
        for keys, lease in self._dead_runs(c):
            try:
                row = find_run_row(c, keys["run_id"])
                run = load_record(c, row)
            except StoreError:  # damaged rows: they stay, and the run is no longer at work
                c.execute(_END_DAMAGED, (RUN_INTERRUPTED.code, RUN_INTERRUPTED.message, keys["n"]))
                continue
            run = as_interrupted(run, from_us(lease.heartbeat) if lease else None)
            _write_record(c, _RunCursor(row, 0, 0), run)

    @contextlib.contextmanager
    def reading(self) -> Generator[Connection]:
        """Open a connection with a snapshot of the store; runs of dead kernels are closed in it."""
        with self.database.reading() as connection:
            if self.database.read_only or not self._dead_runs(connection):
                yield connection
                return
        self.database.transact(self._close_dead_runs)
        with self.database.reading() as connection:
            yield connection

    # Deleting

    def forget(self, run_id: str, *, children: bool = False) -> tuple[str, ...]:
        """Delete a run, its texts and its judges; with `children` also the runs that continue it.

        Deleted bytes are overwritten (`secure_delete`), and the write-ahead log is merged into the
        file and emptied.

        Returns:
            Ids of the deleted runs, the run's own first.

        Raises:
            UsageError: there is no such run, it is at work, or other runs continue it.
        """

        def work(c: Connection) -> tuple[str, ...]:
            self._close_dead_runs(c)
            return delete_runs(c, run_id, children=children)

        forgotten = self.database.transact(work)
        while self.database.transact(delete_slice, durable=False):
            pass
        self.database.checkpoint()
        self._upkeep.wake()
        return forgotten

    def counts(self, *tables: str) -> dict[str, int]:
        """Number of rows of these tables; of none: runs, turns, tool runs and messages."""
        with self.reading() as c:
            return {
                table: c.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in tables or ("runs", "turns", "tool_runs", "messages")
            }

    def pending_work(self) -> str:
        """Say what is still done on older rows; empty if nothing is."""
        with self.database.reading() as c:
            if has_slices(c):
                return "rows of an earlier version are still being brought to this one"
            return "the index for text search is still being made" if has_upkeep(c) else ""

    def compact(self) -> None:
        """Delete hashes that no row has any more, and free empty pages.

        Raises:
            StoreError: another kernel is busy.
        """
        self.database.transact(_delete_unused_hashes)
        self.database.compact()

    def close(self) -> None:
        """Give up the lease and close the file. Runs still at work are then read as interrupted."""
        self._upkeep.stop()
        if not self.database.read_only:
            sql = "DELETE FROM leases WHERE id = ?"
            self.database.transact(lambda c: c.execute(sql, (self._lease.id,)))
        self.database.close()


# Writing the events of a run


def _write_response(cursor: _RunCursor, event: ResponseReceived, c: Connection) -> _RunCursor:
    """Write a turn whose calls begin now, as one row."""
    _write_texts(cursor, event, c)
    upsert(c, "open", [{"doc": event.turn.model_dump()}], run=cursor.row["n"])
    return cursor._replace(open_turn=event.turn)


def _write_result(cursor: _RunCursor, run: ToolRun, c: Connection) -> _RunCursor:
    """Write a result while other calls of its turn are running."""
    turn = cursor.open_turn
    if turn is not None and turn.response is not None:
        calls = [call.id for call in turn.response.message.tool_calls]
        model = f"{cursor.provider}:{turn.request.model}"
        row = tool_run_row(run, turn.index, calls.index(run.tool_call_id), model)
        upsert(c, "tool_runs", [row], run=cursor.row["n"])
    return cursor


def _write_turn(cursor: _RunCursor, event: TurnFinished, c: Connection) -> _RunCursor:
    turn, messages = event.turn, event.messages
    texts = _write_texts(cursor, event, c)
    for table, rows in turn_rows(turn, messages, cursor.provider, cursor.messages).items():
        upsert(c, table, rows, run=cursor.row["n"])
        _note_system_prompts(c, rows if table == "turns" else ())
    return cursor._replace(
        open_turn=None,
        text_hashes=texts,
        turns=cursor.turns + 1,
        messages=cursor.messages + len(messages),
        last_turn_end_us=turn_end_us(turn) if messages else cursor.last_turn_end_us,
    )


def _write_messages(cursor: _RunCursor, event: MessagesAdded, c: Connection) -> _RunCursor:
    rows = [
        message_row(message, position, "directive", cursor.last_turn_end_us)
        for position, message in enumerate(event.messages, cursor.messages)
    ]
    upsert(c, "messages", rows, run=cursor.row["n"])
    return cursor._replace(messages=cursor.messages + len(rows))


def _write_run_end(cursor: _RunCursor, run: RunRecord, c: Connection) -> None:
    # If the disk failed and could not be read, the database in memory is empty: write it all then.
    row_exists = c.execute("SELECT 1 FROM runs WHERE n = ?", (cursor.row["n"],)).fetchone()
    if row_exists and (cursor.turns, cursor.messages) == (len(run.turns), len(run.messages)):
        _write_run_row(c, cursor, run_row(run))
    else:
        _write_record(c, cursor, run)


def _write_texts(
    cursor: _RunCursor, event: ResponseReceived | TurnFinished, c: Connection
) -> frozenset[str]:
    """Write the turn's system prompt and toolset if they are new; return all known hashes."""
    system, toolset = event.turn.request.system_sha, event.turn.request.toolset_sha
    new = {system, toolset} - cursor.text_hashes
    if new:
        rows = text_rows({system: event.system_prompt}, {toolset: event.tools})
        upsert(c, "texts", [row for row in rows if row["sha"] in new])
    return cursor.text_hashes | new


def upsert(c: Connection, table: str, rows: Iterable[Row], **common: Any) -> None:
    """Write rows of a table; rows with the same key are replaced."""
    c.executemany(_UPSERTS[table], _encoded(c, table, [{**row, **common} for row in rows]))


def _encoded(c: Connection, table: str, rows: Iterable[Row]) -> list[list[Any]]:
    """Encode rows of a table; their hashes are in `hashes` then."""
    encoded = [encode_row(table, row) for row in rows]
    if places := _HASH_PLACES[table]:
        hashes = {(cells[i],) for cells in encoded for i in places if cells[i] is not None}
        c.executemany("INSERT OR IGNORE INTO hashes(sha) VALUES(?)", hashes)
    return encoded


def _note_system_prompts(c: Connection, turns: Iterable[Row]) -> None:
    """Note the uses of system prompts in the table of prompts."""
    uses = [
        ("system", row["system_sha"], row["started_at"], row["started_at"])
        for row in turns
        if row["system_sha"]
    ]
    c.executemany(NOTE_PROMPT, uses)


def _delete_unused_hashes(c: Connection) -> None:
    used = " UNION ".join(
        f"SELECT {column} FROM {name} WHERE {column} IS NOT NULL"
        for name, places in _HASH_PLACES.items()
        for column in (TABLE_COLUMNS[name][i] for i in places)
    )
    c.execute(f"DELETE FROM hashes WHERE n NOT IN ({used})")


def _write_run_row(c: Connection, cursor: _RunCursor, row: Row) -> None:
    """Rewrite the row of a run that has ended, without a lease."""
    c.execute("DELETE FROM open WHERE run = ?", (cursor.row["n"],))
    unchanged = {name: cursor.row[name] for name in ("n", "root_id", "conversation_id")}
    whole = {**row, **unchanged, "lease_id": None}
    (cells,) = _encoded(c, "runs", [whole])
    values = [cells[i] for i in _END_PLACES]
    if not c.execute(_UPDATE_RUN, (*values, whole["n"])).rowcount:
        upsert(c, "runs", [whole])


def _write_record(c: Connection, cursor: _RunCursor, run: RunRecord) -> None:
    """Write a whole record; the rows that the database has of it are replaced."""
    rows, n = rows_of_record(run), cursor.row["n"]
    for table in _TABLES_OF_RECORD:
        c.execute(f"DELETE FROM {table} WHERE run = ?", (n,))
        upsert(c, table, rows.get(table, ()), run=n)
    upsert(c, "texts", rows["texts"])
    _note_system_prompts(c, rows["turns"])
    _write_run_row(c, cursor, rows["runs"][0])
