"""What one row cannot hold for the Messages wire: what is learnt, headers, pages, the cache."""

from __future__ import annotations

import json

import pytest
from servers.loopback import Visit
from servers.player import Play
from wires.anthropic_cases import FINE, LOOK, SERVERS, THOUGHT, WIRE, model, whole
from wires.chat_requests import result
from wires.harness import ABSENT, JSON, KEY, TOOLS, World, ask, matches

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ChatResponse, ClientNotice, FilePart, Message
from nbagent.contracts.errors import ModelError

BETA = "thinking-binding-controls-2026-08-01"
DROPS = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}}
BOUND = "messages.1.content.0: The block is bound to a different conversation"
SIGNATURE = "messages.1.content.0: Invalid `signature` in `thinking` block"
TAKES_ADAPTIVE = '"thinking.type.enabled" is not supported for this model. Use adaptive thinking.'
FORCED = "Thinking may not be enabled when tool_choice forces tool use."
WITH: JSON = {"messages": [..., {"content": [THOUGHT, LOOK]}, ...]}
WITHOUT: JSON = {"messages": [..., {"content": [LOOK]}, ...]}
AUTO: JSON = {"tools": ..., "tool_choice": ABSENT}
NO_EFFORT: JSON = {"thinking": {"type": "adaptive"}, "output_config": ABSENT}
Row = tuple[JSON, list[str], list[JSON], str]
# model: fields of the request, what the server says against each attempt, the attempts, the words.
LESSONS: dict[str, Row] = {
    "claude-1-99": (
        {}, [BOUND, BOUND], [{**WITH, "thinking": ABSENT},
        {**WITH, "thinking": {"type": "adaptive", **DROPS}}, WITHOUT], "earlier thinking"),
    "claude-opus-9": (
        {"reasoning": "high"}, [BOUND], [{"thinking": {"block_binding": ABSENT}}, {
            **WITH, "thinking": {"type": "adaptive", "display": "summarized", **DROPS}}],
        "has changed"),
    "claude-haiku-9": (
        {"reasoning": "none"}, [BOUND],
        [{**WITH, "thinking": {"type": "disabled"}}, {**WITHOUT, "thinking": {"type": "disabled"}}],
        "the server refuses it"),
    "claude-sonnet-4-5": ({}, [SIGNATURE], [WITH, WITHOUT], "the server refuses it"),
    "qwen3": (
        {"reasoning": "low"}, [TAKES_ADAPTIVE],
        [{"thinking": {"type": "enabled"}}, {"thinking": ABSENT}], "thinking={"),
    "claude-fable-8": (
        {"reasoning": "none"}, ["thinking.type: `disabled` is not supported for this model"],
        [{"thinking": {"type": "disabled"}}, {"thinking": ABSENT}], "thinking={"),
    "claude-opus-4-6": (
        {"reasoning": "xhigh"}, ["output_config.effort: `xhigh` is not supported for this model"],
        [{"output_config": {"effort": "xhigh"}}, NO_EFFORT], "effort="),
    "claude-fable-5-9": (  # quirk 49
        {"tool_choice": "required"}, ["tool_choice: `any` is not supported for this model"],
        [{"tool_choice": {"type": "any"}}, AUTO], 'tool_choice={"type":"any"}'),
    "claude-opus-5-9": (
        {"tool_choice": "fs.look"}, [FORCED], [{"tool_choice": {"name": "fs__look"}}, AUTO],
        "tool_choice={"),
}  # fmt: skip


def refusal(said: str) -> Play:
    error = {"type": "invalid_request_error", "message": said}
    return Play(json.dumps({"type": "error", "error": error}).encode(), 400)


