"""The fault table of the transport: statuses, connections, framing, encodings, silences.

Each case says how the server misbehaves and what a run has to make of it.
"""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from time import time
from typing import Any

from servers.hostile_server import (
    Fault,
    Visit,
    chunked,
    completion,
    delta,
    fine,
    said,
    sse,
    stream_head,
    whole,
)


@dataclass(frozen=True)
class Case:
    """One way to misbehave, and the outcome that is right."""

    serve: Fault
    code: str = ""
    """Of the run's error; empty when the answer is to be accepted."""
    text: str = ""
    """The answer, or the part of it that is kept."""
    says: str = ""
    """A pattern in the error's message."""
    asked: int = 1
    """How many requests the server gets."""
    stream: bool = True
    timeout_s: float = 20.0


def sends(*pieces: bytes) -> Fault:
    """Sends bytes and closes the connection."""

    async def serve(visit: Visit) -> None:
        await visit.send(*pieces)

    return serve


def resets(*pieces: bytes) -> Fault:
    """Sends bytes and breaks the connection."""

    async def serve(visit: Visit) -> None:
        await visit.send(*pieces)
        await asyncio.sleep(0.02)  # the bytes are read before the reset takes them away
        visit.reset()

    return serve


def waits(*pieces: bytes) -> Fault:
    """Sends bytes and then nothing more."""

    async def serve(visit: Visit) -> None:
        await visit.send(*pieces)
        await visit.silence()

    return serve


def slowly(*pieces: bytes) -> Fault:
    """Sends pieces as packets of their own, and closes the connection."""

    async def serve(visit: Visit) -> None:
        await visit.drip(pieces, 0.05)

    return serve


def drips(start: bytes, piece: bytes, between_s: float = 0.05) -> Fault:
    """Sends a start and then small pieces for ever."""

    async def serve(visit: Visit) -> None:
        await visit.send(start)
        while True:
            await visit.drip([piece], between_s)

    return serve


def then_fine(*bad: bytes) -> Fault:
    """Answers the first requests badly and the next one well."""

    async def serve(visit: Visit) -> None:
        if visit.nth > len(bad):
            return await fine(visit)
        visit.keep = True
        return await visit.send(bad[visit.nth - 1])

    return serve


def refused(status: str, *headers: str, **error: Any) -> bytes:
    """An error response."""
    error.setdefault("message", "no")
    return whole({"error": error}, status, headers)


def _case(status: str, outcome: str, /, *headers: str, says: str = "", **error: Any) -> Case:
    return Case(sends(refused(status, *headers, **error)), outcome, says=says)


ELSEWHERE = "ELSEWHERE"
"""Stands in a case for the address of another server, which must not be asked."""

