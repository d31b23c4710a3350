"""What a script leaves: its output within a budget, its files taken link-safely, its folders gone.

The script is dead by the time its files are looked at, but what it left may be anything: links,
pipes, endless depth, names that are no text. Only regular files with one name come out.
"""

from __future__ import annotations

import codecs
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
_CONTINUES = bytes(range(0x80, 0xC0))
"""Bytes that UTF-8 does not begin a letter with."""


class Output:
    """One stream, in constant memory: its beginning and its end, the middle cut visibly."""

    def __init__(self, keep_bytes: int) -> None:
        self._head_bytes = keep_bytes // 2
        self._tail_bytes = keep_bytes - self._head_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take what came."""
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
    def last_line(self) -> str:
        """The last whole line, as far as it is kept."""
        whole = (self._tail or self._head).rpartition(b"\n")[0]
        return whole.rpartition(b"\n")[2].decode("utf-8", "replace").strip()

    @property
    def text(self) -> str:
        """What is kept, as text."""
        if not self.cut_bytes:
            return (self._head + self._tail).decode("utf-8", "replace")
        # Letters that the cut goes through are left out; what is odd elsewhere is shown as such.
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(self._head))
        tail = self._tail[-self._tail_bytes :].lstrip(_CONTINUES).decode("utf-8", "replace")
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
    """The regular files below a folder, nearest first and by name, and what was left out.

    Nothing writes there any more. They are copied to `keep_to`, over no file that is there.
    """
    files: list[ScriptFile] = []
    failed: list[OSError] = []
    odd = over = size_bytes = 0
    for name, path in _below(folder):
        state = os.lstat(path) if name.isprintable() and not {"\\", ":"} & set(name) else None
        if state is None or not stat.S_ISREG(state.st_mode) or state.st_nlink != 1:
            odd += 1
        elif len(files) >= most_files or size_bytes + state.st_size > most_bytes:
            over += 1
        else:
            try:
                if keep_to is not None:
                    _copy(path, keep_to / name)
            except OSError as error:
                failed.append(error)
            else:
                size_bytes += state.st_size
                files.append(ScriptFile(name, state.st_size))
    notes: list[str] = []
    if odd:
        notes.append(f"{odd} outputs were no regular files of their own and were left out")
    if over:
        most = f"{most_files} files or {most_bytes:,} bytes"
        notes.append(f"{over} outputs were left out: more than {most}")
    if failed:
        notes.append(f"{len(failed)} outputs could not be kept ({type(failed[0]).__name__})")
    return tuple(files), tuple(notes)


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
