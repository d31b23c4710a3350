"""New text from old text: one span replaced, or a unified diff applied. No disk here.

Strict about what must stand there, tolerant about line numbers, counts and line ends: models get
the first right and the others wrong.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from nbagent.contracts.errors import ToolError

_HUNK = re.compile(r"@@+(?: -(?P<old>\d+)(?:,\d+)? \+\d+(?:,\d+)?)?(?: @@+.*|\s*)")
_MOST_PLACES = 5
_LONGEST_COMPARED = 200_000
_MOST_COMPARED_LINES = 4_000
_COMPARED_CHARS = 160
"""Of a line, when the most similar one is looked for."""
_HINT_S = 0.4
"""For that: the hint is worth no more."""
_MOST_S = 1.2
"""For placing all hunks of a diff: nobody can stop a change while it is made."""
_LOOKS = 2_000
"""Between two looks at the clock."""


def to_text(data: bytes) -> str:
    """Bytes as text from which `to_bytes` makes the same bytes, whatever they were."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """What `to_text` was made from."""
    return text.encode("utf-8", "surrogateescape")


def sha_of(data: bytes) -> str:
    """The SHA-256 of a file's content."""
    return hashlib.sha256(data).hexdigest()


def replace_once(text: str, old: str, new: str) -> str:
    """The text with a span replaced that stands in it exactly once.

    Where the file has CRLF line ends and the span has LF, both are taken as CRLF.

    Raises:
        ToolError: `E_PRECONDITION_FAILED` with a hint where the span stands or nearly stands.
    """
    if not old:
        raise ToolError(
            "oldText is empty; give the text to be replaced, or use fs.write for a whole file",
            code="E_INVALID_ARGUMENTS",
        )
    if old not in text and "\r\n" in text and "\r\n" not in old:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    at = text.find(old)
    if at < 0:
        _fail(
            f"oldText does not stand there{_nearly(text, old)}; read the file and copy it exactly"
        )
    if text.find(old, at + 1) >= 0:
        places = ", ".join(str(_line_of(text, place)) for place in _places(text, old))
        _fail(
            f"oldText stands there more than once (lines {places}); give more of the lines around "
            "the one that is meant"
        )
    return text[:at] + new + text[at + len(old) :]


def _places(text: str, piece: str) -> Iterator[int]:
    at = text.find(piece)
    for _ in range(_MOST_PLACES):
        if at < 0:
            return
        yield at
        at = text.find(piece, at + 1)


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _nearly(text: str, old: str) -> str:
    """Words about the place that is most like the piece; empty when nothing is like it."""
    if len(text) > _LONGEST_COMPARED or len(old) > _LONGEST_COMPARED:
        return ""
    wanted = [" ".join(line.split()) for line in old.strip().splitlines()]
    lines = text.splitlines()
    if not wanted:
        return ""
    stripped = [" ".join(line.split()) for line in lines]
    hay = "\n".join(["", *stripped, ""])
    at = hay.find("\n".join(["", *wanted, ""]))
    if at >= 0:
        return f", but with other white space at line {hay.count(chr(10), 0, at) + 1}"
    close = _closest(next(filter(None, wanted), ""), stripped, 0.7)
    if close is None:
        return ""
    number = stripped.index(close) + 1
    return f"; most like it is line {number}: {lines[number - 1].strip()[:120]!r}"


def _closest(wanted: str, lines: Iterable[str], at_least: float) -> str | None:
    """The line most like another, as far as a short time lets it be found."""
    until = time.monotonic() + _HINT_S
    matcher = difflib.SequenceMatcher(None, "", wanted[:_COMPARED_CHARS])
    best, found = at_least, None
    for line in dict.fromkeys(lines):
        if time.monotonic() > until:
            break
        matcher.set_seq1(line[:_COMPARED_CHARS])
        if matcher.real_quick_ratio() >= best and matcher.quick_ratio() >= best:
            ratio = matcher.ratio()
            if ratio >= best:
                best, found = ratio + 1e-9, line
    return found


def _fail(message: str) -> NoReturn:
    raise ToolError(message, code="E_PRECONDITION_FAILED")


_Kind = Literal[" ", "-", "+"]
_KINDS: dict[str, _Kind] = {" ": " ", "-": "-", "+": "+"}


@dataclass(slots=True)
class _Line:
    kind: _Kind
    text: str
    ends: bool = True
    """False: the diff says that no newline follows."""


@dataclass(slots=True)
class _Hunk:
    number: int
    start: int | None
    """The line it claims, from 1."""
    lines: list[_Line] = field(default_factory=list[_Line])

    @property
    def old(self) -> list[_Line]:
        return [line for line in self.lines if line.kind != "+"]


