"""What one row of bytes cannot hold for the chat wire: keys, silence, floods, and whole runs."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from typing import Any

import pytest
from engine.laws import check_run
from servers.model_server import ModelServer, Reply
from servers.player import Play
from wires.chat_cases import DONE, LOOK, WIRE, answer_of, call, calls, chunk, sse
from wires.chat_requests import RED
from wires.harness import KEY, World, answer_case, ask

import nbagent
from nbagent.contracts.chat import ChatResponse
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import SecretKey

THOROUGH = next(case for case in WIRE.answers if case.thorough)


def fault(world: World, base_url: str = "", **config: Any) -> ModelError:
    """What a plain question fails with."""

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


def test_without_a_key_nothing_is_sent_to_openai(world: World) -> None:
    found = fault(world, "https://api.openai.com/v1", api_key=None)
    assert (found.code, "OPENAI_API_KEY" in str(found)) == ("LLM_AUTH_FAILED", True)


def test_a_key_that_cannot_be_a_header_is_named_without_showing_it(world: World) -> None:
    found = fault(world, api_key=SecretKey("sk-with-ünïcode-and\nnewline"))
    assert (found.code, "nïcode" in str(found)) == ("LLM_AUTH_FAILED", False)


@pytest.mark.parametrize("key", [None, SecretKey(KEY)], ids=["none", "wrong"])
def test_a_refusal_says_whether_a_key_was_sent(world: World, key: SecretKey | None) -> None:
    world.player.play([Play(b'{"error": {"message": "no."}}', 401)])
    found = fault(world, api_key=key)
    if key is None:
        assert found.message.startswith("the provider wants a key (HTTP 401): no. None was sent:")
    else:
        assert found.message == "the provider refused the key (HTTP 401): no. Check the key."


def test_messages_and_tools_cannot_be_set_by_extra_body(world: World) -> None:
    with pytest.raises(UsageError, match="messages"):
        world.wire_request(WIRE, ask(), extra_body={"messages": []})


def test_a_run_whose_calls_were_called_cut_or_failed_runs_none() -> None:
    ran: list[str] = []

    def look(at: str) -> str:
        """Look."""
        ran.append(at)
        return "seen"

    words = ("length", "content_filter", "error")
    looked = call('{"at":"a"}', name="look", index=0, id="c1")
    bodies = [sse(calls(looked), chunk({}, word)) for word in words]
    boom = {"error": {"message": "boom", "type": "rate_limit_error"}}
    bodies.append(sse(calls(looked, finish="tool_calls"), boom, end=DONE))
    for body in bodies:
        with ModelServer([Reply(raw=body), "fine"]) as server:
            run = nbagent.Agent("openai:m", base_url=server.url, tools=[look]).run("Go.")
            (tool_run,) = run.turns[0].tool_runs
            assert tool_run.result is not None
            assert tool_run.result.error is not None
    assert ran == []


def test_a_run_with_pictures_keeps_its_history_and_extends_its_requests() -> None:
    def draw(colour: str) -> Any:
        """Draw."""
        return RED if colour == "red" else "no picture"

    asked = [("draw", {"colour": "red"}), ("draw", {"colour": "green"})]
    with ModelServer([Reply(calls=asked), Reply(calls=asked[:1]), "Pretty.", "Yes."]) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[draw])
        run = check_run(agent.run("Go."))
        assert run.ok, run.error
        check_run(run.resume("Really?"))
    kept = [message.role for message in run.record.messages]
    assert kept == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    for earlier, later in pairwise(server.bodies):
        assert json.dumps(later["messages"]).startswith(json.dumps(earlier["messages"])[:-1])
    roles = [sent["role"] for sent in server.bodies[2]["messages"] if sent["role"] != "system"]
    assert roles == ["user", "assistant", "tool", "tool", "user", "assistant", "tool", "user"]
    assert json.dumps(server.bodies[-1]).count("data:image/png;base64,UkVE") == 2


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_model_without_eyes_ends_the_run_with_one_line_and_the_next_goes_on(status: int) -> None:
    def draw() -> Any:
        """Draw."""
        return RED

    error = {"error": {"message": "No endpoints found that support image input"}}
    refused = Reply(status=status, error=error)
    with ModelServer([Reply(calls=[("draw", {})]), refused, "I see."]) as server:
        agent = nbagent.Agent("openai:blind", base_url=server.url, tools=[draw])
        run = check_run(agent.run("Go."))
        assert run.error
        assert run.error.code == "LLM_HTTP_ERROR"
        assert run.error.message.startswith("blind takes no images or files here; go on with")
        assert len(server.bodies) == 2
        assert check_run(run.resume()).text == "I see."


def test_the_same_call_under_one_id_is_run_once(world: World) -> None:
    call = {"id": "x", "type": "function", "function": {"name": "b", "arguments": "{}"}}
    body = answer_of({"tool_calls": [{**call, "index": n} for n in range(3)]})
    _, result = world.answer(WIRE, answer_case("twice", body=body), stream=False)
    assert isinstance(result, ChatResponse)
    assert [made.id for made in result.message.tool_calls] == ["x"]
