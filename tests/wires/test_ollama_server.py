"""Where Ollama is, what a person is told when it is not, and what is learnt of its models."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from ollama._client import _parse_host  # pyright: ignore[reportPrivateUsage]
from servers.player import Play
from wires.harness import World, ask
from wires.ollama_cases import FINE, READ, WIRE, user

from nbagent.contracts.chat import (
    ChatResponse,
    ClientNotice,
    FilePart,
    ImagePart,
    Part,
    ProviderConfig,
)
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.providers.choice import choose_model, local_servers
from nbagent.providers.registry import find_provider

OLLAMA = find_provider("ollama")
USUAL = "http://127.0.0.1:11434"


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "h", "h:1", "h/", ":8080", "http://h", "http://h:1", "https://h", "https://h:1",
     "[::1]", "[::1]:99", "http://h:1/proxy/", " h "],
)  # fmt: skip
def test_the_host_in_the_environment_is_read_as_by_ollamas_own_client(host: str) -> None:
    found = OLLAMA.resolve(ProviderConfig(), {"OLLAMA_HOST": host}).base_url
    assert found == _parse_host(host.strip())


@pytest.mark.parametrize(
    ("host", "base_url"),
    [
        ("", USUAL),
        ("0.0.0.0", USUAL),
        ("0.0.0.0:11434", USUAL),
        ("[::]:8080", "http://127.0.0.1:8080"),
    ],
)
def test_every_interface_and_a_bare_address_are_reached(host: str, base_url: str) -> None:
    assert OLLAMA.resolve(ProviderConfig(), {"OLLAMA_HOST": host}).base_url == base_url


@pytest.mark.parametrize("host", ["::x", "h:port", "h:99999", "[", "x:1:2", "http://[::1"])
def test_a_host_that_is_no_address_is_one_clear_error(host: str) -> None:
    with pytest.raises(UsageError, match="write it as HOST:PORT"):
        OLLAMA.resolve(ProviderConfig(), {"OLLAMA_HOST": host})
    given = OLLAMA.resolve(ProviderConfig(base_url="http://h:1"), {"OLLAMA_HOST": host})
    assert given.base_url == "http://h:1"
    assert "ollama" not in local_servers({"OLLAMA_HOST": host})
    assert choose_model({"OLLAMA_HOST": host}).model_id == "offline:demo"


@pytest.mark.parametrize(
    ("base_url", "key"),
    [("https://ollama.com", "k"), (None, "k"), ("http://h:1", None), ("http://ollama.com", None),
     ("https://notollama.com", None)],
)  # fmt: skip
def test_the_key_goes_to_ollamas_own_cloud(base_url: str | None, key: str | None) -> None:
    config = OLLAMA.resolve(ProviderConfig(base_url=base_url), {"OLLAMA_API_KEY": "k"})
    assert (config.api_key.reveal() if config.api_key else None) == key


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
    client = find_provider(provider).open(ProviderConfig(base_url=base_url, retries=0))

    async def go() -> None:
        try:
            await client.chat(ask())
        finally:
            await client.close()

    with pytest.raises(ModelError, match=command):
        world.run(go())


def answers(world: World, plays: list[Play], **asked: Any) -> tuple[list[ChatResponse], list[str]]:
    """Two answers to one request, and what was told meanwhile."""
    notices: list[ClientNotice] = []

    async def go() -> list[ChatResponse]:
        world.player.play(plays)
        async with world.client(WIRE) as client:
            return [await client.chat(ask(**asked), notify=notices.append) for _ in range(2)]

    return world.run(go()), [notice.text for notice in notices]


def test_that_a_model_does_not_think_is_learnt_and_told_once(world: World) -> None:
    refusal = json.dumps({"error": '"plain:1b" does not support thinking'}).encode()
    plays = [Play(refusal, 400), Play(FINE)]
    responses, told = answers(world, plays, model="plain:1b", reasoning="low")
    assert [asked.body.get("think") for asked in world.player.asked] == [True, None, None]
    assert told == ["think=true was left out: the server refuses it for this model."]
    assert [response.meta.dropped_params for response in responses] == [("think",)] * 2


@pytest.mark.parametrize(
    ("choice", "told"),
    [("required", ("tool_choice",)), ("fs.read", ("tool_choice",)), ("auto", ()), ("none", ())],
)
def test_a_choice_of_tools_that_cannot_be_said_is_told(
    world: World, choice: str, told: tuple[str, ...]
) -> None:
    responses, _ = answers(world, [Play(FINE)], tools=(READ,), tool_choice=choice)
    assert [response.meta.dropped_params for response in responses] == [told] * 2


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (ImagePart(url="https://example.org/a.png"), "images as data"),
        (ImagePart(url="data:image/png,plain"), "images as data"),
        (ImagePart(), "images as data"),
        (FilePart(name="a.pdf", media_type="application/pdf", data="UERG"), "'a.pdf'"),
    ],
)
def test_what_ollama_does_not_take_is_one_clear_error(world: World, part: Part, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        world.wire_request(WIRE, ask(messages=(user(part),)))
