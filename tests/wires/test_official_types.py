"""What each wire sends is what the types of its provider's own package allow, and nothing else."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, cast

import ollama
import pytest
from anthropic.types.beta.message_create_params import MessageCreateParams as WithBetas
from anthropic.types.message_create_params import MessageCreateParams
from google.genai import types
from ollama._types import ChatRequest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, create_model
from wires import anthropic_cases, google_cases, ollama_cases, responses_cases
from wires.anthropic_cases import LOOK, THOUGHT, use
from wires.chat_requests import EMPTY, RED, result, user
from wires.google_requests import EVERYTHING, answered, label, text
from wires.harness import (
    JSON,
    TOOLS,
    RequestCase,
    WireSetup,
    World,
    answer_case,
    ask,
    rows,
)
from wires.responses_cases import FULL, INCLUDE, function, image_in, text_in
from wires.sdk_types import problem

from nbagent.contracts.chat import ChatResponse, Message, TextPart, ToolCall

ANTHROPIC, GOOGLE = anthropic_cases.WIRE, google_cases.WIRE
OLLAMA, RESPONSES = ollama_cases.WIRE, responses_cases.WIRE


class _GeminiBody(BaseModel):
    """The body of `generateContent`; the types of the SDK refuse extra keys themselves."""

    model_config = ConfigDict(extra="forbid")
    contents: list[types.Content]
    systemInstruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    toolConfig: types.ToolConfig | None = None
    generationConfig: types.GenerationConfig | None = None
    safetySettings: list[types.SafetySetting] | None = None
    cachedContent: str | None = None
    continuationToken: str | None = None


def _bare(text: str) -> str:
    """The package sends bytes so; it would take a text for a path."""
    assert base64.b64encode(base64.b64decode(text, validate=True)).decode() == text
    return text


def strict(base: type[BaseModel], **fields: Any) -> Any:
    """A type of the package with further keys refused."""
    types = {name: (kind, None) for name, kind in fields.items()}
    return create_model(
        base.__name__, __base__=base, __cls_kwargs__={"extra": "forbid"}, **cast("Any", types)
    )


# The server knows `index`, `id`, `tool_call_id` and `min_p`, too (providers.md 6.2, 6.3).
Function = strict(ollama.Message.ToolCall.Function, index=int | None)
Call = strict(ollama.Message.ToolCall, id=str | None, function=Function)
Said = strict(
    ollama.Message,
    role=Literal["system", "user", "assistant", "tool"],
    tool_call_id=str | None,
    images=list[Annotated[str, AfterValidator(_bare)]] | None,
    tool_calls=list[Call] | None,
)
Parameters = strict(ollama.Tool.Function.Parameters)
Tool = strict(ollama.Tool, function=strict(ollama.Tool.Function, parameters=Parameters))
Request = strict(
    ChatRequest,
    messages=list[Said],
    tools=list[Tool] | None,
    options=strict(ollama.Options, min_p=float | None) | None,
    think=bool | Literal["low", "medium", "high", "max"] | None,
)


def _refusal(kind: type[BaseModel], body: JSON) -> str:
    try:
        kind.model_validate_json(json.dumps(body))
    except ValidationError as error:
        return str(error)
    return ""


WRONG_WITH: dict[str, Callable[[JSON], str]] = {
    "anthropic": lambda body: problem(body, MessageCreateParams),
    "google": lambda body: _refusal(_GeminiBody, body),
    "ollama": lambda body: _refusal(Request, body),
    "responses": lambda body: problem({**body, "stream": True}, ResponseCreateParamsStreaming),
}
"""What is wrong with a body, by the wire's name; empty where nothing is."""


def _is_usual(wire: WireSetup, case: RequestCase) -> bool:
    """Not of a server that only speaks Anthropic's language, and without fields of a person's."""
    return wire is not ANTHROPIC or not (case.config or "elsewhere" in case.id)


SENT = [
    row
    for row in rows((ANTHROPIC, GOOGLE, OLLAMA, RESPONSES), "requests")
    if _is_usual(row.values[0], row.values[1])
]


