"""What Chat Completions servers answer, and what that comes to. Requests are in `chat_requests`.

`#n` in an id is the n-th line of the list of quirks (providers.md 10).
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from servers.player import Framing
from wires import chat_requests
from wires.harness import (
    ABSENT,
    JSON,
    KEY,
    TOOLS,
    AnswerCase,
    ModelsCase,
    WireSetup,
    answer_case,
    ask,
)

DONE = b"data: [DONE]\n\n"
Calls = Sequence[tuple[str, JSON | str]]


def chunk(delta: Any, finish: str | None = None, **more: Any) -> JSON:
    """A chunk of one choice."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def sse(*chunks: Any, end: bytes = DONE) -> bytes:
    """An event stream of JSON chunks; bytes stand as they are."""
    events = [
        item if isinstance(item, bytes) else b"data: " + json.dumps(item).encode() + b"\n\n"
        for item in chunks
    ]
    return b"".join(events) + end


def streamed(id: str, *chunks: Any, end: bytes = DONE, **given: Any) -> AnswerCase:
    """A case that only streams."""
    return answer_case(id, stream=sse(*chunks, end=end), **given)


def answer_of(message: JSON, finish: str | None = "stop", **more: Any) -> bytes:
    """A whole body."""
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return json.dumps({"model": "m1", "choices": [choice], **more}).encode()


def both(id: str, message: JSON, word: str = "stop", /, **given: Any) -> AnswerCase:
    """A case whose stream brings each field of the message in a delta of its own."""
    more = given.pop("more", {})
    deltas = [chunk({name: value}) for name, value in message.items()]
    stream = sse(*deltas, chunk({}, word, **more))
    return answer_case(id, body=answer_of(message, word, **more), stream=stream, **given)


def call(arguments: Any = "{}", *, name: Any = "b", **more: Any) -> JSON:
    """A call, or a piece of one."""
    return {**more, "function": {"name": name, "arguments": arguments}}


def calls(*items: JSON, finish: str | None = None) -> JSON:
    """A chunk of calls."""
    return chunk({"tool_calls": list(items)}, finish)


def spelled(text: str, step: int, finish: str = "stop", **delta: Any) -> bytes:
    """A stream whose deltas have so many characters each."""
    pieces = [chunk({"content": text[at : at + step]}) for at in range(0, len(text), step)]
    return sse(*pieces, chunk(delta, finish))


LOOK = call('{"at":"a"}', name="fs__look", index=0, id="c1")
USED = {"prompt_tokens": 5, "completion_tokens": 2}
FULL_USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 7},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
COUNTED = {
    "prompt_tokens": 20,
    "completion_tokens": 9,
    "total_tokens": 29,
    "cached_tokens": 7,
    "reasoning_tokens": 3,
}
A_MESSAGE: JSON = {
    "role": "assistant",
    "content": "Grüße \u2028 both",
    "refusal": None,
    "reasoning_content": "Hm",
    "reasoning_details": [{"index": 0, "type": "reasoning.text", "text": "Hm", "format": "f"}],
    "extra_content": {"google": {"thought_signature": "s"}},
    "tool_calls": [
        call('{"at":"a"}', name="fs__look", id="c1", type="function", extra_content={"x": 1}),
        call('{"n":1}', id="c2"),
    ],
}


GREETING = (
    b"data: "
    + json.dumps(chunk({"content": "Grüße \u2028 both"}), ensure_ascii=False).encode()
    + b"\n\n"
)


def thorough() -> Iterator[AnswerCase]:
    """Those that are cut everywhere and get every wrong value."""
    start = [
        b": keep-alive\n\n",
        b"event: ping\ndata: ping\n\n",
        chunk({"role": "assistant", "content": ""}, model="m1"),
        chunk({"reasoning_content": "Hm"}),
        GREETING,
        chunk({"extra_content": A_MESSAGE["extra_content"]}),
    ]
    pieces = [
        calls(call("", name="fs__look", index=0, id="c1", extra_content={"x": 1})),
        calls(call('{"at":', name=None, index=0)),
        calls(call('"a"}', name=None, index=0)),
        calls(call('{"n":1}', index=1, id="c2")),
    ]
    end: JSON = {"choices": [], "usage": FULL_USAGE, "x_groq": {"usage": None}}
    yield answer_case(
        "reasoning, text, two calls, usage #1 #4 #7",
        body=answer_of(A_MESSAGE, "tool_calls", usage=FULL_USAGE),
        stream=sse(*start, *pieces, chunk({}, "tool_calls"), end),
        text="Grüße \u2028 both",
        reasoning="Hm",
        calls=[("fs.look", {"at": "a"}), ("b", {"n": 1})],
        ids=["c1", "c2"],
        extras=[{"extra_content": {"x": 1}}, None],
        usage=COUNTED,
        thorough=True,
    )
    text = {"content": "One two", "reasoning": "so"}
    yield answer_case(
        "text with usage in the last chunk",
        body=b"\n \n" + json.dumps(json.loads(answer_of(text, usage=USED)), indent=1).encode(),
        stream=sse(
            chunk({"reasoning": "so", "content": "One "}),
            chunk({"content": "two"}),
            chunk({}, "stop", usage=USED),
        ),
        text="One two",
        reasoning="so",
        usage={**USED, "total_tokens": 7},
        thorough=True,
    )


