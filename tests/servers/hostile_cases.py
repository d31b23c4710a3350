"""The fault tables of the transport: statuses, connections, framing, encodings, silences.

Each case says how the server misbehaves and what a run has to make of it; a table is made for a
wire, which says how the answer is written that goes wrong.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from time import time
from typing import Any

from servers.dialects import CHAT, Dialect, chunked
from servers.hostile_server import Fault, fine, whole
from servers.loopback import Visit


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


def _sends(end: str, *pieces: bytes) -> Fault:
    async def serve(visit: Visit) -> None:
        await visit.send(*pieces)
        if end == "reset":
            await asyncio.sleep(0.02)  # the bytes are read before the reset takes them away
            visit.reset()
        elif end == "silence":
            await visit.silence()

    return serve


sends, resets, waits = (partial(_sends, end) for end in ("close", "reset", "silence"))
"""Send bytes, and then close the connection, break it or say nothing more."""


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


def refused(status: str, *headers: str, wire: Dialect = CHAT, **error: Any) -> bytes:
    return whole(wire.error(**error), status, headers)


def refuses(status: str, body: Any, code: str, *headers: str, says: str = "") -> Case:
    """A case of an error response that is final."""
    return Case(sends(whole(body, status, headers)), code, says=says)


ELSEWHERE = "ELSEWHERE"
"""Stands in a case for the address of another server, which must not be asked."""

ELSEWHERE_HEADER = f"Location: {ELSEWHERE}"


def statuses(wire: Dialect) -> dict[str, Case]:
    def one(status: str, code: str, *headers: str, says: str = "", message: str = "no") -> Case:
        return refuses(status, wire.error(message), code, *headers, says=says)

    deep_type = b'{"error":{"message":"x","type":' + b"[" * 900 + b"]" * 900 + b"}}"
    controls = "a\nTraceback (most recent call last)\r\n\x1b[31mx\u2028"
    tomorrow = formatdate(time() + 86_400, usegmt=True)
    both = [ELSEWHERE_HEADER, "Location: http://127.0.0.1:1/"]
    wrong, limited = "LLM_HTTP_ERROR", "LLM_RATE_LIMITED"
    return {
        "401": one("401 Unauthorized", "LLM_AUTH_FAILED", says="Check the key"),
        "403": one("403 Forbidden", "LLM_AUTH_FAILED"),
        "401 and retry please": one("401 X", "LLM_AUTH_FAILED", "x-should-retry: true"),
        "402": one("402 Payment Required", "LLM_QUOTA_EXCEEDED"),
        "400": one("400 Bad Request", wrong),
        "404": one("404 Not Found", wrong, says="base URL"),
        "413": one("413 Too Large", wrong),
        "499 empty": refuses("499 X", b"", wrong),
        "400 body is no error": refuses("400 X", [[[[]]]], wrong),
        "400 lines and controls": one("400 X", wrong, message=controls),
        "400 nested error type": refuses("400 X", deep_type, wrong),
        "400 body too deep": refuses("400 X", b'{"error":' + b"[" * 30_000, wrong),
        "400 body without end": Case(
            drips(wire.head().replace(b"200 OK", b"400 X"), chunked(b"x" * 60_000), 0.001), wrong
        ),
        "status out of range": Case(sends(whole({}, "999 X")), wrong, asked=3),
        "429 for 61 s": one("429 X", limited, "Retry-After: 61", says="61"),
        "429 for ever": one("429 X", limited, "Retry-After: inf", says="for ever"),
        "429 until tomorrow": one("429 X", limited, f"Retry-After: {tomorrow}", says=r"86,\d\d\d"),
        "503 for an hour": one("503 X", wrong, "Retry-After: 3600", says="3,600"),
        "304": Case(sends(b"HTTP/1.1 304 X\r\n\r\n"), wrong),
        "302 with a list of places": Case(sends(whole(b"", "302 X", both)), wrong),
    } | {
        f"{status} to another host": refuses(
            f"{status} X", b"", wrong, ELSEWHERE_HEADER, says="redirect"
        )
        for status in (300, 301, 302, 303, 307, 308)
    }


def _flushed(data: bytes) -> bytes:
    """The start of a gzip stream, as a server sends it that does not wait for more."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


