"""From bytes to frames: decompression, lines, server-sent events, JSON as servers write it.

Knows no wire: the wires know what an event means. Splits bytes at LF, CRLF and CR: splitters for
text also cut at U+2028 and U+0085, which may stand raw inside a JSON text.
"""

from __future__ import annotations

import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import MASK, redact_truncated

MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Limit of one event, and of one whole answer: the largest image in base64 and some text."""
_COUNT_VALUES_FROM_BYTES = 1024 * 1024
_MAX_VALUES = 500_000
_INFLATE_STEP_BYTES = 64 * 1024
_USUAL_EVENT = re.compile(rb"(?:event: (\w[\w.]*)\n)?data: (\{[^\n]*)")
_EVENT = re.compile(rb"^event:(.*)", re.M)
_DATA = re.compile(rb"^data: ?(.*)", re.M)
_NEXT_EVENT = re.compile(rb"(?<=[}\]])[ \t]*\n\s*(?=\{|\[DONE\])")
"""A line break between two objects: no JSON has it, so an empty line is missing between events."""
_EVENT_FIELDS = (b":", b"event:", b"id:", b"retry:")
_BARE_JSON = re.compile(rb"^([{\[].*(?:\n(?![{\[]|event:|data:|:).*)*+)", re.M)
"""An object or a list on a line of its own, or indented over several lines."""
# A login that a proxy echoes. The capital or digit tells it from "Basic authentication".
_LOGIN = re.compile(r"\bBasic [\w+/-][a-z]*[A-Z\d+/][\w+/-]*={0,2}", re.A)
# More than is shown: the filter knows a key only as a whole.
_PREVIEW_BYTES = 4_096
_SURROGATE = re.compile("[\ud800-\udfff]")
_LAST_TOKEN = re.compile(r"[\w.+\\-]*\s*")
"""What may be left of a number, a word or an escape where JSON breaks off."""


def make_inflater(encoding: str) -> Callable[[bytes], Iterable[bytes]]:
    """Return a function that decompresses, in pieces of at most 64 kB.

    nbagent never asks for compression, but some servers and proxies compress anyway.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return lambda data: (data,)
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise bad_response(
            f"it is compressed as {safe_line(encoding, 40)!r}, which was not requested"
        )
    unpacker = zlib.decompressobj(
        zlib.MAX_WBITS | 32
    )  # | 32: gzip or zlib, detected by the header.

    def inflate(data: bytes) -> Iterator[bytes]:
        try:
            # Until nothing comes: the last bytes may be inside without more input.
            while part := unpacker.decompress(data, _INFLATE_STEP_BYTES):
                yield part
                data = unpacker.unconsumed_tail
        except zlib.error as error:
            raise bad_response(f"its compression is damaged ({error})") from None

    return inflate


class Splitter(ABC):
    """Split pieces of bytes into frames, `(event name, data)`.

    Only an unfinished frame is kept, undecoded, so one size limit stops every kind of flood.
    """

    end: bytes
    """Bytes after each frame; CRLF and CR were replaced by LF."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._after_cr = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Return the frames that this piece completes. Raises ModelError over the size limit."""
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
            raise bad_response(f"a part of it has more than {MAX_FRAME_BYTES:,} bytes")
        return frames

    def flush(self) -> list[tuple[bytes, bytes]]:
        """Return the last frames, if the stream ended without their end mark."""
        return self.feed(b"\n\n")

    @abstractmethod
    def _frames(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the frames of one block."""


class Ndjson(Splitter):
    """One JSON value per line (Ollama); the event name is empty."""

    end = b"\n"

    def _frames(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        if block.startswith(_EVENT_FIELDS):  # A gateway that sends events instead.
            return
        block = block.removeprefix(b"data:")
        if block.strip():
            yield b"", block


class Sse(Splitter):
    """Server-sent events; an empty line ends each.

    Comments (`: keep-alive`, `: OPENROUTER PROCESSING`) and unknown fields are skipped; several
    `data:` lines are joined.
    """

    end = b"\n\n"

    def _frames(self, block: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Fast path: nearly all events look like this, and reading by lines costs several times
        # more.
        if usual := _USUAL_EVENT.fullmatch(block):
            yield usual[1] or b"", usual[2]
            return
        if block.count(b"\n") > _MAX_VALUES:
            raise bad_response(f"an event of it has more than {_MAX_VALUES:,} lines")
        # Not valid SSE, but Gemini and Ollama write an error object without `data:`.
        for at, part in enumerate(_BARE_JSON.split(block)):
            if at % 2:
                yield b"", part
            elif data := _DATA.findall(part):
                name = _EVENT.findall(part)
                for event in _NEXT_EVENT.split(b"\n".join(data)):
                    yield name[-1].strip() if name else b"", event


def load_wire(data: bytes) -> Any:
    """Decode JSON of a server: NaN is accepted, invalid JSON is not.

    Lone surrogates stay, because their other half may come in the next delta; call
    `fix_surrogates` on complete values.
    """
    # A few megabytes of empty lists would become hundreds of megabytes of objects.
    if len(data) > _COUNT_VALUES_FROM_BYTES and sum(map(data.count, b"[{,")) > _MAX_VALUES:
        raise bad_response(f"more than {_MAX_VALUES:,} values are in it")
    try:
        return orjson.loads(data)
    except ValueError:
        pass
    fault = "is not JSON"
    try:
        # Some servers cut a text within a character: one broken character costs no answer.
        return json.loads(data.decode("utf-8-sig", "replace"))
    except ValueError as error:
        if _breaks_off(data, error):
            fault = "breaks off"
    except RecursionError:
        pass
    raise bad_response(f"a part of it {fault} ({preview(data)!r})")


def _breaks_off(data: bytes, error: ValueError) -> bool:
    """True if the error says that the data is the beginning of an object or a list."""
    if not isinstance(error, json.JSONDecodeError) or not data.lstrip().startswith((b"{", b"[")):
        return False
    in_text = error.msg.startswith("Unterminated string")
    return in_text or bool(_LAST_TOKEN.fullmatch(error.doc, error.pos))


def fix_surrogates(value: Any) -> Any:
    """A JSON value with its surrogate pairs joined; lone surrogates become U+FFFD.

    SQLite and front ends refuse lone surrogates.
    """
    if isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value)):
        return value
    try:
        text = json.dumps(value, ensure_ascii=False)
        if not _SURROGATE.search(text):
            return value
        return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except RecursionError:
        raise bad_response("a part of it is nested too deeply") from None


def bad_response(reason: str, *, retry: bool = False) -> ModelError:
    """Build the error for an answer that cannot be used."""
    return ModelError(
        f"the server's answer cannot be used: {reason}. Try again, or check the base URL.",
        code="LLM_BAD_RESPONSE",
        retryable=retry,
    )


def preview(data: bytes | bytearray) -> str:
    """First characters of an unreadable answer, to show them."""
    return safe_line(data[:_PREVIEW_BYTES].decode("utf-8", "replace"), 80)


def safe_line(text: str, max_chars: int = 600) -> str:
    """One line of a server's text, without keys, logins and control characters."""
    # A login may be too short for the secret filter.
    line = _LOGIN.sub(f"Basic {MASK}", " ".join(redact_truncated(text).split()))
    line = "".join(char if char.isprintable() else "\ufffd" for char in line[: 2 * max_chars])
    return line if len(line) <= max_chars else line[:max_chars] + " …"