TWO: Calls = [("b", {"n": 1}), ("c", {"n": 2})]
ONE: Calls = TWO[:1]
BARE: Calls = [("b", {})]
LOOKED: Calls = [("fs.look", {"at": "a"})]
B, C = '{"n":1}', '{"n":2}'
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
    "always index 0, no ids": ([call(B, index=0, id=""), call(C, name="c", index=0, id="")], TWO),
    "always index 0, no ids, the same tool": (
        [call(B, index=0), call(C, index=0)], [("b", {"n": 1}), ("b", {"n": 2})]),
    "always index 0, no ids, no arguments": ([call(index=0), call(index=0)], [("b", {})] * 2),
    "no index, no ids": ([call(B), call(C, name="c")], TWO),
    "no index, fragments": (
        [call('{"n"', id="x"), call(":1}", name=None), call(C, name="c", id="y")], TWO),
    "no index, the id in each delta": (
        [call('{"n"', id="x"), call(":1}", name=None, id="x"), call(C, name="c", id="y")], TWO),
    "the id comes late": (
        [call('{"n"'), call(":1}", name=None, id="x"), call(C, name="c", id="y")], TWO),
    "id and name in each delta #13": (
        [call('{"n"', index=0, id="x"), call(":1}", index=0, id="x")], ONE),
    "the name in each delta": ([call('{"n"', index=0, id="x"), call(":1}", index=0)], ONE),
    "empty and null in continuations": (
        [call('{"n"', index=0, id="x"), call(":1", name="", index=0, id="null"),
         call("}", name="null", index=0, id=""), call(None, name=None, index=0)], ONE),
    "two calls under one id #60": (
        [call(B, index=0, id="x"), call(C, index=0, id="x")], [("b", {"n": 1}), ("b", {"n": 2})]),
    "the whole call once more": (
        [call('{"n"', index=0, id="x"), call(":1}", name=None, index=0),
         call(B, index=0, id="x")], ONE),
    "arguments as an object #14": (
        [call({"n": 1}, index=0, id="x"), call({"n": 2}, name="c", index=1, id="y")], TWO),
    "no arguments at all": ([{"index": 0, "id": "x", "function": {"name": "b"}}], [("b", {})]),
    "names with what leaks around them #59": (
        [call(index=n, id=f"c{n}", name=name) for n, name in enumerate(
            ["fs__look", "functions.fs__look", "fs__look<|channel|>json", "functions.fs__look:0",
             "fs.look", "made_up"])],
        [("fs.look", {})] * 5 + [("made_up", {})]),
    "arguments as they were written": (
        [call(text, index=n, id=f"c{n}") for n, text in enumerate(
            ["", "  ", "null", "{oh", "[1]", '"text"', '{"a": 1}{"b": 2}', '{"a": "\\ud800"}'])],
        [("b", {})] * 3 + [("b", "{oh"), ("b", "[1]"), ("b", '"text"'),
         ("b", '{"a": 1}{"b": 2}'), ("b", {"a": "\ud800"})]),
}  # fmt: skip