@dataclass(slots=True)
class _FileLine:
    text: str
    end: str
    """`\\n`, `\\r\\n`, or nothing at the end of the file."""


def apply_diff(text: str | None, diff: str) -> str:
    """The text with a unified diff of one file applied; None when there is no file yet.

    Raises:
        ToolError: `E_INVALID_ARGUMENTS`, it is no such diff; `E_PRECONDITION_FAILED`, what it
            says about the old text is not so.
    """
    hunks = _read_diff(diff)
    if text is None and any(hunk.old for hunk in hunks):
        raise ToolError(
            "there is no such file, so a diff that changes lines does not fit; look with fs.list",
            code="ENOENT",
        )
    until_s = time.monotonic() + _MOST_S
    lines = _file_lines(text or "")
    index = _Index([line.text for line in lines], until_s)
    eol = _usual_end(lines)
    out: list[_FileLine] = []
    done, shift, ends = 0, 0, True
    for hunk in hunks:
        at = _where(hunk, lines, index, done, shift)
        out += lines[done:at]
        done, shift = at, at - (hunk.start - 1 if hunk.start else at)
        for line in hunk.lines:
            if line.kind == "+":
                out.append(_FileLine(line.text, eol if line.ends else ""))
                ends = line.ends
                continue
            if line.kind == " ":
                out.append(lines[done])
            done += 1
    out += lines[done:]
    for line in out[:-1]:
        line.end = line.end or eol
    if out and done >= len(lines) and not ends:
        out[-1].end = ""
    return "".join(line.text + line.end for line in out)


def _file_lines(text: str) -> list[_FileLine]:
    found: list[_FileLine] = []
    for piece in _rows(text):
        end = "\r\n" if piece.endswith("\r\n") else "\n" if piece.endswith("\n") else ""
        found.append(_FileLine(piece[: len(piece) - len(end)], end))
    return found


def _rows(text: str) -> list[str]:
    # Not splitlines(): it also splits at form feeds and at separators that no diff knows.
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _usual_end(lines: list[_FileLine]) -> str:
    crlf = sum(line.end == "\r\n" for line in lines)
    return "\r\n" if crlf * 2 > len(lines) else "\n"


def _read_diff(diff: str) -> list[_Hunk]:
    hunks: list[_Hunk] = []
    names = 0
    rows = [row.removesuffix("\r") for row in diff.split("\n")]
    if rows and not rows[-1]:
        rows.pop()
    for number, row in enumerate(rows):
        after = rows[number + 1] if number + 1 < len(rows) else ""
        if row.startswith("--- ") and after.startswith("+++ "):
            names += 1
            if after[4:].strip() == "/dev/null":
                _no_diff("it deletes the file, which fs tools do not do")
            continue
        if row.startswith("+++ ") and number and rows[number - 1].startswith("--- "):
            continue
        match = _HUNK.fullmatch(row)
        if match is not None:
            start = int(match["old"]) if match["old"] else None
            hunks.append(_Hunk(len(hunks) + 1, start))
        elif row.startswith(("diff --git ", "index ", "*** ")) or not hunks:
            continue
        else:
            _add_row(hunks[-1], row)
    if names > 1:
        _no_diff("it is of several files; make one call for each")
    if not any(line.kind != " " for hunk in hunks for line in hunk.lines):
        _no_diff("it has no hunk that changes a line")
    return hunks


def _add_row(hunk: _Hunk, row: str) -> None:
    if row.startswith("\\"):
        if hunk.lines:
            hunk.lines[-1].ends = False
    elif row == "":
        hunk.lines.append(_Line(" ", ""))  # An empty line whose space was trimmed.
    elif row[0] in _KINDS:
        hunk.lines.append(_Line(_KINDS[row[0]], row[1:]))
    else:
        _no_diff(f"a line of hunk {hunk.number} begins with none of ' ', '+', '-': {row[:80]!r}")


def _no_diff(why: str) -> NoReturn:
    raise ToolError(
        f"this is no unified diff of one file: {why}; write hunks that begin with "
        "'@@ -LINE,COUNT +LINE,COUNT @@'",
        code="E_INVALID_ARGUMENTS",
    )


