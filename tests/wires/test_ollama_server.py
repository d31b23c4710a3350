"""Where Ollama is, what a person is told when it is not, and what it cannot take."""

from __future__ import annotations

import socket

import ollama
import pytest
from ollama._client import _parse_host  # pyright: ignore[reportPrivateUsage]
from wires.harness import World, ask
from wires.ollama_cases import WIRE, user

from nbagent.contracts.chat import FilePart, ImagePart, Part, ProviderConfig
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.providers.choice import choose_model, local_servers
from nbagent.providers.registry import find_provider

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
    assert choose_model({"OLLAMA_HOST": host}).model_id == "offline:demo"


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


def test_every_option_of_the_package_is_sent_among_the_options(world: World) -> None:
    extra = dict.fromkeys(ollama.Options.model_fields, 1)
    _, body = world.wire_request(WIRE, ask(), extra_body=extra)
    assert (body["options"], body.keys()) == (extra, {"model", "messages", "stream", "options"})


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
