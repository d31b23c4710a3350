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
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

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

    def line(self, record: Record) -> bytes:
        """The line that follows.

        Plain ASCII, so whatever a name holds (line ends of any alphabet, half a character) stays
        in one line for every reader.
        """
        body = _ENCODER.encode({"seq": self.seq + 1, "prev": self.sha, **record})
        return f'{body[:-1]},"sha":"{sha256_hex(body)}"}}\n'.encode()

    @property
    def start(self) -> bytes:
        """How the line that follows begins, whatever it says."""
        return f'{{"seq":{self.seq + 1},"prev":"{self.sha}",'.encode()

    def is_followed_by(self, line: bytes) -> bool:
        """Whether a line is whole and the next one."""
        return line.startswith(self.start) and bool(_sha_of(line))

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


def _object(raw: bytes) -> dict[str, Any]:
    try:
        return json_object(load_json(raw)) or {}
    except (ValueError, RecursionError):
        return {}


def _head_file(log: Path) -> Path:
    return log.with_suffix(".head")


class AuditLog:
    """The audit log of one folder. Any thread, any number of processes.

    Its files are opened for each call of `append`, so nothing is shared after a fork and a log that
    was moved away is begun anew. Forgetting a run does not rewrite it: it holds hashes, names of
    tools and paths in mounts, and a log that could be rewritten would prove nothing.
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
        """Put all lines on the disk; they survive a power cut then.

        Raises:
            StoreError: the disk fails.
        """
        if not self._synced:
            with self._opened() as descriptors:
                for fd in descriptors:
                    os.fsync(fd)
            self._synced = True

    @contextmanager
    def _opened(self) -> Generator[tuple[int, int]]:
        """The log and its head, made where they are missing, under the lock."""
        head_path = _head_file(self.path)
        try:
            with ExitStack() as stack:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                head_fd = stack.enter_context(_open(head_path))
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
        if head.is_followed_by(line + end):
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
    """What is wrong; empty when nothing is."""
    bad_line: int | None = None
    """The first line that is not in order, counted from 1."""
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

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        count = f"{self.lines:,} line{'' if self.lines == 1 else 's'}"
        if not self.ok:
            place = f"line {self.bad_line:,} of {self.path.name}"
            return f"AuditReport(NOT IN ORDER at {place}: {self.why}; {count} before it are)"
        torn = f", and {self.torn_bytes} bytes of one that was never whole" * bool(self.torn_bytes)
        n = len(self.unfinished)
        begun = f"; {n:,} call{'s' if n > 1 else ''} began and did not end" if n else ""
        return f"AuditReport(in order: {count} of {self.path.name}{torn}{begun})"


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
    if not log.is_file() and not _head_file(log).is_file():
        raise UsageError(
            f"there is no audit log at {log}; it is begun by the first run with file, script, "
            "notebook or MCP tools. Give the store's folder or the file: "
            "nbagent.verify_audit('.nbagent')"
        )
    try:
        with ExitStack() as stack:
            noted, lines = _snapshot(log, stack)
            return _Check(contains=contains).report(log, noted, lines)
    except OSError as error:
        raise StoreError(f"the audit log cannot be read ({error}); make it readable") from None


def _snapshot(log: Path, stack: ExitStack) -> tuple[bytes | None, Generator[bytes]]:
    """The head and the lines at one moment; what is written later is not looked at."""
    path = _head_file(log)
    head = stack.enter_context(path.open("rb")) if path.is_file() else None
    with ExitStack() as held:
        if head is not None:
            with suppress(OSError):  # a copy on a disk without locks is checked too
                held.enter_context(locked(head.fileno(), wait_s=_VERIFY_WAIT_S))
        file = stack.enter_context(log.open("rb")) if log.is_file() else None
        size = 0 if file is None else os.fstat(file.fileno()).st_size
        return None if head is None else head.read(_HEAD_BYTES + 1), _lines(file, size)


def _lines(file: BinaryIO | None, left: int) -> Generator[bytes]:
    """The lines up to a size; of a line that is far too long only the start."""
    while file and left > 0 and (line := file.readline(min(left, _LONGEST_LINE_BYTES + 1))):
        left -= len(line)
        yield line


@dataclass(slots=True, kw_only=True)
class _Check:
    """One walk along the chain, up to the first line that is not in order."""

    contains: str
    head: Head = field(default_factory=Head)
    before: Head = field(default_factory=Head)
    """The head one line earlier."""
    torn_bytes: int = 0
    recovered: int = 0
    begun: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """Calls without an end so far: run, turn, call."""

    def report(self, log: Path, noted: bytes | None, lines: Generator[bytes]) -> AuditReport:
        missing = self.contains
        why = ""
        for line in lines:
            if not line.endswith(b"\n") and self.head.is_torn(line):
                self.torn_bytes = len(line)
                break
            if why := self._take(line):
                break
            missing = "" if self.head.sha == missing else missing
        why = why or self._why_not_end(noted, _head_file(log).name)
        if missing and not why:
            why = "the line that it must contain is not there: the log was cut or made anew"
        return AuditReport(
            path=log,
            lines=self.head.seq,
            why=why,
            bad_line=self.head.seq + 1 if why else None,
            torn_bytes=self.torn_bytes,
            recovered=self.recovered,
            last_sha=self.head.sha if self.head.seq else "",
            unfinished=tuple((run, call) for run, _, call in self.begun.elements()),
        )

    def _take(self, line: bytes) -> str:
        """Go on by one line; if it is not the next one in order, why not."""
        fields = _object(line) if _sha_of(line) else {}
        why = "" if fields and line.startswith(self.head.start) else self._why_not(fields)
        if fields.get("kind") == "recovery" and fields.get("what") != "torn":
            noticed = f"nbagent noticed at {fields.get('at')} that {fields.get('why')}, and went on"
            why = f"{why}; {noticed}" if why else noticed
        if why:
            return why
        self.before, self.head = self.head, self.head.after(line)
        self.recovered += fields.get("kind") == "recovery"
        run, turn, call = fields.get("run"), fields.get("turn"), fields.get("call")
        if isinstance(run, str) and isinstance(turn, str) and isinstance(call, str):
            if fields.get("kind") == "start":
                self.begun[run, turn, call] += 1
            elif fields.get("kind") == "call":
                self.begun -= Counter([(run, turn, call)])
        return ""

    def _why_not(self, fields: dict[str, Any]) -> str:
        """Why a line is not the next one; `fields` are empty when it is not whole."""
        seq, expected = fields.get("seq"), self.head.seq + 1
        if not isinstance(seq, int):
            return "it was changed or is no audit line: its content does not fit its hash"
        if seq != expected:
            return f"it is line {seq:,} of the chain, and line {expected:,} belongs here"
        return "it does not follow the line before it: one of them was replaced"

    def _why_not_end(self, noted: bytes | None, name: str) -> str:
        """Whether the chain ends where the head file says, or one line later: a killed writer's."""
        if noted is None:
            return f"{name} is missing, so nothing says whether lines were cut off at the end"
        if noted in (self.head.to_bytes(), self.before.to_bytes()):
            return ""
        head = Head.from_bytes(noted)
        if head is None:
            return f"{name} was changed, so nothing says whether lines were cut off at the end"
        if head.seq != self.head.seq:
            return f"it ends with line {self.head.seq:,}, and {name} says with line {head.seq:,}"
        return f"{name} does not fit the last line: one of them was changed"
