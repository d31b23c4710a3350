"""Answers of Chat Completions servers and their results. Requests are in `chat_requests`.

`#n` in an id is the number of a quirk that the rest of the id names; `WIRE.quirks` lists them.
https://platform.openai.com/docs/api-reference/chat; quirks of other servers are in their docs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from servers.dialects import CHAT
from wires import chat_requests
from wires.harness import ABSENT, JSON, KEY, TOOLS, AnswerCase, ModelsCase, WireSetup, ask

from nbagent.contracts.messages import Message, TextPart, ToolCall
from nbagent.contracts.model import ToolSpec

DONE, sse = CHAT.end, CHAT.stream
Calls = Sequence[tuple[str, JSON | str]]
Stream = tuple[Sequence[Any], JSON]
"""The chunks of a stream, and what it comes to: fields of AnswerCase."""


def chunk(delta: Any, finish: str | None = None, **more: Any) -> JSON:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def said(text: Any, finish: str | None = None, **more: Any) -> JSON:
    return chunk({"content": text}, finish, **more)


def call(arguments: Any = "{}", *, name: Any = "b", **more: Any) -> JSON:
    return {**more, "function": {"name": name, "arguments": arguments}}


def named(name: Any, arguments: Any = "", index: int = 0, **more: Any) -> JSON:
    """A fragment of a call, whose name may be a piece."""
    return call(arguments, name=name, index=index, **more)


def calls(*items: JSON, finish: str | None = None) -> JSON:
    return chunk({"tool_calls": list(items)}, finish)


def answer_of(message: JSON, finish: str | None = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"model": "m1", "choices": [choice], **more}).encode()


def error_of(**error: Any) -> bytes:
    return json.dumps({"error": error}).encode()


def streamed(id: str, *chunks: Any, end: bytes = DONE, **given: Any) -> AnswerCase:
    return AnswerCase(id, stream=sse(*chunks, end=end), **given)


def both(id: str, message: JSON, word: str = "stop", /, **given: Any) -> AnswerCase:
    """A case whose stream brings each field of the message in a delta of its own."""
    more = given.pop("more", {})
    deltas = [chunk({name: value}) for name, value in message.items()]
    stream = sse(*deltas, chunk({}, word, **more))
    return AnswerCase(id, body=answer_of(message, word, **more), stream=stream, **given)


def streams(table: dict[str, Stream], **given: Any) -> Iterator[AnswerCase]:
    for id, (chunks, expect) in table.items():
        yield streamed(id, *chunks, **{**given, **expect})


def counted(prompt: int, completion: int, total: int = 0, **more: int) -> JSON:
    total = total or prompt + completion
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}
    return {**{name: n for name, n in counts.items() if n}, **more}


LOOK = call('{"at":"a"}', name="fs__look", index=0, id="c1")
TWO: Calls = [("b", {"n": 1}), ("c", {"n": 2})]
ONE: Calls = TWO[:1]
B_TWICE: Calls = [("b", {"n": 1}), ("b", {"n": 2})]
BARE: Calls = [("b", {})]
LOOKED: Calls = [("fs.look", {"at": "a"})]
B, C = '{"n":1}', '{"n":2}'
X, STOP, BEGUN = said("x"), said("x", "stop"), chunk({}, "tool_calls")
USED = {"prompt_tokens": 5, "completion_tokens": 2}
SUM = counted(5, 2)
BOOM: JSON = {"error": {"message": "boom", "type": "rate_limit_error"}}
HTTP, BAD = "LLM_HTTP_ERROR", "LLM_BAD_RESPONSE"
GREETING = "Grüße \u2028 both"


def thorough() -> Iterator[AnswerCase]:
    """Those that are cut everywhere and get every wrong value."""
    extra = {"extra_content": {"google": {"thought_signature": "s"}}}
    detail = {"index": 0, "type": "reasoning.text", "text": "Hm", "format": "f"}
    whole = [
        call('{"at":"a"}', name="fs__look", id="c1", type="function", extra_content={"x": 1}),
        call(B, id="c2"),
    ]
    message: JSON = {"role": "assistant", "content": GREETING, "refusal": None, "tool_calls": whole}
    message |= {"reasoning_content": "Hm", "reasoning_details": [detail], **extra}
    usage: JSON = {
        **counted(20, 9),
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    chunks: list[Any] = [
        b": keep-alive\n\nevent: ping\ndata: ping\n\n",
        chunk({"role": "assistant", "content": ""}, model="m1"),
        chunk({"reasoning_content": "Hm", "reasoning_details": [detail]}),
        b"data: " + json.dumps(said(GREETING), ensure_ascii=False).encode() + b"\n\n",
        chunk(extra),
        calls(call("", name="fs__look", index=0, id="c1", extra_content={"x": 1})),
        calls(call('{"at":', name=None, index=0)),
        calls(call('"a"}', name=None, index=0)),
        calls(call(B, index=1, id="c2")),
        BEGUN,
        {"choices": [], "usage": usage, "x_groq": {"usage": None}},
    ]
    yield AnswerCase(
        "reasoning, text, two calls, usage #1 #4 #7",
        body=answer_of(message, "tool_calls", usage=usage), stream=sse(*chunks),
        text=GREETING, reasoning="Hm", calls=[*LOOKED, *ONE], ids=["c1", "c2"],
        extras=[{"extra_content": {"x": 1}}, None],
        usage=counted(20, 9, cached_tokens=7, reasoning_tokens=3), thorough=True,
    )  # fmt: skip
    body = json.loads(answer_of({"content": "One two", "reasoning": "so"}, usage=USED))
    first = chunk({"reasoning": "so", "content": "One "})
    yield AnswerCase(
        "blank lines, then text with usage in the last chunk #8",
        body=b"\n \n" + json.dumps(body, indent=1).encode(),
        stream=sse(first, said("two"), chunk({}, "stop", usage=USED)),
        text="One two", reasoning="so", usage=SUM, thorough=True,
    )  # fmt: skip


# id: deltas of calls, one chunk each; what they come to.
DELTAS: dict[str, tuple[list[JSON], Calls]] = {
    "interleaved": (
        [call('{"n"', index=0, id="x"), call('{"n":', name="c", index=1, id="y"),
         call(":1}", name=None, index=0), call("2}", name=None, index=1)], TWO),
    "index counts from 1 with a gap": (
        [call(B, index=1, id="x"), call(C, name="c", index=7, id="y")], TWO),
    "index as a text": (
        [call('{"n"', index="0", id="x"), call(C, name="c", index="1", id="y"),
         call(":1}", name=None, index="0")], TWO),
    "always index 0, new ids #11": (
        [call(B, index=0, id="x"), call(C, name="c", index=0, id="y")], TWO),
    "always index 0, no ids, the same tool": ([call(B, index=0), call(C, index=0)], B_TWICE),
    "always index 0, no ids, no arguments": ([call(index=0), call(index=0)], [*BARE, *BARE]),
    "no index, no ids": ([call(B), call(C, name="c")], TWO),
    "no index, fragments": (
        [call('{"n"', id="x"), call(":1}", name=None), call(C, name="c", id="y")], TWO),
    "the id comes late": (
        [call('{"n"'), call(":1}", name=None, id="x"), call(C, name="c", id="y")], TWO),
    "id and name in each delta #13": (
        [call('{"n"', index=0, id="x"), call(":1}", index=0, id="x")], ONE),
    "empty and null in continuations": (
        [call('{"n"', index=0, id="x"), call(":1", name="", index=0, id="null"),
         call("}", name="null", index=0, id=""), call(None, name=None, index=0)], ONE),
    "two calls under one id #60": ([call(B, index=0, id="x"), call(C, index=0, id="x")], B_TWICE),
    "the whole call once more": (
        [call('{"n"', index=0, id="x"), call(":1}", name=None, index=0),
         call(B, index=0, id="x")], ONE),
    "an empty object, then the arguments": (
        [call("{}", index=0, id="x"), call('{"n"', name=None, index=0),
         call(":1}", name=None, index=0)], ONE),
    "null, then the arguments, each with name and id": (
        [call("null", index=0, id="x"), call('{"n"', index=0, id="x"),
         call(":1}", index=0, id="x")], ONE),
    "an empty object with a name, then another name": (
        [call("{}", index=0), call(C, name="c", index=0)], [*BARE, TWO[1]]),
    "an empty object, then the same tool with arguments and no index": (
        [call("{}"), call(B)], [*BARE, *ONE]),
    "the arguments, then an empty object": (
        [call(B, index=0, id="x"), call("{}", name=None, index=0),
         call("null", name=None, index=0)], ONE),
    "the arguments twice, without a name": (
        [call('{"n"', index=0, id="x"), call(":1}", name=None, index=0),
         call(B, name=None, index=0)], ONE),
    "the arguments twice, in pieces": (
        [call('{"n"', index=0, id="x"), call(":1}", name=None, index=0),
         call('{"n"', name=None, index=0), call(":1}", name=None, index=0)], ONE),
    "the arguments twice, with a name and no id": ([call(B, index=0), call(B, index=0)], ONE),
    "the arguments twice, in other spacing": (
        [call(B, index=0, id="x"), call('{"n": 1}', index=0, id="x")], ONE),
    "all arguments so far in each piece": (
        [call('{"n"', index=0, id="x"), call('{"n":', index=0, id="x"),
         call(B, name=None, index=0)], ONE),
    "a piece twice": (
        [call('{"n"', index=0, id="x"), call('{"n"', name=None, index=0),
         call(":1}", name=None, index=0)], ONE),
    "an inner object that is like the beginning": (
        [call('{"n":', index=0, id="x"), call('{"n":1}', name=None, index=0),
         call("}", name=None, index=0)], [("b", {"n": {"n": 1}})]),
    **{f"{nothing} as first arguments": (
        [call(nothing, index=0, id="x"), call(B, name=None, index=0)], ONE)
       for nothing in ('""', "[]")},
    "a new id with each fragment": (
        [call("", index=0, id="x"), call('{"n"', name=None, index=0, id="y"),
         call(":1}", name=None, index=0, id="z")], ONE),
    "a new id and the name with each fragment": (
        [call('{"n"', index=0, id="x"), call(":1}", index=0, id="y")], ONE),
    "an empty object, then the arguments under another id": (
        [call("{}", index=0, id="x"), call(B, name=None, index=0, id="y")], ONE),
    "in turns under one index, by their ids": (
        [call("", index=0, id="x"), call("", name="c", index=0, id="y"),
         call(B, name=None, index=0, id="x"), call(C, name=None, index=0, id="y")], TWO),
    "in turns without an index, by their ids": (
        [call('{"n"', id="x"), call('{"n":', name="c", id="y"), call(":1}", name=None, id="x"),
         call("2}", name=None, id="y")], TWO),
    "name and arguments beside the id": (
        [{"index": 0, "id": "x", "name": "b", "arguments": '{"n"'},
         {"index": 0, "arguments": ":1}"}], ONE),
    "parameters instead of arguments": (
        [{"index": 0, "id": "x", "function": {"name": "b", "parameters": {"n": 1}}}], ONE),
    "an object inside the arguments is no second one": (
        [call('{"n":', index=0, id="x"), call("{}", name=None, index=0),
         call("}", name=None, index=0)], [("b", {"n": {}})]),
    "the name in pieces": (
        [call("", name="fs_", index=0, id="x"), call("", name="_lo", index=0),
         call('{"at":"a"}', name="ok", index=0)], LOOKED),
    "the name in pieces, with the id": (
        [call("", name="fs_", index=0, id="x"), call("", name="_look", index=0, id="x"),
         call('{"at":"a"}', name=None, index=0)], LOOKED),
    "the name in pieces, each longer": (
        [call("", name="fs__l", index=0, id="x"), call('{"at":"a"}', name="fs__look", index=0)],
        LOOKED),
    "two pieces that are no tool's name together": (
        [call(B, name="b", index=0), call(C, name="c", index=0)], TWO),
    "arguments as an object #14": (
        [call({"n": 1}, index=0, id="x"), call({"n": 2}, name="c", index=1, id="y")], TWO),
    "no arguments at all": ([{"index": 0, "id": "x", "function": {"name": "b"}}], BARE),
    "names with what leaks around them #59": (
        [call(index=n, id=f"c{n}", name=name) for n, name in enumerate(
            ["fs__look", "functions.fs__look", "fs__look<|channel|>json", "functions.fs__look:0",
             "fs.look", " fs__look ", "default_api:fs.look", "made_up", "<|channel|>", ":0"])],
        [("fs.look", {})] * 7 + [("made_up", {}), ("<|channel|>", {}), (":0", {})]),
    "arguments as they were written": (
        [call(text, index=n, id=f"c{n}") for n, text in enumerate(
            ["", "  ", "null", "{oh", "[1]", '"text"', '{"a": 1}{"b": 2}', '{"a": "\\ud800"}'])],
        [*BARE, *BARE, *BARE, ("b", "{oh"), ("b", "[1]"), ("b", '"text"'),
         ("b", '{"a": 1}{"b": 2}'), ("b", {"a": "\ud800"})]),
}  # fmt: skip
NO_CALL: JSON = {"name": "", "arguments": ""}
LATE_MESSAGE = {"content": "ab", "tool_calls": [call(id="x")]}
# id: message, finish reason, what it comes to; whole and streamed.
MESSAGES: dict[str, tuple[JSON, str, JSON]] = {
    "one call that ends with stop #15": (
        {"tool_calls": [LOOK]}, "stop", {"calls": LOOKED, "ids": ["c1"]}),
    "no two calls have one id": (
        {"tool_calls": [
            call(f'{{"n":{n}}}', index=n, id=id) for n, id in enumerate(["x", "x", "x_2", "x"])]},
        "stop", {"calls": [("b", {"n": n}) for n in range(4)],
                 "ids": ["x", "x_2", "x_2_2", "x_3"]}),
    "an old function_call beside tool_calls is the same": (
        {"tool_calls": [LOOK], "function_call": LOOK["function"]}, "stop",
        {"calls": LOOKED, "ids": ["c1"]}),
    "an empty function_call is none": (
        {"content": "x", "function_call": NO_CALL}, "stop", {"text": "x"}),
    "an entry with an id alone is none": (
        {"content": "x", "tool_calls": [{"id": "x"}]}, "stop", {"text": "x"}),
    "an empty list of calls #17": ({"content": "x", "tool_calls": []}, "tool_calls", {"text": "x"}),
    "cut by length within arguments #18": (
        {"tool_calls": [call('{"at": "a', index=0, id="x")]}, "length",
        {"calls": [("b", '{"at": "a')], "finish": "length"}),
    "calls written as plain text are text #58": (
        {"content": "functions.b({})\n<tool_call>{}</tool_call>"}, "stop",
        {"text": "functions.b({})\n<tool_call>{}</tool_call>"}),
    "text, unknown fields #21": (
        {"content": "x", "annotations": [], "mood": {"a": 1}}, "stop",
        {"text": "x", "more": {"service_tier": "x"}, "back": {"messages": [..., {
            "content": "x", "annotations": ABSENT, "mood": ABSENT, "refusal": ABSENT}]}}),
    "empty answer": ({"content": ""}, "stop", {"usage": {}}),
    "an unknown end of nothing": (
        {"content": ""}, "bored", {"finish": "error", "notes": ["'bored'"]}),
    "a refusal is text": (
        {"refusal": "I will not."}, "stop", {"text": "I will not.", "finish": "content_filter"}),
    "content that is an object is its JSON": (
        {"content": {"answer": 1, "a": [True]}}, "stop",
        {"text": '{"answer":1,"a":[true]}'}),
    "tags are text where the reasoning comes apart": (
        {"reasoning_content": "hm", "content": "<think>x</think>"}, "stop",
        {"text": "<think>x</think>", "reasoning": "hm"}),
}  # fmt: skip
PART: JSON = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
SECRET: JSON = {"type": "reasoning.encrypted", "index": 1, "data": "E"}
SIGNED: JSON = {**PART, "text": "b", "signature": "s"}
FILTERED: JSON = {"code": "content_filter", "message": "filtered", "status": 400}
STREAMS: dict[str, Stream] = {
    "vendor fields of every delta of a call #35": (
        [calls(call('{"n":', index=0, id="x", extra_content={"s": 1})),
         calls(call("1}", name=None, index=0, thought="t"))],
        {"calls": ONE, "extras": [{"extra_content": {"s": 1}, "thought": "t"}],
         "back": {"messages": [..., {"tool_calls": [{"extra_content": {"s": 1}}]}, ...]}}),
    "the whole message once more in the last chunk": (
        [said("ab"), {"choices": [
            {"delta": {}, "message": LATE_MESSAGE, "finish_reason": "stop"}]}],
        {"text": "ab", "calls": BARE, "ids": ["x"]}),
    "each call ends the answer": (
        [calls(LOOK, finish="tool_calls"), calls(call(index=1, id="c2"), finish="tool_calls")],
        {"calls": [*LOOKED, *BARE]}),
    "a clean end without a finish reason #16": ([X], {"text": "x"}),
    "what follows [DONE] is ignored #62": (
        [STOP, DONE, said("y"), b"data: {oops\n\n"], {"text": "x"}),
    "[DONE] with a space, no space before data": (
        [b'data:{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n'],
        {"end": b"data: [DONE] \n\n", "text": "x"}),
    "newlines before the first word #34": (
        [said("\n\n"), said(" \n"), said("a\n", "stop")], {"text": "a\n"}),
    "the first line's indentation": ([said("    if x:\n", "stop")], {"text": "    if x:\n"}),
    "the first line's indentation behind blank lines, in pieces": (
        [said("\n"), said("  \n "), said(" "), said(" if x:\n", "stop")], {"text": "   if x:\n"}),
    "nothing but blanks before a call": (
        [said("\n  "), said(" "), calls(LOOK), BEGUN], {"calls": LOOKED}),
    "chunks without a delta #50": (
        [{"choices": []}, {"choices": None}, chunk(None), {}, STOP], {"text": "x"}),
    "signs of life": (
        [b"data: \n\nretry: 3\n\nid: 1\n\n", b'event: moderation\ndata: {"choices": []}\n\n', STOP],
        {"text": "x"}),
    **{f"the data of an event is {data!r}": (
        [X, b"data: " + data.encode() + b"\n\n", STOP], {"text": "xx"})
       for data in ("null", "[]", '""', "ping", "[keep-alive]", ": PROCESSING", "HEARTBEAT")},
    "no empty line between events": (
        [sse(X, end=b"").rstrip() + b"\n", sse(STOP, end=b"").rstrip() + b"\n"],
        {"text": "xx", "end": DONE}),
    "one event on many lines": (
        [b"".join(b"data: " + line + b"\n" for line in
                  json.dumps(STOP, indent=1).encode().splitlines()) + b"\n"], {"text": "x"}),
    "a broken character": (
        [b"data: " + json.dumps(said("a#b")).encode().replace(b"#", b"\xe3\x81") + b"\n\n",
         chunk({}, "stop")], {"text": "a\ufffdb"}),
    "Moonshot: usage in the choice": (
        [X, {"choices": [{"delta": {}, "finish_reason": "stop", "usage": USED}]}],
        {"text": "x", "usage": SUM}),
    "usage: a later count of nothing voids none": (
        [chunk({"content": "x"}, usage={"prompt_tokens": 5}),
         chunk({}, "stop", usage={"completion_tokens": 2}),
         {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}}],
        {"text": "x", "usage": SUM}),
    **{f"reasoning in {field}": ([chunk({field: value}), STOP], {"text": "x", "reasoning": "hm"})
       for field, value in (
           ("reasoning_text", "hm"), ("thinking", "hm"),
           ("reasoning", {"type": "text", "text": "hm"}),
           ("reasoning_content", [{"type": "thinking", "thinking": "hm"}]))},
    "two reasoning fields count once #32": (
        [chunk({"reasoning": "a", "reasoning_content": "a"}), STOP],
        {"text": "x", "reasoning": "a", "raw": {"reasoning_field": "reasoning"}}),
    "OpenRouter: details are joined and go back": (
        [b": OPENROUTER PROCESSING\n\n",
         chunk({"reasoning": "a", "reasoning_details": [{**PART, "text": "a"}]}),
         chunk({"reasoning_details": [SECRET]}),
         chunk({"reasoning": "b", "reasoning_details": [SIGNED]}), {**STOP, "created": None}],
        {"text": "x", "reasoning": "ab", "back": {"messages": [
            ..., {"reasoning_details": [{**SIGNED, "text": "ab"}, SECRET]}]}}),
    "a lone surrogate and NaN": (
        [said("a\ud800b", "stop", usage={"prompt_tokens": float("nan")})],
        {"text": "a\ufffdb", "usage": {}}),
    "surrogate halves in two deltas": (
        [said("a\ud83d"), said("\ude00b", "stop")], {"text": "a\U0001f600b"}),
    "surrogate halves in two pieces of arguments": (
        [calls(call('{"at":"\ud83d', index=0, id="x")),
         calls(call('\ude00"}', name=None, index=0))],
        {"calls": [("b", {"at": "\U0001f600"})], "ids": ["x"]}),
    "Perplexity: the message so far beside each delta": (
        [{"choices": [{"delta": {"content": new}, "message": {"content": old}, "finish_reason": end}
                      ]} for new, old, end in [
            ("One ", "One ", None), ("two", "One two", None), ("", "One two", "stop")]],
        {"text": "One two"}),
    "vLLM: a named call ends with stop, its usage comes each time #6": (
        [chunk({"reasoning": "hm"}, usage={**USED, "completion_tokens": 1}),
         {**calls(LOOK), "usage": USED}, chunk({}, "stop", usage={**USED, "completion_tokens": 3})],
        {"reasoning": "hm", "calls": LOOKED, "usage": counted(5, 3),
         "raw": {"reasoning_field": "reasoning"}}),
    "Groq: usage beside the answer": (
        [X, chunk({}, "stop", x_groq={"usage": USED})], {"text": "x", "usage": SUM}),
    "usage behind the end, then broken bytes": (
        [STOP, DONE, {"choices": [], "usage": USED}],
        {"end": b"data: {oops\n\n", "text": "x", "usage": SUM, "whole_pieces": True}),
    "usage in an error behind a cut answer": (
        [said("x", "length"), {"error": {"message": "boom"}, "usage": USED}],
        {"text": "x", "finish": "length", "usage": SUM, "notes": ["cut"]}),
    "Azure: filtered in the middle": (
        [{"choices": [], "model": "", "prompt_filter_results": [{}]}, chunk(None), said("Half"),
         {"error": FILTERED}], {"text": "Half", "finish": "content_filter"}),
    "an error behind a text is told": ([STOP, BOOM], {"text": "x", "notes": ["boom"]}),
}  # fmt: skip


def index(n: int | None, text: str, finish: str | None = None) -> JSON:
    numbered = {} if n is None else {"index": n}
    return {**numbered, "delta": {"content": text}, "finish_reason": finish}


# id: the choices of each chunk; the text.
CHOICES: dict[str, tuple[list[list[JSON]], str]] = {
    "interleaved": ([[index(0, "A")], [index(1, "B")], [index(0, "C")], [index(1, "x", "length")],
                     [index(0, "D", "stop")]], "ACD"),
    "the other one first": ([[index(1, "B"), index(0, "A")],
                             [index(1, "b", "length"), index(0, "a", "stop")]], "Aa"),
    "no index": ([[index(None, "A")], [index(0, "B")], [index(None, "C", "stop")]], "ABC"),
    "the other one goes on": ([[index(0, "A", "stop")], [index(1, "x")]], "A"),
}  # fmt: skip
# word on the wire: finish reason of an answer that has a text.
FINISH: dict[str, str] = {
    word: reason
    for reason, listed in {
        "stop": "stop eos tool_calls end_turn eos_token end done complete COMPLETE completed"
        " stop-sequence stop_sequence function_call FINISH_REASON_STOP tool-calls word load"
        " Finished endTurn </s> <|eot_id|> turn_complete",
        "length": "length model_length MAX_TOKENS max_output_tokens maxTokens token_limit limit"
        " max_new_tokens context_window_exceeded max_length truncated max-completion-tokens"
        " maxtokens too_long",
        "content_filter": "content_filter SAFETY refusal sensitive content-filter contentFilter"
        " RECITATION PROHIBITED_CONTENT guardrail_intervened content_filtered moderation blocked"
        " blocked_by_policy ERROR_TOXIC safety_violation output_guardrails FINISH_REASON_SAFETY"
        " nsfw hate risk_control violation data_inspection_failed illegal_content",
        "error": "insufficient_system_resource network_error abort ERROR cancelled timeout"
        " rate_limit_exceeded malformed_tool_use terminated"
        " preempted oom worker_died repetition_detected",
    }.items()
    for word in listed.split()
}
UNKNOWN_ENDS = ("bored", "other", "unspecified", "case_insensitive", "steered", "room",
                "<b>\nx")  # fmt: skip


def tool_calls() -> Iterator[AnswerCase]:
    """Calls out of the deltas of servers that do not keep to the grammar."""
    for id, (deltas, found) in DELTAS.items():
        yield streamed(f"calls: {id}", *map(calls, deltas), BEGUN, calls=found)
    for absent in (None, "", "null", 3):
        odd = {"tool_calls": [call(index=0, id=absent)]}
        yield both(f"calls: the id is {absent!r} #12", odd, calls=BARE)
    for odd in (3, {"a": 1}, [3], ["x"], [None]):
        message = {"tool_calls": odd}
        yield both(f"calls: {odd!r} instead of them", message, error="LLM_BAD_RESPONSE")
    too_deep = '"arguments nested too deeply, or with a number that is too large"'
    for depth in (300, 1_000):
        body = answer_of({"content": "Half.", "tool_calls": [call("HERE", id="x")]}).decode()
        body = body.replace('"HERE"', '{"a":' + "[" * depth + "]" * depth + "}")
        deltas = b"data: " + body.replace('"message"', '"delta"').encode() + b"\n\n"
        found = [("b", too_deep)]
        id = f"calls: arguments nested {depth} deep"
        yield AnswerCase(id, body=body.encode(), stream=deltas, text="Half.", calls=found)
    both_calls = [*LOOKED, *BARE]
    for word in ("length", "content_filter", "error"):
        for words in ((word, "tool_calls"), ("tool_calls", word), (word, "bored"), ("bored", word)):
            chunks = [calls(LOOK), *(chunk({}, it) for it in words), calls(call(index=1, id="c2"))]
            id = f"no call counts as whole: {', '.join(words)}"
            yield streamed(id, *chunks, finish=word, calls=both_calls)


def texts() -> Iterator[AnswerCase]:
    for id, (message, word, expect) in MESSAGES.items():
        yield both(id, message, word, **expect)
    yield from streams(STREAMS)
    expect: JSON
    for word, finish in FINISH.items():
        yield both(f"ended by {word}", {"content": "x"}, word, text="x", finish=finish, raw=ABSENT)
    for word in UNKNOWN_ENDS:
        expect = {"text": "x", "raw": {"finish_reason": word}, "notes": [" ".join(word.split())]}
        yield both(f"ended by {word!r}, which is unknown", {"content": "x"}, word, **expect)
    ending: Any = {"type": "length", "length": 7}
    yield both("SGLang: the end is an object", {"content": "x"}, ending, text="x", finish="length")
    yield streamed("DashScope: null as a text until the end", said("a", "null"), said("b", "null"),
                   chunk({}, "stop"), text="ab")  # fmt: skip
    details = [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.text", "text": "b"}]
    message = {"content": "x", "reasoning_details": details}
    back = {"messages": [..., {"reasoning_details": details}]}
    id = "OpenRouter: details of a whole answer are not joined"
    yield AnswerCase(id, body=answer_of(message), text="x", reasoning="ab", back=back)
    for n, thinking in enumerate(("hm", [{"type": "text", "text": "hm"}], [{"text": "hm"}])):
        parts = [{"type": "thinking", "thinking": thinking}, {"type": "reference", "ids": [1]}]
        chunks = [
            *(said([*parts, {"type": "text", "text": "Yes"}]), said(["."])),
            *(calls(call("{", index=0, id="null")), calls(call("}", name="", index=0, id="null"))),
            said("", "model_length"),
        ]
        expect: JSON = {"text": "Yes.", "reasoning": "hm", "calls": BARE, "finish": "length"}
        yield streamed(f"Mistral: lists of text and thoughts, {n} #54", *chunks, **expect)
    lines = "\n".join(map(json.dumps, (said("a"), said("b", "stop"))))
    yield AnswerCase("chunks on lines of their own", text="ab", stream=lines.encode())
    for id, (listed, text) in CHOICES.items():
        yield streamed(f"choices: {id}", *({"choices": it} for it in listed), text=text)
    two = [{"index": n, "message": {"content": it}} for n, it in ((1, "B"), (0, "A"))]
    whole = json.dumps({"choices": two}).encode()
    yield AnswerCase("choices: of a whole answer", body=whole, text="A")


# id: usage on the wire, as counted.
USAGES: dict[str, tuple[Any, JSON]] = {
    "none": (None, {}),
    "no total": (USED, SUM),
    "no details": ({**USED, "prompt_tokens_details": None}, SUM),
    "DeepSeek's cache": ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 5},
                         counted(9, 0, cached_tokens=5)),
    "camel case": ({"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}, SUM),
    "more cached than read": ({"prompt_tokens": 2, "cached_tokens": 9},
                              counted(2, 0, cached_tokens=2)),
    **{f"reasoning {where} the completion": (
        {"prompt_tokens": 10, "completion_tokens": completion, "total_tokens": total,
         "completion_tokens_details": {"reasoning_tokens": n}},
        counted(10, found, reasoning_tokens=n))
       for where, completion, total, n, found in (
           ("beside", 5, 115, 100, 105), ("without", 0, 0, 7, 7),
           ("less, beside", 50, 80, 20, 70), ("within", 5, 15, 4, 5))},
}  # fmt: skip


# id: tools, and deltas of one call whose name comes in pieces, or of two calls; their names.
PIECES: dict[str, tuple[Sequence[str], list[JSON], Sequence[str]]] = {
    "two pieces": (
        ["get_weather"], [named("get_wea", id="x"), named("ther"), named(None, "{}")],
        ["get_weather"]),
    "three pieces, the arguments with the last": (
        ["get_weather"], [named("g"), named("et_wea"), named("ther", "{}")], ["get_weather"]),
    "a piece for each letter": (["look"], [named(it) for it in "look"], ["look"]),
    "the id in each piece": (
        ["get_weather"], [named("get_", id="x"), named("weather", id="x")], ["get_weather"]),
    "no index": (
        ["get_weather"], [{"function": {"name": "get_wea", "arguments": ""}},
                          {"function": {"name": "ther", "arguments": "{}"}}], ["get_weather"]),
    "the first piece is a tool, too": (
        ["get", "get_weather"], [named("get"), named("_wea"), named("ther", "{}")],
        ["get_weather"]),
    "each piece is a tool, too": (
        ["get", "_weather", "get_weather"], [named("get"), named("_weather")], ["get_weather"]),
    "behind a prefix": (
        ["get_weather"], [named("functions.get"), named("_weather")], ["get_weather"]),
    "a tool with a dot, by its own name": (["fs.look"], [named("fs."), named("look")], ["fs.look"]),
    "a tool with a dot, by its name on the wire": (
        ["fs.look"], [named("fs"), named("__look")], ["fs.look"]),
    "the name in each fragment": (
        ["a", "aa"], [named("a"), named("a"), named("a", "{}")], ["a"]),
    "the name of no tool in each fragment": (["b"], [named("c"), named("c", "{}")], ["c"]),
    "another id is another call": (
        ["get", "get_weather"], [named("get", id="x"), named("_weather", id="y")],
        ["get", "_weather"]),
    "another index is another call": (
        ["get_weather"], [named("get"), named("_weather", index=1)], ["get", "_weather"]),
    "a name after the arguments is another call": (
        ["a", "b", "ab"], [named("a", "{}"), named("b", "{}")], ["a", "b"]),
    "two tools that are no tool's name together": (
        ["a", "b", "abc"], [named("a"), named("b")], ["a", "b"]),
    "a tool whose name begins with the other's": (
        ["get", "get_weather"], [named("get", "{}"), named("get_weather", "{}")],
        ["get", "get_weather"]),
}  # fmt: skip


def names() -> Iterator[AnswerCase]:
    for id, (tools, deltas, found) in PIECES.items():
        request = ask(tools=[ToolSpec(name=name) for name in tools])
        expect: Calls = [(name, {}) for name in found]
        yield streamed(f"name: {id}", *map(calls, deltas), BEGUN, request=request, calls=expect)
    many = [
        calls(call(text, name=name, index=n, id=f"c{n}"))
        for n in range(300)
        for text, name in (("", "fs_"), ("", "_look"), ("{}", None), ('{"at":"a"}', None))
    ]
    yield streamed("a thousand corrections", *many, BEGUN, calls=[*LOOKED] * 300)


# id: the choice of a whole answer; what it comes to. The same choice is the chunk of a stream.
SHAPES: dict[str, tuple[JSON, JSON]] = {
    "text of the older API": ({"text": "x"}, {"text": "x"}),
    "text of the older API beside an empty message": (
        {"text": "x", "message": None}, {"text": "x"}),
    **{f"a message with {name} instead of content": ({"message": {name: "x"}}, {"text": "x"})
       for name in ("text", "output_text")},
    "content beside a field of its text": (
        {"message": {"content": "x", "output_text": "x"}}, {"text": "x"}),
    "text of the older API that is empty": ({"text": ""}, {}),
    "a message that is a text": ({"message": "x"}, {"text": "x"}),
    "an old function_call alone": (
        {"message": {"content": None, "function_call": {"name": "b", "arguments": B}}},
        {"calls": ONE}),
    **{f"content: {id}": ({"message": {"content": content}}, expect) for id, content, expect in (
        ("output_text parts", [{"type": "output_text", "text": "a"},
                               {"type": "output_text", "text": "b"}], {"text": "ab"}),
        ("a text part", [{"type": "text", "text": "x"}], {"text": "x"}),
        ("texts", ["a", "b"], {"text": "ab"}),
        ("a part without a type", [{"text": "x"}], {"text": "x"}),
        ("a text with a value", [{"type": "text", "text": {"value": "x"}}], {"text": "x"}),
        ("a text part with content", [{"type": "text", "content": "x"}], {"text": "x"}),
        ("a summary of thoughts", [{"type": "reasoning", "summary": [{"text": "hm"}]},
                                   {"type": "text", "text": "x"}],
         {"text": "x", "reasoning": "hm"}),
        ("JSON that has a text", {"text": "x", "score": 1}, {"text": '{"text":"x","score":1}'}),
        ("JSON of a content", {"content": "x"}, {"text": '{"content":"x"}'}),
        ("JSON with parts", {"parts": [{"n": 1}]}, {"text": '{"parts":[{"n":1}]}'}),
        ("a list of JSON", [{"n": 1}, {"n": 2}], {"text": '[{"n":1},{"n":2}]'}),
        ("a list of numbers", [1, 2], {"text": "[1,2]"}),
        ("a number", 5, {"text": "5"}),
        ("false", False, {"text": "false"}),
        ("an object that is a part", {"type": "output_text", "text": "x"}, {"text": "x"}),
        ("an object with parts", {"parts": [{"text": "x"}]}, {"text": "x"}),
        ("thoughts and text", [{"type": "thinking", "thinking": "hm"},
                               {"type": "reasoning_text", "text": ", so"},
                               {"type": "output_text", "text": "x"}],
         {"text": "x", "reasoning": "hm, so"}),
        ("a refusal", [{"type": "refusal", "refusal": "No."}],
         {"text": "No.", "finish": "content_filter"}),
        ("parts of other kinds beside a text", [{"type": "text", "text": "x"},
                                                {"type": "citation", "text": "y"}], {"text": "x"}),
    )},
    "Azure: filtered, without a message": (
        {"finish_reason": "content_filter", "content_filter_results": {"hate": {}}},
        {"finish": "content_filter"}),
    "Azure: filtered, the message is null": (
        {"finish_reason": "content_filter", "message": None}, {"finish": "content_filter"}),
    "Azure: filtered, an empty message": (
        {"finish_reason": "content_filter", "message": {"content": None}},
        {"finish": "content_filter"}),
    "Z.AI: sensitive, without a message": (
        {"finish_reason": "sensitive"}, {"finish": "content_filter"}),
    "cut before the message": ({"finish_reason": "length"}, {"finish": "length"}),
    **{f"nothing to read: {id}": (choice, {"error": BAD, "words": words}) for id, choice, words in (
        ("a field of the choice", {"output": "x"}, "output"),
        ("a field of the message", {"message": {"content": None, "answer": {"a": 1}}}, "answer"),
        ("parts", {"message": {"content": [{"type": "hologram", "data": "x"}]}}, "hologram"),
    )},
}  # fmt: skip
UNUSED: JSON = {"content": "", "role": "assistant"}
CALL_BEFORE = ToolCall(id="c1", name="b", arguments={}, arguments_raw="{}")
AFTER_RESULTS = ask(
    tools=TOOLS,
    messages=(
        Message.of("user", "hi"),
        Message(role="assistant", tool_calls=(CALL_BEFORE,)),
        Message(role="tool", tool_call_id="c1", name="b", content=(TextPart(text="1"),)),
    ),
)


def spent(completion: int, reasoning: int = 0) -> JSON:
    details = {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return {"more": {"usage": {"prompt_tokens": 5, "completion_tokens": completion, **details}}}


def shapes() -> Iterator[AnswerCase]:
    """Answers of odd shapes, whole and streamed, and answers that hold nothing."""
    for id, (choice, expect) in SHAPES.items():
        given = {"index": 0, "finish_reason": "stop", **choice}
        body, stream = json.dumps({"choices": [given]}).encode(), sse({"choices": [given]})
        yield AnswerCase(f"shape: {id}", body=body, stream=stream, **expect)
    parts = [{"type": "output_text", "text": "x"}]
    yield both("shape: output_text parts in deltas", {"content": parts}, text="x")
    yield streamed("shape: text of the older API in chunks", *(
        {"choices": [{"index": 0, "text": it, "finish_reason": end}]}
        for it, end in (("a", None), ("b", None), ("", "stop"))), text="ab")  # fmt: skip
    yield streamed("shape: an old function_call in pieces", *(
        chunk({"function_call": it}) for it in (
            {"name": "b", "arguments": ""}, {"arguments": '{"n"'}, {"arguments": ":1}"})),
        chunk({}, "function_call"), calls=ONE)  # fmt: skip
    odd = {"response": "x", "done": True}
    id = "shape: another API's answer"
    yield AnswerCase(id, body=json.dumps(odd).encode(), error=BAD, words="response, done")
    prompt = [{"prompt_index": 0, "content_filter_results": {"jailbreak": {"filtered": True}}}]
    filtered: JSON = {"choices": [], "prompt_filter_results": prompt}
    yield AnswerCase(
        "Azure: a prompt that is filtered inside an answer",
        body=json.dumps(filtered).encode(), stream=sse(filtered), finish="content_filter",
    )  # fmt: skip
    prompt = [{"content_filter_results": {"hate": {"filtered": False, "severity": "safe"}}}]
    safe: JSON = {"choices": [], "prompt_filter_results": prompt}
    yield streamed("Azure: a prompt that is not filtered", safe, STOP, text="x")
    yield from nothing_readable()


def nothing_readable() -> Iterator[AnswerCase]:
    """Answers that are paid and hold nothing: asked once more, but legal after results."""
    paid: JSON = {"then": FINE, "text": "fine", "asked": 2}
    for id, message in (("an empty text", UNUSED), ("null", {"content": None, "role": "x"})):
        yield both(f"paid: {id} is asked once more", message, **spent(9), **paid)
    once: JSON = {"error": BAD, "words": "9 tokens", "asked": 2}
    empty = answer_of(UNUSED, **spent(9)["more"])
    yield both("paid: and no more", UNUSED, **spent(9), **{**once, "then": empty})
    yield both("paid: hidden reasoning alone", UNUSED, **spent(9, 9), **paid)
    unknown = {"content": None, "answer": {"a": 1}}
    yield both("paid: an unknown form is not asked for again", unknown, **spent(9), then=FINE,
               error=BAD, words="answer, 9 tokens")  # fmt: skip
    silent: JSON = {"request": AFTER_RESULTS}
    yield both("silent after results: a few tokens", UNUSED, **spent(3), **silent)
    yield both("silent after results: a few beside reasoning", UNUSED, **spent(90, 88), **silent)
    yield both("silent after results: many tokens", UNUSED, **spent(90), **silent, **paid)
    yield both("paid: reasoning that is shown", {"content": "", "reasoning": "hm"}, **spent(9),
               reasoning="hm")  # fmt: skip
    yield both("paid: cut within hidden reasoning", UNUSED, "length", **spent(9), finish="length")
    yield both("silent: no tokens", UNUSED, **spent(0))
    yield both("silent: no text, not even an empty one", {"role": "x"}, **paid)


def usages() -> Iterator[AnswerCase]:
    table = dict(USAGES)
    for count in (2**53 + 1, 2**70, 10**400, 1e300, -5, float("nan"), None, "7", True):
        odd = {**USED, "total_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
        table[f"{str(count)[:9]} tokens"] = odd, SUM
    for id, (usage, found) in table.items():
        more = {"usage": usage}
        yield both(f"usage: {id}", {"content": "x"}, more=more, text="x", usage=found)


# text: reasoning and text that it comes to.
TAGS: dict[str, tuple[str | None, str]] = {
    "<think>hm</think>Yes.": ("hm", "Yes."),
    "<think>\nhm\n\nso\n</think>\n\nYes.": ("hm\n\nso", "Yes."),
    "<think>\n\n</think>\n\nYes.": (None, "Yes."),
    "<thinking>hm</thinking>Yes.": ("hm", "Yes."),
    "<thought>hm</thought>Yes.": ("hm", "Yes."),
    "<reasoning>hm</reasoning>Yes.": ("hm", "Yes."),
    "<seed:think>hm</seed:think>Yes.": ("hm", "Yes."),
    "[THINK]hm[/THINK]Yes.": ("hm", "Yes."),
    "<|START_THINKING|>hm<|END_THINKING|>Yes.": ("hm", "Yes."),
    "◁think▷hm◁/think▷Yes.": ("hm", "Yes."),
    "<think>a <think> </thin b < / c</think>Yes.": ("a <think> </thin b < / c", "Yes."),
    "<think>hm</think>": ("hm", ""),
    "  <think>hm</think>   Yes.": ("hm", "Yes."),
    "<think>hm</think>\n\n    if x:": ("hm", "    if x:"),
    "<think>hm</think>Use `<think>x</think>` so.": ("hm", "Use `<think>x</think>` so."),
}
PLAIN = (
    *("[THINKING]a[/THINKING]", "[", "<|START|>", "<reasonable>"),
    *("<", "<th", "<thin air>", "<thinker>a</thinker>", "`<think>` is a tag"),
    *("```xml\n<think>x</think>\n```", "The tag <think>x</think> is for reasoning."),
    *("    if x:", "  <thin air>", "    <b>"),
    *("<b><think>x</think></b>", "</think> closes it"),
)


def spelled(text: str, step: int, finish: str = "stop", **delta: Any) -> bytes:
    """A stream whose deltas have so many characters each."""
    pieces = [said(text[at : at + step]) for at in range(0, len(text), step)]
    return sse(*pieces, chunk(delta, finish))


def think_tags() -> Iterator[AnswerCase]:
    """Reasoning between tags at the beginning of an answer, and tags that are text."""
    for text, (thought, rest) in {**TAGS, **{it: (None, it) for it in PLAIN}}.items():
        for step in (1, 3):
            expect: JSON = {"text": rest, "reasoning": thought, "raw": ABSENT}
            body, stream = answer_of({"content": text}), spelled(text, step)
            yield AnswerCase(f"tags: {text!r} by {step} #33", body=body, stream=stream, **expect)
    own = "<think> is what Qwen writes first."
    id = "tags: never closed is the answer's own word"
    yield AnswerCase(id, text=own, stream=spelled(own, 3))
    for id, finish, delta in (("that took all the room", "length", {}), ("before a call", None, {
            "tool_calls": [call(index=0, id="c")]})):  # fmt: skip
        stream = spelled("<think>I look.", 4, finish or "stop", **delta)
        expect = {"reasoning": "I look.", "calls": BARE if delta else (), "finish": finish}
        yield AnswerCase(f"tags: thoughts {id}", stream=stream, **expect)
    for server in ("openai", "azure", "anthropic"):
        text = "<think>a</think>b"
        yield both(f"tags: {server} never writes them", {"content": text}, text=text, server=server)


BUSY = b'{"message": "busy", "type": "overloaded_error"}'
GONE: JSON = {"code": 502, "message": "Provider disconnected"}
UNAVAILABLE = [{"error": {"code": 503, "details": [1], "message": "overloaded"}}]
# Streams that come to one error: id, chunks, status.
BROKEN: dict[str, tuple[list[Any], int]] = {
    "an error event #47": ([b"event: error\ndata: %b\n\n" % BUSY], 529),
    "an error beside no choices": ([b'data: {"error": %b, "choices": []}\n\n' % BUSY], 529),
    "Gemini: an error in a list": ([said("Half"), json.dumps(UNAVAILABLE).encode()], 503),
    "Gemini: an error on many lines": (
        [said("Half"), json.dumps(UNAVAILABLE, indent=2).encode()], 503),
    "OpenRouter: an error beside a choice": ([chunk({"content": ""}, "error", error=GONE)], 502),
    "OpenRouter: an error in a choice": (
        [{"choices": [{"delta": {"content": ""}, "finish_reason": "error", "error": GONE}]}], 502),
}  # fmt: skip
FLAGGED = error_of(code=403, message="m", metadata={"reasons": ["x"], "flagged_input": "hi"})
FINE = answer_of({"content": "fine"})

# Bodies of every other kind: what is played, and what it comes to.
BODIES: dict[str, JSON] = {
    "OpenRouter: no choice is asked again #10": {
        "body": b'{"id": "x", "choices": null}', "then": FINE, "text": "fine", "asked": 2},
    "OpenRouter: no choice in a stream is asked again": {
        "body": sse({"choices": None}), "then": FINE, "text": "fine", "asked": 2},
    "OpenRouter: a prompt that the filter stops": {
        "status": 403, "body": FLAGGED, "finish": "content_filter"},
    "Azure: a prompt that the filter stops #51": {
        "status": 400, "body": error_of(**FILTERED), "finish": "content_filter"},
    "OpenAI: a prompt that a policy stops": {
        "status": 400, "body": error_of(code="bio_policy"), "finish": "content_filter"},
    "a redirect is named and not followed #65": {
        "status": 307, "headers": {"location": "http://127.0.0.1:1/elsewhere?token=abc"},
        "error": HTTP, "words": "127.0.0.1:1/elsewhere"},
    "the key where a refusal is cut": {
        "status": 400, "body": b"x" * 590 + KEY.encode(), "error": HTTP},
    "the key where a body is cut": {
        "status": 400, "body": b" " * (64 * 1024 - 16) + KEY.encode(), "error": HTTP},
    "the key where no answer is cut": {
        "body": b"x" * 65 + KEY.encode() + b"z" * 3000, "error": BAD},
    "the key where broken JSON is cut": {
        "body": b"{" + b"x" * 64 + KEY.encode() + b"z" * 3000, "error": BAD},
    "the key where an id is cut": {
        "status": 400, "headers": {"x-request-id": "x" * 185 + KEY}, "error": HTTP},
}  # fmt: skip


def errors() -> Iterator[AnswerCase]:
    yield streamed("an error that is a text", said("x"), {"error": "just words"}, error=BAD)
    for id, (chunks, status) in BROKEN.items():
        yield streamed(id, *chunks, end=b"", error=HTTP, http_status=status)
    for id, given in BODIES.items():
        yield AnswerCase(id, **given)


def groq() -> Iterator[AnswerCase]:
    """A call that the server could not read, in an error or in a stream: asked for once more."""
    error = {"message": "Failed to call a function.", "code": "tool_use_failed"}
    body, said = error_of(**error, type="invalid_request_error"), "Failed to call"
    again: JSON = {"then": FINE, "text": "fine", "asked": 2}
    yield AnswerCase("Groq: asked once more #53", status=400, body=body, **again)
    once: JSON = {"body": sse({"error": error}), "then": body, "asked": 2}
    yield AnswerCase("Groq: asked once more and no more", **once, error=HTTP, words=said)


ENDED = [calls(LOOK), BEGUN]
UNREAD = {"error": {"code": "tool_use_failed", "failed_generation": '{"name": "b"}'}}
LATE: dict[str, Stream] = {
    "an error": ([*ENDED, BOOM], {}),
    "an error with it": ([{**calls(LOOK, finish="tool_calls"), "x_groq": BOOM}], {}),
    "an error in the choice": (
        [{"choices": [{"delta": {"tool_calls": [LOOK]}, **BOOM}]}, chunk({}, "stop")], {}),
    "an unread call": ([*ENDED, UNREAD], {"error": BAD}),
    "broken JSON": ([*ENDED], {"end": b"data: {oops\n\n", "error": BAD}),
    "more calls, then a reset": (
        [*ENDED, calls(call(index=1, id="c2"))], {"end": b"", "ending": "reset", "error": HTTP}),
    "an error behind [DONE]": ([*ENDED, DONE, BOOM], {"error": "", "calls": LOOKED}),
    "no blank line": ([*ENDED[:1], sse(BEGUN, end=b"").rstrip()],
                      {"end": b"", "error": "", "calls": LOOKED}),
}  # fmt: skip


def late() -> Iterator[AnswerCase]:
    """Streams that continue after a finish reason: errors, breaks, more calls."""
    table = {f"behind calls: {id}": row for id, row in LATE.items()}
    yield from streams(table, error="LLM_RATE_LIMITED")
    announced = said("I look.", "tool_calls")
    for ending, framing in (
        *(("reset", "chunked"), ("reset", "none"), ("close", "chunked"), ("close", "length")),
    ):
        how: JSON = {"ending": ending, "framing": framing}
        bare: JSON = {**how, "end": b""}
        id = f"then {ending}, framing {framing}"
        yield streamed(f"behind calls: {id}", *ENDED, **bare, error=HTTP)
        yield streamed(f"behind a text: {id}", STOP, **bare, text="x")
        yield streamed(f"calls announced, {id}", announced, **bare, error=HTTP)
        id = f"a clean end without [DONE], framing {framing}"
        yield streamed(id, *ENDED, framing=framing, end=b"", calls=LOOKED)


SEVERAL = [
    {"id": "plain"},
    {"id": "v", "max_model_len": 4096},
    {"id": "r", "context_length": 10, "supported_parameters": ["tools", "seed"]},
    {"id": "m", "max_context_length": 9, "capabilities": {"vision": True, "x": False}},
    {"id": "llama.cpp", "meta": {"n_ctx": 8192, "n_ctx_train": 32768}},
    {"nonsense": 1},
]
TOLD = [
    ("plain", None, ()), ("v", 4096, ()), ("r", 10, ("tools",)), ("m", 9, ("vision",)),
    ("llama.cpp", 8192, ()),
]  # fmt: skip
MODELS = (
    ModelsCase("what servers tell", {"data": SEVERAL}, TOLD),
    ModelsCase("a bare list", ["a"], [("a", None, ())]),
    ModelsCase("no models", {"data": None}, []),
    ModelsCase("no list", {"hello": 1}, BAD),
    ModelsCase("no JSON", b"<html>", BAD),
)
ANSWERS = (thorough, tool_calls, names, texts, shapes, usages, think_tags, errors, groq, late)
WIRE = WireSetup(
    name="chat",
    provider="openai",
    ended=re.compile(rb'"finish_reason": "[a-z_]+"[^\r\n]*'),
    servers=chat_requests.SERVERS,
    answers=(*(case for cases in ANSWERS for case in cases()), *chat_requests.going_back()),
    requests=tuple(chat_requests.requests()),
    histories=chat_requests.HISTORIES,
    urls={given: f"{meant}/chat/completions" for given, meant in chat_requests.URLS.items()},
    models=MODELS,
    quirks=(
        *(1, *range(4, 9), *range(10, 27), 30, 32, 33, 34, 35, 47),
        *(*range(50, 56), 58, 59, 60, 62, 64, 65),
    ),
)