_STATUSES: dict[str, Case] = {
    "401": _case("401 Unauthorized", "LLM_AUTH_FAILED", says="Check the key"),
    "403": _case("403 Forbidden", "LLM_AUTH_FAILED"),
    "401 and retry please": _case(
        "401 X", "LLM_AUTH_FAILED", "Retry-After: 0", "x-should-retry: true"
    ),
    "402": _case("402 Payment Required", "LLM_QUOTA_EXCEEDED"),
    "429 insufficient quota": _case("429 X", "LLM_QUOTA_EXCEEDED", code="insufficient_quota"),
    "429 spend limit": _case(
        "429 X", "LLM_QUOTA_EXCEEDED", code="project_spend_limit_exceeded", type="x"
    ),
    "400": _case("400 Bad Request", "LLM_HTTP_ERROR"),
    "400 bad Gemini key": _case(
        "400 X", "LLM_AUTH_FAILED", details=[{"reason": "API_KEY_INVALID"}]
    ),
    "400 credit too low": _case(
        "400 X", "LLM_QUOTA_EXCEEDED", message="Your credit balance is too low to access this"
    ),
    "400 context overflow": _case(
        "400 X", "LLM_CONTEXT_OVERFLOW", code="context_length_exceeded", message="too long"
    ),
    "400 context overflow in words": _case(
        "400 X", "LLM_CONTEXT_OVERFLOW", message="This model's maximum context length is 8192"
    ),
    "404": _case("404 Not Found", "LLM_HTTP_ERROR", says="base URL"),
    "413": _case("413 Too Large", "LLM_HTTP_ERROR"),
    "418": _case("418 Teapot", "LLM_HTTP_ERROR"),
    "422 list of fields": Case(
        sends(whole({"detail": [{"loc": ["body"], "msg": "m"}]}, "422 X")), "LLM_HTTP_ERROR"
    ),
    "499 empty": Case(sends(whole(b"", "499 X")), "LLM_HTTP_ERROR"),
    "400 body is no error": Case(sends(whole([[[[]]]], "400 X")), "LLM_HTTP_ERROR"),
    "400 lines and controls": _case(
        "400 X", "LLM_HTTP_ERROR", message="a\nTraceback (most recent call last)\r\n\x1b[31mx\u2028"
    ),
    "400 nested error type": Case(
        sends(whole(b'{"error":{"message":"x","type":' + b"[" * 900 + b"]" * 900 + b"}}", "400 X")),
        "LLM_HTTP_ERROR",
    ),
    "400 body too deep": Case(
        sends(whole(b'{"error":' + b"[" * 30_000 + b"]" * 30_000 + b"}", "400 X")),
        "LLM_HTTP_ERROR",
    ),
    "400 body without end": Case(
        drips(stream_head().replace(b"200 OK", b"400 X"), chunked(b"x" * 60_000), 0.001),
        "LLM_HTTP_ERROR",
    ),
    "status out of range": Case(sends(whole({}, "999 X")), "LLM_HTTP_ERROR", asked=3),
    "429 for 61 s": _case("429 X", "LLM_RATE_LIMITED", "Retry-After: 61", says="61"),
    "429 for 1e9 s": _case("429 X", "LLM_RATE_LIMITED", "Retry-After: 1e9", says="1,000,000,000"),
    "429 for ever": _case("429 X", "LLM_RATE_LIMITED", "Retry-After: inf", says="for ever"),
    "429 until tomorrow": _case(
        "429 X", "LLM_RATE_LIMITED", f"Retry-After: {formatdate(time() + 86_400, usegmt=True)}",
        says=r"86,\d\d\d",
    ),
    "503 for an hour": _case("503 X", "LLM_HTTP_ERROR", "Retry-After: 3600", says="3,600"),
}  # fmt: skip
_REDIRECTS: dict[str, Case] = {
    f"{status} to another host": Case(
        sends(whole(b"", f"{status} X", [f"Location: {ELSEWHERE}"])), "LLM_HTTP_ERROR",
        says="redirect",
    )
    for status in (300, 301, 302, 303, 307, 308)
}  # fmt: skip
_NOWHERE: dict[str, Case] = {
    "304": Case(sends(b"HTTP/1.1 304 X\r\n\r\n"), "LLM_HTTP_ERROR"),
    "302 with a list of places": Case(
        sends(whole(b"", "302 X", [f"Location: {ELSEWHERE}", "Location: http://127.0.0.1:1/"])),
        "LLM_HTTP_ERROR",
    ),
}
STATUSES = {**_STATUSES, **_REDIRECTS, **_NOWHERE}
"""Final at once: one request each."""


def _busy(*headers: str, status: str = "429 X") -> Case:
    return Case(then_fine(refused(status, *headers)), text="fine", asked=2)


_PART_EVENTS = sse(delta(content="part "), end=b"")
_PART = chunked(_PART_EVENTS)


