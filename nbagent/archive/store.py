"""The store of runs: commits every event that counts, closes runs of dead kernels, forgets runs.

Owns the file `runs.sqlite` and the leases in it. What is asked of it stands in `reading`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from nbagent.archive.codec import encoded
from nbagent.archive.database import Connection, Database, Locked, OnLock, Work
from nbagent.archive.interrupted import dead_runs, ended_runs, leases
from nbagent.archive.lease import Lease
from nbagent.archive.reading import Reading, RunSummary, run_row, select
from nbagent.archive.rows import (
    Row,
    end_of,
    message_row,
    rows_of,
    text_rows,
    to_us,
    tool_run_row,
    turn_row,
    turn_rows,
)
from nbagent.archive.rows import run_row as row_of
from nbagent.archive.schema import TABLES
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.chat import Message
from nbagent.contracts.errors import StoreError, UsageError
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

__all__ = ["RunSummary", "Store"]

T = TypeVar("T")
_SHOWN = 5
_OF_RUNS = ("turns", "tool_runs", "messages")


def _sql(table: str) -> str:
    marks = ",".join("?" * len(TABLES[table]))
    return f"INTO {table}({','.join(TABLES[table])}) VALUES({marks})"


_PUT = {table: f"INSERT OR REPLACE {_sql(table)}" for table in TABLES}
_BEGIN = f"INSERT {_sql('runs')}"
_PUT_TEXT = f"INSERT OR IGNORE {_sql('texts')}"


@dataclass(slots=True)
class _Live:
    """What is known of a run at work in this process."""

    record: RunRecord
    row: Row
    messages: int
    """How many are committed: the position of the next one."""
    at: int
    """The end of its last turn."""
    turns: int = 0
    kept: set[str] = field(default_factory=set[str])
    """Hashes whose texts a committed turn refers to: nobody deletes those."""
    open: EngineTurn | None = None
    """The turn whose calls are at work."""
    lost: bool = False
    """What was committed is gone; its end writes all of it."""

    @property
    def n(self) -> int:
        return self.row["n"]

    @property
    def provider(self) -> str:
        return self.record.model.partition(":")[0]


class Store(Reading):
    """All runs of one folder. Writing is for one thread at a time, reading for any."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self.database = database
        self._now = now
        self._lease = Lease.of_this_process(now())
        self._live: dict[str, _Live] = {}
        self.keeps_forgotten = False
        """Texts of deleted runs are still in the write-ahead log, because others are reading it."""
        database.on_emptied = self._begin_again
        try:
            database.transact(self._take_lease)
        except BaseException:
            database.close()
            raise

    @classmethod
    def open(cls, home: Path, *, now: Callable[[], datetime] = utc_now) -> Store:
        """Open or make the store in a folder; StoreError says what is wrong and what to do."""
        database = Database.open(home)
        store = cls(database, now)
        if database.path is None:
            database.close()
            raise StoreError(
                database.warning or "the store cannot be written", details={"reason": "unusable"}
            )
        return store

    @classmethod
    def memory(cls, reason: str | None = None, *, now: Callable[[], datetime] = utc_now) -> Store:
        """A store that ends with this process; `reason` becomes its warning."""
        return cls(Database.memory(reason), now)

    @classmethod
    def open_or_memory(cls, home: Path, *, now: Callable[[], datetime] = utc_now) -> Store:
        """Open the store, or go on in memory with what can still be read, and a loud warning.

        A file of a newer nbagent stays an error, and one that another process is writing.
        """
        try:
            return cls.open(home, now=now)
        except StoreError as error:
            if error.details.get("reason") in ("newer", "locked"):
                raise
            said = error.message
        if not said.startswith("RUNS ARE"):
            said = (
                f"RUNS ARE NOT KEPT ON DISK: {said} "
                "Until then this kernel works in memory, and its runs are lost when it ends."
            )
        return cls(Database.rescued(home, said), now)

    @property
    def warning(self) -> str | None:
        """Why runs are not kept, or kept less safely; None when all is well."""
        return self.database.warning

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return self.database.path

    # Writing

    def write(self, event: Event) -> None:
        """Commit what an event brings; when this returns, it is committed."""
        step = self._step(event)
        if step is not None:
            work, on_lock, durable = step
            self._done(event, self.database.transact(work, on_lock=on_lock, durable=durable))

    async def commit(self, event: Event, on_wait: Callable[[], None] = lambda: None) -> None:
        """The same; while another process is writing, the loop goes on.

        Args:
            event: what happened.
            on_wait: called once when that takes long.
        """
        step = self._step(event)
        if step is not None:
            work, on_lock, durable = step
            done = self.database.commit(work, on_lock=on_lock, durable=durable, on_wait=on_wait)
            self._done(event, await done)

    def _step(self, event: Event) -> tuple[Work[Any], OnLock, bool] | None:
        """What is done for an event, in one transaction; None for nothing.

        On disk before the next thing happens are a response with calls and the end of a run, with
        all that was written before them; a power cut alone may take back the rest.
        """
        match event:
            case RunStarted(run=run):
                # Nothing is lost yet, so the store need not leave the disk.
                return (lambda c: self._begin(c, run)), "wait", False
            case ResponseReceived(turn=turn):
                live = self._get(turn.run_id)
                return (lambda c: self._put_open(c, live, event)), "leave", True
            case ToolCallFinished(pending=pending, tool_run=tool_run) if pending:
                # The last result of a turn is committed with the turn, which follows directly.
                live = self._get(event.run_id)
                return (lambda c: self._put_result(c, live, tool_run)), "leave", False
            case TurnFinished(turn=turn):
                live = self._get(turn.run_id)
                return (lambda c: self._put_turn(c, live, event)), "leave", False
            case MessagesAdded(run_id=run_id, messages=messages):
                live = self._get(run_id)
                return (lambda c: self._put_messages(c, live, messages)), "leave", False
            case RunFinished(run=run):
                live = self._get(run.id)
                return (lambda c: self._finish(c, live, run)), "leave", True
            case _:
                pass
        return None

    def _done(self, event: Event, result: Any) -> None:
        """Remember what is committed."""
        match event:
            case RunStarted(run=run):
                self._live[run.id] = _Live(run, result, len(run.messages), to_us(run.started_at))
            case ResponseReceived(turn=turn):
                self._get(turn.run_id).open = turn
            case TurnFinished(turn=turn, messages=messages):
                live = self._get(turn.run_id)
                live.open, live.turns = None, live.turns + 1
                live.messages += len(messages)
                live.at = end_of(turn) if messages else live.at
                live.kept |= {turn.request.system_sha, turn.request.toolset_sha}
            case MessagesAdded(run_id=run_id, messages=messages):
                self._get(run_id).messages += len(messages)
            case RunFinished(run=run):
                del self._live[run.id]
            case _:
                pass

    def _get(self, run_id: str) -> _Live:
        live = self._live.get(run_id)
        if live is None:
            raise StoreError(f"run {run_id!r} was not begun here; write its RunStarted first")
        return live

    def _begin(self, c: Connection, run: RunRecord) -> Row:
        row = {**row_of(run), "lease_id": self._lease.id}
        if run.parent_id is not None:
            sql = "SELECT root_id, conversation_id FROM runs WHERE run_id = ?"
            of_parent = c.execute(sql, (run.parent_id,)).fetchone()
            root, conversation = of_parent or (run.parent_id, run.parent_id)
            row |= {"root_id": root, "conversation_id": row["conversation_id"] or conversation}
        row["n"] = c.execute(_BEGIN, encoded("runs", row)).lastrowid
        at = to_us(run.started_at)
        words = [message_row(it, i, "person", at) for i, it in enumerate(run.messages)]
        _put(c, "messages", words, run=row["n"])
        return row

    def _put_open(self, c: Connection, live: _Live, event: ResponseReceived) -> None:
        """Write a turn whose calls begin now, with its message and its tool runs, in one row."""
        turn, message = event.turn, event.message
        row = turn_row(turn, live.provider, live.messages)
        planned = {run.tool_call_id: run for run in turn.tool_runs}
        runs = [
            planned.get(call.id)
            or ToolRun(tool_call_id=call.id, tool_name=call.name, args=call.arguments)
            for call in message.tool_calls
        ]
        row["open"] = True
        row["doc"] = {
            **(row["doc"] or {}),
            "message": message_row(message, live.messages, "model", live.at),
            "tool_runs": [
                tool_run_row(run, turn.index, i, row["model"]) for i, run in enumerate(runs)
            ],
        }
        self._put_texts(c, live, event)
        _put(c, "turns", [row], run=live.n)

    def _put_texts(
        self, c: Connection, live: _Live, event: ResponseReceived | TurnFinished
    ) -> None:
        system, toolset = event.turn.request.system_sha, event.turn.request.toolset_sha
        new = {system, toolset} - live.kept - {""}
        rows = text_rows({system: event.system_prompt}, {toolset: event.tools}) if new else ()
        c.executemany(_PUT_TEXT, [encoded("texts", row) for row in rows if row["sha"] in new])

    def _put_result(self, c: Connection, live: _Live, run: ToolRun) -> None:
        turn = live.open
        if turn is None or turn.response is None:
            return
        calls = [call.id for call in turn.response.message.tool_calls]
        model = f"{live.provider}:{turn.request.model}"
        row = tool_run_row(run, turn.index, calls.index(run.tool_call_id), model)
        _put(c, "tool_runs", [row], run=live.n)

    def _put_turn(self, c: Connection, live: _Live, event: TurnFinished) -> None:
        self._put_texts(c, live, event)
        rows_of_turn = turn_rows(event.turn, event.messages, live.provider, live.messages)
        for table, rows in rows_of_turn.items():
            _put(c, table, rows, run=live.n)

    def _put_messages(self, c: Connection, live: _Live, messages: Sequence[Message]) -> None:
        rows = [
            message_row(message, place, "directive", live.at)
            for place, message in enumerate(messages, live.messages)
        ]
        _put(c, "messages", rows, run=live.n)

    def _finish(self, c: Connection, live: _Live, run: RunRecord) -> None:
        if live.lost or (live.turns, live.messages) != (len(run.turns), len(run.messages)):
            _put_whole(c, live.row, run)
        else:
            _put_run(c, live.row, row_of(run))

    def add(self, run: RunRecord) -> None:
        """Write a whole run that ended elsewhere, after the one that it goes on from."""
        self.database.transact(lambda c: _put_whole(c, self._begin(c, run), run))

    def _begin_again(self, c: Connection) -> None:
        """Put the runs at work into a database that lost everything."""
        for live in self._live.values():
            live.lost = True
            _put(c, "runs", [live.row])

    def release(self, run_id: str) -> None:
        """Let go of a run that this process will not finish; it reads as interrupted then."""
        self._live.pop(run_id, None)
        sql = "UPDATE runs SET lease_id = NULL WHERE run_id = ? AND lease_id = ?"
        self.database.transact(lambda c: c.execute(sql, (run_id, self._lease.id)))

    # Leases, and runs whose kernel is gone

    def heartbeat(self) -> bool:
        """Say that this process still lives. Due every 10 s while a run is at work.

        Returns:
            False when another process is writing: due again soon.
        """
        self._lease = self._lease.renewed(self._now())
        try:
            self.database.transact(self._put_lease, on_lock="raise", durable=False)
            if self.keeps_forgotten:
                self.keeps_forgotten = not self.database.fold(0)
        except Locked:
            return False
        return True

    def _put_lease(self, c: Connection) -> None:
        lease = asdict(self._lease)
        _put(c, "leases", [{**lease, "heartbeat": to_us(self._lease.heartbeat)}])

    def _take_lease(self, c: Connection) -> None:
        # The heartbeat of a dead kernel tells when its runs ended: kept as long as it has some.
        used = "SELECT lease_id FROM runs WHERE phase = 'Running' AND lease_id IS NOT NULL"
        dead = [(it.id,) for it in leases(c).values() if not it.is_alive(self._now())]
        c.executemany(f"DELETE FROM leases WHERE id = ? AND id NOT IN ({used})", dead)
        self._put_lease(c)

    def _dead_runs(self, c: Connection) -> list[Row]:
        return dead_runs(c, self._lease.id, self._now())

    def _close_dead(self, c: Connection) -> None:
        """Write the end of the runs whose kernel is gone."""
        for row, run in ended_runs(c, self._dead_runs(c)):
            rows = rows_of(run)
            _put_run(c, row, rows["runs"][0])
            for table in _OF_RUNS if run.turns else ():
                last = [it for it in rows[table] if it.get("turn") == run.turns[-1].index]
                _put(c, table, last, run=row["n"])

    @contextlib.contextmanager
    def reading(self) -> Generator[Connection]:
        """A connection on one moment of the store, where no run is open whose kernel is gone."""
        with self.database.reading() as connection:
            if not self._dead_runs(connection):
                yield connection
                return
        self.database.transact(self._close_dead)
        with self.database.reading() as connection:
            yield connection

    # Deleting

    def forget(self, run_id: str, *, children: bool = False) -> tuple[str, ...]:
        """Delete a run and its texts; with `children` also the runs that go on from it.

        Deleted bytes are overwritten (`secure_delete`), and the write-ahead log is folded in and
        emptied. Returns the ids of what was deleted, the run's own first.

        Raises:
            UsageError: there is none, it is at work, or others go on from it.
        """

        def work(c: Connection) -> tuple[str, ...]:
            self._close_dead(c)
            return _delete(c, run_id, children=children)

        forgotten = self.database.transact(work)
        self.keeps_forgotten = not self.database.fold()
        return forgotten

    # The file

    def compact(self) -> None:
        """Write the file anew without what deleting left empty; StoreError when it is in use."""
        self.keeps_forgotten = not self.database.compact()

    def counts(self) -> dict[str, int]:
        """How many runs, turns, tool runs and messages there are."""
        with self.reading() as c:
            return {
                table: c.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("runs", *_OF_RUNS)
            }

    def check(self) -> list[str]:
        """What SQLite finds wrong with the file; empty when it is intact."""
        try:
            with self.database.reading() as c:
                said = [row[0] for row in c.execute("PRAGMA integrity_check")]
        except StoreError as error:
            return [error.message]
        return [] if said == ["ok"] else said

    def close(self) -> None:
        """Give the lease back and close the file. Runs still at work then read as interrupted."""
        self.database.transact(
            lambda c: c.execute("DELETE FROM leases WHERE id = ?", (self._lease.id,))
        )
        self.database.close()