@pytest.mark.parametrize(("wire", "case"), SENT)
def test_what_is_sent_is_of_the_official_types(
    world: World, wire: WireSetup, case: RequestCase
) -> None:
    server = wire.servers.get(case.server, case.server)
    _, body = world.wire_request(wire, case.request, server, stream=case.stream, **case.config)
    assert WRONG_WITH[wire.name](body) == ""


CALLED = ToolCall(id="toolu_1", name="fs.read", arguments={"at": "a"}, arguments_raw='{"at":"a"}')
FROM: JSON = {"origin": "https://api.anthropic.com:443", "model": "claude-sonnet-5-5"}
OURS = Message(role="assistant", tool_calls=(CALLED,), raw={**FROM, "blocks": [THOUGHT, LOOK]})
CONVERSATION = ask(
    model="claude-sonnet-5-5",
    messages=(Message.of("user", "Look at a."), OURS, result("toolu_1", RED)),
    system_prompt="Terse.",
    tools=(anthropic_cases.READ,),
    reasoning="high",
)
SNAPSHOT: JSON = json.loads("""{
  "model": "claude-sonnet-5-5",
  "max_tokens": 16000,
  "stream": true,
  "cache_control": {"type": "ephemeral"},
  "thinking": {"type": "adaptive", "display": "summarized"},
  "output_config": {"effort": "high"},
  "system": [{"type": "text", "text": "Terse.", "cache_control": {"type": "ephemeral"}}],
  "tools": [{"name": "fs__read", "description": "Read.",
             "input_schema": {"type": "object", "properties": {}}}],
  "tool_choice": {"type": "auto"},
  "messages": [
    {"role": "user", "content": [{"type": "text", "text": "Look at a."}]},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "Hm, so.", "signature": "SIG=="},
      {"type": "tool_use", "id": "toolu_1", "name": "fs__read", "input": {"at": "a"}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
        {"type": "text", "text": "{}"},
        {"type": "image", "source": {
          "type": "base64", "media_type": "image/png", "data": "UkVE"}}]}]}]
}""")
BASE: dict[str, JSON] = {
    "anthropic": SNAPSHOT,
    "google": {"contents": []},
    "ollama": {"model": "m", "messages": []},
    "responses": {"model": "m", "input": [], "tools": [function("b")]},
}
UNSTRICT = {key: value for key, value in function("b").items() if key != "strict"}
OUTPUT: JSON = {"type": "function_call_output", "call_id": "c", "output": "{}"}
WRONG: dict[str, dict[str, JSON]] = {
    "anthropic": {
        "no max_tokens": {"max_tokens": None},
        "a removed parameter": {"temperature": 0.5},
        "a choice that is a word": {"tool_choice": "auto"},
        "an unknown way to think": {"thinking": {"type": "enabled", "effort": "high"}},
        "a message of a tool": {"messages": [{"role": "tool", "content": "x"}]},
        "a call with text as its input": {
            "messages": [{"role": "assistant", "content": [{**use("t"), "input": "{}"}]}]},
        "a block with a field too many": {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "id": "1"}]}]},
    },
    "google": {
        "a field of another wire": {"messages": []},
        "a key too many in a part": {"contents": [{"parts": [{"text": "x", "type": "text"}]}]},
        "arguments as a text": {"contents": [{"parts": [{"functionCall": {"args": "{}"}}]}]},
        "a result that is no object": {
            "contents": [{"parts": [{"functionResponse": {"name": "b", "response": "x"}}]}]},
        "a signature that is no base64": {
            "contents": [{"parts": [{"text": "x", "thoughtSignature": "skip it"}]}]},
        "a text within a result's parts": {
            "contents": [{"parts": [{"functionResponse": {"parts": [{"text": "x"}]}}]}]},
        "tools without a list of declarations": {"tools": [{"name": "b"}]},
    },
    "ollama": {
        "arguments as a text": {
            "messages": [{"role": "assistant", "tool_calls": [
                {"function": {"name": "b", "arguments": "{}"}}]}]},
        "a choice of tools": {"tool_choice": "auto"},
        "an image with its prefix": {
            "messages": [{"role": "user", "images": ["data:a;base64,UkVE"]}]},
        "an unknown effort": {"think": "xhigh"},
        "content in parts": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "an option beside the others": {"num_ctx": 8192},
        "a tool that is its own function": {"tools": [{"name": "b"}]},
    },
    "responses": {
        "a tool without strict": {"tools": [UNSTRICT]},
        "a nested function": {"tool_choice": {"type": "function", "function": {}}},
        "a stop": {"stop": ["X"]},
        "an output that is an object": {"input": [{**OUTPUT, "output": {}}]},
        "an image as with chat": {
            "input": [{"role": "user", "content": [{**image_in(""), "image_url": {"u": 1}}]}]},
        "a key of another wire": {"input": [{**OUTPUT, "index": 0}]},
    },
}  # fmt: skip


