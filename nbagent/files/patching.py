"""New text from old text: one span replaced, or a unified diff applied. No disk here.

Strict about what must stand there, tolerant about line numbers, counts and line ends: models get
the first right and the others wrong.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import NoReturn

from nbagent.contracts.errors import ToolError

_HUNK = re.compile(r"@@+(?: -(?P<start>\d+)(?:,\d+)? \+\d+(?:,\d+)?)?(?: @@+.*|\s*)")
_MOST_PLACES = 5
_MOST_COMPARED_LINES = 4_000
"""Of a text that is compared line by line for a person."""
_MOST_LIKE_LINES = 2_000
"""Different lines among which the most similar one is looked for: the hint is worth no more."""
_LIKE_CHARS = 120
"""Of each of them."""
_MOST_STEPS = 50_000_000
"""Lines of the file times lines of a hunk, when its place is looked for: nobody can stop that."""


def to_text(data: bytes) -> str:
    """Bytes as text from which `to_bytes` makes the same bytes, whatever they were."""
    return data.decode("utf-8", "surrogateescape")


def to_bytes(text: str) -> bytes:
    """What `to_text` was made from."""
    return text.encode("utf-8", "surrogateescape")


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
        _fail(f"oldText does not stand there{_nearly(text, old)}; read the file, copy it exactly")
    if text.find(old, at + 1) >= 0:
        lines: list[str] = []
        while at >= 0 and len(lines) < _MOST_PLACES:
            lines.append(str(_line_of(text, at)))
            at = text.find(old, at + 1)
        _fail(
            f"oldText stands there more than once (lines {', '.join(lines)}); give more of the "
            "lines around the one that is meant"
        )
    return text[:at] + new + text[at + len(old) :]


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _nearly(text: str, old: str) -> str:
    """Words about the place that is most like the piece; empty when nothing is like it."""
    lines, wanted = ([" ".join(row.split()) for row in it.splitlines()] for it in (text, old))
    wanted = [row for row in wanted if row]
    if not wanted:
        return ""
    hay = "\n".join(["", *lines, ""])
    at = hay.find("\n".join(["", *wanted, ""]))
    if at >= 0:
        return f", but with other white space at line {_line_of(hay, at)}"
    close = _most_like(wanted[0], lines)
    return f"; most like it is line {lines.index(close) + 1}: {close[:120]!r}" if close else ""


def _most_like(wanted: str, lines: list[str]) -> str:
    different = {line[:_LIKE_CHARS]: line for line in lines}
    if len(different) > _MOST_LIKE_LINES:
        return ""
    close = difflib.get_close_matches(wanted[:_LIKE_CHARS], different, 1, 0.65)
    return different[close[0]] if close else ""


def _fail(message: str) -> NoReturn:
    raise ToolError(message, code="E_PRECONDITION_FAILED")


@dataclass(slots=True)
class _Hunk:
    number: int
    start: int | None
    """The line it claims, from 1."""
    lines: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """What each begins with (` `, `-`, `+`), and its text; what is added with its line end."""

    @property
    def old(self) -> list[str]:
        return [text for kind, text in self.lines if kind != "+"]


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
    rows = _rows(text or "")
    have = [row.removesuffix("\n").removesuffix("\r") for row in rows]
    eol = "\r\n" if 2 * sum(row.endswith("\r\n") for row in rows) > len(rows) else "\n"
    out: list[str] = []
    done = shift = 0
    for hunk in hunks:
        at = _where(hunk, have, done, shift)
        out += rows[done:at]
        done, shift = at, at - (hunk.start - 1 if hunk.start else at)
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
    rows = [row.removesuffix("\r") for row in diff.removesuffix("\n").split("\n")]
    for before, row, after in zip(["", *rows], rows, [*rows[1:], ""], strict=False):
        match = _HUNK.fullmatch(row)
        if row.startswith("--- ") and after.startswith("+++ "):
            names += 1
            if after[4:].strip() == "/dev/null":
                _no_diff("it deletes the file, which fs tools do not do")
        elif row.startswith("+++ ") and before.startswith("--- "):
            pass
        elif match is not None:
            start = int(match["start"]) if match["start"] else None
            hunks.append(_Hunk(len(hunks) + 1, start))
        elif hunks and not row.startswith(("diff --git ", "index ", "*** ")):
            _add_row(hunks[-1], row)
    if names > 1:
        _no_diff("it is of several files; make one call for each")
    if not any(kind != " " for hunk in hunks for kind, _ in hunk.lines):
        _no_diff("it has no hunk that changes a line")
    return hunks


def _add_row(hunk: _Hunk, row: str) -> None:
    kind, text = row[:1] or " ", row[1:]  # Of an empty line the space was trimmed.
    if kind == "\\":
        if hunk.lines:
            hunk.lines[-1] = (hunk.lines[-1][0], hunk.lines[-1][1].removesuffix("\n"))
    elif kind in " +-":
        hunk.lines.append((kind, f"{text}\n" if kind == "+" else text))
    else:
        _no_diff(f"a line of hunk {hunk.number} begins with none of ' ', '+', '-': {row[:80]!r}")


def _no_diff(why: str) -> NoReturn:
    raise ToolError(
        f"this is no unified diff of one file: {why}; write hunks that begin with "
        "'@@ -LINE,COUNT +LINE,COUNT @@'",
        code="E_INVALID_ARGUMENTS",
    )


def _where(hunk: _Hunk, have: list[str], done: int, shift: int) -> int:
    """The index of the line that the hunk begins at.

    Raises:
        ToolError: its old lines stand nowhere behind the hunk before, or at several places.
    """
    claimed = None if hunk.start is None else max(hunk.start - 1 + shift, done)
    if not hunk.old:
        if claimed is None and have:
            _fail(f"hunk {hunk.number} only adds lines; give a line of context before or after")
        # `@@ -5,0 +6 @@` adds behind line 5.
        return min(max((hunk.start or 0) + shift, done), len(have))
    fits = _fitting(hunk.old, have, done, claimed)
    while not fits and hunk.lines[-1] == (" ", "") and len(hunk.old) > 1:
        # A blank line behind the last hunk is most often no context but how the text ended.
        hunk.lines.pop()
        fits = _fitting(hunk.old, have, done, claimed)
    if not fits:
        _fail(f"hunk {hunk.number} does not fit: {_missing(hunk.old, have)}; read the file again")
    if claimed is not None:
        fits.sort(key=lambda at: abs(at - claimed))
    if len(fits) > 1 and (claimed is None or abs(fits[0] - claimed) == abs(fits[1] - claimed)):
        places = ", ".join(str(at + 1) for at in sorted(fits)[:_MOST_PLACES])
        _fail(f"hunk {hunk.number} fits at several lines ({places}); give more context")
    return fits[0]


def _fitting(wanted: list[str], have: list[str], done: int, claimed: int | None) -> list[int]:
    """Where all of these lines stand one below the other: as claimed, else anywhere from a line."""
    size = len(wanted)
    if claimed is not None and have[claimed : claimed + size] == wanted:
        return [claimed]
    if size * (len(have) - done) > _MOST_STEPS:
        _fail("the file and the diff are too long to be compared; give smaller hunks")
    return [
        at
        for at in range(done, len(have) - size + 1)
        if have[at] == wanted[0] and have[at : at + size] == wanted
    ]


def _missing(wanted: list[str], have: list[str]) -> str:
    there = set(have)
    for text in wanted:
        if text not in there:
            close = _most_like(text, have)
            hint = f" (most like it: {close[:120]!r})" if close else ""
            return f"there is no line {text[:120]!r}{hint}"
    return "its lines are there, but not in this order behind the hunk before"


def diff_of(old: str, new: str, name: str) -> str:
    """A unified diff of two texts for a person to read; whole, never cut."""
    before, after = _rows(old), _rows(new)
    if max(len(before), len(after)) <= _MOST_COMPARED_LINES:
        rows = list(difflib.unified_diff(before, after, "", "", n=3))[2:]
    else:
        rows = _one_hunk(before, after)
    shown = (r if r.endswith("\n") else f"{r}\n\\ No newline at end of file\n" for r in rows)
    head = f"--- {name} (old)\n+++ {name} (new)\n" if rows else ""
    return head + "".join(shown)


def _one_hunk(before: list[str], after: list[str]) -> list[str]:
    """From the first to the last line that differs: comparing each would take minutes."""
    same = min(len(before), len(after))
    start = next((i for i in range(same) if before[i] != after[i]), same)
    most = same - start
    tail = next((i for i in range(most) if before[-1 - i] != after[-1 - i]), most)
    old, new = before[start : len(before) - tail], after[start : len(after) - tail]
    head = f"@@ -{start + bool(old)},{len(old)} +{start + bool(new)},{len(new)} @@\n"
    return (
        [head, *(f"-{line}" for line in old), *(f"+{line}" for line in new)] if old or new else []
    )
