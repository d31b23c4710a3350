"""The store of runs: commits every event that counts, closes runs of dead kernels, forgets runs.

Owns the file `runs.sqlite` and the leases in it. What is asked of it stands in `reading`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import (
    Event,
    MessagesAdded,
    ResponseReceived,
    RunFinished,
    RunStarted,
    ToolCallFinished,
    TurnFinished,
)
from nbagent.contracts.records import JUDGE_SUFFIX, EngineTurn, RunRecord, ToolRun
from nbagent.store.columns import STORED
from nbagent.store.database import Connection, Database, Locked
from nbagent.store.leases import Lease, interrupted
from nbagent.store.reader import Reading, load_row, row_of_run, select
from nbagent.store.rows import (
    Row,
    encoded,
    end_of,
    from_us,
    message_row,
    rows_of,
    run_row,
    text_rows,
    to_us,
    tool_run_row,
    turn_rows,
)

_OF_RUNS = ("turns", "tool_runs", "messages", "open")
_WHOLE_LEASE = (
    "WHERE id <> '' AND host <> '' AND typeof(pid) = 'integer' AND heartbeat BETWEEN 0 AND 1 << 52 "
    "AND 'blob' NOT IN (typeof(id), typeof(host), typeof(pid_started), typeof(boot_id))"
)


def _sql(table: str, verb: str) -> str:
    marks = ",".join("?" * len(STORED[table]))
    return f"{verb} INTO {table}({','.join(STORED[table])}) VALUES({marks})"


_PUT = {
    # A text never changes: who has the same one leaves it as it is.
    table: _sql(table, "INSERT OR IGNORE" if table == "texts" else "INSERT OR REPLACE")
    for table in STORED
}
_BEGIN = _sql("runs", "INSERT")
_JUDGES = (
    "WHERE run_id IN (SELECT judge_run_id FROM scores WHERE run = :n) "
    "OR (batch, row_key, variant, attempt, case_sha) = (SELECT batch || :judge, row_key, variant, "
    "attempt, case_sha FROM runs WHERE n = :n) ORDER BY n"
)
"""The runs that judged a run, also those whose verdict was replaced: they quote its answer."""


class _Live(NamedTuple):
    """What is known of a run at work in this process: what of it is committed."""

    row: Row
    messages: int
    """How many: the position of the next one."""
    at: int
    """The end of its last turn."""
    turns: int = 0
    texts: frozenset[str] = frozenset(("",))
    """Hashes whose texts a turn refers to: nobody deletes those."""
    open: EngineTurn | None = None
    """The turn whose calls are at work."""

    @property
    def provider(self) -> str:
        return self.row["model"].partition(":")[0]


class Store(Reading):
    """All runs of one folder. Writing is for one thread at a time, reading for any."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._lease = Lease.of_this_process(utc_now())
        self._live: dict[str, _Live] = {}
        database.transact(self._take_lease)

    @classmethod
    def open(cls, home: Path) -> Store:
        """Open or make the store in a folder; in memory, with a warning, where that fails.

        A file that is another program's, of a newer nbagent or locked is a StoreError.
        """
        return cls(Database.open(home))

    @classmethod
    def memory(cls) -> Store:
        """A store that ends with this process."""
        return cls(Database.memory())

    @property
    def warning(self) -> str | None:
        return self.database.warning

    @property
    def path(self) -> Path | None:
        return self.database.path

    # Writing

    async def commit(self, event: Event, on_wait: Callable[[], None] = lambda: None) -> None:
        """Commit what an event brings; when this returns, it is committed.

        While another process is writing, the loop goes on; `on_wait` is called when that is long.
        """
        # On disk before the next thing happens are a response with calls and the end of a run, with
        # all that was written before them; a power cut alone may take back the rest. Nothing is
        # lost yet when a run begins, so the store need not leave the disk for it.
        soon, safe = {"durable": False, "leave": True}, {"durable": True, "leave": True}
        work: Callable[[Connection], _Live | None]
        match event:
            case RunStarted(run=run):
                how = {"durable": False, "leave": False}
                run_id, work = run.id, partial(self._begin, run=run)
            case ResponseReceived(turn=turn):
                run_id, how = turn.run_id, safe
                work = partial(_respond, self._live[run_id], event)
            # The last result of a turn is committed with the turn, which follows directly.
            case ToolCallFinished(run_id=run_id, pending=pending) if pending:
                how, work = soon, partial(_put_result, self._live[run_id], event.tool_run)
            case TurnFinished(turn=turn):
                run_id, how = turn.run_id, soon
                work = partial(_end_turn, self._live[run_id], event)
            case MessagesAdded(run_id=run_id):
                how, work = soon, partial(_add_messages, self._live[run_id], event)
            case RunFinished(run=run):
                run_id, how, work = run.id, safe, partial(_finish, self._live[run.id], run)
            case _:
                return
        live = await self.database.commit(work, on_wait=on_wait, **how)
        if live is None:
            del self._live[run_id]
        else:
            self._live[run_id] = live

    def _begin(self, c: Connection, run: RunRecord) -> _Live:
        row = {**run_row(run), "lease_id": self._lease.id}
        if run.parent_id is not None:
            sql = "SELECT root_id, conversation_id FROM runs WHERE run_id = ?"
            of_parent = c.execute(sql, (run.parent_id,)).fetchone()
            root, conversation = of_parent or (run.parent_id, run.parent_id)
            row |= {"root_id": root, "conversation_id": row["conversation_id"] or conversation}
        row["n"] = c.execute(_BEGIN, encoded("runs", row)).lastrowid
        at = to_us(run.started_at)
        copied = len(run.copied)
        words = [
            message_row(it, i, "copy" if i < copied else "person", at)
            for i, it in enumerate(run.messages)
        ]
        put(c, "messages", words, run=row["n"])
        return _Live(row, len(run.messages), at)

    def add(self, *runs: RunRecord) -> None:
        """Write whole runs that ended elsewhere, each after the one that it goes on from."""

        def work(c: Connection) -> None:
            for run in runs:
                _put_whole(c, self._begin(c, run), run)

        self.database.transact(work)

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
        self._lease = replace(self._lease, heartbeat=to_us(utc_now()))
        try:
            self.database.transact(self._put_lease, wait_s=0, durable=False)
            if self.database.keeps_deleted:
                self.database.fold(0)
        except Locked:
            return False
        return True

    @property
    def lease_id(self) -> str:
        """Stands beside what this process is at work on."""
        return self._lease.id

    def is_of_another(self, c: Connection, lease_id: str | None) -> bool:
        """Whether another process that lives is at work on what has this lease."""
        holder = None if lease_id in (None, self._lease.id) else _leases(c).get(lease_id or "")
        return holder is not None and holder.is_alive(utc_now())

    def _put_lease(self, c: Connection) -> None:
        put(c, "leases", [asdict(self._lease)])

    def _take_lease(self, c: Connection) -> None:
        # The heartbeat of a dead kernel tells when its runs ended: kept as long as it has some.
        used = "SELECT lease_id FROM runs WHERE phase = 'Running' AND lease_id IS NOT NULL"
        dead = [(it.id,) for it in _leases(c).values() if not it.is_alive(utc_now())]
        c.executemany(f"DELETE FROM leases WHERE id = ? AND id NOT IN ({used})", dead)
        self._put_lease(c)

    def _dead_runs(self, c: Connection) -> list[tuple[Row, Lease | None]]:
        """The runs that say Running while nobody is at work on them, and who was."""
        rest = "WHERE phase = 'Running' AND lease_id IS NOT ?"
        found = select(c, "runs", rest, (self._lease.id,))
        leases = _leases(c) if found else {}
        held = [(row, leases.get(row.get("lease_id", ""))) for row in found]
        return [(row, it) for row, it in held if it is None or not it.is_alive(utc_now())]

    def _close_dead(self, c: Connection) -> None:
        """Write the end of the runs whose kernel is gone."""
        for row, holder in self._dead_runs(c):
            run = interrupted(load_row(c, row), from_us(holder.heartbeat) if holder else None)
            _put_whole(c, _Live(row, 0, 0), run)

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
        """Delete a run, its texts and its judges; with `children` also the runs that go on from it.

        Deleted bytes are overwritten (`secure_delete`), and the write-ahead log is folded in and
        emptied. Returns the ids of what was deleted, the run's own first.

        Raises:
            UsageError: there is none, it is at work, or others go on from it.
        """

        def work(c: Connection) -> tuple[str, ...]:
            self._close_dead(c)
            return _delete(c, run_id, children=children)

        forgotten = self.database.transact(work)
        self.database.fold()
        return forgotten

    def counts(self) -> dict[str, int]:
        """How many runs, turns, tool runs and messages there are."""
        with self.reading() as c:
            return {
                table: c.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("runs", "turns", "tool_runs", "messages")
            }

    def close(self) -> None:
        """Give the lease back and close the file. Runs still at work then read as interrupted."""
        self.database.transact(
            lambda c: c.execute("DELETE FROM leases WHERE id = ?", (self._lease.id,))
        )
        self.database.close()


