"""From bytes to frames: inflating, lines, server-sent events, JSON as servers write it.

Knows no wire: what an event or a value means belongs to the wires. Splits bytes, because text
splitters also cut at U+2028.
"""

from __future__ import annotations

import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import orjson

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import MASK, redact_truncated

MAX_FRAME_BYTES = 8 * 1024 * 1024
_LOOKED_INTO_BYTES = 1024 * 1024
_MOST_VALUES = 500_000
_STEP_BYTES = 64 * 1024  # Inflated at once.
_USUAL_EVENT = re.compile(rb"(?:event: (\w[\w.]*)\n)?data: (\{[^\n]*)")
_EVENT = re.compile(rb"^event:(.*)", re.M)
_DATA = re.compile(rb"^data: ?(.*)", re.M)
_BARE_JSON = re.compile(rb"^([{\[].*(?:\n(?![{\[]|event:|data:|:).*)*+)", re.M)
"""An object or a list on a line of its own, or indented over many."""
# As a proxy may echo it; "Basic authentication" is none.
_LOGIN = re.compile(r"\bBasic [\w+/-][a-z]*[A-Z\d+/][\w+/-]*={0,2}", re.A)
_READ_FOR_START = 4_096  # Far less is shown, but a key in it is only known as a whole.
_SURROGATE = re.compile("[\ud800-\udfff]")


def inflater_of(encoding: str) -> Callable[[bytes], Iterable[bytes]]:
    """What undoes an encoding, in pieces of at most 64 kB.

    Compression is never asked for; some servers and proxies compress all the same.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return lambda data: (data,)
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise bad_answer(f"it is encoded as {shown_line(encoding, 40)!r}, which was not asked for")
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


class Splitter(ABC):
    """Frames from pieces of bytes, as `(event name, data)`.

    Only what has no end yet is held, as it came, so that one cap holds for every kind of flood.
    """

    end: bytes
    """What stands behind each frame; LF, CRLF and CR are all an LF here."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_cr = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that this piece completes. Raises ModelError over the cap."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        if b"\r" in piece:
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        searched = max(0, len(self._rest) + 1 - len(self.end))
        self._rest += piece
        frames: list[tuple[bytes, bytes]] = []
        if self._rest.find(self.end, searched) >= 0:
            *blocks, rest = bytes(self._rest).split(self.end)
            self._rest = bytearray(rest)
            for block in filter(None, blocks):
                frames += self._frames(block)
        if len(self._rest) > MAX_FRAME_BYTES:
            raise bad_answer(f"a part of it has more than {MAX_FRAME_BYTES:,} bytes")
        return frames

    def flush(self) -> list[tuple[bytes, bytes]]:
        """The last frames, if nothing ended them."""
        return self.feed(b"\n\n")

    @abstractmethod
    def _frames(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What one block holds."""


class Ndjson(Splitter):
    """One JSON value a line (Ollama); the event name is empty."""

    end = b"\n"

    def _frames(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        if block.strip():
            yield b"", block


class Sse(Splitter):
    """Server-sent events; an empty line ends one."""

    end = b"\n\n"

    def _frames(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Nearly all events look like this; reading them by their lines costs several times as much.
        if usual := _USUAL_EVENT.fullmatch(block):
            yield usual[1] or b"", usual[2]
            return
        if block.count(b"\n") > _MOST_VALUES:
            raise bad_answer(f"an event of it has more than {_MOST_VALUES:,} lines")
        # Not SSE, but some servers write an error object as it is (Gemini, Ollama).
        for at, part in enumerate(_BARE_JSON.split(block)):
            if at % 2:
                yield b"", part
            elif data := _DATA.findall(part):
                name = _EVENT.findall(part)
                yield name[-1].strip() if name else b"", b"\n".join(data)


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


def start_of(data: bytes | bytearray) -> str:
    """The first characters of an answer that cannot be read, to show them."""
    return shown_line(data[:_READ_FOR_START].decode("utf-8", "replace"), 80)


def shown_line(text: str, most_chars: int = 600) -> str:
    """One line of a server's text, without keys, logins and characters that act."""
    # A login may be shorter than the filter's shortest secret.
    line = _LOGIN.sub(f"Basic {MASK}", " ".join(redact_truncated(text).split()))
    line = "".join(char if char.isprintable() else "\ufffd" for char in line[: 2 * most_chars])
    return line if len(line) <= most_chars else line[:most_chars] + " …"