def tool_calls() -> Iterator[AnswerCase]:
    """Calls out of the deltas of servers that do not keep to the grammar."""
    for id, (deltas, found) in DELTAS.items():
        stream = [calls(delta) for delta in deltas]
        yield streamed(f"calls: {id}", *stream, chunk({}, "tool_calls"), calls=found)
    yield both(
        "one call that ends with stop #15",
        {"tool_calls": [LOOK]},
        "stop",
        calls=[("fs.look", {"at": "a"})],
        ids=["c1"],
    )
    for absent in (None, "", "null", 3):
        odd = call(index=0, id=absent)
        yield both(f"calls: the id is {absent!r} #12", {"tool_calls": [odd]}, calls=[("b", {})])
    same = [call(index=n, id=id) for n, id in enumerate(["x", "x", "x_2", "x"])]
    yield both(
        "calls: no two have one id",
        {"tool_calls": same},
        calls=[("b", {})] * 4,
        ids=["x", "x_2", "x_2_2", "x_3"],
    )
    yield streamed(
        "calls: vendor fields of every delta #35",
        calls(call('{"n":', index=0, id="x", extra_content={"s": 1})),
        calls(call("1}", name=None, index=0, thought="t")),
        calls=ONE,
        extras=[{"extra_content": {"s": 1}, "thought": "t"}],
        back={"messages": [..., {"tool_calls": [{"extra_content": {"s": 1}}]}, ...]},
    )
    for odd in (3, {"a": 1}, [3], ["x"], [None]):
        yield both(
            f"calls: {odd!r} instead of calls", {"tool_calls": odd}, error="LLM_BAD_RESPONSE"
        )
    for depth in (300, 1_000):
        nested: Any = json.dumps(answer_of({"content": "Half.", "tool_calls": [LOOK]}).decode())
        deep = '{"a":' + "[" * depth + "]" * depth + "}"
        body = json.loads(nested).replace(json.dumps(LOOK["function"]["arguments"]), deep)
        yield answer_case(
            f"calls: arguments nested {depth} deep",
            body=body.encode(),
            stream=b"data: " + body.replace('"message"', '"delta"').encode() + b"\n\n",
            text="Half.",
            calls=[
                ("fs.look", '"arguments nested too deeply, or with a number that is too large"')
            ],
        )
    late = {"content": "ab", "tool_calls": [call(id="x")]}
    last = {"choices": [{"delta": {}, "message": late, "finish_reason": "stop"}]}
    yield streamed(
        "the whole message once more in the last chunk",
        chunk({"content": "ab"}),
        last,
        text="ab",
        calls=[("b", {})],
        ids=["x"],
    )
    old = {"function_call": call('{"n":1}')["function"]}
    yield both("the old function_call", old, "function_call", calls=ONE)
    empty = {"name": "", "arguments": ""}
    yield both(
        "an empty function_call is none",
        {"content": "x", "function_call": empty},
        text="x",
        defect=1,
    )
    yield both(
        "an empty entry of tool_calls is none",
        {"content": "x", "tool_calls": [{"index": 0, "id": "", "function": empty}]},
        text="x",
        defect=1,
    )
    yield both(
        "an entry with an id alone is none",
        {"content": "x", "tool_calls": [{"id": "x"}]},
        text="x",
        defect=1,
    )
    yield both(
        "an empty list of calls #17", {"content": "x", "tool_calls": []}, "tool_calls", text="x"
    )
    half = call('{"at": "a', name="fs__look", index=0, id="x")
    yield both(
        "cut by length within arguments #18",
        {"tool_calls": [half]},
        "length",
        calls=[("fs.look", '{"at": "a')],
        finish="length",
    )
    written = "functions.b({})\n<tool_call>{}</tool_call>"
    yield both("calls written as plain text are text #58", {"content": written}, text=written)
    for word in ("length", "content_filter", "error"):
        for words in ((word, "tool_calls"), ("tool_calls", word), (word, "bored"), ("bored", word)):
            first, second = (chunk({}, said) for said in words)
            yield streamed(
                f"no call counts as whole: {', '.join(words)}",
                calls(LOOK),
                first,
                second,
                calls(call(index=1, id="c2")),
                finish=word,
                calls=[("fs.look", {"at": "a"}), ("b", {})],
            )
    twice = calls(LOOK, finish="tool_calls"), calls(call(index=1, id="c2"), finish="tool_calls")
    yield streamed("each call ends the answer", *twice, calls=[("fs.look", {"at": "a"}), ("b", {})])