def passing(wire: Dialect) -> dict[str, Case]:
    def once(status: str, *headers: str, body: Any = None) -> Case:
        bad = whole(wire.error() if body is None else body, status, headers)
        return Case(then_fine(bad), text="fine", asked=2)

    return {
        "429 once": once("429 X"),
        "429 with a date that is past": once("429 X", "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"),
        "429 with a negative wait": once("429 X", "Retry-After: -5"),
        "429 with a wait that is no number": once("429 X", "Retry-After: NaN"),
        "429 with two waits": once("429 X", "Retry-After: 0", "Retry-After: 0.1"),
        "429 in milliseconds": once("429 X", "retry-after-ms: 3", "Retry-After: 3600"),
        "429 with a wait in the body": once(
            "429 X", body={"error": {"details": [{"retryDelay": "0.01s"}]}}
        ),
        "408 once": once("408 X", "Retry-After: 0"),
        "500 once": once("500 X", "Retry-After: 0"),
        "502 web page once": once("502 X", "Retry-After: 0", body=b"<html>\nBad gateway</html>"),
        "529 once": once("529 X", "Retry-After: 0"),
        "overloaded inside a 200": once(
            "200 OK", body={"error": {"type": "overloaded_error", "message": "x"}}
        ),
    }


def lasting(wire: Dialect) -> dict[str, Case]:
    """Asked three times, with pauses; the error is the last one."""
    broken = "LLM_HTTP_ERROR"
    short = whole(wire.whole("fine"))[:-9]
    hello = wire.head() + chunked(wire.blank)

    def always(
        status: str, code: str = broken, *headers: str, body: Any = None, **more: Any
    ) -> Case:
        bad = whole(wire.error() if body is None else body, status, headers)
        return Case(sends(bad), code, asked=3, **more)

    return {
        "429 always": always("429 X", "LLM_RATE_LIMITED", "Retry-After: 0"),
        "408 always": always("408 X", "LLM_TIMEOUT"),
        "500 always": always("500 X"),
        "502 web page always": always(
            "502 X", body=b"<html>\nBad\ngateway</html>", says="web page"
        ),
        "504 always": always("504 X", "LLM_TIMEOUT"),
        "529 always": always("529 X"),
        "closed without an answer": Case(sends(), broken, asked=3),
        "reset before the headers": Case(resets(), broken, asked=3),
        "reset in the headers": Case(resets(b"HTTP/1.1 200 OK\r\nCont"), broken, asked=3),
        "closed in the headers": Case(sends(b"HTTP/1.1 200 OK\r\nCont"), broken, asked=3),
        "reset in a whole body": Case(resets(short), broken, asked=3, stream=False),
        "short body": Case(sends(short), broken, asked=3, stream=False),
        "reset before the first token": Case(resets(hello), broken, asked=3),
        "closed before the first token": Case(sends(hello), broken, asked=3),
    }


def broken_off(wire: Dialect) -> dict[str, Case]:
    """Never asked again: a part of the answer was shown already."""
    events = wire.stream(*wire.part("part "), end=b"")
    part = wire.head() + chunked(events)
    zipped = wire.head("Content-Encoding: gzip", framing="") + _flushed(events)
    wrong = "LLM_HTTP_ERROR"
    return {
        "reset after the first token": Case(resets(part), wrong, "part "),
        "closed after the first token": Case(sends(part), wrong, "part "),
        "closed in the next chunk's size": Case(sends(part + b"f"), wrong, "part "),
        "bad chunk size after the first token": Case(sends(part + b"zz\r\n"), wrong, "part "),
        "bad gzip after the first token": Case(
            slowly(zipped, b"\xff" * 99), "LLM_BAD_RESPONSE", "part "
        ),
    }


_OK = b"HTTP/1.1 200 OK\r\n"
_LIMIT = 0.7
"""Seconds that are allowed where a server is silent."""


