"""What Gemini answers, what that comes to, what it needs back, and what it is sent.

`#n` in an id is the n-th line of the list of quirks (providers.md 10). Bytes after providers.md 7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from wires.chat_requests import BLUE, FAR, LEFT, PDF, RED, TABLE, called, obj, result, user
from wires.harness import (
    ABSENT,
    JSON,
    TOOLS,
    AnswerCase,
    Exactly,
    ModelsCase,
    RequestCase,
    WireSetup,
    answer_case,
    ask,
)

from nbagent.contracts.chat import ChatRequest, Message, Part, TextPart, ToolCall, ToolSpec

WIRE_URL = "https://generativelanguage.googleapis.com/v1"
DUMMY = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="
HTTP, BAD = "LLM_HTTP_ERROR", "LLM_BAD_RESPONSE"
READ = ToolSpec(name="fs.read", description="Read.")
SIGNED: JSON = {"thoughtSignature": "QUJD"}
NOTHING: JSON = {"text": "", **SIGNED}
"""What a last chunk may hold alone."""


def text(words: str, **more: Any) -> JSON:
    """A part of text."""
    return {"text": words, **more}


def call(name: str = "b", id: str | None = None, args: Any = None, **more: Any) -> JSON:
    """A part that is a call."""
    given = {"id": id, "name": name, "args": args}
    return {"functionCall": {key: it for key, it in given.items() if it is not None}, **more}


def chunk(*parts: Any, end: str = "", at: int = 0, **more: Any) -> JSON:
    """A chunk of one candidate; `more`: fields of the chunk."""
    content = {"content": {"role": "model", "parts": list(parts)}} if parts else {}
    word = {"finishReason": end} if end else {}
    return {"candidates": [{"index": at, **content, **word}], **more}


def sse(*chunks: Any) -> bytes:
    """An event stream of JSON chunks; bytes stand as they are."""
    events = [
        item if isinstance(item, bytes) else b"data: " + json.dumps(item).encode() + b"\n\n"
        for item in chunks
    ]
    return b"".join(events)


def both(id: str, *parts: Any, end: str = "STOP", **given: Any) -> AnswerCase:
    """A case whose stream brings each part in a chunk of its own."""
    more = given.pop("more", {})
    stream = sse(*map(chunk, parts), chunk(end=end, **more))
    body = json.dumps(chunk(*parts, end=end, **more)).encode()
    return answer_case(id, body=body, stream=stream, **given)


def streamed(id: str, *chunks: Any, **given: Any) -> AnswerCase:
    """A case that only streams."""
    return answer_case(id, stream=sse(*chunks), **given)


STEP: JSON = {"promptTokenCount": 30, "totalTokenCount": 31, "candidatesTokenCount": 1}
COUNTS: JSON = {
    "promptTokenCount": 30, "toolUsePromptTokenCount": 2, "cachedContentTokenCount": 10,
    "candidatesTokenCount": 8, "thoughtsTokenCount": 40, "totalTokenCount": 80,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 30}],
}  # fmt: skip
USED: JSON = {
    "prompt_tokens": 32, "completion_tokens": 48, "total_tokens": 80, "cached_tokens": 10,
    "reasoning_tokens": 40,
}  # fmt: skip
X = chunk(text("x"))
LOOK = call("fs__look", "fc1", {"at": "a"}, **SIGNED)
SECOND = call("b", "fc2", {"n": 1})
LOOKED = [("fs.look", {"at": "a"})]
ONE = [("b", {"n": 1})]
GREETING = "Grüße \u2028 both"
OK = '{"ok":true,"data":1}'


def given_back(name: str, id: str | None = None) -> Any:
    """The result of a call, exactly."""
    echoed = {"id": id} if id else {}
    return {"functionResponse": Exactly({"name": name, "response": {"output": OK}, **echoed})}


def next_contents(*contents: Any) -> JSON:
    """The next request, behind the person's words."""
    return {"contents": [..., *contents]}


def model(*parts: Any) -> Any:
    """A content of the model's, exactly so."""
    return Exactly({"role": "model", "parts": list(parts)})