# What the events of a run write


def _respond(live: _Live, event: ResponseReceived, c: Connection) -> _Live:
    """Write a turn whose calls begin now, all of it in one row."""
    _put_texts(live, event, c)
    put(c, "open", [{"doc": event.turn.model_dump()}], run=live.row["n"])
    return live._replace(open=event.turn)


def _put_result(live: _Live, run: ToolRun, c: Connection) -> _Live:
    """Write a result while other calls of its turn are at work."""
    turn = live.open
    if turn is not None and turn.response is not None:
        calls = [call.id for call in turn.response.message.tool_calls]
        model = f"{live.provider}:{turn.request.model}"
        row = tool_run_row(run, turn.index, calls.index(run.tool_call_id), model)
        put(c, "tool_runs", [row], run=live.row["n"])
    return live


def _end_turn(live: _Live, event: TurnFinished, c: Connection) -> _Live:
    turn, messages = event.turn, event.messages
    texts = _put_texts(live, event, c)
    for table, rows in turn_rows(turn, messages, live.provider, live.messages).items():
        put(c, table, rows, run=live.row["n"])
    return live._replace(
        open=None,
        texts=texts,
        turns=live.turns + 1,
        messages=live.messages + len(messages),
        at=end_of(turn) if messages else live.at,
    )


