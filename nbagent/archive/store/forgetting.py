"""Deleting runs with all of their texts, and giving back what deleting left empty.

Deleted bytes are overwritten (`secure_delete`) and the write-ahead log is folded in and emptied,
so that the file itself no longer holds them. Who may be deleted is said here as well.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence

from nbagent.archive.store.reading import Reader, rows
from nbagent.archive.store.rows import Row
from nbagent.contracts.errors import UsageError

_SHOWN = 5


def family(c: sqlite3.Connection, run_id: str) -> list[str]:
    """A run and those that go on from it, and from these: parents first."""
    found = [run_id]
    for one in found:
        children = c.execute("SELECT run_id FROM runs WHERE parent_id = ? ORDER BY n", (one,))
        found += [row[0] for row in children if row[0] not in found]
    return found


def delete(
    c: sqlite3.Connection, run_id: str, alive: Collection[str], *, children: bool
) -> tuple[str, ...]:
    """Delete a run, with `children` also those that go on from it; returns the ids of all.

    Raises:
        UsageError: there is none, it is at work, or others go on from it.
    """
    reader = Reader(c, alive)
    reader.run_row(run_id)
    ids = family(c, run_id)
    if len(ids) > 1 and not children:
        names = ", ".join(one[:8] for one in ids[1 : _SHOWN + 1])
        more = ", …" if len(ids) > _SHOWN + 1 else ""
        raise UsageError(
            f"{len(ids) - 1} run{'s go' if len(ids) > 2 else ' goes'} on from run {run_id[:8]} "
            f"and would lose the beginning: {names}{more}; to forget these too write "
            f"nbagent.forget({run_id[:8]!r}, children=True), or %agent forget {run_id[:8]} "
            "--children"
        )
    found = [reader.run_row(one) for one in ids]
    for row in found:
        if row["phase"] == "Running" and row["lease_id"] in alive:
            raise UsageError(
                f"run {row['run_id'][:8]} is at work; stop it or wait for its end, then forget it"
            )
    shas = _shas(c, found)
    for row in found:
        for table in ("turns", "tool_runs", "messages"):
            c.execute(f"DELETE FROM {table} WHERE run = ?", (row["n"],))
        c.execute("DELETE FROM runs WHERE n = ?", (row["n"],))
    _delete_unused(c, shas)
    return tuple(ids)


def _shas(c: sqlite3.Connection, found: Sequence[Row]) -> set[str]:
    """The hashes of the texts that these runs refer to."""
    shas: set[str] = set()
    for row in found:
        for column in ("system_shas", "toolset_shas"):
            shas.update(json.loads(row[column] or "[]"))
        used = rows(
            c,
            "SELECT sha FROM blobs WHERE n IN (SELECT system FROM turns WHERE run = :n "
            "UNION SELECT toolset FROM turns WHERE run = :n)",
            {"n": row["n"]},
        )
        shas.update(one["sha"] for one in used)
    return shas


def _delete_unused(c: sqlite3.Connection, shas: Collection[str]) -> None:
    """Delete the texts that no run that is left refers to."""
    for sha in shas:
        c.execute(
            "DELETE FROM blobs WHERE sha = :sha "
            "AND NOT EXISTS (SELECT 1 FROM turns WHERE system = blobs.n OR toolset = blobs.n) "
            "AND NOT EXISTS (SELECT 1 FROM runs WHERE instr(system_shas, :sha) "
            "OR instr(toolset_shas, :sha))",
            {"sha": sha},
        )