def _put(c: Connection, table: str, rows: Iterable[Row], **more: Any) -> None:
    c.executemany(_PUT[table], [encoded(table, {**row, **more}) for row in rows])


def _put_run(c: Connection, stored: Row, row: Row) -> None:
    """Write the row of a run anew; it has ended, and nobody holds it any more."""
    same = {name: stored[name] for name in ("n", "root_id", "conversation_id")}
    _put(c, "runs", [row], **same, lease_id=None)


def _put_whole(c: Connection, stored: Row, run: RunRecord) -> None:
    """Write all of a record that the database has only a part of."""
    rows = rows_of(run)
    for table in _OF_RUNS:
        c.execute(f"DELETE FROM {table} WHERE run = ?", (stored["n"],))
        _put(c, table, rows[table], run=stored["n"])
    c.executemany(_PUT_TEXT, [encoded("texts", row) for row in rows["texts"]])
    _put_run(c, stored, rows["runs"][0])


def _delete(c: Connection, run_id: str, *, children: bool) -> tuple[str, ...]:
    rows = [run_row(c, run_id)]
    for row in rows:  # grows: parents first
        rows += select(c, "runs", "WHERE parent_id = ? ORDER BY n", (row["run_id"],))
    ids = [row["run_id"] for row in rows]
    if len(ids) > 1 and not children:
        names = ", ".join(one[:8] for one in ids[1 : _SHOWN + 1])
        more = ", …" if len(ids) > _SHOWN + 1 else ""
        raise UsageError(
            f"{len(ids) - 1} run{'s go' if len(ids) > 2 else ' goes'} on from run {run_id[:8]} "
            f"and would lose the beginning: {names}{more}; to forget these too write "
            f"nbagent.forget({run_id[:8]!r}, children=True), or %agent forget {run_id[:8]} "
            "--children"
        )
    for row in rows:
        if row["phase"] == "Running":
            raise UsageError(
                f"run {row['run_id'][:8]} is at work; stop it or wait for its end, then forget it"
            )
    for row in rows:
        for table in _OF_RUNS:
            c.execute(f"DELETE FROM {table} WHERE run = ?", (row["n"],))
        c.execute("DELETE FROM runs WHERE n = ?", (row["n"],))
    c.execute(
        "DELETE FROM texts WHERE sha NOT IN (SELECT system_sha FROM turns "
        "WHERE system_sha IS NOT NULL UNION SELECT toolset_sha FROM turns "
        "WHERE toolset_sha IS NOT NULL)"
    )
    return tuple(ids)
