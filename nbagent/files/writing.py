"""Replaces one file as a whole, under a lock: read, make the new content, write a new file, sync,
rename.

`patching` or the caller makes the new content. A hard link is replaced and not written through; its
mode is kept, and its owner if possible.
"""

from __future__ import annotations

import errno
import hashlib
import os
import random
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from nbagent.contracts.errors import ToolError
from nbagent.files.mounts import MountedPath
from nbagent.files.names import visible
from nbagent.files.opening import Folder, NotRegular, failure
from nbagent.files.retrying import retry_busy

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

TEMPORARY = ".nbagent-tmp-"
"""Prefix of unfinished files; listings leave them out."""
MAX_CHANGED_BYTES = 64_000_000
"""A larger file is not replaced: hashing it would take longer than a stop may wait."""
_LOCK_WAIT_S = 5.0
_MAX_TRIES = 20
_RETRY_PAUSE_S = 0.002
_LOCKED_ERRNOS = frozenset({errno.EAGAIN, errno.EACCES, errno.EDEADLK})
_UNSUPPORTED_ERRNOS = frozenset(
    {errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EOPNOTSUPP}
)


class FileState(NamedTuple):
    """The state of a file."""

    data: bytes | None
    """None if the file does not exist."""
    sha: str | None


ABSENT = FileState(None, None)


def sha_of_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_bytes(descriptor: int, *, max_bytes: int) -> bytes:
    """Read an open file from its position, with a limit of bytes."""
    with open(descriptor, "rb", closefd=False) as file:
        return file.read(max_bytes)


def read_state(path: MountedPath) -> FileState:
    """Read a file; ToolError if it cannot be read or is too large to be replaced."""
    try:
        return _state(path.root, path.parts, path)
    except OSError as error:
        raise failure(error, path.text) from None


def _state(folder: Folder, parts: tuple[str, ...], path: MountedPath) -> FileState:
    try:
        descriptor = folder.open_file(parts)
    except FileNotFoundError:
        return ABSENT
    try:
        size = os.fstat(descriptor).st_size
        data = read_bytes(descriptor, max_bytes=min(size, MAX_CHANGED_BYTES) + 1)
    finally:
        os.close(descriptor)
    if max(size, len(data)) > MAX_CHANGED_BYTES:
        raise ToolError(
            f"{visible(path.text)} has more than {MAX_CHANGED_BYTES:,} bytes, the fixed limit for "
            "files to replace; write another file, or ask the person to take this one away",
            code="E_WRITE_LIMIT",
        )
    return FileState(data, sha_of_bytes(data))


def replace(path: MountedPath, make: Callable[[FileState], bytes]) -> tuple[FileState, bytes]:
    """Replace a file by what `make` returns for its state, under the lock; return the old state and
    the new content.

    Missing folders are created; `make` is called twice then. A change without the lock, as by an
    editor, is not overwritten: `make` is called again with the new content.

    Raises:
        ToolError: from `make`, or it cannot be written; nothing was changed.
    """
    *above, name = path.parts
    try:
        try:
            folder = path.root.folder(above)
        except FileNotFoundError:
            # Ask `make` first, so that a refused change creates no folders.
            make(ABSENT)
            folder = path.root.folder(above, create=True)
        with closing(folder), locked(folder):
            for _ in range(_MAX_TRIES):
                old = _check_replaceable(folder, name, path)
                before = _state(folder, (name,), path)
                data = make(before)
                if _write_and_rename(folder, name, data, old):
                    return before, data
    except OSError as error:
        raise failure(error, path.text) from None
    raise ToolError(
        f"{visible(path.text)} is written by another program again and again; try again later",
        code="E_PRECONDITION_FAILED",
    )


def _stat(folder: Folder, name: str) -> os.stat_result | None:
    try:
        return folder.lstat(name)
    except FileNotFoundError:
        return None


def _check_replaceable(folder: Folder, name: str, path: MountedPath) -> os.stat_result | None:
    status = _stat(folder, name)
    if status is None:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise NotRegular(status.st_mode)
    if not status.st_mode & 0o222:
        raise ToolError(
            f"{visible(path.text)} is marked read only; ask the person to change that",
            code="E_DENIED",
        )
    return status