def thorough() -> Iterator[AnswerCase]:
    """Those that are cut everywhere and get every wrong value."""
    thought = text("Hm", thought=True)
    extra: JSON = {"modelVersion": "gemini-3.8-flash", "responseId": "r1"}
    whole = chunk(thought, text(GREETING), LOOK, SECOND, end="STOP", usageMetadata=COUNTS, **extra)
    raw = json.dumps(chunk(text(GREETING[:3])), ensure_ascii=False).encode()
    rest = json.dumps(chunk(text(GREETING[3:])), ensure_ascii=False).encode()
    chunks = [
        chunk(thought, usageMetadata=STEP, promptFeedback={}, **extra),
        b": keep-alive\n\ndata: " + raw + b"\n\ndata: " + rest + b"\n\n",
        chunk(LOOK, usageMetadata=STEP),
        chunk(SECOND),
        chunk(end="STOP", usageMetadata=COUNTS, **extra),
    ]
    yield answer_case(
        "thoughts, text, two calls, usage of each chunk #1 #6 #7 #9 #15 #35", thorough=True,
        body=json.dumps(whole, indent=1).encode(), stream=sse(*chunks), text=GREETING,
        reasoning="Hm", calls=[*LOOKED, *ONE], ids=["fc1", "fc2"], usage=USED,
        back=next_contents(
            model(thought, text(GREETING), LOOK, SECOND),
            {"role": "user", "parts": [given_back("fs__look", "fc1"), given_back("b", "fc2")]}),
    )  # fmt: skip
    small = {"promptTokenCount": 5, "candidatesTokenCount": 2}
    body = b"\n" + json.dumps(chunk(text("One two"), end="STOP", usageMetadata=small)).encode()
    stream = sse(chunk(text("One ")), chunk(text("two"), end="STOP", usageMetadata=small))
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    yield answer_case(
        "text with usage in the last chunk", body=body, stream=stream, text="One two",
        usage=usage, raw=ABSENT, thorough=True,
    )  # fmt: skip


