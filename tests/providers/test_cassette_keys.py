"""The key of a recorded request: every field of ChatRequest tells requests apart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nbagent import offline
from nbagent.contracts.messages import Message
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
