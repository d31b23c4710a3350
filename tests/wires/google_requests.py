"""Requests to Gemini: parameters, thinking, history, schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wires.chat_requests import FAR, LEFT, PDF, READ, RED, TABLE, called, obj, result, user
from wires.harness import ABSENT, JSON, TOOLS, Exactly, RequestCase, ask, everything

from nbagent.contracts.messages import Message, TextPart, ToolCall
from nbagent.contracts.model import ToolSpec

WIRE_URL = "https://generativelanguage.googleapis.com/v1"
DUMMY = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="


def text(words: str, **more: Any) -> JSON:
    return {"text": words, **more}


def model(*parts: Any) -> Any:
    return Exactly({"role": "model", "parts": list(parts)})


def inline(kind: str, data: str) -> JSON:
    return {"inlineData": {"mimeType": kind, "data": data}}


HI: JSON = {"role": "user", "parts": [{"text": "hi"}]}
RED_PART, PDF_PART = inline("image/png", "UkVE"), inline("application/pdf", "UERG")
FAR_PART = {"fileData": {"mimeType": "image/png", "fileUri": "https://example.org/a.png"}}
TABLE_PART = {"text": "File t.csv:\na;b\nü;1"}
EVERYTHING: JSON = {
    "contents": [HI], "systemInstruction": {"parts": [text("Be brief.")]},
    "tools": [{"functionDeclarations": [{"name": "fs__read"}, {"name": "b"}]}], "toolConfig": ...,
    "generationConfig": Exactly({
        "temperature": 0.5, "topP": 0.9, "maxOutputTokens": 7, "stopSequences": ["X"],
        "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
        "responseMimeType": "application/json",
        "responseJsonSchema": {"type": "object", "properties": {}}}),
}  # fmt: skip
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
        "max": {"includeThoughts": True, "thinkingLevel": "HIGH"},
        "5000": {"includeThoughts": True, "thinkingLevel": "MEDIUM"}},
    "gemini-3.1-pro": {"none": {"thinkingLevel": "LOW"}},
    "gemini-3.8-flash": {"minimal": {"includeThoughts": True, "thinkingLevel": "LOW"}},
    "gemini-flash-latest": {"none": {"thinkingLevel": "LOW"}},
}  # fmt: skip
CHOICES: dict[str | None, JSON] = {
    None: {"mode": "AUTO"}, "auto": {"mode": "AUTO"}, "none": {"mode": "NONE"},
    "required": {"mode": "ANY"}, "b": {"mode": "ANY", "allowedFunctionNames": ["b"]},
}  # fmt: skip


def requests() -> Iterator[RequestCase]:
    bare: JSON = {"contents": [HI]}
    path = ":generateContent"
    yield RequestCase("nothing is set #24", ask(), bare, only=True)
    request = everything(model="gemini-3.8-flash")
    yield RequestCase("everything is set", request, EVERYTHING, only=True)
    more: JSON = {"contents": [HI], **EXTRA, "generationConfig": Exactly({"topP": 1, "topK": 3})}
    given: JSON = {"config": {"extra_body": EXTRA}, "url": f"{WIRE_URL}/models/m{path}"}
    yield RequestCase("what is added", ask(top_p=1), more, only=True, server="google", **given)
    tuned = ask(model="tunedModels/a b")
    urls = {"http://h:1": "http://h:1/v1", "http://h:1/v1beta/models/": "http://h:1/v1beta"}
    for server, meant in urls.items():
        url = f"{meant}/tunedModels/a%20b{path}"
        yield RequestCase(f"base URL {server} #64", tuned, bare, server=server, url=url)
    for limit, method in ((32_768, "generateContent"), (32_769, "streamGenerateContent")):
        yield RequestCase(f"{limit} tokens #41", ask(max_tokens=limit), {}, server="http://h",
                   url=f"http://h/v1/models/m:{method}")  # fmt: skip
    for choice, calling in CHOICES.items():
        expect: JSON = {"tools": [...], "toolConfig": {"functionCallingConfig": Exactly(calling)}}
        request = ask(tools=(READ, ToolSpec(name="b")), tool_choice=choice)
        yield RequestCase(f"tool choice {choice}", request, expect)
    for name, levels in THINKING.items():
        for asked, config in levels.items():
            expect = {"generationConfig": {"thinkingConfig": Exactly(config)}}
            yield RequestCase(f"{name} thinks {asked}", ask(model=name, reasoning=asked), expect)
    schema = {"type": "object", "properties": {"n": {"const": 1}}}
    said = 'Answer with one JSON object that fits this JSON Schema: {"type":"object",'
    older = ask(model="gemini-2.5-flash", tools=TOOLS, output_schema=schema)
    words = said + '"properties":{"n":{"const":1}}}'
    told: JSON = {"generationConfig": ABSENT, "systemInstruction": {"parts": [text(words)]}}
    yield RequestCase("Gemini 2 takes a schema or tools", older, told)
    alone = ask(model="gemini-2.5-flash", output_schema=schema)
    form = {"responseJsonSchema": {**schema, "properties": {"n": {"enum": [1]}}}}
    yield RequestCase("Gemini 2 takes a schema", alone, {"generationConfig": form})
    for id, (name, messages, contents) in HISTORIES.items():
        yield RequestCase(id, ask(messages=tuple(messages), model=name), {"contents": contents})
    for id, (given_schema, written) in SCHEMAS.items():
        declared = {"parametersJsonSchema": Exactly(written), "parameters": ABSENT}
        expect = {"tools": [{"functionDeclarations": [declared]}]}
        request = ask(tools=(ToolSpec(name="b", parameters=given_schema),))
        yield RequestCase(f"schema: {id}", request, expect)


def response(id: str, said: str = "{}", *, word: str = "output") -> JSON:
    held = {"name": "fs__read", "response": {word: said}, "id": id}
    return {"functionResponse": Exactly(held)}


def label(id: str) -> JSON:
    return {"text": f"Given back by fs__read (call {id}):"}


REFERS, NO_FILE = '{"ok":true,"data":{"$ref":"x"}}', '{"ok":false,"error":{"code":"ENOENT"}}'
CALLED: JSON = {"role": "model", "parts": [{"thoughtSignature": DUMMY}, {"functionCall": ...}]}
NEW, OLD = "gemini-3.8-flash", "gemini-2.5-flash"
BAD_CALL = ToolCall(id="c1", name="b", arguments=None, arguments_raw="{oh")
# id: model, messages, contents.
HISTORIES: dict[str, tuple[str, list[Message], list[Any]]] = {
    "results are one content, in the order of the calls #37 #38 #43": (
        NEW,
        [called("c1", "c2"), result("c2", said=NO_FILE), result("c1", said=REFERS),
         called("c3"), result("c3"), user(LEFT)],
        [{"role": "user", "parts": [text("…")]}, CALLED,
         {"role": "user", "parts": [response("c1", REFERS),
                                    response("c2", NO_FILE, word="error")]},
         {"parts": [{"functionCall": {"id": "c3", "args": {}}, "thoughtSignature": DUMMY}]},
         {"parts": [response("c3")]}, {"role": "user", "parts": [text("Left:")]}]),
    "Gemini 2 checks no signatures": (
        OLD, [user(LEFT), called("c1")],
        [..., model({"functionCall": {"id": "c1", "name": "fs__read", "args": {}}})]),
    "images and files, also of results": (
        NEW,
        [user(LEFT, RED, TABLE, PDF, FAR), called("c1", "c2"), result("c1", RED, PDF),
         result("c2", FAR, TABLE)],
        [{"role": "user", "parts": [text("Left:"), RED_PART, TABLE_PART, PDF_PART, FAR_PART]}, ...,
         {"parts": [response("c1"), response("c2")]},
         {"role": "user", "parts": [label("c1"), RED_PART, PDF_PART, label("c2"), FAR_PART,
                                    TABLE_PART]}]),
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
