"""Queries of the store: whole runs, conversations, requests, and the search for a run.

`rows` converts rows to records. `writer` closes runs of dead kernels before they are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import StoreError, UsageError, describe_error
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.nearest import nearest_hint
from nbagent.contracts.records import (
    EngineTurn,
    RunOrigin,
    RunRecord,
    RunSummary,
    as_turn_id,
    trim_result,
)
from nbagent.store.columns import (
    CORRUPT_ROW,
    LAST_FOREIGN_RUN,
    TABLE_COLUMNS,
    TABLES,
    Column,
    hash_sql,
)
from nbagent.store.connections import Connection
from nbagent.store.frame_queries import FRAMES, LINEAGE
from nbagent.store.record_cells import from_us
from nbagent.store.rows import (
    Row,
    cell_text,
    decode_row,
    record_from_rows,
    summary_from_rows,
    text_cell,
)
from nbagent.store.text_index import HAS_TEXT, numbers_to_search

_HASHES_OF_TURNS = (
    "SELECT system_sha AS sha FROM turns WHERE run = :n "
    "UNION SELECT toolset_sha FROM turns WHERE run = :n"
)
_TEXTS_OF_RUN = (
    f"WHERE sha IN (SELECT h.sha FROM ({_HASHES_OF_TURNS}) t JOIN hashes h ON h.n = t.sha "
    f"UNION {_HASHES_OF_TURNS} "
    "UNION SELECT value FROM open, json_each(doc, '$.request') WHERE run = :n)"
)
_ROW_ORDERS = {
    "turns": "turn",
    "tool_runs": "turn, position",
    "messages": "position",
    "open": "run",
}
_IS_FOREIGN = (
    "SELECT 1 FROM runs WHERE run_id = ? AND n <= (SELECT value FROM facts WHERE name = ?)"
)
_NO_END = 2**62
# A range instead of LIKE, so that the index on run_id is used. Ids are hex digits, all below `g`.
_FIND_RUN = (
    "SELECT run_id, run_id = :ref OR name IS :ref AS is_exact FROM runs "
    "WHERE run_id = :ref OR name = :ref OR (run_id >= lower(:ref) AND run_id < lower(:ref) || 'g') "
    "ORDER BY is_exact DESC, n DESC LIMIT 5"
)
_ORIGINS = (
    "SELECT n, run_id, notebook, cell_id, kernel_id, file_id FROM runs WHERE {} AND batch IS NULL "
    "ORDER BY n DESC LIMIT 100"
)
_MAX_SEARCH_CHARS = 1_000
_COMPARED_AT_ONCE = 100
"""Candidates of a search whose texts one statement compares."""
_SEARCH = (
    # CROSS JOIN fixes the order: look up each run, instead of scanning all runs.
    "SELECT x.run_id FROM json_each(:numbers) i CROSS JOIN runs x ON x.n = i.value "
    f"WHERE (x.batch IS NULL) = :alone AND ({HAS_TEXT}) ORDER BY i.key"
)

_NEWEST_RUNS = (
    "WHERE batch IS NULL AND (? IS NULL OR workflow = ?) AND (? IS NULL OR workflow IS NOT NULL "
    # Version 6 of the store had the document among the options.
    "AND json_valid(doc) AND coalesce(json_extract(doc, '$.workflow.document'), "
    "json_extract(doc, '$.options.document')) = ?) ORDER BY n DESC LIMIT ?"
)
_RUNS_BY_ID = "WHERE run_id IN (SELECT value FROM json_each(?))"
_TURN_COLUMNS = ("total_tokens", "node", "agent", "source", "saved_usd")
# CROSS JOIN fixes the order: look up each run, instead of scanning all rows.
_TURNS_OF_RUNS = (
    f"SELECT x.run, {', '.join(f'x.{name}' for name in _TURN_COLUMNS)} FROM json_each(?) i "
    "CROSS JOIN turns x ON x.run = i.value ORDER BY i.key, x.turn"
)
_ANSWERS_OF_RUNS = (
    f"SELECT x.n, {FRAMES['runs'].expression('text')} FROM json_each(?) i "
    "CROSS JOIN runs x ON x.n = i.value"
)


def _cell_sql(table: str, column: Column) -> str:
    cell = f"{table}.{column.name}"
    return hash_sql(cell) if column.is_hash else cell


_CELLS = {
    name: ", ".join(_cell_sql(name, column) for column in table.by_name.values())
    for name, table in TABLES.items()
}
"""SQL of all cells of a table's row, by table."""


def select_rows(c: Connection, table: str, rest: str, parameters: Any = ()) -> list[Row]:
    """Select whole rows of a table, decoded."""
    cursor = c.execute(f"SELECT {_CELLS[table]} FROM {table} {rest}", parameters)
    return [decode_row(table, TABLE_COLUMNS[table], cells) for cells in cursor]


