"""The audit log: what tools that touch the world did, one line each, chained by hash.

Owns `audit.jsonl` and `audit.head` beside the store: writing lines, also from several processes at
once, and checking them. What a line says of a call is `audit_records`'s.

A line is one JSON object in ASCII: `seq` and `prev` first, `sha` last, no spaces. `sha` is the
SHA-256 of the line without its own `sha`; `prev` is the `sha` of the line before.

    {"seq":7,"prev":"9f…","at":"…","pid":1,"kind":"call",…,"sha":"c0…"}

Who writes holds a lock on `audit.head`, reads there where the chain ends (so the size of the log
does not matter), mends what a crash left, appends, and notes the new end. There is no fsync for a
line: a killed process loses nothing that was written, and a power cut may take the last lines;
`sync`, at the end of a run, puts all of it on the disk.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbagent.archive.locking import LOCK_WAIT_S, locked
from nbagent.contracts.canonical import json_object, load_json, sha256_hex, utc_now
from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.secrets import redact
from nbagent.settings import store_home

FILE_NAME = "audit.jsonl"
_LONGEST_LINE_BYTES = 200_000
_LONGEST_TORN_BYTES = 90_000
"""As a text of a line of its own it takes at most twice as many."""
_HEAD_BYTES = 160
"""Smaller than a disk sector, so it is written whole or not at all."""
_VERIFY_WAIT_S = 2.0
_HEAD = re.compile(rb'\{"seq":(\d+),"sha":"([0-9a-f]{64})","size_bytes":(\d+)\} +\n')
_TAIL = re.compile(rb',"sha":"([0-9a-f]{64})"\}\n')
_TAIL_BYTES = len(b',"sha":""}\n') + 64
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_ENCODER = json.JSONEncoder(separators=(",", ":"))

Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Head:
    """Where the chain ends, and what may come after it."""

    seq: int = 0
    """The number of the last line; 0 before the first."""
    sha: str = "0" * 64
    size_bytes: int = 0
    """Of the log up to here."""

    def to_bytes(self) -> bytes:
        """The content of the head file, always of the same length."""
        text = f'{{"seq":{self.seq},"sha":"{self.sha}","size_bytes":{self.size_bytes}}}'
        return text.encode().ljust(_HEAD_BYTES - 1) + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes) -> Head | None:
        """What a head file says; None when it was not written by `to_bytes`."""
        match = _HEAD.fullmatch(raw)
        return cls(int(match[1]), match[2].decode(), int(match[3])) if match else None

    @property
    def start(self) -> bytes:
        """How the line that follows begins, whatever it says."""
        return f'{{"seq":{self.seq + 1},"prev":"{self.sha}",'.encode()

    def line(self, record: Record) -> bytes:
        """The line that follows, in ASCII: no line end of any alphabet in a name breaks it."""
        body = _ENCODER.encode({"seq": self.seq + 1, "prev": self.sha, **record})
        return f'{body[:-1]},"sha":"{sha256_hex(body)}"}}\n'.encode()

    def is_torn(self, piece: bytes) -> bool:
        """Whether a piece without an end can be the next line, cut short by a crash."""
        start = self.start
        if len(piece) > _LONGEST_TORN_BYTES or piece[: len(start)] != start[: len(piece)]:
            return False
        return piece.isascii() and piece.decode().isprintable()

    def after(self, line: bytes) -> Head:
        """The head when this line, which follows, is written."""
        return Head(self.seq + 1, _sha_of(line), self.size_bytes + len(line))


def _sha_of(line: bytes) -> str:
    """The `sha` that a line bears; empty when it has none, or not that of its content."""
    match = _TAIL.fullmatch(line[-_TAIL_BYTES:])
    sha = match[1].decode() if match else ""
    return sha if sha and sha256_hex(line[:-_TAIL_BYTES] + b"}") == sha else ""


def _head_file(log: Path) -> Path:
    return log.with_suffix(".head")


class AuditLog:
    """The audit log of one folder. Any thread, any number of processes.

    Its files are opened for each call of `append`, so nothing is shared after a fork and a log that
    was moved away is begun anew.
    """

    def __init__(self, path: Path, *, lock_wait_s: float = LOCK_WAIT_S) -> None:
        self.path = path
        self.warning: str | None = None
        """Set when something was found changed or missing while writing; the log says it too."""
        self._lock_wait_s = lock_wait_s
        self._synced = True

    def append(self, *records: Record) -> None:
        """Write a line for each record; when this returns, they are in the file.

        Raises:
            StoreError: they could not be written; a line is in the file whole or not at all.
        """
        with self._opened() as (log_fd, head_fd):
            head = self._mended_head(log_fd, head_fd)
            for record in records:
                self._synced = False
                head = _put(log_fd, head_fd, head, record)

    def sync(self) -> None:
        """Put all lines on the disk, so that they survive a power cut; StoreError if it fails."""
        if not self._synced:
            with self._opened() as descriptors:
                for fd in descriptors:
                    os.fsync(fd)
            self._synced = True

    @contextmanager
    def _opened(self) -> Generator[tuple[int, int]]:
        """The log and its head, made where they are missing, under the lock."""
        try:
            with ExitStack() as stack:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                head_fd = stack.enter_context(_open(_head_file(self.path)))
                stack.enter_context(locked(head_fd, wait_s=self._lock_wait_s))
                # The head first: a log without one is a log that somebody cut.
                if not os.fstat(head_fd).st_size and not self.path.exists():
                    _note(head_fd, Head())
                yield stack.enter_context(_open(self.path, os.O_APPEND)), head_fd
        except OSError as error:
            raise StoreError(
                f"the audit log {self.path} cannot be written ({error.strerror or error}). Make "
                "space or make it writable, then start the run again",
                details={"reason": "audit", "path": str(self.path)},
            ) from None

    def _mended_head(self, log_fd: int, head_fd: int) -> Head:
        """Where the chain ends, after what a killed writer left is put in order."""
        size = os.fstat(log_fd).st_size
        noted = Head.from_bytes(_read(head_fd, 0, _HEAD_BYTES + 1))
        if noted is None:
            os.ftruncate(head_fd, 0)
            why = f"{_head_file(self.path).name} was missing or damaged"
            return self._go_on(log_fd, head_fd, Head(), why)
        head = noted
        more = _read(log_fd, head.size_bytes, 2 * _LONGEST_LINE_BYTES)
        line, end, torn = more.rpartition(b"\n")
        if line.startswith(head.start) and _sha_of(line + end):
            head, line = head.after(line + end), b""  # only the new end was not noted any more
        if line or not head.is_torn(torn) or head.size_bytes + len(torn) != size:
            why = f"line {noted.seq} ended at byte {noted.size_bytes}, and the file at {size}"
            return self._go_on(log_fd, head_fd, noted, why)
        if not torn:
            return head
        os.ftruncate(log_fd, head.size_bytes)
        text = redact(torn.decode("ascii"))
        lost = {"kind": "recovery", "what": "torn", "torn": text, "torn_bytes": len(torn)}
        return _put(log_fd, head_fd, head, lost)

    def _go_on(self, log_fd: int, head_fd: int, head: Head, why: str) -> Head:
        """Leave what was changed as it is, and write behind it a line that says so."""
        self.warning = (
            f"the audit log was changed or cut ({why}); it goes on, and nbagent.verify_audit() "
            "shows where. Move the audit files away to begin a new log"
        )
        size = os.fstat(log_fd).st_size
        if size and _read(log_fd, size - 1, 1) != b"\n":
            size += os.write(log_fd, b"\n")
        line = {"kind": "recovery", "what": "changed", "why": why}
        return _put(log_fd, head_fd, replace(head, size_bytes=size), line)


def _put(log_fd: int, head_fd: int, head: Head, record: Record) -> Head:
    at = utc_now().isoformat(timespec="microseconds").replace("+00:00", "Z")
    line = head.line({"at": at, "pid": os.getpid(), **record})
    if len(line) > _LONGEST_LINE_BYTES:
        raise OSError(f"a line of {len(line)} bytes is too long")
    if os.write(log_fd, line) != len(line):
        with suppress(OSError):  # else the next writer mends it
            os.ftruncate(log_fd, head.size_bytes)
        raise OSError("the disk is full")
    head = head.after(line)
    _note(head_fd, head)
    return head


def _note(head_fd: int, head: Head) -> None:
    os.lseek(head_fd, 0, os.SEEK_SET)
    if os.write(head_fd, head.to_bytes()) != _HEAD_BYTES:
        raise OSError("the disk is full")


@contextmanager
def _open(path: Path, flags: int = 0) -> Generator[int]:
    fd = os.open(path, _FLAGS | flags, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(fd: int, start: int, n_bytes: int) -> bytes:
    os.lseek(fd, start, os.SEEK_SET)
    return os.read(fd, n_bytes)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditReport:
    """What a check of the audit log found. True when all of it is in order."""

    path: Path
    lines: int
    """Those in order: all of them, or the ones before the first that is not."""
    why: str = ""
    """What is wrong with the line after them; empty when nothing is."""
    torn_bytes: int = 0
    """Of a line at the end whose writer was killed while writing; the next writer mends it."""
    recovered: int = 0
    """How many such lines were mended before."""
    last_sha: str = ""
    """Of the last line in order. Kept elsewhere, `contains=` finds a log that was made anew."""
    unfinished: tuple[tuple[str, str], ...] = ()
    """Calls that began and have no end: the run and the call's id, in their order.

    No fault of the log: they are at work now, their process ended with them or was killed, or the
    log could no longer be written.
    """

    @property
    def ok(self) -> bool:
        """Whether nothing was changed, cut, moved or put in."""
        return not self.why

    @property
    def bad_line(self) -> int | None:
        """The first line that is not in order, counted from 1."""
        return self.lines + 1 if self.why else None

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        name, lines = self.path.name, f"{self.lines:,} lines"
        if not self.ok:
            place = f"line {self.bad_line:,} of {name}"
            return f"AuditReport(NOT IN ORDER at {place}: {self.why}; {lines} before it are)"
        torn = f", and {self.torn_bytes} bytes of one that was never whole" * bool(self.torn_bytes)
        n = len(self.unfinished)
        begun = f"; {n:,} calls began and did not end" if n else ""
        return f"AuditReport(in order: {lines} of {name}{torn}{begun})"


def verify_audit(path: str | os.PathLike[str] | None = None, *, contains: str = "") -> AuditReport:
    """Check the audit log: finds what was changed, deleted, put in, moved or cut off.

    The chain holds each line to the one before it, and `audit.head` says where it ends. Two things
    it cannot tell: a power cut that took the last lines looks like a cut; and who makes the whole
    log and its head anew leaves nothing to find, unless a `last_sha` was kept elsewhere.

    Args:
        path: a store's folder, or a log's file; the current store's by default.
        contains: a `last_sha` of an earlier report, which the log must still have.

    Raises:
        UsageError: there is no audit log.
        StoreError: it cannot be read.
    """
    given = store_home() if path is None else Path(path).expanduser()
    log = given / FILE_NAME if given.is_dir() or path is None else given
    head = _head_file(log)
    if not log.is_file() and not head.is_file():
        raise UsageError(
            f"there is no audit log at {log}; it is begun by the first run with file, script, "
            "notebook or MCP tools. Give the store's folder or the file: "
            "nbagent.verify_audit('.nbagent')"
        )
    try:
        noted: bytes | None = None
        # The head and the size of one moment; what is written later is not looked at.
        with ExitStack() as stack:
            if head.is_file():
                file = stack.enter_context(head.open("rb"))
                with suppress(OSError):  # a copy on a disk without locks is checked too
                    stack.enter_context(locked(file.fileno(), wait_s=_VERIFY_WAIT_S))
                noted = file.read(_HEAD_BYTES + 1)
            size = log.stat().st_size if log.is_file() else 0
        return _checked(log, noted, _lines(log, size) if size else (), contains)
    except OSError as error:
        raise StoreError(f"the audit log cannot be read ({error}); make it readable") from None


def _lines(log: Path, left: int) -> Generator[bytes]:
    """The lines up to a size; of a line that is far too long only the start."""
    with log.open("rb") as file:
        while left > 0 and (line := file.readline(min(left, _LONGEST_LINE_BYTES + 1))):
            left -= len(line)
            yield line


def _checked(log: Path, noted: bytes | None, lines: Iterable[bytes], contains: str) -> AuditReport:
    """Walk along the chain, up to the first line that is not in order."""
    before = head = Head()
    why, torn_bytes, recovered, missing = "", 0, 0, contains
    begun: Counter[tuple[str, str, str]] = Counter()
    for line in lines:
        if not line.endswith(b"\n") and head.is_torn(line):
            torn_bytes = len(line)
            break
        fields = _fields(line)
        if why := _why_not(line, fields, head):
            break
        before, head = head, head.after(line)
        missing = "" if head.sha == missing else missing
        recovered += fields.get("kind") == "recovery"
        call = (str(fields.get("run")), str(fields.get("turn")), str(fields.get("call")))
        if fields.get("kind") == "start":
            begun[call] += 1
        elif fields.get("kind") == "call":
            begun -= Counter([call])
    why = why or _why_not_end(noted, head, before, _head_file(log).name)
    if missing and not why:
        why = "the line that it must contain is not there: the log was cut or made anew"
    return AuditReport(
        path=log,
        lines=head.seq,
        why=why,
        torn_bytes=torn_bytes,
        recovered=recovered,
        last_sha=head.sha if head.seq else "",
        unfinished=tuple((run, call) for run, _, call in begun.elements()),
    )


def _fields(line: bytes) -> dict[str, Any]:
    """What a line says; nothing when it is not whole."""
    try:
        return json_object(load_json(line)) or {} if _sha_of(line) else {}
    except (ValueError, RecursionError):
        return {}


def _why_not(line: bytes, fields: dict[str, Any], head: Head) -> str:
    """Why a line is not the next one in order; empty when it is."""
    seq, expected, why = fields.get("seq"), head.seq + 1, ""
    if not isinstance(seq, int):
        why = "it was changed or is no audit line: its content does not fit its hash"
    elif seq != expected:
        why = f"it is line {seq:,} of the chain, and line {expected:,} belongs here"
    elif not line.startswith(head.start):
        why = "it does not follow the line before it: one of them was replaced"
    if fields.get("kind") == "recovery" and fields.get("what") != "torn":
        noticed = f"nbagent noticed at {fields.get('at')} that {fields.get('why')}, and went on"
        why = f"{why}; {noticed}" if why else noticed
    return why


def _why_not_end(noted: bytes | None, head: Head, before: Head, name: str) -> str:
    """Whether the chain ends where the head file says, or one line later: a killed writer's."""
    if noted in (head.to_bytes(), before.to_bytes()):
        return ""
    said = None if noted is None else Head.from_bytes(noted)
    if said is None:
        return f"{name} is missing or was changed: nothing says if lines were cut off at the end"
    if said.seq != head.seq:
        return f"it ends with line {head.seq:,}, and {name} says with line {said.seq:,}"
    return f"{name} does not fit the last line: one of them was changed"
