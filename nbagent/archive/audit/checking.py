"""Checking the audit log: reads all of its files as one chain and says in words what is wrong.

Writes nothing, and raises for no content whatever.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from nbagent.archive.audit.lines import (
    FILE_NAME,
    LONGEST_LINE_BYTES,
    Head,
    follows,
    full_files,
    head_file,
    is_torn,
    is_whole,
    newest_of,
    read_line,
)
from nbagent.archive.audit.locking import locked
from nbagent.contracts.errors import StoreError, UsageError
from nbagent.settings import store_home

_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditReport:
    """What a check of the audit log found. True when all of it is in order."""

    path: Path
    """The newest file."""
    lines: int
    """Those in order: all of them, or the ones before the first that is not."""
    files: int = 1
    why: str = ""
    """What is wrong; empty when nothing is."""
    bad_file: str | None = None
    bad_line: int | None = None
    """The first line that is not in order, counted from 1 in `bad_file`."""
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
            place = f"line {self.bad_line:,} of {self.bad_file}"
            return f"AuditReport(NOT IN ORDER at {place}: {self.why}; {count} before it are)"
        files = f" in {self.files} files" if self.files > 1 else ""
        torn = f", and {self.torn_bytes} bytes of one that was never whole" * bool(self.torn_bytes)
        n = len(self.unfinished)
        begun = f"; {n:,} call{'s' if n > 1 else ''} began and did not end" if n else ""
        return f"AuditReport(in order: {count}{files} of {self.path.name}{torn}{begun})"


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
    try:
        log = _log_at(path)
        with ExitStack() as stack:
            return _Check(log, _snapshot(log, stack), contains).report()
    except OSError as error:
        raise StoreError(f"the audit log cannot be read ({error}); make it readable") from None


def _log_at(path: str | os.PathLike[str] | None) -> Path:
    given = store_home() if path is None else Path(path).expanduser()
    log = given / FILE_NAME if given.is_dir() or path is None else newest_of(given)
    noted = head_file(log)
    if log.is_file() or full_files(log) or (noted.is_file() and noted.stat().st_size):
        return log
    raise UsageError(
        f"there is no audit log at {log}; it is begun by the first run with file, script, notebook "
        "or MCP tools. Give the store's folder or the file: nbagent.verify_audit('.nbagent')"
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The log at one moment; what is written later is not looked at."""

    files: list[tuple[Path, BinaryIO, int]]
    """With their sizes in bytes, the newest last."""
    noted: bytes | None
    """What the head file says; None when there is none."""


def _snapshot(log: Path, stack: ExitStack) -> _Found:
    head = head_file(log)
    noted = stack.enter_context(head.open("rb")) if head.is_file() else None
    with ExitStack() as held:
        if noted is not None:
            with contextlib.suppress(OSError):  # a copy on a disk without locks is checked too
                held.enter_context(locked(noted.fileno(), patience_s=_PATIENCE_S))
        files: list[tuple[Path, BinaryIO, int]] = []
        for path in (*full_files(log), log):
            if path.is_file():
                file = stack.enter_context(path.open("rb"))
                files.append((path, file, os.fstat(file.fileno()).st_size))
        return _Found(files, None if noted is None else noted.read(4096))


