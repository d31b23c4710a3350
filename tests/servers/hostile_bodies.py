"""The fault table of what a 200 holds: bodies, streams, error objects, usage, tool calls."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from servers.hostile_cases import Case, sends
from servers.hostile_server import (
    Fault,
    Visit,
    call,
    chunked,
    completion,
    delta,
    fine,
    said,
    sse,
    stream_head,
    whole,
)

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


def _choice(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": "fine", **message}}]}


BODIES: dict[str, Case] = {
    "web page": _whole(b"<!doctype html>\n<p>Sign in</p>", kind="text/html"),
    "nothing": _whole(b""),
    "spaces": _whole(b" \r\n\r\n "),
    "null": _whole(None),
    "a list": _whole([]),
    "an object": _whole({}),
    "a number": _whole(42),
    "a text": _whole("hello"),
    "true": _whole(True),
    "choices is null": _whole({"choices": None}, asked=3),
    "no choice": _whole({"choices": []}, asked=3),
    "choices of null": _whole({"choices": [None]}, asked=3),
    "choices is an object": _whole({"choices": {"message": {}}}, asked=3),
    "message is null": _whole({"choices": [{"message": None}]}, asked=3),
    "message is a text": _whole({"choices": [{"message": "hi"}]}, asked=3),
    "content is a number": _whole(_choice(content=5)),
    "content is an object": _whole(_choice(content={"text": "x"}), "", text='{"text":"x"}'),
    "tool_calls is an object": _whole(_choice(tool_calls={"id": "x"})),
    "tool_calls of null": _whole(_choice(tool_calls=[None])),
    "broken JSON": _whole(b'{"choices": [}'),
    "JSON cut short": _whole(json.dumps(completion()).encode()[:-8]),
    "bad UTF-8": _whole(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
    "too deep": _whole(b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "too deep for Python": _whole(b'{"a":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_001),
    "a number that is too long": _whole(b'{"choices":[' + b"9" * 5_000 + b"]}"),
    "another type but parseable": _whole(completion(), "", kind="text/plain"),
    "byte order mark": _whole(b"\xef\xbb\xbf" + json.dumps(completion()).encode(), ""),
    "blank lines first": _whole(b"\r\n\r\n  " + json.dumps(completion()).encode(), ""),
    "lone surrogate": _whole(json.dumps(completion("fine\ud800")).encode(), "", text="fine\ufffd"),
    "index is a text": _whole({"choices": [{"index": "x", "message": {"content": "fine"}}]}, ""),
    "finish reason is a number": _whole(
        {"choices": [{"message": {"content": "fine"}, "finish_reason": 7}]}, ""
    ),
    "model is an object": _whole({**completion(), "model": {"a": [1]}}, ""),
    "refusal is a number": _whole(_choice(refusal=7), ""),
    "reasoning is a list": _whole(_choice(reasoning=[1]), ""),
}

_USAGES: dict[str, bytes] = {
    "NaN": b'{"prompt_tokens": NaN, "completion_tokens": Infinity}',
    "negative": b'{"prompt_tokens": -5, "completion_tokens": 2}',
    "huge": b'{"prompt_tokens": 1e308, "completion_tokens": 99999999999999999999999}',
    "text": b'{"prompt_tokens": "12", "completion_tokens": "x"}',
    "a list": b"[1, 2]",
    "a number": b"7",
    "null details": b'{"prompt_tokens": 1, "prompt_tokens_details": null}',
    "details of lists": b'{"prompt_tokens": 1, "prompt_tokens_details": [1]}',
}
_UNTIL_USAGE = json.dumps(completion()).encode()[:-1] + b', "usage": '
USAGES = {
    f"usage: {name}": _whole(_UNTIL_USAGE + text + b"}", "") for name, text in _USAGES.items()
}


def _stream(
    *events: Any, code: str = _BAD, text: str = "", end: bytes = b"data: [DONE]\n\n"
) -> Case:
    body = sse(*events, end=end)
    return Case(sends(stream_head(), chunked(body), b"0\r\n\r\n"), code, text)


def _raw(body: bytes, code: str = "", text: str = "fine", kind: str = "text/event-stream") -> Case:
    return Case(sends(whole(body, kind=kind)), code, text)


_GOOD = sse(*said("fine"))
_PART = delta(content="part ")

STREAMS: dict[str, Case] = {
    "stream: web page": _raw(b"<!doctype html>\n<p>no</p>\n\n", _BAD, ""),
    "stream: nothing": _raw(b"", _BAD, ""),
    "stream: comments, then the end": _raw(b": a\n\n: b\n\n", _BAD, ""),
    "stream: only [DONE]": _stream(),
    "stream: no answer": replace(_stream({"choices": []}, {"choices": None}), asked=3),
    "stream: without an end": _stream(_PART, text="part ", end=b""),
    "stream: cut inside an event": _stream(_PART, text="part ", end=b'data: {"choices":[{"del'),
    "stream: a chunk is a list": _stream(_PART, [1], text="part "),
    "stream: a chunk is a number": _stream(7),
    "stream: choices is an object": _stream(_PART, {"choices": {"a": 1}}, text="part "),
    "stream: choices of numbers": _stream({"choices": [7]}),
    "stream: delta is a text": _stream({"choices": [{"delta": "x"}]}),
    "stream: content is a number": _stream(_PART, delta(content=7), text="part "),
    "stream: broken JSON": _stream(_PART, b"data: {nonsense}", text="part "),
    "stream: bad UTF-8": _stream(_PART, b'data: {"choices":"\xff"}', text="part "),
    "stream: too deep": _stream(_PART, b"data: " + b"[" * 50_000, text="part "),
    "stream: tool_calls is a text": _stream(delta(tool_calls="x")),
    "stream: ends without [DONE]": _stream(*said("fine"), code="", text="fine", end=b""),
    "stream: usage is cut after the end": _stream(
        *said("fine"), code="", text="fine", end=b'data: {"usage": {"pro'
    ),
    "stream: byte order mark": _raw(b"\xef\xbb\xbf" + _GOOD),
    "stream: CRLF": _raw(_GOOD.replace(b"\n", b"\r\n")),
    "stream: CR": _raw(_GOOD.replace(b"\n", b"\r")),
    "stream: comments between": _raw(b": hi\n\n" + _GOOD.replace(b"\n\n", b"\n\n: ping\n\n")),
    "stream: unknown fields": _raw(b"id: 7\nretry: 1\nfoo: bar\n" + _GOOD),
    "stream: no space after the colon": _raw(_GOOD.replace(b"data: ", b"data:")),
    "stream: another type but parseable": _raw(_GOOD, kind="text/html"),
    "stream: answered whole": _raw(json.dumps(completion()).encode(), kind="application/json"),
    "stream: data after the end": _raw(_GOOD + b"data: {nonsense\n\n" * 50),
    "stream: line separators in a text": _stream(
        *said("a\u2028b\x85c"), code="", text="a\u2028b\x85c"
    ),
    "stream: lone surrogate": _stream(*said("fine\ud83d"), code="", text="fine\ufffd"),
    "stream: NaN": _raw(b'data: {"usage":{"prompt_tokens":NaN}}\n\n' + _GOOD),
    "stream: delta is null": _raw(b'data: {"choices":[{"delta":null}]}\n\n' + _GOOD),
}  # fmt: skip


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
ERROR_OBJECTS = {
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
        *said("fine"), {"error": {"code": 401}}, code="", text="fine"
    ),
    "error object: after the finish reason of calls": _stream(
        delta("tool_calls", content="part ", tool_calls=[call()]),
        {"error": {"type": "rate_limit_error"}},
        code="LLM_RATE_LIMITED",
        text="part ",
    ),
}


def _then(calls: list[dict[str, Any]]) -> Fault:
    async def serve(visit: Visit) -> None:
        if visit.nth > 1:
            return await fine(visit)
        visit.keep = True
        events = [delta(tool_calls=[one]) for one in calls]
        body = sse(*events, delta("tool_calls"))
        return await visit.send(stream_head(), chunked(body), b"0\r\n\r\n")

    return serve


_DEEP = '{"at": ' + "[" * 3_000 + "]" * 3_000 + "}"

CALLS: dict[str, tuple[list[dict[str, Any]], tuple[str, ...]]] = {
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
    "unknown tool": ([call("rm_rf")], ("E_UNKNOWN_TOOL",)),
    "tool without a name": ([call("")], ("E_UNKNOWN_TOOL",)),
}
"""Calls of one answer, and what becomes of each; then the model is asked again and says fine."""

CALL_CASES = {
    f"call: {name}": Case(_then(calls), text="fine", asked=2) for name, (calls, _) in CALLS.items()
}
