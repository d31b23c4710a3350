"""Tests that need a live client, wire by wire: keys, silence, workarounds, routes, pages."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import replace
from typing import Any

import ollama
import pytest
from ollama._client import _parse_host  # pyright: ignore[reportPrivateUsage]
from servers.loopback import Loopback
from servers.player import Play
from wires import anthropic_cases, chat_cases, google_cases, ollama_cases, responses_cases
from wires.anthropic_cases import FINE, model
from wires.chat_cases import LOOK, answer_of, call, calls, chunk, sse
from wires.chat_requests import READ, user
from wires.google_requests import text
from wires.harness import JSON, KEY, TOOLS, AnswerCase, WireSetup, World, ask
from wires.responses_cases import said

from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.messages import FilePart, ImagePart, Part
from nbagent.contracts.model import ChatChunk, ChatRequest, ChatResponse, ProviderConfig
from nbagent.contracts.secrets import SecretKey
from nbagent.providers import client as client_module
from nbagent.providers.catalogue import find_provider
from nbagent.providers.default_model import choose_default_model, local_servers
from nbagent.providers.transport.streams import NetworkBackend, StaleConnection

CHAT, MESSAGES, NATIVE = chat_cases.WIRE, anthropic_cases.WIRE, ollama_cases.WIRE


# Chat Completions, and Google's answers in parts.


def fault(world: World, base_url: str = "", **config: Any) -> ModelError:
    """Error of a plain question."""
    with pytest.raises(ModelError) as caught:
        world.chat(CHAT, ask(), base_url, **config)
    return caught.value


def test_text_that_arrives_together_is_one_chunk(world: World) -> None:
    body = sse(*[chunk({"content": "a"})] * 9, chunk({}, "stop"))
    chunks, _ = world.answer(CHAT, AnswerCase("a", stream=body), stream=True)
    assert [item.content for item in chunks if item.content] == ["a" * 9]


@pytest.mark.parametrize("begin", ["", "<think>", "<think>x"])
def test_a_flood_of_blank_lines_is_read_in_linear_time(world: World, begin: str) -> None:
    blank = sse(chunk({"content": "\n"}), end=b"") * 30_000
    body = sse(chunk({"content": begin}), blank, chunk({}, "length"))
    start = time.process_time()
    world.answer(CHAT, AnswerCase("flood", stream=body), stream=True)
    assert time.process_time() - start < 8


def test_silence_behind_the_finish_reason_ends_only_what_was_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_USAGE_WAIT_S", 1.0)
    ended = sse(calls(LOOK), chunk({}, "tool_calls"), end=b"")
    late = {b"": True, sse(calls(call(index=1, id="c2")), end=b""): False, b'data: {"er': False}

    async def one() -> bool:
        async with world.client(CHAT) as client:
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
    world.player.play([Play(b'{"error": {"message": "no."}}', 401, {"x-request-id": "r7"})])
    found = fault(world)
    assert found.request_id == "r7"
    assert found.message == "the provider refused the key (HTTP 401): no. Check the key."
    found = fault(world, api_key=None)
    assert found.message.startswith("the provider requires a key (HTTP 401): no. None was sent:")


def test_messages_and_tools_cannot_be_set_by_extra_body(world: World) -> None:
    with pytest.raises(UsageError, match="messages"):
        world.wire_request(CHAT, ask(), extra_body={"messages": []})


def test_the_rest_of_an_answer_is_asked_for_by_the_same_request_with_its_token(
    world: World,
) -> None:
    request = ask(tools=TOOLS, system_prompt="S", max_tokens=40_000)
    half = Play(google_cases.sse(google_cases.hop(text("a"))))
    rest = google_cases.sse(google_cases.chunk(text("b"), end="STOP"))
    case = AnswerCase("a", request=request, then=rest)
    ((chunks, answer),) = world.answers(google_cases.WIRE, case, [half], stream=True)
    assert isinstance(answer, ChatResponse)
    first, second = world.player.asked
    assert second.body == {**first.body, "continuationToken": "VE9L"}
    assert first.line == second.line
    assert (answer.message.text, answer.meta.attempts) == ("ab", 1)
    assert not any(made.notice for made in chunks)


def test_the_same_call_under_one_id_is_run_once(world: World) -> None:
    body = answer_of({"tool_calls": [call(index=n, id="x") for n in range(3)]})
    _, answer = world.answer(CHAT, AnswerCase("thrice", body=body), stream=False)
    assert isinstance(answer, ChatResponse)
    assert [made.id for made in answer.message.tool_calls] == ["x"]


def test_what_comes_before_a_request_was_sent_is_not_read_as_its_answer() -> None:
    seen: list[bytes] = []

    class Talkative(Loopback):
        async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.read(100))
            writer.write(b"answer")
            await asyncio.sleep(0.02)
            writer.write(b"unasked")
            seen.append(await reader.read(100))

    async def ask_twice(port: int) -> None:
        stream = await NetworkBackend().connect_tcp("127.0.0.1", port)
        await stream.write(b"first")
        assert await stream.read(100) == b"answer"
        await asyncio.sleep(0.1)
        await stream.write(b"second")
        with pytest.raises(StaleConnection):
            await stream.read(100)
        await stream.aclose()
        await asyncio.sleep(0.05)

    with Talkative() as server:
        asyncio.run(ask_twice(server.port))
    assert seen in ([b"first"], [b"first", b""]), "the second request stays here"


# Messages.


@pytest.mark.parametrize("given", [{}, {"Anthropic-Version": "2099-01-01"}], ids=["ours", "theirs"])
@pytest.mark.parametrize("server", ["anthropic", ""])
def test_the_version_is_the_servers_or_the_persons(
    world: World, server: str, given: dict[str, str]
) -> None:
    world.player.play([Play(FINE)])
    url = anthropic_cases.SERVERS["anthropic"].replace("https", "http") if server else ""
    with world.as_proxy():
        answer = world.chat(MESSAGES, ask(temperature=0.5), url, headers=given)
    (asked,) = world.player.asked
    ours = "2026-10-21" if server else "2023-06-01"
    assert asked.headers["anthropic-version"] == given.get("Anthropic-Version", ours)
    assert asked.head.lower().count("\r\nanthropic-version:") == 1
    assert asked.headers["x-api-key"] == KEY
    assert "authorization" not in asked.headers
    kept = not server and not given
    assert answer.meta.dropped_params == (() if kept else ("temperature",))
    assert asked.body.get("temperature") == (0.5 if kept else None)


def test_all_pages_of_models_are_read(world: World) -> None:
    first = {"data": [model("a/1")], "has_more": True, "last_id": "a/1"}
    last = {"data": [model("b")], "has_more": False, "last_id": "b"}

    async def go() -> list[str]:
        world.player.play([Play(json.dumps(page).encode()) for page in (first, last)])
        async with world.client(MESSAGES) as client:
            return [found.id for found in await client.list_models()]

    assert world.run(go()) == ["a/1", "b"]
    lines = [asked.line.split()[1] for asked in world.player.asked]
    assert lines == ["/v1/models?limit=1000", "/v1/models?limit=1000&after_id=a%2F1"]


@pytest.mark.parametrize("header", ["X-Api-Key", "Authorization", ""])
def test_a_key_may_stand_in_a_header_of_the_persons(world: World, header: str) -> None:
    given: JSON = {"api_key": None, "headers": {header: "Bearer k"} if header else {}}
    world.player.play([Play(b"", 502)])
    with world.as_proxy(), pytest.raises(ModelError) as caught:
        world.chat(MESSAGES, ask(), anthropic_cases.SERVERS["anthropic"], **given)
    assert (caught.value.code == "LLM_AUTH_FAILED") == (not header), str(caught.value)


# Which requests go to the Responses endpoint, and what is Azure's own.

AZURE = replace(CHAT, provider="azure")
CHAT_URL, RESPONSES_URL = "/chat/completions", "/responses"
R = "https://r.openai.azure.com"
HOME = {"openai": "https://api.openai.com/v1", "azure": f"{R}/openai/v1"}
ITEMS = json.dumps(responses_cases.answer_of(said("fine"))).encode()
# model, effort, tools: whether OpenAI and Azure are asked at the Responses endpoint (quirks 2, 3).
CHOICES = [
    ("gpt-6-astra", None, True, True),
    ("gpt-5.5", None, True, True),
    ("gpt-5.4", "high", True, True),
    ("gpt-5.1", "2048", True, True),
    ("gpt-5.4", "none", True, False),
    ("gpt-5", "high", True, False),
    ("gpt-6-astra", "high", False, False),
    ("my-deployment", "high", True, False),
]


# A server: whether it has the endpoint.
PLACES = [
    *((CHAT, HOME["openai"], True), (CHAT, "http://h:1/v1", False)),
    *((AZURE, HOME["azure"], True), (AZURE, f"{R}/openai?api-version=2024-10-21", False)),
]


@pytest.mark.parametrize(("model", "effort", "tools", "needed"), CHOICES)
def test_models_that_need_it_are_asked_at_the_responses_endpoint(
    world: World, model: str, effort: str | None, tools: bool, needed: bool
) -> None:
    request = ask(model=model, reasoning=effort, tools=TOOLS if tools else ())
    for wire, base_url, has_it in PLACES:
        url, body = world.wire_request(wire, request, base_url)
        expected = needed and has_it
        assert url.endswith(RESPONSES_URL if expected else CHAT_URL)
        assert ("input" in body) == expected


# status, words and parameter of a refusal: whether it says that the model is asked there.
TELLING = [
    (400, "Function tools with reasoning_effort: use /v1/responses.", "reasoning_effort", True),
    (404, "This model is only supported in v1/responses and not in v1/chat/…", None, True),
    (500, "Use /v1/responses with reasoning_effort", None, False),
    (400, "See /v1/responses", None, False),
]


@pytest.mark.parametrize("provider", HOME)
@pytest.mark.parametrize(("status", "words", "param", "telling"), TELLING)
def test_a_telling_refusal_is_told_once_and_remembered_for_the_model(
    world: World, provider: str, status: int, words: str, param: str | None, telling: bool
) -> None:
    refusal = Play(json.dumps({"error": {"message": words, "param": param}}).encode(), status)
    wire, url = replace(CHAT, provider=provider), HOME[provider].replace("https", "http")
    asked = ask(model=f"model {len(words)}", tools=TOOLS, stop_sequences=("X",))

    def answered(request: ChatRequest, *plays: Play) -> list[ChatChunk]:
        async def go() -> list[ChatChunk]:
            async with world.client(wire, url) as client:
                return [chunk async for chunk in client.chat_stream(request)]

        world.player.play(plays)
        with world.as_proxy():
            return world.run(go())

    if not telling:
        with pytest.raises(ModelError):
            answered(asked, refusal)
        assert len(world.player.asked) == 1
        return
    chunks = answered(asked, refusal, Play(ITEMS))
    assert [RESPONSES_URL in visit.line for visit in world.player.asked] == [False, True]
    chunks += answered(asked, Play(ITEMS))
    assert [RESPONSES_URL in visit.line for visit in world.player.asked] == [True]
    only = "is asked at /v1/responses: it accepts such a request only there."
    assert [one.notice.text for one in chunks if one.notice] == [f"{asked.model} {only}"]
    for response in filter(None, (one.response for one in chunks)):
        assert response.message.text == "fine"
        assert (response.meta.dropped_params, response.meta.attempts) == (("stop_sequences",), 1)
    assert answered(ask(model="other", tools=TOOLS), Play(chat_cases.FINE))[-1].done
    assert CHAT_URL in world.player.asked[0].line, "another model is asked as before"


D = f"{R}/openai/deployments/my%20dep/chat/completions"
# What a person gives as the server: where a chat with deployment "my dep" is asked (quirk 52).
ROUTES = {
    R: f"{R}/openai/v1/chat/completions",
    "r.services.ai.azure.com": "https://r.services.ai.azure.com/openai/v1/chat/completions",
    f"{R}/openai/v1/responses": f"{R}/openai/v1/chat/completions",
    f"{R}/openai/v1?api-version=preview": f"{R}/openai/v1/chat/completions",
    f"{R}/openai?api-version=2024-10-21": D,
    f"{R}/openai/deployments/own/chat/completions?api-version=2024-10-21": (
        f"{R}/openai/deployments/own/chat/completions"
    ),
}


@pytest.mark.parametrize(("given", "asked"), ROUTES.items())
def test_azure_is_asked_on_the_route_that_the_address_names(
    world: World, given: str, asked: str
) -> None:
    url, body = world.wire_request(AZURE, ask(model="my dep", max_tokens=3), given)
    assert (url, body["max_completion_tokens"]) == (asked, 3)
    assert body["model"] == "my dep"


@pytest.mark.parametrize("version", ["", "?api-version=2024-10-21"], ids=["v1", "dated"])
def test_the_version_is_in_the_query_of_the_dated_route_alone(world: World, version: str) -> None:
    missing = {"code": "DeploymentNotFound", "message": "The API deployment does not exist."}
    world.player.play([Play(json.dumps({"error": missing}).encode(), 404)])
    path = "/openai/deployments/m" if version else "/openai/v1"
    with pytest.raises(ModelError, match=f"{path}/chat/completions"):
        world.chat(AZURE, ask(), world.player.origin + version)
    (asked,) = world.player.asked
    assert asked.line == f"POST {path}/chat/completions{version} HTTP/1.1"


TOKEN = "eyJ0eXAiOiJKV1QifQ.eyJhdWQiOiJ4In0.c2lnbmF0dXJl"
# What a person gives: the headers that carry it.
LOGINS: list[tuple[JSON, dict[str, str]]] = [
    ({}, {"api-key": KEY}),
    ({"api_key": SecretKey(TOKEN)}, {"authorization": f"Bearer {TOKEN}"}),
    ({"api_key": None, "headers": {"Authorization": f"Bearer {TOKEN}"}},
     {"authorization": f"Bearer {TOKEN}"}),
    ({"api_key": None, "headers": {"Api-Key": KEY}}, {"api-key": KEY}),
    ({"headers": {"Api-Key": "another"}}, {"api-key": "another"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sent"), LOGINS, ids=["key", "token", "own token", "own key", "both"]
)
def test_azure_gets_a_key_or_a_token_in_one_header(
    world: World, given: JSON, sent: dict[str, str]
) -> None:
    world.player.play([Play(ITEMS)])
    world.chat(AZURE, ask(model="gpt-5.5", tools=TOOLS), world.player.origin, **given)
    (asked,) = world.player.asked
    carried = {
        name: text for name, text in asked.headers.items() if "auth" in name or "key" in name
    }
    assert carried == sent
    assert RESPONSES_URL in asked.line


# Ollama: where it is, and what it cannot take.

OLLAMA = find_provider("ollama")


@pytest.mark.parametrize(
    "host",
    ["h", "h:1", ":8080", "http://h", "https://h", "[::1]:99", "http://h:1/proxy/", " h ", "",
     "0.0.0.0:11434", "[::]:8080"],
)  # fmt: skip
def test_the_host_in_the_environment_is_read_as_by_ollamas_own_client(host: str) -> None:
    found = OLLAMA.resolve(ProviderConfig(), {"OLLAMA_HOST": host}).base_url
    # What listens on every interface is asked for on this machine.
    meant = host.strip().replace("0.0.0.0", "127.0.0.1").replace("[::]", "127.0.0.1")
    assert found == _parse_host(meant)


@pytest.mark.parametrize("host", ["::x", "h:port", "h:99999", "[", "x:1:2", "http://[::1"])
def test_a_host_that_is_no_address_is_one_clear_error(host: str) -> None:
    with pytest.raises(UsageError, match="write it as HOST:PORT"):
        OLLAMA.resolve(ProviderConfig(), {"OLLAMA_HOST": host})
    given = OLLAMA.resolve(ProviderConfig(base_url="http://h:1"), {"OLLAMA_HOST": host})
    assert given.base_url == "http://h:1"
    assert "ollama" not in local_servers({"OLLAMA_HOST": host})
    assert choose_default_model({"OLLAMA_HOST": host}).model_id == "offline:demo"


@pytest.mark.parametrize(
    ("provider", "command"),
    [("ollama", "`ollama serve`"), ("lmstudio", "`lms server start`"), ("vllm", "`vllm serve"),
     ("llamacpp", "`llama-server"), ("openai", "is it running?")],
)  # fmt: skip
def test_a_server_that_does_not_run_is_named_with_its_command(
    world: World, provider: str, command: str
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base_url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ModelError, match=command):
        world.chat(replace(CHAT, provider=provider), ask(), base_url)


@pytest.mark.parametrize("choice", ["required", "fs.read", "auto", "none"])
def test_a_choice_of_tools_that_cannot_be_said_is_told(world: World, choice: str) -> None:
    world.player.play([Play(ollama_cases.FINE)])
    found = world.chat(NATIVE, ask(tools=(READ,), tool_choice=choice))
    told = () if choice in ("auto", "none") else ("tool_choice",)
    assert found.meta.dropped_params == told


def test_every_option_of_the_package_is_sent_among_the_options(world: World) -> None:
    extra = dict.fromkeys(ollama.Options.model_fields, 1)
    _, body = world.wire_request(NATIVE, ask(), extra_body=extra)
    assert (body["options"], body.keys()) == (extra, {"model", "messages", "stream", "options"})


ZIP = FilePart(name="a.zip", media_type="application/zip", data="UEs=")
NOT_TAKEN: list[tuple[WireSetup, Part, str]] = [
    *((NATIVE, ImagePart(url=url), "images as data")
      for url in ("https://example.org/a.png", "data:image/png,plain", None)),
    (NATIVE, ZIP, "'a.zip'"),
    (MESSAGES, ZIP, "does not accept the file 'a.zip'"),
]  # fmt: skip


@pytest.mark.parametrize(("wire", "part", "words"), NOT_TAKEN)
def test_what_a_wire_does_not_take_is_one_clear_error(
    world: World, wire: WireSetup, part: Part, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        world.wire_request(wire, ask(messages=(user(part),)))
