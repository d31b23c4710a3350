"""What is sent to Anthropic is what the types of its own client allow, and nothing else."""

from __future__ import annotations

import json

import pytest
from anthropic.types.beta.message_create_params import MessageCreateParams as WithBetas
from anthropic.types.message_create_params import MessageCreateParams
from wires.anthropic_cases import LOOK, READ, THOUGHT, WIRE, use
from wires.chat_requests import RED, result
from wires.harness import JSON, RequestCase, World, ask
from wires.sdk_types import problem

from nbagent.contracts.chat import Message, ToolCall

CALL = ToolCall(id="toolu_1", name="fs.read", arguments={"at": "a"}, arguments_raw='{"at":"a"}')
FROM: JSON = {"origin": "https://api.anthropic.com:443", "model": "claude-sonnet-5-5"}
OURS = Message(role="assistant", tool_calls=(CALL,), raw={**FROM, "blocks": [THOUGHT, LOOK]})
CONVERSATION = ask(
    model="claude-sonnet-5-5",
    messages=(Message.of("user", "Look at a."), OURS, result("toolu_1", RED)),
    system_prompt="Terse.",
    tools=(READ,),
    reasoning="high",
)
SNAPSHOT: JSON = json.loads("""{
  "model": "claude-sonnet-5-5",
  "max_tokens": 16000,
  "stream": true,
  "cache_control": {"type": "ephemeral"},
  "thinking": {"type": "adaptive", "display": "summarized"},
  "output_config": {"effort": "high"},
  "system": [{"type": "text", "text": "Terse.", "cache_control": {"type": "ephemeral"}}],
  "tools": [{"name": "fs__read", "description": "Read.",
             "input_schema": {"type": "object", "properties": {}}}],
  "tool_choice": {"type": "auto"},
  "messages": [
    {"role": "user", "content": [{"type": "text", "text": "Look at a."}]},
    {"role": "assistant", "content": [
      {"type": "thinking", "thinking": "Hm, so.", "signature": "SIG=="},
      {"type": "tool_use", "id": "toolu_1", "name": "fs__read", "input": {"at": "a"}}]},
    {"role": "user", "content": [
      {"type": "tool_result", "tool_use_id": "toolu_1", "content": [
        {"type": "text", "text": "{}"},
        {"type": "image", "source": {
          "type": "base64", "media_type": "image/png", "data": "UkVE"}}]}]}]
}""")
WRONG: dict[str, JSON] = {
    "no max_tokens": {"max_tokens": None},
    "a removed parameter": {"temperature": 0.5},
    "a choice that is a word": {"tool_choice": "auto"},
    "an unknown way to think": {"thinking": {"type": "enabled", "effort": "high"}},
    "a message of a tool": {"messages": [{"role": "tool", "content": "x"}]},
    "a call with text as its input": {
        "messages": [{"role": "assistant", "content": [{**use("t"), "input": "{}"}]}]},
    "a block with a field too many": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "id": "1"}]}]},
}  # fmt: skip


def test_a_turn_with_thinking_and_an_image_is_sent_so(world: World) -> None:
    server = WIRE.servers["anthropic"]
    _, body = world.wire_request(WIRE, CONVERSATION, server, stream=True)
    assert body == SNAPSHOT
    assert problem(body, MessageCreateParams) == ""


SENT = [case for case in WIRE.requests if not case.config and "elsewhere" not in case.id]


@pytest.mark.parametrize("case", SENT, ids=lambda case: case.id)
def test_what_is_sent_is_of_anthropics_types(world: World, case: RequestCase) -> None:
    server = WIRE.servers.get(case.server, case.server)
    _, body = world.wire_request(WIRE, case.request, server, stream=case.stream)
    assert problem(body, MessageCreateParams) == ""


def test_leaving_out_thinking_is_of_the_types_of_its_beta() -> None:
    binding = {"prefix_mismatch_behavior": "drop_block"}
    body = {**SNAPSHOT, "thinking": {"type": "adaptive", "block_binding": binding}}
    assert problem(body, WithBetas) == ""
    assert problem(body, MessageCreateParams)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_request_is_not_of_these_types(wrong: str) -> None:
    body = {**SNAPSHOT, **WRONG[wrong]}
    assert problem({name: it for name, it in body.items() if it is not None}, MessageCreateParams)
