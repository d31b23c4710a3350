"""Decoding HTTP's chunked transfer encoding as it arrives, many chunks in one step.

Stands in for the pool's own decoder while an answer streams: that one costs more per token than
everything else together.
"""

from __future__ import annotations

import re
from typing import Literal

_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")
_LONGEST_LINE = 8 * 1024
_LONGEST_TRAILER = 64 * 1024


class ChunkDecoder:
    """The body from pieces of a chunked response."""

    def __init__(self) -> None:
        self.done = False
        """The last chunk and its trailer were read."""
        self.broken = False
        """The encoding is wrong: nothing more can be read."""
        self.surplus = False
        """Bytes came after the end: the connection cannot be used again."""
        self._left = 0
        self._trailer_bytes = 0
        self._line = bytearray()
        self._expects: Literal["size", "end of chunk", "trailer"] = "size"

    def feed(self, data: bytes) -> bytes:
        """The part of the body that these bytes hold; `broken` says when it ends too early."""
        parts: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done and not self.broken:
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                self.broken = len(self._line) > _LONGEST_LINE
                return b"".join(parts)
            line = data[at:end]
            if self._line:
                line = bytes(self._line) + line
                self._line.clear()
            at = end + 1
            self._take_line(line.rstrip(b"\r"))
        self.surplus = at < size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _take_line(self, line: bytes) -> None:
        if self._expects == "size":
            number = line.partition(b";")[0].strip()
            if not _SIZE.fullmatch(number):
                self.broken = True
                return
            self._left = int(number, 16)
            self._expects = "end of chunk" if self._left else "trailer"
        elif self._expects == "end of chunk":
            self.broken = bool(line)
            self._expects = "size"
        elif not line:
            self.done = True
        else:
            self._trailer_bytes += len(line)
            self.broken = self._trailer_bytes > _LONGEST_TRAILER
