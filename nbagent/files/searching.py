"""Searches the text of files below a mount, line by line, within a time limit.

Queries are RE2's: linear in the text, so none can hang, and run without Python's lock, so a stop
gets through (measured against `re`, which holds the lock and may never end, and `regex`, whose
timeouts work and which was up to fifteen times slower). No look-around, no back-references.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import re2

from nbagent.contracts.errors import ToolError
from nbagent.files.mounts import MountedPath
from nbagent.files.names import Parts, looks_secret
from nbagent.files.opening import Folder, NotRegular, failure
from nbagent.files.walking import Globs, Hides, Level, walk
from nbagent.files.writing import read_bytes

_MAX_BYTES = 64_000_000
"""Largest file that is searched; larger ones are skipped and counted."""
_PROBE_BYTES = 8_192
"""A zero byte within the first 8 KiB marks a binary file, as for git."""
_WINDOW_BYTES = 1 << 17
"""Bytes per call of the regular expression: a stop is noticed between two calls."""
_SHOWN_CHARS = 400
"""Longest shown part of a line."""
_MAX_TEXT_CHARS = 40_000
"""Characters of all lines of an answer."""
_MAX_PATTERN_CHARS = 1_000

_RE2: Any = re2
"""Any, because the package has no type annotations."""


class Match(NamedTuple):
    """One matching line."""

    path: str
    line: int
    """From 1."""
    column: int
    """From 1, in characters."""
    text: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """A search: the query and its limits."""

    query: str
    regex: bool = False
    glob: str | None = None
    context: int = 0
    """Lines before and after."""
    max_matches: int = 100
    timeout_s: float = 10.0
    stopped: Callable[[], bool] = lambda: False
    """Checked repeatedly; True ends the search."""
    allows: Callable[[str], bool] = lambda path: not looks_secret(path)
    """True if the file of a path may be read."""
    hides: Hides = lambda parts, name: False


@dataclass(slots=True)
class SearchResult:
    """Matches of a search. `why_cut` is the reason if some are missing, else empty."""

    matches: list[Match] = field(default_factory=list[Match])
    files_scanned: int = 0
    files_skipped: int = 0
    """Files that are too large or not readable. Binary and ignored files are not counted."""
    matches_found: int = 0
    why_cut: str = ""


def _compile_query(query: str, *, regex: bool) -> Any:
    """Compile a query for bytes; ToolError if it is not valid."""
    if not query or "\n" in query or "\r" in query:
        why = "give the words of one line; matches do not go over line ends"
    elif len(query) > _MAX_PATTERN_CHARS:
        why = f"it is longer than {_MAX_PATTERN_CHARS:,} characters; give less of it"
    else:
        options: Any = _RE2.Options()
        options.log_errors = False
        options.literal = not regex
        # A match must not cross a line end, as `\s` or `[^a]` would.
        options.never_nl = regex
        options.max_mem = 16 << 20
        # Multi-line mode: a window has many lines, and ^ and $ must match at each of them.
        source = f"(?m){query}" if regex else query
        try:
            return _RE2.compile(source.encode("utf-8"), options)
        except Exception as error:  # re2.error is untyped
            reason: object = error.args[0] if error.args else ""
            text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
            why = (
                f"it is no regular expression that works here ({text[:200]}); there are no "
                "look-around and no back-references, and without regex the words are taken as "
                "they are"
            )
    raise ToolError(f"this query cannot be searched for: {why}", code="E_INVALID_ARGUMENTS")


def search(path: MountedPath, query: SearchQuery) -> SearchResult:
    """Search a file, or all files below a folder that are text and not ignored.

    Raises:
        ToolError: the query is not valid, or the path cannot be opened.
    """
    running = _Search(path, query)
    try:
        running.run()
    except OSError as error:
        raise failure(error, path.text) from None
    return running.result


class _Search:
    def __init__(self, path: MountedPath, query: SearchQuery) -> None:
        self._place = path
        self._query = query
        self._find = _compile_query(query.query, regex=query.regex).search
        self._globs = Globs(query.glob) if query.glob else None
        self._until_s = time.monotonic() + query.timeout_s
        self._remaining_chars = _MAX_TEXT_CHARS
        self.result = SearchResult()

    def run(self) -> None:
        root = self._place
        with suppress(NotRegular):  # a folder; anything else makes the walk raise
            self._search_file(root.root, root.parts, root.text)
            return
        for level in walk(root, hides=self._query.hides):
            for name, path in self._files(level):
                if self._is_over():
                    return
                if not self._query.allows(path):
                    self.result.files_skipped += 1
                    continue
                try:
                    self._search_file(level.folder, (name,), path)
                except OSError:
                    self.result.files_skipped += 1

    def _files(self, level: Level) -> Iterator[tuple[str, str]]:
        """Files of a folder to search: name and path."""
        prefix = "".join(f"{part}/" for part in (self._place.mount.name, *level.parts))
        below = "".join(f"{part}/" for part in level.parts[len(self._place.parts) :])
        for name, kind, ignored in level.entries:
            if kind != "file" or ignored:
                continue
            if self._globs is None or self._globs.matches(below + name):
                yield name, prefix + name

    def _is_over(self) -> bool:
        result = self.result
        if self._query.stopped():
            result.why_cut = "it was stopped"
        elif not result.why_cut and time.monotonic() > self._until_s:
            result.why_cut = (
                f"{self._query.timeout_s:g} s were up after {result.files_scanned:,} files; narrow "
                "the path or the glob"
            )
        return bool(result.why_cut)

    def _search_file(self, folder: Folder, parts: Parts, path: str) -> None:
        descriptor = folder.open_file(parts)
        try:
            if os.fstat(descriptor).st_size > _MAX_BYTES:
                self.result.files_skipped += 1
                return
            data = os.read(descriptor, _WINDOW_BYTES)
            if b"\0" in data[:_PROBE_BYTES]:
                return
            if len(data) == _WINDOW_BYTES:
                data += read_bytes(descriptor, max_bytes=_MAX_BYTES)
        finally:
            os.close(descriptor)
        self.result.files_scanned += 1
        self._search_data(data, path)

    def _search_data(self, data: bytes, path: str) -> None:
        counted, line = 0, 1
        for begin, end in _windows(data):
            start = begin
            # An empty match after the final line end belongs to no line.
            while start < end and (match := self._find(data, start, end)):
                at = match.start()
                if at >= end:
                    break
                line_start = data.rfind(b"\n", 0, at) + 1
                line += data.count(b"\n", counted, line_start)
                counted = line_start
                self._add_match(data, path, line, at)
                if self._is_over():
                    return
                start = data.find(b"\n", at) + 1 or end
            if end < len(data) and self._is_over():
                return

    def _add_match(self, data: bytes, path: str, line: int, at: int) -> None:
        result, query = self.result, self._query
        result.matches_found += 1
        if len(result.matches) >= query.max_matches or self._remaining_chars <= 0:
            shown = f"the first {len(result.matches):,} matches are shown; "
            result.why_cut = shown + "narrow the query, the path or the glob"
            return
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        column = len(data[start:at].decode("utf-8", "replace")) + 1
        before, after = _context_lines(data, start, end, query.context)
        match = Match(path, line, column, _shorten_line(data[start:end], column - 1), before, after)
        self._remaining_chars -= sum(map(len, (path, match.text, *before, *after)))
        result.matches.append(match)


def _windows(data: bytes) -> Iterator[tuple[int, int]]:
    """Windows of whole lines; a line that is longer than a window is cut."""
    begin, size = 0, len(data)
    while begin < size:
        end = begin + _WINDOW_BYTES
        # End after a newline; only a line longer than a window is cut.
        end = size if end >= size else data.rfind(b"\n", begin, end) + 1 or end
        yield begin, end
        begin = end


def _context_lines(
    data: bytes, start: int, end: int, count: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Context lines before and after the one from `start` to `end`."""
    if not count:
        return (), ()
    above = data[max(0, start - _WINDOW_BYTES) : start].split(b"\n")[:-1][-count:]
    rest = data[end + 1 : end + _WINDOW_BYTES]
    below = rest.removesuffix(b"\n").split(b"\n")[:count] if rest else []
    return tuple(map(_shorten_line, above)), tuple(map(_shorten_line, below))


def _shorten_line(line: bytes, at: int = 0) -> str:
    """A line as text; of a long line the part around a position."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    if len(text) <= _SHOWN_CHARS:
        return text
    start = max(0, min(at - _SHOWN_CHARS // 4, len(text) - _SHOWN_CHARS))
    piece = text[start : start + _SHOWN_CHARS]
    return f"{'…' if start else ''}{piece}{'…' if start + _SHOWN_CHARS < len(text) else ''}"
