"""A lock between processes on an open file: flock, on Windows a byte far behind its end.

Locks are held for microseconds. A holder that stands still (a suspended process) is not waited
for without end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator

PATIENCE_S = 5.0
_FIRST_PAUSE_S = 0.0001
_LONGEST_PAUSE_S = 0.004
_FAR_BYTES = 1 << 30
"""Windows keeps others from reading a locked byte: one that holds nothing is locked."""

if sys.platform == "win32":
    import msvcrt

    def _take(fd: int) -> None:
        os.lseek(fd, _FAR_BYTES, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _give_back(fd: int) -> None:
        os.lseek(fd, _FAR_BYTES, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _take(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _give_back(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(fd: int, *, patience_s: float) -> Generator[None]:
    """Hold the lock of an open file.

    Raises:
        TimeoutError: another process has held it for so long.
        OSError: the file system knows no locks.
    """
    _wait(fd, patience_s)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # closing the file gives it back too
            _give_back(fd)


def _wait(fd: int, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return _take(fd)
        except (BlockingIOError, PermissionError):  # the second one is Windows'
            if time.monotonic() > until:
                raise TimeoutError(
                    f"another process has held the audit log for {patience_s:.0f} s"
                ) from None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
