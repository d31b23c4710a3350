"""A run that is forgotten is gone at once, for everybody, and in the end from every byte."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from store.dying_process import Forker
from store.made_records import plain_run, write
from store.older_stores import (
    FILE,
    check_index,
    copy_store,
    finish_upkeep,
    ids_of,
    readings,
    slice_by_steps,
    snapshot,
)

from nbagent.contracts.errors import UsageError
from nbagent.store import upkeep
from nbagent.store import writer as writer_room
from nbagent.store.writer import Store

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork and no SIGKILL there")
KEPT, GONE, CHILD = "a" * 16, "b" * 16, "c" * 16
OTHERS = [f"{n}" * 16 for n in range(8)]
"""Runs after these: they fill the block of the index that has the others."""
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
            write_others(store)
            if request.param == "indexed":
                finish_upkeep(store)
    return home


@pytest.fixture(scope="module")
def before(made: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        slice_by_steps(patch)
        home = copy_store(made, tmp_path_factory.mktemp("before") / "home")
        with closing(Store.open(home)) as store:
            return readings(store)


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is read where the run never was."""
    with pytest.MonkeyPatch.context() as patch:
        slice_by_steps(patch)
        with closing(Store.open(tmp_path_factory.mktemp("never") / "home")) as store:
            write(store, plain_run(3, run_id=KEPT, text="plain words " * 40, name="kept"))
            write_others(store)
            return readings(store)


def write_others(store: Store) -> None:
    for run_id in OTHERS:
        write(store, plain_run(1, run_id=run_id, text="others", name=run_id[0]))


def check_hidden(store: Store, after: dict[str, Any]) -> None:
    """Nothing shows the runs."""
    assert readings(store) == after
    assert store.search(SECRET).run_ids == []
    assert store.search(SECRET[:2]).run_ids == []
    assert [run.id for run in store.runs()] == [*OTHERS[::-1], KEPT]
    assert store.summaries([GONE, CHILD]) == []
    assert [node.run.id for node in store.tree(store.load(KEPT).session)] == [KEPT, *OTHERS]
    for ref in (GONE, GONE[:4], SECRET):
        with pytest.raises(UsageError, match="no run"):
            store.find(ref)
    for read in (store.load, store.conversation):
        with pytest.raises(UsageError, match="there is no run"):
            read(GONE)


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
    with closing(sqlite3.connect(home / FILE)) as c:
        for block, cell in c.execute("SELECT block, runs FROM grams"):
            runs = {block * 8 + i for i in range(8) if cell[0] >> i & 1}
            assert not runs & {numbers[GONE], numbers[CHILD]}


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
    monkeypatch.setattr(writer_room, "delete_slice", lambda c: False)  # pyright: ignore
    with closing(Store.open(home)) as store:
        store.forget(GONE, children=True)
        slices = 0
        while True:
            check_hidden(store, after)
            # A process that opens it now reads the same.
            with closing(Store.open(snapshot(store, tmp_path / str(slices)))) as other:
                check_hidden(other, after)
                finish_upkeep(other)
                check_hidden(other, after)
            if not store.database.transact(upkeep.do_slice):
                break
            slices += 1
        assert slices >= 2
        assert ids_of(store) == [KEPT, *OTHERS]


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


def test_a_number_that_is_used_again_is_searched(tmp_path: Path) -> None:
    """A deleted newest run leaves its number, which may be in a block whose index was made."""
    with closing(Store.open(tmp_path / "home")) as store:
        for n in range(9):
            write(store, plain_run(1, run_id=f"{n}" * 16))
        assert max(numbers_of(tmp_path / "home" / FILE).values()) == 9
        store.forget("6" * 16)
        store.forget("7" * 16)
        finish_upkeep(store)
        store.forget("8" * 16)
        write(store, plain_run(1, run_id="a" * 16, text=SECRET))
        assert numbers_of(tmp_path / "home" / FILE)["a" * 16] == 7
        assert store.search(SECRET).run_ids == ["a" * 16]
        check_index(store)


def test_a_slice_of_a_deletion_is_bounded_by_rows(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copy_store(made, tmp_path / "home")
    monkeypatch.setattr(writer_room, "delete_slice", lambda c: False)  # pyright: ignore
    with closing(Store.open(home)) as store:
        run_id = "d" * 16
        write(store, plain_run(400, run_id=run_id, text="word " * 300))
        finish_upkeep(store)
        store.forget(run_id)
        database: Any = store.database
        slices = 0
        while True:
            changed = database._connection.total_changes
            if not store.database.transact(upkeep.do_slice):
                break
            slices += 1
            assert database._connection.total_changes - changed <= 4 * 50
        assert slices > 10
