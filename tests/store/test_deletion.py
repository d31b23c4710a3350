"""A run that is forgotten is gone at once, for everybody, and in the end from every byte."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from store.dying_process import Forker
from store.made_records import plain_run, write
from store.older_stores import (
    FILE,
    copy_store,
    finish_upkeep,
    ids_of,
    readings,
    slice_by_steps,
    snapshot,
)

from nbagent.contracts.errors import UsageError
from nbagent.store import upkeep
from nbagent.store.writer import Store

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork and no SIGKILL there")
KEPT, GONE, CHILD = "a" * 16, "b" * 16, "c" * 16
SECRET = "zebra quartz"
"""Only the run that is forgotten says it, and those that continue it."""


@pytest.fixture(autouse=True)
def slices_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_by_steps(monkeypatch)


@pytest.fixture(scope="module", params=["indexed", "not yet"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with runs, whose texts are in the index, or not yet."""
    home = tmp_path_factory.mktemp("made") / "home"
    with pytest.MonkeyPatch.context() as patch:
        slice_by_steps(patch)
        with closing(Store.open(home)) as store:
            write(store, plain_run(3, run_id=KEPT, text="plain words " * 40, name="kept"))
            words = f"{SECRET} {'and more of it ' * 700}"
            write(store, plain_run(6, run_id=GONE, text=words, name=SECRET, prompt=SECRET))
            write(store, plain_run(2, run_id=CHILD, text=SECRET, parent_id=GONE, kind="continue"))
            if request.param == "indexed":
                finish_upkeep(store)
    return home


