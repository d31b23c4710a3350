"""Answers of an Ollama server, their results, and the requests that it gets.

`#n` in an id is the number of a quirk that the rest of the id names; `WIRE.quirks` lists them.
https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from servers.dialects import OLLAMA
from wires.chat_requests import BLUE, EMPTY, ODD_CALLS, READ, RED, TABLE, user
from wires.harness import (
    ABSENT,
    JSON,
    AnswerCase,
    Exactly,
    ModelsCase,
    RequestCase,
    WireSetup,
    ask,
    everything,
)

from nbagent.contracts.messages import ImagePart, Message, TextPart
from nbagent.contracts.model import ToolSpec

SERVERS = {"cloud": "https://ollama.com", "box": "http://box:11434"}
line, ndjson = OLLAMA.line, OLLAMA.stream
HEAD: JSON = {"model": "m"}
COUNTS: JSON = {
    "total_duration": 900_000_000, "load_duration": 1_500_000, "prompt_eval_count": 50,
    "prompt_eval_duration": 30_000_000, "eval_count": 20, "eval_duration": 400_000_000,
}  # fmt: skip
USED = {"prompt_tokens": 50, "completion_tokens": 20, "total_tokens": 70}
BAD = "LLM_BAD_RESPONSE"
Calls = Sequence[tuple[str, JSON | str]]


def last(message: JSON | None = None, **more: Any) -> JSON:
    return OLLAMA.last(message, **{**COUNTS, **more})


def said(text: Any) -> JSON:
    return line({"role": "assistant", "content": text})


def call(arguments: Any, name: str = "b", **more: Any) -> JSON:
    return {**more, "function": {"index": 0, "name": name, "arguments": arguments}}


def called(*calls: Any) -> JSON:
    return line({"role": "assistant", "content": "", "tool_calls": list(calls)})


def both(id: str, message: JSON, end: JSON | None = None, **given: Any) -> AnswerCase:
    """A case whose stream brings each field of the message in a line of its own."""
    lines = [line({name: value}) for name, value in message.items()]
    end = end or {}
    body = json.dumps({**last(message), **end}).encode()
    return AnswerCase(id, body=body, stream=ndjson(*lines, {**last(), **end}), **given)


def streamed(id: str, *lines: Any, **given: Any) -> AnswerCase:
    return AnswerCase(id, stream=ndjson(*lines), **given)


LOOK = call({"at": "a"}, "fs__look", id="call_ab12cd34")
LOOKED: Calls = [("fs.look", {"at": "a"})]
TWO: Calls = [("b", {"n": 1}), ("c", {"n": 2})]
B, C = call({"n": 1}), call({"n": 2}, "c")
FINE = json.dumps(last({"content": "fine"})).encode()
GREETING = "Grüße \u2028 both"
TIMES = {"total_duration": 900, "load_duration": 1.5, "eval_duration": 400}


def thorough() -> Iterator[AnswerCase]:
    """Those that are cut everywhere and get every wrong value."""
    whole: JSON = {"thinking": "Hm, so", "content": GREETING, "tool_calls": [LOOK, C]}
    greeting = json.dumps(said(GREETING), ensure_ascii=False).encode() + b"\n"
    thoughts = [line({"thinking": "Hm,"}), line({"thinking": " so"})]
    lines: list[Any] = [*thoughts, greeting, called(LOOK), called(C)]
    yield AnswerCase(
        "reasoning, text, two calls on lines of their own, counts #1 #15",
        body=ndjson(last(whole)), stream=ndjson(*lines, last()), text=GREETING,
        reasoning="Hm, so", calls=[*LOOKED, TWO[1]], usage=USED, thorough=True,
        raw={"reasoning_field": "thinking", "durations_ms": TIMES},
    )  # fmt: skip
    yield AnswerCase(
        "text alone",
        body=json.dumps(last({"content": "One two"})).encode(),
        stream=ndjson(said("One "), b"\n", said("two"), last()),
        text="One two", usage=USED, thorough=True,
    )  # fmt: skip


# id: the lines before the last one; what they come to.
LINES: dict[str, tuple[list[Any], JSON]] = {
    "calls: beside text": ([line({"content": "I look.", "tool_calls": [LOOK]})],
                           {"text": "I look.", "calls": LOOKED, "ids": ["call_ab12cd34"]}),
    "calls: the same tool twice, every index 0 #11": (
        [called(B), called(call({"n": 2}))], {"calls": [TWO[0], ("b", {"n": 2})]}),
    "calls: one without a name is no part of the one before": (
        [called(B, call({"n": 2}, ""))], {"calls": [TWO[0], ("", {"n": 2})]}),
    "calls: on the last line": ([], {"end": {"message": {"tool_calls": [B]}}, "calls": TWO[:1]}),
    "the last line has no message": (
        [said("x")], {"end": {"message": None}, "text": "x", "usage": USED}),
    "counts on each line are not added up #6": (
        [{**said("x"), "eval_count": 3}, {**said("y"), "eval_count": 4}],
        {"text": "xy", "usage": USED}),
    "a count that is missing is none": (
        [said("x")], {"end": {"prompt_eval_count": None}, "text": "x",
                      "usage": {"completion_tokens": 20, "total_tokens": 20}}),
    "behind the end nothing counts #62": (
        [said("x"), last(), called(B), {"error": "late"}], {"text": "x"}),
}  # fmt: skip
# id: message of a whole answer, and its fields on lines of their own; what it comes to.
MESSAGES: dict[str, tuple[JSON, JSON]] = {
    "arguments as they were written #14": (
        {"tool_calls": [call(it) for it in ('{"n":1}', "", None, "{oh", [1], "null")]},
        {"calls": [("b", {"n": 1}), ("b", {}), ("b", {}), ("b", "{oh"), ("b", "[1]"), ("b", {})]},
    ),
    "text, unknown fields": ({"content": "x", "mood": {"a": 1}, "images": None}, {"text": "x"}),
    "content that is null": ({"content": None, "tool_calls": [B]}, {"calls": TWO[:1]}),
}


def answers() -> Iterator[AnswerCase]:
    yield from thorough()
    for id, (lines, expect) in LINES.items():
        given = dict(expect)
        yield streamed(id, *lines, {**last(), **given.pop("end", {})}, **given)
    for id, (message, expect) in MESSAGES.items():
        yield both(id, message, **expect)
    lines = [{**HEAD, "response": it, "done": False} for it in ("a", "b")]
    end = {**last(), "response": "", "message": None}
    yield streamed("text of the older endpoint", *lines, end, text="ab")
    old = {**last(), "message": None, "response": "x", "thinking": "hm"}
    id = "text and reasoning of the older endpoint, whole"
    yield AnswerCase(id, body=json.dumps(old).encode(), text="x", reasoning="hm")
    parts = [{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}]
    yield both("content that is a list of parts", {"content": parts}, text="ab")
    yield both("paid: nothing is asked once more", {"content": ""}, then=FINE, text="fine", asked=2)
    yield both("paid: an unknown form", {"content": "", "answer": "x"}, then=FINE, error=BAD,
               words="answer, 20 tokens")  # fmt: skip
    for word, finish in (("stop", "stop"), ("length", "length"), ("unload", "stop"),
                         ("sensitive", "content_filter"), ("limit", "length")):  # fmt: skip
        yield both(f"ended by {word}", {"content": "x"}, {"done_reason": word}, text="x",
                   finish=finish)  # fmt: skip
    zero = {**line({"content": "x"}), "done": True}
    bare = json.dumps(zero).encode()
    yield AnswerCase("no counts, no durations #16", body=bare, text="x", raw=ABSENT, usage={})


# Streams that come to an error, and its words.
BROKEN: dict[str, tuple[list[Any], str]] = {
    "an error beside done": ([last({"content": "x"}, error="boom")], "boom"),
    "done is no word": ([called(LOOK), {**last(), "done": "true"}], "cut"),
    "a line without a message": ([said("x"), HEAD, last()], "message"),
    "a message that is a text": ([line("x"), last()], "the server says: x"),
}


def errors() -> Iterator[AnswerCase]:
    for id, (lines, words) in BROKEN.items():
        yield AnswerCase(id, stream=ndjson(*lines), body=ndjson(*lines), error=BAD, words=words)


def going_back() -> Iterator[AnswerCase]:
    """The reasoning of a tool loop, to the same model on the same server alone."""
    message: JSON = {"thinking": "hm", "tool_calls": [LOOK]}
    found: JSON = {"reasoning": "hm", "calls": LOOKED}
    kept: JSON = {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [LOOK]}
    result = Exactly({"role": "tool", "tool_name": "fs__look", "tool_call_id": "call_ab12cd34",
                      "content": '{"ok":true,"data":1}'})  # fmt: skip
    more: dict[str, tuple[JSON, JSON]] = {
        "to the same model": ({}, {}),
        "to another model": ({"next_model": "gemma3"}, {"thinking": ABSENT}),
        "to another server": ({"next_server": "box"}, {"thinking": ABSENT}),
    }
    for id, (given, changed) in more.items():
        back = {"messages": [..., Exactly(kept) if not changed else {**kept, **changed}, result]}
        yield both(f"back {id}", message, **given, **found, back=back)
    plain: JSON = {"thinking": "hm", "content": "Yes.", "mood": 1}
    back = {"messages": [..., Exactly({"role": "assistant", "content": "Yes."})]}
    expect: JSON = {"text": "Yes.", "reasoning": "hm", "back": back}
    yield both("back without tools #21", plain, request=ask(), **expect)
    only = {"thinking": "hm"}
    yield both("an answer of thoughts alone is not sent #20", only, reasoning="hm",
               back={"messages": [...]})  # fmt: skip


def parameter(id: str, expect: JSON, config: JSON | None = None, **asked: Any) -> RequestCase:
    given = {"extra_body": config} if config else {}
    return RequestCase(id, ask(**asked), expect, config=given)


HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
EVERYTHING_SENT: JSON = {
    "model": "m", "stream": True, "think": True, "format": SCHEMA, "keep_alive": "5m",
    "messages": [{"role": "system", "content": "Be brief."}, *HI],
    "options": Exactly({"temperature": 0.0, "top_p": 0.9, "num_predict": 7, "stop": ["X"],
                        "num_ctx": 32768, "seed": 1}),
    "tools": [{"type": "function", "function": Exactly(
        {"name": "fs__read", "description": "Read.", "parameters": EMPTY})}, ...],
}  # fmt: skip
# effort: `think` of most models, and of gpt-oss.
THINK: dict[str | None, tuple[Any, Any]] = {
    None: (ABSENT, ABSENT),
    "none": (False, "low"),
    **dict.fromkeys(("minimal", "1024"), (True, "low")),
    "8192": (True, "medium"),
    **dict.fromkeys(("max", "32000"), (True, "high")),
}
URLS = {
    "http://h:11434": "http://h:11434",
    "http://h:11434/": "http://h:11434",
    "http://h:11434/v1/chat/completions": "http://h:11434",
    "http://h:11434/api/chat": "http://h:11434",
    "http://h/proxy/api": "http://h/proxy",
    "localhost:11434": "http://localhost:11434",
    "https://ollama.com/api": "https://ollama.com",
}


def requests() -> Iterator[RequestCase]:
    bare: JSON = {"model": "m", "messages": HI, "stream": False}
    yield RequestCase("nothing is set", ask(), bare, only=True)
    context: JSON = {"extra_body": {"num_ctx": 32768, "keep_alive": "5m", "options": {"seed": 1}}}
    how: JSON = {"stream": True, "config": context, "only": True}
    request = everything(temperature=0.0, output_schema=SCHEMA)
    yield RequestCase("everything is set", request, EVERYTHING_SENT, **how)
    for form in ({"num_ctx": 8192}, {"options": {"num_ctx": 8192}}):
        sent = {"options": Exactly({"num_ctx": 8192, "top_p": 0.5}), "num_ctx": ABSENT}
        yield parameter(f"the size of the context as {form} #27", sent, form, top_p=0.5)
    yield parameter("the person's own parameters win",
                    {"think": "max", "options": {"temperature": 1}},
                    {"think": "max", "temperature": 1}, reasoning="low")  # fmt: skip
    for effort, (usual, level) in THINK.items():
        quirk = "#28" if effort in (None, "none") else "#29"
        for model, think in (("qwen3:8b", usual), ("hf.co/a/gpt-oss-20b-GGUF:Q4", level)):
            yield parameter(f"effort {effort}, {model} {quirk}", {"think": think}, model=model,
                            reasoning=effort)  # fmt: skip
    for choice in ("auto", "required", "fs.read"):
        sent = {"tools": [...], "tool_choice": ABSENT}
        yield parameter(f"tool choice {choice} #26", sent, tools=(READ,), tool_choice=choice)
    none = {"tools": ABSENT, "tool_choice": ABSENT}
    yield parameter("tool choice none #24 #25", none, tools=(READ,), tool_choice="none")
    city = {"city": {"$ref": "#/$defs/City"}}
    defs = {"City": {"type": "object", "title": "City"}}
    tool = ToolSpec(name="b", parameters={"properties": city, "$defs": defs})
    inline = {"type": "object", "properties": {"city": {**EMPTY, "title": "City"}}}
    sent = {"tools": [{"function": {"parameters": Exactly(inline)}}]}
    yield parameter("references are written out", sent, tools=(tool,))


LEFT, RIGHT = TextPart(text="Left:"), TextPart(text="right")
INLINE = ImagePart(url="data:image/png;base64,UkVE")
FOREIGN = Message(
    role="assistant", tool_calls=ODD_CALLS, reasoning="hm", raw={"origin": "elsewhere"}
)
RESULT = Message(role="tool", tool_call_id="c1", name="fs.read", content=(LEFT, RED))
# id: messages, and how they are sent.
HISTORIES: dict[str, tuple[list[Message], list[Any]]] = {
    "images beside the text, bare, a text file is text": (
        [user(LEFT, RED, RIGHT, BLUE, INLINE, TABLE)],
        [Exactly({"role": "user", "content": "Left:rightFile t.csv:\na;b\nü;1",
                  "images": ["UkVE", "QkxVRQ==", "UkVE"]})]),
    "calls of another server, with bad arguments #19": (
        [user(LEFT), FOREIGN, RESULT, Message.of("system", "S")],
        [{"content": "Left:"},
         Exactly({"role": "assistant", "content": "", "tool_calls": [
             {"id": "c1", "function": {"index": 0, "name": "fs__read", "arguments": {}}},
             {"id": "c2", "function": {"index": 1, "name": "b",
                                       "arguments": {"INVALID_JSON": "{oh"}}}]}),
         {"role": "tool", "tool_name": "fs__read", "content": "Left:", "images": ["UkVE"]},
         {"role": "system", "content": "S"}]),
    "leading system messages are one #22 #23": (
        [Message.of("system", "A"), Message.of("system", "B"), user(LEFT)],
        [{"role": "system", "content": "A\n\nB"}, {"role": "user"}]),
}  # fmt: skip
DETAILS: JSON = {"family": "qwen3", "parameter_size": "8B", "context_length": 40960}
LISTED: list[Any] = [
    {"name": "qwen3:8b", "model": "qwen3:8b", "details": DETAILS,
     "capabilities": ["completion", "tools", "thinking"]},
    {"name": "gemma3", "details": None, "capabilities": ["completion", "vision"]},
    {"name": "odd", "capabilities": [3, None, {}], "details": {"context_length": "many"}},
    {"nonsense": 1},
    3,
]  # fmt: skip
TOLD: list[tuple[str, int | None, Sequence[str]]] = [
    ("qwen3:8b", 40960, ("reasoning", "tools")), ("gemma3", None, ("vision",)),
    ("odd", None, ()),
]  # fmt: skip
MODELS = (
    ModelsCase("what servers tell", {"models": LISTED}, TOLD),
    ModelsCase("no list", {"models": 3}, BAD),
)
WIRE = WireSetup(
    name="ollama",
    provider="ollama",
    path="",
    ended=re.compile(rb'"done": true[^\r\n]*'),
    servers=SERVERS,
    answers=(*answers(), *errors(), *going_back()),
    requests=tuple(requests()),
    histories=HISTORIES,
    urls={given: f"{meant}/api/chat" for given, meant in URLS.items()},
    models=MODELS,
    quirks=(1, 6, 11, *range(14, 17), *range(19, 30), 62, 64),
)
