"""Writing down how a run ended whose kernel is gone: once, by one kernel.

What it then reads as is decided in `archive/interrupted`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime

from nbagent.archive.interrupted import finish_turn
from nbagent.archive.store.message_rows import message_row, tool_run_row
from nbagent.archive.store.reading import Reader, Row, StoredTurn, leases
from nbagent.archive.store.rows import cell_text, run_row, to_us
from nbagent.archive.store.rows import turn_row as row_of_turn
from nbagent.archive.store.writing import INSERT_MESSAGE, INSERT_TOOL_RUN, INSERT_TURN, UPDATE_RUN
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import ToolRun


def claim(c: sqlite3.Connection, run_id: str, lease_id: str, now: datetime) -> bool:
    """Put an interrupted run under a lease; False when it has ended already."""
    reader = Reader(c, ())
    row = reader.run_row(run_id)
    if row["phase"] != "Running":
        return False
    holder = next((it for it in leases(c) if it.id == row["lease_id"]), None)
    if holder is not None and holder.id != lease_id and holder.is_alive(now):
        raise UsageError(
            f"run {run_id} is at work in another kernel (process {holder.pid} on "
            f"{holder.host.partition('/')[0]}); stop it there, or shut that kernel down",
            details={"pid": holder.pid},
        )
    # Only the lease of the kernel that is gone tells when the run was last at work.
    ended_at = reader.load(run_id).ended_at
    c.execute(
        "UPDATE runs SET lease_id = ?, ended_at = ? WHERE n = ?",
        (lease_id, None if ended_at is None else to_us(ended_at), row["n"]),
    )
    return True


def close(c: sqlite3.Connection, run_id: str, results: Mapping[str, ToolRun]) -> None:
    """Finish the open turn of a claimed run and end the run."""
    reader = Reader(c, ())
    row = reader.run_row(run_id)
    for stored in reader.turns(row):
        if stored.is_open:
            _close_turn(c, row, stored, results)
    record = reader.load(run_id)
    cells = run_row(record, has_words=bool(row["has_words"]), lease_id=None)
    c.execute(UPDATE_RUN, (*cells, row["n"]))


def _close_turn(
    c: sqlite3.Connection, row: Row, stored: StoredTurn, results: Mapping[str, ToolRun]
) -> None:
    n, idx = row["n"], stored.turn.index
    turn, answers = finish_turn(stored.turn, not_started=stored.not_started, results=results)
    system, toolset, at = c.execute(
        "SELECT system, toolset, message_at FROM turns WHERE run = ? AND idx = ?", (n, idx)
    ).fetchone()
    c.execute(
        INSERT_TURN,
        row_of_turn(
            n,
            turn,
            run_model=cell_text(row["model"]),
            is_open=False,
            system=system,
            toolset=toolset,
            message_at=at,
        ),
    )
    answered = {run.tool_call_id: run.result for run in turn.tool_runs}
    for position, run in enumerate(turn.tool_runs):
        started = run.tool_call_id not in stored.not_started
        c.execute(INSERT_TOOL_RUN, tool_run_row(n, idx, position, run, started))
    for offset, answer in enumerate(answers, start=1):
        c.execute(INSERT_MESSAGE, message_row(n, at + offset, idx, answer, answered))
