"""Opening and losing the file: earlier versions, files that are not ours, disks that fail."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from made_records import plain_run, record_of, write

import nbagent
from nbagent.contracts.errors import StoreError
from nbagent.store import connections
from nbagent.store import database as database_room
from nbagent.store.columns import APPLICATION_ID, OLDEST_VERSION, VERSION
from nbagent.store.connections import file_system
from nbagent.store.writer import Store

RUN = "a" * 16


def pragma(path: Path, name: str) -> object:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_new_store_ignores_itself_in_git_and_keeps_a_write_ahead_log(tmp_path: Path) -> None:
    home = tmp_path / "a" / ".nbagent"
    store = Store.open(home)
    assert store.warning is None
    assert store.path == home / "runs.sqlite"
    assert (home / ".gitignore").read_text() == "*\n"
    store.close()
    assert pragma(home / "runs.sqlite", "journal_mode") == "wal"
    assert pragma(home / "runs.sqlite", "user_version") == VERSION
    assert pragma(home / "runs.sqlite", "application_id") == APPLICATION_ID


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            f"PRAGMA user_version = {VERSION + 1}; DROP TABLE facts",
            rf"version {VERSION + 1} .*reads up to {VERSION}, and needs.* Upgrade nbagent",
        ),
        ("PRAGMA application_id = 7", "another program"),
    ],
    ids=["newer", "foreign"],
)
def test_file_that_is_not_ours_to_write_is_refused_and_stays_as_it_is(
    tmp_path: Path, change: str, said: str
) -> None:
    Store.open(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.sqlite")) as connection:
        connection.executescript(change)
    before = (tmp_path / "runs.sqlite").read_bytes()
    with pytest.raises(StoreError, match=said):
        Store.open(tmp_path)
    assert (tmp_path / "runs.sqlite").read_bytes() == before


def earlier_store(home: Path) -> sqlite3.Connection:
    """A store of an earlier version, whose kernel is at work until the connection is closed."""
    c = sqlite3.connect(home / "runs.sqlite", isolation_level=None)
    c.execute("PRAGMA journal_mode = WAL")
    c.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    c.execute(f"PRAGMA user_version = {OLDEST_VERSION - 1}")
    c.execute("CREATE TABLE runs(text)")
    c.execute("INSERT INTO runs VALUES('kept')")
    return c


def test_store_of_an_earlier_version_is_put_aside_with_all_that_it_holds(tmp_path: Path) -> None:
    for n in (1, 2):
        earlier_store(tmp_path).close()
        with contextlib.closing(Store.open(tmp_path)) as store:
            aside = tmp_path / f"runs.v{OLDEST_VERSION - 1}-{n}.sqlite"
            assert str(aside) in (store.warning or "")
            assert store.counts()["runs"] == 0
            assert store.database.earlier_stores()[n - 1] == aside
        with contextlib.closing(sqlite3.connect(aside)) as connection:
            assert connection.execute("SELECT * FROM runs").fetchall() == [("kept",)]
        (tmp_path / "runs.sqlite").unlink()


def test_store_that_an_earlier_version_is_using_is_left_alone(tmp_path: Path) -> None:
    with contextlib.closing(earlier_store(tmp_path)) as earlier:
        with pytest.raises(StoreError, match="locked by another process"):
            Store.open(tmp_path)
        assert earlier.execute("SELECT * FROM runs").fetchall() == [("kept",)]
    assert [path.name for path in tmp_path.glob("*.sqlite")] == ["runs.sqlite"]


_OPEN_MANY = """
import sys
from pathlib import Path
from nbagent.store.writer import Store
for line in sys.stdin:
    try:
        Store.open(Path(line.strip())).close()
        print("open", flush=True)
    except Exception as error:
        print(repr(error), flush=True)
