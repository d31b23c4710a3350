"""What one row of bytes cannot hold: keys, silence, floods, the rest of an answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from servers.player import Play
from wires import google_cases
from wires.chat_cases import LOOK, WIRE, call, calls, chunk, sse
from wires.google_requests import text
from wires.harness import TOOLS, World, answer_case, ask

from nbagent.contracts.chat import ChatResponse
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import SecretKey


def fault(world: World, base_url: str = "", **config: Any) -> ModelError:

    async def go() -> None:
        async with world.client(WIRE, base_url, **config) as client:
            await client.chat(ask())

    with pytest.raises(ModelError) as caught:
        world.run(go())
    return caught.value


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_the_configuration_says_how_often_is_tried_again(world: World, retries: int) -> None:
    world.player.play([Play(b"{}", 503, {"retry-after": "0", "x-request-id": "r7"})])
    found = fault(world, retries=retries)
    assert (found.code, found.request_id) == ("LLM_HTTP_ERROR", "r7")
    assert len(world.player.asked) == retries + 1


def test_text_that_arrives_together_is_one_chunk(world: World) -> None:
    body = sse(*[chunk({"content": "a"})] * 9, chunk({}, "stop"))
    chunks, _ = world.answer(WIRE, answer_case("a", stream=body), stream=True)
    assert [item.content for item in chunks if item.content] == ["a" * 9]


@pytest.mark.parametrize("begin", ["", "<think>", "<think>x"])
def test_a_flood_of_blank_lines_is_read_in_linear_time(world: World, begin: str) -> None:
    blank = sse(chunk({"content": "\n"}), end=b"") * 30_000
    body = sse(chunk({"content": begin}), blank, chunk({}, "length"))
    start = time.process_time()
    world.answer(WIRE, answer_case("flood", stream=body), stream=True)
    assert time.process_time() - start < 8


def test_silence_behind_the_finish_reason_ends_only_what_was_ended(world: World) -> None:
    ended = sse(calls(LOOK), chunk({}, "tool_calls"), end=b"")
    late = {b"": True, sse(calls(call(index=1, id="c2")), end=b""): False, b'data: {"er': False}

    async def one() -> bool:
        async with world.client(WIRE) as client:
            try:
                return [item.done async for item in client.chat_stream(ask())][-1]
            except ModelError:
                return False

    async def go() -> list[bool]:
        world.player.play([Play(ended + more, ending="silent") for more in late])
        asking: list[asyncio.Task[bool]] = []
        for _ in late:
            asking.append(asyncio.ensure_future(one()))
            await asyncio.sleep(0.2)  # The answers go out in the order of the requests.
        return await asyncio.gather(*asking)

    assert world.run(go()) == list(late.values())


def test_a_key_that_is_missing_wrong_or_no_header_is_named_without_showing_it(world: World) -> None:
    found = fault(world, "https://api.openai.com/v1", api_key=None)
    assert (found.code, "OPENAI_API_KEY" in str(found)) == ("LLM_AUTH_FAILED", True)
    found = fault(world, api_key=SecretKey("sk-with-ünïcode-and\nnewline"))
    assert (found.code, "nïcode" in str(found)) == ("LLM_AUTH_FAILED", False)
    world.player.play([Play(b'{"error": {"message": "no."}}', 401)])
    found = fault(world)
    assert found.message == "the provider refused the key (HTTP 401): no. Check the key."
    found = fault(world, api_key=None)
    assert found.message.startswith("the provider wants a key (HTTP 401): no. None was sent:")


def test_messages_and_tools_cannot_be_set_by_extra_body(world: World) -> None:
    with pytest.raises(UsageError, match="messages"):
        world.wire_request(WIRE, ask(), extra_body={"messages": []})


def test_the_rest_of_an_answer_is_asked_for_by_the_same_request_with_its_token(
    world: World,
) -> None:
    request = ask(tools=TOOLS, system_prompt="S", max_tokens=40_000)
    half = Play(google_cases.sse(google_cases.hop(text("a"))))
    rest = google_cases.sse(google_cases.chunk(text("b"), end="STOP"))
    case = answer_case("a", request=request, then=rest)
    ((chunks, answer),) = world.answers(google_cases.WIRE, case, [half], stream=True)
    assert isinstance(answer, ChatResponse)
    first, second = world.player.asked
    assert second.body == {**first.body, "continuationToken": "VE9L"}
    assert first.line == second.line
    assert (answer.message.text, answer.meta.attempts) == ("ab", 1)
    assert not any(made.notice for made in chunks)