def texts() -> Iterator[AnswerCase]:
    """Text, reasoning, finish reasons, usage."""
    yield both(
        "text, unknown fields #21",
        {"content": "x", "annotations": [], "mood": {"a": 1}},
        more={"service_tier": "x"},
        text="x",
        back={
            "messages": [
                ...,
                {
                    "role": "assistant",
                    "content": "x",
                    "annotations": ABSENT,
                    "mood": ABSENT,
                    "refusal": ABSENT,
                },
            ]
        },
    )
    yield both("empty answer", {"content": ""}, text="", usage={})
    yield streamed("a clean end without a finish reason #16", chunk({"content": "x"}), text="x")
    yield streamed(
        "what follows [DONE] is ignored #62",
        chunk({"content": "x"}, "stop"),
        end=DONE + sse(chunk({"content": "y"}), b"data: {oops\n\n"),
        text="x",
    )
    yield streamed(
        "[DONE] with a space, no space before data",
        b'data:{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\n',
        end=b"data: [DONE] \n\n",
        text="x",
    )
    yield streamed(
        "newlines before the first word #34",
        chunk({"content": "\n\n"}),
        chunk({"content": " a\n"}, "stop"),
        text="a\n",
    )
    empties: list[JSON] = [{"choices": []}, {"choices": None}, chunk(None), {}]
    for n, empty in enumerate(empties):
        yield streamed(
            f"a chunk without a delta, {n} #50", empty, chunk({"content": "x"}, "stop"), text="x"
        )
    words = {
        "stop": "stop",
        "eos": "stop",
        "tool_calls": "stop",
        "length": "length",
        "model_length": "length",
        "content_filter": "content_filter",
        "end_turn": "stop",
        "insufficient_system_resource": "error",
        "network_error": "error",
        "bored": "stop",
        "MAX_TOKENS": "length",
        "SAFETY": "content_filter",
        "abort": "error",
    }
    for word, finish in words.items():
        raw = {"finish_reason": "bored"} if word == "bored" else ABSENT
        yield both(f"ended by {word}", {"content": "x"}, word, text="x", finish=finish, raw=raw)
    yield both("an unknown end of nothing", {"content": ""}, "bored", finish="error")
    yield both(
        "a refusal is text", {"refusal": "I will not."}, text="I will not.", finish="content_filter"
    )
    yield streamed(
        "two reasoning fields count once #32",
        chunk({"reasoning": "a", "reasoning_content": "a"}),
        chunk({"content": "x"}, "stop"),
        text="x",
        reasoning="a",
        raw={"reasoning_field": "reasoning"},
    )
    part = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
    secret = {"type": "reasoning.encrypted", "index": 1, "data": "E"}
    joined = [{**part, "text": "ab", "signature": "s"}, secret]
    yield streamed(
        "OpenRouter: details are joined and go back",
        b": OPENROUTER PROCESSING\n\n",
        chunk({"reasoning": "a", "reasoning_details": [{**part, "text": "a"}]}),
        chunk({"reasoning_details": [secret]}),
        chunk({"reasoning": "b", "reasoning_details": [{**part, "text": "b", "signature": "s"}]}),
        chunk({"content": "x"}, "stop", created=None),
        text="x",
        reasoning="ab",
        back={"messages": [..., {"reasoning_details": joined}]},
    )
    details = [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.text", "text": "b"}]
    yield answer_case(
        "OpenRouter: details of a whole answer are not joined",
        body=answer_of({"content": "x", "reasoning_details": details}),
        text="x",
        reasoning="ab",
        back={"messages": [..., {"reasoning_details": details}]},
    )
    for n, thinking in enumerate(("hm", [{"type": "text", "text": "hm"}], [{"text": "hm"}])):
        parts = [{"type": "thinking", "thinking": thinking}, {"type": "reference", "ids": [1]}]
        yield streamed(
            f"Mistral: lists of text and thoughts, {n} #54",
            chunk({"content": [*parts, {"type": "text", "text": "Yes"}]}),
            chunk({"content": ["."]}),
            calls(call("{", name="fs__look", index=0, id="null")),
            calls(call("}", name="", index=0, id="null")),
            chunk({"content": ""}, "model_length"),
            text="Yes.",
            reasoning="hm",
            calls=[("fs.look", {})],
            finish="length",
        )
    message = {"content": {"answer": 1, "a": [True]}}
    yield both(
        "content that is an object is its JSON", message, text='{"answer":1,"a":[true]}', defect=2
    )
    lone = chunk({"content": "a\ud800b"}, "stop", usage={"prompt_tokens": float("nan")})
    yield streamed("a lone surrogate and NaN", lone, text="a\ufffdb", usage={})
    halves = [chunk({"content": "a\ud83d"}), chunk({"content": "\ude00b"}, "stop")]
    yield streamed("surrogate halves in two deltas", *halves, text="a\U0001f600b", defect=3)
    cut = [call('{"at":"\ud83d', name="fs__look", index=0, id="x"), call('\ude00"}', name=None)]
    yield streamed(
        "surrogate halves in two pieces of arguments",
        calls(cut[0]),
        calls({**cut[1], "index": 0}),
        calls=[("fs.look", {"at": "\U0001f600"})],
        ids=["x"],
        defect=3,
    )
    yield answer_case(
        "chunks on lines of their own",
        text="ab",
        stream="\n".join(
            json.dumps(item) for item in (chunk({"content": "a"}), chunk({"content": "b"}, "stop"))
        ).encode(),
    )
    so_far = [("One ", "One ", None), ("two", "One two", None), ("", "One two", "stop")]
    yield streamed(
        "Perplexity: the message so far beside each delta",
        *(
            {
                "choices": [
                    {"delta": {"content": new}, "message": {"content": old}, "finish_reason": end}
                ]
            }
            for new, old, end in so_far
        ),
        text="One two",
    )
    yield from choices()


def choices() -> Iterator[AnswerCase]:
    """More choices than were asked for are never mixed."""

    def one(index: int | None, text: str, finish: str | None = None) -> JSON:
        numbered = {} if index is None else {"index": index}
        return {**numbered, "delta": {"content": text}, "finish_reason": finish}

    table: dict[str, tuple[list[list[JSON]], str]] = {
        "interleaved": ([[one(0, "A")], [one(1, "B")], [one(0, "C")], [one(1, "x", "length")],
                         [one(0, "D", "stop")]], "ACD"),
        "the other one first": ([[one(1, "B"), one(0, "A")],
                                 [one(1, "b", "length"), one(0, "a", "stop")]], "Aa"),
        "no index": ([[one(None, "A")], [one(0, "B")], [one(None, "C", "stop")]], "ABC"),
        "only another one": ([[one(2, "A")], [one(2, "B", "stop")]], "AB"),
        "two others": ([[one(2, "A")], [one(3, "x")], [one(2, "B", "stop")]], "AB"),
        "the other one goes on": ([[one(0, "A", "stop")], [one(1, "x")]], "A"),
    }  # fmt: skip
    for id, (listed, text) in table.items():
        yield streamed(f"choices: {id}", *({"choices": it} for it in listed), text=text)
    two = [{"index": n, "message": {"content": it}} for n, it in ((1, "B"), (0, "A"))]
    yield answer_case(
        "choices: of a whole answer", body=json.dumps({"choices": two}).encode(), text="A"
    )


def usages() -> Iterator[AnswerCase]:
    """Token counts of every shape."""

    def both_counts(id: str, usage: Any, **counted: int) -> AnswerCase:
        more = {"usage": usage}
        return both(f"usage: {id}", {"content": "x"}, more=more, text="x", usage=counted)

    def details(reasoning: int) -> JSON:
        return {"completion_tokens_details": {"reasoning_tokens": reasoning}}

    yield both_counts("none", None)
    yield both_counts("no total", USED, **USED, total_tokens=7)
    yield both_counts("no details", {**USED, "prompt_tokens_details": None}, **USED, total_tokens=7)
    hit = {"prompt_tokens": 9, "prompt_cache_hit_tokens": 5, "total_tokens": 9}
    yield both_counts("DeepSeek's cache", hit, prompt_tokens=9, total_tokens=9, cached_tokens=5)
    more = {"prompt_tokens": 2, "cached_tokens": 9}
    yield both_counts(
        "more cached than read", more, prompt_tokens=2, total_tokens=2, cached_tokens=2
    )
    yield both_counts(
        "reasoning beside the completion",
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 115, **details(100)},
        prompt_tokens=10,
        completion_tokens=105,
        total_tokens=115,
        reasoning_tokens=100,
    )
    yield both_counts(
        "reasoning without a completion",
        {"prompt_tokens": 10, **details(7)},
        prompt_tokens=10,
        completion_tokens=7,
        total_tokens=17,
        reasoning_tokens=7,
    )
    yield both_counts(
        "reasoning within the completion",
        {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15, **details(4)},
        prompt_tokens=10,
        completion_tokens=5,
        total_tokens=15,
        reasoning_tokens=4,
    )
    for count in (2**53 + 1, 2**70, 10**400, 1e300, -5, float("nan"), None, "7", True):
        odd = {**USED, "total_tokens": count, "prompt_tokens_details": {"cached_tokens": count}}
        yield both_counts(f"{str(count)[:9]} tokens", odd, **USED, total_tokens=7)
    each = [
        chunk({"content": "a"}, usage=USED),
        chunk({"content": "b"}, "stop", usage={**USED, "completion_tokens": 3}),
    ]
    yield streamed(
        "usage: on every chunk it is not added up #6",
        *each,
        text="ab",
        usage={"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    )
    beside = chunk({}, "stop", x_groq={"usage": USED})
    yield streamed(
        "usage: Groq's beside the answer",
        chunk({"content": "x"}),
        beside,
        text="x",
        usage={**USED, "total_tokens": 7},
    )
    for junk in (b"", b"data: {oops\n\n"):
        late = sse({"choices": [], "usage": USED}, end=junk)
        yield streamed(
            f"usage: behind the end, then {junk!r}",
            chunk({"content": "x"}, "stop"),
            end=DONE + late,
            text="x",
            usage={**USED, "total_tokens": 7},
            whole_pieces=True,
        )
    error = {"error": {"message": "boom"}, "usage": USED}
    yield streamed(
        "usage: in an error behind a cut answer",
        chunk({"content": "x"}, "length"),
        error,
        text="x",
        finish="length",
        usage={**USED, "total_tokens": 7},
        notes=["cut"],
        defect=5,
    )


# text: reasoning and text that it comes to.
TAGS: dict[str, tuple[str | None, str]] = {
    "<think>hm</think>Yes.": ("hm", "Yes."),
    "<think>\nhm\n\nso\n</think>\n\nYes.": ("hm\n\nso", "Yes."),
    "\n \n<think>hm</think> Yes.": ("hm", "Yes."),
    "<think>\n\n</think>\n\nYes.": (None, "Yes."),
    "<thinking>hm</thinking>Yes.": ("hm", "Yes."),
    "<thought>hm</thought>Yes.": ("hm", "Yes."),
    "<think>a </thin b < / c</think>Yes.": ("a </thin b < / c", "Yes."),
    "<think>a <think> b</think>Yes.": ("a <think> b", "Yes."),
    "<think>hm</think>": ("hm", ""),
    "<think>hm</think>Use `<think>x</think>` so.": ("hm", "Use `<think>x</think>` so."),
}
PLAIN = (
    *("<", "<th", "<thin air>", "<thinker>a</thinker>", "`<think>` is a tag"),
    *("```xml\n<think>x</think>\n```", "The tag <think>x</think> is for reasoning."),
    *("<b><think>x</think></b>", "</think> closes it"),
)


def think_tags() -> Iterator[AnswerCase]:
    """Reasoning between tags at the beginning of an answer, and tags that are text."""
    for text, (thought, said) in {**TAGS, **{it: (None, it) for it in PLAIN}}.items():
        for step in (1, 3):
            yield answer_case(
                f"tags: {text!r} by {step} #33",
                body=answer_of({"content": text}),
                stream=spelled(text, step),
                text=said,
                reasoning=thought,
                raw=ABSENT,
            )
    own = "<think> is what Qwen writes first."
    yield answer_case(
        "tags: never closed is the answer's own word",
        text=own,
        stream=spelled(own, 3),
        shown_reasoning=False,
    )
    yield answer_case(
        "tags: thoughts that took all the room",
        reasoning="so much to",
        stream=spelled("<think>so much to", 5, "length"),
        finish="length",
    )
    yield answer_case(
        "tags: thoughts before a call",
        reasoning="I look.",
        stream=spelled("<think>I look.", 4, tool_calls=[call(index=0, id="c")]),
        calls=[("b", {})],
    )
    apart = {"reasoning_content": "hm", "content": "<think>x</think>"}
    yield both(
        "tags: text where the reasoning comes apart", apart, text="<think>x</think>", reasoning="hm"
    )
    for server in ("openai", "azure", "anthropic"):
        text = "<think>a</think>b"
        yield both(f"tags: {server} never writes them", {"content": text}, text=text, server=server)


# error object: code and whether it may be tried again.
ERRORS: list[tuple[Any, str, bool]] = [
    ({"message": "no", "type": "server_error", "code": None}, "LLM_HTTP_ERROR", True),
    ({"message": "no", "code": 429}, "LLM_RATE_LIMITED", True),
    ({"message": "no", "code": "insufficient_quota"}, "LLM_QUOTA_EXCEEDED", False),
    ({"message": "no", "type": "overloaded_error"}, "LLM_HTTP_ERROR", True),
    ({"message": "no", "code": "context_length_exceeded"}, "LLM_CONTEXT_OVERFLOW", False),
    ({"message": "no"}, "LLM_BAD_RESPONSE", False),
    ("no", "LLM_BAD_RESPONSE", False),
]
# status, error object: code and whether it may be tried again.
STATUSES: list[tuple[int, Any, str, bool]] = [
    (400, {}, "LLM_HTTP_ERROR", False),
    (401, {}, "LLM_AUTH_FAILED", False),
    (403, {}, "LLM_AUTH_FAILED", False),
    (402, {}, "LLM_QUOTA_EXCEEDED", False),
    (404, {}, "LLM_HTTP_ERROR", False),
    (408, {}, "LLM_TIMEOUT", True),
    (409, {}, "LLM_HTTP_ERROR", True),
    (413, {}, "LLM_HTTP_ERROR", False),
    (429, {}, "LLM_RATE_LIMITED", True),
    (429, {"code": "insufficient_quota"}, "LLM_QUOTA_EXCEEDED", False),
    (400, {"code": "context_length_exceeded"}, "LLM_CONTEXT_OVERFLOW", False),
    (400, {"message": "because prompt is too long: 9 tokens"}, "LLM_CONTEXT_OVERFLOW", False),
    (400, {"message": "because Your credit balance is too low"}, "LLM_QUOTA_EXCEEDED", False),
    (400, {"details": [{"reason": "API_KEY_INVALID"}]}, "LLM_AUTH_FAILED", False),
    (500, {}, "LLM_HTTP_ERROR", True),
    (503, {}, "LLM_HTTP_ERROR", True),
    (529, {}, "LLM_HTTP_ERROR", True),
]


def errors() -> Iterator[AnswerCase]:
    """Errors by status, in bodies, in streams, behind the end of an answer."""
    for n, (status, extra, code, retryable) in enumerate(STATUSES):
        body = json.dumps({"error": {"message": "because", **extra}}).encode()
        quirk = " #56" if extra.get("code") == "insufficient_quota" else ""
        yield answer_case(
            f"status {status}, {n}{quirk}",
            status=status,
            body=body,
            error=code,
            words="because",
            retryable=retryable,
        )
    for body in (b"", b"<html>", b"[]", b"null", b'{"detail": "x"}', b'{"error": "x"}'):
        yield answer_case(
            f"status 400 with {body!r}", status=400, body=body, error="LLM_HTTP_ERROR"
        )
    for n, (error, code, retryable) in enumerate(ERRORS):
        object = {"error": error}
        yield answer_case(
            f"error object {n} #9",
            body=json.dumps(object).encode(),
            stream=sse(object),
            error=code,
            retryable=retryable,
            words="no",
        )
    busy = json.dumps({"message": "busy", "type": "overloaded_error"}).encode()
    forms = (
        b"event: error\ndata: %b",
        b'event: error\ndata: {"error": %b}',
        b'{"error": %b}',
        b'data: {"error": %b, "choices": []}',
        b'[{"error": %b}]',
    )
    for n, form in enumerate(forms):
        yield streamed(
            f"an overloaded server, form {n} #47",
            form % busy + b"\n\n",
            words="busy",
            error="LLM_HTTP_ERROR",
            status=529,
            retryable=True,
        )
    wrapped = [{"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}]
    for indent in (None, 2):
        yield streamed(
            f"Gemini: an error in a list, indent {indent}",
            chunk({"content": "Half"}),
            json.dumps(wrapped, indent=indent).encode(),
            end=b"",
            status=503,
            error="LLM_HTTP_ERROR",
        )
    gone = {"code": 502, "message": "Provider disconnected"}
    in_choice = {"choices": [{"delta": {"content": ""}, "finish_reason": "error", "error": gone}]}
    for n, failed in enumerate((chunk({"content": ""}, "error", error=gone), in_choice)):
        yield streamed(
            f"OpenRouter: an error with a choice, {n}",
            failed,
            words="disconnected",
            error="LLM_HTTP_ERROR",
            status=502,
            retryable=True,
        )
    for n, body in enumerate((b'{"id": "x", "choices": null}', sse({"id": "x", "choices": None}))):
        again = answer_of({"content": "fine"})
        yield answer_case(
            f"OpenRouter: no choice is asked again, {n} #10",
            body=body,
            then=again,
            text="fine",
            asked=2,
        )
    flagged = {"code": 403, "message": "m", "metadata": {"reasons": ["x"], "flagged_input": "hi"}}
    filtered = {"code": "content_filter", "message": "filtered", "status": 400}
    for id, status, error in (("OpenRouter", 403, flagged), ("Azure #51", 400, filtered)):
        yield answer_case(
            f"a prompt that the filter stops: {id}",
            finish="content_filter",
            status=status,
            body=json.dumps({"error": error}).encode(),
        )
    yield streamed(
        "Azure: filtered in the middle",
        {"choices": [], "prompt_filter_results": [{}]},
        chunk(None),
        chunk({"content": "Half"}),
        {"error": filtered},
        text="Half",
        finish="content_filter",
    )
    for hours in ("7200", "1e9"):
        yield answer_case(
            f"a wait of {hours} s is not waited #57",
            status=429,
            body=b"{}",
            headers={"retry-after": hours},
            then=b"x",
            error="LLM_RATE_LIMITED",
        )
    place = {"location": "http://127.0.0.1:1/elsewhere?token=abc"}
    yield answer_case(
        "a redirect is named and not followed #65",
        status=307,
        body=b"",
        headers=place,
        error="LLM_HTTP_ERROR",
        words="127.0.0.1:1/elsewhere",
    )
    for n, body in enumerate(
        (
            b"",
            b"null",
            b"[]",
            b"{}",
            b"<html>",
            b'{"choices": []}',
            b'{"choices": [{"message": 3}]}',
            b'{"choices": [{"message": {"content": 3}}]}',
            b'{"choices": [',
            b'{"choices": "\xff"}',
            b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
            DONE,
            b"data: {oops\n\n",
            b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        )
    ):
        yield answer_case(f"no answer, {n}: {body[:30]!r}", body=body, error="LLM_BAD_RESPONSE")
    yield answer_case(
        "blank lines before a body #8", body=b"\n\n \n" + answer_of({"content": "x"}), text="x"
    )
    packed: JSON = {"headers": {"content-encoding": "gzip"}, "text": "x"}
    plain = answer_of({"content": "x"})
    yield answer_case("a body in gzip", body=gzip.compress(plain), **packed)
    other = {"content-encoding": "br"}
    yield answer_case(
        "a body in an unknown coding", body=plain, headers=other, error="LLM_BAD_RESPONSE"
    )
    yield from echoed_keys()
    yield from groq()
    yield from late()


def echoed_keys() -> Iterator[AnswerCase]:
    """Texts of a server with the key in them: hidden before they are cut, whole or in part."""
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}})
    refusals = [echo, "x" * 590 + KEY, " " * (64 * 1024 - 16) + KEY]
    for n, text in enumerate(refusals):
        yield answer_case(
            f"the key in a refusal, {n}", status=400, body=text.encode(), error="LLM_HTTP_ERROR"
        )
    for n, text in enumerate(["x" * 65 + KEY, "{" + "x" * 64 + KEY]):
        body = text.encode() + b"z" * 3000
        yield answer_case(f"the key in no answer, {n}", body=body, error="LLM_BAD_RESPONSE")
    headers = {"x-request-id": "x" * 185 + KEY}
    yield answer_case(
        "the key in an id", status=400, body=b"no", headers=headers, error="LLM_HTTP_ERROR"
    )


WRITTEN: dict[str, Calls] = {
    '{"name": "fs__look", "arguments": {"at": "a"}}': [("fs.look", {"at": "a"})],
    '{"name": "b", "parameters": {"n": 1}}': ONE,
    '{"name": "b", "arguments": "{\\"n\\": 1}"}': ONE,
    '[{"name": "b", "arguments": {}}, {"name": "c"}]': [("b", {}), ("c", {})],
    '{"function": {"name": "b", "arguments": "{}"}}': [("b", {})],
    '{"name": "b", "arguments": {}}\n{"name": "c", "arguments": {}}': [("b", {}), ("c", {})],
    '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>': [("b", {})],
    '<function=b>{"n": {"m": 1}}</function>': [("b", {"n": {"m": 1}})],
    '<function=fs__look{"n": 1}</function>': [("fs.look", {"n": 1})],
    '<function=b>{"n": "}</function>': [("b", '{"n": "}')],
    '```json\n{"name": "b", "arguments": {}}\n```': [("b", {})],
    "I would like to look at the weather.": [],
    '{"name": "b", "argu': [],
    "": [],
    '{"arguments": {}} {"name": 3}': [],
}


def groq() -> Iterator[AnswerCase]:
    """Calls that the server could not read, in an error or in a stream."""
    for n, (written, found) in enumerate(WRITTEN.items()):
        error = {
            "message": "Failed to call a function.",
            "code": "tool_use_failed",
            "type": "invalid_request_error",
            "failed_generation": written,
        }
        body = json.dumps({"error": error}).encode()
        end: JSON = (
            {"calls": found} if found else {"error": "LLM_HTTP_ERROR", "words": "Failed to call"}
        )
        yield answer_case(f"Groq: an unread call, {n} #53", status=400, body=body, **end)
        yield streamed(f"Groq: an unread call in a stream, {n}", {"error": error}, end=b"", **end)
        if not found:
            yield answer_case(
                f"Groq: asked once more, {n}",
                status=400,
                body=body,
                asked=2,
                then=answer_of({"content": "fine"}),
                text="fine",
            )
            continue
        aside: JSON = {"choices": [], "x_groq": {"error": error}}
        yield streamed(
            f"Groq: an unread call behind text, {n}",
            chunk({"content": "I look."}),
            aside,
            end=b"",
            text="I look.",
            **end,
        )
        none = ask(tools=TOOLS, tool_choice="none")
        for id, request in {"no tools": ask(), "none": none}.items():
            yield answer_case(
                f"Groq: {id}, so no call is made of an error, {n}",
                status=400,
                body=body,
                request=request,
                error="LLM_HTTP_ERROR",
            )


def late() -> Iterator[AnswerCase]:
    """What comes behind a finish reason: errors, breaks, more calls."""
    boom = {"error": {"message": "boom", "type": "rate_limit_error"}}
    whole = [calls(LOOK), chunk({}, "tool_calls")]
    named = b'event: error\ndata: {"type": "rate_limit_error"}\n\n'
    behind: dict[str, list[Any]] = {
        "an error": [*whole, boom],
        "an error event": [*whole, named],
        "an error in a list": [*whole, [boom]],
        "an error with it": [{**calls(LOOK, finish="tool_calls"), "x_groq": boom}],
        "an error in the choice": [
            {"choices": [{"delta": {"tool_calls": [LOOK]}, **boom}]}, chunk({}, "stop")],
    }  # fmt: skip
    for id, chunks in behind.items():
        for end in (DONE, b""):
            yield streamed(
                f"behind calls: {id}, then {end!r}", *chunks, end=end, error="LLM_RATE_LIMITED"
            )
    failed = {"error": {"code": "tool_use_failed", "failed_generation": '{"name": "b"}'}}
    yield streamed("behind calls: an unread call", *whole, failed, error="LLM_BAD_RESPONSE")
    for junk in (b'data: {"error": {"mess', b"data: {oops\n\n"):
        yield streamed(f"behind calls: {junk!r}", *whole, end=junk, error="LLM_BAD_RESPONSE")
    looked: JSON = {"calls": LOOKED}
    broken: list[tuple[str, Framing]] = [
        ("reset", "chunked"), ("reset", "none"), ("close", "chunked"), ("close", "length"),
    ]  # fmt: skip
    for ending, framing in broken:
        how: JSON = {"ending": ending, "framing": framing}
        id = f"{ending}, framing {framing}"
        yield streamed(f"behind calls: {id}", *whole, end=b"", **how, error="LLM_HTTP_ERROR")
        if framing != "none" and ending != "reset":
            yield streamed(f"behind [DONE]: {id}", *whole, **how, **looked)
        yield streamed(
            f"behind a text: {id}", chunk({"content": "fine"}, "stop"), end=b"", **how, text="fine"
        )
        announced = chunk({"content": "I look."}, "tool_calls")
        yield streamed(
            f"calls announced, then {id}", announced, end=b"", **how, error="LLM_HTTP_ERROR"
        )
    more = calls(call(index=1, id="c2"))
    yield streamed(
        "calls go on, then a reset",
        calls(LOOK, finish="tool_calls"),
        more,
        end=b"",
        ending="reset",
        error="LLM_HTTP_ERROR",
    )
    for framing in ("chunked", "length", "none"):
        yield streamed(
            f"a clean end without [DONE], framing {framing}",
            *whole,
            end=b"",
            framing=framing,
            **looked,
        )
    bare = sse(*whole, end=b"").rstrip()
    yield answer_case("a clean end without a blank line", stream=bare, **looked)
    yield streamed("an error behind [DONE]", *whole, end=DONE + sse(boom), **looked)
    yield streamed(
        "an error behind a text is told",
        chunk({"content": "fine"}, "stop"),
        boom,
        text="fine",
        notes=["boom"],
    )
    yield streamed(
        "an end without a finish reason and [DONE] is a cut",
        calls(LOOK),
        end=b"",
        error="LLM_BAD_RESPONSE",
        words="cut",
    )


MODELS = (
    ModelsCase(
        id="what servers tell",
        body={
            "data": [
                {"id": "plain"},
                {"id": "v", "max_model_len": 4096},
                {"id": "r", "context_length": 10, "supported_parameters": ["tools", "seed"]},
                {"id": "m", "max_context_length": 9, "capabilities": {"vision": True, "x": False}},
                {"nonsense": 1},
            ]
        },
        expect=[
            *(("plain", None, ()), ("v", 4096, ()), ("r", 10, ("tools",))),
            ("m", 9, ("vision",)),
        ],
    ),
    ModelsCase(id="a bare list", body=["a"], expect=[("a", None, ())]),
    ModelsCase(id="no models", body={"data": None}, expect=[]),
    ModelsCase(id="no list", body={"hello": 1}, expect="LLM_BAD_RESPONSE"),
    ModelsCase(id="no JSON", body=b"<html>", expect="LLM_BAD_RESPONSE"),
    ModelsCase(
        id="llama.cpp's context length",
        body={"data": [{"id": "q", "meta": {"n_ctx": 8192, "n_ctx_train": 32768}}]},
        expect=[("q", 8192, ())],
        defect=4,
    ),
)
WIRE = WireSetup(
    name="chat",
    provider="openai",
    ended=re.compile(rb'"finish_reason": "[a-z_]+"[^\r\n]*'),
    servers=chat_requests.SERVERS,
    answers=(
        *thorough(), *tool_calls(), *texts(), *usages(), *think_tags(), *errors(),
        *chat_requests.going_back(),
    ),
    requests=tuple(chat_requests.requests()),
    models=MODELS,
    quirks=(
        *(1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26),
        *(30, 32, 33, 34, 35, 47, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 62, 64, 65),
    ),
)  # fmt: skip
