"""What each provider brings for the contract tests: a client whose server plays given answers.

A new provider adds one entry to CASES.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servers.dialects import CHAT, DIALECTS, Called, Dialect
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply, Step
from servers.tiny_gguf import write_tiny_gguf

from nbagent.contracts.chat import ProviderConfig
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import SecretKey
from nbagent.providers import offline
from nbagent.providers.registry import find_provider

CANARY = "sk-canary-0123456789abcdef"


@dataclass(frozen=True)
class Said:
    """One answer that the provider's server (or script) shall give."""

    text: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    """Internal names."""
    slow: bool = False
    """Never ends by itself."""


@dataclass(frozen=True)
class Case:
    """A client that is ready, and the name of its model."""

    client: ChatClient
    model: str


Opener = Callable[[list[Said]], AbstractContextManager[Case]]
UNTOLD = frozenset({"local"})
"""Providers whose server is a real model, which cannot be told what to say."""


@contextmanager
def _offline(answers: list[Said]) -> Generator[Case]:
    def step(said: Said) -> offline.Step:
        calls = [offline.call(name, arguments) for name, arguments in said.calls]
        pause = 30_000.0 if said.slow else 0.0
        return offline.step(text=said.text, calls=calls, delay_ms=pause)

    script = offline.script([step(said) for said in answers])
    client = find_provider("offline").open(ProviderConfig(api_key=SecretKey(CANARY)))
    yield Case(client, script.model_id.partition(":")[2])


@contextmanager
def _local(_: list[Said]) -> Generator[Case]:
    with TemporaryDirectory() as folder:
        model = write_tiny_gguf(Path(folder) / "tiny.gguf")
        client = find_provider("local").open(ProviderConfig(api_key=SecretKey(CANARY)))
        yield Case(client, str(model))


def _streams(wire: Dialect, provider: str) -> Opener:
    """A provider whose server writes the wire's own events."""

    def step(said: Said) -> Step:
        calls = [
            Called(f"c{n}", name.replace(".", "__"), arguments)
            for n, (name, arguments) in enumerate(said.calls)
        ]
        body = wire.stream(*wire.said(said.text, *calls))

        def reply(request: Visit) -> Reply:
            if request.method == "GET":
                listed = [{"id": "little", "name": "models/little"}]
                return Reply(raw=json.dumps({"data": listed, "models": listed}).encode())
            if said.slow:
                return Reply(raw=body, raw_pieces=40, between_s=30.0)
            return Reply(raw=body)

        return reply

    @contextmanager
    def opened(answers: list[Said]) -> Generator[Case]:
        with ModelServer([step(said) for said in answers]) as server:
            config = ProviderConfig(api_key=SecretKey(CANARY), base_url=server.url)
            yield Case(find_provider(provider).open(config), "little")

    return opened


_CHAT = (
    *("openai", "openai-compatible", "azure", "deepseek", "openrouter", "groq", "mistral"),
    *("vllm", "lmstudio", "llamacpp"),
)
CASES: dict[str, Opener] = {
    **{name: _streams(CHAT, name) for name in _CHAT},
    **{name: _streams(wire, name) for wire in DIALECTS if (name := wire.model[:-2]) not in _CHAT},
    "offline": _offline,
    "local": _local,
}