@dataclass(slots=True)
class _Check:
    """One walk along the chain, up to the first line that is not in order."""

    log: Path
    found: _Found
    contains: str
    head: Head = field(default_factory=Head)
    before: Head = field(default_factory=Head)
    """The head one line earlier."""
    file_lines: int = 0
    """Lines in order of the file that is being read."""
    torn_bytes: int = 0
    recovered: int = 0
    begun: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    """Calls without an end so far: run, turn, call."""
    has_it: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_it = not self.contains

    def report(self) -> AuditReport:
        bad_file, why = self.log.name, ""
        for path, file, size in self.found.files:
            self.head = replace(self.head, size_bytes=0)
            self.file_lines, bad_file = 0, path.name
            why = self._walk(_lines(file, size), is_newest=path == self.log)
            if why:
                break
        if not why:
            if bad_file != self.log.name:
                bad_file, self.file_lines = self.log.name, 0
            why = self._end()
        return AuditReport(
            path=self.log,
            lines=self.head.seq,
            files=len(self.found.files),
            why=why,
            bad_file=bad_file if why else None,
            bad_line=self.file_lines + 1 if why else None,
            torn_bytes=self.torn_bytes,
            recovered=self.recovered,
            last_sha=self.head.sha if self.head.seq else "",
            unfinished=tuple((run, call) for run, _, call in self.begun.elements()),
        )

    def _walk(self, lines: Generator[bytes], *, is_newest: bool) -> str:
        for line in lines:
            if is_newest and not line.endswith(b"\n") and is_torn(line, self.head):
                self.torn_bytes = len(line)
                return ""
            why = "" if follows(line, self.head) else _why_not(line, self.head)
            if b'"kind":"recovery"' in line and is_whole(line):
                why = self._recovery(line, why)
            if why:
                return why
            self.before, self.head = self.head, self.head.after(line)
            self.file_lines += 1
            self._count(line)
            self.has_it = self.has_it or self.head.sha == self.contains
        return ""

    def _count(self, line: bytes) -> None:
        """Note the begin or the end of a call. A quote inside a text has a backslash before it."""
        ends = b'"kind":"call"' in line and bool(self.begun)
        if not ends and b'"kind":"start"' not in line:
            return
        told = read_line(line)
        run, turn, call = told.get("run"), told.get("turn"), told.get("call")
        if not (isinstance(run, str) and isinstance(turn, str) and isinstance(call, str)):
            return
        key = (run, turn, call)
        if not ends:
            self.begun[key] += 1
        elif self.begun[key] > 1:
            self.begun[key] -= 1
        else:
            del self.begun[key]

    def _recovery(self, line: bytes, why: str) -> str:
        told = read_line(line)
        if told.get("kind") != "recovery":
            return why
        if told.get("what") == "torn":
            self.recovered += not why
            return why
        noticed = f"nbagent noticed at {told.get('at')} that {told.get('why')}, and went on"
        return f"{why}; {noticed}" if why else noticed

    def _end(self) -> str:
        """Whether the chain ends where the head file says."""
        noted, head, name = self.found.noted, self.head, head_file(self.log).name
        if noted is None:
            return f"{name} is missing, so nothing says whether lines were cut off at the end"
        if noted not in self._possible_notes():
            return self._why_not_end(Head.from_bytes(noted), name)
        if not self.has_it:
            return "the line that it must contain is not there: the log was cut or made anew"
        return "" if self.found.files or not head.seq else f"{self.log.name} is missing"

    def _possible_notes(self) -> list[bytes]:
        """What the head file may say: the end, or where a killed writer left it."""
        notes = [self.head.to_bytes(), self.before.to_bytes()]
        full = [size for path, _, size in self.found.files if path != self.log]
        if full and not self.file_lines:
            # Killed while it began a new file.
            notes.append(replace(self.head, size_bytes=full[-1]).to_bytes())
        return notes

    def _why_not_end(self, noted: Head | None, name: str) -> str:
        if noted is None:
            return f"{name} was changed, so nothing says whether lines were cut off at the end"
        n = noted.seq - self.head.seq
        if n > 0:
            lines = "1 line is" if n == 1 else f"{n:,} lines are"
            return f"{lines} missing at the end: {name} says that line {noted.seq:,} is the last"
        if n < 0:
            return f"{-n:,} lines at the end are unknown to {name}, which ends at {noted.seq:,}"
        return f"{name} does not fit the last line: one of them was changed"


def _lines(file: BinaryIO, size: int) -> Generator[bytes]:
    """The lines up to a size; of a line that is far too long only the start."""
    left = size
    while left > 0 and (line := file.readline(min(left, LONGEST_LINE_BYTES + 1))):
        left -= len(line)
        yield line


def _why_not(line: bytes, head: Head) -> str:
    """Why a line is not the one after the head."""
    expected = head.seq + 1
    if not is_whole(line):
        return "it was changed or is no audit line: its content does not fit its hash"
    told = read_line(line)
    seq = told.get("seq")
    if not isinstance(seq, int):
        return "it is no audit line: it has no number"
    if seq > expected:
        last = seq - 1
        lines = f"line {last:,} is" if last == expected else f"lines {expected:,} to {last:,} are"
        return f"{lines} missing before it"
    if seq < expected:
        return f"it is line {seq:,} of the chain, and line {expected:,} belongs here"
    return "it does not follow the line before it: one of them was replaced"
