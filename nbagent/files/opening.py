"""Opening what stands below a folder, and nothing else: no link is followed on the way.

Owns `Folder`, an open directory that names are looked up in. On Linux `openat2` walks the whole
path at once; elsewhere each piece is opened relative to the one before with O_NOFOLLOW. Where the
system has no such calls (Windows), `paths.PathFolder` does what can be done by path.

Device files may only be made by root; FIFOs and sockets are opened without waiting and refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from nbagent.files.paths import PathFolder
from nbagent.files.refusals import NotRegular

T = TypeVar("T")

HAS_DIR_FD = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW") and sys.platform != "win32"
_CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
_FILE: int = (
    os.O_RDONLY
    | _CLOEXEC
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_FOLDER: int = os.O_RDONLY | _CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_DIRECTORY", 0)
_STEP: int = _FOLDER & ~os.O_RDONLY | getattr(os, "O_PATH", getattr(os, "O_SEARCH", 0))
"""For folders on the way: they need not be readable."""
_NEW: int = (
    os.O_WRONLY
    | os.O_CREAT
    | os.O_EXCL
    | _CLOEXEC
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_BINARY", 0)
)
_TRANSIENT = frozenset(
    {errno.EBUSY, errno.EAGAIN, errno.EINTR}
    # There, a file that somebody else has open is refused in this way.
    | ({errno.EACCES} if sys.platform == "win32" else set[int]())
)
_WAITS_S = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2)
"""Between attempts, when the system says that it is busy."""


class AnyFolder(Protocol):
    """An open directory, however the system lets it be held."""

    def open_file(self, parts: Sequence[str]) -> int:
        """A descriptor of a regular file below it, to be read."""
        ...

    def folder(self, parts: Sequence[str], *, create: bool = False) -> AnyFolder:
        """A folder below it; itself, opened anew, when there are no parts."""
        ...

    def scan(self) -> list[os.DirEntry[str]]:
        """What is in it, by name."""
        ...

    def look(self, name: str) -> os.stat_result:
        """What stands under a name in it, a link itself."""
        ...

    def new_file(self, name: str, mode: int) -> int:
        """A descriptor of a file that was not there, to be written."""
        ...

    def replace(self, old: str, new: str) -> None:
        """Rename within it, over what bears the new name."""
        ...

    def remove(self, name: str) -> None:
        """Take away a file."""
        ...

    def sync(self) -> None:
        """Make renames last, where the system can."""
        ...

    @property
    def descriptor(self) -> int | None:
        """What a lock can be put on."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


