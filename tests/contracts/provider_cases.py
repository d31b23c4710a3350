"""What each provider brings for the contract tests: a client whose server plays given answers.

A new provider adds one entry to CASES.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from servers.model_server import ModelServer, Reply, Request, Step
from wires import anthropic_cases

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


def _raw(provider: str, encode: Callable[[Said, bool], bytes]) -> Opener:
    """A provider whose server plays bytes: `encode` makes them of an answer, streamed or whole."""

    def step(said: Said) -> Step:
        def reply(request: Request) -> Reply:
            raw = encode(said, bool(request.body.get("stream")))
            pause = 30.0 if said.slow else 0.0
            return Reply(raw=raw, raw_pieces=len(raw) // 2 if said.slow else None, between_s=pause)

        return reply

    @contextmanager
    def opened(answers: list[Said]) -> Generator[Case]:
        with ModelServer([step(said) for said in answers]) as server:
            config = ProviderConfig(api_key=SecretKey(CANARY), base_url=server.url)
            yield Case(find_provider(provider).open(config), "little")

    return opened


def _anthropic(said: Said, streams: bool) -> bytes:
    wire = anthropic_cases
    content = [wire.text(said.text)] if said.text else []
    for n, (name, arguments) in enumerate(said.calls):
        content.append({**wire.use(f"toolu_{n}", name.replace(".", "__")), "input": arguments})
    word = "tool_use" if said.calls else "end_turn"
    made = (wire.stream if streams else wire.whole)(*content, word=word, usage=wire.USED)
    return made.partition(b"event: message_delta")[0] if said.broken else made


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
    "anthropic": _raw("anthropic", _anthropic),
    "offline": _offline,
}
