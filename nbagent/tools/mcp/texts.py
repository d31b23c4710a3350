"""Hostile text made fit to be shown: names, descriptions, the lines that a server writes.

Owns cleaning and the bounded log of a server. Knows nothing of the protocol.
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque

from nbagent.contracts.secrets import redact_cut
from nbagent.shown import clean, cut_middle, without_folders

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_LINES_KEPT = 50
_LINE_CHARS = 500
_MOST_HELD_BYTES = 16_384
_QUOTED_LINES = 8
_QUOTED_CHARS = 1_200


def visible(text: str, budget_chars: int) -> str:
    """The text without control, direction and invisible characters, within a budget."""
    text = _ESCAPE.sub("", clean(text[: 4 * budget_chars + 1_000]))
    if not text.isascii() or not text.isprintable():
        hidden = [ord(c) for c in set(text) if c not in "\n\t" and _is_hidden(c)]
        text = text.translate(dict.fromkeys(hidden))
    return redact_cut(cut_middle(text.strip(), budget_chars))


def _is_hidden(character: str) -> bool:
    # Control, format (directions, zero width, tags), surrogate, private use, unassigned.
    return unicodedata.category(character)[0] == "C"


class ServerLog:
    """The last lines of a server's stderr and of its log messages, in order."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._held = b""

    def feed(self, data: bytes) -> None:
        """Take what was read of stderr."""
        *whole, rest = data.split(b"\n")
        for line in whole:
            self._take(line)
            self._end_line()
        self._take(rest)

    def add(self, line: str) -> None:
        """Take one line of another source."""
        self._lines.append(line[: 8 * _LINE_CHARS])

    def lines(self) -> list[str]:
        """What there is, redacted, oldest first."""
        rest = [self._held.decode("utf-8", "replace")] if self._held.strip() else []
        shown = (visible(line, _LINE_CHARS) for line in [*self._lines, *rest])
        return [line for line in shown if line]

    def quoted(self) -> str:
        """`; it said last: …`, for an error; empty when it said nothing."""
        lines = self.lines()[-_QUOTED_LINES:]
        if not lines:
            return ""
        told = cut_middle(without_folders(" | ".join(lines)), _QUOTED_CHARS)
        return "; it said last: " + redact_cut(told)

    def _take(self, piece: bytes) -> None:
        # Of a line without an end only the start is kept.
        self._held += piece[: max(_MOST_HELD_BYTES - len(self._held), 0)]

    def _end_line(self) -> None:
        if self._held.strip():
            self._lines.append(self._held.decode("utf-8", "replace"))
        self._held = b""
