"""Requests of the Responses wire are what OpenAI's own types say, and nothing beside them."""

from __future__ import annotations

import collections.abc
import copy
import json
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import pytest
import typing_extensions
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from wires.chat_requests import RED
from wires.harness import JSON, TOOLS, World, ask
from wires.responses_cases import FULL, INCLUDE, WIRE, function, image_in, text_in

from nbagent.contracts.chat import ChatResponse, Message, TextPart

_LISTS = (list, collections.abc.Iterable, collections.abc.Sequence)
_UNIONS = (Union, types.UnionType)


def faults(value: Any, kind: Any, at: str = "body") -> Iterator[str]:
    """Where a value is not of a type; unlike pydantic it allows no key that is not in the type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (typing_extensions.Required, Annotated):
        yield from faults(value, inner[0], at)
    elif origin in _UNIONS:
        tried = [list(faults(value, one, at)) for one in inner]
        # The branch that fits furthest says what is wrong.
        yield from min(tried, key=lambda found: (bool(found), -max(map(len, found), default=0)))
    elif origin is Literal:
        if value not in inner:
            yield f"{at}: {value!r} is none of {inner}"
    elif origin in _LISTS and isinstance(value, list):
        for n, item in enumerate(cast("list[Any]", value)):
            yield from faults(item, inner[0], f"{at}[{n}]")
    elif typing_extensions.is_typeddict(kind):
        yield from _faults_of_object(value, kind, at)
    elif origin in _LISTS or not (kind in (Any, object) or _is_plain(value, origin or kind)):
        yield f"{at}: {value!r} is no {kind}"


def _faults_of_object(value: Any, kind: Any, at: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{at}: no object"
        return
    given, hints = cast("JSON", value), get_type_hints(kind, include_extras=True)
    for name, hint in hints.items():
        if name in given:
            yield from faults(given[name], hint, f"{at}.{name}")
        elif get_origin(hint) is typing_extensions.Required:
            yield f"{at}.{name} is missing"
    yield from (f"{at}.{name} is unknown" for name in given.keys() - hints.keys())


def _is_plain(value: Any, kind: Any) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, int | float if kind is float else kind)


def wrong(body: JSON) -> list[str]:
    """What is wrong with a request."""
    return list(faults({"stream": True, **body}, ResponseCreateParamsStreaming))


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
        assert wrong(body) == [], case.id


def test_the_second_turn_is_one_of_the_types_and_this(world: World) -> None:
    body = conversation(world)
    assert wrong(body) == []
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