@pytest.mark.parametrize(("wire", "what"), [(wire, what) for wire in WRONG for what in WRONG[wire]])
def test_a_wrong_request_is_not_of_these_types(wire: str, what: str) -> None:
    assert WRONG_WITH[wire](BASE[wire]) == ""
    changed = {**BASE[wire], **WRONG[wire][what]}
    assert WRONG_WITH[wire]({name: it for name, it in changed.items() if it is not None})


# The second request of a conversation, whole.


def test_a_turn_with_thinking_and_an_image_is_sent_so(world: World) -> None:
    server = ANTHROPIC.servers["anthropic"]
    _, body = world.wire_request(ANTHROPIC, CONVERSATION, server, stream=True)
    assert body == SNAPSHOT


def test_leaving_out_thinking_is_of_the_types_of_its_beta() -> None:
    binding = {"prefix_mismatch_behavior": "drop_block"}
    body = {**SNAPSHOT, "thinking": {"type": "adaptive", "block_binding": binding}}
    assert problem(body, WithBetas) == ""
    assert problem(body, MessageCreateParams)


def test_two_turns_with_reasoning_and_an_image_send_this(world: World) -> None:
    call = {"id": "fc1", "name": "fs__read", "args": {"at": "a"}}
    signed = {"functionCall": call, "thoughtSignature": "QUJD"}
    case = answer_case(
        "the first turn",
        stream=google_cases.sse(
            google_cases.chunk(text("Hm", thought=True), text("I look."), signed, end="STOP")
        ),
        request=EVERYTHING,
    )
    _, found = world.answer(GOOGLE, case, stream=True)
    assert isinstance(found, ChatResponse)
    messages = (
        user(TextPart(text="Look."), RED),
        found.message,
        answered("fc1", RED, said='{"ok":true,"data":1}'),
        Message.of("user", "And?"),
    )
    request = EVERYTHING.model_copy(update={"messages": messages})
    _, body = world.wire_request(GOOGLE, request)
    assert WRONG_WITH["google"](body) == ""
    red = {"inlineData": {"mimeType": "image/png", "data": "UkVE"}}
    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "Look."}, red]},
        {"role": "model", "parts": [{"text": "Hm", "thought": True}, {"text": "I look."}, signed]},
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "fs__read",
                        "response": {"output": '{"ok":true,"data":1}'},
                        "id": "fc1",
                    }
                }
            ],
        },
        {"role": "user", "parts": [label("fc1"), red]},
        {"role": "user", "parts": [{"text": "And?"}]},
    ]
    assert body | {"contents": ...} == {
        "contents": ...,
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [
            {
                "functionDeclarations": [
                    {"name": "fs__read", "description": "Read.", "parametersJsonSchema": EMPTY},
                    {"name": "b", "parametersJsonSchema": EMPTY},
                ]
            }
        ],
        "toolConfig": {
            "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["fs__read"]}
        },
        "generationConfig": {
            "temperature": 0.5,
            "topP": 0.9,
            "maxOutputTokens": 7,
            "stopSequences": ["X"],
            "thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"},
            "responseMimeType": "application/json",
            "responseJsonSchema": EMPTY,
        },
    }