def _add_messages(live: _Live, event: MessagesAdded, c: Connection) -> _Live:
    rows = [
        message_row(message, place, "directive", live.at)
        for place, message in enumerate(event.messages, live.messages)
    ]
    put(c, "messages", rows, run=live.row["n"])
    return live._replace(messages=live.messages + len(rows))


def _finish(live: _Live, run: RunRecord, c: Connection) -> None:
    # Nothing is there any more where the disk failed and could not even be read.
    there = c.execute("SELECT 1 FROM runs WHERE n = ?", (live.row["n"],)).fetchone()
    if there and (live.turns, live.messages) == (len(run.turns), len(run.messages)):
        _put_run(c, live, run_row(run))
    else:
        _put_whole(c, live, run)


def _put_texts(
    live: _Live, event: ResponseReceived | TurnFinished, c: Connection
) -> frozenset[str]:
    """Write what stands around the turn's messages, where it is new; gives all that is there."""
    system, toolset = event.turn.request.system_sha, event.turn.request.toolset_sha
    new = {system, toolset} - live.texts
    if new:
        rows = text_rows({system: event.system_prompt}, {toolset: event.tools})
        put(c, "texts", [row for row in rows if row["sha"] in new])
    return live.texts | new


def put(c: Connection, table: str, rows: Iterable[Row], **more: Any) -> None:
    """Write rows of a table; those of the same key are replaced."""
    c.executemany(_PUT[table], [encoded(table, {**row, **more}) for row in rows])


def _put_run(c: Connection, live: _Live, row: Row) -> None:
    """Write the row of a run anew; it has ended, and nobody holds it any more."""
    c.execute("DELETE FROM open WHERE run = ?", (live.row["n"],))
    same = {name: live.row[name] for name in ("n", "root_id", "conversation_id")}
    put(c, "runs", [row], **same, lease_id=None)


def _put_whole(c: Connection, live: _Live, run: RunRecord) -> None:
    """Write all of a record that the database has only a part of."""
    rows, n = rows_of(run), live.row["n"]
    for table in _OF_RUNS:
        c.execute(f"DELETE FROM {table} WHERE run = ?", (n,))
        put(c, table, rows.get(table, ()), run=n)
    put(c, "texts", rows["texts"])
    _put_run(c, live, rows["runs"][0])


def _leases(c: Connection) -> dict[str, Lease]:
    """All leases that were taken and not given back, by their id; a damaged one is nobody's."""
    return {row["id"]: Lease(**row) for row in select(c, "leases", _WHOLE_LEASE)}


def _delete(c: Connection, run_id: str, *, children: bool) -> tuple[str, ...]:
    rows = [row_of_run(c, run_id)]
    for row in rows:  # grows: parents first
        rows += select(c, "runs", "WHERE parent_id = ? ORDER BY n", (row["run_id"],))
        rows += select(c, "runs", _JUDGES, {"n": row["n"], "judge": JUDGE_SUFFIX})
    ids = [row["run_id"] for row in rows]
    going_on = [row["run_id"] for row in rows[1:] if row.get("parent_id")]
    if going_on and not children:
        raise UsageError(
            f"other runs go on from run {ids[0][:8]} and would lose the beginning: "
            f"{', '.join(it[:8] for it in going_on)}; to forget these too write "
            f"nbagent.forget({ids[0][:8]!r}, children=True), or %agent forget {ids[0][:8]} "
            "--children"
        )
    for row in rows:
        if row["phase"] == "Running":
            raise UsageError(
                f"run {row['run_id'][:8]} is at work; stop it or wait for its end, then forget it"
            )
    for row in rows:
        for table in (*_OF_RUNS, "scores"):
            c.execute(f"DELETE FROM {table} WHERE run = ?", (row["n"],))
        c.execute("DELETE FROM runs WHERE n = ?", (row["n"],))
    c.execute(
        "DELETE FROM texts WHERE sha NOT IN (SELECT system_sha FROM turns "
        "WHERE system_sha IS NOT NULL UNION SELECT toolset_sha FROM turns "
        "WHERE toolset_sha IS NOT NULL)"
    )
    return tuple(ids)
