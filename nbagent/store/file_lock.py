"""A lock on an open file between processes and threads: flock; on Windows a locked byte.

Holders need it for microseconds. The wait is limited, because a suspended process may hold it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Generator

LOCK_WAIT_S = 5.0
_RETRY_PAUSE_S = 0.0005
_LOCK_OFFSET_BYTES = 1 << 30
"""Offset of the byte that is locked on Windows, far behind the end of the file: Windows also
prevents other processes from reading a locked byte."""

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
    """Hold the lock of an open file; two descriptors of one file exclude each other.

    Raises:
        TimeoutError: another holder did not release it within `wait_s`.
        OSError: the file system does not support locks.
    """
    until = time.monotonic() + wait_s
    while True:
        try:
            _acquire(fd)
            break
        except (BlockingIOError, PermissionError):  # Windows raises the second
            if time.monotonic() > until:
                text = f"another process has held the lock for {wait_s:.0f} s"
                raise TimeoutError(text) from None
        time.sleep(_RETRY_PAUSE_S)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # closing the file releases the lock too
            _release(fd)


_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP}


def has_file_locks(fd: int) -> bool:
    """True if the file system of an open file supports the locks that SQLite needs.

    A network folder whose server runs no lock service answers ENOLCK. SQLite takes that for a lock
    of another process, and would wait for it.
    """
    if sys.platform == "win32":
        return True
    for lock in (fcntl.lockf, fcntl.flock):
        try:
            lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock(fd, fcntl.LOCK_UN)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
    return True
