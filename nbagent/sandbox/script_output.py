"""What a script leaves: its output within a budget, its files taken link-safely, its folders gone.

The script is dead by the time its files are looked at, but what it left may be anything: links,
pipes, endless depth, names that are no text. Only regular files with one name come out.
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

_DEEPEST = 12


class Output:
    """One stream, in constant memory: its beginning and its end, the middle cut visibly."""

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
        """How much of the middle is gone."""
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
    """A file that the script left in its output folder."""

    name: str
    """Relative, with slashes."""
    size_bytes: int


@contextmanager
def workspace() -> Generator[Path]:
    """A private folder with `out` and `tmp` in it; gone afterwards, whatever is in it."""
    place = Path(os.path.realpath(tempfile.mkdtemp(prefix="nbagent-script-")))
    try:
        for name in ("out", "tmp"):
            (place / name).mkdir(mode=0o700)
        yield place
    finally:
        remove_tree(place)


def collect(
    folder: Path, *, keep_to: Path | None, most_files: int, most_bytes: int
) -> tuple[tuple[ScriptFile, ...], tuple[str, ...]]:
    """The regular files below a folder, nearest first and by name, and a note of what is left out.

    Nothing writes there any more. They are copied to `keep_to`, over no file that is there.
    """
    files: list[ScriptFile] = []
    left_out = size_bytes = 0
    for name, path in _below(folder):
        state = os.lstat(path) if name.isprintable() and not {"\\", ":"} & set(name) else None
        is_own = state is not None and stat.S_ISREG(state.st_mode) and state.st_nlink == 1
        size = state.st_size if state is not None else 0
        try:
            if not is_own or len(files) >= most_files or size_bytes + size > most_bytes:
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
    most = f"{most_files} files or {most_bytes:,} bytes"
    why = f"no regular files of their own, there already, or more than {most}"
    return tuple(files), (f"{left_out} outputs were left out: {why}",)


def _below(folder: Path) -> Iterator[tuple[str, str]]:
    """What lies below a folder by relative name; of links and what is too deep, the name alone."""
    for here, folders, names in os.walk(folder):
        below = Path(here).relative_to(folder)
        links = [name for name in folders if os.path.islink(os.path.join(here, name))]
        entered = [name for name in folders if name not in links]
        folders[:] = sorted(entered) if len(below.parts) < _DEEPEST else []
        left = [name for name in entered if name not in folders]
        for name in sorted([*names, *links, *left]):
            yield (below / name).as_posix(), os.path.join(here, name)


def _copy(path: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "rb") as source, open(target, "xb") as copy:
        shutil.copyfileobj(source, copy)


def remove_tree(root: Path) -> None:
    """Remove a folder of any depth and with any permissions; follows no link, raises nothing.

    A folder in a folder is first moved to the top, so that no path is ever too long.
    """
    with suppress(OSError), tempfile.TemporaryDirectory(dir=root.parent) as top:
        fresh = (os.path.join(top, str(number)) for number in count())
        waiting = [next(fresh)]
        os.chmod(root, 0o700)
        os.rename(root, waiting[0])
        while waiting:
            folder = waiting.pop()
            with os.scandir(folder) as found:
                entries = list(found)
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, 0o700)
                    waiting.append(next(fresh))
                    os.rename(entry.path, waiting[-1])
                else:
                    os.unlink(entry.path)
            os.rmdir(folder)
