"""Stores that are no stores, damaged, on odd file systems or under an odd clock."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kernels import clean_environment
from store.dying_process import Forker, notes
from store.made_records import START, plain_run, record_of, write
from store.older_stores import (
    FILE,
    copy_store,
    dump,
    finish_upkeep,
    frames_of,
    ids_of,
    readings,
    version_6_store,
    without_upkeep,
)

import nbagent
from nbagent.contracts.errors import StoreError
from nbagent.store import leases as leases_room
from nbagent.store import writer as writer_room
from nbagent.store.columns import VERSION
from nbagent.store.writer import Store

RUNS = ("a" * 16, "b" * 16, "c" * 16)


@pytest.fixture(autouse=True)
def nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    without_upkeep(monkeypatch)


def write_runs(home: Path) -> dict[str, Any]:
    """Make a store with runs; returns their records."""
    with closing(Store.open(home)) as store:
        for n, run_id in enumerate(RUNS):
            write(store, plain_run(n + 2, run_id=run_id, text=f"words of {n} " * 50, name=f"r{n}"))
        finish_upkeep(store)
        return {run_id: store.load(run_id) for run_id in RUNS}


def other_program(file: Path) -> None:
    with closing(sqlite3.connect(file)) as c:
        c.execute("CREATE TABLE runs(id)")


def other_marked_program(file: Path) -> None:
    with closing(sqlite3.connect(file)) as c:
        c.execute("PRAGMA application_id = 7")


def cut_at(share: float) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        write_runs(file.parent)
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])

    return cut


def older_cut_at(share: float) -> Callable[[Path], None]:
    def cut(file: Path) -> None:
        shutil.rmtree(file.parent)
        version_6_store(file.parent)
        data = file.read_bytes()
        file.write_bytes(data[: int(len(data) * share)])

    return cut


ODD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "text": (lambda file: file.write_text("no database " * 999), "move a damaged file away"),
    "a header": (lambda file: file.write_bytes(b"SQLite format 3\0" * 9), "damaged file away"),
    "a picture": (lambda file: file.write_bytes(b"\x89PNG\r\n\x1a\n" * 999), "damaged file away"),
    "of another program": (other_program, "is the database of another program"),
    "marked by another program": (other_marked_program, "is the database of another program"),
    "a folder": (lambda file: file.mkdir(), "cannot be used"),
    "cut in the first page": (cut_at(0.01), "damaged file away"),
    "cut in the middle": (cut_at(0.5), "damaged file away"),
    "cut before its end": (cut_at(0.97), "damaged file away"),
    "of version 6, cut in the middle": (older_cut_at(0.5), "damaged file away"),
    "of version 6, cut before its end": (older_cut_at(0.9), "damaged file away"),
}


@pytest.mark.parametrize("what", ODD)
def test_an_odd_file_is_named_in_one_line_and_stays_as_it_is(what: str, home: Path) -> None:
    home.mkdir()
    make, said = ODD[what]
    make(home / FILE)
    before = None if (home / FILE).is_dir() else (home / FILE).read_bytes()
    try:
        with closing(Store.open(home)) as store:
            line = store.warning or ""
            assert line.startswith("RUNS ARE NOT SAVED ON DISK")
            write(store, plain_run(1, run_id="d" * 16))
            assert store.load("d" * 16).turns
    except StoreError as error:
        line = str(error)
    assert said in line
    assert str(home / FILE) in line
    assert "\n" not in line
    if before is not None:
        assert (home / FILE).read_bytes() == before
        assert not [*home.glob("*backup*")]


def test_an_empty_file_becomes_a_store(home: Path) -> None:
    home.mkdir()
    (home / FILE).touch()
    records = write_runs(home)
    with closing(Store.open(home)) as store:
        assert store.warning is None
        assert ids_of(store) == [*records]


# Read-only


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user reads; pytest's own may be read by its user only."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(
    not hasattr(os, "getuid") or os.getuid() != 0, reason="only root becomes another"
)
@pytest.mark.parametrize("version", [6, VERSION])
@pytest.mark.parametrize("in_log", [False, True], ids=["closed", "in the log"])
def test_a_store_in_a_folder_of_somebody_else_is_read(
    version: int, in_log: bool, public_folder: Path, forker: Forker
) -> None:
    source = version_6_store(public_folder / "source", in_log=in_log)
    if version == VERSION:
        with closing(Store.open(source)) as store:
            with store.reading():
                pass
            home = copy_store(source, public_folder / "home")  # with its log, as after a kill
        assert (home / f"{FILE}-wal").exists()
        if not in_log:
            with closing(Store.open(home)):
                pass
    else:
        home = copy_store(source, public_folder / "home")
    home.chmod(0o755)
    for file in home.iterdir():
        file.chmod(0o644)
    before = {file.name: file.read_bytes() for file in home.iterdir()}
    (public_folder / "out").mkdir()
    (public_folder / "out").chmod(0o777)
    assert forker.run("open as another", home, out=str(public_folder / "out"))
    (line,) = notes(public_folder / "out" / "notes")
    assert line.startswith("RUNS ARE NOT SAVED ON DISK")
    assert line.endswith(" 37 runs")
    assert {file.name: file.read_bytes() for file in home.iterdir()} == before


# Damage


DAMAGE = {
    "a document": "UPDATE runs SET doc = '{' WHERE run_id = :b",
    "a document of another kind": "UPDATE runs SET doc = '[1]' WHERE run_id = :b",
    "a time": "UPDATE runs SET started_at = 'soon' WHERE run_id = :b",
    "no model": "UPDATE runs SET model = NULL WHERE run_id = :b",
    "half a character": "UPDATE runs SET prompt = x'ff' WHERE run_id = :b",
    "tags": "UPDATE runs SET tags = 'x' WHERE run_id = :b",
    "a count": "UPDATE runs SET total_tokens = 'many' WHERE run_id = :b",
    "an answer's tokens": "UPDATE turns SET total_tokens = 'many' WHERE run = 2",
    "a turn's document": "UPDATE turns SET doc = '{' WHERE run = 2",
    "a message": "UPDATE messages SET tool_calls = '[' WHERE run = 2",
    "a message that is gone": "DELETE FROM messages WHERE run = 2 AND position = 1",
    "a result": "UPDATE tool_runs SET result = '{' WHERE run = 2",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_the_rest_is_shown_where_a_row_is_damaged_and_the_row_is_named(
    what: str, home: Path
) -> None:
    records = write_runs(home)
    with closing(sqlite3.connect(home / FILE)) as c:
        c.execute(DAMAGE[what], {"b": RUNS[1]} if ":b" in DAMAGE[what] else {})
        c.commit()
    with closing(Store.open(home)) as store:
        whole = [RUNS[2], RUNS[0]]
        assert [run.id for run in store.runs() if run.id in whole] == whole
        assert [run.id for run in store.summaries(RUNS) if run.id in whole] == whole[::-1]
        (session,) = {run.session for run in records.values()}
        assert [node.run.id for node in store.tree(session) if node.run.id in whole] == whole[::-1]
        assert [it for it in store.search("words of").run_ids if it in whole] == whole
        for run_id in whole:
            assert store.load(run_id) == records[run_id]
        (damaged,) = store.summaries([RUNS[1]])
        try:
            assert store.load(RUNS[1]).id == RUNS[1]
            said = ""
        except StoreError as error:
            said = str(error)
        assert f"the rows of run {RUNS[1]} are damaged" in said or not (said or damaged.error)
        if damaged.error is not None:
            assert f"the rows of run {RUNS[1]} are damaged" in damaged.error.message
            assert f"nbagent.forget('{RUNS[1]}') deletes this one" in damaged.error.message
        write(store, plain_run(1, run_id="d" * 16))
        for name in ("runs", "turns", "tool_runs", "messages"):
            read: Any = getattr(nbagent, name)
            try:
                frame, said = read(store=home), ""
            except StoreError as error:
                frame, said = read(store=home, run_id=[*whole, "d" * 16]), str(error)
            assert not said or (f"of run {RUNS[1]}" in said and str(home / FILE) in said)
            assert {*whole, "d" * 16} <= set(frame["run_id"])
        store.forget(RUNS[1])
        assert ids_of(store) == [RUNS[0], RUNS[2], "d" * 16]
        finish_upkeep(store)


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_of_a_dead_process_stops_no_other(what: str, home: Path) -> None:
    write_runs(home)
    with closing(sqlite3.connect(home / FILE)) as c:
        c.execute(
            "UPDATE runs SET phase = 'Running', lease_id = 'gone' WHERE run_id = ?", RUNS[1:2]
        )
        c.execute(DAMAGE[what], {"b": RUNS[1]} if ":b" in DAMAGE[what] else {})
        c.commit()
    with closing(Store.open(home)) as store:
        assert {RUNS[0], RUNS[2]} <= {run.id for run in store.runs()}
        write(store, plain_run(1, run_id="d" * 16))
        with store.reading() as c:
            sql = "SELECT count(*) FROM runs WHERE phase = 'Running'"
            assert c.execute(sql).fetchone() == (0,)
        store.forget(RUNS[1])
        assert len(store.runs()) == 3


# Clocks


def test_a_clock_that_jumps_back_disorders_and_loses_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [
        plain_run(2, run_id=run_id, name=f"r{n}", started_at=START - timedelta(days=n))
        for n, run_id in enumerate(RUNS)
    ]
    with closing(Store.open(home)) as store:
        for n, events in enumerate(made):
            now = START - timedelta(days=n)
            monkeypatch.setattr(writer_room, "utc_now", lambda now=now: now)
            assert store.heartbeat()
            write(store, events)
        assert [run.id for run in store.runs()] == [*RUNS[::-1]], "in the order of their starts"
        assert store.last_run() == RUNS[-1]
        finish_upkeep(store)
        for events in made:
            assert store.load(record_of(events).id) == record_of(events)
        found: Any = nbagent.prompts(store=home)
        for row in found.itertuples():
            assert row.first_seen <= row.last_seen
        # A run at work stays at work: its process lives, whatever the clock says.
        write(store, plain_run(2, run_id="e" * 16)[:6])
        with store.reading() as c:
            phases = c.execute("SELECT phase FROM runs WHERE run_id = ?", ("e" * 16,)).fetchall()
        assert phases == [("Running",)]


def test_a_run_that_died_before_the_clock_was_set_back_is_closed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later() -> datetime:
        return datetime.now(START.tzinfo) + timedelta(days=1)

    # Another machine's process, whose clock was a day ahead, and which is gone.
    monkeypatch.setattr(writer_room, "utc_now", later)
    with monkeypatch.context() as patch:
        patch.setattr(leases_room, "_host", lambda: "other/pid:[1]")
        store = Store.open(home)
        write(store, plain_run(2, run_id=RUNS[0])[:6])
        store.database.close()
    monkeypatch.undo()
    without_upkeep(monkeypatch)
    with closing(Store.open(home)) as store:
        assert store.load(RUNS[0]).error is not None


# File systems without locks


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Locks fail in the folder `home`, as on a network folder without a lock service."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def refusing(lock: Callable[..., None]) -> Callable[..., None]:
        def refuse(file: Any, how: int, *rest: Any) -> None:
            number = file if isinstance(file, int) else file.fileno()
            if "data" not in os.readlink(f"/proc/self/fd/{number}"):
                raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
            lock(file, how, *rest)

        return refuse

    for name in ("lockf", "flock"):
        monkeypatch.setattr(fcntl, name, refusing(getattr(fcntl, name)))
    return tmp_path / "data"


@pytest.mark.skipif(sys.platform != "linux", reason="tells a file by /proc")
@pytest.mark.parametrize("has_data_folder", [True, False], ids=["data folder", "memory"])
def test_a_folder_without_locks_is_said_at_once_and_runs_are_kept_elsewhere(
    has_data_folder: bool, no_locks: Path, home: Path
) -> None:
    home.mkdir()
    if not has_data_folder:
        no_locks.write_text("no folder")
    with closing(Store.open(home)) as store:
        said = store.warning or ""
        assert f"{home} is on a file system without file locks" in said
        assert "\n" not in said
        write(store, plain_run(2, run_id=RUNS[0]))
        assert store.load(RUNS[0]).turns
        if has_data_folder:
            assert store.path is not None
            assert no_locks in store.path.parents
            assert f"Runs are kept in {store.path.parent} instead" in said
        else:
            assert store.path is None
            assert "RUNS ARE NOT SAVED ON DISK" in said
    assert not (home / FILE).exists()
    with closing(Store.open(home)) as store:
        assert store.counts()["runs"] == int(has_data_folder)


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int has_no_locks(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "/network-folder/") != NULL;
}

static int call(const char *name, int fd, int command, void *argument) {
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    if ((command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK) && has_no_locks(fd)) {
        errno = ENOLCK;
        return -1;
    }
    return real(fd, command, argument);
}

int fcntl(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return call("fcntl", fd, command, argument);
}

int fcntl64(int fd, int command, ...) {
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return call("fcntl64", fd, command, argument);
}

int flock(int fd, int operation) {
    int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
    if (has_no_locks(fd)) {
        errno = ENOLCK;
        return -1;
    }
    return real(fd, operation);
}
"""
TWO_CELLS = """
import time
import nbagent
from nbagent.session.stores import current_store
for n in range(2):
    began = time.monotonic()
    assert nbagent.Agent("offline:demo", tools="none").run("Go.").ok
    print(time.monotonic() - began)
print(len(nbagent.runs()))
print(current_store().path)
print(current_store().warning)
"""