class _Index:
    """Where lines stand in a file. Made once for all hunks of a diff."""

    def __init__(self, have: list[str], until_s: float) -> None:
        self.have = have
        self._until_s = until_s
        self._at: dict[str, list[int]] = {}
        for number, text in enumerate(have):
            self._at.setdefault(text, []).append(number)

    def fitting(self, wanted: list[str], done: int) -> list[int]:
        """Where all of these lines stand one below the other, from a line on.

        Raises:
            ToolError: `E_TIMEOUT`, there are too many places where they may stand.
        """
        nowhere: list[int] = []
        if not wanted:
            return nowhere
        # By the line that is seldom: most files have many empty ones.
        offset = min(range(len(wanted)), key=lambda i: len(self._at.get(wanted[i], nowhere)))
        rare = self._at.get(wanted[offset], nowhere)
        found: list[int] = []
        first = bisect_left(rare, done + offset)
        for count, at in enumerate(rare[first:]):
            if not count % _LOOKS:
                self._look_at_clock()
            start = at - offset
            if self._stands(wanted, start):
                found.append(start)
        return found

    def _stands(self, wanted: list[str], start: int) -> bool:
        have, size = self.have, len(wanted)
        if (
            start + size > len(have)
            or have[start] != wanted[0]
            or have[start + size - 1] != wanted[-1]
        ):
            return False
        if size > _LOOKS:
            self._look_at_clock()
        return have[start : start + size] == wanted

    def _look_at_clock(self) -> None:
        if time.monotonic() > self._until_s:
            raise ToolError(
                "it takes too long to find where the hunks belong; give fewer hunks, with context "
                "that stands there once",
                code="E_TIMEOUT",
            )


def _where(hunk: _Hunk, lines: list[_FileLine], index: _Index, done: int, shift: int) -> int:
    """The index of the line that the hunk begins at.

    Raises:
        ToolError: its old lines stand nowhere behind the hunk before, or at several places.
    """
    old = hunk.old
    claimed = None if hunk.start is None else max(hunk.start - 1 + shift, done)
    if not old:
        if not lines:
            return 0
        if claimed is None:
            _fail(f"hunk {hunk.number} only adds lines; give a line of context before or after")
        # `@@ -5,0 +6 @@` adds behind line 5.
        return min(max((hunk.start or 0) + shift, done), len(lines))
    wanted = [line.text for line in old]
    while True:
        fits = index.fitting(wanted, done)
        # A blank line behind the last hunk is most often no context but how the text ended.
        if fits or wanted[-1] or hunk.lines[-1].kind != " ":
            break
        hunk.lines.pop()
        wanted.pop()
        if not wanted:
            break
    if not fits:
        missing = _first_missing(wanted, index.have)
        _fail(f"hunk {hunk.number} does not fit: {missing}; read the file again")
    if claimed is not None:
        fits.sort(key=lambda at: abs(at - claimed))
    if len(fits) > 1 and (claimed is None or abs(fits[0] - claimed) == abs(fits[1] - claimed)):
        places = ", ".join(str(at + 1) for at in sorted(fits)[:_MOST_PLACES])
        _fail(f"hunk {hunk.number} fits at several lines ({places}); give more context")
    _check_end(hunk, lines, fits[0])
    return fits[0]


def _check_end(hunk: _Hunk, lines: list[_FileLine], at: int) -> None:
    """What the diff says about the end of the file must be so."""
    for offset, line in enumerate(hunk.old):
        if not line.ends and (at + offset != len(lines) - 1 or lines[-1].end):
            _fail(f"hunk {hunk.number} says that a line ends without a newline, and it has one")


def _first_missing(wanted: list[str], have: list[str]) -> str:
    there = set(have)
    for text in wanted:
        if text not in there:
            close = _closest(text, have, 0.6)
            hint = "" if close is None else f" (most like it: {close[:120]!r})"
            return f"there is no line {text[:120]!r}{hint}"
    return "its lines are there, but not in this order behind the hunk before"


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff of two texts for a person to read; whole, never cut."""
    before, after = _rows(old), _rows(new)
    if max(len(before), len(after)) > _MOST_COMPARED_LINES:
        rows = _coarse_diff(before, after)
    else:
        rows = list(difflib.unified_diff(before, after, "", "", n=3))[2:]
    shown = (r if r.endswith("\n") else f"{r}\n\\ No newline at end of file\n" for r in rows)
    head = f"--- {name} (old)\n+++ {name} (new)\n" if rows else ""
    return head + "".join(shown)


def _coarse_diff(before: list[str], after: list[str]) -> list[str]:
    """One hunk from the first to the last line that differs: comparing more would take minutes."""
    same = min(len(before), len(after))
    start = next((i for i in range(same) if before[i] != after[i]), same)
    most = same - start
    tail = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    old, new = before[start : len(before) - tail], after[start : len(after) - tail]
    if not old and not new:
        return []
    if max(len(old), len(new)) <= _MOST_COMPARED_LINES:
        rows = list(difflib.unified_diff(old, new, "", "", n=3))[2:]
        return [f"(all lines below are counted from line {start + 1})\n", *rows] if start else rows
    first = f"@@ -{start + 1},{len(old)} +{start + 1},{len(new)} @@\n"
    return [first, *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
