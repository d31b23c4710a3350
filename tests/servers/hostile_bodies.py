"""The fault tables of what a 200 holds: bodies, streams, usage, error objects, tool calls.

What every wire must bear is made for a wire; what only Chat Completions can get wrong, and the
errors in the words of each provider, stand beside it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from servers.dialects import (
    CHAT,
    DIALECTS,
    Called,
    Dialect,
    call,
    chunked,
    completion,
    delta,
)
from servers.hostile_cases import (
    Case,
    broken_off,
    framing,
    lasting,
    passing,
    refuses,
    sends,
    silences,
    statuses,
)
from servers.hostile_server import Fault, Visit, fine, whole

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
        "a number": _whole(42),
        "a text": _whole("hello"),
        "true": _whole(True),
        "broken JSON": _whole(start + b"[}"),
        "JSON cut short": _whole(good[:-8]),
        "bad UTF-8": _whole(good.replace(b"fine", b"\xff\xfe")),
        "too deep": _whole(start + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "too deep for Python": _whole(b'{"a":' * 5_001 + b"1" + b"}" * 5_001),
        "a number that is too long": _whole(start + b"[" + b"9" * 5_000 + b"]}"),
        "the rest is a number": _whole(start + b"7}", asked=3 if wire is CHAT else 1),
        "another type but parseable": _whole(good, "", kind="text/plain"),
        "byte order mark": _whole(b"\xef\xbb\xbf" + good, ""),
        "blank lines first": _whole(b"\r\n\r\n  " + good, ""),
        "lone surrogate": _whole(good.replace(b"fine", b"fine\\ud800"), "", text="fine\ufffd"),
    }


def usages(wire: Dialect) -> dict[str, Case]:
    """Counts that are none: the answer is taken all the same."""
    if wire.counts is None:
        return {}
    holder, prompt, answer, details = wire.counts
    odd: dict[str, bytes] = {
        "NaN": b'{"IN": NaN, "OUT": Infinity}',
        "negative": b'{"IN": -5, "OUT": 2}',
        "huge": b'{"IN": 1e308, "OUT": 99999999999999999999999}',
        "text": b'{"IN": "12", "OUT": "x"}',
        "a list": b"[1, 2]",
        "a number": b"7",
        "null details": b'{"IN": 1, "MORE": null}',
        "details of lists": b'{"IN": 1, "MORE": [1]}',
    }
    start = json.dumps(wire.whole("fine")).encode()[:-1] + b', "%b": ' % holder.encode()
    names = {b"IN": prompt, b"OUT": answer, b"MORE": details}

    def named(text: bytes) -> bytes:
        for short, name in names.items():
            text = text.replace(b'"%b"' % short, b'"%b"' % name.encode())
        return text

    return {f"usage: {name}": _whole(start + named(text) + b"}", "") for name, text in odd.items()}


def _streams(
    wire: Dialect, *events: Any, code: str = _BAD, text: str = "", end: Any = None
) -> Case:
    """A stream with a clean end."""
    served = sends(wire.head(), chunked(wire.stream(*events, end=end)), b"0\r\n\r\n")
    return Case(served, code, text)


def _raw(body: bytes, code: str = "", text: str = "fine", kind: str = "text/event-stream") -> Case:
    return Case(sends(whole(body, kind=kind)), code, text)


def streams(wire: Dialect) -> dict[str, Case]:
    """Streams; those without a code are accepted."""
    said, part = wire.said("fine"), wire.part("part ")
    good = wire.stream(*said)
    lead = b"" if wire.name == "ollama" else b"data: "

    def spoilt(event: Any) -> Case:
        return _streams(wire, *part, event, *said, text="part ")

    def cut(end: bytes) -> Case:
        return _streams(wire, *part, text="part ", end=end)

    cases = {
        "stream: web page": _raw(b"<!doctype html>\n<p>no</p>\n\n", _BAD, ""),
        "stream: nothing": _raw(b"", _BAD, ""),
        "stream: signs of life, then the end": _raw(wire.blank * 2, _BAD, ""),
        "stream: without an end": cut(b""),
        "stream: cut inside an event": cut(lead + b'{"%b":[{"del' % wire.holder.encode()),
        "stream: an event is a list": spoilt(lead + b"[1]"),
        "stream: an event is a number": spoilt(lead + b"7"),
        "stream: an event is a text": spoilt(lead + b'"x"'),
        "stream: broken JSON": spoilt(lead + b"{nonsense}"),
        "stream: bad UTF-8": spoilt(lead + b'{"%b":"\xff"}' % wire.holder.encode()),
        "stream: too deep": spoilt(lead + b"[" * 50_000),
        "stream: byte order mark": _raw(b"\xef\xbb\xbf" + good),
        "stream: CRLF": _raw(good.replace(b"\n", b"\r\n")),
        "stream: CR": _raw(good.replace(b"\n", b"\r")),
        "stream: signs of life between": _raw(
            wire.blank + good.replace(b"}\n", b"}\n\n" + wire.blank)
        ),
        "stream: another type but parseable": _raw(good, kind="text/html"),
        "stream: answered whole": _raw(json.dumps(wire.whole("fine")).encode()),
        "stream: data after the end": _raw(good + lead + b"{nonsense\n\n" * 50),
        "stream: line separators in a text": _streams(
            wire, *wire.said("a\u2028b\x85c"), code="", text="a\u2028b\x85c"
        ),
        "stream: lone surrogate": _streams(
            wire, *wire.said("fine\ud83d"), code="", text="fine\ufffd"
        ),
    }
    if lead:
        cases |= {
            "stream: comments between": _raw(
                b": hi\n\n" + good.replace(b"\n\n", b"\n\n: ping\n\n")
            ),
            "stream: unknown fields": _raw(b"id: 7\nretry: 1\nfoo: bar\n" + good),
            "stream: no space after the colon": _raw(good.replace(b"data: ", b"data:")),
        }
    return cases


# Chat Completions alone.


def _choice(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": "fine", **message}}]}


def _stream(*events: Any, **more: Any) -> Case:
    return _streams(CHAT, *events, **more)


_GOOD = CHAT.stream(*CHAT.said("fine"))
_PART = delta(content="part ")
_NOBODY = {"choices is null": None, "no choice": [], "choices of null": [None]} | {
    "choices is an object": {"message": {}},
    "message is null": [{"message": None}],
    "message is a text": [{"message": "hi"}],
}

CHAT_ONLY: dict[str, Case] = {
    **{name: _whole({"choices": choices}, asked=3) for name, choices in _NOBODY.items()},
    "content is a number": _whole(_choice(content=5)),
    "content is an object": _whole(_choice(content={"text": "x"}), "", text="x"),
    "tool_calls is an object": _whole(_choice(tool_calls={"id": "x"})),
    "tool_calls of null": _whole(_choice(tool_calls=[None])),
    "index is a text": _whole({"choices": [{"index": "x", "message": {"content": "fine"}}]}, ""),
    "finish reason is a number": _whole(
        {"choices": [{"message": {"content": "fine"}, "finish_reason": 7}]}, ""
    ),
    "model is an object": _whole({**completion(), "model": {"a": [1]}}, ""),
    "refusal is a number": _whole(_choice(refusal=7), ""),
    "reasoning is a list": _whole(_choice(reasoning=[1]), ""),
    "stream: only [DONE]": _stream(),
    "stream: no answer": replace(_stream({"choices": []}, {"choices": None}), asked=3),
    "stream: choices is an object": _stream(_PART, {"choices": {"a": 1}}, text="part "),
    "stream: choices of numbers": _stream({"choices": [7]}),
    "stream: delta is a text": _stream({"choices": [{"delta": "x"}]}),
    "stream: content is a number": _stream(_PART, delta(content=7), text="part "),
    "stream: tool_calls is a text": _stream(delta(tool_calls="x")),
    "stream: ends without [DONE]": _stream(*CHAT.said("fine"), code="", text="fine", end=b""),
    "stream: usage is cut after the end": _stream(
        *CHAT.said("fine"), code="", text="fine", end=b'data: {"usage": {"pro'
    ),
    "stream: NaN": _raw(b'data: {"usage":{"prompt_tokens":NaN}}\n\n' + _GOOD),
    "stream: delta is null": _raw(b'data: {"choices":[{"delta":null}]}\n\n' + _GOOD),
}

# Errors in the words of each provider, as a response and inside a stream.

_ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "rate limit": ({"type": "rate_limit_error"}, "LLM_RATE_LIMITED"),
    "quota": ({"code": "insufficient_quota"}, "LLM_QUOTA_EXCEEDED"),
    "server": ({"type": "server_error"}, "LLM_HTTP_ERROR"),
    "overloaded": ({"type": "overloaded_error"}, "LLM_HTTP_ERROR"),
    "busy in words": ({"message": "We are over capacity"}, "LLM_HTTP_ERROR"),
    "status as code": ({"code": 503}, "LLM_HTTP_ERROR"),
    "timeout": ({"type": "timeout"}, "LLM_TIMEOUT"),
    "key": ({"code": "invalid_api_key"}, "LLM_AUTH_FAILED"),
    "permission": ({"type": "permission_error"}, "LLM_AUTH_FAILED"),
    "overflow": ({"code": "context_length_exceeded"}, "LLM_CONTEXT_OVERFLOW"),
    "request": ({"type": "invalid_request_error"}, "LLM_HTTP_ERROR"),
    "model": ({"code": "model_not_found"}, "LLM_HTTP_ERROR"),
    "unknown type": ({"type": "odd", "message": "odd"}, _BAD),
    "empty words": ({"message": ""}, _BAD),
    "odd fields": ({"code": [1], "type": {"a": 1}, "message": {"b": 2}}, _BAD),
}
_CHAT_ERROR_OBJECTS = {
    f"error object: {name}": _stream(_PART, {"error": error}, code=code, text="part ")
    for name, (error, code) in _ERRORS.items()
} | {
    "error object: text": _stream(_PART, {"error": "just words"}, text="part "),
    "error object: event": _stream(
        _PART, b'event: error\ndata: {"error": {"code": 401}}', code="LLM_AUTH_FAILED", text="part "
    ),
    "error object: bare line": _stream(
        _PART, b'{"error": {"type": "authentication_error"}}', code="LLM_AUTH_FAILED", text="part "
    ),
    "error object: whole": _whole({"error": {"type": "authentication_error"}}, "LLM_AUTH_FAILED"),
    "error object: after the finish reason": _stream(
        *CHAT.said("fine"), {"error": {"code": 401}}, code="", text="fine"
    ),
    "error object: after the finish reason of calls": _stream(
        delta("tool_calls", content="part ", tool_calls=[call()]),
        {"error": {"type": "rate_limit_error"}},
        code="LLM_RATE_LIMITED",
        text="part ",
    ),
}


_TOO_LONG = "prompt is too long: 205000 tokens > 200000 maximum"
_TOO_LONG_GEMINI = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
_CREDIT = "Your credit balance is too low to access this"
_REFUSED = "LLM_HTTP_ERROR"


def _gemini(code: int, status: str, *details: Any, message: str = "no") -> dict[str, Any]:
    fields = {"code": code, "message": message, "status": status}
    return {"error": {**fields, "details": list(details)} if details else fields}


def _anthropic(kind: str, message: str = "no") -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _openai(**fields: Any) -> dict[str, Any]:
    return {"error": {"message": "no", **fields}}


_DAILY = {"violations": [{"quotaId": "RequestsPerDay"}], "@type": "google.rpc.QuotaFailure"}
_OPENAI_REFUSALS: dict[str, Case] = {
    "429 insufficient quota": refuses(
        "429 X", _openai(code="insufficient_quota"), "LLM_QUOTA_EXCEEDED"
    ),
    "429 spend limit": refuses(
        "429 X", _openai(code="project_spend_limit_exceeded"), "LLM_QUOTA_EXCEEDED"
    ),
    "400 context overflow": refuses(
        "400 X", _openai(code="context_length_exceeded"), "LLM_CONTEXT_OVERFLOW"
    ),
}
_BAD_KEY = _gemini(400, "INVALID_ARGUMENT", {"reason": "API_KEY_INVALID"})
_REFUSALS: dict[str, dict[str, Case]] = {
    "chat": _OPENAI_REFUSALS
    | {
        "400 bad Gemini key": refuses("400 X", _BAD_KEY, "LLM_AUTH_FAILED"),
        "400 credit too low": refuses("400 X", _openai(message=_CREDIT), "LLM_QUOTA_EXCEEDED"),
    },
    "responses": _OPENAI_REFUSALS,
    "azure": _OPENAI_REFUSALS
    | {
        "404 no deployment": refuses("404 X", _openai(code="DeploymentNotFound"), _REFUSED),
        "401 code as text": refuses("401 X", _openai(code="401"), "LLM_AUTH_FAILED"),
    },
    "anthropic": {
        "400 too long": refuses(
            "400 X", _anthropic("invalid_request_error", _TOO_LONG), "LLM_CONTEXT_OVERFLOW"
        ),
        "400 credit": refuses(
            "400 X", _anthropic("invalid_request_error", _CREDIT), "LLM_QUOTA_EXCEEDED"
        ),
        "402 billing": refuses("402 X", _anthropic("billing_error"), "LLM_QUOTA_EXCEEDED"),
        "403 permission": refuses("403 X", _anthropic("permission_error"), "LLM_AUTH_FAILED"),
        "404 model": refuses("404 X", _anthropic("not_found_error"), _REFUSED, says="model's name"),
        "413 too large": refuses("413 X", _anthropic("request_too_large"), _REFUSED),
        "429 of a month": refuses(
            "429 X",
            _anthropic("rate_limit_error"),
            "LLM_QUOTA_EXCEEDED",
            "anthropic-ratelimit-requests-remaining: 0",
        ),
    },
    "google": {
        "400 key": refuses("400 X", _BAD_KEY, "LLM_AUTH_FAILED"),
        "400 key in a list": refuses("400 X", [_BAD_KEY], "LLM_AUTH_FAILED"),
        "400 too long": refuses(
            "400 X",
            _gemini(400, "INVALID_ARGUMENT", message=_TOO_LONG_GEMINI),
            "LLM_CONTEXT_OVERFLOW",
        ),
        "403 permission": refuses("403 X", _gemini(403, "PERMISSION_DENIED"), "LLM_AUTH_FAILED"),
        "404 model": refuses("404 X", _gemini(404, "NOT_FOUND"), _REFUSED, says="model's name"),
        "429 of a day": refuses(
            "429 X", _gemini(429, "RESOURCE_EXHAUSTED", _DAILY), "LLM_QUOTA_EXCEEDED"
        ),
        "429 for an hour": refuses(
            "429 X",
            _gemini(429, "RESOURCE_EXHAUSTED", {"retryDelay": "3600s"}),
            "LLM_RATE_LIMITED",
            says="3,600",
        ),
    },
    "ollama": {
        "404 model": refuses(
            "404 X", {"error": "model 'm' not found"}, _REFUSED, says="ollama pull"
        ),
        "401 sign in": refuses(
            "401 X",
            {"error": "unauthorized", "signin_url": "https://ollama.com/connect"},
            "LLM_AUTH_FAILED",
            says="Sign in at",
        ),
        "400 no chat": refuses("400 X", {"error": '"m" does not support chat'}, _REFUSED),
    },
}

_INSIDE: dict[str, dict[str, tuple[Any, str]]] = {
    "responses": {
        "event": (
            {"type": "error", "code": "rate_limit_exceeded", "message": "m"},
            "LLM_RATE_LIMITED",
        ),
        "failed": (
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "server_error", "message": "m"}},
            },
            _REFUSED,
        ),
        "failed without a reason": (
            {"type": "response.failed", "response": {"status": "failed"}},
            _BAD,
        ),
        "as in Chat": (b'data: {"error": {"code": 401}}', "LLM_AUTH_FAILED"),
    },
    "anthropic": {
        "overloaded": (_anthropic("overloaded_error", "Overloaded"), _REFUSED),
        "rate limit": (_anthropic("rate_limit_error"), "LLM_RATE_LIMITED"),
        "server": (_anthropic("api_error"), _REFUSED),
        "timeout": (_anthropic("timeout_error"), "LLM_TIMEOUT"),
        "without a name": (b'data: {"type":"error","error":{"type":"api_error"}}', _REFUSED),
        "only a name": (b"event: error\ndata: {}", _BAD),
    },
    "google": {
        "event": (_gemini(503, "UNAVAILABLE", message="m"), _REFUSED),
        "bare lines": (
            json.dumps(_gemini(429, "RESOURCE_EXHAUSTED"), indent=2).encode(),
            "LLM_RATE_LIMITED",
        ),
        "in a list": (b'data: [{"error": {"code": 504}}]', "LLM_TIMEOUT"),
        "a call that cannot be read": (
            {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]},
            _BAD,
        ),
    },
    "ollama": {
        "line": ({"error": "an error was encountered while running the model"}, _BAD),
        "object": ({"error": {"code": 503, "message": "m"}}, _REFUSED),
    },
}


def own_errors(wire: Dialect) -> dict[str, Case]:
    """Errors as the provider writes them."""
    part = wire.part("part ")
    inside = {
        f"error object: {name}": _streams(wire, *part, event, code=code, text="part ")
        for name, (event, code) in _INSIDE.get(wire.name, {}).items()
    }
    also = _CHAT_ERROR_OBJECTS if wire is CHAT else {}
    return {**_REFUSALS[wire.name], **inside, **also}


# Tool calls.


def then_goes_on(wire: Dialect, *events: Any) -> Fault:
    """Streams an answer, and says fine when it is asked again."""

    async def serve(visit: Visit) -> None:
        if visit.nth > 1:
            return await fine(visit)
        visit.keep = True
        return await visit.send(wire.head(), chunked(wire.stream(*events)), b"0\r\n\r\n")

    return serve


_DEEP = '{"at": ' + "[" * 3_000 + "]" * 3_000 + "}"

_CHAT_CALLS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
    "no id": ([call(id=None)], ("ok",)),
    "null as id": ([call(id="null")], ("ok",)),
    "the same id twice": ([call(), call(index=1)], ("ok", "ok")),
    "no index": ([call(index=None), call(id="c2", index=None)], ("ok", "ok")),
    "gaps in the index": ([call(index=3), call(id="c2", index=10**12)], ("ok", "ok")),
    "index is negative": ([call(index=-7)], ("ok",)),
    "index is a text": ([call(index="zero")], ("ok",)),
    "every index is 0": ([call(), call(id="c2")], ("ok", "ok")),
    "id is a number": ([call(id=7)], ("ok",)),
    "arguments are an object": ([call(arguments={"at": "x"})], ("ok",)),
    "arguments are not JSON": ([call(arguments='{"at": ')], ("E_INVALID_ARGUMENTS",)),
    "arguments are a list": ([call(arguments="[1]")], ("E_INVALID_ARGUMENTS",)),
    "arguments are a number": ([call(arguments=7)], ("E_INVALID_ARGUMENTS",)),
    "arguments are too deep": ([call(arguments=_DEEP)], ("E_INVALID_ARGUMENTS",)),
    "arguments are null": ([call(arguments=None)], ("E_INVALID_ARGUMENTS",)),
}
"""Calls of one answer, and what becomes of each; then the model is asked again and says fine."""
_CALLS: dict[str, tuple[tuple[Called, ...], tuple[str, ...]]] = {
    "two": ((Called(), Called("c2")), ("ok", "ok")),
    "no ids": ((Called(None), Called(None)), ("ok", "ok")),
    "one id for two": ((Called(), Called()), ("ok", "ok")),
    "arguments of no tool": ((Called(arguments={"to": "x"}),), ("E_INVALID_ARGUMENTS",)),
    "unknown tool": ((Called(name="rm_rf"),), ("E_UNKNOWN_TOOL",)),
    "tool without a name": ((Called(name=""),), ("E_UNKNOWN_TOOL",)),
}


def calls(wire: Dialect) -> dict[str, tuple[Case, tuple[str, ...]]]:
    """Cases of calls, and the outcome of each call: `ok` or its code."""
    found = {name: (wire.said("", *made), ends) for name, (made, ends) in _CALLS.items()}
    if wire is CHAT:
        for name, (garbled, ends) in _CHAT_CALLS.items():
            events = [delta(tool_calls=[one]) for one in garbled]
            found[name] = ([*events, delta("tool_calls")], ends)
    return {
        f"call: {name}": (Case(then_goes_on(wire, *events), text="fine", asked=2), ends)
        for name, (events, ends) in found.items()
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
        **usages(wire),
        **streams(wire),
        **(CHAT_ONLY if wire is CHAT else {}),
        **own_errors(wire),
    }


TABLES = {wire.name: fault_table(wire) for wire in DIALECTS}
CALLS = {wire.name: calls(wire) for wire in DIALECTS}