_KEYS = ("n", "run_id", "parent_id", "phase", "template_sha", "lease_id")


def select_keys(c: Connection, rest: str, parameters: Any = ()) -> list[Row]:
    """Select the cells of runs that connect rows; they are read where others are damaged."""
    cursor = c.execute(f"SELECT {', '.join(_KEYS)} FROM runs {rest}", parameters)
    return [dict(zip(_KEYS, cells, strict=True)) for cells in cursor]


def find_run_keys(c: Connection, run_id: str) -> Row:
    """Select the keys of a run; UsageError if there is none."""
    rows = select_keys(c, "WHERE run_id = ?", (text_cell(run_id),))
    if not rows:
        raise UsageError(
            f"there is no run {run_id!r}; `nbagent.runs()` lists all runs", code="ENOENT"
        )
    return rows[0]


def find_run_row(c: Connection, run_id: str) -> Row:
    """Select the row of a run; UsageError if there is none, StoreError if it is damaged."""
    run_id = find_run_keys(c, run_id)["run_id"]
    try:
        return select_rows(c, "runs", "WHERE run_id = ?", (run_id,))[0]
    except CORRUPT_ROW as error:
        raise _damage(run_id, error) from error


def _damage(run_id: str, error: Exception) -> StoreError:
    reason = describe_error(error).partition("\n")[0]
    return StoreError(
        f"the rows of run {run_id} are damaged ({reason}); all other runs can be used, and "
        f"nbagent.forget({run_id!r}) deletes this one"
    )


def load_record(c: Connection, row: Row) -> RunRecord:
    """Load the whole record of a run's row; StoreError if it is damaged."""
    n = {"n": row["n"]}
    try:
        rows = {
            table: select_rows(c, table, f"WHERE run = :n ORDER BY {order}", n)
            for table, order in _ROW_ORDERS.items()
        }
        texts = select_rows(c, "texts", _TEXTS_OF_RUN, n)
        return record_from_rows({**rows, "runs": [row], "texts": texts})
    except CORRUPT_ROW as error:
        raise _damage(row["run_id"], error) from error


def select_summaries(c: Connection, rest: str, parameters: Any = ()) -> list[RunSummary]:
    """Summarize the runs that `rest` (SQL after `FROM runs`) selects, in its order.

    The summary of a run whose rows are damaged says so.
    """
    names = TABLE_COLUMNS["runs"]
    rows = [
        dict(zip(names, cells, strict=True))
        for cells in c.execute(f"SELECT {_CELLS['runs']} FROM runs {rest}", parameters)
    ]
    numbers = dump_json([row["n"] for row in rows]).decode()
    answers = dict(c.execute(_ANSWERS_OF_RUNS, (numbers,)).fetchall())
    turns: dict[int, list[Sequence[Any]]] = defaultdict(list)
    for n, *cells in c.execute(_TURNS_OF_RUNS, (numbers,)):
        turns[n].append(cells)
    return [_summary(c, row, turns[row["n"]], answers[row["n"]] or "") for row in rows]


def _summary(
    c: Connection, cells: Row, turns: Sequence[Sequence[Any]], answer: str | bytes
) -> RunSummary:
    try:
        row = decode_row("runs", [*cells], [*cells.values()])
        # The row of a run at work has no sums yet.
        if row["phase"] == "Running":
            return load_record(c, row).summary()
        turn_rows = [decode_row("turns", _TURN_COLUMNS, turn) for turn in turns]
        return summary_from_rows(row, turn_rows, str(cell_text(answer)))
    except CORRUPT_ROW as error:
        return _damaged_summary(cells, _damage(cells["run_id"], error))
    except StoreError as error:
        return _damaged_summary(cells, error)


def _damaged_summary(cells: Row, error: StoreError) -> RunSummary:
    """Summary of a run whose rows are damaged: the cells that place it in a list, and the error."""
    texts = ("name", "parent_id", "notebook", "prompt")
    placing = {name: cells[name] for name in texts if isinstance(cells[name], str)}
    started = cells["started_at"]
    is_time = isinstance(started, int) and 0 <= started < 1 << 52
    return RunSummary(
        id=cells["run_id"],
        session=str(cells["session"] or ""),
        model=str(cells["model"] or ""),
        phase="Failed",
        stop_reason="error",
        error=error.info,
        started_at=from_us(started if is_time else 0),
        **placing,
    )