@pytest.mark.proof
@pytest.mark.timed
def test_a_kernel_on_a_network_folder_without_locks_goes_on_within_a_second(
    tmp_path: Path,
) -> None:
    compiler = shutil.which("gcc") or pytest.skip("no compiler for the library that refuses locks")
    (tmp_path / "shim.c").write_text(SHIM)
    library = tmp_path / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-o", library, tmp_path / "shim.c", "-ldl"]
    subprocess.run(command, check=True)
    home = tmp_path / "network-folder" / "home"
    home.mkdir(parents=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", TWO_CELLS],
        cwd=tmp_path,
        env=clean_environment(
            tmp_path,
            LD_PRELOAD=str(library),
            NBAGENT_HOME=str(home),
            XDG_DATA_HOME=str(tmp_path / "data"),
            PYTHONPATH=str(Path(nbagent.__file__).parents[1]),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, runs, path, warning = done.stdout.splitlines()
    assert time.monotonic() - began < 25, "no wait of 30 s"
    assert float(second) < 1 < 25
    assert float(first) < 10
    assert runs == "2"
    assert path.startswith(str(tmp_path / "data"))
    assert "without file locks" in warning
    assert not (home / FILE).exists()


def test_frames_of_an_older_store_are_read_where_it_cannot_be_migrated(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version_6_store(home)
    contents = dump(home / FILE)
    with closing(Store.open(copy_store(home, home.with_name("copy")))) as store:
        right, frames = readings(store), frames_of(store)
    monkeypatch.setattr(os, "replace", _refuse)
    with closing(Store.open(home)) as store:
        assert "RUNS ARE NOT SAVED ON DISK" in (store.warning or "")
        assert frames_of(store) == frames
        assert readings(store) == right
    assert dump(home / FILE) == contents


def _refuse(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EACCES, "refused")
