"""Which requests go to the Responses endpoint, and what is Azure's own: routes, keys, refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from servers.player import Play
from wires import chat_cases, responses_cases
from wires.harness import JSON, KEY, TOOLS, World, ask
from wires.responses_cases import answer_of, said

from nbagent.contracts.chat import ChatChunk, ChatRequest
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import SecretKey

OPENAI = replace(chat_cases.WIRE, provider="openai")
AZURE = replace(chat_cases.WIRE, provider="azure")
RESPONSES = responses_cases.WIRE
CHAT_URL, RESPONSES_URL = "/chat/completions", "/responses"
HOME = {"openai": "https://api.openai.com/v1", "azure": "https://r.openai.azure.com/openai/v1"}
DATED = "https://r.openai.azure.com/openai?api-version=2024-10-21"
FINE = json.dumps(answer_of(said("fine"))).encode()
TELLING = "Function tools with reasoning_effort are not supported for m. Use /v1/responses instead."
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
    (OPENAI, HOME["openai"], True),
    (OPENAI, "http://h:1/v1", False),
    (AZURE, HOME["azure"], True),
    (AZURE, DATED, False),
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


@pytest.mark.parametrize("provider", HOME)
def test_a_telling_refusal_is_told_once_and_remembered_for_the_model(
    world: World, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = {"message": TELLING, "param": "reasoning_effort", "type": "invalid_request_error"}
    refusal = Play(json.dumps({"error": error}).encode(), 400)
    wire = OPENAI if provider == "openai" else AZURE
    request = ask(model="told", tools=TOOLS, stop_sequences=("X",))

    async def go(request: ChatRequest) -> list[ChatChunk]:
        async with world.client(wire, HOME[provider].replace("https", "http")) as client:
            return [chunk async for chunk in client.chat_stream(request)]

    monkeypatch.setenv("HTTP_PROXY", world.player.origin)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    told: list[list[str]] = []
    for plays in ([refusal, Play(FINE)], [Play(FINE)]):
        world.player.play(plays)
        chunks = world.run(go(request))
        told.append([chunk.notice.text for chunk in chunks if chunk.notice])
        response = chunks[-1].response
        assert response
        assert response.message.text == "fine"
        assert response.meta.dropped_params == ("stop_sequences",)
        assert response.meta.attempts == 1
        assert RESPONSES_URL in world.player.asked[-1].line
        assert len(world.player.asked) == len(plays)
    text = "told is asked at /v1/responses: only there it takes such a request."
    assert told == [[text], []]
    world.player.play([Play(chat_cases.FINE)])
    assert world.run(go(ask(model="other", tools=TOOLS)))[-1].done
    assert CHAT_URL in world.player.asked[0].line, "another model is asked as before"


R = "https://r.openai.azure.com"
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

    async def go() -> None:
        async with world.client(AZURE, world.player.origin + version) as client:
            await client.chat(ask())

    path = "/openai/deployments/m" if version else "/openai/v1"
    with pytest.raises(ModelError, match=f"{path}/chat/completions"):
        world.run(go())
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
    async def go() -> None:
        async with world.client(AZURE, world.player.origin, **given) as client:
            await client.chat(ask(model="gpt-5.5", tools=TOOLS))

    world.player.play([Play(FINE)])
    world.run(go())
    (asked,) = world.player.asked
    carried = {
        name: text for name, text in asked.headers.items() if "auth" in name or "key" in name
    }
    assert carried == sent
    assert RESPONSES_URL in asked.line