@dataclass(frozen=True, slots=True)
class RunNode:
    """A run in the tree of its session, with the runs that continue it, oldest first."""

    run: RunSummary
    children: list[RunNode]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Runs with a text."""

    run_ids: list[str]
    """Newest first."""
    note: str = ""
    """Says what was not searched."""


class StoreReader(ABC):
    """Queries of the store; a subclass opens the connections."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Connection]:
        """Open a connection with a snapshot of the store; runs of dead kernels are closed in it."""

    def load(self, run_id: str) -> RunRecord:
        """Load the whole record of a run."""
        with self.reading() as c:
            return load_record(c, find_run_row(c, run_id))

    def runs(
        self, *, limit: int = 20, workflow: str | None = None, document: str | None = None
    ) -> list[RunSummary]:
        """Summarize the newest runs (of a workflow, for a document), newest first."""
        with self.reading() as c:
            return select_summaries(
                c, _NEWEST_RUNS, (workflow, workflow, document, document, limit)
            )

    def summaries(self, run_ids: Sequence[str]) -> list[RunSummary]:
        """Summarize these runs, in this order; ids that are not in the store are left out."""
        with self.reading() as c:
            summaries = select_summaries(c, _RUNS_BY_ID, (dump_json([*run_ids]).decode(),))
        by_id = {run.id: run for run in summaries}
        return [by_id[run_id] for run_id in run_ids if run_id in by_id]

    def tree(self, session: str) -> list[RunNode]:
        """Load the runs of a session as trees; the roots are runs that continue no other run."""
        with self.reading() as c:
            runs = select_summaries(c, "WHERE session = ? ORDER BY n", (text_cell(session),))
        nodes: dict[str, RunNode] = {}
        roots: list[RunNode] = []
        for run in runs:
            nodes[run.id] = node = RunNode(run, [])
            parent = nodes.get(run.parent_id or "")
            (roots if parent is None else parent.children).append(node)
        return roots

    def is_foreign(self, run_id: str) -> bool:
        """True if the run was there when the store was taken over: anybody may have made it."""
        with self.reading() as c:
            return c.execute(_IS_FOREIGN, (run_id, LAST_FOREIGN_RUN)).fetchone() is not None

    def conversation(self, run_id: str) -> tuple[Message, ...]:
        """All messages up to the end of a run: those shared with its ancestors, then its own."""
        return tuple(message for message, _ in self.conversation_with_turns(run_id))

    def conversation_with_turns(self, run_id: str) -> tuple[tuple[Message, str], ...]:
        """The conversation: messages with the ids of the turns that added them ('' for none)."""
        with self.reading() as c:
            return _messages_with_turns(c, _lineage(c, run_id))

    def request_of(self, run_id: str, turn: str | int) -> ChatRequest:
        """Rebuild the request of a turn of this run or of one of its ancestors."""
        wanted = as_turn_id(turn)
        with self.reading() as c:
            lineage = _lineage(c, run_id)
            for i, (row, _) in enumerate(lineage):
                run = load_record(c, row)
                for own in run.turns:
                    if own.id == wanted:
                        return _rebuild_request(
                            run, own, _messages_with_turns(c, [(row, _NO_END), *lineage[i + 1 :]])
                        )
        raise UsageError(f"run {run_id!r} has no turn {turn!r}; see `run.turns`", code="ENOENT")

    def requests_since_user_message(self, run_id: str) -> int:
        """Count the requests since the person's last message."""
        count = 0
        with self.reading() as c:
            for row, end in _lineage(c, run_id):
                counts = c.execute(
                    "SELECT count(*), EXISTS (SELECT 1 FROM messages WHERE run = :run "
                    "AND role = 'user' AND source = 'person') FROM turns WHERE run = :run "
                    "AND CASE WHEN message_at >= 0 THEN message_at + :place < :end "
                    "ELSE n_messages <= :end END",
                    {"run": row["n"], "end": end, "place": row["shared_messages"]},
                ).fetchone()
                count += counts[0]
                if counts[1] and end > row["shared_messages"]:
                    break
        return count

    def find(self, ref: str) -> str:
        """Find a run's id by `last`, a name (its newest run), or the start of an id."""
        if ref == "last":
            matches: list[Any] = [(self.last_run(), 1)]
        else:
            with self.reading() as c:
                matches = c.execute(_FIND_RUN, {"ref": text_cell(ref)}).fetchall()
        if not ref.strip() or not matches or matches[0][0] is None:
            known = ("last", *self.newest_words("name"))
            hint = nearest_hint(ref, known) or "; `nbagent.runs()` lists all runs"
            raise UsageError(
                f"no run is called {ref!r}, and no run's id starts with it{hint}", code="ENOENT"
            )
        if len(matches) > 1 and not matches[0][1]:
            ids = ", ".join(run_id for run_id, _ in matches)
            raise UsageError(f"several run ids start with {ref!r}: {ids}; give more of the id")
        return matches[0][0]

    def newest_words(self, column: Literal["name", "session"]) -> list[str]:
        """Return the names, or the sessions, of the newest runs."""
        sql = f"SELECT {column} FROM runs WHERE {column} IS NOT NULL ORDER BY n DESC LIMIT 1000"
        with self.reading() as c:
            return list(dict.fromkeys(str(cell_text(word)) for (word,) in c.execute(sql)))

    def search(self, text: str, *, limit: int = 50, batches: bool = False) -> SearchResult:
        """Find the newest runs with this text in their name, prompt, messages or results.

        Args:
            text: text to find, without wildcards; the case of ASCII letters is ignored.
            limit: largest number of ids.
            batches: search runs of batches instead of all other runs.

        Raises:
            UsageError: the text is too long, or contains half a surrogate pair.
        """
        is_whole = text.encode("utf-8", "replace").decode() == text
        if len(text) > _MAX_SEARCH_CHARS or not is_whole:
            raise UsageError(
                f"search for at most {_MAX_SEARCH_CHARS:,} characters, without half a character"
            )
        pattern = "".join(f"\\{c}" if c in "\\%_" else c for c in text)
        values = {"like": f"%{pattern}%", "alone": not batches}
        with self.reading() as c:
            numbers, note = numbers_to_search(c, text)
            run_ids: list[str] = []
            while len(run_ids) < limit and (some := [*islice(numbers, _COMPARED_AT_ONCE)]):
                rows = c.execute(_SEARCH, {**values, "numbers": dump_json(some).decode()})
                run_ids += [run_id for (run_id,) in rows]
        return SearchResult(run_ids[:limit], note)

    def last_run(self, session: str | None = None) -> str | None:
        """Id of the run that started last, in a session or anywhere."""
        of_session = "" if session is None else "session = :session AND"
        sql = f"SELECT run_id FROM runs WHERE {of_session} batch IS NULL ORDER BY n DESC LIMIT 1"
        with self.reading() as c:
            row = c.execute(sql, {"session": session}).fetchone()
        return None if row is None else row[0]

    def run_origins(
        self,
        *,
        notebook: str | None = None,
        kernel_id: str | None = None,
        cell_ids: Collection[str] = (),
        run_ids: Collection[str] = (),
    ) -> list[RunOrigin]:
        """The newest runs of a notebook, a kernel or cells, or with these ids; newest first.

        Runs of batches are left out.
        """
        wanted = {
            "notebook = ?": notebook and text_cell(notebook),
            "kernel_id = ?": kernel_id,
            "cell_id IN (SELECT value FROM json_each(?))": dump_json([*cell_ids]).decode(),
            "run_id IN (SELECT value FROM json_each(?))": dump_json([*run_ids]).decode(),
        }
        rows: dict[int, Any] = {}
        with self.reading() as c:
            for condition, value in wanted.items():
                if value not in (None, "[]"):
                    cursor = c.execute(_ORIGINS.format(condition), (value,))
                    rows |= {n: cells for n, *cells in cursor}
        return [RunOrigin(*map(cell_text, rows[n])) for n in sorted(rows, reverse=True)]


