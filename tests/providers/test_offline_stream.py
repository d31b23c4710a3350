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
    TextPart,
    ToolSpec,
)
from nbagent.contracts.ports import ChatClient
from nbagent.providers.offline import DELAY_VARIABLE, PROVIDER
from nbagent.providers.offline.stream import estimated_tokens

TOOL = ToolSpec(
    name="population",
    description="People living in a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


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


def test_usage_is_four_characters_a_token() -> None:
    response = answered(request("Hey " + "x" * 396, system_prompt="y" * 40))
    assert response.usage is not None
    assert response.usage.prompt_tokens == 100 + 10
    assert response.usage.reasoning_tokens == estimated_tokens(len(response.reasoning or ""))
    told = estimated_tokens(len(response.message.text))
    assert response.usage.completion_tokens == told + response.usage.reasoning_tokens
    assert response.usage.total_tokens == (
        response.usage.prompt_tokens + response.usage.completion_tokens
    )
    assert response.usage.cached_tokens == 0


def test_cached_tokens_are_what_the_request_before_had_sent() -> None:
    first = request("population of Oslo", tools=(TOOL,), system_prompt="Be brief.")
    one = answered(first)
    (made,) = one.message.tool_calls
    result = Message(
        role="tool",
        tool_call_id=made.id,
        name=made.name,
        content=(TextPart(text='{"ok":true,"data":709037}'),),
    )
    second = first.model_copy(update={"messages": (*first.messages, one.message, result)})
    two = answered(second)
    assert one.usage is not None
    assert two.usage is not None
    assert two.usage.cached_tokens == one.usage.prompt_tokens
    assert two.usage.prompt_tokens > two.usage.cached_tokens


def test_answer_ends_at_max_tokens_and_says_so() -> None:
    response = answered(request("Count to 100", max_tokens=5))
    assert response.message.text == "1 2 3 4 5 6 7 8 9 10"[:20]
    assert response.finish_reason == "length"


def test_answer_ends_before_a_stop_sequence() -> None:
    response = answered(request("Count to 100", stop_sequences=("11", "7 ")))
    assert response.message.text == "1 2 3 4 5 6 "
    assert response.finish_reason == "stop"
