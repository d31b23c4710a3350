"""From bytes to frames: inflating, lines, server-sent events, JSON as servers write it.

Knows no wire: what an event or a value means belongs to the wires. Splits bytes, because text
splitters also cut at U+2028.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, cast

import orjson

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.chat import is_keepable
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import redact
from nbagent.providers.errors import start_of

MAX_FRAME_BYTES = 8 * 1024 * 1024
_LOOKED_INTO_BYTES = 1024 * 1024
_MOST_VALUES = 500_000
_STEP_BYTES = 64 * 1024  # Inflated at once.
_MOST_TOKENS = 2**53
"""Of one count: no model has read so much, a broken counter says nothing, also of the price."""
_WHOLE_EVENT = re.compile(rb"data: (\{[^\r\n]*)\n\n")
_SURROGATE = re.compile("[\ud800-\udfff]")


def inflater_of(encoding: str) -> Callable[[bytes], Iterator[bytes]] | None:
    """What undoes an encoding, in pieces of at most 64 kB; None when there is nothing to undo.

    Compression is never asked for; some servers and proxies compress all the same.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise bad_answer(f"it is encoded as {redact(encoding)[:40]!r}, which was not asked for")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # Either of the two, by its header.

    def inflate(data: bytes) -> Iterator[bytes]:
        try:
            # Asked until nothing comes: the last bytes may wait inside, without input.
            while part := unpacker.decompress(data, _STEP_BYTES):
                yield part
                data = unpacker.unconsumed_tail
        except zlib.error as error:
            raise bad_answer(f"its compression is damaged ({error})") from None

    return inflate


class Splitter(Protocol):
    """Frames from pieces of bytes, as `(event name, data)`. Raises ModelError over the cap."""

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]: ...
    def flush(self) -> list[tuple[bytes, bytes]]: ...


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
        self._size = 0  # Of the data that is held.
        self._closing = b""  # What ends an object that came without a field.
        self._between_events = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The events that this piece completes."""
        # By far the most common piece is one whole event; it costs a tenth this way.
        if self._between_events and (whole := _WHOLE_EVENT.fullmatch(piece)):
            return [(b"", whole[1])]
        events = self._take(self._lines.feed(piece))
        self._between_events = not (self._data or self._name or self._lines.partial)
        return events

    def flush(self) -> list[tuple[bytes, bytes]]:
        """The last event, if no empty line followed it."""
        return self._take([*self._lines.feed(b"\n"), b""]) + self._ended()

    def _take(self, lines: list[bytes]) -> list[tuple[bytes, bytes]]:
        events: list[tuple[bytes, bytes]] = []
        for line in lines:
            if not self._closing and line[:1] in (b"{", b"["):
                # Not SSE, but some servers write an error object as it is (Gemini, Ollama).
                events += self._ended()
                self._closing = b"}" if line[:1] == b"{" else b"]"
            if self._closing:
                self._hold(line)
                # On one line, or indented over many: its last line begins at the margin.
                if line[:1] not in (b" ", b"\t") and line.rstrip().endswith(self._closing):
                    events += self._ended()
            elif line.startswith(b"data:"):
                self._hold(line[6:] if line[5:6] == b" " else line[5:])
            elif line.startswith(b"event:"):
                self._name = line[6:].strip()
            elif not line:
                events += self._ended()
        return events

    def _ended(self) -> list[tuple[bytes, bytes]]:
        """The event that is held, if there is one."""
        events = [(self._name, b"\n".join(self._data))] if self._data else []
        self._data, self._name, self._size, self._closing = [], b"", 0, b""
        return events

    def _hold(self, line: bytes) -> None:
        self._data.append(line)
        self._size += len(line) + 1
        if self._size > MAX_FRAME_BYTES:
            raise bad_answer(f"an event of it has more than {MAX_FRAME_BYTES:,} bytes")


class _Lines:
    """Lines from pieces of bytes; LF, CRLF and CR end one."""

    def __init__(self) -> None:
        # The start of a line; a CR at its end waits for what may be its LF.
        self.partial = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that this piece completes."""
        has_end = b"\n" in piece or b"\r" in piece or self.partial.endswith(b"\r")
        self.partial += piece
        lines: list[bytes] = []
        if has_end:
            lines = bytes(self.partial).splitlines(keepends=True)
            self.partial = bytearray(b"" if lines[-1].endswith(b"\n") else lines.pop())
        if len(self.partial) > MAX_FRAME_BYTES:
            raise bad_answer(f"a line of it has more than {MAX_FRAME_BYTES:,} bytes")
        return [line.rstrip(b"\r\n") for line in lines]


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
    with suppress(ValueError, RecursionError):
        return json.loads(data.decode("utf-8-sig"))
    raise bad_answer(f"a part of it is not JSON ({start_of(data)!r})")


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
        raise bad_answer("a part of it is nested too deeply") from None


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


def tokens(holder: Any, *path: str) -> int:
    """A count in an object, or in objects within it; 0 for what is none."""
    value = holder
    for name in path:
        value = (json_object(value) or {}).get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MOST_TOKENS else 0


def arguments_of(value: Any) -> str:
    """The arguments of a call as text, also where a server sends them decoded."""
    if value is None or isinstance(value, str):
        return value or ""
    if not is_keepable(value):
        # Text that is JSON and no object: the call is answered with an error, the rest is kept.
        return '"arguments nested too deeply, or with a number that is too large"'
    return dump_json(clean(value)).decode()
