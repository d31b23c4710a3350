"""A lock on an open file, for processes and threads: flock, on Windows a byte far behind its end.

It is held for microseconds; a holder that stands still (a suspended process) is not waited for
without end.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Generator

LOCK_WAIT_S = 5.0
_RETRY_PAUSE_S = 0.0005
_LOCK_OFFSET_BYTES = 1 << 30
"""Windows keeps others from reading a locked byte: one that holds nothing is locked."""

if sys.platform == "win32":
    import msvcrt

    def _acquire(fd: int) -> None:
        os.lseek(fd, _LOCK_OFFSET_BYTES, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _release(fd: int) -> None:
        os.lseek(fd, _LOCK_OFFSET_BYTES, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _acquire(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _release(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


@contextlib.contextmanager
def locked(fd: int, *, wait_s: float = LOCK_WAIT_S) -> Generator[None]:
    """Hold the lock of an open file; each opening of the file is another holder.

    Raises:
        TimeoutError: somebody else has held it for so long.
        OSError: the file system knows no locks.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            _acquire(fd)
            break
        except (BlockingIOError, PermissionError):  # the second one is Windows'
            if time.monotonic() > until:
                text = f"another process has held the lock for {wait_s:.0f} s"
                raise TimeoutError(text) from None
        time.sleep(_RETRY_PAUSE_S)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # closing the file gives it back too
            _release(fd)
