"""What Chat Completions servers are sent: parameters, history, images, schemas; and what goes back.

A server is known by its address; `SERVERS` names one of each kind.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from wires.harness import ABSENT, JSON, AnswerCase, RequestCase, answer_case, ask

from nbagent.contracts.chat import FilePart, ImagePart, Message, Part, TextPart, ToolCall, ToolSpec

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
    "http://h:1/v1/": "http://h:1/v1",
    "http://h:1": "http://h:1/v1",
    "http://h:1/": "http://h:1/v1",
    "localhost:8000": "http://localhost:8000/v1",
    "example.org/api": "https://example.org/api",
    "https://api.deepseek.com": "https://api.deepseek.com",
    "https://api.deepseek.com/": "https://api.deepseek.com",
    "https://openrouter.ai": "https://openrouter.ai/api/v1",
    "https://openrouter.ai/api/v1": "https://openrouter.ai/api/v1",
    "api.groq.com": "https://api.groq.com/openai/v1",
    "https://r.openai.azure.com": "https://r.openai.azure.com/openai/v1",
    "https://generativelanguage.googleapis.com": SERVERS["gemini"],
    SERVERS["gemini"] + "/": SERVERS["gemini"],
    "http://localhost:11434": "http://localhost:11434/v1",
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


def result(id: str, *parts: Part) -> Message:
    """The result of a call."""
    return Message(
        role="tool", tool_call_id=id, name="fs.read", content=(TextPart(text="{}"), *parts)
    )


def user(*parts: Part) -> Message:
    """A message of these parts."""
    return Message(role="user", content=parts)


def of(*messages: Message, **more: Any) -> Any:
    """A request of these messages."""
    return ask(messages=messages, **more)


def image(part: ImagePart) -> JSON:
    """An image on the wire."""
    url = part.url or f"data:{part.media_type};base64,{part.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def requests() -> Iterator[RequestCase]:
    """All rows."""
    yield from parameters()
    for server in SERVERS:
        yield from by_server(server)
    yield from histories()
    yield from images()
    yield from schemas()
    for given, meant in URLS.items():
        quirk = "#52" if "?" in given else "#64"
        yield RequestCase(
            id=f"base URL {given} {quirk}",
            request=ask(),
            server=given,
            expect={},
            url=f"{meant}/chat/completions",
        )


def parameters() -> Iterator[RequestCase]:
    """Only what was set is sent."""
    hi = [{"role": "user", "content": "hi"}]
    yield RequestCase(
        id="nothing is set", request=ask(), expect={"model": "m", "messages": hi}, only=True
    )
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    yield RequestCase(
        id="a stream asks for usage #5",
        request=ask(),
        stream=True,
        only=True,
        expect={"model": "m", "messages": hi, **usage},
    )
    everything = ask(
        system_prompt="Be brief.",
        tools=(READ, ToolSpec(name="b")),
        tool_choice="fs.read",
        temperature=0.5,
        top_p=0.9,
        max_tokens=7,
        stop_sequences=("X",),
        reasoning="low",
        output_schema={"type": "object"},
    )
    function = {"name": "fs__read", "description": "Read.", "parameters": EMPTY}
    yield RequestCase(
        id="everything is set",
        request=everything,
        config={"extra_body": {"top_k": 3}},
        only=True,
        expect={
            "model": "m",
            "messages": [{"role": "system", "content": "Be brief."}, *hi],
            "tools": [
                {"type": "function", "function": function},
                {"function": {"name": "b", "description": ABSENT}},
            ],
            "tool_choice": {"type": "function", "function": {"name": "fs__read"}},
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 7,
            "stop": ["X"],
            "top_k": 3,
            "reasoning_effort": "low",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": {"type": "object"}},
            },
        },
    )
    for choice in ("auto", "required", None):
        yield RequestCase(
            id=f"tool choice {choice}",
            request=ask(tools=(READ,), tool_choice=choice),
            expect={"tool_choice": choice or "auto"},
        )
    yield RequestCase(
        id="OpenRouter's effort",
        server="openrouter",
        request=ask(reasoning="max"),
        expect={"reasoning": {"effort": "xhigh"}, "reasoning_effort": ABSENT},
    )


def by_server(name: str) -> Iterator[RequestCase]:
    """What differs from server to server, and what must not."""

    def row(rule: str, request: Any, expect: JSON, **more: Any) -> RequestCase:
        return RequestCase(
            id=f"{name}: {rule}", server=name, request=request, expect=expect, **more
        )

    newer = name in OPENAI
    limits = {"max_completion_tokens": 9 if newer else ABSENT, "max_tokens": ABSENT if newer else 9}
    yield row("the limit of tokens #26", ask(max_tokens=9), limits)
    given = of(
        Message.of("system", "B"),
        Message.of("system", "C"),
        Message.of("user", "hi"),
        system_prompt="A",
    )
    merged = {"role": "system", "content": "A\n\nB\n\nC"}
    bare: JSON = {"model": "m", "messages": [merged, {"role": "user"}]}
    yield row("one system message, no tool keys #22 #23 #24", given, bare, only=True)
    unheard = name in ("mistral", "groq", "ollama")
    kept: JSON = {"tools": [...], "tool_choice": "none"}
    yield row(
        "a choice of none #25",
        ask(tools=(READ,), tool_choice="none"),
        dict.fromkeys(kept, ABSENT) if unheard else kept,
    )
    nothing = None if name in NULL_CONTENT else ""
    content = {"content": nothing, "refusal": ABSENT}
    yield row("content beside calls #19", of(called("call_1")), {"messages": [content]})
    empty = of(
        user(TextPart(text="a")),
        Message(role="assistant", reasoning="hm"),
        user(TextPart(text="b")),
    )
    roles = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    yield row("an empty answer is not sent #20", empty, {"messages": roles})
    foreign = Message(
        role="assistant",
        content=(TextPart(text="x"),),
        name="n",
        raw={"origin": "elsewhere", "model": "m", "fields": {"annotations": []}},
    )
    clean = {"role": "assistant", "content": "x", "name": ABSENT, "annotations": ABSENT}
    yield row("fields of another server", of(foreign, tools=(READ,)), {"messages": [clean]})
    long = "toolu:" + "x" * 60
    short = {"mistral": "oxeX9lO9q"}.get(name, "oxeX9lO9qrdN82ygnLaRftrZ")
    yield row(
        "ids that do not fit #55",
        of(called(long), result(long)),
        {"messages": [{"tool_calls": [{"id": short}]}, {"tool_call_id": short}]},
    )
    if name != "mistral":
        fits = {"messages": [{"tool_calls": [{"id": "call_1"}]}, {"tool_call_id": "call_1"}]}
        yield row("ids that fit", of(called("call_1"), result("call_1")), fits)
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
    yield row(
        "schemas",
        ask(tools=(ToolSpec(name="b", parameters=city),)),
        {"tools": [{"function": function}]},
    )


def histories() -> Iterator[RequestCase]:
    """Old messages on the wire."""
    bad = ToolCall(id="c2", name="b", arguments=None, arguments_raw="{oh")
    blank = ToolCall(id="c1", name="fs.read", arguments={}, arguments_raw=" ")
    told = Message(role="assistant", tool_calls=(blank, bad), reasoning="hm")
    functions = [
        {"name": "fs__read", "arguments": "{}"},
        {"name": "b", "arguments": '{"INVALID_JSON":"{oh"}'},
    ]
    sent = [{"type": "function", "function": it} for it in functions]
    answers = [{"tool_call_id": "c1", "content": "{}", "name": ABSENT}, {"tool_call_id": "c2"}]
    yield RequestCase(
        id="calls with bad arguments, and a later system message",
        request=of(
            user(TextPart(text="a")), told, result("c1"), result("c2"), Message.of("system", "S")
        ),
        expect={
            "messages": [
                {"role": "user"},
                {"role": "assistant", "reasoning": ABSENT, "tool_calls": sent},
                *answers,
                {"role": "system", "content": "S"},
            ]
        },
    )
    yield RequestCase(
        id="Mistral: nine characters are kept",
        server="mistral",
        request=of(called("abc123XYZ")),
        expect={"messages": [{"tool_calls": [{"id": "abc123XYZ"}]}]},
    )


def images() -> Iterator[RequestCase]:
    """Images and files, in prompts and out of tool results."""

    def row(id: str, *messages: Message, expect: list[Any]) -> RequestCase:
        return RequestCase(id=f"images: {id}", request=of(*messages), expect={"messages": expect})

    def label(id: str) -> JSON:
        return {"type": "text", "text": f"Given back by fs__read (call {id}):"}

    left, right = TextPart(text="Left:"), TextPart(text="right:")
    yield row("plain text is a text", user(left, right), expect=[{"content": "Left:right:"}])
    parts = [{"type": "text", "text": "Left:"}, image(RED), {"type": "text", "text": "right:"}]
    yield row(
        "stand where they were put",
        user(left, RED, right, BLUE, FAR),
        expect=[{"content": [*parts, image(BLUE), image(FAR)]}],
    )
    data = base64.b64encode("a;b\nü;1".encode()).decode()
    table = FilePart(name="t.csv", media_type="text/csv; charset=utf-8", data=data)
    broken = FilePart(name="x.txt", media_type="text/plain", data="/w==")

    def file(name: str, data: str) -> JSON:
        return {"type": "file", "file": {"filename": name, "file_data": data}}

    yield row(
        "a text file is text, another one a file",
        user(table, PDF, broken),
        expect=[
            {
                "content": [
                    {"type": "text", "text": "File t.csv:\na;b\nü;1"},
                    file("a.pdf", "data:application/pdf;base64,UERG"),
                    file("x.txt", "data:text/plain;base64,/w=="),
                ]
            }
        ],
    )
    answered, so = Message.of("assistant", "Nice."), user(TextPart(text="And?"))
    tools = [{"role": "tool", "content": "{}", "tool_call_id": f"c{n}"} for n in (1, 2, 3)]
    attached = [label("c1"), image(RED), label("c3"), image(BLUE), {"type": "file"}]
    yield row(
        "of results follow all results of the turn",
        called("c1", "c2", "c3"),
        result("c1", RED),
        result("c2"),
        result("c3", BLUE, PDF),
        answered,
        so,
        expect=[
            {"role": "assistant"},
            *tools,
            {"role": "user", "content": attached},
            {"role": "assistant"},
            {"role": "user", "content": "And?"},
        ],
    )
    yield row(
        "each turn has its own",
        called("c1"),
        result("c1", RED),
        called("c2"),
        result("c2", BLUE),
        expect=[
            {"role": "assistant"},
            {"role": "tool"},
            {"role": "user", "content": [..., image(RED)]},
            {"role": "assistant"},
            {"role": "tool"},
            {"content": [label("c2"), image(BLUE)]},
        ],
    )
    yield row(
        "a result without any",
        called("c1"),
        result("c1"),
        so,
        expect=[{"role": "assistant"}, {"role": "tool"}, {"content": "And?"}],
    )


def obj(**properties: Any) -> JSON:
    """A schema of an object."""
    return {"type": "object", "properties": properties}


def ref(name: str) -> JSON:
    """A reference."""
    return {"$ref": f"#/$defs/{name}"}


def schemas() -> Iterator[RequestCase]:
    """A tool's schema as servers read it: nothing changes its meaning."""

    def row(id: str, schema: JSON, written: JSON, server: str = "vllm") -> RequestCase:
        before = json.dumps(schema)
        parameters = {"parameters": {**written, "$defs": written.get("$defs", ABSENT)}}
        case = RequestCase(
            id=f"schema: {id}",
            server=server,
            expect={"tools": [{"function": parameters}]},
            request=ask(tools=(ToolSpec(name="b", parameters=schema),)),
        )
        assert json.dumps(schema) == before
        return case

    nested = obj(
        a={"type": "object"},
        b={"type": "array", "items": {"type": "object"}},
        c={"anyOf": [{"type": "object"}, {"type": "null"}]},
    )
    full = obj(a=EMPTY, b={"type": "array", "items": EMPTY}, c={"anyOf": [EMPTY, {"type": "null"}]})
    yield row("every object says its properties", nested, full)
    names = {
        "properties": {"type": "string"},
        "strict": EMPTY,
        "default": {"enum": [{"type": "object"}], "default": {"type": "object"}},
    }
    yield row(
        "names and values are no keywords",
        obj(**{**names, "strict": {"type": "object"}}),
        obj(**names),
        "mistral",
    )
    number = {"type": "integer"}
    open_one = {"type": "object", "additionalProperties": number}
    inner = {**obj(x=number), "additionalProperties": False, "$id": "y"}
    given = {**obj(a=inner, b=open_one), "$schema": "s", "additionalProperties": False}
    absent = {"additionalProperties": ABSENT, "$id": ABSENT}
    mistral = obj(a={**obj(x=number), **absent}, b={**open_one, "properties": {}})
    yield row("what Mistral refuses", given, {**mistral, "$schema": ABSENT, **absent}, "mistral")
    defs = {"A": obj(b=ref("B")), "B": {"type": "string", "enum": ["x"]}}
    either = {"anyOf": [ref("B"), {"type": "null"}]}
    beside = {**obj(a={**ref("A"), "description": "mine"}, b=either), "$defs": defs}
    b = defs["B"]
    flat = obj(a={**obj(b=b), "description": "mine"}, b={"anyOf": [b, {"type": "null"}]})
    yield row("references are written out", beside, flat)
    yield row("references stay where they are followed", beside, beside, "openai")
    node = obj(children={"type": "array", "items": ref("Node")})
    yield row(
        "one that contains itself",
        {**obj(root=ref("Node")), "$defs": {"Node": node}},
        {**obj(root=node), "$defs": {"Node": node}},
    )
    for target in ("#/$defs/None", "https://example.org/x", "#"):
        unknown = {**obj(a={"$ref": target}), "$defs": {"A": {"type": "string"}}}
        yield row(f"an unknown reference {target}", unknown, unknown)
    levels = {f"L{n}": obj(a=ref(f"L{n + 1}"), b=ref(f"L{n + 1}")) for n in range(20)}
    large = {**obj(a=ref("L0")), "$defs": {**levels, "L20": {"type": "string"}}}
    yield row("one that would explode", large, large)
    kind = {"propertyName": "kind", "mapping": {"a": "#/$defs/A"}}
    union = {"oneOf": [ref("A")], "discriminator": kind}
    a = obj(kind={"const": "a"})
    yield row(
        "a discriminator of what is gone",
        {**obj(x=union), "$defs": {"A": a}},
        obj(x={"oneOf": [a], "discriminator": ABSENT}),
    )


