"""Requests of Ollama's wire against the types of its own package, `ollama`."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal, cast

import ollama
import pytest
from ollama._types import ChatRequest
from pydantic import AfterValidator, BaseModel, ValidationError, create_model
from wires.harness import JSON, RequestCase, World, ask
from wires.ollama_cases import READ, RED, WIRE, user

from nbagent.contracts.chat import Message, TextPart, ToolCall


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


@pytest.mark.parametrize("case", WIRE.requests, ids=[case.id for case in WIRE.requests])
def test_every_request_is_one_of_the_package(world: World, case: RequestCase) -> None:
    server = WIRE.servers.get(case.server, case.server)
    _, body = world.wire_request(WIRE, case.request, server, stream=case.stream, **case.config)
    Request.model_validate(body)


def test_every_option_of_the_package_is_sent_among_the_options(world: World) -> None:
    extra = dict.fromkeys(ollama.Options.model_fields, 1)
    _, body = world.wire_request(WIRE, ask(), extra_body=extra)
    assert body["options"] == extra
    assert body.keys() == {"model", "messages", "stream", "options"}


CALL: JSON = {"function": {"name": "b", "arguments": "{}"}}
WRONG: dict[str, JSON] = {
    "arguments as a text": {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
    "a choice of tools": {"messages": [], "tool_choice": "auto"},
    "an image with its prefix": {"messages": [{"role": "user", "images": ["data:a;base64,UkVE"]}]},
    "an unknown effort": {"messages": [], "think": "xhigh"},
    "content in parts": {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    "an option beside the others": {"messages": [], "num_ctx": 8192},
    "a tool that is its own function": {"messages": [], "tools": [{"name": "b"}]},
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_a_wrong_request_is_refused_by_the_package(body: JSON) -> None:
    with pytest.raises(ValidationError):
        Request.model_validate({"model": "m", **body})


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
        tools=(READ,), reasoning="high", max_tokens=500,
    )  # fmt: skip
    url, body = world.wire_request(WIRE, request, stream=True, extra_body={"num_ctx": 32768})
    assert url == f"{origin}/api/chat"
    Request.model_validate(body)
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
