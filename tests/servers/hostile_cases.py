"""The fault tables: statuses, connections, framing, silences; bodies, streams, errors.

Each case says how the server misbehaves and what a run has to make of it; a table is made for a
wire, which says how the answer is written that goes wrong. What only one wire can get wrong is in
its table of cases, and `wires/test_every_wire.py` puts wrong values everywhere.
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

from servers.dialects import CHAT, DIALECTS, Dialect, chunked
from servers.error_bodies import ANSWERS, WITHOUT_STATUS
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
    timeout_s: float = 60.0


_WRONG, _BAD, _LIMITED = "LLM_HTTP_ERROR", "LLM_BAD_RESPONSE", "LLM_RATE_LIMITED"


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
    """Sends pieces as packets of their own, also to a busy machine, and closes the connection."""

    async def serve(visit: Visit) -> None:
        await visit.drip(pieces, 1.5)

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

    endless = wire.head().replace(b"200 OK", b"400 X")
    deep_type = b'{"error":{"message":"x","type":' + b"[" * 900 + b"]" * 900 + b"}}"
    controls = "a\nTraceback (most recent call last)\r\n\x1b[31mx\u2028"
    tomorrow = formatdate(time() + 86_400, usegmt=True)
    return {
        "401": one("401 Unauthorized", "LLM_AUTH_FAILED", says="Check the key"),
        "404": one("404 Not Found", _WRONG, says="base URL"),
        "401 and retry please": one("401 X", "LLM_AUTH_FAILED", "x-should-retry: true"),
        "400 body is no error": refuses("400 X", [[[[]]]], _WRONG),
        "400 lines and controls": one("400 X", _WRONG, message=controls),
        "400 nested error type": refuses("400 X", deep_type, _WRONG),
        "400 body too deep": refuses("400 X", b'{"error":' + b"[" * 30_000, _WRONG),
        "400 body without end": Case(drips(endless, chunked(b"x" * 60_000), 0.001), _WRONG),
        "status out of range": Case(sends(whole({}, "999 X")), _WRONG, asked=3),
        "429 for 61 s": one("429 X", _LIMITED, "Retry-After: 61", says="61"),
        "429 for ever": one("429 X", _LIMITED, "Retry-After: inf", says="without end"),
        "429 for 90 s in words": one(
            "429 X", _LIMITED, says=r"90 s \(until", message="Please try again in 1m30s."
        ),
        "429 of a day": one(
            "429 X",
            "LLM_QUOTA_EXCEEDED",
            "Retry-After: 0",
            says="daily limit",
            message="Rate limit reached on requests per day (RPD): Limit 200, Used 200",
        ),
        "429 that never fits": one(
            "429 X",
            _LIMITED,
            says="Shorten",
            message="Request too large on tokens per min (TPM): Limit 1, Requested 2",
        ),
        "429 until tomorrow": one("429 X", _LIMITED, f"Retry-After: {tomorrow}", says=r"86,\d\d\d"),
    } | {
        f"{status} to another host": refuses(
            f"{status} X", b"", _WRONG, ELSEWHERE_HEADER, says="redirect"
        )
        for status in (301, 307, 308)
    }


def _flushed(data: bytes) -> bytes:
    """The start of a gzip stream, as a server sends it that does not wait for more."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


def passing(wire: Dialect) -> dict[str, Case]:
    def once(status: str, *headers: str, body: Any = None) -> Case:
        bad = whole(wire.error() if body is None else body, status, headers)
        return Case(then_fine(bad), text="fine", asked=2)

    told = [{"retryDelay": "0.01s"}]
    inner = {"error": {"code": 429, "message": "no", "details": told}}
    return {
        "429 with a date that is past": once("429 X", "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"),
        "429 with a negative wait": once("429 X", "Retry-After: -5"),
        "429 with two waits": once("429 X", "Retry-After: 0", "Retry-After: 0.1"),
        "429 with a wait that is no number": once("429 X", "Retry-After: NaN"),
        "429 in milliseconds": once("429 X", "retry-after-ms: 3", "Retry-After: 3600"),
        "429 with a wait in the body": once("429 X", body={"error": {"details": told}}),
        "429 with a wait in words": once("429 X", body=wire.error("Please try again in 10ms.")),
        "429 with a wait in a text": once("429 X", body={"error": {"message": json.dumps(inner)}}),
        "429 inside a 500": once("500 X", body={"error": {"message": json.dumps(inner)}}),
        "429 with a reset": once("429 X", "x-ratelimit-reset-tokens: 20ms"),
        "502 web page once": once("502 X", "Retry-After: 0", body=b"<html>\nBad gateway</html>"),
        "overloaded inside a 200": once("200 OK", body={"error": {"type": "overloaded_error"}}),
    }


