"""One writer at a time in a folder, over threads and processes of this machine.

The lock is put on the folder itself (flock), so that nothing is left lying in it. Where that does
not work (NFS, Windows), it is a file in the system's folder for temporary files, named by a hash;
writers on other machines are not kept out then.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import random
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbagent.contracts.errors import ToolError
from nbagent.files.opening import AnyFolder
from nbagent.files.paths import PathFolder

_WAIT_S = 15.0
_FIRST_NAP_S = 0.0005
_LONGEST_NAP_S = 0.004
_TAKEN = frozenset({errno.EAGAIN, errno.EACCES, errno.EDEADLK})
_UNABLE = frozenset({errno.EBADF, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EOPNOTSUPP})


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return False


_fcntl: Any = _module("fcntl")
_msvcrt: Any = _module("msvcrt")


@contextmanager
def locked(
    folder: AnyFolder, *, wait_s: float = _WAIT_S, stopped: Callable[[], bool] = lambda: False
) -> Generator[None]:
    """Hold the lock of a folder. It must have been opened by the caller, for this alone.

    Args:
        folder: to be locked.
        wait_s: for another writer.
        stopped: True ends the waiting.

    Raises:
        ToolError: `E_TIMEOUT`, another writer holds it for too long, or `E_INTERRUPTED`.
    """
    until = _Until(time.monotonic() + wait_s, stopped)
    descriptor = folder.descriptor
    on_folder = descriptor is not None and bool(_fcntl)
    if on_folder and _taken(lambda: _flock(descriptor), until):
        try:
            yield
        finally:
            with suppress(OSError):
                _fcntl.flock(descriptor, _fcntl.LOCK_UN)
        return
    elsewhere = os.open(_lock_file(folder), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _taken(lambda: _flock(elsewhere) if _fcntl else _windows_lock(elsewhere), until)
        yield
    finally:
        os.close(elsewhere)  # This gives back the lock, too.


@dataclass(frozen=True, slots=True)
class _Until:
    """How long a lock is waited for."""

    monotonic_s: float
    stopped: Callable[[], bool]


def _taken(attempt: Callable[[], None], until: _Until) -> bool:
    """Try until it is taken; False when such a lock cannot be put there."""
    nap_s = _FIRST_NAP_S
    while True:
        try:
            attempt()
            return True
        except OSError as error:
            if error.errno in _UNABLE:
                return False
            if error.errno not in _TAKEN:
                raise
        if until.stopped():
            raise ToolError(
                "it was stopped while another writer held this folder; nothing was changed",
                code="E_INTERRUPTED",
            )
        if time.monotonic() > until.monotonic_s:
            raise ToolError(
                "another writer has held this folder for too long; try again in a moment",
                code="E_TIMEOUT",
            )
        time.sleep(nap_s * (0.5 + random.random()))
        nap_s = min(nap_s * 1.5, _LONGEST_NAP_S)


def _flock(descriptor: int | None) -> None:
    _fcntl.flock(descriptor, _fcntl.LOCK_EX | _fcntl.LOCK_NB)


def _windows_lock(descriptor: int) -> None:
    if _msvcrt:
        os.lseek(descriptor, 0, os.SEEK_SET)
        _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)


def _lock_file(folder: AnyFolder) -> Path:
    if folder.descriptor is not None:
        found = os.fstat(folder.descriptor)
        identity = f"{found.st_dev}:{found.st_ino}"
    else:
        identity = folder.identity if isinstance(folder, PathFolder) else ""
    owner = getattr(os, "getuid", lambda: 0)()
    home = Path(tempfile.gettempdir()) / f"nbagent-locks-{owner}"
    home.mkdir(mode=0o700, exist_ok=True)
    return home / hashlib.sha256(identity.encode()).hexdigest()[:32]
