"""Every field of a request is sent by each wire, or named among the parameters left out."""

from __future__ import annotations

from typing import Any

import pytest

from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ProviderConfig, ToolSpec
from nbagent.providers.client import WireClient, WireRequest
from nbagent.providers.wires.anthropic import Anthropic
from nbagent.providers.wires.base import Wire
from nbagent.providers.wires.chat import Chat
from nbagent.providers.wires.chat_profiles import PROFILES
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


WIRES: dict[str, Wire] = {
    **{f"chat {name}": Chat(profile) for name, profile in PROFILES.items()},
    "responses": Responses(),
    "anthropic": Anthropic("https://api.anthropic.com/v1"),
    "anthropic elsewhere": Anthropic("http://127.0.0.1:1"),
    "anthropic with less": NarrowAnthropic(),
    "google": Google(),
    "ollama": Ollama(),
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
