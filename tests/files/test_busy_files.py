"""Files that another program uses for a moment: tried again, then one clear error."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nbagent.contracts.errors import ToolError
from nbagent.files import retrying
from nbagent.files.mounts import Mounts
from nbagent.files.retrying import PAUSES_S
from nbagent.files.writing import read_state, replace


def sharing_violation(winerror: int) -> OSError:
    """The error of Windows for a file that another program has open."""
    error: Any = PermissionError(errno.EACCES, "used by another process")
    error.winerror = winerror
    return error


BUSY: dict[str, OSError] = {
    "EBUSY": OSError(errno.EBUSY, "busy"),
    "EAGAIN": OSError(errno.EAGAIN, "again"),
    "EWOULDBLOCK": OSError(errno.EWOULDBLOCK, "again"),
    "EINTR": OSError(errno.EINTR, "interrupted"),
    "sharing violation": sharing_violation(32),
    "lock violation": sharing_violation(33),
}
OTHER: dict[str, OSError] = {
    "EACCES": PermissionError(errno.EACCES, "denied"),
    "EIO": OSError(errno.EIO, "broken"),
    "access denied": sharing_violation(5),
}


def no_pause(seconds: float) -> None:
    """Take no time."""


class Faulty:
    """A call of the system for names in the project that fails for the first `times`."""

    def __init__(self, step: str, error: OSError, times: int, patch: pytest.MonkeyPatch) -> None:
        self.real, self.error, self.times, self.tries = getattr(os, step), error, times, 0
        patch.setattr(os, step, self)

    def __call__(self, name: Any, *args: Any, **kwargs: Any) -> Any:
        if str(name).endswith((".txt", "tmp-")) or ".nbagent-tmp-" in str(name):
            self.tries += 1
            if self.tries <= self.times:
                raise self.error
        return self.real(name, *args, **kwargs)


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounts:
    (tmp_path / "old.txt").write_text("old")
    monkeypatch.setattr(retrying.time, "sleep", no_pause)
    return Mounts.of(tmp_path)


def read(mounts: Mounts) -> bytes | None:
    return read_state(mounts.locate("old.txt")).data


def write(mounts: Mounts) -> bytes | None:
    return replace(mounts.locate("old.txt"), lambda _: b"new")[1]


STEPS: dict[str, tuple[Any, str]] = {
    "read: open": (read, "open"),
    "write: open": (write, "open"),
    "write: rename": (write, "replace"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", BUSY)
def test_a_file_that_is_in_use_for_a_moment_is_tried_again(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch, step: str, error: str
) -> None:
    act, call = STEPS[step]
    faulty = Faulty(call, BUSY[error], 3, monkeypatch)
    assert act(mounts) in (b"old", b"new")
    assert faulty.tries > 3


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", BUSY)
def test_a_file_that_stays_in_use_is_an_error_that_says_so(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str, error: str
) -> None:
    act, call = STEPS[step]
    faulty = Faulty(call, BUSY[error], 10**6, monkeypatch)
    with pytest.raises(ToolError, match=r"old\.txt is in use by another program; try again"):
        act(mounts)
    assert faulty.tries == len(PAUSES_S) + 1
    assert sum(PAUSES_S) <= 1
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["old.txt"]
    assert (tmp_path / "old.txt").read_text() == "old"


@pytest.mark.parametrize("error", OTHER)
def test_other_errors_are_not_tried_again(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    faulty = Faulty("open", OTHER[error], 10**6, monkeypatch)
    with pytest.raises(ToolError):
        read(mounts)
    assert faulty.tries == 1


def test_what_was_saved_while_a_rename_was_tried_again_is_not_overwritten(
    mounts: Mounts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[bytes | None] = []

    def editor(seconds: float) -> None:
        (tmp_path / "old.txt").write_text("saved by an editor")

    Faulty("replace", BUSY["EBUSY"], 1, monkeypatch)
    monkeypatch.setattr(retrying.time, "sleep", editor)

    def make(before: Any) -> bytes:
        seen.append(before.data)
        return b"new"

    replace(mounts.locate("old.txt"), make)
    assert seen == [b"old", b"saved by an editor"]


LEASE = """
import fcntl, os, signal, sys, time
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
print("leased", flush=True)
signal.sigwait({signal.SIGIO})  # somebody else opens the file, and gets EWOULDBLOCK
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux'")
def test_a_file_whose_lease_is_given_back_is_read(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    file.write_text("old")
    command = [sys.executable, "-c", LEASE, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        if holder.stdout.readline() != "leased\n":
            pytest.skip("this file system has no leases")
        assert read(Mounts.of(tmp_path)) == b"old"
