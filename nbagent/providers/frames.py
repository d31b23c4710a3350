"""From bytes to frames: inflating, lines, server-sent events, JSON as servers write it.

Knows no wire: what an event or a value means belongs to the wires. Splits bytes, because text
splitters also cut at U+2028.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, cast

import orjson

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import redact
from nbagent.providers.errors import start_of

MAX_FRAME_BYTES = 8 * 1024 * 1024
_LOOKED_INTO_BYTES = 1024 * 1024
_MOST_VALUES = 500_000
_STEP_BYTES = 64 * 1024
"""Inflated at once."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class Inflater:
    """Plain bytes from pieces of gzip or deflate, in steps, so that a small bomb stays small.

    Compression is never asked for; some servers and proxies compress all the same.
    """

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)  # Either of the two, by its header.

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes hold, in pieces of at most 64 kB. Raises ModelError."""
        try:
            # Asked until nothing comes: the last bytes may wait inside, without input.
            while part := self._zlib.decompress(data, _STEP_BYTES):
                yield part
                data = self._zlib.unconsumed_tail
        except zlib.error as error:
            raise bad_answer(f"its compression is damaged ({error})") from None


def inflater_of(encoding: str) -> Inflater | None:
    """What undoes an encoding; None when there is nothing to undo."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return Inflater()
    raise bad_answer(f"it is encoded as {redact(encoding)[:40]!r}, which was not asked for")


class Splitter(Protocol):
    """Frames from pieces of bytes, as `(event name, data)`."""

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that this piece completes. Raises ModelError when one is over the cap."""
        ...

    def flush(self) -> list[tuple[bytes, bytes]]:
        """What is still held when the body is over."""
        ...


class Ndjson:
    """One JSON value a line (Ollama); the event name is empty."""

    def __init__(self) -> None:
        self._lines = _Lines()

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The lines that this piece completes, without empty ones."""
        return [(b"", line) for line in self._lines.feed(piece) if line.strip()]

    def flush(self) -> list[tuple[bytes, bytes]]:
        """The last line, if it had no end."""
        return self.feed(b"\n")


class Sse:
    """Server-sent events."""

    def __init__(self) -> None:
        self._lines = _Lines()
        self._name = b""
        self._data: list[bytes] = []
        self._bare: list[bytes] = []
        self._size = 0
        """Of data and bare lines that are held."""
        self._between_events = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The events that this piece completes."""
        # By far the most common piece is one whole event; it costs a tenth this way.
        if (
            self._between_events
            and piece.startswith(b"data: {")
            and piece.find(b"\n") == len(piece) - 2
            and piece.endswith(b"\n\n")
            and b"\r" not in piece
        ):
            return [(b"", piece[6:-2])]
        events = self._take(self._lines.feed(piece))
        held = self._data or self._name or self._bare or self._lines.partial
        self._between_events = not held
        return events

    def flush(self) -> list[tuple[bytes, bytes]]:
        """The last event, if no empty line followed it."""
        events = self._take([*self._lines.feed(b"\n"), b""])
        return events + ([(b"", b"\n".join(self._bare))] if self._bare else [])

    def _take(self, lines: list[bytes]) -> list[tuple[bytes, bytes]]:
        events: list[tuple[bytes, bytes]] = []
        for line in lines:
            if self._bare or line[:1] in (b"{", b"["):
                if self._ends_bare(line):
                    events.append((b"", b"\n".join(self._bare)))
                    self._bare, self._size = [], 0
            elif line.startswith(b"data:"):
                self._hold(self._data, line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif not line:
                if self._data:
                    events.append((self._name, b"\n".join(self._data)))
                self._data, self._name, self._size = [], b"", 0
        return events

    def _ends_bare(self, line: bytes) -> bool:
        """Not SSE, but some servers write an error object as it is (Gemini, Ollama).

        On one line or indented over many: its last line begins at the margin.
        """
        self._hold(self._bare, line)
        closing = b"}" if self._bare[0][:1] == b"{" else b"]"
        return line[:1] not in (b" ", b"\t") and line.rstrip().endswith(closing)

    def _hold(self, held: list[bytes], line: bytes) -> None:
        held.append(line)
        self._size += len(line)
        if self._size > MAX_FRAME_BYTES:
            raise _too_long("an event")


class _Lines:
    """Lines from pieces of bytes; LF, CRLF and CR end one."""

    def __init__(self) -> None:
        self.partial = bytearray()
        """The start of a line; a CR at its end waits for what may be its LF."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        has_end = b"\n" in piece or b"\r" in piece or self.partial.endswith(b"\r")
        self.partial += piece
        lines: list[bytes] = []
        if has_end:
            lines = bytes(self.partial).splitlines(keepends=True)
            self.partial = bytearray(b"" if lines[-1].endswith(b"\n") else lines.pop())
        if len(self.partial) > MAX_FRAME_BYTES:
            raise _too_long("a line")
        return [line.rstrip(b"\r\n") for line in lines]


def _too_long(what: str) -> ModelError:
    return ModelError(
        f"the server sent {what} of more than {MAX_FRAME_BYTES:,} bytes; it was cut off."
        " Check the base URL.",
        code="LLM_BAD_RESPONSE",
    )


def load_wire(data: bytes) -> Any:
    """Decode JSON of a server: NaN is accepted, broken text is not.

    Lone surrogates stay, because their other half may come in the next delta; `clean` what is
    complete. They can only be there where the text has a `\\u`.
    """
    # A few megabytes of empty lists would be hundreds of megabytes of objects.
    if len(data) > _LOOKED_INTO_BYTES and sum(map(data.count, b"[{,")) > _MOST_VALUES:
        raise bad_answer(f"more than {_MOST_VALUES:,} values are in it")
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        shown = start_of(data)
    raise bad_answer(f"a part of it is not JSON ({shown!r})")


def clean(value: Any) -> Any:
    """A JSON value in which halves of a character are joined, and lone ones are U+FFFD.

    Neither SQLite nor a front end can take lone surrogates.
    """
    if isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value)):
        return value
    try:
        text = json.dumps(value, ensure_ascii=False)
        if not _SURROGATE.search(text):
            return value
        return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except RecursionError:
        pass
    raise bad_answer("a part of it is nested too deeply")


def bad_answer(what: str, *, retry: bool = False) -> ModelError:
    """The error for an answer that cannot be used."""
    return ModelError(
        f"the server's answer cannot be used: {what}. Try again, or check the base URL.",
        code="LLM_BAD_RESPONSE",
        retryable=retry,
    )


def first_object(value: Any) -> dict[str, Any] | None:
    """The first item of a list if it is an object."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return json_object(items[0]) if items else None


def objects_in(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; of anything else none."""
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]


def text_or_empty(value: Any) -> str:
    """The value if it is a text; `null` written as a text counts as none."""
    return value if isinstance(value, str) and value != "null" else ""
