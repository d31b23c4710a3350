"""What Gemini's wire needs of several requests: the rest of an answer, refused signatures."""

from __future__ import annotations

import json
from typing import Any

import pytest
from servers.player import Play
from wires.google_cases import WIRE, chunk, hop, sse
from wires.google_requests import text
from wires.harness import TOOLS, World, ask

from nbagent.contracts.chat import ChatResponse, ClientNotice


def played(world: World, request: Any, *plays: Play) -> tuple[ChatResponse, list[ClientNotice]]:
    """The answer to a request, and what was told meanwhile."""
    told: list[ClientNotice] = []

    async def go() -> ChatResponse:
        world.player.play(plays)
        async with world.client(WIRE) as client:
            return await client.chat(request, notify=told.append)

    return world.run(go()), told


def test_the_rest_of_an_answer_is_asked_for_by_the_same_request_with_its_token(
    world: World,
) -> None:
    last = sse(chunk(text("b"), end="STOP"))
    request = ask(tools=TOOLS, system_prompt="S", max_tokens=40_000)
    answer, told = played(world, request, Play(sse(hop(text("a")))), Play(last))
    first, second = world.player.asked
    assert second.body == {**first.body, "continuationToken": "VE9L"}
    assert first.line == second.line
    assert (answer.message.text, answer.meta.attempts, told) == ("ab", 1, [])


@pytest.mark.parametrize(
    ("said", "gone"),
    [
        ('Unknown name "toolConfig": Cannot find field.', "toolConfig"),
        ("Thinking level is not supported for this model.", "generationConfig"),
        (
            "Unknown name \"thinkingLevel\" at 'generation_config.thinking_config'",
            "generationConfig",
        ),
    ],
)
def test_a_refused_parameter_is_left_out(world: World, said: str, gone: str) -> None:
    request = ask(model=f"gemini-3-{len(said)}", tools=TOOLS, tool_choice="none", reasoning="low")
    body = json.dumps({"error": {"code": 400, "message": said, "status": "INVALID_ARGUMENT"}})
    fine = Play(sse(chunk(text("fine"), end="STOP")))
    answer, told = played(world, request, Play(body.encode(), 400), fine)
    first, second = (asked.body for asked in world.player.asked)
    assert answer.message.text == "fine"
    assert len(told) == 1
    # Without the mode that says so, no tool may be offered where none may be called.
    lost = {gone, "tools"} if gone == "toolConfig" else {gone}
    assert first.keys() - second.keys() == lost
