"""SQLite replays a log that lies beside a store. One that nbagent did not write is not replayed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from kernels import clean_environment
from test_store_trust import ask, files_of, forget_entries, ids, kernel, use_once

import nbagent
from nbagent.__main__ import main

KILLED = """
import os, signal, sys, nbagent
print(nbagent.Agent(model="offline:demo", tools=[], quiet=True).run("hello").id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def copy_of(home: Path, project: Path) -> Path:
    """A copy of the store that the attacker has."""
    copy = project.parent / "attacker" / "runs.sqlite"
    copy.parent.mkdir()
    shutil.copyfile(home / "runs.sqlite", copy)
    return copy


def planted_log(project: Path, home: Path) -> Path:
    """The log of another process that replaces all runs of a copy of the store."""
    copy = copy_of(home, project)
    with closing(sqlite3.connect(copy, isolation_level=None)) as store:
        store.execute("PRAGMA wal_autocheckpoint = 0")
        store.execute("UPDATE runs SET prompt = 'planted'")
        log = Path(f"{copy}-wal").read_bytes()
    assert len(log) > 32
    Path(f"{home}/runs.sqlite-wal").write_bytes(log)
    return home / "runs.sqlite-wal"


def planted_journal(project: Path, home: Path) -> Path:
    """The journal of another process, which holds the pages of a copy of the store."""
    copy = copy_of(home, project)
    with closing(sqlite3.connect(copy, isolation_level=None)) as store:
        store.execute("PRAGMA journal_mode = DELETE")
        store.execute("PRAGMA cache_size = 1")
        store.execute("BEGIN IMMEDIATE")
        store.execute("UPDATE runs SET prompt = 'planted'")
        store.execute("CREATE TABLE filler AS SELECT randomblob(90000)")
        journal = Path(f"{copy}-journal").read_bytes()
    assert journal
    Path(f"{home}/runs.sqlite-journal").write_bytes(journal)
    return home / "runs.sqlite-journal"


@pytest.mark.parametrize("plant", [planted_log, planted_journal])
def test_file_of_a_merge_beside_an_own_store_is_not_replayed(
    tmp_path: Path, plant: Callable[[Path, Path], Path]
) -> None:
    project, home = tmp_path / "project", tmp_path / "project" / ".nbagent"
    run_id = use_once(project)
    planted = plant(project, home)
    before = files_of(home)
    with kernel(project):
        made = ask("private")
        assert f"{planted.name} beside it was not written by nbagent" in made.record.notices[0]
        assert ids() == [made.id]
        with pytest.raises(nbagent.UsageError, match="no run"):
            nbagent.open_run(run_id)
    assert {k: v for k, v in files_of(home).items() if not k.endswith("-shm")} == before
    planted.unlink()
    with kernel(project):
        assert ids() == [run_id]
        assert nbagent.open_run(run_id).record.prompt == "hello"
        assert not ask().record.notices


@pytest.mark.parametrize("end", ["-journal", "-wal", "-shm"])
@pytest.mark.parametrize("has_entry", [True, False])
def test_empty_database_of_a_clone_with_a_file_beside_it_is_no_new_store(
    tmp_path: Path, end: str, has_entry: bool
) -> None:
    project, home = tmp_path / "project", tmp_path / "project" / ".nbagent"
    use_once(project)
    (home / "runs.sqlite").unlink()
    if not has_entry:
        forget_entries()
    elif end == "-shm":
        pytest.skip("SQLite never trusts an index without its log")
    with closing(sqlite3.connect(home / "runs.sqlite")) as store:
        store.execute("PRAGMA journal_mode = WAL")
    (home / f"runs.sqlite{end}").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(5000))
    before = files_of(home)
    with kernel(project):
        made = ask("private")
        assert "is not yours" in made.record.notices[0]
    assert files_of(home) == before


@pytest.mark.parametrize("has_attributes", [True, False])
def test_log_that_a_killed_process_left_is_the_person_s_own(
    tmp_path: Path, has_attributes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    environment = clean_environment(project)
    environment.pop("NBAGENT_HOME")
    environment |= {name: os.environ[name] for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME")}
    code = KILLED
    if not has_attributes:  # as on macOS and Windows
        code = f"import os\ndel os.setxattr, os.getxattr\n{KILLED}"
        for name in ("setxattr", "getxattr"):
            monkeypatch.delattr(os, name, raising=False)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (project / ".nbagent/runs.sqlite-wal").stat().st_size
    with kernel(project):
        assert ids() == [done.stdout.strip()]
        assert not ask().record.notices
        assert main(["doctor"]) == 0
