"""Requests to Chat Completions servers: parameters, history, images, schemas, data sent back.

A server is known by its address; `SERVERS` names one of each kind.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from wires.harness import ABSENT, JSON, AnswerCase, Exactly, RequestCase, ask, everything

from nbagent.contracts.messages import FilePart, ImagePart, Message, Part, TextPart, ToolCall
from nbagent.contracts.model import ToolSpec

SERVERS = {
    "openai": "https://api.openai.com/v1",
    "azure": "https://r.openai.azure.com/openai/v1",
    "deepseek": "https://api.deepseek.com",
    "openrouter": "https://openrouter.ai/api/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "anthropic": "https://api.anthropic.com/v1",
    "ollama": "http://ollama:11434/v1",
    "vllm": "http://vllm:8000/v1",
    "llama.cpp": "http://box:8080/v1",
    "lm studio": "http://studio:1234/v1",
}
OPENAI = ("openai", "azure")
NULL_CONTENT = ("openai", "azure", "anthropic", "gemini", "openrouter")
REASONING_BACK = {
    **dict.fromkeys(("openai", "azure", "groq", "mistral", "gemini", "anthropic"), ABSENT),
    **dict.fromkeys(("openrouter", "ollama", "vllm", "llama.cpp", "lm studio"), "hm"),
}
URLS = {
    "http://h:1/v1/chat/completions": "http://h:1/v1",
    "http://h:1": "http://h:1/v1",
    "localhost:8000": "http://localhost:8000/v1",
    "example.org/api": "https://example.org/api",
    "https://openrouter.ai": "https://openrouter.ai/api/v1",
    "api.groq.com": "https://api.groq.com/openai/v1",
    "https://generativelanguage.googleapis.com": SERVERS["gemini"],
    SERVERS["gemini"] + "/": SERVERS["gemini"],
    "https://notgroq.com": "https://notgroq.com/v1",
    "https://h/deployments/d/chat/completions?api-version=1": "https://h/deployments/d",
}
EMPTY: JSON = {"type": "object", "properties": {}}
RED = ImagePart(data="UkVE", alt="red")
BLUE = ImagePart(data="QkxVRQ==", media_type="image/jpeg")
FAR = ImagePart(url="https://example.org/a.png")
PDF = FilePart(name="a.pdf", media_type="application/pdf", data="UERG")
READ = ToolSpec(name="fs.read", description="Read.")


def called(*ids: str, name: str = "fs.read", **more: Any) -> Message:
    """An answer of calls, which no server is known to have given."""
    made = [ToolCall(id=id, name=name, arguments={}, arguments_raw="{}") for id in ids]
    return Message(role="assistant", tool_calls=tuple(made), **more)


def result(id: str, *parts: Part, said: str = "{}") -> Message:
    content = (TextPart(text=said), *parts)
    return Message(role="tool", tool_call_id=id, name="fs.read", content=content)


def user(*parts: Part) -> Message:
    return Message(role="user", content=parts)


def of(*messages: Message, **more: Any) -> Any:
    return ask(messages=messages, **more)


def image(part: ImagePart) -> JSON:
    url = part.url or f"data:{part.media_type};base64,{part.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def requests() -> Iterator[RequestCase]:
    yield from parameters()
    for server in SERVERS:
        yield from by_server(server)
    for id, (server, schema, written) in SCHEMAS.items():
        tool = ToolSpec(name="b", parameters=schema)
        expect = {"tools": [{"function": {"parameters": Exactly(written)}}]}
        yield RequestCase(f"schema: {id}", ask(tools=(tool,)), expect, server=server)


HI = [{"role": "user", "content": "hi"}]
EVERYTHING_SENT: JSON = {
    "model": "m", "temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "stop": ["X"], "top_k": 3,
    "reasoning_effort": "low", "messages": [{"role": "system", "content": "Be brief."}, *HI],
    "tools": [
        {"type": "function", "function": Exactly(
            {"name": "fs__read", "description": "Read.", "parameters": EMPTY})},
        {"type": "function", "function": Exactly({"name": "b", "parameters": EMPTY})},
    ],
    "tool_choice": {"type": "function", "function": {"name": "fs__read"}},
    "response_format": {"type": "json_schema", "json_schema": {
        "name": "answer", "schema": {"type": "object"}}},
}  # fmt: skip


def parameters() -> Iterator[RequestCase]:
    bare: JSON = {"model": "m", "messages": HI}
    yield RequestCase("nothing is set", ask(), bare, only=True)
    usage: JSON = {**bare, "stream": True, "stream_options": {"include_usage": True}}
    yield RequestCase("a stream asks for usage #5", ask(), usage, stream=True, only=True)
    more = {"extra_body": {"top_k": 3}}
    yield RequestCase("everything is set", everything(), EVERYTHING_SENT, config=more, only=True)
    for choice in ("auto", "required", None):
        request = ask(tools=(READ,), tool_choice=choice)
        yield RequestCase(f"tool choice {choice}", request, {"tool_choice": choice or "auto"})
    effort = {"reasoning": {"effort": "xhigh"}, "reasoning_effort": ABSENT}
    yield RequestCase("OpenRouter's effort", ask(reasoning="max"), effort, server="openrouter")
    for server, fits in {"mistral": "abc123XYZ", "vllm": "call_1"}.items():
        expect = {"messages": [{"tool_calls": [{"id": fits}]}, {"tool_call_id": fits}]}
        request = of(called(fits), result(fits))
        yield RequestCase(f"{server}: ids that fit", request, expect, server=server)


def by_server(name: str) -> Iterator[RequestCase]:
    """Fields that differ from server to server, and fields that must not."""

    def row(rule: str, request: Any, expect: JSON, **more: Any) -> RequestCase:
        return RequestCase(f"{name}: {rule}", request, expect, server=name, **more)

    systems = (Message.of("system", "B"), Message.of("system", "C"), Message.of("user", "hi"))
    merged = [{"role": "system", "content": "A\n\nB\n\nC"}, {"role": "user"}]
    id, given = "one system message, no tool keys #22 #23 #24", of(*systems, system_prompt="A")
    yield row(id, given, {"model": "m", "messages": merged}, only=True)
    newer = name in OPENAI
    limits = {"max_completion_tokens": 9 if newer else ABSENT, "max_tokens": ABSENT if newer else 9}
    yield row("the limit of tokens #26", ask(max_tokens=9), limits)
    unheard = name in ("mistral", "groq", "ollama")
    kept: JSON = {"tools": [...], "tool_choice": "none"}
    none = ask(tools=(READ,), tool_choice="none")
    yield row("a choice of none #25", none, dict.fromkeys(kept, ABSENT) if unheard else kept)
    nothing = None if name in NULL_CONTENT else ""
    content = {"content": nothing, "refusal": ABSENT}
    yield row("content beside calls #19", of(called("call_1")), {"messages": [content]})
    long = "toolu:" + "x" * 60
    short = {"mistral": "oxeX9lO9q"}.get(name, "oxeX9lO9qrdN82ygnLaRftrZ")
    fitted: JSON = {"messages": [{"tool_calls": [{"id": short}]}, {"tool_call_id": short}]}
    yield row("ids that do not fit #55", of(called(long), result(long)), fitted)
    city: JSON = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "$defs": {"City": {"type": "object", "additionalProperties": False}},
    }
    inner = EMPTY if name == "mistral" else {**EMPTY, "additionalProperties": False}
    keeps = name in (*OPENAI, "anthropic")
    written = city["properties"] if keeps else {"city": inner}
    defs = {"City": ...} if keeps else ABSENT
    function = {"parameters": {"properties": written, "$defs": defs}, "strict": ABSENT}
    tool = ToolSpec(name="b", parameters=city)
    yield row("schemas", ask(tools=(tool,)), {"tools": [{"function": function}]})


def label(id: str) -> JSON:
    """Text before the images of a result."""
    return {"type": "text", "text": f"Given back by fs__read (call {id}):"}


def text(words: str) -> JSON:
    return {"type": "text", "text": words}


def file(name: str, data: str) -> JSON:
    return {"type": "file", "file": {"filename": name, "file_data": data}}


LEFT, RIGHT, SO = TextPart(text="Left:"), TextPart(text="right:"), user(TextPart(text="So?"))
DATA = base64.b64encode("a;b\nü;1".encode()).decode()
TABLE = FilePart(name="t.csv", media_type="text/csv; charset=utf-8", data=DATA)
BROKEN = FilePart(name="x.txt", media_type="text/plain", data="/w==")
ODD_CALLS = (
    ToolCall(id="c1", name="fs.read", arguments={}, arguments_raw=" "),
    ToolCall(id="c2", name="b", arguments=None, arguments_raw="{oh"),
)
ODD_CALLS_SENT = [
    {"type": "function", "function": {"name": "fs__read", "arguments": "{}"}},
    {"type": "function", "function": {"name": "b", "arguments": '{"INVALID_JSON":"{oh"}'}},
]
A = {"role": "assistant"}
ELSEWHERE: JSON = {"origin": "elsewhere", "model": "m", "fields": {"annotations": []}}
FOREIGN = Message(role="assistant", content=(LEFT,), name="n", raw=ELSEWHERE)
# id: messages, and how they are sent.
HISTORIES: dict[str, tuple[list[Message], list[Any]]] = {
    "calls with bad arguments, and a later system message": (
        [SO, Message(role="assistant", tool_calls=ODD_CALLS, reasoning="hm"), result("c1"),
         result("c2"), Message.of("system", "S")],
        [{"role": "user", "content": "So?"}, {"reasoning": ABSENT, "tool_calls": ODD_CALLS_SENT},
         Exactly({"role": "tool", "tool_call_id": "c1", "content": "{}"}), {"tool_call_id": "c2"},
         {"role": "system", "content": "S"}]),
    "plain text is a text, an empty answer is not sent #20": (
        [user(LEFT, RIGHT), Message(role="assistant", reasoning="hm"), SO],
        [{"content": "Left:right:"}, {"role": "user", "content": "So?"}]),
    "fields of another server": (
        [FOREIGN], [Exactly({"role": "assistant", "content": "Left:"})]),
    "images stand where they were put": (
        [user(LEFT, RED, RIGHT, BLUE, FAR)],
        [{"content": [text("Left:"), image(RED), text("right:"), image(BLUE), image(FAR)]}]),
    "a text file is text, another one a file": (
        [user(TABLE, PDF, BROKEN)],
        [{"content": [text("File t.csv:\na;b\nü;1"),
                      file("a.pdf", "data:application/pdf;base64,UERG"),
                      file("x.txt", "data:text/plain;base64,/w==")]}]),
    "images of results follow all results of the turn": (
        [called("c1", "c2", "c3"), result("c1", RED), result("c2"), result("c3", BLUE, PDF),
         Message.of("assistant", "Nice."), SO],
        [A, *({"role": "tool", "content": "{}", "tool_call_id": f"c{n}"} for n in (1, 2, 3)),
         {"role": "user", "content": [
             label("c1"), image(RED), label("c3"), image(BLUE), {"type": "file"}]},
         A, {"content": "So?"}]),
}  # fmt: skip


def obj(**properties: Any) -> JSON:
    return {"type": "object", "properties": properties}


def ref(name: str) -> JSON:
    return {"$ref": f"#/$defs/{name}"}


OBJECT, NUMBER, STRING = {"type": "object"}, {"type": "integer"}, {"type": "string"}
NULL, ENUM = {"type": "null"}, {"type": "string", "enum": ["x"]}
CLOSED = {**obj(x=NUMBER), "additionalProperties": False, "$id": "y"}
OPEN: JSON = {"type": "object", "additionalProperties": NUMBER}
DATA_IN: JSON = {"enum": [OBJECT], "default": OBJECT}
BESIDE: JSON = {
    **obj(a={**ref("A"), "description": "mine"}, b={"anyOf": [ref("B"), NULL]}),
    "$defs": {"A": obj(b=ref("B")), "B": ENUM},
}
NODE = obj(children={"type": "array", "items": ref("Node")})
STRANGE: JSON = {
    **obj(a=ref("None"), b={"$ref": "https://example.org/x"}, c={"$ref": "#"}),
    "$defs": {"A": STRING},
}
LEVELS = {f"L{n}": obj(a=ref(f"L{n + 1}"), b=ref(f"L{n + 1}")) for n in range(20)}
LARGE: JSON = {**obj(a=ref("L0")), "$defs": {**LEVELS, "L20": STRING}}
KIND = {"propertyName": "kind", "mapping": {"a": "#/$defs/A"}}
KIND_A = obj(kind={"const": "a"})
# id: server, the tool's schema, and how it is sent: nothing changes its meaning.
SCHEMAS: dict[str, tuple[str, JSON, JSON]] = {
    "every object says its properties": (
        "vllm", obj(a=OBJECT, b={"type": "array", "items": OBJECT}, c={"anyOf": [OBJECT, NULL]}),
        obj(a=EMPTY, b={"type": "array", "items": EMPTY}, c={"anyOf": [EMPTY, NULL]})),
    "names and values are no keywords": (
        "mistral", obj(properties=STRING, strict=OBJECT, default=DATA_IN),
        obj(properties=STRING, strict=EMPTY, default=DATA_IN)),
    "what Mistral refuses": (
        "mistral", {**obj(a=CLOSED, b=OPEN), "$schema": "s", "additionalProperties": False},
        obj(a=obj(x=NUMBER), b={**OPEN, "properties": {}})),
    "references are written out": (
        "vllm", BESIDE,
        obj(a={**obj(b=ENUM), "description": "mine"}, b={"anyOf": [ENUM, NULL]})),
    "one that contains itself": (
        "vllm", {**obj(root=ref("Node")), "$defs": {"Node": NODE}},
        {**obj(root=NODE), "$defs": {"Node": NODE}}),
    "an unknown reference": ("vllm", STRANGE, STRANGE),
    "one that would explode": ("vllm", LARGE, LARGE),
    "a discriminator of what is gone": (
        "vllm", {**obj(x={"oneOf": [ref("A")], "discriminator": KIND}), "$defs": {"A": KIND_A}},
        obj(x={"oneOf": [KIND_A]})),
}  # fmt: skip
CALL: JSON = {"id": "call_1", "function": {"name": "fs__read", "arguments": "{}"}}
ODD_ID = "call:with/odd " + "x" * 60
ANSWERED: JSON = {"content": "Yes.", "tool_calls": []}
DETAILS = [{"type": "reasoning.encrypted", "data": "ENC", "index": 0}]
DETAILED: JSON = {"message": {"reasoning": None, "reasoning_details": DETAILS}}
SIGNATURE: JSON = {"extra_content": {"google": {"thought_signature": "s"}}}
SIGNED: JSON = {"message": {"tool_calls": [{**CALL, **SIGNATURE}]}}
ODD_CALL: JSON = {"message": {"tool_calls": [{**CALL, "id": ODD_ID}]}}
UNSIGNED: JSON = {"tool_calls": [{"extra_content": ABSENT}]}
# server: what it answers and where it goes next; how that answer is sent back.
BACK: list[tuple[str, JSON, JSON]] = [
    ("deepseek", {}, {"reasoning": ABSENT, "reasoning_content": "hm"}),
    ("deepseek", {"message": ANSWERED}, {"reasoning": ABSENT, "reasoning_content": "hm"}),
    ("deepseek", {"message": {"reasoning": ""}}, {"reasoning_content": ""}),
    ("deepseek", {"next_model": "other"}, {"reasoning_content": ""}),
    ("openai", {"next_server": "deepseek"}, {"reasoning_content": ""}),
    ("deepseek", {"tools": ()}, {"reasoning_content": ABSENT}),
    ("openrouter", DETAILED, {"reasoning_details": DETAILS}),
    ("openrouter", {**DETAILED, "next_server": "vllm"}, {"reasoning_details": ABSENT}),
    ("gemini", SIGNED, {"tool_calls": [SIGNATURE]}),
    ("gemini", {**SIGNED, "next_server": "vllm"}, UNSIGNED),
    ("gemini", {"message": {**ANSWERED, **SIGNATURE}}, {"content": "Yes.", **SIGNATURE}),
    ("mistral", {}, {"tool_calls": [{"id": "RksXkbv4v"}]}),
    ("", ODD_CALL, {"tool_calls": [{"id": "9MCz0XnYp6oGNAdigaexFZki"}]}),
    ("vllm", {**ODD_CALL, "next_server": ""}, {"tool_calls": [{"id": "9MCz0XnYp6oGNAdigaexFZki"}]}),
]  # fmt: skip


def going_back() -> Iterator[AnswerCase]:
    """Fields that a server needs back with its own answer, and that others must not get."""
    for server, field in REASONING_BACK.items():
        gone = {"reasoning": ABSENT, "reasoning_content": ABSENT}
        yield back_case(f"{server}: reasoning", server, {}, {**gone, "reasoning": field})
        yield back_case(f"{server}: another model", server, {"next_model": "other"}, gone)
        yield back_case(f"{server}: no tools", server, {"tools": ()}, gone)
    for n, (server, given, back) in enumerate(BACK):
        yield back_case(f"{server or 'loopback'}, {n} #30", server, given, back)


def back_case(id: str, server: str, given: JSON, back: JSON) -> AnswerCase:
    """A row: a whole answer with reasoning and one call, if it is not told otherwise."""
    more = dict(given)
    message: JSON = {"reasoning": "hm", "tool_calls": [CALL], **more.pop("message", {})}
    choice = {"message": message, "finish_reason": None}
    request = ask(tools=more.pop("tools", (READ,)))
    name = "fs.read" if request.tools else "fs__read"
    found: list[tuple[str, JSON]] = [(name, {})] if message["tool_calls"] else []
    return AnswerCase(
        f"back to {id}",
        server=server,
        body=json.dumps({"choices": [choice]}).encode(),
        request=request,
        calls=found,
        reasoning=message["reasoning"] or None,
        text=message.get("content", ""),
        back={"messages": [..., back, *([...] if found else [])]},
        **more,
    )
