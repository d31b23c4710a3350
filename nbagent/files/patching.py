"""Makes new text from old text: replaces one span, or applies a unified diff. No disk access.

Strict about the old text, tolerant about line numbers, counts and line ends: models get the first
right and the others wrong.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import NoReturn

from nbagent.contracts.errors import ToolError

_HUNK = re.compile(r"@@+(?: -(?P<start>\d+)(?:,\d+)? \+\d+(?:,\d+)?)?(?: @@+.*|\s*)")
_MAX_COMPARED_LINES = 4_000
"""Longer texts are not compared line by line: that could take minutes."""
_MAX_STEPS = 50_000_000
"""Limit of lines of the file times lines of a hunk: a stop cannot end that comparison."""


def to_text(data: bytes) -> str:
    """Bytes as text that `to_bytes` turns back into the same bytes, whatever they are."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """The bytes that `to_text` read."""
    return text.encode("utf-8", "surrogateescape")


def replace_once(text: str, old: str, new: str) -> str:
    """Replace a span that occurs exactly once in the text.

    Where the file has CRLF line ends and the span has LF, both are taken as CRLF.

    Raises:
        ToolError: `E_PRECONDITION_FAILED`, it does not occur, or several times.
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
        _fail("oldText does not stand there; read the file, and copy it exactly, with its blanks")
    second = text.find(old, at + 1)
    if second >= 0:
        lines = f"lines {_line_of(text, at)}, {_line_of(text, second)}"
        _fail(f"oldText stands there more than once ({lines}); give more of the lines around it")
    return text[:at] + new + text[at + len(old) :]


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _fail(message: str) -> NoReturn:
    raise ToolError(message, code="E_PRECONDITION_FAILED")


@dataclass(slots=True)
class _Hunk:
    number: int
    start: int | None
    """The line it claims, from 1."""
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """First character (` `, `-`, `+`) and text of each line; added lines have their line end."""

    @property
    def old(self) -> list[str]:
        return [text for kind, text in self.lines if kind != "+"]


def apply_diff(text: str | None, diff: str) -> str:
    """Apply a unified diff of one file; the text is None if there is no file yet.

    Raises:
        ToolError: `E_INVALID_ARGUMENTS`, it is not such a diff; `E_PRECONDITION_FAILED`, the old
            text is different.
    """
    hunks = _read_diff(diff)
    if text is None and any(hunk.old for hunk in hunks):
        raise ToolError(
            "there is no such file, so a diff that changes lines does not fit; look with fs.list",
            code="ENOENT",
        )
    rows = _rows(text or "")
    have = [row.removesuffix("\n").removesuffix("\r") for row in rows]
    # The line end of most lines, so that a patch does not mix two kinds.
    eol = "\r\n" if 2 * sum(row.endswith("\r\n") for row in rows) > len(rows) else "\n"
    out: list[str] = []
    done = 0
    for hunk in hunks:
        at = _find_hunk(hunk, have, done)
        out += rows[done:at]
        done = at
        for kind, line in hunk.lines:
            if kind == "+":
                out.append(line.replace("\n", eol))
                continue
            if kind == " ":
                out.append(rows[done])
            done += 1
    out += rows[done:]
    # A line that had no end, or should have none, has one where others come behind it.
    return "".join(row if row.endswith("\n") else row + eol for row in out[:-1]) + "".join(out[-1:])


def _rows(text: str) -> list[str]:
    # Not splitlines(): it also splits at form feeds and at separators that no diff knows.
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _read_diff(diff: str) -> list[_Hunk]:
    hunks: list[_Hunk] = []
    names = 0
    rows = [row.removesuffix("\r") for row in diff.rstrip("\r\n").split("\n")]
    for before, row, after in zip(["", *rows], rows, [*rows[1:], ""], strict=False):
        match = _HUNK.fullmatch(row)
        # Only the pair is a header: `--- ` alone may delete a line that begins with `-- `.
        if row.startswith("--- ") and after.startswith("+++ "):
            names += 1
            if after[4:].strip() == "/dev/null":
                _invalid_diff("it deletes the file, which fs tools do not do")
        elif row.startswith("+++ ") and before.startswith("--- "):
            pass
        elif match is not None:
            start = int(match["start"]) if match["start"] else None
            hunks.append(_Hunk(len(hunks) + 1, start))
        elif hunks and not row.startswith(("diff --git ", "index ", "*** ")):
            _add_row(hunks[-1], row)
    if names > 1:
        _invalid_diff("it is of several files; make one call for each")
    if not any(kind != " " for hunk in hunks for kind, _ in hunk.lines):
        _invalid_diff("it has no hunk that changes a line")
    return hunks