def framing(wire: Dialect) -> dict[str, Case]:
    """How the bytes of an answer are wrapped. Those without a code are accepted."""
    good = json.dumps(wire.whole("fine")).encode()
    length = b"Content-Length: %d\r\n" % len(good)
    zipped = gzip.compress(good)
    wrong, bad = "LLM_HTTP_ERROR", "LLM_BAD_RESPONSE"
    head = wire.head()

    def body(*pieces: bytes, code: str = "", **more: Any) -> Case:
        return Case(sends(*pieces), code, "" if code else "fine", stream=False, **more)

    def framed(*headers: bytes, code: str = "", data: bytes = good) -> Case:
        lines = [header.strip() + b"\r\n" for header in headers]
        return body(_OK, *lines, b"\r\n", data, code=code)

    def encoded(name: str, data: bytes, code: str = "") -> Case:
        return body(whole(data, headers=[f"Content-Encoding: {name}"]), code=code)

    def chunks(*pieces: bytes) -> Case:
        return Case(sends(head, *pieces), wrong, stream=False)

    return {
        "chunk size is no number": chunks(b"xyz\r\n"),
        "chunk size is enormous": chunks(b"f" * 40 + b"\r\n"),
        "chunk size without end": Case(sends(head, b"1" * 20_000), wrong, stream=False, asked=3),
        "chunk without its line end": chunks(b"5\r\nhello5\r\nworld\r\n0\r\n\r\n"),
        "trailer without end": Case(
            drips(head + b"0\r\n", b"x: y\r\n" * 20_000, 0.0), wrong, stream=False),
        "answer as in HTTP/0.9": body(good, code=wrong, asked=3),
        "binary garbage": body(b"\x00\x01\x02\xff" * 64, code=wrong),
        "an SSH server": body(b"SSH-2.0-OpenSSH_9.6\r\n", code=wrong, asked=3),
        "status is no number": body(b"HTTP/1.1 OK\r\n\r\n", code=wrong),
        "header without a colon": framed(b"nonsense", code=wrong),
        "two lengths": framed(b"Content-Length: 3", length, code=wrong),
        "length is no number": framed(b"Content-Length: many", code=wrong),
        "transfer encoding is unknown": framed(b"Transfer-Encoding: gzip, chunked", code=wrong),
        "header of 200 kB": framed(b"x: " + b"y" * 200_000, code=wrong),
        "101 to another protocol": body(
            b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", code=wrong
        ),
        "204": body(b"HTTP/1.1 204 X\r\n\r\n", code=bad),
        "encoded as br": encoded("br", b"\x0b\x02\x80hello\x03", bad),
        "encoded with a newline": encoded("x\ty", good, bad),
        "gzip cut short": encoded("gzip", zipped[:-20], bad),
        "gzip that is none": encoded("gzip", good, bad),
        "gzip": encoded("gzip", zipped),
        "deflate": encoded("deflate", zlib.compress(good)),
        "HTTP/1.0 without a length": body(b"HTTP/1.0 200 OK\r\n\r\n", good),
        "the same length twice": framed(length, length),
        "header of 64 kB": framed(b"x: " + b"y" * 65_536, length),
        "informational answers first": body(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
            whole(good),
        ),
        "length and chunks": framed(
            b"Content-Length: 5", b"Transfer-Encoding: chunked", data=chunked(good) + b"0\r\n\r\n"
        ),
        "bare line feeds": body(b"HTTP/1.1 200 OK\n" + length.replace(b"\r", b"") + b"\n" + good),
    }  # fmt: skip


def _slow(serve: Fault, text: str = "", code: str = "LLM_TIMEOUT", *, stream: bool = True) -> Case:
    return Case(serve, code, text, stream=stream, timeout_s=_LIMIT)


def silences(wire: Dialect) -> dict[str, Case]:
    """Longer than the time allowed, which is `_LIMIT`."""
    head = wire.head()
    part = chunked(wire.stream(*wire.part("part "), end=b""))
    finished = wire.stream(*wire.said("fine"), end=b"")
    cases = {
        "no reply": _slow(waits()),
        "no reply to a whole request": _slow(waits(), stream=False),
        "slow headers": _slow(drips(_OK, b"x: y\r\n", 0.1)),
        "headers and then nothing": _slow(waits(head)),
        "whole body that drips": _slow(drips(_OK + b"\r\n", b" "), stream=False),
        "length that never comes": _slow(waits(_OK + b"Content-Length: 99\r\n\r\n{"), stream=False),
        "comments only": _slow(drips(head, chunked(wire.blank))),
        "chunk size that drips": _slow(drips(head, b"0")),
        "informational answers for ever": _slow(drips(b"", b"HTTP/1.1 103 X\r\n\r\n", 0.01)),
        "silence after a part": _slow(waits(head + part), "part "),
        "drips after a part": _slow(drips(head + part, chunked(wire.blank)), "part "),
        "error body that drips": _slow(
            drips(b"HTTP/1.1 400 X\r\n\r\n", b"x"), code="LLM_HTTP_ERROR"),
        "open after the finish reason": _slow(waits(head + chunked(finished)), "fine", code=""),
        "open after the end": _slow(waits(head + chunked(finished + wire.end)), "fine", code=""),
    }  # fmt: skip
    if wire.name != "ollama":  # There an empty object is no line.
        cases["empty events only"] = _slow(drips(head, chunked(wire.frame({}))))
    return cases
