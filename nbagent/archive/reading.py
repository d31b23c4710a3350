"""What is asked of the store: whole runs, conversations, requests, and the search for a run.

Rows become records in `codec`. A run whose kernel is gone has been closed before it is read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nbagent.archive.codec import cell_text, decoded, is_text, record_of
from nbagent.archive.database import Connection
from nbagent.archive.rows import Row, Rows, from_us
from nbagent.contracts.chat import ChatRequest, Message
from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.records import EngineTurn, RunRecord

_TEXTS_OF = (
    "SELECT * FROM texts WHERE sha IN (SELECT system_sha FROM turns WHERE run = :n "
    "UNION SELECT toolset_sha FROM turns WHERE run = :n)"
)
_ORDERS = {"turns": "turn", "tool_runs": "turn, position", "messages": "position"}
_ALL = 2**62
_SUMMARY = (
    *("run_id", "session", "name", "kind", "parent_id", "model", "phase", "stop_reason"),
    *("error_code", "cost_usd"),
)


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
    cost_usd: float | None
    prompt: str
    """Its first 200 characters."""
    turns: int
    total_tokens: int
    started_at: datetime
    duration_ms: float


def select(c: Connection, table: str, rest: str, parameters: Any = ()) -> list[Row]:
    """Whole rows of a table, decoded."""
    cursor = c.execute(f"SELECT * FROM {table} {rest}", parameters)
    names = [column[0] for column in cursor.description]
    return [decoded(table, dict(zip(names, cells, strict=True))) for cells in cursor]


def run_row(c: Connection, run_id: str) -> Row:
    """The row of a run; UsageError when there is none."""
    found = select(c, "runs", "WHERE run_id = ?", (run_id,)) if is_text(run_id) else []
    if not found:
        raise UsageError(
            f"there is no run {run_id!r} in the store; `nbagent.runs()` lists what there is",
            code="ENOENT",
        )
    return found[0]


def load_row(c: Connection, row: Row) -> RunRecord:
    """The whole record of a run's row."""
    rows: Rows = {
        table: select(c, table, f"WHERE run = ? ORDER BY {order}", (row["n"],))
        for table, order in _ORDERS.items()
    }
    for turn in rows["turns"]:
        if turn["open"]:
            _add_open(turn, rows)
    cursor = c.execute(_TEXTS_OF, {"n": row["n"]})
    texts = [{"sha": sha, "kind": kind, "text": cell_text(text)} for sha, kind, text in cursor]
    return record_of({**rows, "runs": [row], "texts": texts})


def _add_open(turn: Row, rows: Rows) -> None:
    """Add the message of a turn at work, and its tool runs that have no row yet."""
    rows["messages"].append(turn["doc"]["message"])
    known = {it["position"]: it for it in rows["tool_runs"] if it["turn"] == turn["turn"]}
    planned = {it["position"]: it for it in turn["doc"]["tool_runs"]}
    rows["tool_runs"] = [it for it in rows["tool_runs"] if it["turn"] != turn["turn"]]
    rows["tool_runs"] += (planned | known).values()


