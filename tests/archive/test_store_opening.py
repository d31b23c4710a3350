"""Opening and losing the file: migrations, files that are not ours, disks that fail."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest
from made_records import plain_run, record_of, write
from nbagent.archive.store.schema import APPLICATION_ID, MIGRATIONS

from nbagent.archive.database import Database, file_system
from nbagent.archive.store import Store
from nbagent.archive.store import database as database_room
from nbagent.contracts.errors import StoreError

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
    assert pragma(home / "runs.sqlite", "user_version") == len(MIGRATIONS)
    assert pragma(home / "runs.sqlite", "application_id") == APPLICATION_ID


def test_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    broken = (*MIGRATIONS, "ALTER TABLE runs ADD COLUMN mood TEXT;\nUPDATE missing SET x = 1;")
    with pytest.raises(StoreError, match="no such table"):
        Database.open(tmp_path, migrations=broken)
    assert pragma(tmp_path / "runs.sqlite", "user_version") == len(MIGRATIONS)
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.sqlite")) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
    assert "mood" not in columns


@pytest.mark.parametrize("way_in", [Store.open, Store.open_or_memory], ids=["open", "or_memory"])
def test_newer_file_is_refused_and_says_what_to_do(tmp_path: Path, way_in: object) -> None:
    Database.open(tmp_path, migrations=(*MIGRATIONS, "CREATE TABLE later(x);")).close()
    before = (tmp_path / "runs.sqlite").read_bytes()
    newer = len(MIGRATIONS) + 1
    with pytest.raises(StoreError, match=rf"version is {newer}.*pip install -U nbagent") as caught:
        way_in(tmp_path)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
    assert caught.value.details["reason"] == "newer"
    assert (tmp_path / "runs.sqlite").read_bytes() == before


def test_file_that_is_no_database_is_named_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.sqlite"
    file.write_bytes(b"this is not a database " * 1000)
    with pytest.raises(StoreError, match=r"runs\.sqlite is damaged.*recover"):
        Store.open(tmp_path)
    store = Store.open_or_memory(tmp_path)
    assert store.warning is not None
    assert str(file) in store.warning
    assert "NOT KEPT ON DISK" in store.warning
    write(store, plain_run(1, run_id=RUN))
    assert store.load(RUN).turns
    store.close()
    assert file.read_bytes() == b"this is not a database " * 1000


def test_database_of_another_program_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "runs.sqlite")) as connection:
        connection.execute("CREATE TABLE theirs(x)")
    with pytest.raises(StoreError, match="another program"):
        Store.open(tmp_path)


def test_unwritable_file_is_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = plain_run(2, run_id=RUN)
    with contextlib.closing(Store.open(tmp_path)) as store:
        write(store, events)
    connect = database_room._connect  # pyright: ignore[reportPrivateUsage]

    def read_only(path: Path, *, mode: str = "rwc") -> sqlite3.Connection:
        # Root may write anywhere: SQLite is told instead that it may not.
        return connect(path, mode="immutable" if mode == "immutable" else "ro")

    monkeypatch.setattr(database_room, "_connect", read_only)
    store = Store.open_or_memory(tmp_path)
    assert store.warning is not None
    assert "readonly" in store.warning
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
    database = store._db  # pyright: ignore[reportPrivateUsage]
    database._connection.close()  # pyright: ignore[reportPrivateUsage]

    class Broken:
        """A connection whose disk is gone."""

        in_transaction = False

        def execute(self, sql: str) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        def backup(self, target: sqlite3.Connection) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        def close(self) -> None:
            pass

    database._connection = Broken()  # pyright: ignore
    write(store, events[10:])
    assert store.load(RUN) == record_of(events)
    assert store.warning is not None
    assert "could not be read either" in store.warning
    store.close()


def test_locked_file_waits_for_its_turn(tmp_path: Path) -> None:
    events = plain_run(1, run_id=RUN)
    store = Store.open(tmp_path)
    other = sqlite3.connect(tmp_path / "runs.sqlite", isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, lambda: other.execute("COMMIT"))
    timer.start()
    write(store, events)
    timer.join()
    other.close()
    assert store.path is not None
    assert store.load(RUN) == record_of(events)
    store.close()


def _network(folder: Path) -> str:
    return "nfs4"


def test_network_file_system_gets_a_rollback_journal_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_room, "file_system", _network)
    store = Store.open(tmp_path)
    assert store.warning is not None
    assert "nfs4" in store.warning
    write(store, plain_run(1, run_id=RUN))
    assert not (tmp_path / "runs.sqlite-wal").exists()
    assert store.load(RUN).turns
    store.close()


def test_file_system_of_a_folder_is_the_one_mounted_nearest(tmp_path: Path) -> None:
    (tmp_path / "my share" / "deep").mkdir(parents=True)
    mounts = tmp_path / "mounts"
    share = str(tmp_path / "my share").replace(" ", "\\040")
    mounts.write_text(
        f"/dev/a / ext4 rw 0 0\nserver:/x {share} nfs4 rw 0 0\n/dev/b /m xfs rw 0 0\n"
    )
    assert file_system(tmp_path / "my share" / "deep", str(mounts)) == "nfs4"
    assert file_system(tmp_path, str(mounts)) == "ext4"
    assert file_system(tmp_path, str(tmp_path / "absent")) is None


def test_damage_found_while_reading_is_said_clearly(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    write(store, plain_run(30, run_id=RUN))
    store.close()
    file = tmp_path / "runs.sqlite"
    data = bytearray(file.read_bytes())
    # Everything behind the first pages is overwritten.
    data[4096 * 20 :] = b"\xff" * (len(data) - 4096 * 20)
    file.write_bytes(bytes(data))
    store = Store.open_or_memory(tmp_path)
    with pytest.raises(StoreError, match="damaged"):
        store.load(RUN)
    assert store.check() != []
    store.close()