def going_back() -> Iterator[AnswerCase]:
    """What a server needs back with its own answer, and what others must not get."""

    def row(id: str, server: str, back: JSON, **more: Any) -> AnswerCase:
        message: JSON = {"reasoning": "hm", **more.pop("message", {})}
        message.setdefault(
            "tool_calls",
            [
                {
                    "id": "call_1",
                    "function": {"name": "fs__read", "arguments": "{}"},
                    **more.pop("extra", {}),
                }
            ],
        )
        choice = {"message": message, "finish_reason": None}
        body = json.dumps({"choices": [choice]}).encode()
        request = ask(tools=more.pop("tools", (READ,)))
        name = "fs.read" if request.tools else "fs__read"
        found: list[tuple[str, JSON]] = [(name, {})] if message["tool_calls"] else []
        rest = [...] if found else []
        return answer_case(
            f"back to {server}: {id}",
            server=server if server in SERVERS else "",
            body=body,
            request=request,
            calls=found,
            reasoning=message["reasoning"] or None,
            text=message.get("content", ""),
            back={"messages": [..., back, *rest]},
            **more,
        )

    for server, field in REASONING_BACK.items():
        absent = {"reasoning_content": ABSENT}
        yield row("reasoning", server, {"reasoning": field, **absent})
        yield row(
            "reasoning, another model", server, {"reasoning": ABSENT, **absent}, next_model="other"
        )
        yield row("reasoning without tools", server, {"reasoning": ABSENT, **absent}, tools=())
    deepseek = {"reasoning": ABSENT}
    text: JSON = {"content": "Yes.", "tool_calls": []}
    for id, message in {"calls": {}, "text": text}.items():
        yield row(
            f"reasoning of {id} #30",
            "deepseek",
            {**deepseek, "reasoning_content": "hm"},
            message=message,
        )
    yield row(
        "calls without reasoning",
        "deepseek",
        {**deepseek, "reasoning_content": ""},
        message={"reasoning": ""},
    )
    yield row(
        "reasoning of another model", "deepseek", {"reasoning_content": ""}, next_model="other"
    )
    yield row(
        "reasoning of another server", "openai", {"reasoning_content": ""}, next_server="deepseek"
    )
    yield row("reasoning without tools", "deepseek", {"reasoning_content": ABSENT}, tools=())
    details = [{"type": "reasoning.encrypted", "data": "ENC", "index": 0}]
    given: JSON = {"reasoning": None, "reasoning_details": details}
    yield row("details", "openrouter", {"reasoning_details": details}, message=given)
    yield row(
        "details elsewhere",
        "openrouter",
        {"reasoning_details": ABSENT},
        message=given,
        next_server="vllm",
    )
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    yield row("a call's signature", "gemini", {"tool_calls": [signed]}, extra=signed)
    yield row(
        "a call's signature elsewhere",
        "gemini",
        {"tool_calls": [{"extra_content": ABSENT}]},
        extra=signed,
        next_server="vllm",
    )
    yield row(
        "a plain answer's signature",
        "gemini",
        {"content": "Yes.", **signed},
        message={**text, **signed},
    )
    made = {"tool_calls": [{"id": "RksXkbv4v"}]}
    yield row("nine characters also for its own ids", "mistral", made)
    odd = "call:with/odd " + "x" * 60
    own: JSON = {"tool_calls": [{"id": odd, "function": {"name": "fs__read", "arguments": "{}"}}]}
    yield row("its own odd ids", "loopback", {"tool_calls": [{"id": odd}]}, message=own)
    yield row(
        "odd ids elsewhere",
        "vllm",
        {"tool_calls": [{"id": "9MCz0XnYp6oGNAdigaexFZki"}]},
        message=own,
        next_server="lm studio",
    )
