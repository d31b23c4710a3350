"""What each provider brings for the contract tests: a client whose server plays given answers.

A new provider adds one entry to CASES.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from servers.model_server import ModelServer, Reply, Request

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
    broken: bool = False
    """Breaks after the text."""


@dataclass(frozen=True)
class Case:
    """A client that is ready, and the name of its model."""

    client: ChatClient
    model: str


Opener = Callable[[list[Said]], AbstractContextManager[Case]]


def _chat(provider: str) -> Opener:
    @contextmanager
    def opened(answers: list[Said]) -> Generator[Case]:
        with _chat_server(answers) as url:
            config = ProviderConfig(api_key=SecretKey(CANARY), base_url=url)
            yield Case(find_provider(provider).open(config), "little")

    return opened


@contextmanager
def _chat_server(answers: list[Said]) -> Generator[str]:
    def reply(said: Said) -> Reply:
        calls = [(name.replace(".", "__"), arguments) for name, arguments in said.calls]
        pause = 30.0 if said.slow else 0.0
        return Reply(text=said.text, calls=calls, between_s=pause, cut=said.broken)

    with ModelServer([reply(said) for said in answers]) as server:
        yield server.url


@contextmanager
def _ollama(answers: list[Said]) -> Generator[Case]:
    def reply(said: Said) -> Callable[[Request], Reply]:
        return lambda request: Reply(
            raw=_ollama_bytes(said, request),
            raw_type="application/x-ndjson",
            raw_pieces=100 if said.slow else None,
            between_s=30.0 if said.slow else 0.0,
        )

    with ModelServer([reply(said) for said in answers]) as server:
        config = ProviderConfig(api_key=SecretKey(CANARY), base_url=server.url)
        yield Case(find_provider("ollama").open(config), "little")


def _ollama_bytes(said: Said, request: Request) -> bytes:
    if request.method == "GET":
        return json.dumps({"models": [{"name": "little"}]}).encode()
    calls = [
        {"function": {"name": name.replace(".", "__"), "arguments": arguments}}
        for name, arguments in said.calls
    ]
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 2}
    lines = [
        *({"message": {"content": piece}, "done": False} for piece in said.text.splitlines(True)),
        *({"message": {"content": "", "tool_calls": [call]}, "done": False} for call in calls),
        *([] if said.broken else [{"message": {"content": ""}, **end}]),
    ]
    if not request.body["stream"]:
        lines = [{"message": {"content": said.text, "tool_calls": calls}, **end}]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@contextmanager
def _offline(answers: list[Said]) -> Generator[Case]:
    def step(said: Said) -> offline.Step:
        if said.broken:
            return offline.cut(said.text)
        calls = [offline.call(name, arguments) for name, arguments in said.calls]
        pause = 30_000.0 if said.slow else 0.0
        return offline.step(text=said.text, calls=calls, delay_ms=pause)

    script = offline.script([step(said) for said in answers])
    client = find_provider("offline").open(ProviderConfig(api_key=SecretKey(CANARY)))
    yield Case(client, script.model_id.partition(":")[2])


_CHAT = (
    *("openai", "openai-compatible", "azure", "deepseek", "openrouter", "groq", "mistral"),
    *("vllm", "lmstudio", "llamacpp"),
)
CASES: dict[str, Opener] = {
    **{name: _chat(name) for name in _CHAT},
    "ollama": _ollama,
    "offline": _offline,
}
