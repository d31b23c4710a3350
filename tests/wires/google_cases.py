"""Answers of Gemini, their results, and the parts it needs back. See `google_requests`.

`#n` in an id is the number of a quirk that the rest of the id names; `WIRE.quirks` lists them.
Bytes after https://ai.google.dev/api/generate-content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from servers.dialects import GOOGLE
from wires import google_requests
from wires.google_requests import DUMMY, WIRE_URL, model, text
from wires.harness import ABSENT, JSON, TOOLS, AnswerCase, Exactly, ModelsCase, WireSetup, ask

HTTP, BAD = "LLM_HTTP_ERROR", "LLM_BAD_RESPONSE"
chunk, sse = GOOGLE.chunk, GOOGLE.stream
SIGNED: JSON = {"thoughtSignature": "QUJD"}
NOTHING: JSON = {"text": "", **SIGNED}
"""Content that a last chunk may hold alone."""


def call(name: str = "b", id: str | None = None, args: Any = None, **more: Any) -> JSON:
    given = {"id": id, "name": name, "args": args}
    return {"functionCall": {key: it for key, it in given.items() if it is not None}, **more}


def both(id: str, *parts: Any, end: str = "STOP", **given: Any) -> AnswerCase:
    """A case whose stream brings each part in a chunk of its own."""
    more = given.pop("more", {})
    stream = sse(*map(chunk, parts), chunk(end=end, **more))
    body = json.dumps(chunk(*parts, end=end, **more)).encode()
    return AnswerCase(id, body=body, stream=stream, **given)


def streamed(id: str, *chunks: Any, **given: Any) -> AnswerCase:
    return AnswerCase(id, stream=sse(*chunks), **given)


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
    echoed = {"id": id} if id else {}
    return {"functionResponse": Exactly({"name": name, "response": {"output": OK}, **echoed})}


def next_contents(*contents: Any) -> JSON:
    return {"contents": [..., *contents]}


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
    yield AnswerCase(
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
    yield AnswerCase(
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
UNKNOWN = ("BORED", "FINISH_REASON_UNSPECIFIED")
FINISH = {
    **dict.fromkeys(("STOP", *UNKNOWN), "stop"),
    **dict.fromkeys(("MAX_TOKENS", "CONTINUATION"), "length"),
    **dict.fromkeys(FILTERED, "content_filter"),
    **dict.fromkeys(FAILED, "error"),
}
PYTHON: JSON = {"executableCode": {"code": "1", "language": "PYTHON"}}
DEEP: Any = {"a": json.loads("[" * 300 + "]" * 300)}
# id: parts, and what they come to; whole and streamed.
MESSAGES: dict[str, tuple[list[Any], JSON]] = {
    "one call without an id #12": (
        [call("fs__look", args={"at": "a"}, **SIGNED)],
        {"calls": LOOKED, "back": next_contents(
            model(call("fs__look", args={"at": "a"}, **SIGNED)),
            {"parts": [given_back("fs__look")]})}),
    "two calls under one id #60": (
        [call("b", "x", {"n": 1}), call("c", "x", {"n": 2})],
        {"calls": [*ONE, ("c", {"n": 2})], "ids": ["x", "x_2"], "back": next_contents(
            {"parts": [{"functionCall": {"id": "x"}, "thoughtSignature": DUMMY},
                       {"functionCall": {"id": "x_2"}, "thoughtSignature": ABSENT}]},
            {"parts": [given_back("b", "x"), given_back("c", "x_2")]})}),
    "arguments nested too deeply are in no record": (
        [call("b", "x", DEEP, **SIGNED)],
        {"calls": [("b", '"arguments nested too deeply, or with a number that is too large"')],
         "raw": {"parts": ABSENT}, "back": next_contents({"parts": [
             {"functionCall": {"id": "x", "name": "b"}, "thoughtSignature": DUMMY}]}, ...)}),
    "an empty call is none, a signature with nothing is not sent": (
        [text("x"), {"functionCall": {}, **SIGNED}, SIGNED],
        {"text": "x", "back": next_contents(model(text("x")))}),
    "a signed part is not joined #35": (
        [text("a"), text("b"), text("c", **SIGNED), text("d"), text("e")],
        {"text": "abcde", "back": next_contents(
            model(text("ab"), text("c", **SIGNED), text("de")))}),
    "a signature in an empty text at the end #36": (
        [text("x"), NOTHING], {"text": "x", "back": next_contents(model(text("x"), NOTHING))}),
    "thoughts and text are not joined, parts of other kinds go back": (
        [text("a", thought=True), text("b", thought=True), text("c"), PYTHON],
        {"text": "c", "reasoning": "ab", "back": next_contents(
            model(text("ab", thought=True), text("c"), PYTHON))}),
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
}  # fmt: skip


def answers() -> Iterator[AnswerCase]:
    for id, (parts, expect) in MESSAGES.items():
        yield both(id, *parts, **expect)
    for word, finish in FINISH.items():
        raw = ABSENT if word in ("STOP", "MAX_TOKENS", "CONTINUATION") else {"finish_reason": word}
        notes = [word] if word in UNKNOWN else ()
        expected: JSON = {"text": "x", "finish": finish, "raw": raw, "notes": notes}
        yield both(f"ended by {word}", text("x"), end=word, **expected)
    for word in ("MAX_TOKENS", "SAFETY", "OTHER"):
        id = f"no call counts as whole: {word} #18"
        yield both(id, SECOND, end=word, calls=ONE, finish=FINISH[word])
    told: JSON = {"finishReason": "STOP", "groundingMetadata": {"webSearchQueries": ["x"]}}
    told = {"candidates": [{"content": {"parts": [text("x")]}, **told}], "modelStatus": {}}
    given: JSON = {"text": "x", "raw": ABSENT, "back": next_contents(model(text("x")))}
    yield AnswerCase("text, unknown fields #21", body=json.dumps(told).encode(), **given)


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
    fields: JSON = {"stream": sse(first), "then": then, "asked": 2, **given}
    return AnswerCase(id, body=json.dumps(first).encode(), **fields)


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
    yield AnswerCase("MALFORMED behind a call runs nothing", stream=late, then=FINE, error=BAD)
    unknown, nameless = call("search", args={"q": 1}), call("")
    del nameless["functionCall"]["name"]
    for word in ("UNEXPECTED_TOOL_CALL", "MALFORMED_FUNCTION_CALL", "TOO_MANY_TOOL_CALLS"):
        id, found = f"{word} of a tool that was not declared", [("search", {"q": 1})]
        yield both(id, unknown, end=word, calls=found)
        yield both(f"{id}, without tools", unknown, end=word, calls=found, request=ask())
        yield both(f"{id}, beside one that was", text("x"), SECOND, unknown, end=word, text="x",
                   calls=[*ONE, *found])  # fmt: skip
    for word, parts in (("UNEXPECTED_TOOL_CALL", [nameless]), ("UNEXPECTED_TOOL_CALL", [text("")]),
                        ("MALFORMED_FUNCTION_CALL", [nameless])):  # fmt: skip
        broken = chunk(*parts, end=word)
        body = json.dumps(broken).encode()
        id = f"{word}: {parts} is not readable"
        yield AnswerCase(id, body=body, then=FINE, text="fine", asked=2)
    declared: JSON = {"calls": ONE, "finish": "error"}
    yield both("TOO_MANY_TOOL_CALLS of a declared tool", SECOND, end="TOO_MANY_TOOL_CALLS",
               **declared)  # fmt: skip
    paid = {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 9}}
    asked: JSON = {"more": paid, "then": FINE, "text": "fine", "asked": 2}
    yield both("paid: nothing is asked once more", text(""), **asked)
    yield both("paid: a part of a later version", {"hologram": {"a": 1}}, more=paid, then=FINE,
               error=BAD, words="hologram")  # fmt: skip
    yield both("paid: thoughts that are shown", text("hm", thought=True), more=paid, reasoning="hm")


NO_ANSWERS = (
    sse(X), b'{"candidates": null, "usageMetadata": {}}', b'{"candidates": [{"content": {}}]}',
    b'{"candidates": [{"content": {"parts": 3}}]}',
    b'{"candidates": [{"index": 1, "finishReason": "STOP"}]}',
)  # fmt: skip


def errors() -> Iterator[AnswerCase]:
    listed = json.dumps([BOOM], indent=2).encode()
    for n, inside in enumerate((listed, b"data: [" + json.dumps(BOOM).encode() + b"]\n\n")):
        expect: JSON = {"error": HTTP, "words": "overloaded", "http_status": 503, "retryable": True}
        yield AnswerCase(f"an error in a list, {n} #39", stream=sse(X) + inside, **expect)
    for n, body in enumerate(NO_ANSWERS):
        yield AnswerCase(f"no answer, {n}: {body[:30]!r}", body=body, error=BAD)
    for n, blocked in enumerate((BLOCKED, {**BLOCKED, "candidates": None})):
        body, raw = json.dumps(blocked).encode(), {"block_reason": "SAFETY"}
        given: JSON = {"stream": sse(blocked), "finish": "content_filter", "raw": raw}
        yield AnswerCase(f"a blocked prompt {n} #40", body=body, **given)
    bare = b"\n".join(json.dumps(it).encode() for it in (X, chunk(text("y"), end="STOP")))
    yield AnswerCase("chunks without data:", stream=bare, text="xy")
    listed = json.dumps([X, chunk(text("y"), end="STOP")], indent=1).encode()
    yield AnswerCase("chunks in one list", stream=listed, body=listed, text="xy")


END = chunk(end="STOP")


def ends() -> Iterator[AnswerCase]:
    """Streams that continue after a finish reason: Gemini sends no other end."""
    back = next_contents(model(text("x"), NOTHING))
    last: JSON = {"usage": USED, "text": "x", "back": back}
    yield streamed("a signature and counts behind the end #36", X, END, LATE, **last)
    yield streamed("another candidate is not read", chunk(text("y"), at=1), X, END,
                   chunk(end="MAX_TOKENS", at=1), text="x")  # fmt: skip
    yield streamed("a gateway's [DONE]", X, END, b"data: [DONE]\n\n", text="x")
    for ending, framing in (("reset", "chunked"), ("reset", "none"), ("close", "length")):
        id, how = f"{ending}, framing {framing}", {"ending": ending, "framing": framing}
        yield streamed(f"behind calls: {id}", chunk(SECOND), END, error=HTTP, **how)
        yield streamed(f"behind a text: {id}", X, END, text="x", **how)
    yield streamed("behind calls: an error", chunk(SECOND), END, BOOM, error=HTTP)
    yield streamed("behind calls: half an event", chunk(SECOND), END, b'data: {"err', error=BAD)
    note = "The server sent an error after the answer"
    yield streamed("behind a text: an error", X, END, BOOM, text="x", notes=[note])
    yield streamed("a clean end, no framing", chunk(SECOND, end="STOP"), framing="none", calls=ONE)


def back_cases() -> Iterator[AnswerCase]:
    """Signatures go back only to the same model family of the same server."""
    body = json.dumps(chunk(text("So.", **SIGNED), LOOK, SECOND, end="STOP")).encode()
    same = next_contents(model(text("So.", **SIGNED), LOOK, SECOND), ...)
    first = call("fs__look", "fc1", {"at": "a"})
    other = next_contents(model(text("So."), {**first, "thoughtSignature": DUMMY}, SECOND), ...)
    older = next_contents(model(text("So."), first, SECOND), ...)
    said: JSON = {"body": body, "text": "So.", "calls": [*LOOKED, *ONE]}
    request = ask(model="gemini-3.8-flash", tools=TOOLS)
    for name, back in {
        "gemini-3.8-flash": same, "gemini-3.8-flash-2026-10-01": same,
        "gemini-3.8-pro": other, "gemini-4-argon": other, "gemini-2.5-flash": older,
    }.items():  # fmt: skip
        yield AnswerCase(f"back to {name}", request=request, next_model=name, back=back, **said)
    id = "back to another server"
    yield AnswerCase(id, request=request, server="google", next_server="", back=other, **said)


LISTED: JSON = {
    "models": [
        {"name": "models/gemini-3.8-flash", "inputTokenLimit": 1048576, "thinking": True,
         "supportedGenerationMethods": ["generateContent", "countTokens"]},
        {"name": "models/embedder", "supportedGenerationMethods": ["embedContent"]},
        {"name": "tunedModels/mine", "inputTokenLimit": "9"}, {"nonsense": 1}, 3],
}  # fmt: skip
KNOWN = [("gemini-3.8-flash", 1048576, ("reasoning",)), ("tunedModels/mine", None, ())]
MODELS = (
    ModelsCase("what is told", LISTED, KNOWN),
    ModelsCase("no list", {"models": 3}, BAD),
)
ANSWERS = (thorough, answers, hops, errors, ends, back_cases)
WIRE = WireSetup(
    name="google",
    provider="google",
    conversation="contents",
    ended=re.compile(rb'"finishReason": "[A-Z_]+"[^\r\n]*'),
    servers={"google": WIRE_URL},
    answers=tuple(case for cases in ANSWERS for case in cases()),
    requests=tuple(google_requests.requests()),
    models=MODELS,
    quirks=(1, 6, 7, 9, 12, 15, 18, 20, 21, 24, *range(35, 42), 43, 60, 64),
)
