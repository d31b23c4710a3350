"""Every value of an answer replaced by every wrong one: an answer or one clear error, no more."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from nbagent.contracts.chat import ResponseMeta
from nbagent.contracts.errors import ModelError
from nbagent.providers.names import WireNames
from nbagent.providers.openai.answer import AnswerFold
from nbagent.providers.openai.reader import AnswerReader

_CALL = {
    "index": 0,
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": "{}"},
    "extra_content": {"a": 1},
}
_MESSAGE = {
    "role": "assistant",
    "content": "hi",
    "reasoning": "so",
    "reasoning_content": "so",
    "reasoning_details": [{"index": 0, "type": "t", "text": "x"}],
    "refusal": None,
    "tool_calls": [_CALL],
    "function_call": {"name": "f", "arguments": "{}"},
    "extra_content": {"a": 1},
}
_REST: dict[str, Any] = {
    "id": "i",
    "model": "m",
    "error": None,
    "x_groq": {"usage": {}, "error": None},
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    },
}
_SHAPES: dict[str, Any] = {
    "message": {**_REST, "choices": [{"message": _MESSAGE, "finish_reason": "stop"}]},
    "delta": {**_REST, "choices": [{"delta": _MESSAGE, "finish_reason": "stop"}]},
}
_WRONG: list[Any] = [
    *(None, True, False, 0, -1, 7, 1.5, 1e308, 10**30, "", "x", "null"),
    *([], [None], [[]], [1], ["a"], [{}], {}, {"a": 1}, {"text": 5}),
]


def _paths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield path
    if isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(cast("list[Any]", value)):
            yield from _paths(item, (*path, place))


def _replaced(value: Any, path: tuple[str | int, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    changed = copy.deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = wrong
    return changed


def _outcome(body: bytes) -> str:
    """The code of the error, or nothing for a response that can be kept."""
    names = WireNames(["look"])
    reader = AnswerReader(AnswerFold(names, provider="p", origin="o", model="m"))
    try:
        reader.feed(body)
        reader.end()
        if reader.fault is not None:
            raise reader.fault
    except ModelError as error:
        return error.code if error.message.isprintable() else "not one line"
    reader.fold.response(ResponseMeta()).model_dump_json()
    return ""


@pytest.mark.parametrize("shape", _SHAPES)
def test_wrong_types_everywhere_are_taken_or_refused(shape: str) -> None:
    base = _SHAPES[shape]
    codes: Counter[str] = Counter()
    for path in _paths(base):
        for wrong in _WRONG:
            data = json.dumps(_replaced(base, path, wrong)).encode()
            if shape == "delta":
                data = b"data: " + data + b"\n\ndata: [DONE]\n\n"
            codes[_outcome(data)] += 1
    assert codes.keys() == {"", "LLM_BAD_RESPONSE"}
    assert codes.total() > 800
    assert codes[""] > codes["LLM_BAD_RESPONSE"], "most of an answer does not matter so much"
