"""The fault tables of what an answer holds: bodies, streams, errors, tool calls.

Every table is made for a wire. What only one wire can get wrong is in its table of cases, and
`wires/test_every_wire.py` puts wrong values everywhere.
"""

from __future__ import annotations

import json
from typing import Any

from servers.dialects import CHAT, DIALECTS, Called, Dialect, chunked
from servers.error_bodies import ANSWERS, WITHOUT_STATUS
from servers.hostile_cases import (
    Case,
    broken_off,
    framing,
    lasting,
    passing,
    sends,
    silences,
    statuses,
    then_fine,
)
from servers.hostile_server import Fault, fine, whole
from servers.loopback import Visit

_BAD = "LLM_BAD_RESPONSE"


def _whole(
    body: Any,
    code: str = _BAD,
    kind: str = "application/json",
    asked: int = 1,
    text: str = "fine",
) -> Case:
    served = sends(whole(body, kind=kind))
    return Case(served, code, "" if code else text, stream=False, asked=asked)


def bodies(wire: Dialect) -> dict[str, Case]:
    """Whole answers; those without a code are accepted."""
    good = json.dumps(wire.whole("fine")).encode()
    start = b'{"%b": ' % wire.holder.encode()
    return {
        "web page": _whole(b"<!doctype html>\n<p>Sign in</p>", kind="text/html"),
        "nothing": _whole(b""),
        "spaces": _whole(b" \r\n\r\n "),
        "null": _whole(None),
        "a list": _whole([]),
        "an object": _whole({}),
        "bad UTF-8": _whole(good.replace(b"fine", b"\xff\xfe")),
        "too deep": _whole(start + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "a number that is too long": _whole(start + b"[" + b"9" * 5_000 + b"]}"),
        "the rest is a number": _whole(start + b"7}", asked=3 if wire is CHAT else 1),
        "another type but parseable": _whole(good, "", kind="text/plain"),
        "byte order mark": _whole(b"\xef\xbb\xbf" + good, ""),
        "blank lines first": _whole(b"\r\n\r\n  " + good, ""),
        "lone surrogate": _whole(good.replace(b"fine", b"fine\\ud800"), "", text="fine\ufffd"),
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
        "stream: an event is a text": spoilt(lead + b'"x"'),
        "stream: broken JSON": spoilt(lead + b"{nonsense}"),
        "stream: too deep": spoilt(lead + b"[" * 50_000),
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
_FORMS: dict[str, dict[str, tuple[Any, str]]] = {
    "chat": {"overloaded": ({"error": {"type": "overloaded_error"}}, "LLM_HTTP_ERROR")},
    "responses": {
        "failed": (
            {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
            "LLM_HTTP_ERROR",
        )
    },
    "anthropic": {
        "without a name": (
            b'data: {"type":"error","error":{"type":"api_error"}}',
            "LLM_HTTP_ERROR",
        ),
        "only a name": (b"event: error\ndata: {}", _BAD),
    },
    "ollama": {"object": ({"error": {"code": 503, "message": "m"}}, "LLM_HTTP_ERROR")},
}
"""What an error inside a stream looks like besides."""


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


# Tool calls.


def then_goes_on(wire: Dialect, *events: Any) -> Fault:
    """Streams an answer, and says fine when it is asked again."""

    async def serve(visit: Visit) -> None:
        if visit.nth > 1:
            return await fine(visit)
        visit.keep = True
        return await visit.send(wire.head(), chunked(wire.stream(*events)), b"0\r\n\r\n")

    return serve


_CALLS: dict[str, tuple[tuple[Called, ...], tuple[str, ...]]] = {
    "two": ((Called(), Called("c2")), ("ok", "ok")),
    "no ids": ((Called(None), Called(None)), ("ok", "ok")),
    "one id for two": ((Called(), Called(arguments={"at": "y"})), ("ok", "ok")),
    "arguments of no tool": ((Called(arguments={"to": "x"}),), ("E_INVALID_ARGUMENTS",)),
    "unknown tool": ((Called(name="rm_rf"),), ("E_UNKNOWN_TOOL",)),
    "tool without a name": ((Called(name=""),), ("E_UNKNOWN_TOOL",)),
}
_DEEP = '{"at": ' + "[" * 3_000 + "]" * 3_000 + "}"
_CALLS_IN_TEXT: dict[str, tuple[tuple[Called, ...], tuple[str, ...]]] = {
    f"arguments are {name}": ((Called(arguments=text),), ("E_INVALID_ARGUMENTS",))
    for name, text in {
        "not JSON": '{"at": ',
        "a list": "[1]",
        "a number": "7",
        "deep": _DEEP,
    }.items()
}
"""Where arguments are a text, which may be anything."""


def calls(wire: Dialect) -> dict[str, tuple[Case, tuple[str, ...]]]:
    """Cases of calls, and the outcome of each call: `ok` or its code."""
    table = _CALLS if wire.name in ("google", "ollama") else {**_CALLS, **_CALLS_IN_TEXT}
    return {
        f"call: {name}": (
            Case(then_goes_on(wire, *wire.said("", *made)), text="fine", asked=2),
            ends,
        )
        for name, (made, ends) in table.items()
    }


def fault_table(wire: Dialect) -> dict[str, Case]:
    """All that a wire has to bear, besides calls, cuts and floods."""
    if wire.name == "azure":  # Chat Completions under another key.
        return {**statuses(wire), **broken_off(wire), **own_errors(wire)}
    return {
        **statuses(wire),
        **passing(wire),
        **lasting(wire),
        **broken_off(wire),
        **framing(wire),
        **silences(wire),
        **bodies(wire),
        **streams(wire),
        **own_errors(wire),
    }


TABLES = {wire.name: fault_table(wire) for wire in DIALECTS}
CALLS = {wire.name: calls(wire) for wire in DIALECTS}
