"""Writing the audit log: one `os.write` a line, also from several processes at once.

Under a lock on `audit.head`: read where the chain ends (O(1), whatever the size of the log), mend
what a crash left, append, note the new end. What lines mean is `sink`'s, checking is `checking`'s.

There is no fsync for a line: a killed process loses nothing that was written, and a power cut may
take the last lines; `sync`, at the end of a run, puts all of it on the disk. That a tool begins is
written before it does, its end after the store has committed the result: who is killed in between
leaves the result in the store alone.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from nbagent.archive.audit.lines import (
    FILE_NAME,
    LONGEST_LINE_BYTES,
    Head,
    follows,
    full_files,
    head_file,
    is_torn,
    is_whole,
    make_line,
    number_of,
    numbered,
    read_line,
    sha_in,
)
from nbagent.archive.audit.locking import PATIENCE_S, locked
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.errors import StoreError
from nbagent.contracts.secrets import redact

FULL_BYTES = 64 * 1024 * 1024
"""A file that is larger gets a number, and a new one goes on with the chain."""
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_LOOK_BACK_BYTES = 2 * LONGEST_LINE_BYTES
_TRIES = 100

Record = Mapping[str, Any]


class AuditLog:
    """The audit log of one folder. Any thread, any number of processes.

    Forgetting a run does not rewrite it: it holds hashes, names of tools and paths in mounts, and
    no text of a conversation; a log that could be rewritten would prove nothing.
    """

    def __init__(
        self, path: Path, *, full_bytes: int = FULL_BYTES, patience_s: float = PATIENCE_S
    ) -> None:
        self.path = path
        self._head_path = head_file(path)
        self.patience_s = patience_s
        """How long another process may hold the lock, which is a matter of microseconds."""
        self.full_bytes = full_bytes
        self.warning: str | None = None
        """Set when something was found changed or missing while writing; the log says it too."""
        self._thread_lock = threading.Lock()
        self._pid = 0
        self._log_fd = -1
        self._head_fd = -1
        self._dirty = False

    @classmethod
    def open(cls, home: Path, *, full_bytes: int = FULL_BYTES) -> AuditLog:
        """Open or make the log in a folder, and mend what a crash left of it.

        Raises:
            StoreError: it cannot be written there; the message says why and what to do.
        """
        log = cls(home / FILE_NAME, full_bytes=full_bytes)
        log.append()
        return log

    def append(self, *records: Record) -> None:
        """Write a line for each record; when this returns, they are in the file.

        Raises:
            StoreError: they could not be written; a line is in the file whole or not at all.
        """
        with self._thread_lock:
            try:
                self._append(records)
            except OSError as error:
                raise self._refusal(error) from None

    def sync(self) -> None:
        """Put all lines on the disk; they survive a power cut then."""
        with self._thread_lock:
            if not self._dirty or self._log_fd < 0 or self._pid != os.getpid():
                return
            try:
                os.fsync(self._log_fd)
                os.fsync(self._head_fd)
            except OSError as error:
                raise self._refusal(error) from None
            self._dirty = False

    def close(self) -> None:
        """Close the files; the next line opens them again."""
        with self._thread_lock:
            self._close()

    # Under the thread's lock

    def _append(self, records: tuple[Record, ...]) -> None:
        self._require_own_files()
        for _ in range(_TRIES):
            with locked(self._head_fd, patience_s=self.patience_s):
                if self._are_current():
                    self._write(records)
                    return
            # Another process began a new file, or somebody moved the old one away.
            self._open()
        raise OSError(f"{self.path.name} is replaced over and over")

    def _require_own_files(self) -> None:
        # After a fork both processes would share one lock, which then keeps nobody out.
        if self._log_fd < 0 or self._pid != os.getpid():
            self._open()

    def _open(self) -> None:
        self._close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        try:
            self._head_fd = _open_regular(self._head_path, _FLAGS)
            with locked(self._head_fd, patience_s=self.patience_s):
                # The head first: a log without one is a log that somebody cut.
                fresh = not _read(self._head_fd, 0, 1) and not self.path.exists()
                if fresh and not full_files(self.path):
                    self._note(Head())
                self._log_fd = _open_regular(self.path, _FLAGS | os.O_APPEND)
        except OSError:
            self._close()
            raise

    def _close(self) -> None:
        for fd in (self._log_fd, self._head_fd):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        self._log_fd = self._head_fd = -1

    def _are_current(self) -> bool:
        pairs = ((self._log_fd, self.path), (self._head_fd, self._head_path))
        try:
            return all(os.path.samestat(os.fstat(fd), os.stat(path)) for fd, path in pairs)
        except FileNotFoundError:
            return False

    # Under the lock between processes

    def _write(self, records: tuple[Record, ...]) -> None:
        head = self._mended_head()
        for record in records:
            if head.size_bytes >= self.full_bytes:
                head = self._begin_file(head)
            head = self._put(record, head)

    def _put(self, record: Record, head: Head) -> Head:
        line = make_line({"at": _stamp(utc_now()), "pid": self._pid, **record}, head)
        if len(line) > LONGEST_LINE_BYTES:
            raise OSError(f"a line of {len(line)} bytes is too long")
        self._dirty = True
        n = os.write(self._log_fd, line)
        if n != len(line):
            with suppress(OSError):  # else the next writer mends it
                os.ftruncate(self._log_fd, head.size_bytes)
            raise OSError("the disk is full")
        head = head.after(line)
        self._note(head)
        return head

    def _note(self, head: Head) -> None:
        os.lseek(self._head_fd, 0, os.SEEK_SET)
        raw = head.to_bytes()
        if os.write(self._head_fd, raw) != len(raw):
            raise OSError("the disk is full")

    def _begin_file(self, head: Head) -> Head:
        full = full_files(self.path)
        target = numbered(self.path, 1 + (number_of(full[-1]) if full else 0))
        os.close(self._log_fd)  # Windows renames no file that is open
        self._log_fd = -1
        try:
            os.rename(self.path, target)
        except PermissionError:
            # Another process has it open, on Windows: it grows until that one lets go of it.
            self._log_fd = _open_regular(self.path, _FLAGS | os.O_APPEND)
            return head
        with target.open("r+b") as file:
            os.fsync(file.fileno())
        self._log_fd = _open_regular(self.path, _FLAGS | os.O_APPEND)
        head = replace(head, size_bytes=0)
        self._note(head)
        return head

    # Mending

    def _mended_head(self) -> Head:
        """Where the chain ends, after what a crash or a hand left is mended or told in a line."""
        raw = _read(self._head_fd, 0, 4096)
        head = Head.from_bytes(raw)
        size = os.fstat(self._log_fd).st_size
        if head is None:
            return self._without_head(size, damaged=bool(raw))
        if size == head.size_bytes:
            return head
        if size < head.size_bytes:
            return self._after_cut(head, size)
        return self._after_more(head, size)

    def _without_head(self, size: int, *, damaged: bool) -> Head:
        last = b""
        for path in (*full_files(self.path), self.path):
            last = _last_line_of(path) or last
        seq = read_line(last).get("seq") if is_whole(last) else None
        head = Head(seq, sha_in(last), size) if isinstance(seq, int) else Head(size_bytes=size)
        os.ftruncate(self._head_fd, 0)
        why = f"{self._head_path.name} was {'damaged' if damaged else 'missing'}"
        return self._tell(head, size, "no-head", why)

    def _after_cut(self, head: Head, size: int) -> Head:
        if not size and (full := full_files(self.path)):
            last = _last_line_of(full[-1])
            if is_whole(last) and sha_in(last) == head.sha:
                # A writer was killed while it began this file.
                head = replace(head, size_bytes=0)
                self._note(head)
                return head
        why = f"{self.path.name} had {size} bytes where line {head.seq} ends at {head.size_bytes}"
        return self._tell(head, size, "cut", why)

    def _after_more(self, head: Head, size: int) -> Head:
        """What stands behind the noted end: a line whose writer was killed, whole or torn."""
        more = _read(self._log_fd, head.size_bytes, min(size - head.size_bytes, _LOOK_BACK_BYTES))
        line, end, torn = more.rpartition(b"\n")
        line += end
        known = head
        if line and follows(line, head) and line.count(b"\n") == 1:
            head, line = head.after(line), b""
        if line or not is_torn(torn, head) or head.size_bytes + len(torn) != size:
            why = f"{self.path.name} had {size - known.size_bytes} bytes after line {known.seq}"
            return self._tell(known, size, "foreign", why)
        self._note(head)
        if not torn:
            return head
        os.ftruncate(self._log_fd, head.size_bytes)
        told = redact(torn.decode("ascii", "backslashreplace"))
        lost = {"torn": told, "torn_bytes": len(torn)}
        return self._put({"kind": "recovery", "what": "torn", **lost}, head)

    def _tell(self, head: Head, size: int, what: str, why: str) -> Head:
        """Leave what was found as it is, and go on behind it with a line that says so."""
        self.warning = (
            f"the audit log was changed or cut ({why}); it goes on, and nbagent.verify_audit() "
            "shows where. Move the audit files away to begin a new log"
        )
        if size and _read(self._log_fd, size - 1, 1) != b"\n":
            size += os.write(self._log_fd, b"\n")
        head = replace(head, size_bytes=size)
        return self._put({"kind": "recovery", "what": what, "why": why}, head)

    def _refusal(self, error: OSError) -> StoreError:
        told = error.strerror or str(error)
        return StoreError(
            f"the audit log {self.path} cannot be written ({told}). Make room or make it "
            "writable, then start the run again",
            details={"reason": "audit", "path": str(self.path)},
        )


def _open_regular(path: Path, flags: int) -> int:
    # Without O_NONBLOCK opening a pipe could wait for ever.
    fd = os.open(path, flags | getattr(os, "O_NONBLOCK", 0), 0o600)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path.name} is not a regular file")
    return fd


def _read(fd: int, start: int, n_bytes: int) -> bytes:
    os.lseek(fd, start, os.SEEK_SET)
    pieces: list[bytes] = []
    while n_bytes > 0 and (piece := os.read(fd, n_bytes)):
        pieces.append(piece)
        n_bytes -= len(piece)
    return b"".join(pieces)


def _last_line_of(path: Path) -> bytes:
    """The last line that has an end; empty when there is none within reach."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOOK_BACK_BYTES))
            data = file.read()
    except FileNotFoundError:
        return b""
    whole = data[: data.rfind(b"\n") + 1]
    return whole[whole.rfind(b"\n", 0, -1) + 1 :]


def _stamp(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