def lasting(wire: Dialect) -> dict[str, Case]:
    """Asked three times, with pauses; the error is the last one."""
    page = b"<html>\nBad\ngateway</html>"
    short = whole(wire.whole("fine"))[:-9]
    hello = wire.head() + chunked(wire.blank)

    def always(status: str, code: str = _WRONG, *headers: str) -> Case:
        return Case(sends(whole(wire.error(), status, headers)), code, asked=3)

    def failing(fault: Fault, **more: Any) -> Case:
        return Case(fault, _WRONG, asked=3, **more)

    return {
        "429 always": always("429 X", "LLM_RATE_LIMITED", "Retry-After: 0"),
        "408 always": always("408 X", "LLM_TIMEOUT"),
        "500 always": always("500 X"),
        "502 web page always": failing(sends(whole(page, "502 X")), says="web page"),
        "closed without an answer": failing(sends()),
        "reset before the headers": failing(resets()),
        "short body": failing(sends(short), stream=False),
        "reset before the first token": failing(resets(hello)),
        "closed before the first token": failing(sends(hello)),
    }


def broken_off(wire: Dialect) -> dict[str, Case]:
    """Never asked again: a part of the answer was shown already."""
    events = wire.stream(*wire.part("part "), end=b"")
    part = wire.head() + chunked(events)
    zipped = wire.head("Content-Encoding: gzip", framing="") + _flushed(events)
    return {
        "reset after the first token": Case(resets(part), _WRONG, "part "),
        "closed after the first token": Case(sends(part), _WRONG, "part "),
        "bad chunk size after the first token": Case(sends(part + b"zz\r\n"), _WRONG, "part "),
        # What arrives together with damaged bytes would be lost with them.
        "bad gzip after the first token": Case(slowly(zipped, b"\xff" * 99), _BAD, "part "),
    }


_OK = b"HTTP/1.1 200 OK\r\n"
_LIMIT = 0.7
"""Seconds that are allowed where a server is silent."""


