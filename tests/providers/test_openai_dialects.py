"""What each server of the dialect is sent: names of parameters, ids, fields, schemas."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nbagent.contracts.chat import (
    ChatRequest,
    Message,
    ProviderConfig,
    TextPart,
    ToolCall,
    ToolSpec,
)
from nbagent.providers.openai import OpenAIClient, normal_base_url
from nbagent.providers.openai.request import (
    Dialect,
    HistoryEncoder,
    Toolset,
    join_body,
    request_params,
)

URLS = {
    "openai": "https://api.openai.com/v1",
    "azure": "https://r.openai.azure.com/openai/v1",
    "deepseek": "https://api.deepseek.com",
    "openrouter": "https://openrouter.ai/api/v1",
    "groq": "https://api.groq.com/openai/v1",
    "mistral": "https://api.mistral.ai/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "anthropic": "https://api.anthropic.com/v1",
    "ollama": "http://localhost:11434/v1",
    "vllm": "http://vllm:8000/v1",
    "llama.cpp": "http://box:8080/v1",
    "lm studio": "http://localhost:1234/v1",
}
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "$defs": {"City": {"type": "object", "additionalProperties": False}},
}
TOOLS = (ToolSpec(name="fs.read"), ToolSpec(name="b", parameters=CITY))


def body_for(name: str, **more: Any) -> dict[str, Any]:
    """What a server of this name would be sent."""
    dialect = Dialect.of(URLS[name])
    given: dict[str, Any] = {"model": "m", "messages": (Message.of("user", "hi"),), **more}
    asked = ChatRequest(**given)
    toolset = Toolset(asked.tools, dialect)
    messages = HistoryEncoder(dialect, "m", toolset).encode(asked.system_prompt, asked.messages)
    params = request_params(asked, dialect, toolset, stream=True)
    return json.loads(join_body(params, messages, toolset.encoded if asked.tools else None))


def history(name: str, *messages: Message, tools: tuple[ToolSpec, ...] = TOOLS) -> list[Any]:
    return body_for(name, messages=messages, tools=tools)["messages"]


def assistant(name: str, model: str = "m", **more: Any) -> Message:
    """An answer with one call that this server gave."""
    origin = Dialect.of(URLS[name]).origin
    raw = {"origin": origin, "model": model, **more.pop("raw", {})}
    call = ToolCall(
        id=more.pop("call_id", "call_1"),
        name="fs.read",
        arguments={},
        arguments_raw="{}",
        extra=more.pop("extra", None),
    )
    return Message(role="assistant", tool_calls=(call,), raw=raw, **more)


@pytest.mark.parametrize("name", URLS)
def test_the_limit_of_tokens_has_the_name_that_counts(name: str) -> None:
    body = body_for(name, max_tokens=9)
    newer = name in ("openai", "azure")
    assert body.get("max_completion_tokens") == (9 if newer else None)
    assert body.get("max_tokens") == (None if newer else 9)


@pytest.mark.parametrize("name", URLS)
def test_no_developer_role_no_strict_and_no_tool_keys_without_tools(name: str) -> None:
    body = body_for(name, system_prompt="S")
    assert body["messages"][0] == {"role": "system", "content": "S"}
    assert body.keys() == {"model", "messages", "stream", "stream_options"}
    assert "strict" not in json.dumps(body_for(name, tools=TOOLS))


@pytest.mark.parametrize("name", URLS)
def test_a_choice_of_none_that_is_not_heard_sends_no_tools(name: str) -> None:
    client = OpenAIClient(ProviderConfig(base_url=URLS[name]))
    given: dict[str, Any] = {"model": "m", "messages": (Message.of("user", "hi"),), "tools": TOOLS}
    silent = client.wire_request(ChatRequest(**given, tool_choice="none"), stream=False)
    body = json.loads(silent.body)
    unheard = name in ("mistral", "groq", "ollama")
    assert ("tools" in body, "tool_choice" in body) == (not unheard, not unheard)
    free = json.loads(client.wire_request(ChatRequest(**given), stream=False).body)
    assert (len(free["tools"]), free["tool_choice"]) == (2, "auto")


@pytest.mark.parametrize("name", URLS)
def test_leading_system_messages_are_one(name: str) -> None:
    given = (Message.of("system", "B"), Message.of("system", "C"), Message.of("user", "hi"))
    body = body_for(name, system_prompt="A", messages=given)
    assert [m["role"] for m in body["messages"]] == ["system", "user"]
    assert body["messages"][0]["content"] == "A\n\nB\n\nC"


@pytest.mark.parametrize("name", URLS)
def test_a_message_of_calls_alone_has_content_that_the_server_reads(name: str) -> None:
    cloud = name in ("openai", "azure", "anthropic", "gemini", "openrouter")
    (message,) = history(name, assistant(name))
    assert message["content"] == (None if cloud else "")


@pytest.mark.parametrize("name", URLS)
def test_an_empty_answer_is_not_sent_back(name: str) -> None:
    empty = Message(role="assistant", reasoning="hm")
    sent = history(name, Message.of("user", "hi"), empty, Message.of("user", "so?"))
    assert [message["role"] for message in sent] == ["user", "user"]


@pytest.mark.parametrize("name", URLS)
def test_only_known_fields_are_sent_back(name: str) -> None:
    foreign: dict[str, Any] = {"origin": "elsewhere", "model": "m", "fields": {"annotations": []}}
    said = Message(role="assistant", content=(TextPart(text="x"),), name="n", raw=foreign)
    (message,) = history(name, said)
    assert message.keys() - {"reasoning_content"} == {"role", "content"}


@pytest.mark.parametrize("name", URLS)
def test_old_call_ids_fit_and_go_with_their_results(name: str) -> None:
    long = "toolu:" + "x" * 60
    call = ToolCall(id=long, name="b", arguments={}, arguments_raw="{}")
    given = Message(role="assistant", tool_calls=(call,))
    sent = history(name, given, Message(role="tool", tool_call_id=long))
    wire = sent[0]["tool_calls"][0]["id"]
    assert wire == sent[1]["tool_call_id"]
    assert len(wire) == (9 if name == "mistral" else 24)
    assert wire.isalnum()


def test_mistral_gets_nine_characters_also_where_we_made_the_id() -> None:
    sent = history("mistral", assistant("mistral", call_id="call_0123456789abcdef01234567"))
    wire = sent[0]["tool_calls"][0]["id"]
    assert len(wire) == 9
    assert (
        history("mistral", assistant("mistral", call_id="abc123XYZ"))[0]["tool_calls"][0]["id"]
        == "abc123XYZ"
    )


def test_a_server_gets_its_own_ids_back_whatever_they_look_like() -> None:
    odd = "call:with/odd " + "x" * 60
    assert history("vllm", assistant("vllm", call_id=odd))[0]["tool_calls"][0]["id"] == odd


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("openai", {}),
        ("azure", {}),
        ("groq", {}),
        ("mistral", {}),
        ("gemini", {}),
        ("anthropic", {}),
        ("deepseek", {"reasoning_content": "hm"}),
        ("openrouter", {"reasoning": "hm"}),
        ("ollama", {"reasoning": "hm"}),
        ("vllm", {"reasoning": "hm"}),
        ("lm studio", {"reasoning": "hm"}),
    ],
)
def test_reasoning_goes_back_where_it_helps(name: str, expected: dict[str, str]) -> None:
    said = assistant(name, reasoning="hm", raw={"reasoning_field": "reasoning"})
    (message,) = history(name, said)
    assert {key: message[key] for key in message if key.startswith("reasoning")} == expected
    (message,) = history(name, said, tools=())
    assert not any(key.startswith("reasoning") for key in message), "without tools it is not read"


def test_deepseek_gets_the_field_on_each_turn_with_calls() -> None:
    thought = assistant("deepseek", reasoning="hm", raw={"reasoning_field": "reasoning_content"})
    answered = Message(
        role="assistant",
        content=(TextPart(text="Yes."),),
        reasoning="so",
        raw={**(thought.raw or {})},
    )
    other = assistant("deepseek", model="other", reasoning="hm")
    sent = history("deepseek", thought, answered, other, assistant("openai"))
    assert [message["reasoning_content"] for message in sent] == ["hm", "so", "", ""]


def test_openrouter_gets_its_details_back_unchanged_and_the_effort_in_an_object() -> None:
    details = [{"type": "reasoning.encrypted", "data": "ENC", "index": 0}]
    said = assistant("openrouter", raw={"fields": {"reasoning_details": details}})
    assert history("openrouter", said)[0]["reasoning_details"] == details
    assert "reasoning_details" not in history("vllm", said)[0]
    assert body_for("openrouter", reasoning="max")["reasoning"] == {"effort": "xhigh"}
    assert body_for("vllm", reasoning="low")["reasoning_effort"] == "low"


def test_gemini_gets_the_signature_of_a_call_back_on_that_call() -> None:
    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    (message,) = history("gemini", assistant("gemini", extra=signed))
    assert message["tool_calls"][0]["extra_content"] == signed["extra_content"]
    (message,) = history("vllm", assistant("gemini", extra=signed))
    assert "extra_content" not in message["tool_calls"][0]


def test_schemas_are_written_as_each_server_reads_them() -> None:
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    written = {
        name: body_for(name, tools=TOOLS)["tools"][1]["function"]["parameters"]
        for name in ("openai", "mistral", "vllm")
    }
    assert written["openai"]["properties"] == {"city": {"$ref": "#/$defs/City"}}
    assert written["vllm"] == {
        "type": "object",
        "properties": {"city": {**empty, "additionalProperties": False}},
    }
    assert written["mistral"] == {"type": "object", "properties": {"city": empty}}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("api.groq.com", "https://api.groq.com/openai/v1"),
        ("https://openrouter.ai", "https://openrouter.ai/api/v1"),
        ("https://api.deepseek.com/", "https://api.deepseek.com"),
        ("https://r.openai.azure.com", "https://r.openai.azure.com/openai/v1"),
        (
            "https://generativelanguage.googleapis.com",
            "https://generativelanguage.googleapis.com/v1beta/openai",
        ),
        ("https://generativelanguage.googleapis.com/v1beta/openai/", URLS["gemini"]),
        ("http://localhost:11434", "http://localhost:11434/v1"),
        ("https://notgroq.com", "https://notgroq.com/v1"),
    ],
)
def test_a_bare_host_means_the_providers_own_place(given: str, meant: str) -> None:
    assert normal_base_url(given) == meant