def _lineage(c: Connection, run_id: str) -> list[tuple[Row, int]]:
    """A run and its ancestors, newest first, each with the absolute end of its part of the
    conversation."""
    row = find_run_row(c, run_id)
    parts = c.execute(LINEAGE, (row["run_id"],)).fetchall()
    lineage = [(select_rows(c, "runs", "WHERE n = ?", (n,))[0], end) for n, end in parts]
    row, end = lineage[-1]
    if row.get("parent_id") and min(end, row["shared_messages"]):
        raise StoreError(
            f"run {row['run_id']} continues run {row['parent_id']}, which is not in "
            "this store; open the store that has both",
            code="ENOENT",
        )
    return lineage


def _messages_with_turns(
    c: Connection, lineage: Sequence[tuple[Row, int]]
) -> tuple[tuple[Message, str], ...]:
    messages: list[tuple[Message, str]] = []
    for row, end in reversed(lineage):
        shared = row["shared_messages"]
        if end > shared:
            run = load_record(c, row)
            turns = dict(enumerate(run.copied))
            turns |= {
                position: turn.id for turn in run.turns for position in run.message_range(turn)
            }
            own = [(message, turns.get(i, "")) for i, message in enumerate(run.messages)]
            messages += own[: end - shared]
    return tuple(messages)


def _rebuild_request(
    run: RunRecord, turn: EngineTurn, conversation: Sequence[tuple[Message, str]]
) -> ChatRequest:
    request = turn.request
    params = ChatRequest.model_fields.keys() - {"model", "messages", "system_prompt", "tools"}
    messages = tuple(
        trim_result(message) if position in request.trimmed else message
        for position, (message, _) in enumerate(conversation[: request.n_messages])
    )
    return ChatRequest(
        model=request.model,
        messages=messages,
        system_prompt=run.system_prompts.get(request.system_sha, ""),
        tools=run.toolsets.get(request.toolset_sha, ()),
        **{name: value for name, value in request.params.items() if name in params},
    )
