"""Searching the text of files below a place: line by line, within a time, as ripgrep does.

Regular expressions are RE2's: linear in the text, so none can hang, and run without Python's
lock, so a stop gets through (measured against `re`, which holds the lock and can take for ever,
and `regex`, whose time-outs work and which was up to fifteen times slower). No look-around, no
back-references.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import re2

from nbagent.contracts.errors import ToolError
from nbagent.files.mounts import FilePlace, Keeper, Mounts, failure
from nbagent.files.names import looks_secret
from nbagent.files.opening import AnyFolder, patiently
from nbagent.files.refusals import NotRegular
from nbagent.files.walking import Entry, Globs, Level, walk
from nbagent.files.writing import read_bytes

_LARGEST_BYTES = 64_000_000
"""Of one file; a larger one is skipped and counted."""
_PROBE_BYTES = 8_192
"""A zero byte among the first so many means binary."""
_FIRST_READ_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 17
"""What the regular expression is given at once: between two of them a stop is seen."""
_SHOWN_CHARS = 400
"""Of one line."""
_MOST_TEXT_CHARS = 40_000
"""Of all lines of an answer."""
_MOST_PATTERN_CHARS = 1_000

_RE2: Any = re2
"""It comes without types."""

Finder = Callable[[bytes, int, int], int]
"""Data, start and end of a window (whole lines) → where the first match starts, or -1."""


@dataclass(frozen=True, slots=True)
class Match:
    """One line that fits."""

    path: str
    line: int
    """From 1."""
    column: int
    """From 1, in characters."""
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is searched for."""

    query: str
    regex: bool = False
    glob: str | None = None
    context: int = 0
    """Lines before and after."""
    max_matches: int = 100
    timeout_s: float = 10.0
    stopped: Callable[[], bool] = lambda: False
    """Asked again and again; True ends the search."""
    allows: Callable[[str], bool] = lambda path: not looks_secret(path.rpartition("/")[2])
    """Whether a file may be looked into, by its path."""
    forbids: Callable[[str], bool] | None = None
    """Whether a path, in any form, is forbidden: as if it were not there."""


@dataclass(slots=True)
class SearchResult:
    """What was found. `why_cut` says why it is not all; empty when it is."""

    matches: list[Match] = field(default_factory=list[Match])
    files_scanned: int = 0
    files_skipped: int = 0
    """Too large, or not to be read. Binary and ignored files are not counted."""
    left_out: int = 0
    """Files and folders that were forbidden."""
    matches_found: int = 0
    why_cut: str = ""


def finder(query: str, *, regex: bool) -> Finder:
    """What finds a query in bytes.

    Raises:
        ToolError: `E_INVALID_ARGUMENTS`, it is none.
    """
    if not query or "\n" in query or "\r" in query:
        raise _no_query("give the words of one line; matches do not go over line ends")
    if len(query) > _MOST_PATTERN_CHARS:
        raise _no_query(f"it is longer than {_MOST_PATTERN_CHARS:,} characters; give less of it")
    if not regex:
        wanted = query.encode("utf-8")

        def literal(data: bytes, start: int, end: int) -> int:
            return data.find(wanted, start, end)

        return literal
    search = _compiled(query).search

    def pattern(data: bytes, start: int, end: int) -> int:
        found = search(data, start, end)
        return -1 if found is None else found.start()

    return pattern


def _compiled(query: str) -> Any:
    options: Any = _RE2.Options()
    options.log_errors = False
    options.never_nl = True
    options.max_mem = 16 << 20
    # Multi-line: ^ and $ are the ends of lines, of which a window has many.
    try:
        return _RE2.compile(b"(?m)" + query.encode("utf-8"), options)
    except Exception as error:  # Its own class, which has no type.
        said: object = error.args[0] if error.args else ""
        why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise _no_query(
            f"it is no regular expression that works here ({why[:200]}); there are no look-around "
            "and no back-references, and without regex the words are taken as they are"
        ) from None


def _no_query(why: str) -> ToolError:
    return ToolError(f"this query cannot be searched for: {why}", code="E_INVALID_ARGUMENTS")


def search(mounts: Mounts, place: FilePlace, order: Order) -> SearchResult:
    """Search a file, or all files below a folder that are text and not ignored.

    Raises:
        ToolError: the query is none, or the place cannot be opened.
    """
    return _Search(mounts, place, order).run()


