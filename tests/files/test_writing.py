"""Writing whole files: all or nothing, under a lock, with the file's own mode."""

from __future__ import annotations

import errno
import gc
import os
import stat
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts.errors import ToolError
from nbagent.files import writing
from nbagent.files.mounts import Mounts
from nbagent.files.opening import open_root
from nbagent.files.writing import ABSENT, FileState, locked, read_state, replace


@pytest.fixture
def mounts(tmp_path: Path) -> Mounts:
    (tmp_path / "old.txt").write_text("old")
    return Mounts.of(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_new_file_gets_its_folders_and_the_usual_mode(mounts: Mounts, tmp_path: Path) -> None:
    place = mounts.locate("a/b/c.txt")
    umask = os.umask(0o027)
    try:
        assert replace(place, lambda state: b"new" if state == ABSENT else b"") == (ABSENT, b"new")
    finally:
        os.umask(umask)
    made = tmp_path / "a" / "b" / "c.txt"
    assert read_state(place).data == made.read_bytes() == b"new"
    assert stat.S_IMODE(made.stat().st_mode) == 0o640
    assert names(tmp_path) == ["a", "b", "c.txt", "old.txt"]


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o664], ids=oct)
def test_an_old_file_keeps_its_mode(mounts: Mounts, tmp_path: Path, mode: int) -> None:
    (tmp_path / "old.txt").chmod(mode)
    replace(mounts.locate("old.txt"), lambda _: b"new")
    assert stat.S_IMODE((tmp_path / "old.txt").stat().st_mode) == mode


def test_a_file_marked_read_only_is_left_alone(mounts: Mounts, tmp_path: Path) -> None:
    (tmp_path / "old.txt").chmod(0o444)
    with pytest.raises(ToolError, match="marked read only"):
        replace(mounts.locate("old.txt"), lambda _: b"new")
    assert (tmp_path / "old.txt").read_text() == "old"


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()], ids=repr)
def test_what_fails_on_the_way_leaves_the_old_file_and_nothing_else(
    mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: BaseException
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(os, step, broken)
    kind = ToolError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(kind):
        replace(mounts.locate("old.txt"), lambda _: b"new")
    assert names(tmp_path) == ["old.txt"]
    assert (tmp_path / "old.txt").read_text() == "old"


@pytest.mark.parametrize("edits", [2, 100])
def test_what_an_editor_saves_meanwhile_is_not_overwritten(
    mounts: Mounts, tmp_path: Path, edits: int
) -> None:
    seen: list[bytes | None] = []

    def make(before: FileState) -> bytes:
        seen.append(before.data)
        if len(seen) <= edits:
            (tmp_path / "old.txt").write_text("edit " + "x" * len(seen))
        return b"new"

    if edits == 2:
        before, _ = replace(mounts.locate("old.txt"), make)
        assert seen == [b"old", b"edit x", b"edit xx"]
        assert before.data == b"edit xx"
        assert (tmp_path / "old.txt").read_text() == "new"
    else:
        with pytest.raises(ToolError, match="again and again"):
            replace(mounts.locate("old.txt"), make)
        assert (tmp_path / "old.txt").read_text() == "edit " + "x" * len(seen)
    assert names(tmp_path) == ["old.txt"]


def test_a_lock_that_is_held_for_ever_ends_in_an_error(tmp_path: Path) -> None:
    first, second = open_root(tmp_path), open_root(tmp_path)
    with locked(first), pytest.raises(ToolError) as caught, locked(second, wait_s=0.05):
        pass
    assert caught.value.code == "E_TIMEOUT"
    with locked(second, wait_s=0.05):
        pass


def test_where_folders_have_no_locks_one_in_a_file_lets_one_in_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writing._flock  # pyright: ignore[reportPrivateUsage]

    def only_files(descriptor: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "no lock on a folder")
        real(descriptor, operation)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(writing, "_flock", only_files)
    inside = highest = 0

    def work() -> None:
        nonlocal inside, highest
        for _ in range(20):
            with closing(open_root(tmp_path)) as folder, locked(folder):
                inside += 1
                highest = max(highest, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert highest == 1


def test_open_folders_are_given_back(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("no list of open files here")
    (tmp_path / "a" / "b").mkdir(parents=True)
    mounts = Mounts.of(tmp_path)
    replace(mounts.locate("a/b/f.txt"), lambda _: b"x")
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a/b/f.txt", "a/b", "a/b/f.txt/c", "n/n") * 20:
        with suppress(ToolError):
            replace(mounts.locate(path), lambda _: b"x")
    assert len(os.listdir("/proc/self/fd")) <= before