@pytest.fixture(scope="module")
def before(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with closing(Store.open(copy_store(made, tmp_path_factory.mktemp("x") / "x"))) as store:
        return readings(store)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is read where the run never was."""
    with pytest.MonkeyPatch.context() as patch:
        slice_by_steps(patch)
        with closing(Store.open(tmp_path_factory.mktemp("never") / "home")) as store:
            write(store, plain_run(3, run_id=KEPT, text="plain words " * 40, name="kept"))
            return readings(store)


def check_hidden(store: Store, after: dict[str, Any]) -> None:
    """Nothing shows the runs."""
    assert readings(store) == after
    assert store.search(SECRET).run_ids == []
    assert store.search(SECRET[:2]).run_ids == []
    assert [run.id for run in store.runs()] == [KEPT]
    assert store.summaries([GONE, CHILD]) == []
    assert [node.run.id for node in store.tree(store.load(KEPT).session)] == [KEPT]
    for ref in (GONE, GONE[:4], SECRET):
        with pytest.raises(UsageError, match="no run"):
            store.find(ref)
    for read in (store.load, store.conversation):
        with pytest.raises(UsageError, match="there is no run"):
            read(GONE)


def rows_in_index(file: Path) -> set[int]:
    """Rowids that the pages of the index of texts hold, also those that are marked as deleted.

    FTS5's own table of its words (`fts5vocab`) leaves these out, so the pages are read here.
    """
    with closing(sqlite3.connect(file)) as c:
        return {row for block in segments(c) for row in block}


def segments(c: sqlite3.Connection) -> Iterator[set[int]]:
    """Rowids of each segment of the index, by the format that `fts5_index.c` describes."""
    (structure,) = c.execute("SELECT block FROM text_index_data WHERE id = 10").fetchone()
    for segment, first, last in segments_of(structure):
        rows: set[int] = set()
        for page in range(first, last + 1):
            row_id = (segment << 37) + page
            (block,) = c.execute(
                "SELECT block FROM text_index_data WHERE id = ?", (row_id,)
            ).fetchone()
            rows |= rows_of_page(block)
        yield rows


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in SQLite's form, and the index behind it."""
    value = 0
    for i in range(9):
        byte = data[at + i]
        if i == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + i + 1
    raise AssertionError


def segments_of(structure: bytes) -> Iterator[tuple[int, int, int]]:
    """Number, first and last page of each segment."""
    at = 4
    levels, at = varint(structure, at)
    _, at = varint(structure, at)
    _, at = varint(structure, at)
    for _ in range(levels):
        _, at = varint(structure, at)
        n, at = varint(structure, at)
        for _ in range(n):
            segment, at = varint(structure, at)
            first, at = varint(structure, at)
            last, at = varint(structure, at)
            yield segment, first, last


def rows_of_page(page: bytes) -> set[int]:
    """Rowids in a leaf page of an index with `detail=none`."""
    first_row, end = int.from_bytes(page[:2], "big"), int.from_bytes(page[2:4], "big")
    terms: list[int] = []
    at, place = end, 0
    while at < len(page):
        step, at = varint(page, at)
        place += step
        terms.append(place)
    rows: set[int] = set()
    if first_row:
        # The list of a term that began on an earlier page goes on.
        rows |= rows_of_list(page[first_row : terms[0] if terms else end])
    for i, term in enumerate(terms):
        at = term
        if i:
            _, at = varint(page, at)  # bytes shared with the term before
        length, at = varint(page, at)
        at += length
        stop = terms[i + 1] if i + 1 < len(terms) else end
        rows |= rows_of_list(page[at:stop])
    return rows


def rows_of_list(data: bytes) -> set[int]:
    """Rowids of a term: differences, each with 0 behind it if it is a deletion (and 0 0 too)."""
    rows, at, row = set[int](), 0, 0
    while at < len(data):
        difference, at = varint(data, at)
        if rows and difference == 0:
            continue  # marks the row before
        row += difference
        rows.add(row)
    return rows


def numbers_of(file: Path) -> dict[str, int]:
    with closing(sqlite3.connect(file)) as c:
        return dict(c.execute("SELECT run_id, n FROM runs"))


def check_bytes(home: Path, numbers: dict[str, int]) -> None:
    """No byte of the texts is in the files, nor a row of the runs in the index."""
    for file in home.iterdir():
        data = file.read_bytes()
        assert SECRET.encode() not in data, file
        assert b"and more of it" not in data, file
        assert GONE.encode() not in data, file
    runs = {row >> 6 for row in rows_in_index(home / FILE)}
    assert not runs & {numbers[GONE], numbers[CHILD]}


def test_the_index_is_read_as_it_is_written(made: Path, tmp_path: Path) -> None:
    home = copy_store(made, tmp_path / "home")
    with closing(Store.open(home)) as store:
        finish_upkeep(store)
    numbers = numbers_of(home / FILE)
    rows = rows_in_index(home / FILE)
    assert {row >> 6 for row in rows} == set(numbers.values())
    assert len({row for row in rows if row >> 6 == numbers[GONE]}) > 5, "a long text"


def test_a_forgotten_run_leaves_no_byte_behind(
    made: Path, before: dict[str, Any], after: dict[str, Any], tmp_path: Path
) -> None:
    home = copy_store(made, tmp_path / "home")
    assert SECRET.encode() in (home / FILE).read_bytes()
    numbers = numbers_of(home / FILE)
    with closing(Store.open(home)) as store:
        assert readings(store) == before
        assert store.search(SECRET).run_ids == [CHILD, GONE]
        assert set(store.forget(GONE, children=True)) == {GONE, CHILD}
        check_hidden(store, after)
        for file in home.iterdir():
            assert SECRET.encode() not in file.read_bytes(), "also while the store is open"
        finish_upkeep(store)
        check_hidden(store, after)
        store.database.checkpoint()
        check_bytes(home, numbers)
    check_bytes(home, numbers)


def test_nothing_shows_a_forgotten_run_between_any_two_slices(
    made: Path, after: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copy_store(made, tmp_path / "home")
    monkeypatch.setattr(upkeep.UpkeepThread, "finish_deletion", lambda self: None)  # pyright: ignore
    with closing(Store.open(home)) as store:
        store.forget(GONE, children=True)
        slices = 0
        while True:
            check_hidden(store, after)
            if slices % 4 == 0:  # a process that opens it now reads the same
                with closing(Store.open(snapshot(store, tmp_path / str(slices)))) as other:
                    check_hidden(other, after)
                    finish_upkeep(other)
                    check_hidden(other, after)
            if not store.database.transact(upkeep.do_slice):
                break
            slices += 1
        assert slices >= 3
        assert ids_of(store) == [KEPT]


@needs_fork
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(23, id="some"),
        pytest.param(1, id="all", marks=[pytest.mark.proof, pytest.mark.timeout(1800)]),
    ],
)
def test_forget_killed_before_any_statement_shows_the_run_or_nothing_of_it(
    step: int,
    made: Path,
    before: dict[str, Any],
    after: dict[str, Any],
    forker: Forker,
    tmp_path: Path,
) -> None:
    ends = {"shown": 0, "hidden": 0}
    numbers = numbers_of(copy_store(made, tmp_path / "copy") / FILE)
    for n in count(1, step):
        home = copy_store(made, tmp_path / str(n))
        if forker.run("forget", home, die_at=n, run_id=GONE):
            break
        with closing(Store.open(home)) as store:
            if GONE in ids_of(store):
                assert not ends["hidden"], "not shown again"
                ends["shown"] += 1
                assert readings(store) == before
            else:
                ends["hidden"] += 1
                check_hidden(store, after)
                finish_upkeep(store)
                check_hidden(store, after)
        if ends["hidden"]:
            check_bytes(home, numbers)
        shutil.rmtree(home)
    assert ends["hidden"] > 1


def test_a_slice_of_a_deletion_is_bounded_by_rows_and_entries(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copy_store(made, tmp_path / "home")
    monkeypatch.setattr(upkeep.UpkeepThread, "finish_deletion", lambda self: None)  # pyright: ignore
    with closing(Store.open(home)) as store:
        run_id = "d" * 16
        write(store, plain_run(400, run_id=run_id, text="word " * 300))
        finish_upkeep(store)
        store.forget(run_id)
        database: Any = store.database
        statements: list[str] = []
        database._connection.set_trace_callback(statements.append)
        while True:
            statements.clear()
            changed = database._connection.total_changes
            if not store.database.transact(upkeep.do_slice):
                break
            done = [it for it in statements if not it.startswith(("--", "SELECT"))]
            removed = sum("VALUES('delete'" in it for it in done)
            assert removed <= 2
            deleted = database._connection.total_changes - changed
            assert deleted <= 4 * 50 or any("'merge'" in it for it in done)
