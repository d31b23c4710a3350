"""A migration that is killed, fails, is refused or is begun by many at once loses nothing."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from store.dying_process import Forker, at_statement, notes
from store.older_stores import (
    BACKUP,
    FILE,
    copy_store,
    dump,
    finish_upkeep,
    readings,
    schema,
    version_6_store,
    without_upkeep,
)

from nbagent.contracts.errors import StoreError
from nbagent.store.columns import VERSION
from nbagent.store.writer import Store

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork and no SIGKILL there")


@dataclass(frozen=True)
class Older:
    """A store of version 6, and what is right after its migration."""

    home: Path
    dump: list[str]
    schemas: dict[int, set[str]]
    readings: dict[str, Any]


@pytest.fixture(scope="module", params=["closed", "in the log"])
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Older:
    folder = tmp_path_factory.mktemp("older")
    home = version_6_store(folder / "six", in_log=request.param != "closed")
    contents = dump(copy_store(home, folder / "copy") / FILE)
    version, names = schema(folder / "copy" / FILE)
    migrated = copy_store(home, folder / "seven")
    with pytest.MonkeyPatch.context() as patch:
        without_upkeep(patch)
        with closing(Store.open(migrated)) as store:
            assert store.warning is None
            read = readings(store)
        with closing(Store.open(migrated)) as store:
            finish_upkeep(store)
            assert readings(store) == read
    assert (version, len(read["records"])) == (6, 37)
    assert [len(found) > 0 for found in read["searches"].values()] == [True] * 6 + [False]
    schemas = {6: names, **dict([schema(copy_store(home, folder / "new") / FILE)])}
    with closing(Store.open(copy_store(home, folder / "fresh"))):
        pass
    schemas[VERSION] = schema(folder / "fresh" / FILE)[1]
    return Older(home, contents, schemas, read)


@pytest.fixture(autouse=True)
def only_slices_that_a_test_does(monkeypatch: pytest.MonkeyPatch) -> None:
    without_upkeep(monkeypatch)


def check_whole(home: Path, older: Older) -> None:
    """The file is of one version or the other, and all that was read in it is read."""
    version, names = schema(copy_store(home, home.with_name("looked at")) / FILE)
    shutil.rmtree(home.with_name("looked at"))
    assert names == older.schemas[version]
    if (home / BACKUP).exists():
        assert dump(home / BACKUP) == older.dump
    with closing(Store.open(home)) as store:
        assert store.warning is None
        assert readings(store) == older.readings
    assert dump(home / BACKUP) == older.dump
    rest = {FILE, BACKUP, ".gitignore", "runs.lock"}
    assert {file.name for file in home.iterdir()} == rest


LAST_STATEMENT = 300
KILL_STEPS = [
    pytest.param(11, id="some"),
    pytest.param(1, id="all", marks=[pytest.mark.proof, pytest.mark.timeout(1800)]),
]


@needs_fork
@pytest.mark.parametrize("step", KILL_STEPS)
def test_a_migration_killed_before_any_statement_leaves_the_store_before_or_after_it(
    step: int, older: Older, forker: Forker, tmp_path: Path
) -> None:
    for n in count(1, step):
        home = copy_store(older.home, tmp_path / str(n))
        if forker.run("open", home, die_at=n):
            break
        check_whole(home, older)
        shutil.rmtree(home)
    assert 60 < n < LAST_STATEMENT


ERRORS: dict[str, Callable[[], BaseException]] = {
    "disk": lambda: sqlite3.OperationalError("disk I/O error"),
    "full": lambda: sqlite3.OperationalError("database or disk is full"),
    "interrupt": KeyboardInterrupt,
}


@pytest.mark.parametrize("step", KILL_STEPS)
@pytest.mark.parametrize("error", ERRORS)
def test_a_migration_that_fails_at_any_statement_leaves_the_store_before_or_after_it(
    error: str, step: int, older: Older, tmp_path: Path
) -> None:
    for n in count(1, step):
        home = copy_store(older.home, tmp_path / str(n))
        happened: list[int] = []

        def fail() -> None:
            happened.append(n)
            raise ERRORS[error]()

        try:
            with at_statement(n, fail):
                store = Store.open(home)
            with closing(store):
                assert readings(store) == older.readings, "in memory, if not on disk"
        except (KeyboardInterrupt, StoreError):
            assert happened
        if not happened:
            break
        assert not [*home.glob("*.part*")]
        check_whole(home, older)
        shutil.rmtree(home)
    assert 60 < n < LAST_STATEMENT
