"""Any JSON in any place of an answer: a response or LLM_BAD_RESPONSE, never another exception."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any, cast

import pytest

from nbagent.contracts.chat import ChatChunk, ResponseMeta, is_keepable
from nbagent.contracts.errors import CODES, ModelError
from nbagent.providers.names import WireNames
from nbagent.providers.openai.answer import AnswerFold
from nbagent.providers.openai.reader import AnswerReader

ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    10**40,
    "",
    "null",
    "x",
    "<think>",
    "\ud800",
    "\u2028",
    [],
    [None],
    [[]],
    [{}],
    ["x"],
    {},
    {"x": None},
    {"text": 3},
    {"error": None},
    [[["deep"]]],
]
CHUNKS: list[Any] = [
    {
        "id": "c",
        "model": "m",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi "}}],
        "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}},
        "x_groq": {"usage": {"prompt_tokens": 3}},
    },
    {
        "choices": [
            {
                "delta": {
                    "content": [{"type": "thinking", "thinking": [{"text": "hm"}]}],
                    "reasoning": "a",
                    "refusal": None,
                    "function_call": None,
                    "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a"}],
                    "extra_content": {"google": {}},
                }
            }
        ]
    },
    {
        "choices": [
            {
                "delta": {
                    "tool_calls": [
                        {
                            "index": 0,
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "b", "arguments": '{"a": 1}'},
                        }
                    ]
                },
                "finish_reason": "tool_calls",
                "message": {"content": "late"},
            }
        ],
        "usage": {"total_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 1}},
    },
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value inside."""
    yield path
    if isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for place, inner in enumerate(cast("list[Any]", value)):
            yield from places(inner, (*path, place))


def changed(chunks: list[Any], path: tuple[Any, ...], odd: Any) -> list[Any]:
    made = copy.deepcopy(chunks)
    holder: Any = made
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = odd
    return made


def outcome(body: bytes) -> str:
    """`ok`, or the code of the ModelError; anything else fails the test."""
    reader = AnswerReader(AnswerFold(WireNames(["b"]), provider="p", origin="o", model="m"))
    shown: list[ChatChunk] = []
    code = ""
    try:
        shown += reader.feed(body)
        shown += reader.end()
    except ModelError as error:
        code = error.code
    if code:
        assert code in CODES - {"UNKNOWN"}
        return code
    response = reader.fold.response(ResponseMeta())
    text = "".join(chunk.content for chunk in shown)
    assert text == response.message.text
    response.model_dump_json()
    assert all(is_keepable(call.arguments) for call in response.message.tool_calls)
    return "ok"


@pytest.mark.parametrize("form", ["stream", "whole"])
def test_any_value_in_any_place_is_an_answer_or_a_bad_response(form: str) -> None:
    chunks = CHUNKS
    if form == "whole":
        choice = cast("dict[str, Any]", copy.deepcopy(CHUNKS[2]["choices"][0]))
        message = {**CHUNKS[1]["choices"][0]["delta"], **choice.pop("delta"), "content": "Hi"}
        chunks = [{**CHUNKS[0], "choices": [{**choice, "message": message}]}]
    seen: dict[str, int] = {}
    for path in places(chunks):
        if not path:
            continue
        for odd in ODD:
            made = changed(chunks, path, odd)
            if form == "whole":
                body = json.dumps(made[0]).encode()
            else:
                events = [b"data: " + json.dumps(item).encode() + b"\n\n" for item in made]
                body = b"".join(events) + b"data: [DONE]\n\n"
            found = outcome(body)
            seen[found] = seen.get(found, 0) + 1
    assert seen["ok"] > 400
    assert seen["LLM_BAD_RESPONSE"] > 50
    assert seen.keys() == {"ok", "LLM_BAD_RESPONSE"}


def test_noise_is_never_another_exception() -> None:
    chance = random.Random(7)
    sample = b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in CHUNKS)
    for _ in range(1_500):
        body = bytearray(sample)
        for _ in range(chance.randrange(1, 8)):
            at = chance.randrange(len(body))
            if chance.random() < 0.5:
                body[at] = chance.randrange(256)
            else:
                del body[at : at + chance.randrange(1, 40)]
        outcome(bytes(body) + b"data: [DONE]\n\n")
