"""Where a state document lies: its folder, the lock of who works on it, and how it stood before.

`<home>/state/<run id>/` is the folder that is `@state`; beside it `<run id>.lock`, and
`<run id>.versions/`, one file for each state that a request was made with, named by the time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.mounts import FilePlace, Mount, Mounts
from nbagent.files.writing import read_state, replace
from nbagent.store.file_lock import locked
from nbagent.workflow.state import FILE, PATH, read_origin

_LOCK_WAIT_S = 0.3
_CLOCK_TOLERANCE_S = 0.05
"""A file's time may lie so far before the clock's: it is taken from the last tick."""
_SCRIPT_FOLDER = "scripts/"
"""Below `@state`: each script has a folder of its own there, which never changes later."""


@dataclass
class Document:
    """The document of one workflow run and the folder around it."""

    home: Path
    """The folder of the store."""
    run_id: str
    _lock_stack: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """What `@state` is."""
        return self.home / "state" / self.run_id

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def read(self) -> bytes | None:
        """Its bytes as they are now; None where there is none. ToolError: it cannot be read."""
        return read_state(self._file_place()).data if self.folder.is_dir() else None

    def write(self, data: bytes) -> None:
        """Put it on the disk as a whole; ToolError where that cannot be."""
        replace(self._file_place(), lambda before: data)

    def _file_place(self) -> FilePlace:
        return self._mounts.place(PATH)

    @cached_property
    def _mounts(self) -> Mounts:
        return Mounts([Mount("@state", self.folder, "rw")])

    def lock(self) -> None:
        """Keep others out until `release`; the system gives it back when this process ends.

        Raises:
            UsageError: somebody else is at work on it.
        """
        file = self.folder.with_suffix(".lock")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
            self._lock_stack.callback(_close, descriptor)
            _locks.add(descriptor)
            self._lock_stack.enter_context(locked(descriptor, wait_s=_LOCK_WAIT_S))
        except TimeoutError:
            self._lock_stack.close()
            raise UsageError(
                f"another run is at work on the workflow {self.run_id[:8]} (in this kernel or in "
                "another one); wait for it, or stop it where it was started"
            ) from None
        except OSError as error:
            self._lock_stack.close()
            raise UsageError(f"{file} cannot be written ({error.strerror}); mend it") from None

    def release(self) -> None:
        """Let others in; also when nothing was locked."""
        self._lock_stack.close()

    @property
    def _versions(self) -> Path:
        return self.folder.with_suffix(".versions")

    def save_version(self, data: bytes) -> None:
        """Keep it as it is now; a version that cannot be kept only makes a fork impossible."""
        with suppress(OSError):
            self._versions.mkdir(parents=True, exist_ok=True)
            unfinished = self._versions / "unfinished"
            unfinished.write_bytes(data)
            unfinished.rename(self._versions / f"{_format_time(utc_now())}.md")

    def _version_files(self) -> list[Path]:
        """The versions, oldest first."""
        return sorted(self._versions.glob("*.md"))

    def version_after(self, moment: datetime) -> bytes | None:
        """What it said when a run that began then found it; None where that is not known."""
        after = [file for file in self._version_files() if file.stem >= _format_time(moment)]
        return after[0].read_bytes() if after else None

    def version_at(self, moment: datetime) -> bytes:
        """What it said then; UsageError where that is not known (any more)."""
        before = [file for file in self._version_files() if file.stem <= _format_time(moment)]
        if not before:
            raise UsageError(
                f"how {PATH} stood at that turn is not kept, so it cannot be forked; "
                "fork a later turn, or go on with the run"
            )
        return before[-1].read_bytes()

    def copy_other_files(self, moment: datetime, into: Document) -> None:
        """Copy the other files of the folder; UsageError where one has changed since then."""
        others = self._other_files()
        since_s = moment.timestamp() - _CLOCK_TOLERANCE_S
        changed = {file for file in others if file.stat().st_mtime > since_s}
        names = [file.relative_to(self.folder).as_posix() for file in sorted(changed)]
        lost = [name for name in names if not name.startswith(_SCRIPT_FOLDER)]
        if lost:
            paths = ", ".join(f"@state/{name}" for name in lost[:5])
            raise UsageError(f"{paths} changed after that turn, so it cannot be forked")
        for file in others:
            if file not in changed:
                target = into.folder / file.relative_to(self.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, target)

    def _other_files(self) -> list[Path]:
        """The other files of the folder."""
        files = (Path(here) / name for here, _, names in os.walk(self.folder) for name in names)
        regular = (file for file in files if file.is_file() and not file.is_symlink())
        return [file for file in regular if file != self.path]


_locks: set[int] = set()


def _close(descriptor: int) -> None:
    _locks.discard(descriptor)
    os.close(descriptor)


def _after_fork_in_child() -> None:
    """The locks are the parent's: a child that lives longer must not hold them."""
    while _locks:
        os.close(_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%S.%f")


def read_document_file(path: Path) -> bytes:
    """What is in a file that a person names as a document; UsageError where it cannot be read."""
    try:
        file_place = Mounts([Mount("@document", path.parent)]).place(f"@document/{path.name}")
        data = read_state(file_place).data
    except ToolError as error:
        raise UsageError(f"{path}: {error.message.replace('@document/', '')}") from None
    if data is None:
        raise UsageError(f"there is no document {path}; name the file of a workflow's state")
    return data


def open_document(path: Path, data: bytes, home: Path) -> tuple[Document, bytes | None]:
    """The document that a file is, or becomes when it is written into the store; what is there.

    Raises:
        UsageError: it is no state document, or the store has another one of the same run.
    """
    try:
        document = Document(home, read_origin(data)[0])
        stored = document.read()
    except ToolError as error:
        raise UsageError(f"{path}: {error.message}", code=error.code) from None
    if os.path.realpath(path) == os.path.realpath(document.path):
        return document, data
    if stored not in (None, data):
        raise UsageError(
            "the store has a document of this run that says something else "
            f"({document.path}); resume that one, or move it away first"
        )
    return document, stored


def forget_documents(run_ids: Iterable[str], home: Path) -> None:
    """Delete the documents that these runs began, and their folders."""
    for run_id in run_ids:
        folder = Document(home, run_id).folder
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(folder.with_suffix(".versions"), ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)
