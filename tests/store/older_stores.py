"""A store of version 6 in a folder, what a person reads in a store, and what its file holds."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.records import RunRecord
from nbagent.store import text_index, upkeep
from nbagent.store.dataframes import read_frame
from nbagent.store.frame_queries import FRAMES
from nbagent.store.reader import RunNode
from nbagent.store.writer import Store

FILE = "runs.sqlite"
BACKUP = "runs.v6-backup.sqlite"
SQL = Path(__file__).parent / "older_material" / "store.sql"
WORDS = ("Oslo", "long result", "PLAIN", "say 1", "os", "E_INTERRUPTED", "no run says this")
"""Texts to search: in messages, in results, in another case, in batches, without a trigram."""


def version_6_store(home: Path, *, in_log: bool = False) -> Path:
    """Make a store as the code of version 6 left it; with `in_log` its rows are in the WAL file."""
    home.mkdir(parents=True)
    script = SQL.read_text("utf-8")
    if not in_log:
        with contextlib.closing(sqlite3.connect(home / FILE)) as c:
            c.executescript(script)
            c.execute("PRAGMA journal_mode = WAL")
        return home
    # Copied while it is open: the last connection to close would merge the log into the file.
    with contextlib.closing(sqlite3.connect(home / "open.sqlite")) as c:
        c.execute("PRAGMA journal_mode = WAL")
        c.execute("PRAGMA wal_autocheckpoint = 0")
        c.executescript(script)
        for end in ("", "-wal"):
            shutil.copyfile(home / f"open.sqlite{end}", home / f"{FILE}{end}")
    assert (home / f"{FILE}-wal").stat().st_size > 100_000
    return home


def copy_store(home: Path, target: Path) -> Path:
    """Copy the files of a store that nobody has open."""
    target.mkdir(parents=True)
    for file in home.glob(f"{FILE}*"):
        if not file.name.endswith("-shm"):
            shutil.copyfile(file, target / file.name)
    return target


def snapshot(store: Store, target: Path) -> Path:
    """Copy a store that is open, consistently."""
    target.mkdir(parents=True)
    with store.database.reading() as c, contextlib.closing(sqlite3.connect(target / FILE)) as copy:
        c.backup(copy)
        # The copy is open nowhere.
        copy.execute("DELETE FROM leases")
        copy.commit()
    return target


def dump(file: Path, *ignored: str) -> list[tuple[str, Any]]:
    """The whole contents of a database: each table and index, and the rows of each table."""
    with contextlib.closing(sqlite3.connect(file)) as c:
        made = [("version", c.execute("PRAGMA user_version").fetchone())]
        sql = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        for kind, name, statement in c.execute(sql).fetchall():
            is_virtual = statement is not None and statement.startswith("CREATE VIRTUAL")
            has_rows = kind == "table" and name not in ignored and not is_virtual
            rows = c.execute(f"SELECT * FROM {name}").fetchall() if has_rows else []
            made.append((name, (statement, rows)))
        return made


def schema(file: Path) -> tuple[int, set[str]]:
    """The version of a store, and the names of its tables and indexes; checks the whole file."""
    with contextlib.closing(sqlite3.connect(file)) as c:
        assert c.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        names = {name for (name,) in c.execute("SELECT name FROM sqlite_master")}
        return c.execute("PRAGMA user_version").fetchone()[0], names


def frames_of(store: Store) -> dict[str, str]:
    """Every frame, with all cells and dtypes, as comparable text."""
    made: dict[str, str] = {}
    for name in FRAMES:
        frame: Any = read_frame([store], name, {})
        cells = frame.to_json(
            orient="split", double_precision=15, date_format="iso", date_unit="us"
        )
        made[name] = f"{frame.dtypes.to_dict()} {cells}"
    return made


def ids_of(store: Store) -> list[str]:
    """Ids of all runs, oldest first."""
    frame: Any = read_frame([store], "runs", {})
    return frame["run_id"].tolist()


def readings(store: Store) -> dict[str, Any]:
    """All that a person reads in a store: frames, records, trees, searches."""
    records = {run_id: store.load(run_id) for run_id in ids_of(store)}
    trees = {
        name: list(_tree_ids(store.tree(name)))
        for name in sorted({run.session for run in records.values()})
    }
    searches = {
        word: [
            *store.search(word, limit=1000).run_ids,
            *store.search(word, limit=1000, batches=True).run_ids,
        ]
        for word in WORDS
    }
    assert {word: set(found) for word, found in searches.items()} == {
        word: {run.id for run in records.values() if _has_text(run, word)} for word in WORDS
    }
    return {**frames_of(store), "records": records, "trees": trees, "searches": searches}


def _has_text(run: RunRecord, word: str) -> bool:
    """True if a run has a text, by its record alone."""
    results = [it.result for turn in run.turns for it in turn.tool_runs if it.result]
    texts = [run.name or "", run.prompt, *(message.text for message in run.messages)]
    texts += [dump_json(result.body).decode() for result in results]
    return any(word.lower() in text.lower() for text in texts)


def _tree_ids(nodes: list[RunNode]) -> Iterator[str]:
    for node in nodes:
        yield node.run.id
        yield from _tree_ids(node.children)


def check_index(store: Store) -> None:
    """SQLite finds nothing wrong with the file, and each block of the index has the runs' texts."""
    with store.database.reading() as c:
        assert c.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        done = {block for (block,) in c.execute("SELECT block FROM blocks WHERE token IS NULL")}
        assert {block for (block,) in c.execute("SELECT DISTINCT block FROM grams")} <= done
        for block in done:
            sql = "SELECT gram, runs FROM grams WHERE block = ? ORDER BY gram"
            assert c.execute(sql, (block,)).fetchall() == text_index.index_rows(c, block)


class Steps:
    """A clock whose seconds are its readings: a slice then ends after one step of its work."""

    def __init__(self) -> None:
        self._readings = count()

    def monotonic(self) -> float:
        return float(next(self._readings))


def slice_by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each slice of upkeep do one step; nothing of it is done in the background."""
    monkeypatch.setattr(upkeep, "time", Steps())
    monkeypatch.setattr(upkeep, "SLICE_S", 2.5)
    monkeypatch.setattr(upkeep, "_RUNS_A_STEP", 1)
    blocks_of_eight_runs(monkeypatch)
    without_upkeep(monkeypatch)


def blocks_of_eight_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make blocks of the index so small that a small store has some that are full."""
    monkeypatch.setattr(text_index, "RUNS_A_BLOCK", 8)
    monkeypatch.setattr(text_index, "_BITMAP_BYTES", 1)
    monkeypatch.setattr(text_index, "_MOST_OFFSETS", 0)


def without_upkeep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do nothing in the background."""
    monkeypatch.setattr(upkeep.UpkeepThread, "wake", lambda self: None)  # pyright: ignore


def finish_upkeep(store: Store) -> int:
    """Do all that is left to do; returns the number of slices."""
    slices = 0
    while store.database.transact(upkeep.do_slice, durable=False):
        slices += 1
    while upkeep.index_block(store.database):
        slices += 1
    return slices
