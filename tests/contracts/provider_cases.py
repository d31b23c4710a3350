"""What each provider brings for the contract tests: a client whose server plays given answers.

A new provider adds one entry to CASES.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from servers.model_server import ModelServer, Reply, Request, Step
from wires import anthropic_cases, responses_cases

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


Encoder = Callable[[Said], list[Any]]
"""The events of a stream that says this; without its end where it is broken."""


def _streams(
    provider: str, encode: Encoder, listed: Any, *, line: bytes = b"data: %b\n\n"
) -> Opener:
    """A provider whose wire is event streams; `listed`: the body of its list of models."""

    def step(said: Said) -> Step:
        events = b"".join(line % json.dumps(it).encode() for it in encode(said))

        def reply(request: Request) -> Reply:
            if request.method == "GET":
                return Reply(raw=json.dumps(listed).encode())
            if said.slow:
                return Reply(raw=events, raw_pieces=40, between_s=30.0)
            return Reply(raw=events)

        return reply

    @contextmanager
    def opened(answers: list[Said]) -> Generator[Case]:
        with ModelServer([step(said) for said in answers]) as server:
            config = ProviderConfig(api_key=SecretKey(CANARY), base_url=server.url)
            yield Case(find_provider(provider).open(config), "little")

    return opened


def _google(said: Said) -> list[Any]:
    calls = [{"name": name.replace(".", "__"), "args": args} for name, args in said.calls]
    parts: list[Any] = [{"text": piece} for piece in said.text.partition(" ") if piece]
    parts += [{"functionCall": call} for call in calls]
    used = {"promptTokenCount": 9, "candidatesTokenCount": 5, "totalTokenCount": 14}
    end = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": used}
    chunks = [{"candidates": [{"content": {"parts": [part]}}]} for part in parts]
    return chunks if said.broken else [*chunks, end]


def _ollama(said: Said) -> list[Any]:
    calls = [{"name": name.replace(".", "__"), "arguments": args} for name, args in said.calls]
    lines: list[Any] = [{"message": {"content": it}} for it in said.text.partition(" ") if it]
    lines += [{"message": {"tool_calls": [{"function": call}]}} for call in calls]
    end: dict[str, Any] = {"message": {}, "done": True, "prompt_eval_count": 9, "eval_count": 5}
    return lines if said.broken else [*lines, end]


def _anthropic(said: Said) -> list[Any]:
    content = [anthropic_cases.text(said.text)] if said.text else []
    for n, (name, arguments) in enumerate(said.calls):
        call = anthropic_cases.use(f"toolu_{n}", name.replace(".", "__"))
        content.append({**call, "input": arguments})
    word = "tool_use" if said.calls else "end_turn"
    lines = anthropic_cases.stream(*content, word=word, usage=anthropic_cases.USED).splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    return events[:-2] if said.broken else events


def _responses(said: Said) -> list[Any]:
    wire = responses_cases
    items = [wire.said(said.text)] if said.text else []
    for n, (name, arguments) in enumerate(said.calls):
        items.append(wire.call(json.dumps(arguments), name=name.replace(".", "__"), n=n))
    end = [] if said.broken else [wire.last(*items, usage=wire.USED)]
    return [*wire.streamed(*items), *end]


_LISTED = {"data": [{"id": "little"}]}
_GEMINI = {"models": [{"name": "models/little"}]}
_PULLED = {"models": [{"name": "little"}]}
_CHAT = (
    *("openai", "openai-compatible", "azure", "deepseek", "openrouter", "groq", "mistral"),
    *("vllm", "lmstudio", "llamacpp"),
)
CASES: dict[str, Opener] = {
    **{name: _chat(name) for name in _CHAT},
    "openai-responses": _streams("openai-responses", _responses, _LISTED),
    "anthropic": _streams("anthropic", _anthropic, _LISTED),
    "google": _streams("google", _google, _GEMINI),
    "ollama": _streams("ollama", _ollama, _PULLED, line=b"%b\n"),
    "offline": _offline,
}