def test_every_option_of_the_package_is_sent_among_the_options(world: World) -> None:
    extra = dict.fromkeys(ollama.Options.model_fields, 1)
    _, body = world.wire_request(OLLAMA, ask(), extra_body=extra)
    assert body["options"] == extra
    assert body.keys() == {"model", "messages", "stream", "options"}


def test_the_request_of_the_second_turn_of_a_tool_conversation(world: World) -> None:
    origin = world.player.origin
    call = ToolCall(id="call_1", name="fs.read", arguments={"at": "a"}, arguments_raw='{"at": "a"}')
    raw = {"origin": origin, "model": "qwen3:8b", "reasoning_field": "thinking"}
    answer = Message(role="assistant", tool_calls=(call,), reasoning="I have to look.", raw=raw)
    done = (TextPart(text='{"ok":true}'),)
    result = Message(role="tool", tool_call_id="call_1", name="fs.read", content=done)
    question = user(TextPart(text="What is it?"), RED)
    request = ask(
        model="qwen3:8b", system_prompt="Be brief.", messages=(question, answer, result),
        tools=(ollama_cases.READ,), reasoning="high", max_tokens=500,
    )  # fmt: skip
    url, body = world.wire_request(OLLAMA, request, stream=True, extra_body={"num_ctx": 32768})
    assert url == f"{origin}/api/chat"
    assert WRONG_WITH["ollama"](body) == ""
    called = {"index": 0, "name": "fs__read", "arguments": {"at": "a"}}
    schema: JSON = {"type": "object", "properties": {}}
    described = {"name": "fs__read", "description": "Read.", "parameters": schema}
    assert body == {
        "model": "qwen3:8b", "stream": True, "think": True,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is it?", "images": ["UkVE"]},
            {"role": "assistant", "content": "", "thinking": "I have to look.",
             "tool_calls": [{"id": "call_1", "function": called}]},
            {"role": "tool", "content": '{"ok":true}', "tool_name": "fs__read",
             "tool_call_id": "call_1"},
        ],
        "tools": [{"type": "function", "function": described}],
        "options": {"num_predict": 500, "num_ctx": 32768},
    }  # fmt: skip


def test_the_second_turn_is_one_of_the_types_and_this(world: World) -> None:
    _, answer = world.answer(RESPONSES, RESPONSES.answers[0], stream=True)
    assert isinstance(answer, ChatResponse)
    messages = (
        Message(role="user", content=(TextPart(text="Which?"), RED)),
        answer.message,
        Message(role="tool", tool_call_id="call_1", content=(TextPart(text="{}"), RED)),
        Message(role="tool", tool_call_id="call_2", content=(TextPart(text="{}"),)),
    )
    request = ask(messages=messages, tools=TOOLS[:2], system_prompt="Look.", reasoning="high")
    _, body = world.wire_request(RESPONSES, request, stream=True)
    assert WRONG_WITH["responses"](body) == ""
    red = image_in("data:image/png;base64,UkVE")
    output = [text_in("{}"), red]
    look = {"type": "object", "properties": {"at": {"type": "string"}}}
    user = {"type": "message", "role": "user", "content": [text_in("Which?"), red]}
    expected: JSON = {
        "input": [
            user,
            *FULL,
            {"type": "function_call_output", "call_id": "call_1", "output": output},
            {"type": "function_call_output", "call_id": "call_2", "output": "{}"},
        ],
        "tools": [function("fs__look", parameters=look), function("b")],
        "instructions": "Look.",
        "model": "m",
        "store": False,
        "include": INCLUDE,
        "tool_choice": "auto",
        "reasoning": {"effort": "high", "summary": "auto"},
        "stream": True,
    }
    assert json.dumps(body) == json.dumps(expected), "to the order of the keys: prompts are cached"
