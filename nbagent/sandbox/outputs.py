"""What a script leaves behind: collecting its files link-safely, removing its folders.

The script is dead by then, but what it left may be anything: links, pipes, endless depth, names
that are no text. Only regular files with one name come out, and only so many.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nbagent.sandbox.order import ScriptFile, ScriptLimits

_DEEPEST = 12
_LOOKED_AT = 20_000
_PREFIX = "nbagent-script-"
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | _NO_LINK
_BINARY = getattr(os, "O_BINARY", 0)


@contextmanager
def workspace() -> Generator[Path]:
    """A private folder with `out` and `tmp` in it; gone afterwards, whatever is in it."""
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX)))
    try:
        for name in ("out", "tmp", "tmp/shm"):
            (place / name).mkdir(mode=0o700)
        yield place
    finally:
        remove_tree(place)


@dataclass(slots=True)
class _Collection:
    """The files taken so far."""

    limits: ScriptLimits
    keep_to: Path | None
    files: list[ScriptFile] = field(default_factory=list[ScriptFile])
    size_bytes: int = 0
    looked_at: int = 0
    odd: int = 0
    """Links, pipes, devices, names that are no text."""
    failed: list[str] = field(default_factory=list[str])
    """Errors of files that could not be kept."""
    over: int = 0
    """Left out because there were too many, or too large ones."""

    def take(self, folder: str, name: str, shown: str) -> None:
        fd = _opened(os.path.join(folder, name))
        if fd is None:
            self.odd += 1
            return
        try:
            state = os.fstat(fd)
            if not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
                self.odd += 1
                return
            over = self.size_bytes + state.st_size > self.limits.collected_bytes
            if over or len(self.files) >= self.limits.collected_files:
                self.over += 1
                return
            self.size_bytes += state.st_size
            try:
                kept = self._keep(fd, shown, state.st_size)
            except OSError as error:
                self.failed.append(type(error).__name__)
                return
            self.files.append(ScriptFile(shown, state.st_size, kept))
        finally:
            os.close(fd)

    def _keep(self, fd: int, shown: str, size_bytes: int) -> Path | None:
        if self.keep_to is None:
            return None
        target = self.keep_to / shown
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY
        into = os.open(target, flags, 0o600)
        with open(into, "wb") as copy, open(os.dup(fd), "rb") as source:
            while size_bytes > 0 and (piece := source.read(min(size_bytes, 1 << 20))):
                copy.write(piece)
                size_bytes -= len(piece)
        return target


def collect(
    folder: Path, *, keep_to: Path | None, limits: ScriptLimits
) -> tuple[tuple[ScriptFile, ...], tuple[str, ...]]:
    """The regular files below a folder by name, and what was left out.

    Args:
        folder: the script's output folder; nothing writes there any more.
        keep_to: copy them there; files of the same name must not be there yet.
        limits: how many and how large.
    """
    found = _Collection(limits, keep_to)
    _walk(found, str(folder), "", 0)
    found.files.sort(key=lambda file: file.name)
    notes: list[str] = []
    if found.odd:
        notes.append(f"{found.odd} outputs were no regular files of their own and were left out")
    if found.over:
        most = f"{limits.collected_files} files or {limits.collected_bytes:,} bytes"
        notes.append(f"{found.over} outputs were left out: more than {most}")
    if found.failed:
        notes.append(f"{len(found.failed)} outputs could not be kept ({found.failed[0]})")
    return tuple(found.files), tuple(notes)


def _walk(found: _Collection, folder: str, shown: str, depth: int) -> None:
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry, _ in zip(entries, range(_LOOKED_AT), strict=False)
            )
    except OSError:
        found.odd += 1
        return
    for name, is_folder in names:
        found.looked_at += 1
        if found.looked_at > _LOOKED_AT:
            found.over += 1
            return
        below = f"{shown}{name}"
        if not _is_plain(name) or (is_folder and depth >= _DEEPEST):
            found.odd += 1
        elif is_folder:
            _walk(found, os.path.join(folder, name), below + "/", depth + 1)
        else:
            found.take(folder, name, below)


def _is_plain(name: str) -> bool:
    # Cc, Cf, Cs, Zl, Zp: control and format characters, surrogates, line separators.
    hidden = any(unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in name)
    return not hidden and "\\" not in name and ":" not in name


def _opened(path: str) -> int | None:
    # Nothing runs any more that could swap a folder above for a link.
    with suppress(OSError):
        if stat.S_ISREG(os.lstat(path).st_mode):
            return os.open(path, os.O_RDONLY | _NO_LINK | _BINARY)
    return None


def remove_tree(root: Path) -> None:
    """Remove a folder of any depth and with any permissions; follows no link, raises nothing."""
    if os.rmdir not in os.supports_dir_fd:
        shutil.rmtree(root, ignore_errors=True)
        return
    with suppress(OSError):
        _empty(root)
        os.rmdir(root)


def _empty(root: Path) -> None:
    """Go down and up again by file descriptors, two at a time, so that no depth is too much."""
    here = os.open(root, _FOLDER)
    left = [_unlink_files(here)]
    above: list[tuple[str, tuple[int, int]]] = []
    try:
        while left:
            if left[-1]:
                name = left[-1].pop()
                with suppress(OSError):
                    os.chmod(name, 0o700, dir_fd=here)
                state = os.fstat(here)
                below = os.open(name, _FOLDER, dir_fd=here)
                os.close(here)
                here = below
                above.append((name, (state.st_dev, state.st_ino)))
                left.append(_unlink_files(here))
                continue
            left.pop()
            if not above:
                return
            name, identity = above.pop()
            upper = os.open("..", _FOLDER, dir_fd=here)
            os.close(here)
            here = upper
            state = os.fstat(here)
            if (state.st_dev, state.st_ino) != identity:
                return
            with suppress(OSError):
                os.rmdir(name, dir_fd=here)
    finally:
        os.close(here)


def _unlink_files(folder: int) -> list[str]:
    """Remove what is no folder; returns the names of the folders."""
    folders: list[str] = []
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.name)
            continue
        with suppress(OSError):
            os.unlink(entry.name, dir_fd=folder)
    return folders
