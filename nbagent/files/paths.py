"""The fallback where the system cannot open relative to a folder: Windows.

Every piece is looked at and no reparse point (link, junction) is gone through; after opening, the
final path of the handle must be the one that was meant, before anything is read. What is swapped
between these looks and a rename or a deletion is not noticed: that needs the calls of `opening`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbagent.files.refusals import NotRegular

_REPARSE = 0x400
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


class PathFolder:
    """A folder held by its path. Has the methods of `opening.Folder`."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = Path(os.path.realpath(path))
        if not self._path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    @property
    def descriptor(self) -> int | None:
        """None: there is nothing to put a lock on."""
        return None

    @property
    def identity(self) -> str:
        """Names it among all folders, for a lock kept elsewhere."""
        return os.path.normcase(self._path)

    def open_file(self, parts: Sequence[str]) -> int:
        """A descriptor of a regular file below it."""
        path = self._below(parts)
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise NotRegular(mode)
        fd = os.open(path, _READ)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise NotRegular(found.st_mode)
            if _final_path(fd, path) != os.path.normcase(path):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def folder(self, parts: Sequence[str], *, create: bool = False) -> PathFolder:
        """A folder below it, made with its parents when it may be."""
        here = self._path
        for name in parts:
            here = here / name
            try:
                _check(here)
            except FileNotFoundError:
                if not create:
                    raise
                here.mkdir(exist_ok=True)
                _check(here)
        if os.path.normcase(os.path.realpath(here)) != os.path.normcase(here):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return PathFolder(here)

    def _below(self, parts: Sequence[str]) -> Path:
        here = self._path
        for name in parts:
            here = here / name
            _check(here)
        return here

    def scan(self) -> list[os.DirEntry[str]]:
        """What is in it, by name."""
        with os.scandir(self._path) as found:
            return sorted(found, key=lambda entry: entry.name)

    def look(self, name: str) -> os.stat_result:
        """What stands under a name in it, a link itself."""
        found = (self._path / name).lstat()
        if _is_reparse_point(found) and not stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return found

    def new_file(self, name: str, mode: int) -> int:
        """A descriptor of a file that was not there, to be written."""
        return os.open(self._path / name, _NEW, mode)

    def replace(self, old: str, new: str) -> None:
        """Rename within it, over what bears the new name."""
        os.replace(self._path / old, self._path / new)

    def remove(self, name: str) -> None:
        """Take away a file."""
        os.unlink(self._path / name)

    def sync(self) -> None:
        """Nothing: such a system cannot sync a folder by its path."""

    def close(self) -> None:
        """Nothing is held."""


def _is_reparse_point(found: os.stat_result) -> bool:
    return bool(getattr(found, "st_file_attributes", 0) & _REPARSE)


def _check(path: Path) -> None:
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or _is_reparse_point(found):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _final_path(fd: int, path: Path) -> str:
    """Where the open file really is; on other systems, where its name leads if it is the same."""
    if sys.platform == "win32":
        import msvcrt

        kernel: Any = ctypes.WinDLL("kernel32", use_last_error=True)
        room = ctypes.create_unicode_buffer(32_768)
        handle = ctypes.c_void_p(msvcrt.get_osfhandle(fd))
        size: int = kernel.GetFinalPathNameByHandleW(handle, room, len(room), 0)
        if not 0 < size < len(room):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        text = room.value
        if text.startswith("\\\\?\\UNC\\"):
            text = "\\\\" + text[8:]
        return os.path.normcase(text.removeprefix("\\\\?\\"))
    if not os.path.samestat(os.fstat(fd), os.lstat(path)):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return os.path.normcase(os.path.realpath(path))