"""


@pytest.mark.parametrize("processes", [4, pytest.param(32, marks=pytest.mark.proof)])
def test_kernels_that_open_a_fresh_store_at_once_all_open_it(
    tmp_path: Path, processes: int
) -> None:
    command = [sys.executable, "-c", _OPEN_MANY]
    pipe = subprocess.PIPE
    kernels = [
        subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) for _ in range(processes)
    ]
    for n in range(10):
        for kernel in kernels:
            assert kernel.stdin is not None
            kernel.stdin.write(f"{tmp_path / str(n)}\n")
            kernel.stdin.flush()
        said = [kernel.stdout.readline().strip() for kernel in kernels if kernel.stdout]
        assert said == ["open"] * processes
    for kernel in kernels:
        kernel.communicate()


def test_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    file.write_bytes(b"this is not a database " * 1000)
    store = Store.open(tmp_path)
    assert store.warning is not None
    assert store.warning.startswith(f"RUNS ARE NOT SAVED ON DISK: {file} cannot be used")
    write(store, plain_run(1, run_id=RUN))
    assert store.load(RUN).turns
    store.close()
    assert file.read_bytes() == b"this is not a database " * 1000


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_cannot_be_written_is_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    events = plain_run(2, run_id=RUN)
    with contextlib.closing(Store.open(tmp_path)) as store:
        write(store, events)
    connect = database_room.connect

    # Root may write anywhere: SQLite and the lock are told instead that they may not.
    def read_only(path: Path, how: str = "mode=ro", **folder: Any) -> sqlite3.Connection:
        return connect(path, how, **folder)

    def refused(home: Path) -> None:
        raise PermissionError(13, "readonly")

    if what == "file":
        monkeypatch.setattr(database_room, "connect", read_only)
    else:
        monkeypatch.setattr(database_room, "opening_lock", refused)
    store = Store.open(tmp_path)
    assert "readonly" in (store.warning or "")
    assert store.load(RUN) == record_of(events)
    write(store, plain_run(1, run_id="b" * 16))
    assert store.counts()["runs"] == 2
    store.close()
    monkeypatch.undo()
    with contextlib.closing(Store.open(tmp_path)) as store:
        assert store.counts()["runs"] == 1


def test_disk_that_cannot_even_be_read_keeps_the_run_at_work(tmp_path: Path) -> None:
    events = plain_run(4, run_id=RUN)
    store = Store.open(tmp_path)
    write(store, events[:10])
    database = store.database  # pyright: ignore[reportPrivateUsage]
    database._connection.close()  # pyright: ignore[reportPrivateUsage]

    gone = sqlite3.OperationalError("disk I/O error")
    broken = Mock(in_transaction=False, **{"execute.side_effect": gone, "backup.side_effect": gone})
    database._connection = broken  # pyright: ignore[reportPrivateUsage]
    write(store, events[10:])
    assert store.load(RUN) == record_of(events)
    assert "disk I/O error" in (store.warning or "")
    store.close()


def test_network_file_system_gets_a_rollback_journal_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_a_network(folder: Path) -> str:
        return "nfs4"

    monkeypatch.setattr(connections, "file_system", of_a_network)
    with contextlib.closing(Store.open(tmp_path)) as store:
        assert "nfs4" in (store.warning or "")
        write(store, plain_run(1, run_id=RUN))
        assert not (tmp_path / "runs.sqlite-wal").exists()
        assert store.load(RUN).turns


def test_file_system_of_a_folder_is_the_one_mounted_nearest(tmp_path: Path) -> None:
    share, mounts = tmp_path / "my share", tmp_path / "mounts"
    share.mkdir()
    point = str(share).replace(" ", "\\040")
    mounts.write_text(f"/dev/a / ext4 rw 0 0\nserver:/x {point} nfs4 rw 0 0\n")
    assert file_system(share / "deep", str(mounts)) == "nfs4"
    assert file_system(tmp_path, str(mounts)) == "ext4"
    assert file_system(tmp_path, str(tmp_path / "absent")) == ""


def damaged(home: Path, old: bytes, new: bytes, times: int = 1) -> None:
    """Make a store with a run, whose file then has other bytes in a place or in many."""
    with contextlib.closing(Store.open(home)) as store:
        write(store, plain_run(30, run_id=RUN))
    file = home / "runs.sqlite"
    data = file.read_bytes()
    assert old in data
    file.write_bytes(data.replace(old, new, times))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"CREATE TABLE", b"CREATE T\x81BLE"),
        (b"CREATE TABLE", b"XREATE TABLE"),
        (b"stop_reason", b"stop_reasoM"),
    ],
    ids=["no text", "no statement", "a column"],
)
def test_a_run_goes_on_in_memory_where_the_tables_are_damaged(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    damaged(tmp_path, old, new)
    with contextlib.closing(Store.open(tmp_path)) as store:
        write(store, plain_run(1, run_id="b" * 16))
        assert "move a damaged file away" in (store.warning or "")
        assert store.load("b" * 16).turns


def test_a_folder_that_cannot_even_be_looked_for_keeps_runs_in_memory(tmp_path: Path) -> None:
    with contextlib.closing(Store.open(tmp_path / ("x" * 300))) as store:
        assert "File name too long" in (store.warning or "")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE turns SET error = x'ff'",
        "UPDATE turns SET error = CAST(x'ff' AS TEXT)",
        "UPDATE turns SET model_ms = 'many'",
    ],
    ids=["half a character", "no text", "no number"],
)
def test_a_damaged_cell_that_a_frame_reads_is_said_clearly(tmp_path: Path, damage: str) -> None:
    damaged(tmp_path, b"", b"", 0)
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.sqlite")) as connection:
        connection.execute(damage)
        connection.commit()
    with pytest.raises(StoreError, match="move a damaged file away"):
        nbagent.turns(store=tmp_path)


def test_damage_found_while_reading_is_said_clearly(tmp_path: Path) -> None:
    damaged(tmp_path, b"", b"", 0)
    file = tmp_path / "runs.sqlite"
    data = bytearray(file.read_bytes())
    # The last pages are overwritten: they hold the rows of the last turns.
    data[4096 * 60 :] = b"\xff" * (len(data) - 4096 * 60)
    file.write_bytes(bytes(data))
    with (
        contextlib.closing(Store.open(tmp_path)) as store,
        pytest.raises(StoreError, match="move a damaged file away"),
    ):
        store.load(RUN)


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_a_store_whose_folder_is_gone_is_said_in_one_line(tmp_path: Path) -> None:
    damaged(tmp_path / "home", b"", b"", 0)
    with contextlib.closing(Store.open(tmp_path / "home")) as store:
        assert store.load(RUN).id == RUN
        shutil.rmtree(tmp_path / "home")
        with pytest.raises(StoreError, match="is gone: its folder was moved or deleted"):
            store.load(RUN)
