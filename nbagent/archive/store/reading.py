"""Rows into records: whole runs, conversations, requests, and the search for a run.

Reads through a connection that it is given. A run whose kernel is gone reads as interrupted.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nbagent.archive.interrupted import finish_run, finish_turn
from nbagent.archive.lease import Lease
from nbagent.archive.store.message_rows import message_of, tool_run_of
from nbagent.archive.store.rows import Row, cell_text, from_us, is_text, run_of, turn_of
from nbagent.contracts.canonical import load_json
from nbagent.contracts.chat import ChatRequest, Message, Part, ToolSpec
from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun

_TURNS = (
    "SELECT t.*, s.sha AS system_sha, k.sha AS toolset_sha FROM turns t "
    "LEFT JOIN blobs s ON s.n = t.system LEFT JOIN blobs k ON k.n = t.toolset "
    "WHERE t.run = ? ORDER BY t.idx"
)
_MESSAGES = (
    "SELECT m.position, m.idx, m.role, "
    "coalesce(iif(m.attached, r.result, m.text), r.result, '') AS text, m.reasoning, "
    "m.tool_call_id, m.tool_name, m.body, m.attached FROM messages m LEFT JOIN tool_runs r "
    "ON (m.text IS NULL OR m.attached) "
    "AND r.run = m.run AND r.idx = m.idx AND r.tool_call_id = m.tool_call_id "
    "WHERE m.run = ? ORDER BY m.position"
)
_ALL = 2**62


def rows(
    c: sqlite3.Connection, sql: str, parameters: tuple[Any, ...] | dict[str, Any] = ()
) -> list[Row]:
    """All rows as dictionaries."""
    cursor = c.execute(sql, parameters)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, cells, strict=True)) for cells in cursor]


def leases(c: sqlite3.Connection) -> list[Lease]:
    """All leases that were taken and not given back."""
    found = rows(c, "SELECT * FROM leases")
    for row in found:
        row["heartbeat"] = from_us(row["heartbeat"])
    return [Lease(**row) for row in found]


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn as it stands in the store."""

    turn: EngineTurn
    is_open: bool
    not_started: frozenset[str]
    """Calls that certainly did nothing."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line about a run."""

    run_id: str
    session: str
    name: str | None
    kind: str
    parent_id: str | None
    model: str
    phase: str
    stop_reason: str | None
    error_code: str | None
    prompt: str
    """Its first 200 characters."""
    turns: int
    total_tokens: int
    cost_usd: float | None
    started_at: datetime
    duration_ms: float


@dataclass(frozen=True, slots=True)
class _ToolRuns:
    """The tool runs of a run, by the index of their turn."""

    of_turn: dict[int, list[ToolRun]] = field(default_factory=dict[int, list[ToolRun]])
    untouched: dict[int, set[str]] = field(default_factory=dict[int, set[str]])
    """Calls that certainly did nothing."""

    def add(self, idx: int, run: ToolRun, *, started: bool) -> None:
        """Add the next one."""
        self.of_turn.setdefault(idx, []).append(run)
        if not started:
            self.untouched.setdefault(idx, set()).add(run.tool_call_id)

    def attachments(self, row: Row) -> tuple[Part, ...]:
        """What a message's row refers to: the very pictures of its tool run, not a copy."""
        if row["attached"]:
            call_id = cell_text(row["tool_call_id"])
            for run in self.of_turn.get(row["idx"], ()):
                if run.tool_call_id == call_id and run.result is not None:
                    return run.result.attachments
        return ()