class Folder:
    """An open directory, held by its descriptor. Methods raise OSError where nothing else is said.

    `walked` looks up each piece by itself also where openat2 works; for tests and measuring.
    """

    __slots__ = ("_fd", "_walked")

    def __init__(self, fd: int, *, walked: bool = False) -> None:
        self._fd = fd
        self._walked = walked or not _has_openat2()

    @property
    def descriptor(self) -> int | None:
        """Its descriptor; a lock can be put on it."""
        return self._fd

    def open_file(self, parts: Sequence[str]) -> int:
        """A descriptor of a regular file below it.

        Raises:
            NotRegular: it is a folder, a FIFO, a socket or a device.
        """
        fd = self._open(parts, _FILE)
        try:
            mode = os.fstat(fd).st_mode
        except BaseException:
            os.close(fd)
            raise
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise NotRegular(mode)
        return fd

    def folder(self, parts: Sequence[str], *, create: bool = False) -> Folder:
        """A folder below it, made with its parents when it may be."""
        if not create:
            # Not `dup`: two copies of one description would share a lock and a place in a listing.
            return Folder(self._open(parts or (".",), _FOLDER), walked=self._walked)
        here = os.open(".", _FOLDER, dir_fd=self._fd)
        for number, name in enumerate(parts, 1):
            try:
                below = self._step(here, name, _FOLDER if number == len(parts) else _STEP)
            finally:
                os.close(here)
            here = below
        return Folder(here, walked=self._walked)

    @staticmethod
    def _step(here: int, name: str, flags: int) -> int:
        try:
            return os.open(name, flags, dir_fd=here)
        except FileNotFoundError:
            with suppress(FileExistsError):  # Another writer may be faster.
                os.mkdir(name, 0o777, dir_fd=here)
            return os.open(name, flags, dir_fd=here)

    def _open(self, parts: Sequence[str], flags: int) -> int:
        if len(parts) == 1:
            return os.open(parts[0], flags, dir_fd=self._fd)
        if not self._walked:
            return _openat2(self._fd, "/".join(parts), flags)
        here = self._fd
        try:
            for name in parts[:-1]:
                below = os.open(name, _STEP, dir_fd=here)
                if here != self._fd:
                    os.close(here)
                here = below
            return os.open(parts[-1], flags, dir_fd=here)
        finally:
            if here != self._fd:
                os.close(here)

    def scan(self) -> list[os.DirEntry[str]]:
        """What is in it, by name."""
        with os.scandir(self._fd) as found:
            return sorted(found, key=_name_of)

    def look(self, name: str) -> os.stat_result:
        """What stands under a name in it, a link itself."""
        return os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def new_file(self, name: str, mode: int) -> int:
        """A descriptor of a file that was not there, to be written."""
        return os.open(name, _NEW, mode, dir_fd=self._fd)

    def replace(self, old: str, new: str) -> None:
        """Rename within it, over what bears the new name."""
        os.replace(old, new, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def remove(self, name: str) -> None:
        """Take away a file."""
        os.unlink(name, dir_fd=self._fd)

    def sync(self) -> None:
        """Make renames last."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Give the descriptor back; a second time does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _name_of(entry: os.DirEntry[str]) -> str:
    return entry.name


def open_root(root: Path, *, walked: bool = False) -> AnyFolder:
    """Open the folder that a mount is; its path has no link in it (it was resolved before).

    Each piece is opened without following links: a folder that was swapped for one since then is
    refused.
    """
    if not HAS_DIR_FD:
        return PathFolder(root)
    top = Folder(os.open(root.anchor, _STEP), walked=walked)
    try:
        return top.folder(root.parts[1:])
    finally:
        top.close()


class _How(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_OPENAT2 = 437
"""The same number on every architecture that it is asked on."""
_RESOLVE = 0x02 | 0x04 | 0x08
"""RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH."""


@cache
def _syscall() -> Any:
    found = ctypes.CDLL(None, use_errno=True).syscall
    found.restype = ctypes.c_long
    found.argtypes = (
        *(ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t),
    )
    return found


@cache
def _how(flags: int) -> tuple[Any, int]:
    how = _How(flags, 0, _RESOLVE)
    return ctypes.cast(ctypes.pointer(how), ctypes.c_void_p), ctypes.sizeof(how)


@cache
def _has_openat2() -> bool:
    """Whether the kernel has it and a sandbox around this process lets it through."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return False
    try:
        here = os.open(".", _FOLDER)
    except OSError:
        here = os.open("/", _FOLDER)
    try:
        os.close(_openat2(here, ".", _FOLDER))
    except (OSError, AttributeError, ValueError):
        return False
    finally:
        os.close(here)
    return True


def _openat2(fd: int, path: str, flags: int) -> int:
    pointer, size = _how(flags)
    raw = os.fsencode(path)
    attempts = 0
    while True:
        opened: int = _syscall()(_OPENAT2, fd, raw, pointer, size)
        if opened >= 0:
            return opened
        number = ctypes.get_errno()
        attempts += 1
        # EAGAIN: something was renamed while the kernel walked, and it asks to be called again.
        if number not in (errno.EAGAIN, errno.EINTR) or attempts > 1_000:
            raise OSError(number, os.strerror(number), path)


def patiently(work: Callable[[], T]) -> T:
    """Do it again a few times while the system says that it is busy."""
    for wait_s in _WAITS_S:
        try:
            return work()
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
            time.sleep(wait_s)
    return work()
