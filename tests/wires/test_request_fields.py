"""Every field of a request is sent by each wire, or named among the parameters left out."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from wires.other_package.otherwire import OtherWire

from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ProviderConfig, ToolSpec
from nbagent.providers.client import WireClient, WireRequest
from nbagent.providers.servers import SERVERS, built_in_server
from nbagent.providers.wires.anthropic import Anthropic
from nbagent.providers.wires.base import Wire
from nbagent.providers.wires.chat import Chat
from nbagent.providers.wires.google import Google
from nbagent.providers.wires.ollama import Ollama
from nbagent.providers.wires.responses import Responses

TOOLS = (ToolSpec(name="population"), ToolSpec(name="area"))
QUESTION = ChatRequest(model="m", messages=(Message.of("user", "hi"),), tools=TOOLS)
OTHER: dict[str, Any] = {
    "model": "n",
    "messages": (Message.of("user", "ho"),),
    "system_prompt": "Be brief.",
    "tools": TOOLS[:1],
    "tool_choice": "required",
    "temperature": 0.0,
    "max_tokens": 9,
    "top_p": 1.0,
    "stop_sequences": ("END",),
    "reasoning": "high",
    "output_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
"""By field of a request: a value that a person may set."""


class NarrowAnthropic(Anthropic):
    """Anthropic at a server that lacks one more field than the version of its API."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.unsupported_fields |= {"stop_sequences"}


ANTHROPIC = Anthropic("https://api.anthropic.com/v1", is_own_server=True)
WIRES: dict[str, Wire] = {
    **{f"chat {row.name}": Chat(row.quirks) for row in SERVERS},
    "responses": Responses(),
    "anthropic": ANTHROPIC,
    "anthropic elsewhere": Anthropic("http://127.0.0.1:1"),
    "anthropic with less": NarrowAnthropic(),
    "google": Google(),
    "ollama": Ollama(),
    "of another package": OtherWire(),
}


def sent(wire: Wire, request: ChatRequest) -> WireRequest:
    config = ProviderConfig(base_url="http://127.0.0.1:1")
    return WireClient(wire, config, provider="p").wire_request(request, stream=False)


@pytest.mark.parametrize("name", ChatRequest.model_fields)
@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_a_field_is_sent_or_said_to_be_left_out(wire: Wire, name: str) -> None:
    plain = sent(wire, QUESTION)
    changed = sent(wire, QUESTION.model_copy(update={name: OTHER[name]}))
    is_sent = (changed.url, changed.body) != (plain.url, plain.body)
    assert is_sent is (name not in changed.dropped_params)


def test_a_further_field_that_is_left_out_keeps_the_others() -> None:
    request = QUESTION.model_copy(update={"temperature": 0.5, "stop_sequences": ("END",)})
    answer = sent(NarrowAnthropic(), request)
    assert answer.dropped_params == ("stop_sequences",)
    assert b'"temperature":0.5' in answer.body


BUDGETS: dict[str, tuple[Wire, str, str, str]] = {
    "effort": (
        Chat(built_in_server("openai").quirks),
        "gpt-5.2",
        "4096",
        "reasoning_effort='medium'",
    ),
    "deepseek": (Chat(built_in_server("deepseek").quirks), "m", "9000", "reasoning_effort='high'"),
    "number": (Chat(built_in_server("openrouter").quirks), "m", "4096", ""),
    "responses": (Responses(), "gpt-5.4", "100", "reasoning.effort='low'"),
    "budgets": (
        ANTHROPIC,
        "claude-sonnet-4-5",
        "4096",
        "",
    ),
    "raised": (
        *(
            ANTHROPIC,
            "claude-sonnet-4-5",
            "100",
        ),
        "budget_tokens=1024",
    ),
    "efforts": (
        *(ANTHROPIC, "claude-opus-5", "4096"),
        "output_config.effort='medium'",
    ),
    "gemini 2.5": (Google(), "gemini-2.5-flash", "4096", ""),
    "gemini 3": (Google(), "gemini-3-pro", "4096", "thinkingLevel='MEDIUM'"),
    "switch": (Ollama(), "qwen3", "4096", "think=True"),
    "levels": (Ollama(), "gpt-oss", "4096", "think='medium'"),
    "word": (Chat(built_in_server("openai").quirks), "gpt-5.2", "medium", ""),
}


@pytest.mark.parametrize(("wire", "model", "reasoning", "shown"), BUDGETS.values(), ids=BUDGETS)
def test_a_budget_that_is_sent_as_something_else_is_a_notice(
    wire: Wire, model: str, reasoning: str, shown: str
) -> None:
    def notices(*messages: Message) -> list[str]:
        request = ChatRequest(model=model, messages=messages, reasoning=reasoning)
        config = ProviderConfig(base_url="http://127.0.0.1:1", retries=0)

        async def go() -> list[str]:
            client = WireClient(wire, config, provider="p")
            texts = list[str]()
            with suppress(ModelError):  # nothing answers there
                async for chunk in client.chat_stream(request):
                    texts += [chunk.notice.text] if chunk.notice else []
            return texts

        return asyncio.run(go())

    words = Message.of("user", "hi")
    texts = notices(words)
    assert len(texts) == (1 if shown else 0)
    for text in texts:
        assert shown in text
        assert f"reasoning={reasoning} is a number of tokens" in text
    result = Message(role="tool", tool_call_id="c1", content=words.content)
    assert notices(words, Message.of("assistant", "so"), result) == [], "once for a prompt"