FILTERED = (
    *("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"),
    *("IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION", "MODEL_ARMOR", "ESCALATION"),
    "PUP_LIMITED_DISABLED",
)
FAILED = (
    *("TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE", "LANGUAGE"),
    *("OTHER", "NO_IMAGE", "IMAGE_OTHER"),
)
FINISH = {
    **dict.fromkeys(("STOP", "BORED", "FINISH_REASON_UNSPECIFIED"), "stop"),
    **dict.fromkeys(("MAX_TOKENS", "CONTINUATION"), "length"),
    **dict.fromkeys(FILTERED, "content_filter"),
    **dict.fromkeys(FAILED, "error"),
}
DEEP: Any = {"a": json.loads("[" * 300 + "]" * 300)}
# id: parts, and what they come to; whole and streamed.
MESSAGES: dict[str, tuple[list[Any], JSON]] = {
    "one call without an id #12": (
        [call("fs__look", args={"at": "a"}, **SIGNED)],
        {"calls": LOOKED, "back": next_contents(
            model(call("fs__look", args={"at": "a"}, **SIGNED)),
            {"parts": [given_back("fs__look")]})}),
    "no arguments #14": ([call("b", "x")], {"calls": [("b", {})], "ids": ["x"]}),
    "two calls under one id #60": (
        [call("b", "x", {"n": 1}), call("c", "x", {"n": 2})],
        {"calls": [*ONE, ("c", {"n": 2})], "ids": ["x", "x_2"], "back": next_contents(
            {"parts": [{"functionCall": {"id": "x"}, "thoughtSignature": DUMMY},
                       {"functionCall": {"id": "x_2"}, "thoughtSignature": ABSENT}]},
            {"parts": [given_back("b", "x"), given_back("c", "x_2")]})}),
    "parallel calls of one tool": (
        [call("b", "x", {"n": 1}), call("b", "y", {"n": 1})], {"calls": ONE * 2}),
    "arguments that are a text": ([call("b", "x", "{oh")], {"calls": [("b", "{oh")]}),
    "arguments that are a list": ([call("b", "x", [1])], {"calls": [("b", "[1]")]}),
    "arguments nested too deeply are in no record": (
        [call("b", "x", DEEP, **SIGNED)],
        {"calls": [("b", '"arguments nested too deeply, or with a number that is too large"')],
         "raw": {"parts": ABSENT}, "back": next_contents({"parts": [
             {"functionCall": {"id": "x", "name": "b"}, "thoughtSignature": DUMMY}]}, ...)}),
    "an empty call is none": (
        [text("x"), {"functionCall": {}, **SIGNED}],
        {"text": "x", "back": next_contents(model(text("x")))}),
    "names with what leaks around them #59": (
        [call(name) for name in ("default_api.fs__look", "default_api:fs__look", "fs.look", "new")],
        {"calls": [("fs.look", {})] * 3 + [("new", {})]}),
    "a signed part is not joined #35": (
        [text("a"), text("b"), text("c", **SIGNED), text("d"), text("e")],
        {"text": "abcde", "back": next_contents(
            model(text("ab"), text("c", **SIGNED), text("de")))}),
    "a signature in an empty text at the end #36": (
        [text("x"), NOTHING], {"text": "x", "back": next_contents(model(text("x"), NOTHING))}),
    "a signature with nothing is not sent": (
        [text("x"), SIGNED], {"text": "x", "back": next_contents(model(text("x")))}),
    "thoughts and text are not joined": (
        [text("a", thought=True), text("b", thought=True), text("c")],
        {"text": "c", "reasoning": "ab", "back": next_contents(
            model(text("ab", thought=True), text("c")))}),
    "parts of other kinds go back": (
        [text("x"), {"executableCode": {"code": "1", "language": "PYTHON"}}],
        {"text": "x", "back": next_contents(
            model(text("x"), {"executableCode": {"code": "1", "language": "PYTHON"}}))}),
    "a call written as plain text is text #58": (
        [text("<tool_call>{}</tool_call>")], {"text": "<tool_call>{}</tool_call>"}),
    "no parts at all, an empty answer #40": ([], {"usage": {}}),
    "thoughts took all the room #40": (
        [], {"end": "MAX_TOKENS", "finish": "length", "usage": {
            "prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12, "reasoning_tokens": 7},
             "more": {"usageMetadata": {"promptTokenCount": 5, "thoughtsTokenCount": 7}}}),
    "odd counts": (
        [text("x")],
        {"text": "x", "usage": {"prompt_tokens": 5, "total_tokens": 5, "cached_tokens": 5},
         "more": {"usageMetadata": {
             "promptTokenCount": 5, "candidatesTokenCount": -1, "totalTokenCount": "7",
             "cachedContentTokenCount": 9}}}),
    "an unknown end of nothing": ([], {"end": "BORED", "finish": "error"}),
    "newlines before the first word #34": ([text("\n\n"), text("a\n")], {"text": "a\n"}),
    "a lone surrogate and NaN": (
        [text("a\ud800b")], {"text": "a\ufffdb", "usage": {},
                             "more": {"usageMetadata": {"promptTokenCount": float("nan")}}}),
    "surrogate halves in two parts": ([text("a\ud83d"), text("\ude00b")], {"text": "a\U0001f600b"}),
}  # fmt: skip


def answers() -> Iterator[AnswerCase]:
    """Text, calls, finish reasons, counts."""
    for id, (parts, expect) in MESSAGES.items():
        yield both(id, *parts, **expect)
    for word, finish in FINISH.items():
        raw = ABSENT if word in ("STOP", "MAX_TOKENS", "CONTINUATION") else {"finish_reason": word}
        yield both(f"ended by {word}", text("x"), end=word, text="x", finish=finish, raw=raw)
    for word in ("MAX_TOKENS", "SAFETY", "OTHER"):
        id = f"no call counts as whole: {word} #18"
        yield both(id, SECOND, end=word, calls=ONE, finish=FINISH[word])
    told: JSON = {"finishReason": "STOP", "groundingMetadata": {"webSearchQueries": ["x"]}}
    told = {"candidates": [{"content": {"parts": [text("x")]}, **told}], "modelStatus": {}}
    raw = {"unknown": {"groundingMetadata": ...}}
    given: JSON = {"text": "x", "raw": raw, "back": next_contents(model(text("x")))}
    yield answer_case("text, unknown fields #21", body=json.dumps(told).encode(), **given)


BLOCKED: JSON = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": STEP}
LATE: JSON = {"candidates": [{"content": {"parts": [NOTHING]}}], "usageMetadata": COUNTS}
HOP: JSON = {"finishReason": "CONTINUATION", "continuationToken": "VE9L", "index": 0}
HOP_USED = {"promptTokenCount": 4, "candidatesTokenCount": 3, "totalTokenCount": 7}
MALFORMED: JSON = {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": "Malformed: b("}
FINE = sse(chunk(text("fine"), end="STOP"))
BOOM: JSON = {
    "error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}
}


def hop(*parts: Any, **more: Any) -> JSON:
    """The last chunk of an answer that has to be asked for further."""
    return {"candidates": [{**HOP, "content": {"parts": list(parts)}}], **more}


def twice(id: str, first: JSON, then: bytes, **given: Any) -> AnswerCase:
    """A case of two requests, the first one whole and streamed."""
    body = json.dumps(first).encode()
    return answer_case(
        id, **{"body": body, "stream": sse(first), "then": then, "asked": 2, **given}
    )


CALLS, B = sse(chunk(SECOND, end="STOP")), chunk(text("b"), end="STOP")
# id: the last chunk of the first hop, the second hop, what both come to.
HOPS: dict[str, tuple[JSON, bytes, JSON]] = {
    "text, calls and counts of both": (
        hop(text("One "), usageMetadata=HOP_USED),
        sse(chunk(text("two")), chunk(SECOND, **SIGNED),
            chunk(LOOK, end="STOP", usageMetadata=HOP_USED)),
        {"text": "One two", "calls": [*ONE, *LOOKED],
         "usage": {"prompt_tokens": 8, "completion_tokens": 6, "total_tokens": 14},
         "back": next_contents(
             model(text("One "), text("two"), {**SECOND, "thoughtSignature": DUMMY}, LOOK), ...)}),
    "a signature of the first one stays": (
        hop(text("a", **SIGNED)), sse(B),
        {"text": "ab", "back": next_contents(model(text("a", **SIGNED), text("b")))}),
    "calls in the first one": (hop(LOOK), CALLS, {"calls": [*LOOKED, *ONE]}),
    "length in the second one": (
        hop(text("a")), sse(chunk(end="MAX_TOKENS")), {"text": "a", "finish": "length"}),
    "has an end": (
        hop(text("a")), sse(hop(text("a"))), {"text": "a" * 17, "finish": "length", "asked": 17}),
    **{f"{id} behind {next(iter(part))}": (
        hop(part), broken, {"error": HTTP if id == "an error" else BAD})
       for part in (text("One "), LOOK)
       for id, broken in {
           "nothing": b"\n", "half an event": CALLS[:-20], "no end": sse(chunk(SECOND)),
           "an error": sse(BOOM), "no answer": sse({"candidates": []})}.items()},
}  # fmt: skip


def hops() -> Iterator[AnswerCase]:
    """Answers in parts, and calls that nobody can read."""
    for id, (first, then, expect) in HOPS.items():
        yield twice(f"CONTINUATION: {id}", first, then, **expect)
    for word in ("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"):
        failed: JSON = {"candidates": [{**MALFORMED, "finishReason": word}]}
        yield twice(f"{word}: asked once more", failed, FINE, text="fine")
        id = f"{word}: not asked twice more"
        yield twice(id, failed, sse(failed), error=BAD, words="Malformed: b(")
    late = sse(chunk(SECOND), {"candidates": [MALFORMED]})
    yield answer_case("MALFORMED behind a call runs nothing", stream=late, then=FINE, error=BAD)


TYPE = "type.googleapis.com/google.rpc."
BAD_KEY = [{"@type": f"{TYPE}ErrorInfo", "reason": "API_KEY_INVALID"}]
PER_DAY = [
    {"@type": f"{TYPE}QuotaFailure", "violations": [{"quotaId": "RequestsPerDayPerProject"}]}
]
IN_AN_HOUR = [{"@type": f"{TYPE}RetryInfo", "retryDelay": "3600s"}]
AT_ONCE = [{"@type": f"{TYPE}RetryInfo", "retryDelay": "0s"}]
TOO_LONG = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
# status, status word, more; code, and whether it may be tried again.
STATUSES: list[tuple[int, str, JSON, str, bool]] = [
    (400, "INVALID_ARGUMENT", {}, HTTP, False),
    (400, "INVALID_ARGUMENT", {"details": BAD_KEY}, "LLM_AUTH_FAILED", False),
    (400, "FAILED_PRECONDITION", {}, HTTP, False),
    (400, "INVALID_ARGUMENT", {"message": TOO_LONG}, "LLM_CONTEXT_OVERFLOW", False),
    (401, "UNAUTHENTICATED", {}, "LLM_AUTH_FAILED", False),
    (403, "PERMISSION_DENIED", {}, "LLM_AUTH_FAILED", False),
    (404, "NOT_FOUND", {}, HTTP, False),
    (429, "RESOURCE_EXHAUSTED", {}, "LLM_RATE_LIMITED", True),
    (429, "RESOURCE_EXHAUSTED", {"details": [*PER_DAY, *AT_ONCE]}, "LLM_QUOTA_EXCEEDED", False),
    (499, "CANCELLED", {}, HTTP, False),
    (500, "INTERNAL", {}, HTTP, True),
    (503, "UNAVAILABLE", {}, HTTP, True),
    (504, "DEADLINE_EXCEEDED", {}, "LLM_TIMEOUT", True),
]
NO_ANSWERS = (
    b"", b"null", b"[]", b"{}", b"[" * 700 + b"]" * 700, b'{"candidates": []}', sse(X),
    b'{"candidates": null, "usageMetadata": {}}', b'{"candidates": [{"content": {}}]}',
    b'{"candidates": 3}', b'{"candidates": [{"content": {"parts": 3}}]}', b'{"candidates": [',
    b'{"candidates": [{"index": 1, "finishReason": "STOP"}]}',
)  # fmt: skip


def errors() -> Iterator[AnswerCase]:
    """Errors by status and in streams."""
    for n, (status, word, more, code, again) in enumerate(STATUSES):
        error = {"error": {"code": status, "message": "because", "status": word, **more}}
        body = json.dumps([error] if n % 2 else error, indent=2).encode()
        quirk = " #39 #56" if "details" in more else ""
        words = more.get("message", "because")[:20]
        expect: JSON = {"error": code, "words": words, "retryable": again}
        yield answer_case(f"status {status}, {n}{quirk}", status=status, body=body, **expect)
        wire = [sse(error), body, b"data: [" + json.dumps(error).encode() + b"]\n\n"][n % 3]
        yield answer_case(f"in a stream {n}", stream=sse(X) + wire, http_status=status, **expect)
    hour = json.dumps({"error": {"code": 429, "message": "no", "details": IN_AN_HOUR}}).encode()
    soon = hour.replace(b"3600s", b"0.2s")
    limited: JSON = {"status": 429, "headers": {"retry-after": ""}}
    yield answer_case("a wait of an hour is not waited #57", body=hour, then=FINE,
                      error="LLM_RATE_LIMITED", **limited)  # fmt: skip
    yield answer_case("a short wait", body=soon, then=FINE, text="fine", asked=2, **limited)
    for n, body in enumerate(NO_ANSWERS):
        yield answer_case(f"no answer, {n}: {body[:30]!r}", body=body, error=BAD)
    for n, blocked in enumerate((BLOCKED, {**BLOCKED, "candidates": None})):
        body, raw = json.dumps(blocked).encode(), {"block_reason": "SAFETY"}
        given: JSON = {"stream": sse(blocked), "finish": "content_filter", "raw": raw}
        yield answer_case(f"a blocked prompt {n} #40", body=body, **given)
    array = json.dumps([X, chunk(text("y"), end="STOP")], indent=1).encode()
    yield answer_case("a stream that is one array", body=array, stream=array, text="xy")
    bare = b"\n".join(json.dumps(it).encode() for it in (X, chunk(text("y"), end="STOP")))
    yield answer_case("chunks without data:", stream=bare, text="xy")


END = chunk(end="STOP")


def ends() -> Iterator[AnswerCase]:
    """What comes behind the reason to finish: there is no other last word."""
    back = next_contents(model(text("x"), NOTHING))
    last: JSON = {"usage": USED, "text": "x", "back": back}
    yield streamed("a signature and counts behind the end #36", X, END, LATE, **last)
    yield streamed("another candidate is not read", chunk(text("y"), at=1), X, END,
                   chunk(end="MAX_TOKENS", at=1), text="x")  # fmt: skip
    yield streamed("a gateway's [DONE]", X, END, b"data: [DONE]\n\n", text="x")
    broken: dict[str, JSON] = {
        "a reset": {"ending": "reset"}, "a reset without framing": {"ending": "reset",
                                                                   "framing": "none"},
        "a close": {"ending": "close"}, "too few bytes": {"ending": "close", "framing": "length"},
    }  # fmt: skip
    for id, how in broken.items():
        yield streamed(f"behind calls: {id}", chunk(SECOND), END, error=HTTP, **how)
        yield streamed(f"behind a text: {id}", X, END, text="x", **how)
        yield streamed(f"before the end: {id}", X, chunk(SECOND), error=HTTP, **how)
    yield streamed("behind calls: an error", chunk(SECOND), END, BOOM, error=HTTP)
    yield streamed("behind calls: half an event", chunk(SECOND), END, b'data: {"err', error=BAD)
    note = "The server sent an error behind the answer"
    yield streamed("behind a text: an error", X, END, BOOM, text="x", notes=[note])
    for framing in ("chunked", "length", "none"):
        id = f"a clean end, framing {framing}"
        yield streamed(id, chunk(SECOND, end="STOP"), framing=framing, calls=ONE)


def back_cases() -> Iterator[AnswerCase]:
    """What goes back to the same model family of the same server only."""
    body = json.dumps(chunk(text("So.", **SIGNED), LOOK, SECOND, end="STOP")).encode()
    same = next_contents(model(text("So.", **SIGNED), LOOK, SECOND), ...)
    first, second = {**call("fs__look", "fc1", {"at": "a"})}, call("b", "fc2", {"n": 1})
    other = next_contents(model(text("So."), {**first, "thoughtSignature": DUMMY}, second), ...)
    older = next_contents(model(text("So."), first, second), ...)
    said: JSON = {"body": body, "text": "So.", "calls": [*LOOKED, *ONE]}
    request = ask(model="gemini-3.8-flash", tools=TOOLS)
    for name, back in {
        "gemini-3.8-flash": same, "gemini-3.8-flash-2026-10-01": same,
        "gemini-3.8-pro": other, "gemini-4-argon": other, "gemini-2.5-flash": older,
    }.items():  # fmt: skip
        yield answer_case(f"back to {name}", request=request, next_model=name, back=back, **said)
    id = "back to another server"
    yield answer_case(id, request=request, server="google", next_server="", back=other, **said)


def sent(id: str, request: ChatRequest, expect: JSON, **more: Any) -> RequestCase:
    """A row."""
    return RequestCase(id=id, request=request, expect=expect, **more)


def inline(kind: str, data: str) -> JSON:
    """A part of bytes."""
    return {"inlineData": {"mimeType": kind, "data": data}}


HI: JSON = {"role": "user", "parts": [{"text": "hi"}]}
RED_PART, BLUE_PART = inline("image/png", "UkVE"), inline("image/jpeg", "QkxVRQ==")
PDF_PART = inline("application/pdf", "UERG")
FAR_PART = {"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/a.png"}}
TABLE_PART = {"text": "File t.csv:\na;b\nü;1"}
EVERYTHING = ask(
    model="gemini-3.8-flash", system_prompt="Be brief.", tools=(READ, ToolSpec(name="b")),
    tool_choice="fs.read", temperature=0.5, top_p=0.9, max_tokens=7, stop_sequences=("X",),
    reasoning="low", output_schema={"type": "object", "title": "T"},
)  # fmt: skip
EXTRA: JSON = {"cachedContent": "c", "generationConfig": {"topK": 3}}
# model: what is asked, and the thinkingConfig of it.
THINKING: dict[str, dict[str, JSON]] = {
    "gemini-2.5-flash": {
        "none": {"thinkingBudget": 0}, "low": {"includeThoughts": True, "thinkingBudget": 2048},
        "max": {"includeThoughts": True, "thinkingBudget": 24576},
        "4000": {"includeThoughts": True, "thinkingBudget": 4000}},
    "gemini-2.5-pro": {
        "none": {"thinkingBudget": 128}, "99": {"includeThoughts": True, "thinkingBudget": 128}},
    "gemini-3-flash": {
        "none": {"thinkingLevel": "MINIMAL"},
        "minimal": {"includeThoughts": True, "thinkingLevel": "MINIMAL"},
        "high": {"includeThoughts": True, "thinkingLevel": "HIGH"},
        "max": {"includeThoughts": True, "thinkingLevel": "HIGH"},
        "5000": {"includeThoughts": True, "thinkingLevel": "MEDIUM"}},
    "gemini-3.1-pro": {"none": {"thinkingLevel": "LOW"}},
    "gemini-3.8-flash": {"minimal": {"includeThoughts": True, "thinkingLevel": "LOW"}},
    "gemini-4-argon": {"none": {"thinkingLevel": "LOW"}},
    "gemini-flash-latest": {"none": {"thinkingLevel": "LOW"}},
}  # fmt: skip
CHOICES: dict[str | None, JSON] = {
    None: {"mode": "AUTO"}, "auto": {"mode": "AUTO"}, "none": {"mode": "NONE"},
    "required": {"mode": "ANY"}, "b": {"mode": "ANY", "allowedFunctionNames": ["b"]},
}  # fmt: skip


def requests() -> Iterator[RequestCase]:
    """All rows."""
    bare: JSON = {"contents": [HI]}
    path, here = ":generateContent", WIRE_URL
    yield sent("nothing is set #24", ask(), bare, only=True)
    more: JSON = {"contents": [HI], **EXTRA, "generationConfig": Exactly({"topP": 1, "topK": 3})}
    yield sent("what the person adds", ask(top_p=1), more, only=True, config={"extra_body": EXTRA},
               server="google", url=f"{here}/models/m{path}")  # fmt: skip
    tuned = ask(model="tunedModels/a b")
    urls = {"http://h:1": "http://h:1/v1", "http://h:1/v1beta/models/": "http://h:1/v1beta"}
    for given, meant in urls.items():
        yield sent(f"base URL {given} #64", tuned, bare, server=given,
                   url=f"{meant}/tunedModels/a%20b{path}")  # fmt: skip
    for limit, stream in ((32_768, False), (32_769, True)):
        end = "/models/m:streamGenerateContent" if stream else f"/models/m{path}"
        yield sent(f"{limit} tokens #41", ask(max_tokens=limit), {}, url=f"http://h/v1{end}",
                   server="http://h")  # fmt: skip
    for choice, calling in CHOICES.items():
        expect: JSON = {"tools": [...], "toolConfig": {"functionCallingConfig": Exactly(calling)}}
        request = ask(tools=(READ, ToolSpec(name="b")), tool_choice=choice)
        yield sent(f"tool choice {choice}", request, expect)
    for name, levels in THINKING.items():
        for asked, config in levels.items():
            expect = {"generationConfig": {"thinkingConfig": Exactly(config)}}
            yield sent(f"{name} thinks {asked}", ask(model=name, reasoning=asked), expect)
    schema = {"type": "object", "properties": {"n": {"const": 1}}}
    said = 'Answer with one JSON object that fits this JSON Schema: {"type":"object",'
    older = ask(model="gemini-2.5-flash", tools=TOOLS, output_schema=schema)
    words = said + '"properties":{"n":{"const":1}}}'
    told: JSON = {"generationConfig": ABSENT, "systemInstruction": {"parts": [text(words)]}}
    yield sent("Gemini 2 takes a schema or tools", older, told)
    alone = ask(model="gemini-2.5-flash", output_schema=schema)
    form = {"responseJsonSchema": {**schema, "properties": {"n": {"enum": [1]}}}}
    yield sent("Gemini 2 takes a schema", alone, {"generationConfig": form})
    for id, (name, messages, contents) in HISTORIES.items():
        yield sent(id, ask(messages=tuple(messages), model=name), {"contents": contents})
    for id, (given_schema, written) in SCHEMAS.items():
        declared = {"parametersJsonSchema": Exactly(written), "parameters": ABSENT}
        expect = {"tools": [{"functionDeclarations": [declared]}]}
        request = ask(tools=(ToolSpec(name="b", parameters=given_schema),))
        yield sent(f"schema: {id}", request, expect)


def answered(id: str, *parts: Part, name: str = "fs.read", said: str = "{}") -> Message:
    """The result of a call."""
    content = (TextPart(text=said), *parts)
    return Message(role="tool", tool_call_id=id, name=name, content=content)


def response(id: str, said: str = "{}", *parts: JSON, word: str = "output") -> JSON:
    """A result on the wire."""
    more = {"parts": list(parts)} if parts else {}
    held = {"name": "fs__read", "response": {word: said}, "id": id, **more}
    return {"functionResponse": Exactly(held)}


def label(id: str) -> JSON:
    """What stands before what a result gave."""
    return {"text": f"Given back by fs__read (call {id}):"}


REFERS, NO_FILE = '{"ok":true,"data":{"$ref":"x"}}', '{"ok":false,"error":{"code":"ENOENT"}}'
CALLED: JSON = {"role": "model", "parts": [{"thoughtSignature": DUMMY}, {"functionCall": ...}]}
NEW, OLD = "gemini-3.8-flash", "gemini-2.5-flash"
BAD_CALL = ToolCall(id="c1", name="b", arguments=None, arguments_raw="{oh")
# id: model, messages, contents.
HISTORIES: dict[str, tuple[str, list[Message], list[Any]]] = {
    "results are one content, in the order of the calls #37 #38 #43": (
        NEW,
        [called("c1", "c2"), answered("c2", said=NO_FILE), answered("c1", said=REFERS), user(LEFT)],
        [{"role": "user", "parts": [text("…")]}, CALLED,
         {"role": "user", "parts": [response("c1", REFERS),
                                    response("c2", NO_FILE, word="error")]},
         {"role": "user", "parts": [text("Left:")]}]),
    "only the first call of each step has the stand-in": (
        NEW, [user(LEFT), called("c1", "c2"), answered("c1"), answered("c2"), called("c3")],
        [..., CALLED, {"parts": [response("c1"), response("c2")]},
         {"parts": [{"functionCall": {"id": "c3", "args": {}}, "thoughtSignature": DUMMY}]}]),
    "Gemini 2 checks no signatures": (
        OLD, [user(LEFT), called("c1")],
        [..., model({"functionCall": {"id": "c1", "name": "fs__read", "args": {}}})]),
    "images of results, Gemini 3": (
        NEW, [user(LEFT), called("c1", "c2"), answered("c1", RED, PDF), answered("c2", FAR, TABLE)],
        [..., CALLED, {"parts": [response("c1", "{}", RED_PART, PDF_PART), response("c2")]},
         {"role": "user", "parts": [label("c2"), FAR_PART, TABLE_PART]}]),
    "images of results, Gemini 2": (
        OLD, [user(LEFT), called("c1", "c2"), answered("c1", RED), answered("c2", BLUE)],
        [..., ..., {"parts": [response("c1"), response("c2")]},
         {"role": "user", "parts": [label("c1"), RED_PART, label("c2"), BLUE_PART]}]),
    "images and files of the person": (
        NEW, [user(LEFT, RED, TABLE, PDF, FAR)],
        [{"role": "user", "parts": [text("Left:"), RED_PART, TABLE_PART, PDF_PART, FAR_PART]}]),
    "nothing empty is sent #20": (
        NEW,
        [user(LEFT, TextPart(text="")), Message(role="assistant", reasoning="hm"), user(),
         Message.of("system", "S")],
        [{"parts": [text("Left:")]}, {"role": "user", "parts": [text("S")]}]),
    "arguments that are none": (
        NEW, [user(LEFT), Message(role="assistant", tool_calls=(BAD_CALL,)), result("c1")],
        [..., {"parts": [{"functionCall": {"args": {"INVALID_JSON": "{oh"}}}]}, ...]),
}  # fmt: skip
DATE: JSON = {"type": "string", "format": "date", "description": "When."}
REFERRING = obj(a={"$ref": "#/$defs/A"}, b={"enum": [{"title": "x"}]})
SCHEMAS: dict[str, tuple[JSON, JSON]] = {
    "what Gemini refuses": (
        {**obj(a={"type": "integer", "exclusiveMinimum": 0, "minimum": 1, "examples": [3]},
               title={"const": "x", "title": "X"}), "$schema": "s", "title": "T"},
        obj(a={"type": "integer", "minimum": 1}, title={"enum": ["x"]})),
    "formats of texts are words": (
        obj(a=DATE, b={"type": ["string", "null"], "format": "uri"},
            c={"type": "integer", "format": "int32"}),
        obj(a={"type": "string", "description": "When. (format: date)"},
            b={"type": ["string", "null"], "description": "(format: uri)"},
            c={"type": "integer", "format": "int32"})),
    "oneOf is anyOf": (
        obj(a={"oneOf": [DATE, {"type": "null"}], "discriminator": {"propertyName": "k"}}),
        obj(a={"anyOf": [{"type": "string", "description": "When. (format: date)"},
                         {"type": "null"}]})),
    "references stay, data is no schema": (
        {**REFERRING, "$defs": {"A": {"const": 1}}}, {**REFERRING, "$defs": {"A": {"enum": [1]}}}),
}  # fmt: skip
LISTED: JSON = {
    "models": [
        {"name": "models/gemini-3.8-flash", "inputTokenLimit": 1048576, "thinking": True,
         "supportedGenerationMethods": ["generateContent", "countTokens"]},
        {"name": "models/embedder", "supportedGenerationMethods": ["embedContent"]},
        {"name": "tunedModels/mine", "inputTokenLimit": "9"}, {"nonsense": 1}, 3],
}  # fmt: skip
KNOWN = [("gemini-3.8-flash", 1048576, ("reasoning",)), ("tunedModels/mine", None, ())]
MODELS = (
    ModelsCase(id="what is told", body=LISTED, expect=KNOWN),
    ModelsCase(id="no models", body={"models": []}, expect=[]),
    ModelsCase(id="no list", body={"data": []}, expect=BAD),
    ModelsCase(id="no JSON", body=b"<html>", expect=BAD),
)
ANSWERS = (thorough, answers, hops, errors, ends, back_cases)
WIRE = WireSetup(
    name="google",
    provider="google",
    ended=re.compile(rb'"finishReason": "[A-Z_]+"[^\r\n]*'),
    servers={"google": WIRE_URL},
    answers=tuple(case for cases in ANSWERS for case in cases()),
    requests=tuple(requests()),
    models=MODELS,
    quirks=(1, 6, 7, 9, 12, 14, 15, 18, 20, 21, 24, 34, *range(35, 42), 43, *range(56, 61), 64),
)
