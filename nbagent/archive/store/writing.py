"""Events into rows: what is committed for each event, and what is remembered between them.

Every handler commits at most one transaction, and remembers only what is committed. Deltas cost
one look-up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbagent.archive.store.database import Database
from nbagent.archive.store.message_rows import (
    MESSAGE_COLUMNS,
    TOOL_RUN_COLUMNS,
    message_row,
    tool_run_row,
)
from nbagent.archive.store.rows import (
    RUN_COLUMNS,
    TURN_COLUMNS,
    Cells,
    run_row,
    text_cell,
    turn_row,
)
from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import Message, ToolSpec
from nbagent.contracts.errors import StoreError
from nbagent.contracts.events import (
    Event,
    MessagesAdded,
    ResponseReceived,
    RunFinished,
    RunStarted,
    ToolCallFinished,
    TurnFinished,
    TurnStarted,
)
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun, TurnRequest


def _insert(table: str, columns: Sequence[str]) -> str:
    marks = ",".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table}({','.join(columns)}) VALUES({marks})"


_INSERT_RUN = _insert("runs", RUN_COLUMNS).replace("INSERT OR REPLACE", "INSERT")
UPDATE_RUN = f"UPDATE runs SET {','.join(f'{c}=?' for c in RUN_COLUMNS)} WHERE n=?"
_INSERT_RUN_AS = _insert("runs", (*RUN_COLUMNS, "n"))
_COUNTS = (
    "SELECT (SELECT count(*) FROM turns WHERE run=? AND NOT open), "
    "(SELECT count(*) FROM messages WHERE run=? AND position>=0)"
)
INSERT_TURN = _insert("turns", TURN_COLUMNS)
INSERT_TOOL_RUN = _insert("tool_runs", TOOL_RUN_COLUMNS)
INSERT_MESSAGE = _insert("messages", MESSAGE_COLUMNS)
_INSERT_BLOB = (
    "INSERT INTO blobs(sha, body) VALUES(?, ?) "
    "ON CONFLICT(sha) DO UPDATE SET body = excluded.body WHERE body IS NULL"
)
_FIND_BLOB = "SELECT n, body IS NOT NULL FROM blobs WHERE sha=?"


@dataclass(slots=True)
class _Open:
    """A turn whose response is committed and whose calls may be at work."""

    turn: EngineTurn
    message: Message
    at: int
    calls: dict[str, int]
    """Position of each call's tool run."""
    kept: dict[str, ToolRun] = field(default_factory=dict[str, ToolRun])
    """Tool runs whose results are committed."""


@dataclass(slots=True)
class _Live:
    """What is known of a run at work in this process."""

    n: int
    record: RunRecord
    messages: int
    """How many are committed: the position of the next one."""
    open: _Open | None = None
    system_prompt: str = ""
    tools: Sequence[ToolSpec] = ()
    """With `system_prompt`: what the hashes of the running request stand for."""

    def text_of(self, sha: str, request: TurnRequest) -> str | None:
        """The text that a hash of the running request stands for, where it is known."""
        if sha == request.system_sha and self.system_prompt:
            return self.system_prompt
        if sha == request.toolset_sha and self.tools:
            return toolset_json(self.tools)
        return None