def framing(wire: Dialect) -> dict[str, Case]:
    """How the bytes of an answer are wrapped. Those without a code are accepted."""
    good = json.dumps(wire.whole("fine")).encode()
    length = b"Content-Length: %d\r\n" % len(good)
    zipped = gzip.compress(good)
    head = wire.head()

    def body(*pieces: bytes, code: str = "", **more: Any) -> Case:
        return Case(sends(*pieces), code, "" if code else "fine", stream=False, **more)

    def framed(*headers: bytes, code: str = "", data: bytes = good) -> Case:
        lines = [header.strip() + b"\r\n" for header in headers]
        return body(_OK, *lines, b"\r\n", data, code=code)

    def encoded(name: str, data: bytes, code: str = "") -> Case:
        return body(whole(data, headers=[f"Content-Encoding: {name}"]), code=code)

    def chunks(*pieces: bytes) -> Case:
        return Case(sends(head, *pieces), _WRONG, stream=False)

    return {
        "chunk size is no number": chunks(b"xyz\r\n"),
        "chunk size without end": Case(sends(head, b"1" * 20_000), _WRONG, stream=False, asked=3),
        "chunk without its line end": chunks(b"5\r\nhello5\r\nworld\r\n0\r\n\r\n"),
        "trailer without end": Case(
            drips(head + b"0\r\n", b"x: y\r\n" * 20_000, 0.0), _WRONG, stream=False),
        "answer as in HTTP/0.9": body(good, code=_WRONG, asked=3),
        "an SSH server": body(b"SSH-2.0-OpenSSH_9.6\r\n", code=_WRONG, asked=3),
        "two lengths": framed(b"Content-Length: 3", length, code=_WRONG),
        "header of 200 kB": framed(b"x: " + b"y" * 200_000, code=_WRONG),
        "101 to another protocol": body(
            b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", code=_WRONG
        ),
        "204": body(b"HTTP/1.1 204 X\r\n\r\n", code=_BAD),
        "encoded as br": encoded("br", b"\x0b\x02\x80hello\x03", _BAD),
        "encoded with a newline": encoded("x\ty", good, _BAD),
        "gzip cut short": encoded("gzip", zipped[:-20], _BAD),
        "gzip that is none": encoded("gzip", good, _BAD),
        "gzip": encoded("gzip", zipped),
        "deflate": encoded("deflate", zlib.compress(good)),
        "the same length twice": framed(length, length),
        "header of 64 kB": framed(b"x: " + b"y" * 65_536, length),
        "HTTP/1.0 without a length": body(b"HTTP/1.0 200 OK\r\n\r\n", good),
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
        "slow headers": _slow(drips(_OK, b"x: y\r\n", 0.1)),
        "length that never comes": _slow(waits(_OK + b"Content-Length: 99\r\n\r\n{"), stream=False),
        "comments only": _slow(drips(head, chunked(wire.blank))),
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


def _whole(body: Any, code: str = _BAD, text: str = "", asked: int = 1, **how: Any) -> Case:
    return Case(sends(whole(body, **how)), code, text, stream=False, asked=asked)


def bodies(wire: Dialect) -> dict[str, Case]:
    """Whole answers; those without a code are accepted."""
    good = json.dumps(wire.whole("fine")).encode()
    start = b'{"%b": ' % wire.holder.encode()
    return {
        "web page": _whole(b"<!doctype html>\n<p>Sign in</p>", kind="text/html"),
        "nothing": _whole(b""),
        "an object": _whole({}),
        # A broken character costs one character, not the answer.
        "bad UTF-8": _whole(good.replace(b"fine", b"fi\xffe"), "", "fi\ufffde"),
        "too deep": _whole(start + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "a number that is too long": _whole(start + b"[" + b"9" * 5_000 + b"]}"),
        "the rest is a number": _whole(start + b"7}", asked=3 if wire is CHAT else 1),
        "another type but parseable": _whole(good, "", "fine", kind="text/plain"),
        "byte order mark": _whole(b"\xef\xbb\xbf" + good, "", "fine"),
        "blank lines first": _whole(b"\r\n\r\n  " + good, "", "fine"),
        "lone surrogate": _whole(good.replace(b"fine", b"fine\\ud800"), "", "fine\ufffd"),
    }


def _streams(
    wire: Dialect, *events: Any, code: str = _BAD, text: str = "", end: Any = None
) -> Case:
    served = sends(wire.head(), chunked(wire.stream(*events, end=end)), b"0\r\n\r\n")
    return Case(served, code, text)


def _raw(body: bytes, code: str = "", text: str = "fine", kind: str = "text/event-stream") -> Case:
    return Case(sends(whole(body, kind=kind)), code, text)


def streams(wire: Dialect) -> dict[str, Case]:
    said, part = wire.said("fine"), wire.part("part ")
    good = wire.stream(*said)
    lead = b"" if wire.name == "ollama" else b"data: "

    def spoilt(event: Any) -> Case:
        return _streams(wire, *part, wire.frame(event), *said, text="part ")

    return {
        "stream: web page": _raw(b"<!doctype html>\n<p>no</p>\n\n", _BAD, ""),
        "stream: nothing": _raw(b"", _BAD, ""),
        "stream: signs of life, then the end": _raw(wire.blank * 2, _BAD, ""),
        "stream: an event is a list": spoilt(lead + b"[1]"),
        "stream: broken JSON": spoilt(lead + b"{nonsense}"),
        "stream: signs of life between": _raw(
            wire.blank + good.replace(b"}\n", b"}\n\n" + wire.blank)
        ),
        "stream: another type but parseable": _raw(good, kind="text/html"),
        "stream: answered whole": _raw(json.dumps(wire.whole("fine")).encode()),
        "stream: data after the end": _raw(good + lead + b"{nonsense\n\n" * 50),
    }


# Errors, as the providers write them.

_PROVIDERS = {
    "chat": ("OpenAI", "OpenRouter", "Moonshot"),
    "responses": ("OpenAI", "Responses"),
    "azure": ("OpenAI", "Azure"),
    "anthropic": ("Anthropic",),
    "google": ("Gemini",),
    "ollama": ("Ollama",),
}
_OVERLOADED = {"error": {"type": "overloaded_error"}}
_FAILED = {"type": "response.failed", "response": {"error": {"code": "server_error"}}}
_FORMS: dict[str, dict[str, tuple[Any, str]]] = {
    "chat": {"overloaded": (_OVERLOADED, _WRONG)},
    "responses": {"failed": (_FAILED, _WRONG)},
    "anthropic": {
        "without a name": (b'data: {"type":"error","error":{"type":"api_error"}}', _WRONG),
        "only a name": (b"event: error\ndata: {}", _BAD),
    },
    "ollama": {"object": ({"error": {"code": 503, "message": "m"}}, _WRONG)},
}
"""Further forms of an error inside a stream."""


def own_errors(wire: Dialect) -> dict[str, Case]:
    """Each error as a response and behind a part of a stream."""
    part = wire.part("part ")
    cases: dict[str, Case] = {}
    for name, (status, body, code, retryable) in ANSWERS.items():
        if name.partition(":")[0] not in _PROVIDERS[wire.name]:
            continue
        bad = whole(body, f"{status} X", ["Retry-After: 0"])
        again = Case(then_fine(bad), text="fine", asked=2)
        cases[f"error: {name}"] = again if retryable else Case(sends(bad), code)
        inside = _BAD if name in WITHOUT_STATUS else code
        cases[f"inside: {name}"] = _streams(wire, *part, body, code=inside, text="part ")
    for name, (event, code) in _FORMS.get(wire.name, {}).items():
        cases[f"inside: {name}"] = _streams(wire, *part, wire.frame(event), code=code, text="part ")
    return cases


def fault_table(wire: Dialect) -> dict[str, Case]:
    """All that a wire has to bear, besides calls, cuts and floods."""
    tables = [statuses, broken_off, own_errors]
    if wire.name != "azure":  # Chat Completions under another key.
        tables += [passing, lasting, framing, silences, bodies, streams]
    return {name: case for table in tables for name, case in table(wire).items()}


TABLES = {wire.name: fault_table(wire) for wire in DIALECTS}
