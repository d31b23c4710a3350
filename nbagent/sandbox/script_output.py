"""Output and files of a script: text within a budget, files copied link-safely, folders removed.

The script is dead when its files are read, but they may be anything: links, pipes, endless depth,
names that are not text. Only regular files with one name are copied.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

_MAX_DEPTH = 12


class Output:
    """One stream in constant memory: its start and its end; the middle is cut visibly."""

    def __init__(self, keep_bytes: int) -> None:
        self._head_bytes = keep_bytes // 2
        self._tail_bytes = keep_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]

    @property
    def cut_bytes(self) -> int:
        """Bytes of the middle that were cut."""
        return max(0, self.total_bytes - self._head_bytes - self._tail_bytes)

    @property
    def text(self) -> str:
        if not self.cut_bytes:
            return (self._head + self._tail).decode("utf-8", "replace")
        head = self._head.decode("utf-8", "replace")
        tail = self._tail[-self._tail_bytes :].decode("utf-8", "replace")
        return f"{head}\n[… {self.cut_bytes:,} bytes cut …]\n{tail}"


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """A file in the script's output folder."""

    name: str
    """Relative, with slashes."""
    size_bytes: int


@contextmanager
def workspace() -> Generator[Path]:
    """A private folder with `out` and `tmp`; it is removed afterwards, whatever it contains."""
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="nbagent-script-")))
    try:
        for name in ("out", "tmp"):
            (folder / name).mkdir(mode=0o700)
        yield folder
    finally:
        remove_tree(folder)


def collect(
    folder: Path, *, keep_to: Path | None, max_files: int, max_bytes: int
) -> tuple[tuple[ScriptFile, ...], tuple[str, ...]]:
    """Regular files below a folder, nearest first and by name, and a note about omitted ones.

    Nothing writes there any more. They are copied to `keep_to` and replace no file.
    """
    files: list[ScriptFile] = []
    left_out = size_bytes = 0
    for name, path in _below(folder):
        state = os.lstat(path) if name.isprintable() and not {"\\", ":"} & set(name) else None
        # A second name may be a hard link to a file outside.
        is_own = state is not None and stat.S_ISREG(state.st_mode) and state.st_nlink == 1
        size = state.st_size if state is not None else 0
        try:
            if not is_own or len(files) >= max_files or size_bytes + size > max_bytes:
                raise OSError
            if keep_to is not None:
                _copy(path, keep_to / name)
        except OSError:
            left_out += 1
        else:
            size_bytes += size
            files.append(ScriptFile(name, size))
    if not left_out:
        return tuple(files), ()
    limits = f"{max_files} files or {max_bytes:,} bytes"
    why = f"no regular files of their own, there already, or more than {limits}"
    return tuple(files), (f"{left_out} outputs were left out: {why}",)


def _below(folder: Path) -> Iterator[tuple[str, str]]:
    """Entries below a folder by relative name; for links and too deep entries only the name."""
    for here, folders, names in os.walk(folder):
        below = Path(here).relative_to(folder)
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        entered = [name for name in folders if name not in links]
        folders[:] = sorted(entered) if len(below.parts) < _MAX_DEPTH else []
        left = [name for name in entered if name not in folders]
        for name in sorted([*names, *links, *left]):
            yield (below / name).as_posix(), os.path.join(here, name)


def _copy(path: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "rb") as source, open(target, "xb") as copy:
        shutil.copyfileobj(source, copy)


def remove_tree(root: Path) -> None:
    """Remove a folder of any depth and with any permissions; follow no link, raise nothing.

    An inner folder is first moved to the top, so that no path is too long.
    """
    with suppress(OSError), tempfile.TemporaryDirectory(dir=root.parent) as top:
        fresh = (os.path.join(top, str(number)) for number in count())
        waiting = [next(fresh)]
        os.chmod(root, 0o700)
        os.rename(root, waiting[0])
        while waiting:
            folder = waiting.pop()
            with os.scandir(folder) as listing:
                entries = list(listing)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    waiting.append(next(fresh))
                    os.rename(entry.path, waiting[-1])
                else:
                    os.unlink(entry.path)
            os.rmdir(folder)