class Reading(ABC):
    """The questions; where the store is is for the class that has it to say."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """A connection on one moment of the store, where no run is open whose kernel is gone."""

    def load(self, run_id: str) -> RunRecord:
        """The whole record of a run."""
        with self.reading() as c:
            return load_row(c, run_row(c, run_id))

    def conversation(self, run_id: str) -> tuple[Message, ...]:
        """All messages up to the end of a run: the shared ones of its ancestors, then its own."""
        with self.reading() as c:
            return _conversation(c, _lineage(c, run_id))

    def request_of(self, run_id: str, turn_id: str) -> ChatRequest:
        """What a turn sent, rebuilt. The turn may be one of a run that this one goes on from."""
        with self.reading() as c:
            line = _lineage(c, run_id)
            for i, (row, _) in enumerate(line):
                run = load_row(c, row)
                for turn in run.turns:
                    if turn.id == turn_id:
                        return _request(run, turn, _conversation(c, [(row, _ALL), *line[i + 1 :]]))
        raise UsageError(f"run {run_id!r} has no turn {turn_id!r}; see `run.turns`", code="ENOENT")

    def requests_since_words(self, run_id: str) -> int:
        """How many requests were made since the person last said something."""
        count = 0
        with self.reading() as c:
            for row, end in _lineage(c, run_id):
                found = c.execute(
                    "SELECT count(*), EXISTS (SELECT 1 FROM messages WHERE run = :run "
                    "AND role = 'user' AND source = 'person') FROM turns WHERE run = :run "
                    "AND CASE WHEN message_at >= 0 THEN message_at + :place < :end "
                    "ELSE n_messages <= :end END",
                    {"run": row["n"], "end": end, "place": row["shared_messages"]},
                ).fetchone()
                count += found[0]
                if found[1] and end > row["shared_messages"]:
                    break
        return count

    def find(self, ref: str, *, session: str | None = None) -> str:
        """The id of the run meant by `last`, a name (its newest run), or the start of an id."""
        given, ref = ref, ref.strip()
        if not ref:
            raise UsageError(
                "name a run: last, its name, or the start of its id (`nbagent.runs()` lists them)"
            )
        if ref == "last":
            last = self.last_run(session)
            if last is None:
                raise UsageError("there is no run yet; run a cell with `%%agent` first")
            return last
        with self.reading() as c:
            return _find(c, ref, given)

    def last_run(self, session: str | None = None, notebook: str | None = None) -> str | None:
        """The id of the run that began last, in a session, in a notebook, or of all."""
        with self.reading() as c:
            row = c.execute(
                "SELECT run_id FROM runs WHERE (:session IS NULL OR session = :session) "
                "AND (:notebook IS NULL OR notebook = :notebook) ORDER BY n DESC LIMIT 1",
                {"session": session, "notebook": notebook},
            ).fetchone()
        return None if row is None else row[0]

    def runs(self, *, session: str | None = None, limit: int = 20) -> list[RunSummary]:
        """The newest runs, newest first, a line each."""
        with self.reading() as c:
            rest = "WHERE :session IS NULL OR session = :session ORDER BY n DESC LIMIT :limit"
            found = select(c, "runs", rest, {"session": session, "limit": limit})
            counted = "SELECT count(*) FROM turns WHERE run = ?"
            return [
                RunSummary(
                    **{name: row[name] for name in _SUMMARY},
                    prompt=row["prompt"][:200],
                    turns=c.execute(counted, (row["n"],)).fetchone()[0],
                    total_tokens=row["total_tokens"] or 0,
                    started_at=from_us(row["started_at"]),
                    duration_ms=row["duration_ms"] or 0.0,
                )
                for row in found
            ]


def _lineage(c: Connection, run_id: str) -> list[tuple[Row, int]]:
    """A run and those that it goes on from, newest first, with the absolute end of each one's
    part of the conversation."""
    row = run_row(c, run_id)
    line = [(row, _ALL)]
    while row["parent_id"] is not None and row["shared_messages"] > 0:
        end = min(line[-1][1], row["shared_messages"])
        try:
            row = run_row(c, row["parent_id"])
        except UsageError:
            raise StoreError(
                f"run {row['run_id']} goes on from run {row['parent_id']}, which is not in "
                "this store; open the store that has both",
                code="ENOENT",
            ) from None
        line.append((row, end))
    return line


def _conversation(c: Connection, line: Sequence[tuple[Row, int]]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for row, end in reversed(line):
        shared = row["shared_messages"]
        if end > shared:
            messages += load_row(c, row).messages[: end - shared]
    return tuple(messages)


def _request(run: RunRecord, turn: EngineTurn, conversation: Sequence[Message]) -> ChatRequest:
    request = turn.request
    system = run.system_prompts.get(request.system_sha, "")
    tools = run.toolsets.get(request.toolset_sha, ())
    if (request.system_sha and not system) or (request.toolset_sha and not tools):
        raise StoreError(
            f"what turn {turn.id} sent beside its messages is not in the store any more; "
            "its messages are in `run.messages`",
            code="ENOENT",
        )
    known = ChatRequest.model_fields.keys() - {"model", "messages", "system_prompt", "tools"}
    messages = tuple(conversation[: request.n_messages])
    return ChatRequest(
        model=request.model,
        messages=request.trimmed.applied(messages) if request.trimmed else messages,
        system_prompt=system,
        tools=tools,
        **{name: value for name, value in request.params.items() if name in known},
    )


def _find(c: Connection, ref: str, given: str) -> str:
    unknown = UsageError(
        f"no run is called {ref!r}, and no run's id starts with it; "
        "`nbagent.runs()` lists what there is",
        code="ENOENT",
    )
    if not is_text(ref):
        raise unknown
    one = c.execute(
        # A name may begin with a blank; who types one too many means the name without it.
        "SELECT run_id FROM runs WHERE run_id = :ref OR name IN (:given, :ref) "
        "ORDER BY run_id = :ref DESC, name = :given DESC, n DESC LIMIT 1",
        {"ref": ref, "given": given},
    ).fetchone()
    if one is not None:
        return one[0]
    # A range, so that the index on run_id serves: ids are hex digits, all below `g`.
    starts = c.execute(
        "SELECT run_id, name FROM runs WHERE run_id >= :ref AND run_id < :ref || 'g' "
        "ORDER BY n DESC LIMIT 6",
        {"ref": ref.lower()},
    ).fetchall()
    if len(starts) == 1:
        return starts[0][0]
    if not starts:
        raise unknown
    names = ", ".join(f"{id_} ({cell_text(name)})" if name else id_ for id_, name in starts[:5])
    raise UsageError(
        f"several runs' ids start with {ref!r}: {names}{', …' if len(starts) > 5 else ''}. "
        "Give more of the id"
    )
