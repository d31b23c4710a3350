"""The files of a skill as a script may use them: their hashes, and a private copy of them.

A script can import or read every file of its skill, so an approval is bound to all of them, and the
script runs in a copy of exactly these bytes. Links are not followed and not copied, compiled code
in `__pycache__` is left out: Python would run it in place of the source that a person can read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from nbagent.contracts.errors import ToolError
from nbagent.files.names import visible
from nbagent.files.opening import Folder, NotRegular, failure, open_root

MAX_FILES = 5_000
_CODE = (".py", ".pyc", ".pyw", ".so", ".pyd", ".pth", ".zip", ".egg")
"""Endings of files that Python imports or runs."""
_SKIPPED_FOLDERS = frozenset({"__pycache__", ".git"})
_PIECE_BYTES = 1 << 20
_SHOWN_DIGITS = 12


@dataclass(frozen=True, slots=True)
class SkillFile:
    """One regular file of a skill."""

    name: str
    """Relative, with slashes."""
    size_bytes: int
    sha: str

    @property
    def is_code(self) -> bool:
        """True if Python can import or run it."""
        return self.name.casefold().endswith(_CODE)

    @property
    def line(self) -> str:
        """Name, size and the start of the SHA-256, for a person."""
        return f"{visible(self.name)} · {self.size_bytes:,} bytes · {self.sha[:_SHOWN_DIGITS]}"

    @property
    def key(self) -> list[object]:
        """The file as JSON, for a hash; its name may be no text."""
        return [os.fsencode(self.name).hex(), self.size_bytes, self.sha]


def hash_files(root: Path, *, max_bytes: int) -> tuple[SkillFile, ...]:
    """Read all files of a skill, sorted by name.

    Raises:
        ToolError: there are too many, they are too large together, or one cannot be read.
    """
    return tuple(_read_files(root, None, max_bytes, lambda name: None))


def copy_files(
    root: Path, target: Path, files: Sequence[SkillFile] | None, *, max_bytes: int
) -> None:
    """Copy the files of a skill to a new folder.

    Args:
        root: the folder of the skill.
        target: the folder to fill.
        files: the files that were approved, and only they are copied; None copies all.
        max_bytes: limit of their size.

    Raises:
        ToolError: an approved file has changed, or they cannot be read.
    """
    approved = None if files is None else {file.name: file for file in files}
    names = None if approved is None else list(approved)
    for file in _read_files(root, names, max_bytes, lambda name: target.joinpath(name)):
        if approved is not None and file != approved[file.name]:
            raise _changed(file.name)


def _changed(name: str) -> ToolError:
    why = f"{visible(name)} of the skill changed after the script was approved; call it again"
    return ToolError(why, code="E_PRECONDITION_FAILED")


def _read_files(
    root: Path,
    names: Iterable[str] | None,
    max_bytes: int,
    copy_to: Callable[[str], Path | None],
) -> Iterator[SkillFile]:
    """Read files once: hash them, and write them to `copy_to(name)` if that names a file."""
    left = max_bytes
    try:
        with closing(open_root(root)) as folder:
            for name in _names_below(root) if names is None else names:
                try:
                    file = _read_file(folder, name, left, copy_to(name))
                except NotRegular:
                    file = None  # a FIFO or a device: nothing to import
                except OSError as error:
                    if names is not None:  # an approved file that is not there any more
                        raise _changed(name) from None
                    if not isinstance(error, PermissionError | FileNotFoundError):
                        raise failure(error, name) from None
                    file = None  # the script could not read it either
                if file is not None:
                    left -= file.size_bytes
                    yield file
    except OSError as error:
        raise failure(error, "the skill") from None
    except _TooLarge:
        raise ToolError(
            f"the files of the skill have more than {max_bytes:,} bytes (limit script_disk_bytes); "
            "ask the person to raise it with nbagent.configure(script_disk_bytes=…)",
            code="E_READ_LIMIT",
        ) from None


class _TooLarge(Exception):
    """The files are larger than the limit."""


def _read_file(folder: Folder, name: str, max_bytes: int, target: Path | None) -> SkillFile:
    descriptor = folder.open_file(name.split("/"))
    with open(descriptor, "rb", buffering=0) as source:
        digest, size = hashlib.sha256(), 0
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
        with open(os.devnull if target is None else target, "wb") as copy:
            while piece := source.read(_PIECE_BYTES):
                size += len(piece)
                if size > max_bytes:
                    raise _TooLarge
                digest.update(piece)
                copy.write(piece)
        if target is not None:
            # Scripts may start each other as programs.
            with suppress(OSError):
                target.chmod(stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o755 | 0o600)
    return SkillFile(name, size, digest.hexdigest())


def _names_below(root: Path) -> Iterator[str]:
    """Yield files below a folder in a fixed order; links are left out."""
    number = 0
    for here, folders, names in os.walk(root):
        folder = Path(here)
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            path = folder / name
            if path.is_symlink():
                continue
            number += 1
            if number > MAX_FILES:
                why = f"the skill has more than {MAX_FILES:,} files, which is the limit"
                raise ToolError(
                    f"{why}; take out what its scripts do not need", code="E_READ_LIMIT"
                )
            yield path.relative_to(root).as_posix()