def _write_and_rename(folder: Folder, name: str, data: bytes, old: os.stat_result | None) -> bool:
    """Write a new file and rename it over the old one; False if that was changed meanwhile."""
    # The name depends on the file only, so that the next writer removes the rest of a killed one.
    temporary = TEMPORARY + hashlib.sha256(name.encode()).hexdigest()[:16]
    with suppress(FileNotFoundError):
        folder.remove(temporary)  # safe under the lock: no other writer uses it
    try:
        # Private until `copy_owner` sets the old mode: nobody else may read it meanwhile.
        mode = 0o666 if old is None else 0o600
        descriptor = folder.new_file(temporary, mode)
        try:
            if old is not None:
                copy_owner(descriptor, old)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

        def rename() -> bool:
            # Compared before each try: what another program wrote meanwhile is not overwritten.
            if _version(_stat(folder, name)) != _version(old):
                return False
            folder.replace(temporary, name)
            return True

        if not retry_busy(rename):
            folder.remove(temporary)
            return False
    except BaseException:
        # BaseException: an interrupt must not leave an unfinished file either.
        with suppress(OSError):
            folder.remove(temporary)
        raise
    with suppress(OSError):  # some file systems cannot sync a folder
        folder.sync()
    return True


def _version(status: os.stat_result | None) -> tuple[int, ...]:
    return (status.st_ino, status.st_mtime_ns, status.st_size) if status else ()


def copy_owner(descriptor: int, old: os.stat_result) -> None:
    """Copy owner and mode of the old file, as far as the system allows."""
    # Owner first: changing it may clear bits of the mode.
    with suppress(OSError, AttributeError):  # Windows has neither function
        os.fchown(descriptor, old.st_uid, old.st_gid)
    with suppress(OSError, AttributeError):
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode) & 0o777)


@contextmanager
def locked(folder: Folder, *, wait_s: float = _LOCK_WAIT_S) -> Generator[None]:
    """Keep other writers out of a folder: threads and processes of this machine.

    The folder itself is locked (flock), so that no lock file remains in it. If that does not work
    (NFS, Windows), a temporary file of the system is locked, named by a hash. The caller opens the
    folder only for this: closing it releases the lock.

    Raises:
        ToolError: `E_TIMEOUT`, another writer holds the lock for too long.
    """
    until_s = time.monotonic() + wait_s
    if folder.descriptor is not None and _acquire_lock(folder.descriptor, until_s):
        try:
            yield
        finally:
            with suppress(OSError):
                _flock(folder.descriptor, fcntl.LOCK_UN)
        return
    elsewhere = os.open(_lock_file(folder), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        # Without any lock, the check before the rename still notices most other writers.
        _acquire_lock(elsewhere, until_s)
        yield
    finally:
        os.close(elsewhere)


def _acquire_lock(descriptor: int, until_s: float) -> bool:
    """Wait for the lock; False if it cannot be locked."""
    while True:
        try:
            if sys.platform == "win32":
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            else:
                _flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno in _UNSUPPORTED_ERRNOS:
                return False
            if error.errno not in _LOCKED_ERRNOS:
                raise
        if time.monotonic() > until_s:
            raise ToolError(
                "another writer has held this folder for too long; try again in a moment",
                code="E_TIMEOUT",
            )
        # Random, so that waiting writers do not retry at the same moments.
        time.sleep(_RETRY_PAUSE_S * random.random())


def _flock(descriptor: int, operation: int) -> None:
    fcntl.flock(descriptor, operation)


def _lock_file(folder: Folder) -> Path:
    owner = getattr(os, "getuid", lambda: 0)()
    home = Path(tempfile.gettempdir()) / f"nbagent-locks-{owner}"
    home.mkdir(mode=0o700, exist_ok=True)
    return home / hashlib.sha256(os.fsencode(folder.identity)).hexdigest()[:32]
