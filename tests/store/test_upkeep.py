"""The work that follows a migration in slices: right before, in and after it, and after a kill."""

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
from store.older_stores import (
    FILE,
    check_index,
    copy_store,
    dump,
    finish_upkeep,
    ids_of,
    readings,
    slice_by_steps,
    snapshot,
    version_6_store,
)

from nbagent.store import upkeep
from nbagent.store.writer import Store

IGNORED = ("leases", "grams", "blocks")
"""Tables of processes, and the index for text search, which is checked by itself."""
needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork and no SIGKILL there")


@pytest.fixture(autouse=True)
def slices_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    slice_by_steps(monkeypatch)


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Copies of a migrated store before the first slice of its upkeep and after each."""
    folder = tmp_path_factory.mktemp("moments")
    with pytest.MonkeyPatch.context() as patch:
        slice_by_steps(patch)
        with closing(Store.open(version_6_store(folder / "six"))) as store:
            store.forget(store.find("at work"))  # its lease is gone: it would be closed each time
            made = [snapshot(store, folder / "0")]
            while store.database.transact(upkeep.do_slice, durable=False):
                made.append(snapshot(store, folder / str(len(made))))
            while upkeep.index_block(store.database):
                made.append(snapshot(store, folder / str(len(made))))
    assert len(made) > 10
    return made


def opened(moment: Path, folder: Path) -> Store:
    """A copy of a store, opened."""
    return Store.open(copy_store(moment, folder))


@pytest.fixture(scope="module")
def right(moments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is read when all is done."""
    with pytest.MonkeyPatch.context() as patch:
        slice_by_steps(patch)
        with closing(opened(moments[-1], tmp_path_factory.mktemp("right") / "all")) as store:
            return readings(store)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.proof)])
def test_all_is_right_before_and_after_each_slice(
    every: int, moments: list[Path], right: dict[str, Any], tmp_path: Path
) -> None:
    for n, moment in enumerate(moments[::every]):
        with closing(opened(moment, tmp_path / str(n))) as store:
            assert readings(store) == right, f"after {n * every} slices"
            check_index(store)


def test_all_work_is_done_when_it_ends(moments: list[Path]) -> None:
    with closing(sqlite3.connect(moments[-1] / FILE)) as c:
        for table in ("upkeep", "forgotten"):
            assert c.execute(f"SELECT * FROM {table}").fetchall() == []
        for column in ("system_sha", "toolset_sha"):
            kinds = c.execute(f"SELECT DISTINCT typeof({column}) FROM turns").fetchall()
            assert set(kinds) <= {("integer",), ("null",)}


FORGOTTEN = ("first", "answers", "odd text", "workflow", "cached")
"""Names of runs: one with children, one whose toolset others have, …"""


@pytest.fixture(scope="module")
def without(moments: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What is read when all is done and a run is forgotten, by its name."""
    folder, made = tmp_path_factory.mktemp("without"), dict[str, Any]()
    with pytest.MonkeyPatch.context() as patch:
        slice_by_steps(patch)
        for name in FORGOTTEN:
            with closing(opened(moments[-1], folder / name)) as store:
                gone = store.forget(store.find(name), children=True)
                finish_upkeep(store)
                made[name] = (gone, readings(store))
    return made


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.proof)])
@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_run_is_forgotten_between_any_two_slices(
    name: str, every: int, moments: list[Path], without: dict[str, Any], tmp_path: Path
) -> None:
    for n, moment in enumerate(moments[FORGOTTEN.index(name) :: every]):
        with closing(opened(moment, tmp_path / str(n))) as store:
            gone, after = without[name]
            assert store.forget(store.find(name), children=True) == gone
            assert readings(store) == after
            finish_upkeep(store)
            assert readings(store) == after
            check_index(store)
        with closing(sqlite3.connect(tmp_path / str(n) / FILE)) as c:
            assert c.execute("SELECT * FROM forgotten").fetchall() == []
        assert not set(gone) & set(after["records"])


@needs_fork
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(29, id="some"),
        pytest.param(1, id="all", marks=[pytest.mark.proof, pytest.mark.timeout(3600)]),
    ],
)
def test_upkeep_killed_before_any_statement_goes_on_where_a_slice_ended(
    step: int, moments: list[Path], right: dict[str, Any], forker: Forker, tmp_path: Path
) -> None:
    states = [dump(moment / FILE, *IGNORED) for moment in moments]
    n = 0
    for n in count(1, step):
        home = copy_store(moments[0], tmp_path / str(n))
        if forker.run("upkeep", home, die_at=n):
            break
        killed = dump(copy_store(home, tmp_path / f"copy {n}") / FILE, *IGNORED)
        assert killed in states, "the state between two slices"
        if n % 5 == 1:
            with closing(Store.open(home)) as store:
                assert readings(store) == right
        with closing(Store.open(home)) as store:
            finish_upkeep(store)
            if n % 5 == 1:
                assert readings(store) == right
                check_index(store)
        assert dump(home / FILE, *IGNORED) == states[-1]
        shutil.rmtree(home)
        shutil.rmtree(tmp_path / f"copy {n}")
    assert n > 100


def test_work_that_fails_is_done_again_when_the_store_is_opened(
    moments: list[Path], right: dict[str, Any], tmp_path: Path
) -> None:
    with closing(opened(moments[0], tmp_path / "a")) as store:
        assert len(ids_of(store)) == len(right["records"])
        finish_upkeep(store)
    with closing(Store.open(tmp_path / "a")) as store:
        assert finish_upkeep(store) == 0
        assert readings(store) == right