class _Search:
    def __init__(self, mounts: Mounts, place: FilePlace, order: Order) -> None:
        self._mounts = mounts
        self._place = place
        self._order = order
        self._find = finder(order.query, regex=order.regex)
        self._globs = Globs(order.glob) if order.glob else None
        self._until = time.monotonic() + order.timeout_s
        self._left_chars = _MOST_TEXT_CHARS
        self._answer = SearchResult()

    def run(self) -> SearchResult:
        root = self._mounts.root(self._place.mount)
        try:
            if self._place.parts and self._is_file(root):
                self._file(root, self._place.parts, self._place.text)
            else:
                self._tree(root)
        except OSError as error:
            raise failure(error, self._place, root) from None
        return self._answer

    def _is_file(self, root: AnyFolder) -> bool:
        try:
            os.close(patiently(lambda: root.open_file(self._place.parts)))
        except NotRegular as error:
            if stat.S_ISDIR(error.mode):
                return False
            raise
        return True

    def _tree(self, root: AnyFolder) -> None:
        start = self._place.parts
        skip = self._mounts.skipped_below(self._place)
        keeper = None
        if self._order.forbids is not None:
            keeper = Keeper(self._mounts, self._place.mount, self._order.forbids)
        try:
            self._levels(walk(root, start, skip=skip, keeper=keeper))
        finally:
            self._answer.left_out = 0 if keeper is None else keeper.left_out

    def _levels(self, levels: Iterator[Level]) -> None:
        for level in levels:
            for name, path in self._files(level):
                if self._is_over():
                    return
                try:
                    self._file(level.folder, (name,), path)
                except OSError:
                    self._answer.files_skipped += 1

    def _files(self, level: Level) -> Iterator[tuple[str, str]]:
        """The files of a folder that are searched: name and path."""
        prefix = "".join(f"{part}/" for part in (self._place.mount.name, *level.parts))
        below = "".join(f"{part}/" for part in level.parts[len(self._place.parts) :])
        globs = self._globs
        entry: Entry
        for entry in level.entries:
            name, kind, ignored = entry
            if kind != "file" or ignored:
                continue
            if globs is not None and not globs.fit(below + name):
                continue
            yield name, prefix + name

    def _is_over(self) -> bool:
        answer = self._answer
        if answer.why_cut:
            return True
        if self._order.stopped():
            answer.why_cut = "it was stopped"
        elif time.monotonic() > self._until:
            answer.why_cut = (
                f"{self._order.timeout_s:g} s were up after {answer.files_scanned:,} files; narrow "
                "the path or the glob"
            )
        return bool(answer.why_cut)

    def _file(self, folder: AnyFolder, parts: tuple[str, ...], path: str) -> None:
        if not self._order.allows(path):
            self._answer.files_skipped += 1
            return
        descriptor = folder.open_file(parts)
        try:
            data = os.read(descriptor, _FIRST_READ_BYTES)
            if b"\0" in data[:_PROBE_BYTES]:
                return
            if len(data) == _FIRST_READ_BYTES:
                if os.fstat(descriptor).st_size > _LARGEST_BYTES:
                    self._answer.files_skipped += 1
                    return
                data += read_bytes(descriptor, most=_LARGEST_BYTES)
        finally:
            os.close(descriptor)
        self._answer.files_scanned += 1
        self._lines(data, path)

    def _lines(self, data: bytes, path: str) -> None:
        find, counted, line = self._find, 0, 1
        for begin, end in _windows(data):
            at = find(data, begin, end)
            # An empty match may stand behind the last line, which is none.
            while 0 <= at < end:
                line_start = data.rfind(b"\n", 0, at) + 1
                line += data.count(b"\n", counted, line_start)
                counted = line_start
                self._take(data, path, line, at)
                if self._is_over():
                    return
                following = data.find(b"\n", at) + 1
                if not 0 < following < end:
                    break
                at = find(data, following, end)
            if end < len(data) and self._is_over():
                return

    def _take(self, data: bytes, path: str, line: int, at: int) -> None:
        answer, order = self._answer, self._order
        answer.matches_found += 1
        if len(answer.matches) >= order.max_matches or self._left_chars <= 0:
            kept = f"the first {len(answer.matches):,} matches are shown; "
            answer.why_cut = kept + "narrow the query, the path or the glob"
            return
        start = data.rfind(b"\n", 0, at) + 1
        column = len(data[start:at].decode("utf-8", "replace")) + 1
        end = _line_end(data, at)
        match = Match(
            path,
            line,
            column,
            _shown(data[start:end], column - 1),
            _lines_before(data, start, order.context),
            _lines_after(data, end, order.context),
        )
        self._left_chars -= sum(map(len, (path, match.text, *match.before, *match.after)))
        answer.matches.append(match)


def _windows(data: bytes) -> Iterator[tuple[int, int]]:
    """Pieces of whole lines; a line that is longer than a window is cut there."""
    begin, size = 0, len(data)
    while begin < size:
        end = begin + _WINDOW_BYTES
        # With its newline, and not in the middle of a line that fits.
        end = size if end >= size else data.rfind(b"\n", begin, end) + 1 or end
        yield begin, end
        begin = end


def _line_end(data: bytes, at: int) -> int:
    end = data.find(b"\n", at)
    return len(data) if end < 0 else end


def _lines_before(data: bytes, start: int, count: int) -> tuple[str, ...]:
    found: list[str] = []
    while len(found) < count and start > 0:
        above = data.rfind(b"\n", 0, start - 1) + 1
        found.append(_shown(data[above : start - 1]))
        start = above
    return tuple(reversed(found))


def _lines_after(data: bytes, end: int, count: int) -> tuple[str, ...]:
    found: list[str] = []
    while len(found) < count and end + 1 < len(data):
        below = _line_end(data, end + 1)
        found.append(_shown(data[end + 1 : below]))
        end = below
    return tuple(found)


def _shown(line: bytes, at: int = 0) -> str:
    """A line as text; a long one as the piece around a place in it."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    if len(text) <= _SHOWN_CHARS:
        return text
    start = max(0, min(at - _SHOWN_CHARS // 4, len(text) - _SHOWN_CHARS))
    piece = text[start : start + _SHOWN_CHARS]
    return f"{'…' if start else ''}{piece}{'…' if start + _SHOWN_CHARS < len(text) else ''}"
