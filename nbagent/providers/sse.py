"""Splitting a stream of bytes into lines and server-sent events, in linear time.

Knows nothing of what the events mean. Splits bytes, because text splitters also cut at U+2028.
"""

from __future__ import annotations

from nbagent.contracts.errors import ModelError

MAX_LINE_BYTES = 8 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class LineSplitter:
    """Lines from pieces of bytes; LF, CRLF and CR end a line, also across two pieces."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._partial = bytearray()
        self._after_cr = False
        self._limit = max_line_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a line, not even half of its end, is held."""
        return not self._partial and not self._after_cr

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes.

        Raises:
            ModelError: a line is longer than the cap.
        """
        if self._after_cr and piece:
            self._after_cr = False
            if piece[0] == 10:
                piece = piece[1:]
        if not piece:
            return []
        lines = piece.splitlines()
        end = piece[-1]
        if end == 13:
            self._after_cr = True
        tail = b"" if end in (10, 13) else lines.pop()
        if self._partial and lines:
            self._partial += lines[0]
            lines[0] = bytes(self._partial)
            self._partial.clear()
        if tail:
            self._partial += tail
            if len(self._partial) > self._limit:
                raise ModelError(
                    f"the server sent a line of more than {self._limit:,} bytes; it was cut off."
                    " Check the base URL.",
                    code="LLM_BAD_RESPONSE",
                )
        return lines

    def flush(self) -> list[bytes]:
        """The last line, if it had no end."""
        rest = bytes(self._partial)
        self._partial.clear()
        return [rest] if rest else []


class EventSplitter:
    """Server-sent events from pieces of bytes, as `(event name, data)`."""

    def __init__(self, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._lines = LineSplitter(max_line_bytes)
        self._limit = max_line_bytes
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0
        self._at_start = True
        self._bare: list[bytes] = []
        self._between_events = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The events that this piece completes."""
        # By far the most common piece is one whole event; it costs a tenth this way.
        if (
            piece.startswith(b"data: {")
            and piece.find(b"\n") == len(piece) - 2
            and piece.endswith(b"\n\n")
            and b"\r" not in piece
            and self._between_events
        ):
            return [(b"", piece[6:-2])]
        events = self._take(self._lines.feed(piece))
        held = self._data or self._name or self._bare
        self._between_events = not held and self._lines.is_empty
        return events

    def flush(self) -> list[tuple[bytes, bytes]]:
        """The last event, if no empty line followed it."""
        events = self._take([*self._lines.flush(), b""])
        if self._bare:
            events.append((b"", b"\n".join(self._bare)))
            self._bare = []
        return events

    def _take(self, lines: list[bytes]) -> list[tuple[bytes, bytes]]:
        events: list[tuple[bytes, bytes]] = []
        for line in lines:
            if self._at_start:
                self._at_start = False
                line = line.removeprefix(_BOM)
            if self._bare or line[:1] in (b"{", b"["):
                self._take_bare(line, events)
            elif not line:
                if self._data:
                    data = self._data
                    events.append((self._name, data[0] if len(data) == 1 else b"\n".join(data)))
                    self._data = []
                    self._size = 0
                self._name = b""
            elif line.startswith(b"data:"):
                self._add(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
        return events

    def _take_bare(self, line: bytes, events: list[tuple[bytes, bytes]]) -> None:
        """Not SSE, but some servers write an error object as it is (Gemini, Ollama).

        On one line or indented over many: its last line begins at the margin.
        """
        self._bare.append(line)
        self._grow(line)
        closing = b"}" if self._bare[0][:1] == b"{" else b"]"
        if line[:1] not in (b" ", b"\t") and line.rstrip().endswith(closing):
            events.append((b"", b"\n".join(self._bare)))
            self._bare = []
            self._size = sum(map(len, self._data))

    def _add(self, data: bytes) -> None:
        self._data.append(data)
        self._grow(data)

    def _grow(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise ModelError(
                f"the server sent an event of more than {self._limit:,} bytes; it was cut off."
                " Check the base URL.",
                code="LLM_BAD_RESPONSE",
            )