def _add_row(hunk: _Hunk, row: str) -> None:
    kind, text = row[:1] or " ", row[1:]  # The space of an empty line is often trimmed.
    if kind == "\\":
        if hunk.lines:
            hunk.lines[-1] = (hunk.lines[-1][0], hunk.lines[-1][1].removesuffix("\n"))
    elif kind in " +-":
        hunk.lines.append((kind, f"{text}\n" if kind == "+" else text))
    else:
        _invalid_diff(
            f"a line of hunk {hunk.number} begins with none of ' ', '+', '-': {row[:80]!r}"
        )


def _invalid_diff(why: str) -> NoReturn:
    raise ToolError(
        f"this is no unified diff of one file: {why}; write hunks that begin with "
        "'@@ -LINE,COUNT +LINE,COUNT @@'",
        code="E_INVALID_ARGUMENTS",
    )


def _find_hunk(hunk: _Hunk, lines_of_file: list[str], done: int) -> int:
    """Index of the first line of the hunk: after the previous hunk, and at one position only."""
    wanted, size = hunk.old, len(hunk.old)
    if not wanted:
        if hunk.start is None and lines_of_file:
            _fail(f"hunk {hunk.number} only adds lines; give a line of context before or after")
        # `@@ -5,0 +6 @@` adds behind line 5.
        return min(max(hunk.start or 0, done), len(lines_of_file))
    claimed = None if hunk.start is None else max(hunk.start - 1, done)
    if claimed is not None and lines_of_file[claimed : claimed + size] == wanted:
        return claimed
    if size * (len(lines_of_file) - done) > _MAX_STEPS:
        _fail("the file and the diff are too long to be compared; give smaller hunks")
    fits = [at for at in range(done, len(lines_of_file)) if lines_of_file[at : at + size] == wanted]
    if not fits:
        there = set(lines_of_file)
        missing = next((text for text in wanted if text not in there), None)
        why = "its lines have another order" if missing is None else f"no line {missing[:120]!r}"
        _fail(f"hunk {hunk.number} does not fit: {why}; read the file again")
    fits.sort(key=lambda at: abs(at - (claimed or 0)))
    first, second = fits[0], fits[1] if len(fits) > 1 else None
    if second is not None and (claimed is None or abs(first - claimed) == abs(second - claimed)):
        lines = f"lines {first + 1}, {second + 1}"
        _fail(f"hunk {hunk.number} fits at several places ({lines}); give more context")
    return first


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff of two texts for a person; never cut."""
    if old == new:
        return ""
    before, after = _rows(old), _rows(new)
    if max(len(before), len(after)) <= _MAX_COMPARED_LINES:
        rows = list(difflib.unified_diff(before, after, "", "", n=3))[2:]
    else:
        rows = _one_hunk(before, after)
    shown = (r if r.endswith("\n") else f"{r}\n\\ No newline at end of file\n" for r in rows)
    return f"--- {name} (old)\n+++ {name} (new)\n" + "".join(shown)


def _one_hunk(before: list[str], after: list[str]) -> list[str]:
    """One hunk from the first to the last different line: comparing each would take minutes."""
    same = min(len(before), len(after))
    start = next((i for i in range(same) if before[i] != after[i]), same)
    most = same - start
    tail = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    old, new = before[start : len(before) - tail], after[start : len(after) - tail]
    head = f"@@ -{start + bool(old)},{len(old)} +{start + bool(new)},{len(new)} @@\n"
    return [head, *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
