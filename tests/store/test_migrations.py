"""A migration that is killed, fails, is refused or is begun by many at once loses nothing."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from kernels import clean_environment
from made_records import plain_run, write
from store.dying_process import Forker, at_statement, notes
from store.older_stores import (
    BACKUP,
    FILE,
    SQL,
    copy_store,
    dump,
    finish_upkeep,
    ids_of,
    readings,
    schema,
    version_6_store,
    without_upkeep,
)

import nbagent
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import StoreError
from nbagent.session.stores import close_stores
from nbagent.store.columns import VERSION
from nbagent.store.leases import Lease
from nbagent.store.record_cells import to_us
from nbagent.store.writer import Store

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork and no SIGKILL there")


@dataclass(frozen=True)
class Older:
    """A store of version 6, and what is right after its migration."""

    home: Path
    dump: list[tuple[str, Any]]
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
    pytest.param(17, id="some"),
    pytest.param(1, id="all", marks=[pytest.mark.proof, pytest.mark.timeout(1800)]),
]


@needs_fork
@pytest.mark.parametrize("step", KILL_STEPS)
def test_a_migration_killed_before_any_statement_leaves_the_store_before_or_after_it(
    step: int, older: Older, forker: Forker, tmp_path: Path
) -> None:
    n = 0
    for n in count(1, step):
        home = copy_store(older.home, tmp_path / str(n))
        if forker.run("open", home, die_at=n):
            break
        check_whole(home, older)
        shutil.rmtree(home)
    assert 50 < n < LAST_STATEMENT


ERRORS: dict[str, Callable[[], BaseException]] = {
    "disk": lambda: sqlite3.OperationalError("disk I/O error"),
    "full": lambda: sqlite3.OperationalError("database or disk is full"),
    "interrupt": KeyboardInterrupt,
}


class Failure:
    """Raises an error, and tells that it did."""

    def __init__(self, error: str) -> None:
        self.happened = False
        self._error = ERRORS[error]

    def __call__(self) -> None:
        self.happened = True
        raise self._error()


@pytest.mark.parametrize("step", KILL_STEPS)
@pytest.mark.parametrize("error", ERRORS)
def test_a_migration_that_fails_at_any_statement_leaves_the_store_before_or_after_it(
    error: str, step: int, older: Older, tmp_path: Path
) -> None:
    n = 0
    for n in count(1, step):
        home = copy_store(older.home, tmp_path / str(n))
        fail = Failure(error)
        try:
            with at_statement(n, fail):
                store = Store.open(home)
            with closing(store):
                assert readings(store) == older.readings, "in memory, if not on disk"
        except (KeyboardInterrupt, StoreError):
            assert fail.happened
        if not fail.happened:
            break
        assert not [*home.glob("*.part*")]
        check_whole(home, older)
        shutil.rmtree(home)
    assert 50 < n < LAST_STATEMENT


# Further columns, and versions beside each other

READ = """
import json
import sys
from pathlib import Path
from nbagent.store.columns import VERSION
from nbagent.store.dataframes import read_frame
from nbagent.store.writer import Store
store = Store.open(Path(sys.argv[1]))
frame = read_frame([store], "runs", {})
records = [store.load(run_id).model_dump() for run_id in frame["run_id"]]
cells = [None if cell != cell else cell for cell in frame["n_notices"].astype(float)]
print(json.dumps([VERSION, store.warning, [it["id"] for it in records], cells]))
store.close()
import os
os.environ["NBAGENT_HOME"] = sys.argv[1]
import nbagent
assert nbagent.Agent("offline:demo", tools="none").run("In a later version.", name="later").ok
"""
"""Reads a store by a later version, and adds a run."""
COLUMN = (
    '_word("nbagent_version", "version of nbagent"),',
    '_word("nbagent_version", "version of nbagent"),\n'
    f'    Column(name="n_notices", dtype="Int64", path=COMPUTED, since={VERSION + 1}),',
)
VALUE = ('"conversation_id": run.id', '"n_notices": len(run.notices), "conversation_id": run.id')
"""A column of the next version as somebody would add it: its declaration, and its value."""


def run_code(folder: Path, script: str, home: Path, code: Path) -> str:
    """Run a script with another version of nbagent; returns what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(home)],
        cwd=folder,
        env=clean_environment(folder, PYTHONPATH=str(code), NBAGENT_HOME=str(home)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def later_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with one column more."""
    code = tmp_path_factory.mktemp("later")
    here = Path(nbagent.__file__).parent
    shutil.copytree(here, code / "nbagent", ignore=shutil.ignore_patterns("__pycache__"))
    for file, (old, new) in (("columns.py", COLUMN), ("rows.py", VALUE)):
        path = code / "nbagent" / "store" / file
        text = path.read_text("utf-8")
        assert text.count(old) == 1
        path.write_text(text.replace(old, new), "utf-8")
    return code


@pytest.mark.parametrize("version", [6, VERSION])
def test_a_later_version_with_a_further_column_opens_a_store_with_all_its_rows(
    version: int, older: Older, later_code: Path, tmp_path: Path
) -> None:
    home = copy_store(older.home, tmp_path / "home")
    if version == VERSION:
        Store.open(home).close()
    later, warning, ids, cells = json.loads(run_code(tmp_path, READ, home, later_code))
    assert (later, warning) == (VERSION + 1, None)
    assert ids == [*older.readings["records"]]
    assert cells == [*[None] * (len(ids) - 1), 0], "the last one was at work and is ended now"
    assert (home / f"runs.v{version}-backup.sqlite").exists()

    before = (home / FILE).read_bytes()
    monkey = "its runs can be read and none can be added. Upgrade nbagent"
    with closing(Store.open(home)) as store:
        assert store.warning is None
        newer = f"version {VERSION + 1} of the store; this one writes {VERSION}), so {monkey}"
        assert newer in store.database.read_only
        read = readings(store)
        (added,) = set(read["records"]) - set(older.readings["records"])
        assert read["records"][added].prompt == "In a later version."
        for run_id, record in older.readings["records"].items():
            assert read["records"][run_id] == record
        with pytest.raises(StoreError, match=monkey):
            write(store, plain_run(1, run_id="a" * 16))
        with pytest.raises(StoreError, match=monkey):
            store.forget(added)
    agent = nbagent.Agent("offline:demo", tools="none")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBAGENT_HOME", str(home))
        assert len(nbagent.runs()) == len(ids) + 1
        with pytest.raises(StoreError, match=monkey) as raised:
            agent.run("Now?")
        assert "\n" not in str(raised.value)
        close_stores()
    assert (home / FILE).read_bytes() == before
    cells = json.loads(run_code(tmp_path, READ, home, later_code))[-1]
    assert cells == [*[None] * (len(ids) - 1), 0, 0]


def test_a_store_that_needs_a_later_version_names_it_and_stays_as_it_is(
    older: Older, tmp_path: Path
) -> None:
    home = copy_store(older.home, tmp_path / "home")
    Store.open(home).close()
    with closing(sqlite3.connect(home / FILE)) as c:
        c.execute(f"PRAGMA user_version = {VERSION + 2}")
        c.execute(f"UPDATE facts SET value = {VERSION + 2} WHERE name = 'oldest reader'")
        c.commit()
    before = (home / FILE).read_bytes()
    later = VERSION + 2
    said = rf"\(version {later} of the store; this one reads up to {VERSION}, and needs {later}\)"
    with pytest.raises(StoreError, match=said):
        Store.open(home)
    assert (home / FILE).read_bytes() == before


def earlier_code(code: Path, commit: str) -> Path:
    """Write the package of an earlier commit into a folder."""
    git = shutil.which("git") or pytest.skip("git is not installed, which has the earlier code")
    command = [git, "archive", commit, "nbagent"]
    archived = subprocess.run(command, cwd=SQL.parents[3], capture_output=True, check=False)
    if archived.returncode:
        pytest.skip("the history here does not reach back to that version")
    subprocess.run(["tar", "-x"], input=archived.stdout, cwd=code, check=True)
    return code


@pytest.fixture(scope="module")
def code_of_6(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The code that wrote version 6."""
    return earlier_code(tmp_path_factory.mktemp("six"), "f63caa8")


REFUSED = """
import nbagent
from nbagent.contracts.errors import StoreError
for use in (nbagent.runs, lambda: nbagent.Agent(model="offline:demo").run("Go.")):
    try:
        use()
        print("used")
    except StoreError as error:
        print(str(error))
"""


def test_the_code_of_version_6_refuses_a_migrated_store_and_changes_nothing(
    older: Older, code_of_6: Path, tmp_path: Path
) -> None:
    home = copy_store(older.home, tmp_path / "home")
    with closing(Store.open(home)) as store:
        finish_upkeep(store)
    before = (home / FILE).read_bytes()
    said = run_code(tmp_path, REFUSED, home, code_of_6).splitlines()
    assert len(said) == 2
    for line in said:
        assert f"version is {VERSION}, this nbagent knows up to 6. Upgrade" in line
    assert (home / FILE).read_bytes() == before
    with closing(Store.open(home)) as store:
        assert readings(store) == older.readings


AT_WORK = """
import nbagent
assert len(nbagent.runs())
print("opened", flush=True)
input()
assert nbagent.Agent(model="offline:demo", tools="none").run("Go.", name="beside").ok
"""


def test_a_store_is_not_migrated_while_a_process_of_version_6_has_it_open(
    older: Older, code_of_6: Path, tmp_path: Path
) -> None:
    home = copy_store(older.home, tmp_path / "home")
    with subprocess.Popen(
        [sys.executable, "-c", AT_WORK],
        cwd=tmp_path,
        env=clean_environment(tmp_path, PYTHONPATH=str(code_of_6), NBAGENT_HOME=str(home)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "opened\n"
        used = rf"is in use by an earlier nbagent \(process {process.pid} on .*Restart that kernel"
        for _ in range(2):
            with pytest.raises(StoreError, match=used):
                Store.open(home)
        assert not (home / BACKUP).exists()
        process.communicate("\n", timeout=60)
        assert process.returncode == 0
    with closing(Store.open(home)) as store:
        assert store.load(store.find("beside")).ok
        assert len(ids_of(store)) == len(older.readings["records"]) + 1
        assert not set(older.readings["records"]) - set(ids_of(store))


LEASES: dict[str, tuple[dict[str, Any], bool]] = {
    "this process": ({}, True),
    "a process that is gone": ({"pid": 999_999_999}, False),
    "an earlier boot": ({"boot_id": "earlier"}, False),
    "another machine": ({"host": "other/pid:[1]"}, True),
    "another machine, a minute ago": (
        {"host": "other/pid:[1]", "heartbeat": -timedelta(minutes=1)},
        False,
    ),
    "another machine, whose clock is ahead": (
        {"host": "other/pid:[1]", "heartbeat": timedelta(minutes=1)},
        True,
    ),
    "another machine, before the clock jumped back": (
        {"host": "other/pid:[1]", "heartbeat": timedelta(days=1)},
        False,
    ),
    "without a time of start, before the clock jumped back": (
        {"pid_started": None, "heartbeat": timedelta(days=1)},
        False,
    ),
}


@pytest.mark.parametrize("who", LEASES)
def test_a_lease_of_a_live_process_keeps_the_store_from_being_migrated(
    who: str, older: Older, tmp_path: Path
) -> None:
    changes, is_alive = LEASES[who]
    home = copy_store(older.home, tmp_path / "home")
    lease = asdict(Lease.of_this_process(utc_now())) | changes
    if isinstance(lease["heartbeat"], timedelta):
        lease["heartbeat"] = to_us(utc_now() + lease["heartbeat"])
    with closing(sqlite3.connect(home / FILE)) as c:
        names = ", ".join(lease)
        places = ", ".join("?" * len(lease))
        c.execute(f"INSERT INTO leases({names}) VALUES({places})", [*lease.values()])
        c.commit()
    if is_alive:
        with pytest.raises(StoreError, match="in use by an earlier nbagent"):
            Store.open(home)
        assert not (home / BACKUP).exists()
        assert schema(home / FILE) == (6, older.schemas[6])
    else:
        with closing(Store.open(home)) as store:
            assert readings(store) == older.readings


# Disks that are nearly full


def free_bytes(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    """Let disks say that they have this free."""
    usage = shutil.disk_usage(".")._replace(free=free)

    def disk_usage(path: Path) -> Any:
        return usage

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)


def test_a_nearly_full_disk_is_said_before_anything_is_changed(
    older: Older, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copy_store(older.home, tmp_path / "home")
    free_bytes(monkeypatch, 19_000_000)
    said = f"version 6, and bringing it to version {VERSION} needs 20 MB .* 19 MB are free. Nothing"
    with pytest.raises(StoreError, match=said):
        Store.open(home)
    assert not [*home.glob("*backup*")]
    assert dump(copy_store(home, tmp_path / "copy") / FILE) == older.dump
    monkeypatch.undo()
    without_upkeep(monkeypatch)
    check_whole(home, older)


@needs_fork
@pytest.mark.parametrize("limit", [0, 60_000, 150_000, 212_000, 240_000])
def test_a_disk_that_is_full_in_the_middle_leaves_the_store_before_or_after_it(
    limit: int, older: Older, forker: Forker, tmp_path: Path
) -> None:
    home = copy_store(older.home, tmp_path / "home")
    assert forker.run("open limited", home, limit=limit)
    assert len(notes(home.with_name("notes"))) == 1
    (line,) = notes(home.with_name("notes"))
    assert line.startswith("RUNS ARE NOT SAVED ON DISK") == (limit < 200_000)
    # Without room for any file the log cannot be read.
    assert line.endswith(" 37 runs") or not limit
    assert not [*home.glob("*.part*")]
    check_whole(home, older)


@pytest.mark.proof
@pytest.mark.parametrize("megabytes", [1, 2])
def test_a_store_on_a_small_disk_is_said_to_need_more(
    megabytes: int, older: Older, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = f"size={megabytes}m"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a disk")
    try:
        home = copy_store(older.home, disk / "home")
        with pytest.raises(StoreError, match=r"Nothing was changed\. Free some space"):
            Store.open(home)
        assert dump(copy_store(home, tmp_path / "copy") / FILE) == older.dump
        # Now a disk that is full although it said otherwise.
        free_bytes(monkeypatch, 10**9)
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        (disk / "filler").write_bytes(b"x" * (free - 40_000))
        with closing(Store.open(home)) as store:
            assert "NOT SAVED ON DISK" in (store.warning or "")
            assert readings(store) == older.readings
        assert not [*home.glob("*backup*")]
        (disk / "filler").unlink()
        if megabytes > 1:
            check_whole(copy_store(home, tmp_path / "home"), older)
    finally:
        subprocess.run(["umount", disk], check=True)


# Many at once


@needs_fork
@pytest.mark.parametrize(
    ("processes", "version"),
    [
        (8, 6),
        (8, 0),
        *(pytest.param(n, v, marks=pytest.mark.proof) for n in (32, 64) for v in (0, 6)),
    ],
)
def test_processes_that_open_a_store_at_once_all_open_it_and_one_migrates(
    processes: int, version: int, older: Older, forker: Forker, tmp_path: Path
) -> None:
    for n in range(3):
        home = tmp_path / str(n)
        if version:
            copy_store(older.home, home)
        else:
            home.mkdir()
        assert forker.run("open noted", home, times=processes)
        said = sorted(notes(home / "notes"))
        runs = 37 if version else 0
        assert said == [f"None {runs} [{version}]"] + [f"None {runs} []"] * (processes - 1)
        assert [file.name for file in home.glob("*backup*")] == [BACKUP] * bool(version)
        if version:
            (home / "notes").unlink()
            check_whole(home, older)
