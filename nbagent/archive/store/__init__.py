"""The store of runs: commits every event that counts, and gives records back.

Owns the file `runs.sqlite`, its leases and what is read from it. Frames are made elsewhere.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from pathlib import Path

from nbagent.archive.lease import Lease
from nbagent.archive.store import closing, forgetting
from nbagent.archive.store.database import Database, Locked, rescue, when_locked
from nbagent.archive.store.moments import to_us
from nbagent.archive.store.reading import Reader, RunSummary, leases
from nbagent.archive.store.writing import Writer
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.chat import ChatRequest, Message
from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.events import Event
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun

__all__ = ["RunSummary", "Store"]

_PUT_LEASE = (
    "INSERT OR REPLACE INTO leases(id, pid, pid_started, boot_id, host, heartbeat) "
    "VALUES(?, ?, ?, ?, ?, ?)"
)


class Store:
    """All runs of one folder. Writing is for one thread at a time, reading for any."""

    def __init__(self, database: Database, now: Callable[[], datetime]) -> None:
        self._db = database
        self._now = now
        self._lease = Lease.of_this_process(now())
        self._writer = Writer(database, self._lease.id)
        self.keeps_forgotten = False
        """Texts of deleted runs are still in the write-ahead log, because others are reading it."""
        try:
            self._db.transact(self._take_lease)
        except BaseException:
            database.close()
            raise

    @classmethod
    def open(cls, home: Path, *, now: Callable[[], datetime] = utc_now) -> Store:
        """Open or make the store in a folder; StoreError says what is wrong and what to do."""
        database = Database.open(home)
        store = cls(database, now)
        if database.in_memory:
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
        source = rescue(home)
        if source is None:
            return cls.memory(said, now=now)
        try:
            with contextlib.closing(source):
                return cls(Database.memory(said, source), now)
        except (StoreError, sqlite3.Error):
            return cls.memory(said, now=now)

    @property
    def warning(self) -> str | None:
        """Why runs are not kept, or kept less safely; None when all is well."""
        return self._db.warning

    @property
    def path(self) -> Path | None:
        """The file; None in memory."""
        return self._db.path

    @property
    def on_warning(self) -> Callable[[str], None] | None:
        """Told, in the writing thread, when the disk fails and the store moves into memory."""
        return self._db.on_warning

    @on_warning.setter
    def on_warning(self, told: Callable[[str], None] | None) -> None:
        self._db.on_warning = told

    def write(self, event: Event) -> None:
        """Commit what an event brings; when this returns, it is committed."""
        self._writer.write(event)

    def try_write(self, event: Event) -> bool:
        """The same, but False at once when another process is writing; nothing is done then."""
        try:
            with when_locked("tell"):
                self._writer.write(event)
        except Locked:
            return False
        return True

    def write_anyway(self, event: Event) -> None:
        """Commit what an event brings: in memory, with a warning, when the file is locked."""
        with when_locked("leave"):
            self._writer.write(event)

    def heartbeat(self) -> bool:
        """Say that this process still lives. Due every 10 s while a run is at work.

        Returns:
            False when another process is writing: due again soon.
        """
        self._lease = self._lease.renewed(self._now())
        try:
            with when_locked("tell"):
                self._db.transact(self._put_lease)
            if self.keeps_forgotten:
                self.keeps_forgotten = not self._db.fold(0)
        except Locked:
            return False
        return True

    def close(self) -> None:
        """Give the lease back and close the file. Runs still at work then read as interrupted."""
        self._db.transact(lambda c: c.execute("DELETE FROM leases WHERE id = ?", (self._lease.id,)))
        self._db.close()

    def pause(self) -> None:
        """Close the file until `go_on`, and let nobody in: the process is about to fork."""
        self._db.pause()

    def go_on(self) -> None:
        """The fork is done."""
        self._db.go_on()

    # Reading

    @contextlib.contextmanager
    def reading(self) -> Generator[tuple[sqlite3.Connection, list[str]]]:
        """A connection on one moment of the store, and the ids of the leases that are alive."""
        with self._db.reading() as connection:
            yield connection, self._alive(connection)

    @contextlib.contextmanager
    def _reader(self) -> Generator[Reader]:
        with self.reading() as (connection, alive):
            yield Reader(connection, alive)

    def load(self, run_id: str) -> RunRecord:
        """The whole record of a run."""
        with self._reader() as reader:
            return reader.load(run_id)

    def conversation(self, run_id: str) -> tuple[Message, ...]:
        """All messages up to the end of a run: the shared ones of its ancestors, then its own."""
        with self._reader() as reader:
            return reader.conversation(run_id)

    def request_of(self, run_id: str, turn_id: str) -> ChatRequest:
        """What a turn sent, rebuilt."""
        with self._reader() as reader:
            return reader.request_of(run_id, turn_id)

    def turn_places(self, run_id: str) -> dict[int, str]:
        """The ids of a conversation's turns, by the place of the response in it."""
        with self._reader() as reader:
            return reader.turn_places(run_id)

    def requests_since_words(self, run_id: str) -> int:
        """How many requests were made since the person last said something."""
        with self._reader() as reader:
            return reader.requests_since_words(run_id)

    def find(self, ref: str, *, session: str | None = None) -> str:
        """The id of the run meant by `last`, a name (its newest run), or the start of an id."""
        with self._reader() as reader:
            return reader.find(ref, session)

    def last_run(self, session: str | None = None, notebook: str | None = None) -> str | None:
        """The id of the run that began last, in a session, in a notebook, or of all."""
        with self._reader() as reader:
            return reader.last_run(session, notebook)

    def runs(self, *, session: str | None = None, limit: int = 20) -> list[RunSummary]:
        """The newest runs, newest first, a line each."""
        with self._reader() as reader:
            return reader.summaries(session, limit)

    def open_turn(self, run_id: str) -> EngineTurn | None:
        """The turn whose calls were at work when the kernel ended: those without a result.

        None when the run has no such turn.
        """
        with self._reader() as reader:
            turns = reader.turns(reader.run_row(run_id))
        return next((stored.turn for stored in turns if stored.is_open), None)

    def size_bytes(self) -> int:
        """What the store takes on disk (or in memory)."""
        return self._db.size_bytes()

    def counts(self) -> dict[str, int]:
        """How many runs, turns, tool runs and messages there are."""
        with self._db.reading() as c:
            return {
                table: c.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("runs", "turns", "tool_runs", "messages")
            }

    def check(self) -> list[str]:
        """What SQLite finds wrong with the file; empty when it is intact."""
        try:
            with self._db.reading() as c:
                said = [row[0] for row in c.execute("PRAGMA integrity_check")]
        except StoreError as error:
            return [error.message]
        return [] if said == ["ok"] else said

    # Deleting

    def forget(self, run_id: str, *, children: bool = False) -> tuple[str, ...]:
        """Delete a run and its texts; with `children` also the runs that go on from it.

        Returns the ids of what was deleted, the run's own first.

        Raises:
            UsageError: there is none, it is at work, or others go on from it.
        """

        def work(c: sqlite3.Connection) -> tuple[str, ...]:
            return forgetting.delete(c, run_id, self._alive(c), children=children)

        forgotten = self._db.transact(work)
        self.keeps_forgotten = not self._db.fold()
        return forgotten

    def free_bytes(self) -> int:
        """What compacting would give back, about."""
        return self._db.free_bytes()

    def compact(self) -> None:
        """Write the file anew without what deleting left empty; StoreError when it is in use."""
        self.keeps_forgotten = not self._db.compact()

    # Runs whose kernel is gone

    def claim(self, run_id: str) -> bool:
        """Take over an interrupted run, so that no other kernel can; UsageError if one has it.

        Returns False when the run has ended already.
        """
        return self._db.transact(lambda c: self._claim(c, run_id))

    def close_interrupted(self, run_id: str, results: Mapping[str, ToolRun] | None = None) -> bool:
        """Write down how an interrupted run ended; UsageError if another kernel has it.

        Args:
            run_id: the run.
            results: tool runs of idempotent calls that were run again, by call id.

        Returns:
            False when the run had ended already; nothing was changed then.
        """
        return self._db.transact(lambda c: self._close_interrupted(c, run_id, results or {}))

    def release(self, run_id: str) -> None:
        """Let go of a run that this process will not finish; it reads as interrupted then."""
        self._writer.forget(run_id)
        sql = "UPDATE runs SET lease_id = NULL WHERE run_id = ? AND lease_id = ?"
        self._db.transact(lambda c: c.execute(sql, (run_id, self._lease.id)))

    def _claim(self, c: sqlite3.Connection, run_id: str) -> bool:
        if self._writer.is_at_work(run_id):
            raise UsageError(f"run {run_id} is at work in this kernel; stop it or wait for its end")
        return closing.claim(c, run_id, self._lease.id, self._now())

    def _close_interrupted(
        self, c: sqlite3.Connection, run_id: str, results: Mapping[str, ToolRun]
    ) -> bool:
        claimed = self._claim(c, run_id)
        if claimed:
            closing.close(c, run_id, results)
        return claimed

    # The lease

    def _alive(self, c: sqlite3.Connection) -> list[str]:
        now = self._now()
        return [
            lease.id for lease in leases(c) if lease.id == self._lease.id or lease.is_alive(now)
        ]

    def _put_lease(self, c: sqlite3.Connection) -> None:
        it = self._lease
        beat = to_us(it.heartbeat)
        c.execute(_PUT_LEASE, (it.id, it.pid, it.pid_started, it.boot_id, it.host, beat))

    def _take_lease(self, c: sqlite3.Connection) -> None:
        now = self._now()
        dead = [(lease.id,) for lease in leases(c) if not lease.is_alive(now)]
        # The heartbeat of a dead kernel tells when its runs ended: kept as long as it has some.
        c.executemany(
            "DELETE FROM leases WHERE id = ? AND id NOT IN "
            "(SELECT lease_id FROM runs WHERE phase = 'Running' AND lease_id IS NOT NULL)",
            dead,
        )
        self._put_lease(c)