@pytest.mark.parametrize("name", LESSONS)
def test_what_a_model_refuses_is_sent_another_way_and_told(world: World, name: str) -> None:
    given, refusals, attempts, words = LESSONS[name]
    request = ask(model=name, tools=TOOLS, **given)
    notices: list[ClientNotice] = []

    async def go() -> list[Visit]:
        async with world.client(WIRE) as client:
            world.player.play([Play(whole(THOUGHT, LOOK))])
            answer = await client.chat(request)
            messages = (*request.messages, answer.message, result("toolu_1"))
            then = request.model_copy(update={"messages": messages})
            world.player.play([*map(refusal, refusals), Play(FINE)])
            await client.chat(then, notify=notices.append)
            asked = list(world.player.asked)
            await client.chat(then)
            assert world.player.asked[-1].body == asked[-1].body, "it is remembered"
            return asked

    asked = world.run(go())
    assert len(asked) == len(attempts)
    for one, expected in zip(asked, attempts, strict=True):
        matches(expected, one.body)
        drops = b"drop_block" in dump_json(one.body)
        assert one.headers.get("anthropic-beta") == (BETA if drops else None)
    assert [notice.kind for notice in notices] == ["dropped_param"] * len(refusals)
    assert all(words in notice.text for notice in notices), notices


@pytest.mark.parametrize("given", [{}, {"Anthropic-Version": "2099-01-01"}], ids=["ours", "theirs"])
@pytest.mark.parametrize("server", ["anthropic", ""])
def test_the_version_is_the_servers_or_the_persons(
    world: World, monkeypatch: pytest.MonkeyPatch, server: str, given: dict[str, str]
) -> None:
    monkeypatch.setenv("http_proxy", world.player.origin)
    monkeypatch.delenv("no_proxy", raising=False)

    async def go() -> ChatResponse:
        world.player.play([Play(FINE)])
        url = SERVERS["anthropic"].replace("https", "http") if server else ""
        async with world.client(WIRE, url, headers=given) as client:
            return await client.chat(ask(temperature=0.5))

    dropped = world.run(go()).meta.dropped_params
    (asked,) = world.player.asked
    ours = "2026-10-21" if server else "2023-06-01"
    assert asked.headers["anthropic-version"] == given.get("Anthropic-Version", ours)
    assert asked.head.lower().count("\r\nanthropic-version:") == 1
    assert asked.headers["x-api-key"] == KEY
    assert "authorization" not in asked.headers
    kept = not server and not given
    assert dropped == (() if kept else ("temperature", "top_p")[:1])
    assert asked.body.get("temperature") == (0.5 if kept else None)


def test_all_pages_of_models_are_read(world: World) -> None:
    first = {"data": [model("a/1")], "has_more": True, "last_id": "a/1"}
    last = {"data": [model("b")], "has_more": False, "last_id": "b"}

    async def go() -> list[str]:
        world.player.play([Play(json.dumps(page).encode()) for page in (first, last)])
        async with world.client(WIRE) as client:
            return [found.id for found in await client.list_models()]

    assert world.run(go()) == ["a/1", "b"]
    lines = [asked.line.split()[1] for asked in world.player.asked]
    assert lines == ["/v1/models?limit=1000", "/v1/models?limit=1000&after_id=a%2F1"]


@pytest.mark.parametrize("header", ["X-Api-Key", "Authorization", ""])
def test_a_key_may_stand_in_a_header_of_the_persons(
    world: World, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    monkeypatch.setenv("https_proxy", world.player.origin)
    headers = {header: "Bearer k"} if header else {}

    async def go() -> None:
        world.player.play([Play(b"", 502)])
        async with world.client(
            WIRE, SERVERS["anthropic"], api_key=None, headers=headers
        ) as client:
            await client.chat(ask())

    with pytest.raises(ModelError) as caught:
        world.run(go())
    assert (caught.value.code == "LLM_AUTH_FAILED") == (not header), str(caught.value)


def test_a_file_that_is_not_taken_is_named(world: World) -> None:
    packed = FilePart(name="a.zip", media_type="application/zip", data="UEs=")
    with pytest.raises(ModelError, match=r"takes no file like 'a\.zip'"):
        world.wire_request(WIRE, ask(messages=(Message(role="user", content=(packed,)),)))
