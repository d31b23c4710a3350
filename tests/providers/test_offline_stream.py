"""How offline:demo streams, paces itself, counts tokens and keeps limits; and its entry."""

from __future__ import annotations

import asyncio

import pytest

from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    Message,
    ProviderConfig,
)
from nbagent.contracts.ports import ChatClient
from nbagent.providers.offline import DELAY_VARIABLE, PROVIDER
from nbagent.providers.offline.stream import estimated_tokens


@pytest.fixture(autouse=True)
def without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DELAY_VARIABLE, "0")


def client() -> ChatClient:
    return PROVIDER.open(ProviderConfig())


def request(prompt: str = "Count to 20", **fields: object) -> ChatRequest:
    sent = {"model": "demo", "messages": (Message.of("user", prompt),), **fields}
    return ChatRequest.model_validate(sent)


async def _chunks(model: ChatClient, sent: ChatRequest) -> list[ChatChunk]:
    return [chunk async for chunk in model.chat_stream(sent)]


def streamed(sent: ChatRequest) -> list[ChatChunk]:
    return asyncio.run(_chunks(client(), sent))


def answered(sent: ChatRequest) -> ChatResponse:
    return asyncio.run(client().chat(sent))


PACES = {"by default": ("", 15), "by the environment": ("25", 25), "nonsense": ("-3", 15)}


@pytest.mark.parametrize("case", PACES)
def test_stream_is_paced(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable, least_ms = PACES[case]
    monkeypatch.setenv(DELAY_VARIABLE, variable)
    begun = monotonic_ms()
    chunks = streamed(request("Count to 5"))
    pieces = len([chunk for chunk in chunks if chunk.content or chunk.reasoning])
    assert pieces * least_ms * 0.95 <= monotonic_ms() - begun <= pieces * least_ms + 10_000


def test_whole_answer_and_a_pace_of_zero_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = request("Count to 2000")
    begun = monotonic_ms()
    streamed(sent)
    monkeypatch.delenv(DELAY_VARIABLE)
    answered(sent)
    assert monotonic_ms() - begun < 2000 * 15 / 3


def test_usage_is_four_characters_a_token_and_what_was_sent_before_is_cached() -> None:
    first = request("Hey " + "x" * 396, system_prompt="y" * 40)
    one = answered(first)
    assert one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.cached_tokens) == (100 + 10, 0)
    assert one.usage.reasoning_tokens == estimated_tokens(len(one.reasoning or ""))
    told = estimated_tokens(len(one.message.text)) + one.usage.reasoning_tokens
    assert (one.usage.completion_tokens, one.usage.total_tokens) == (told, 110 + told)
    messages = (*first.messages, one.message, Message.of("user", "And then?"))
    two = answered(first.model_copy(update={"messages": messages}))
    assert two.usage is not None
    assert two.usage.prompt_tokens > two.usage.cached_tokens == one.usage.prompt_tokens


@pytest.mark.parametrize(
    ("limits", "text", "finish"),
    [
        ({"max_tokens": 5}, "1 2 3 4 5 6 7 8 9 10", "length"),
        ({"stop_sequences": ("11", "7 ")}, "1 2 3 4 5 6 ", "stop"),
    ],
)
def test_answer_ends_at_a_limit_and_says_so(
    limits: dict[str, object], text: str, finish: str
) -> None:
    response = answered(request("Count to 100", **limits))
    assert (response.message.text, response.finish_reason) == (text, finish)