def _flushed(data: bytes) -> bytes:
    """The start of a gzip stream, as a server sends it that does not wait for more."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


PASSING: dict[str, Case] = {
    "429 once": _busy(),
    "429 with a date that is past": _busy("Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"),
    "429 with a negative wait": _busy("Retry-After: -5"),
    "429 with a wait that is no number": _busy("Retry-After: NaN"),
    "429 with an empty wait": _busy("Retry-After:"),
    "429 with two waits": _busy("Retry-After: 0", "Retry-After: 0.1"),
    "429 in milliseconds": _busy("retry-after-ms: 3", "Retry-After: 3600"),
    "429 with a wait in the body": Case(
        then_fine(refused("429 X", details=[{"retryDelay": "0.01s"}])), text="fine", asked=2
    ),
    "408 once": _busy("Retry-After: 0", status="408 X"),
    "409 once": _busy("Retry-After: 0", status="409 X"),
    "500 once": _busy("Retry-After: 0", status="500 X"),
    "502 web page once": Case(
        then_fine(whole(b"<html>\nBad gateway</html>", "502 X", ["Retry-After: 0"], "text/html")),
        text="fine",
        asked=2,
    ),
    "503 once": _busy("Retry-After: 0", status="503 X"),
    "529 once": _busy("Retry-After: 0", status="529 X"),
    "overloaded inside a 200": Case(
        then_fine(whole({"error": {"type": "overloaded_error", "message": "x"}})),
        text="fine",
        asked=2,
    ),
}
"""Pass when the request is made again."""

LASTING: dict[str, Case] = {
    "429 always": Case(sends(refused("429 X", "Retry-After: 0")), "LLM_RATE_LIMITED", asked=3),
    "408 always": Case(sends(refused("408 X")), "LLM_TIMEOUT", asked=3),
    "500 always": Case(sends(refused("500 X")), "LLM_HTTP_ERROR", asked=3),
    "502 web page always": Case(
        sends(whole(b"<html>\nBad\ngateway</html>", "502 X", kind="text/html")),
        "LLM_HTTP_ERROR",
        says="web page",
        asked=3,
    ),
    "504 always": Case(sends(refused("504 X")), "LLM_TIMEOUT", asked=3),
    "529 always": Case(sends(refused("529 X")), "LLM_HTTP_ERROR", asked=3),
    "closed without an answer": Case(sends(), "LLM_HTTP_ERROR", asked=3),
    "reset before the headers": Case(resets(), "LLM_HTTP_ERROR", asked=3),
    "reset in the headers": Case(resets(b"HTTP/1.1 200 OK\r\nCont"), "LLM_HTTP_ERROR", asked=3),
    "closed in the headers": Case(sends(b"HTTP/1.1 200 OK\r\nCont"), "LLM_HTTP_ERROR", asked=3),
    "reset in a whole body": Case(
        resets(whole(completion())[:-9]), "LLM_HTTP_ERROR", asked=3, stream=False
    ),
    "short body": Case(sends(whole(completion())[:-9]), "LLM_HTTP_ERROR", asked=3, stream=False),
    "reset before the first token": Case(
        resets(stream_head() + chunked(b": hello\n\n")), "LLM_HTTP_ERROR", asked=3
    ),
    "closed before the first token": Case(
        sends(stream_head() + chunked(b": hello\n\n")), "LLM_HTTP_ERROR", asked=3
    ),
}
"""Asked three times, with pauses; the error is the last one."""

CUT: dict[str, Case] = {
    "reset after the first token": Case(resets(stream_head() + _PART), "LLM_HTTP_ERROR", "part "),
    "closed after the first token": Case(sends(stream_head() + _PART), "LLM_HTTP_ERROR", "part "),
    "closed in the next chunk's size": Case(
        sends(stream_head() + _PART + b"f"), "LLM_HTTP_ERROR", "part "
    ),
    "bad chunk size after the first token": Case(
        sends(stream_head() + _PART + b"zz\r\n"), "LLM_HTTP_ERROR", "part "
    ),
    "bad gzip after the first token": Case(
        slowly(
            stream_head("Content-Encoding: gzip", framing="") + _flushed(_PART_EVENTS),
            b"\xff" * 99,
        ),
        "LLM_BAD_RESPONSE",
        "part ",
    ),
    "500 in the stream after the first token": Case(
        sends(stream_head() + _PART + chunked(b'data: {"error":{"type":"server_error"}}\n\n')),
        "LLM_HTTP_ERROR",
        "part ",
    ),
}
"""Never asked again: a part of the answer was shown already."""

_OK = b"HTTP/1.1 200 OK\r\n"
_JSON = b'{"choices":[{"message":{"content":"fine"},"finish_reason":"stop"}]}'
_LENGTH = b"Content-Length: %d\r\n" % len(_JSON)
_GZIP = gzip.compress(_JSON)


def _body(*pieces: bytes, code: str = "", **more: Any) -> Case:
    return Case(sends(*pieces), code, "" if code else "fine", stream=False, **more)


def _framed(*headers: bytes, code: str = "", body: bytes = _JSON) -> Case:
    return _body(_OK, *[header + b"\r\n" for header in headers], b"\r\n", body, code=code)


def _encoded(name: str, data: bytes, code: str = "") -> Case:
    return _body(whole(data, headers=[f"Content-Encoding: {name}"]), code=code)


def _chunks(*pieces: bytes) -> Case:
    return Case(sends(stream_head(), *pieces), "LLM_HTTP_ERROR", stream=False)


FRAMING: dict[str, Case] = {
    "chunk size is no number": _chunks(b"xyz\r\n"),
    "chunk size is negative": _chunks(b"-5\r\nhello\r\n"),
    "chunk size is empty": _chunks(b"\r\n"),
    "chunk size is enormous": _chunks(b"f" * 40 + b"\r\n"),
    "chunk size without end": Case(
        sends(stream_head(), b"1" * 20_000), "LLM_HTTP_ERROR", stream=False, asked=3
    ),
    "chunk size of 200 kB": _chunks(b"1" * 200_000),
    "chunk without its line end": _chunks(b"5\r\nhello5\r\nworld\r\n0\r\n\r\n"),
    "trailer without end": Case(
        drips(stream_head() + b"0\r\n", b"x: y\r\n" * 20_000, 0.0),
        "LLM_HTTP_ERROR",
        stream=False,
    ),
    "answer as in HTTP/0.9": _body(_JSON, code="LLM_HTTP_ERROR", asked=3),
    "binary garbage": _body(b"\x00\x01\x02\xff" * 64, code="LLM_HTTP_ERROR"),
    "an SSH server": _body(b"SSH-2.0-OpenSSH_9.6\r\n", code="LLM_HTTP_ERROR", asked=3),
    "an HTTP/2 server": _body(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00" * 4, code="LLM_HTTP_ERROR"),
    "status is no number": _body(b"HTTP/1.1 OK\r\n\r\n", code="LLM_HTTP_ERROR"),
    "header without a colon": _framed(b"nonsense", code="LLM_HTTP_ERROR"),
    "header with NUL": _framed(b"x: a\x00b", _LENGTH.strip(), code="LLM_HTTP_ERROR"),
    "space before the colon": _framed(b"x : y", _LENGTH.strip(), code="LLM_HTTP_ERROR"),
    "two lengths": _framed(b"Content-Length: 3", _LENGTH.strip(), code="LLM_HTTP_ERROR"),
    "length is negative": _framed(b"Content-Length: -3", code="LLM_HTTP_ERROR"),
    "length is no number": _framed(b"Content-Length: many", code="LLM_HTTP_ERROR"),
    "transfer encoding is unknown": _framed(
        b"Transfer-Encoding: gzip, chunked", code="LLM_HTTP_ERROR"
    ),
    "header of 200 kB": _framed(b"x: " + b"y" * 200_000, code="LLM_HTTP_ERROR"),
    "headers without end": Case(
        drips(_OK, b"x: y\r\n" * 2_000, 0.0), "LLM_HTTP_ERROR", stream=False
    ),
    "101 to another protocol": _body(
        b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", code="LLM_HTTP_ERROR"
    ),
    "204": _body(b"HTTP/1.1 204 X\r\n\r\n", code="LLM_BAD_RESPONSE"),
    "encoded as br": _encoded("br", b"\x0b\x02\x80hello\x03", "LLM_BAD_RESPONSE"),
    "encoded as zstd": _encoded("zstd", b"\x28\xb5\x2f\xfd", "LLM_BAD_RESPONSE"),
    "encoded with a newline": _encoded("x\ty", _JSON, "LLM_BAD_RESPONSE"),
    "gzip cut short": _encoded("gzip", _GZIP[:-20], "LLM_BAD_RESPONSE"),
    "gzip that is none": _encoded("gzip", _JSON, "LLM_BAD_RESPONSE"),
    "gzip damaged": _encoded("gzip", _GZIP[:20] + b"\xff" * 20 + _GZIP[40:], "LLM_BAD_RESPONSE"),
    "gzip in gzip": _encoded("gzip, gzip", gzip.compress(_GZIP), "LLM_BAD_RESPONSE"),
    "gzip": _encoded("gzip", _GZIP),
    "deflate": _encoded("deflate", zlib.compress(_JSON)),
    "HTTP/1.0 without a length": _body(b"HTTP/1.0 200 OK\r\n\r\n", _JSON),
    "the same length twice": _framed(_LENGTH.strip(), _LENGTH.strip()),
    "header of 64 kB": _framed(b"x: " + b"y" * 65_536, _LENGTH.strip()),
    "folded header": _framed(b"x: a\r\n b", _LENGTH.strip()),
    "informational answers first": _body(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
        whole(_JSON),
    ),
    "length and chunks": _framed(
        b"Content-Length: 5", b"Transfer-Encoding: chunked", body=chunked(_JSON) + b"0\r\n\r\n"
    ),
    "bare line feeds": _body(b"HTTP/1.1 200 OK\n" + _LENGTH.replace(b"\r", b"") + b"\n" + _JSON),
}  # fmt: skip
"""How the bytes of an answer are wrapped. Those without a code are accepted."""

_LIMIT = 0.7


def _slow(serve: Fault, text: str = "", code: str = "LLM_TIMEOUT", *, stream: bool = True) -> Case:
    return Case(serve, code, text, stream=stream, timeout_s=_LIMIT)


def _forever(make: Callable[[], Sequence[bytes]], between_s: float) -> Fault:
    async def serve(visit: Visit) -> None:
        while True:
            await visit.drip(make(), between_s)

    return serve


SILENCES: dict[str, Case] = {
    "no reply": _slow(waits()),
    "no reply to a whole request": _slow(waits(), stream=False),
    "slow headers": _slow(drips(_OK, b"x: y\r\n", 0.1)),
    "headers and then nothing": _slow(waits(stream_head())),
    "whole body that drips": _slow(drips(_OK + b"\r\n", b" "), stream=False),
    "length that never comes": _slow(waits(_OK + b"Content-Length: 99\r\n\r\n{"), stream=False),
    "comments only": _slow(drips(stream_head(), chunked(b": ping\n\n"))),
    "empty events only": _slow(drips(stream_head(), chunked(b"data: {}\n\n"))),
    "one byte at a time": _slow(drips(stream_head(), chunked(b"x"))),
    "chunk size that drips": _slow(drips(stream_head(), b"0")),
    "informational answers for ever": _slow(
        _forever(lambda: [b"HTTP/1.1 103 Early Hints\r\n\r\n"] * 4, 0.01)
    ),
    "silence after a part": _slow(waits(stream_head() + _PART), "part "),
    "drips after a part": _slow(drips(stream_head() + _PART, chunked(b": p\n\n")), "part "),
    "error body that drips": _slow(
        drips(b"HTTP/1.1 400 X\r\n\r\n", b"x"), code="LLM_HTTP_ERROR"
    ),
    "open after the finish reason": _slow(
        waits(stream_head() + chunked(sse(*said("fine"), end=b""))), "fine", code=""
    ),
    "open after the end": _slow(
        waits(stream_head() + chunked(sse(*said("fine")))), "fine", code=""
    ),
}  # fmt: skip
"""Longer than the time allowed, which is `_LIMIT`."""