class Writer:
    """Commits events. Called by one thread for each run."""

    def __init__(self, database: Database, lease_id: str) -> None:
        self._db = database
        self._lease_id = lease_id
        self._live: dict[str, _Live] = {}
        database.on_emptied = self._begin_again
        self._handlers: dict[type, Callable[[Any], None]] = {
            RunStarted: self._run_started,
            TurnStarted: self._turn_started,
            ResponseReceived: self._response_received,
            ToolCallFinished: self._tool_call_finished,
            TurnFinished: self._turn_finished,
            MessagesAdded: self._messages_added,
            RunFinished: self._run_finished,
        }

    def write(self, event: Event) -> None:
        """Commit what an event brings; when this returns, it is committed."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def is_at_work(self, run_id: str) -> bool:
        """Whether a run was begun by this writer and has not finished."""
        return run_id in self._live

    def forget(self, run_id: str) -> None:
        """Drop a run that will send no further event."""
        self._live.pop(run_id, None)

    def _run_started(self, event: RunStarted) -> None:
        record = event.run
        n = self._db.transact(lambda c: self._begin_run(c, record, record.messages))
        self._live[record.id] = _Live(n, record, len(record.messages))

    def _begin_run(
        self, c: sqlite3.Connection, record: RunRecord, messages: Sequence[Message]
    ) -> int:
        words = any(message.role == "user" for message in record.messages)
        cells = run_row(record, has_words=words, lease_id=self._lease_id)
        n = c.execute(_INSERT_RUN, cells).lastrowid
        assert n is not None
        rows = [message_row(n, i, None, message, {}) for i, message in enumerate(messages)]
        c.executemany(INSERT_MESSAGE, rows)
        return n

    def _get(self, run_id: str) -> _Live:
        live = self._live.get(run_id)
        if live is None:
            raise StoreError(f"run {run_id!r} was not begun here; write its RunStarted first")
        return live

    def _turn_started(self, event: TurnStarted) -> None:
        live = self._live.get(event.run_id)
        if live is not None:
            live.system_prompt, live.tools = event.system_prompt, event.tools

    def _blob(
        self, c: sqlite3.Connection, sha: str, live: _Live, request: TurnRequest
    ) -> int | None:
        """The row of a hash; it is made, with its text where that is known.

        Looked up each time: another kernel may have forgotten the last run that used it.
        """
        if not sha:
            return None
        found = c.execute(_FIND_BLOB, (sha,)).fetchone()
        if found is not None and found[1]:
            return found[0]
        text = live.text_of(sha, request)
        c.execute(_INSERT_BLOB, (sha, None if text is None else text_cell(text)))
        return c.execute(_FIND_BLOB, (sha,)).fetchone()[0]

    def _response_received(self, event: ResponseReceived) -> None:
        turn = event.turn
        live = self._get(turn.run_id)
        at = live.messages
        runs = with_every_call(turn, event.message)
        opened = turn.model_copy(update={"tool_runs": runs})
        started = {run.tool_call_id for run in turn.tool_runs}

        def work(c: sqlite3.Connection) -> None:
            self._put_turn(c, live, opened, at=at, is_open=True)
            c.execute(INSERT_MESSAGE, message_row(live.n, at, turn.index, event.message, {}))
            rows = [
                tool_run_row(live.n, turn.index, i, run, run.tool_call_id in started)
                for i, run in enumerate(runs)
            ]
            c.executemany(INSERT_TOOL_RUN, rows)

        self._db.transact(work)
        calls = {run.tool_call_id: i for i, run in enumerate(runs)}
        kept = {run.tool_call_id: run for run in runs if run.result is not None}
        live.open = _Open(opened, event.message, at, calls, kept)
        live.messages = at + 1

    def _put_turn(
        self, c: sqlite3.Connection, live: _Live, turn: EngineTurn, *, at: int | None, is_open: bool
    ) -> None:
        """Insert the turn's row, and the texts of its hashes."""
        request = turn.request
        system = self._blob(c, request.system_sha, live, request)
        toolset = self._blob(c, request.toolset_sha, live, request)
        cells = turn_row(
            live.n,
            turn,
            run_model=live.record.model,
            is_open=is_open,
            system=system,
            toolset=toolset,
            message_at=at,
        )
        c.execute(INSERT_TURN, cells)

    def _tool_call_finished(self, event: ToolCallFinished) -> None:
        # The last result of a turn is committed with the turn, which follows directly.
        live = self._live.get(event.run_id)
        if event.pending == 0 or live is None or live.open is None:
            return
        opened, run = live.open, event.tool_run
        position = opened.calls.get(run.tool_call_id)
        if position is None:
            return
        row = tool_run_row(live.n, opened.turn.index, position, run, started=True)
        self._db.transact(lambda c: c.execute(INSERT_TOOL_RUN, row))
        opened.kept[run.tool_call_id] = run

    def _turn_finished(self, event: TurnFinished) -> None:
        turn = event.turn
        live = self._get(turn.run_id)
        live.system_prompt, live.tools = event.system_prompt, event.tools
        base = live.messages
        if live.open is not None and live.open.turn.index == turn.index:
            base = live.open.at
        self._db.transact(lambda c: self._finish_turn(c, live, turn, event.messages, base))
        live.messages = base + len(event.messages)
        live.open = None

    def _finish_turn(
        self,
        c: sqlite3.Connection,
        live: _Live,
        turn: EngineTurn,
        messages: Sequence[Message],
        base: int,
    ) -> None:
        opened = live.open if live.open is not None and live.open.at == base else None
        n, idx = live.n, turn.index
        rows: list[Cells] = []
        at = self._place_of_response(turn, messages, base)
        if at is not None and at < 0 and turn.response is not None:
            rows.append(message_row(n, at, idx, turn.response.message, {}))
        results = {run.tool_call_id: run.result for run in turn.tool_runs}
        runs: list[Cells] = []
        for i, run in enumerate(turn.tool_runs):
            if opened is None or opened.kept.get(run.tool_call_id) is not run:
                runs.append(tool_run_row(n, idx, i, run, started=run.started_at is not None))
        for i, message in enumerate(messages):
            if opened is None or i or message != opened.message:
                rows.append(message_row(n, base + i, idx, message, results))
        self._put_turn(c, live, turn, at=at, is_open=False)
        if opened is not None:
            if not messages:
                c.execute("DELETE FROM messages WHERE run=? AND position>=?", (n, base))
            if len(turn.tool_runs) < len(opened.calls):
                rest = (n, idx, len(turn.tool_runs))
                c.execute("DELETE FROM tool_runs WHERE run=? AND idx=? AND position>=?", rest)
        c.executemany(INSERT_TOOL_RUN, runs)
        c.executemany(INSERT_MESSAGE, rows)

    @staticmethod
    def _place_of_response(turn: EngineTurn, messages: Sequence[Message], base: int) -> int | None:
        """Where the response's message is kept: below 0 when it is not in the conversation."""
        if turn.response is None:
            return None
        if messages and messages[0] == turn.response.message:
            return base
        return -turn.index

    def _messages_added(self, event: MessagesAdded) -> None:
        live = self._get(event.run_id)
        base = live.messages
        rows = [message_row(live.n, base + i, None, m, {}) for i, m in enumerate(event.messages)]
        self._db.transact(lambda c: c.executemany(INSERT_MESSAGE, rows))
        live.messages = base + len(rows)

    def _run_finished(self, event: RunFinished) -> None:
        record = event.run
        live = self._get(record.id)
        self._db.transact(lambda c: self._finish_run(c, live, record))
        del self._live[record.id]

    def _finish_run(self, c: sqlite3.Connection, live: _Live, record: RunRecord) -> None:
        texts = {sha: text for sha, text in record.system_prompts.items() if sha}
        texts |= {sha: toolset_json(tools) for sha, tools in record.toolsets.items() if sha}
        c.executemany(_INSERT_BLOB, [(sha, text_cell(text)) for sha, text in texts.items()])
        words = any(message.role == "user" for message in live.record.messages)
        cells = run_row(record, has_words=words, lease_id=None)
        c.execute(UPDATE_RUN, (*cells, live.n))
        stored = c.execute(_COUNTS, (live.n, live.n)).fetchone()
        if stored != (len(record.turns), len(record.messages)):
            self._put_whole(c, live.n, record)

    def _put_whole(self, c: sqlite3.Connection, n: int, record: RunRecord) -> None:
        """Write all of a record that the database has only a part of."""
        for table in ("turns", "tool_runs", "messages"):
            c.execute(f"DELETE FROM {table} WHERE run=?", (n,))
        live = _Live(n, record, 0)
        owners = _owners(record)
        for turn in record.turns:
            own = [i for i, idx in owners.items() if idx == turn.index]
            base = own[0] if own else len(record.messages)
            self._finish_turn(c, live, turn, [record.messages[i] for i in own], base)
        rest = [i for i in range(len(record.messages)) if i not in owners]
        rows = [message_row(n, i, None, record.messages[i], {}) for i in rest]
        c.executemany(INSERT_MESSAGE, rows)

    def _begin_again(self, c: sqlite3.Connection) -> None:
        """Put the runs at work into a database that lost everything."""
        for live in self._live.values():
            words = any(message.role == "user" for message in live.record.messages)
            cells = run_row(live.record, has_words=words, lease_id=self._lease_id)
            c.execute(_INSERT_RUN_AS, (*cells, live.n))
            rows = [message_row(live.n, i, None, m, {}) for i, m in enumerate(live.record.messages)]
            c.executemany(INSERT_MESSAGE, rows)


def _owners(record: RunRecord) -> dict[int, int]:
    """The index of the turn that added a message, by the message's place in the record.

    A turn adds what follows the messages that it was sent: its answer, then the tools' words.
    """
    owners: dict[int, int] = {}
    for turn in record.turns:
        place = turn.request.n_messages - record.shared_messages
        if turn.response is None or record.messages[place : place + 1] != (turn.response.message,):
            continue
        owners[place] = turn.index
        for offset in range(len(turn.response.message.tool_calls)):
            owners[place + 1 + offset] = turn.index
    return {place: idx for place, idx in owners.items() if place < len(record.messages)}


def toolset_json(tools: Sequence[ToolSpec]) -> str:
    """A toolset as it is kept."""
    return dump_json([tool.model_dump(mode="json") for tool in tools]).decode()


def with_every_call(turn: EngineTurn, message: Message) -> tuple[ToolRun, ...]:
    """A tool run for each call in order: the turn's own, else one that has not started."""
    own = {run.tool_call_id: run for run in turn.tool_runs}
    return tuple(
        own.get(call.id) or ToolRun(tool_call_id=call.id, tool_name=call.name, args=call.arguments)
        for call in message.tool_calls
    )
