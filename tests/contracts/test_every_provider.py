"""What holds for every provider that is discovered, whatever its wire looks like."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import pytest
from provider_cases import CANARY, CASES, UNTOLD, Case, Opener, Said

from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    Message,
    ModelInfo,
    ToolSpec,
)
from nbagent.providers.registry import provider_names

T = TypeVar("T")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (ToolSpec(name="geo.population", parameters=CITY), ToolSpec(name="area", parameters=CITY))
CALLS = (("geo.population", {"city": "Oslo"}), ("area", {"city": "Bergen"}))


@pytest.fixture(params=provider_names())
def any_opened(request: pytest.FixtureRequest) -> Opener:
    """Of each provider, whatever it says."""
    assert request.param in CASES, f"provider {request.param} brings no case for its contract"
    return CASES[request.param]


@pytest.fixture(params=sorted({*provider_names()} - UNTOLD))
def opened(request: pytest.FixtureRequest) -> Opener:
    """Of each provider whose server says what a test wants."""
    return CASES[request.param]


def request_for(case: Case, *, tools: tuple[ToolSpec, ...] = ()) -> ChatRequest:
    messages = (Message.of("user", "How many people live in Oslo?"),)
    return ChatRequest(model=case.model, messages=messages, system_prompt="Be brief.", tools=tools)


def played(opened: Opener, said: list[Said], work: Callable[[Case], Coroutine[Any, Any, T]]) -> T:
    """Let a provider give some answers to `work`; its client never shows its key."""

    async def run(case: Case) -> T:
        assert CANARY not in repr(case.client) + str(vars(case.client))
        try:
            return await work(case)
        finally:
            await case.client.close()

    with opened(said) as case:
        return asyncio.run(run(case))


async def chunks_of(case: Case, request: ChatRequest) -> list[ChatChunk]:
    async with aclosing(case.client.chat_stream(request)) as stream:
        return [chunk async for chunk in stream]


def test_calls_come_back_under_their_own_names_with_distinct_ids(opened: Opener) -> None:
    chunks = played(
        opened, [Said(calls=CALLS)], lambda c: chunks_of(c, request_for(c, tools=TOOLS))
    )
    response = chunks[-1].response
    assert response
    calls = response.message.tool_calls
    assert [(call.name, call.arguments) for call in calls] == list(CALLS)
    assert len({call.id for call in calls}) == len(calls)
    assert response.finish_reason == "tool_calls"
    pieces: dict[int, str] = {}
    for chunk in chunks:
        if (delta := chunk.tool_call_delta) is not None:
            pieces[delta.index] = pieces.get(delta.index, "") + delta.arguments
    assert [pieces[i] for i in sorted(pieces)] == [call.arguments_raw for call in calls]


def test_chat_gives_what_the_stream_gives(opened: Opener) -> None:
    async def work(case: Case) -> tuple[ChatResponse, ChatResponse | None]:
        request = request_for(case, tools=TOOLS)
        return await case.client.chat(request), (await chunks_of(case, request))[-1].response

    whole, streamed = played(opened, [Said("One moment.", calls=CALLS[:1])] * 2, work)
    assert streamed
    assert whole.message.text == streamed.message.text
    made, again = ([c.arguments for c in it.message.tool_calls] for it in (whole, streamed))
    assert made == again
    assert whole.finish_reason == streamed.finish_reason


def test_a_cancelled_request_ends_at_once(opened: Opener) -> None:
    async def work(case: Case) -> float:
        task = asyncio.ensure_future(chunks_of(case, request_for(case)))
        await asyncio.sleep(0.2)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert played(opened, [Said("many words in a row here", slow=True)], work) < 5


def test_models_can_be_listed(any_opened: Opener) -> None:
    async def work(case: Case) -> list[ModelInfo]:
        await case.client.chat(request_for(case))
        return await case.client.list_models()

    models = played(any_opened, [Said("Yes."), Said()], work)
    assert models
    assert all(model.id for model in models)