class Reader:
    """Reads one moment of the store.

    Args:
        alive: ids of the leases whose processes still run.
    """

    def __init__(self, connection: sqlite3.Connection, alive: Collection[str]) -> None:
        self._c = connection
        self._alive = alive

    def run_row(self, run_id: str) -> Row:
        """The row of a run; UsageError when there is none."""
        found = rows(self._c, "SELECT * FROM runs WHERE run_id = ?", (run_id,))
        if not found:
            raise UsageError(
                f"there is no run {run_id!r} in the store; `nbagent.runs()` lists what there is",
                code="ENOENT",
            )
        return found[0]

    def is_interrupted(self, row: Row) -> bool:
        """Whether a run says Running and nobody is at work on it."""
        return row["phase"] == "Running" and row["lease_id"] not in self._alive

    def load(self, run_id: str) -> RunRecord:
        """The whole record of a run."""
        row = self.run_row(run_id)
        runs = self._tool_runs(row["n"])
        own = self._own_messages(row["n"], runs)
        messages = [message for position, message in own.items() if position >= 0]
        turns: list[EngineTurn] = []
        interrupted = self.is_interrupted(row)
        for stored in self._turns(row, own, runs):
            turn = stored.turn
            if interrupted and stored.is_open:
                turn, answers = finish_turn(turn, not_started=stored.not_started)
                messages.extend(answers)
            turns.append(turn)
        record = RunRecord(
            **run_of(row),
            messages=tuple(messages),
            turns=tuple(turns),
            system_prompts=self._system_prompts(row, turns),
            toolsets=self._toolsets(row, turns),
        )
        if interrupted:
            return finish_run(record, self._last_sign(row, turns))
        return record

    def ended(self, row: Row) -> RunRecord:
        """How an interrupted run ended, without its messages and tool runs.

        Quick however large its texts and pictures are.
        """
        unread = Message(role="assistant")
        turns: list[EngineTurn] = []
        for found in rows(self._c, _TURNS, (row["n"],)):
            answer = None if found["message_at"] is None else unread
            turn = turn_of(found, row["run_id"], answer, ())
            turns.append(finish_turn(turn)[0] if found["open"] else turn)
        record = RunRecord(**run_of(row), turns=tuple(turns))
        return finish_run(record, self._last_sign(row, turns))

    def _last_sign(self, row: Row, turns: list[EngineTurn]) -> datetime:
        """When a run that was interrupted was last known to be at work."""
        if row["ended_at"] is not None:
            return from_us(row["ended_at"])  # kept there by the kernel that claimed the run
        ends = [_end(turn) for turn in turns]
        for lease in leases(self._c):
            if lease.id == row["lease_id"]:
                ends.append(lease.heartbeat)
        return max([from_us(row["started_at"]), *ends])

    def _own_messages(self, n: int, runs: _ToolRuns) -> dict[int, Message]:
        return {
            row["position"]: message_of(row, runs.attachments(row))
            for row in rows(self._c, _MESSAGES, (n,))
        }

    def _tool_runs(self, n: int, *, every: bool = True) -> _ToolRuns:
        """The tool runs of a run; not `every`: only the few that may have attachments."""
        found = _ToolRuns()
        sql = (
            "SELECT * FROM tool_runs WHERE run = ? AND (? OR details IS NOT NULL) "
            "ORDER BY idx, position"
        )
        for row in rows(self._c, sql, (n, every)):
            found.add(row["idx"], tool_run_of(row), started=bool(row["started"]))
        return found

    def turns(self, row: Row) -> list[StoredTurn]:
        """The turns of a run, an open one as it was left."""
        runs = self._tool_runs(row["n"])
        return self._turns(row, self._own_messages(row["n"], runs), runs)

    def _turns(self, row: Row, messages: dict[int, Message], runs: _ToolRuns) -> list[StoredTurn]:
        return [
            StoredTurn(
                turn_of(
                    found,
                    row["run_id"],
                    None if found["message_at"] is None else messages[found["message_at"]],
                    tuple(runs.of_turn.get(found["idx"], ())),
                ),
                bool(found["open"]),
                frozenset(runs.untouched.get(found["idx"], ())),
            )
            for found in rows(self._c, _TURNS, (row["n"],))
        ]

    def _blob(self, sha: str) -> str | None:
        row = self._c.execute("SELECT body FROM blobs WHERE sha = ?", (sha,)).fetchone()
        return None if row is None or row[0] is None else cell_text(row[0])

    def _system_prompts(self, row: Row, turns: list[EngineTurn]) -> dict[str, str]:
        shas = _shas(row["system_shas"], [turn.request.system_sha for turn in turns])
        texts = {sha: self._blob(sha) for sha in shas if sha}
        return {sha: text for sha, text in texts.items() if text is not None}

    def _toolsets(self, row: Row, turns: list[EngineTurn]) -> dict[str, tuple[ToolSpec, ...]]:
        shas = _shas(row["toolset_shas"], [turn.request.toolset_sha for turn in turns])
        return {sha: tools for sha in shas if sha and (tools := self._tools(sha)) is not None}

    def _tools(self, sha: str) -> tuple[ToolSpec, ...] | None:
        body = self._blob(sha)
        if body is None:
            return None
        return tuple(ToolSpec.model_validate(tool) for tool in load_json(body))

    def _lineage(self, row: Row) -> list[tuple[Row, int]]:
        """A run and those that it goes on from, newest first, with the absolute end of each one's
        part of the conversation."""
        line = [(row, _ALL)]
        while row["parent_id"] is not None and row["shared_messages"] > 0:
            end = min(line[-1][1], row["shared_messages"])
            try:
                row = self.run_row(row["parent_id"])
            except UsageError:
                raise StoreError(
                    f"run {row['run_id']} goes on from run {row['parent_id']}, which is not in "
                    "this store; open the store that has both",
                    code="ENOENT",
                ) from None
            line.append((row, end))
        return line

    def conversation(self, run_id: str) -> tuple[Message, ...]:
        """All messages up to the end of a run: the shared ones, then its own."""
        line = self._lineage(self.run_row(run_id))
        messages: list[Message] = []
        for row, end in reversed(line[1:]):
            shared = row["shared_messages"]
            if end > shared:
                messages += self._readable_messages(row)[: end - shared]
        messages += self._readable_messages(line[0][0])
        return tuple(messages)

    def _readable_messages(self, row: Row) -> list[Message]:
        interrupted = self.is_interrupted(row)
        runs = self._tool_runs(row["n"], every=interrupted)
        own = self._own_messages(row["n"], runs)
        messages = [message for position, message in own.items() if position >= 0]
        if interrupted:
            for stored in self._turns(row, own, runs):
                if stored.is_open:
                    messages.extend(finish_turn(stored.turn, not_started=stored.not_started)[1])
        return messages

    def request_of(self, run_id: str, turn_id: str) -> ChatRequest:
        """What a turn sent, rebuilt. The turn may be one of a run that this one goes on from."""
        for row, _ in self._lineage(self.run_row(run_id)):
            for stored in self.turns(row):
                if stored.turn.id == turn_id:
                    return self._request(row, stored.turn)
        raise UsageError(f"run {run_id!r} has no turn {turn_id!r}; see `run.turns`", code="ENOENT")

    def _request(self, row: Row, turn: EngineTurn) -> ChatRequest:
        request = turn.request
        provider = cell_text(row["model"]).partition(":")[0]
        system, tools = "", ()
        if request.system_sha:
            system = self._blob(request.system_sha)
        if request.toolset_sha:
            tools = self._tools(request.toolset_sha)
        if system is None or tools is None:
            raise StoreError(
                f"what turn {turn.id} sent beside its messages is not in the store any more; "
                "its messages are in `run.messages`",
                code="ENOENT",
            )
        known = ChatRequest.model_fields.keys() - {"model", "messages", "system_prompt", "tools"}
        messages = self.conversation(row["run_id"])[: request.n_messages]
        return ChatRequest(
            model=request.model.removeprefix(f"{provider}:"),
            messages=request.trimmed.applied(messages) if request.trimmed else messages,
            system_prompt=system,
            tools=tools,
            **{name: value for name, value in request.params.items() if name in known},
        )

    def turn_places(self, run_id: str) -> dict[int, str]:
        """The ids of a conversation's turns, by the place of the response in it."""
        places: dict[int, str] = {}
        for row, end in self._lineage(self.run_row(run_id)):
            found = self._c.execute(
                "SELECT message_at, turn_id FROM turns WHERE run = ? AND message_at >= 0",
                (row["n"],),
            )
            for at, turn_id in found:
                if row["shared_messages"] + at < end:
                    places[row["shared_messages"] + at] = turn_id
        return places

    def requests_since_words(self, run_id: str) -> int:
        """How many requests were made since the person last said something."""
        count = 0
        for row, end in self._lineage(self.run_row(run_id)):
            place = row["shared_messages"]
            count += self._c.execute(
                "SELECT count(*) FROM turns WHERE run = :run AND CASE WHEN message_at >= 0 "
                "THEN message_at + :place < :end ELSE n_messages <= :end END",
                {"run": row["n"], "end": end, "place": place},
            ).fetchone()[0]
            if row["has_words"] and end > place:
                break
        return count

    def find(self, ref: str, session: str | None = None) -> str:
        """The id of the run that is meant by `last`, a name, or the unique start of an id."""
        given, ref = ref, ref.strip()
        if not ref:
            raise UsageError(
                "name a run: last, its name, or the start of its id (`nbagent.runs()` lists them)"
            )
        if ref == "last":
            found = self.last_run(session)
            if found is None:
                raise UsageError("there is no run yet; run a cell with `%%agent` first")
            return found
        if not is_text(ref):
            raise UsageError(
                f"no run is called {ref!r}; `nbagent.runs()` lists what there is", code="ENOENT"
            )
        one = self._c.execute(
            # A name may begin with a blank; who types one too many means the name without it.
            "SELECT run_id FROM runs WHERE run_id = :ref OR name IN (:given, :ref) "
            "ORDER BY run_id = :ref DESC, name = :given DESC, n DESC LIMIT 1",
            {"ref": ref, "given": given},
        ).fetchone()
        if one is not None:
            return one[0]
        # A range, so that the index on run_id serves: ids are hex digits, all below `g`.
        starts = rows(
            self._c,
            "SELECT run_id, name, started_at FROM runs WHERE run_id >= :ref "
            "AND run_id < :ref || 'g' ORDER BY n DESC LIMIT 6",
            {"ref": ref.lower()},
        )
        if len(starts) == 1:
            return starts[0]["run_id"]
        if not starts:
            raise UsageError(
                f"no run is called {ref!r}, and no run's id starts with it; "
                "`nbagent.runs()` lists what there is",
                code="ENOENT",
            )
        names = ", ".join(_mention(row) for row in starts[:5])
        raise UsageError(
            f"several runs' ids start with {ref!r}: {names}{', …' if len(starts) > 5 else ''}. "
            "Give more of the id"
        )

    def last_run(self, session: str | None = None, notebook: str | None = None) -> str | None:
        """The run that began last."""
        row = self._c.execute(
            "SELECT run_id FROM runs WHERE (:session IS NULL OR session = :session) "
            "AND (:notebook IS NULL OR notebook = :notebook) ORDER BY n DESC LIMIT 1",
            {"session": session, "notebook": notebook},
        ).fetchone()
        return None if row is None else row[0]

    def summaries(self, session: str | None, limit: int) -> list[RunSummary]:
        """The newest runs, newest first."""
        found = rows(
            self._c,
            "SELECT *, substr(prompt, 1, 200) AS head, "
            "(SELECT count(*) FROM turns WHERE run = runs.n) AS n_turns "
            "FROM runs WHERE :session IS NULL OR session = :session ORDER BY n DESC LIMIT :limit",
            {"session": session, "limit": limit},
        )
        return [self._summary(row) for row in found]

    def _summary(self, row: Row) -> RunSummary:
        same = {name: row[name] for name in ("run_id", "kind", "parent_id")}
        kept = ("phase", "stop_reason", "error_code", "total_tokens", "cost_usd", "duration_ms")
        state: dict[str, Any] = {name: row[name] for name in kept}
        if self.is_interrupted(row):
            record = self.ended(row)
            state = {
                "phase": record.phase,
                "stop_reason": record.stop_reason,
                "error_code": record.error and record.error.code,
                "total_tokens": record.usage.total_tokens,
                "cost_usd": record.cost_usd,
                "duration_ms": record.duration_ms,
            }
        return RunSummary(
            **same,
            **state,
            session=cell_text(row["session"]),
            name=None if row["name"] is None else cell_text(row["name"]),
            model=cell_text(row["model"]),
            prompt=cell_text(row["head"]),
            turns=row["n_turns"],
            started_at=from_us(row["started_at"]),
        )


def _end(turn: EngineTurn) -> datetime:
    """When a turn was over."""
    return turn.started_at + timedelta(milliseconds=turn.duration_ms)


def _shas(stored: str | None, used: list[str]) -> list[str]:
    return json.loads(stored) if stored is not None else list(dict.fromkeys(used))


def _mention(row: Row) -> str:
    name = f" ({cell_text(row['name'])})" if row["name"] else ""
    return f"{row['run_id']}{name}"
