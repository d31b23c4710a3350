"""The state document on disk: its folder, its lock, and its earlier versions.

`<home>/state/<run id>/` is mounted as `@state`. Beside it are `<run id>.lock` and
`<run id>.versions/`, which has one file, named by the time, for each state that a request used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.files.mounts import Mount, MountedPath, Mounts, chosen_folder
from nbagent.files.opening import open_own_file, open_own_folder
from nbagent.files.writing import read_state, replace
from nbagent.store.file_lock import locked
from nbagent.workflow.state import FILE, PATH, read_origin

_LOCK_WAIT_S = 0.3
"""Short: the run that has the lock may take hours, so the person is told at once."""
_CLOCK_TOLERANCE_S = 0.05
"""Tolerance between a file's time and the clock: the kernel takes file times from its last tick."""
_UNFINISHED = "unfinished"
_SCRIPT_FOLDER = "scripts/"
"""Folder below `@state`. Each script has its own folder in it, which never changes later."""


@dataclass
class Document:
    """The document of one workflow run, and its folder."""

    home: Path
    """Folder of the store."""
    run_id: str
    _lock_stack: ExitStack = field(default_factory=ExitStack, compare=False, repr=False)

    @property
    def folder(self) -> Path:
        """Folder that is mounted as `@state`."""
        return self.home / "state" / self.run_id

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def read(self) -> bytes | None:
        """Read its bytes; None if it does not exist. Raises ToolError if it cannot be read."""
        return read_state(self._file_place()).data if self.folder.is_dir() else None

    def write(self, data: bytes) -> None:
        """Write it atomically. Raises ToolError if that fails."""
        replace(self._file_place(), lambda before: data)

    def _file_place(self) -> MountedPath:
        return self._mounts.locate(PATH)

    @cached_property
    def _mounts(self) -> Mounts:
        return Mounts([Mount("@state", self.folder, "rw")])

    def lock(self) -> None:
        """Lock it until `release`. The system releases the lock if this process dies.

        Raises:
            UsageError: another run works on it.
        """
        file = self.folder.with_suffix(".lock")
        try:
            open_own_folder(self.folder, create=True).close()
            # Not inherited: a program that the run starts must not keep the document locked.
            descriptor = open_own_file(file, os.O_RDWR | os.O_CREAT)
            self._lock_stack.callback(_close, descriptor)
            _locks.add(descriptor)
            self._lock_stack.enter_context(locked(descriptor, wait_s=_LOCK_WAIT_S))
        except TimeoutError:
            self._lock_stack.close()
            raise UsageError(
                f"another run works on the workflow {self.run_id[:8]} (in this kernel or in "
                "another one); wait for it, or stop it where it was started"
            ) from None
        except OSError as error:
            self._lock_stack.close()
            raise UsageError(
                f"{file} cannot be written ({error.strerror}); check the folder's permissions"
            ) from None

    def release(self) -> None:
        """Release the lock, if it is locked."""
        self._lock_stack.close()

    @property
    def _versions(self) -> Path:
        return self.folder.with_suffix(".versions")

    def save_version(self, data: bytes) -> None:
        """Save a version of it."""
        # Errors are ignored: without the version only a fork from this point is impossible.
        with (
            suppress(OSError),
            closing(open_own_folder(self._versions, create=True)) as folder,
        ):
            # Renamed when complete: a reader never sees a half version.
            with suppress(FileNotFoundError):
                folder.remove(_UNFINISHED)
            with os.fdopen(folder.new_file(_UNFINISHED, 0o666), "wb") as file:
                file.write(data)
            folder.replace(_UNFINISHED, f"{_format_time(utc_now())}.md")

    def _version_times(self) -> list[str]:
        """Return the times of the versions, oldest first."""
        try:
            with closing(open_own_folder(self._versions)) as folder:
                names = [entry.name for entry in folder.scan()]
        except OSError:
            return []
        return [name.removesuffix(".md") for name in names if name.endswith(".md")]

    def _read_version(self, time: str) -> bytes:
        with os.fdopen(open_own_file(self._versions / f"{time}.md"), "rb") as file:
            return file.read()

    def version_after(self, moment: datetime) -> bytes | None:
        """Return the first version saved after this time: as a run that began then found it.

        None if there is none.
        """
        after = [time for time in self._version_times() if time >= _format_time(moment)]
        return self._read_version(after[0]) if after else None

    def version_at(self, moment: datetime) -> bytes:
        """Return the version at this time. Raises UsageError if it is unknown."""
        before = [time for time in self._version_times() if time <= _format_time(moment)]
        if not before:
            raise UsageError(
                f"the version of {PATH} at that turn is not saved, so it cannot be forked; "
                "fork a later turn, or continue the run"
            )
        return self._read_version(before[-1])

    def copy_other_files(self, moment: datetime, into: Document) -> None:
        """Copy the other files of the folder. Raises UsageError if one changed since `moment`."""
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
                _copy_file(file, into.folder / file.relative_to(self.folder))

    def _other_files(self) -> list[Path]:
        """Return the other files of the folder."""
        open_own_folder(self.folder).close()  # no link leads elsewhere
        files = (Path(folder) / name for folder, _, names in os.walk(self.folder) for name in names)
        regular = (file for file in files if file.is_file() and not file.is_symlink())
        return [file for file in regular if file != self.path]


_locks: set[int] = set()


def _close(descriptor: int) -> None:
    _locks.discard(descriptor)
    os.close(descriptor)


def _after_fork_in_child() -> None:
    """Close the parent's locks: a child that lives longer must not keep them locked."""
    while _locks:
        os.close(_locks.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file of a state folder with its times."""
    with (
        os.fdopen(open_own_file(source), "rb") as old,
        os.fdopen(open_own_file(target, os.O_WRONLY | os.O_CREAT, 0o666), "wb") as new,
    ):
        shutil.copyfileobj(old, new)
        new.flush()
        status = os.fstat(old.fileno())
        if os.utime in os.supports_fd:
            os.utime(new.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _format_time(moment: datetime) -> str:
    return moment.strftime("%Y%m%dT%H%M%S.%f")


def read_document_file(path: Path) -> bytes:
    """Read a file that a person names as a document. Raises UsageError if it cannot be read."""
    try:
        mounts = Mounts([Mount("@document", chosen_folder(path.parent))])
        file_place = mounts.locate(f"@document/{path.name}")
        data = read_state(file_place).data
    except ToolError as error:
        raise UsageError(f"{path}: {error.message.replace('@document/', '')}") from None
    if data is None:
        raise UsageError(f"there is no document {path}; name the file of a workflow's state")
    return data


def open_document(path: Path, data: bytes, home: Path) -> tuple[Document, bytes | None]:
    """Return the document of a file, and the store's content of that document (None if none).

    A file outside of the store becomes the store's document when it is written.

    Raises:
        UsageError: it is not a state document, or the store has a different one of the same run.
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
            "the store has a different document of this run "
            f"({document.path}); resume that one, or move it away first"
        )
    return document, stored


def forget_documents(run_ids: Iterable[str], home: Path) -> None:
    """Delete the documents that these runs started, and their folders."""
    try:
        states = open_own_folder(home / "state")
    except OSError:  # none was ever written
        return
    with closing(states):
        for run_id in run_ids:
            if Document(home, run_id).folder.is_dir():
                for name in (run_id, f"{run_id}.versions"):
                    states.remove_tree(name)
                with suppress(FileNotFoundError):
                    states.remove(f"{run_id}.lock")
