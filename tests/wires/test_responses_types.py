"""Requests of the Responses wire are what OpenAI's own types say, and nothing beside them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from wires.chat_requests import RED
from wires.harness import JSON, TOOLS, World, ask
from wires.responses_cases import FULL, INCLUDE, WIRE, function, image_in, text_in
from wires.sdk_types import problem

from nbagent.contracts.chat import ChatResponse, Message, TextPart


def wrong(body: JSON) -> str:
    """What is wrong with a request."""
    return problem({"stream": True, **body}, ResponseCreateParamsStreaming)


def conversation(world: World) -> JSON:
    """The second request of a conversation with reasoning, calls and an image."""
    _, answer = world.answer(WIRE, WIRE.answers[0], stream=True)
    assert isinstance(answer, ChatResponse)
    messages = (
        Message(role="user", content=(TextPart(text="Which?"), RED)),
        answer.message,
        Message(role="tool", tool_call_id="call_1", content=(TextPart(text="{}"), RED)),
        Message(role="tool", tool_call_id="call_2", content=(TextPart(text="{}"),)),
    )
    request = ask(messages=messages, tools=TOOLS[:2], system_prompt="Look.", reasoning="high")
    return cast("JSON", world.wire_request(WIRE, request, stream=True)[1])


def test_every_request_of_the_tables_is_one_of_the_types(world: World) -> None:
    for case in WIRE.requests:
        _, body = world.wire_request(WIRE, case.request, stream=True, **case.config)
        assert wrong(body) == "", case.id


def test_the_second_turn_is_one_of_the_types_and_this(world: World) -> None:
    body = conversation(world)
    assert wrong(body) == ""
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


SPOILERS: dict[str, Callable[[JSON], Any]] = {
    "a tool without strict": lambda body: body["tools"][0].pop("strict"),
    "a nested function": lambda body: body.update(tool_choice={"type": "function", "function": {}}),
    "a stop": lambda body: body.update(stop=["X"]),
    "an output that is an object": lambda body: body["input"][-1].update(output={}),
    "an image as with chat": lambda body: body["input"][0]["content"][1].update(image_url={"u": 1}),
    "a key of another wire": lambda body: body["input"][3].update(index=0),
}


@pytest.mark.parametrize("spoil", SPOILERS.values(), ids=SPOILERS)
def test_a_wrong_request_is_none_of_the_types(world: World, spoil: Callable[[JSON], Any]) -> None:
    body = copy.deepcopy(conversation(world))
    spoil(body)
    assert wrong(body)
