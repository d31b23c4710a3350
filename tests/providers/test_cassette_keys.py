"""The key of a recorded request: every field of ChatRequest tells requests apart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nbagent import offline
from nbagent.contracts.messages import ImagePart, Message, TextPart, ToolCall
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.providers.cassette.client import ReplayClient
from nbagent.providers.cassette.file import Cassette

QUESTION = ChatRequest(model="m", messages=(Message.of("user", "hi"),))
OTHER: dict[str, Any] = {
    "model": "n",
    "messages": (Message.of("user", "ho"),),
    "system_prompt": "Be brief.",
    "tools": (ToolSpec(name="population"),),
    "tool_choice": "none",
    "temperature": 0.0,
    "max_tokens": 100,
    "top_p": 1.0,
    "stop_sequences": ("END",),
    "reasoning": "none",
    "output_schema": {},
}
"""By field of a request: another value, where possible one that Python takes for false."""


class RequestWithSeed(ChatRequest):
    """A request as a later version may have it: the field is named nowhere else."""

    seed: int | None = None
    logprobs: bool = False


def asked(file: Path, requests: list[ChatRequest]) -> list[str]:
    """Answer each request from the file or the model; returns the answers."""
    model = offline.script([f"answer {number}" for number in range(len(requests))])

    async def ask(request: ChatRequest) -> str:
        client = ReplayClient(model, server="http://s:1", mode="auto", cassette=Cassette(file))
        return (await client.chat(request)).message.text

    async def ask_all() -> list[str]:
        return [await ask(request) for request in requests]

    return asyncio.run(ask_all())


def keys(file: Path) -> list[str]:
    return [json.loads(line)["key"] for line in file.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", ChatRequest.model_fields)
def test_every_field_of_a_request_tells_it_from_others(name: str, tmp_path: Path) -> None:
    other = QUESTION.model_copy(update={name: OTHER[name]})
    answers = asked(tmp_path / "answers.jsonl", [QUESTION, other, QUESTION, other])
    assert answers == ["answer 0", "answer 1", "answer 0", "answer 1"]


FIRST, SECOND = (
    ToolCall(id=id, name="area", arguments={"at": id}, arguments_raw="{}") for id in ("c1", "c2")
)
BROKEN = ToolCall(id="c2", name="area", arguments=None, arguments_raw="{a")
TALK = (
    Message.of("user", "How large?"),
    Message.of("assistant", "Let me see.").model_copy(
        update={"reasoning": "Hm.", "tool_calls": (FIRST, SECOND)}
    ),
    Message.of("tool", '{"ok":true}').model_copy(update={"name": "area", "tool_call_id": "c1"}),
    Message.of("tool", '{"ok":true}').model_copy(update={"name": "area", "tool_call_id": "c2"}),
)
CHANGED: dict[str, tuple[int, dict[str, Any]]] = {
    "the role": (0, {"role": "assistant"}),
    "the person's words": (0, {"content": (TextPart(text="How small?"),)}),
    "a picture": (0, {"content": (*TALK[0].content, ImagePart(media_type="image/png", data="AA"))}),
    "the model's words": (1, {"content": ()}),
    "its thoughts": (1, {"reasoning": "Ho."}),
    "no thoughts": (1, {"reasoning": None}),
    "the tool": (1, {"tool_calls": (FIRST, SECOND.model_copy(update={"name": "place"}))}),
    "the arguments": (1, {"tool_calls": (FIRST, SECOND.model_copy(update={"arguments": {}}))}),
    "arguments that are none": (1, {"tool_calls": (FIRST, BROKEN)}),
    "one call more": (1, {"tool_calls": (FIRST, SECOND, FIRST.model_copy(update={"id": "c3"}))}),
    "the result": (2, {"content": (TextPart(text='{"ok":false}'),)}),
    "the result's tool": (2, {"name": "place"}),
    "the call that a result answers": (3, {"tool_call_id": "c1"}),
}
"""By what differs: the number of a message, and its changed fields."""


@pytest.mark.parametrize("what", CHANGED)
def test_every_part_of_a_conversation_tells_it_from_others(what: str, tmp_path: Path) -> None:
    number, changes = CHANGED[what]
    changed = [*TALK]
    changed[number] = TALK[number].model_copy(update=changes)
    one, other = (QUESTION.model_copy(update={"messages": (*it,)}) for it in (TALK, changed))
    answers = asked(tmp_path / "answers.jsonl", [one, other, one, other])
    assert answers == ["answer 0", "answer 1", "answer 0", "answer 1"]


def test_a_field_added_to_the_request_alone_tells_requests_apart(tmp_path: Path) -> None:
    question = RequestWithSeed(**dict(QUESTION))
    first, second = (question.model_copy(update={"seed": seed}) for seed in (1, 2))
    detailed = question.model_copy(update={"logprobs": True})
    answers = asked(tmp_path / "answers.jsonl", [first, second, first, second, detailed])
    assert answers == ["answer 0", "answer 1", "answer 0", "answer 1", "answer 2"]


def test_a_new_field_that_nobody_sets_finds_the_answers_of_before(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    assert asked(file, [QUESTION]) == ["answer 0"]
    assert asked(file, [RequestWithSeed(**dict(QUESTION))]) == ["answer 0"]
    assert len(keys(file)) == 1


def test_keys_are_those_of_the_first_version(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    full = QUESTION.model_copy(update={name: OTHER[name] for name in list(OTHER)[2:]})
    asked(file, [QUESTION, full])
    assert keys(file) == ["9238584a314248c37d3235ba", "a64ea24a5b8e7905605ce017"]
