"""What each server of the dialect answers, in its own way: streams, errors, counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from servers.model_server import ModelServer, Reply

from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    Message,
    ProviderConfig,
    ResponseMeta,
    ToolSpec,
)
from nbagent.contracts.errors import ModelError
from nbagent.providers.names import WireNames
from nbagent.providers.openai import OpenAIClient
from nbagent.providers.openai.answer import AnswerFold
from nbagent.providers.openai.reader import AnswerReader
from nbagent.providers.openai.usage import usage_of
from nbagent.providers.retry import RetryPolicy

TOOLS = (ToolSpec(name="fs.read"),)


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def streamed(*chunks: Any, done: bool = True) -> ChatResponse:
    """The fold of an answer that a server sent."""
    reader = AnswerReader(AnswerFold(WireNames(["fs.read"]), provider="p", origin="o", model="m"))
    for chunk in chunks:
        data = chunk if isinstance(chunk, bytes) else b"data: " + json.dumps(chunk).encode()
        reader.feed(data + b"\n\n")
    reader.feed(b"data: [DONE]\n\n" if done else b"")
    reader.end()
    return reader.fold.response(ResponseMeta())


def chunk(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def ask(server: ModelServer, **more: Any) -> list[ChatChunk]:
    async def go() -> list[ChatChunk]:
        config = ProviderConfig(base_url=server.url)
        client = OpenAIClient(config, retry=RetryPolicy(first_wait_s=0.01))
        request = ChatRequest(model="m", messages=(Message.of("user", "hi"),), **more)
        try:
            return [chunk async for chunk in client.chat_stream(request)]
        finally:
            await client.close()

    return asyncio.run(go())


def test_deepseek_keep_alives_and_its_own_count_of_the_cache() -> None:
    usage = {"prompt_tokens": 9, "prompt_cache_hit_tokens": 5, "completion_tokens": 1}
    answer = chunk({"content": "x"}, "insufficient_system_resource", usage=usage)
    response = streamed(b": keep-alive", b"", answer)
    assert response.finish_reason == "error"
    assert response.usage
    assert response.usage.cached_tokens == 5


def test_openrouter_comments_details_and_an_error_within_a_choice() -> None:
    part = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
    response = streamed(
        b": OPENROUTER PROCESSING",
        chunk({"reasoning": "a", "reasoning_details": [{**part, "text": "a"}]}),
        chunk({"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "E"}]}),
        chunk({"reasoning": "b", "reasoning_details": [{**part, "text": "b", "signature": "s"}]}),
        chunk({"content": "x"}, "stop", created=None),
    )
    assert response.reasoning == "ab"
    assert response.raw
    assert response.raw["fields"]["reasoning_details"] == [
        {**part, "text": "ab", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "E"},
    ]
    error = {"code": 502, "message": "Provider disconnected"}
    for failed in (
        chunk({"content": ""}, "error", error=error),
        {"choices": [{"delta": {"content": ""}, "finish_reason": "error", "error": error}]},
    ):
        with pytest.raises(ModelError, match="disconnected") as caught:
            streamed(failed)
        assert (caught.value.code, caught.value.retryable) == ("LLM_HTTP_ERROR", True)


def test_openrouter_details_of_a_whole_answer_are_not_joined() -> None:
    details = [{"type": "reasoning.text", "text": "a"}, {"type": "reasoning.text", "text": "b"}]
    body = {"choices": [{"message": {"content": "x", "reasoning_details": details}}]}
    reader = AnswerReader(AnswerFold(WireNames([]), provider="p", origin="o", model="m"))
    reader.feed(json.dumps(body).encode())
    reader.end()
    response = reader.fold.response(ResponseMeta())
    assert response.reasoning == "ab", "shown, since no other field had it"
    assert response.raw
    assert response.raw["fields"]["reasoning_details"] == details


@pytest.mark.parametrize("stream", [True, False])
def test_openrouter_without_any_choice_is_asked_again(server: ModelServer, stream: bool) -> None:
    body = json.dumps({"id": "x", "choices": None}).encode()
    raw = b"data: " + body + b"\n\ndata: [DONE]\n\n" if stream else body
    server.then(Reply(raw=raw), "fine")
    assert ask(server)[-1].response
    assert len(server.bodies) == 2


def test_openrouters_moderation_is_the_end_of_a_turn(server: ModelServer) -> None:
    metadata = {"reasons": ["violence"], "flagged_input": "hi"}
    error = {"code": 403, "message": "Your input was flagged", "metadata": metadata}
    server.then(Reply(status=403, error={"error": error}))
    response = ask(server)[-1].response
    assert response
    assert response.finish_reason == "content_filter"


def test_azures_filter_in_the_middle_of_a_stream_ends_the_turn() -> None:
    response = streamed(
        {"choices": [], "prompt_filter_results": [{}]},
        chunk(None),
        chunk({"content": "Half"}),
        {"error": {"code": "content_filter", "message": "filtered"}},
    )
    assert (response.finish_reason, response.message.text) == ("content_filter", "Half")


FAILED = '{"name": "fs__read", "arguments": {"path": "a"}}'
GROQ = {
    "message": "Failed to call a function.",
    "type": "invalid_request_error",
    "code": "tool_use_failed",
}


def groq(server: ModelServer, form: str, failed: str) -> None:
    error = {"error": {**GROQ, "failed_generation": failed}}
    if form == "status":
        server.then(Reply(status=400, error=error))
    elif form == "stream":
        server.then(Reply(raw=b"data: " + json.dumps(error).encode() + b"\n\n"))
    else:
        late: dict[str, Any] = {"choices": [], "x_groq": error}
        said = chunk({"content": "I look."})
        body = b"".join(b"data: " + json.dumps(it).encode() + b"\n\n" for it in (said, late))
        server.then(Reply(raw=body))


@pytest.mark.parametrize("form", ["status", "stream", "after text"])
def test_groqs_unread_call_is_read_and_answered_like_any_other(
    server: ModelServer, form: str
) -> None:
    groq(server, form, FAILED)
    chunks = ask(server, tools=TOOLS)
    response = chunks[-1].response
    assert response
    assert response.finish_reason == "tool_calls"
    assert [(call.name, call.arguments) for call in response.message.tool_calls] == [
        ("fs.read", {"path": "a"})
    ]
    assert any(chunk.tool_call_delta for chunk in chunks)
    assert len(server.bodies) == 1


@pytest.mark.parametrize("form", ["status", "stream"])
def test_what_groq_could_not_read_and_we_neither_is_asked_once_more(
    server: ModelServer, form: str
) -> None:
    groq(server, form, "Let me see…")
    server.then("fine")
    response = ask(server, tools=TOOLS)[-1].response
    assert response
    assert (response.message.text, response.meta.retries) == ("fine", 1)
    for _ in range(3):
        groq(server, form, "Let me see…")
    with pytest.raises(ModelError, match="Failed to call a function") as caught:
        ask(server, tools=TOOLS)
    assert caught.value.code == "LLM_HTTP_ERROR"
    assert len(server.bodies) == 4


@pytest.mark.parametrize("more", [{}, {"tools": TOOLS, "tool_choice": "none"}], ids=["no", "none"])
def test_a_call_that_was_not_allowed_is_not_made_of_an_error(
    server: ModelServer, more: dict[str, Any]
) -> None:
    for _ in range(2):
        groq(server, "status", FAILED)
    with pytest.raises(ModelError):
        ask(server, **more)


def test_groqs_usage_beside_the_answer_counts() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    response = streamed(chunk({"content": "x"}), chunk({}, "stop", x_groq={"usage": usage}))
    assert response.usage
    assert response.usage.total_tokens == 7


@pytest.mark.parametrize("thinking", ["hm", [{"type": "text", "text": "hm"}], [{"text": "hm"}]])
def test_mistrals_lists_of_text_and_thoughts(thinking: Any) -> None:
    parts = [{"type": "thinking", "thinking": thinking}, {"type": "reference", "ids": [1]}]
    call = {"id": "null", "index": 0, "function": {"name": "fs__read", "arguments": "{"}}
    rest = {"id": "null", "index": 0, "function": {"name": "", "arguments": "}"}}
    response = streamed(
        chunk({"content": [*parts, {"type": "text", "text": "Yes"}]}),
        chunk({"content": ["."]}),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [rest]}),
        chunk({"content": ""}, "model_length"),
    )
    assert (response.reasoning, response.message.text) == ("hm", "Yes.")
    assert response.finish_reason == "length"
    assert [call.arguments for call in response.message.tool_calls] == [{}]


def test_vllm_repeats_its_usage_and_ends_a_named_call_with_stop() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "fs__read", "arguments": "{}"}}
    response = streamed(
        chunk({"reasoning": "hm"}, usage={"prompt_tokens": 5, "completion_tokens": 1}),
        chunk({"tool_calls": [call]}, usage={"prompt_tokens": 5, "completion_tokens": 2}),
        chunk({}, "stop", usage={"prompt_tokens": 5, "completion_tokens": 3}),
    )
    assert response.finish_reason == "tool_calls"
    assert response.usage
    assert response.usage.total_tokens == 8
    assert response.raw
    assert response.raw["reasoning_field"] == "reasoning"


def test_ollama_whole_calls_a_separate_finish_and_a_cut_without_one() -> None:
    call = {"id": "call_x", "index": 0, "type": "function"}
    call |= {"function": {"name": "fs__read", "arguments": '{"path":"a"}'}}
    chunks = [chunk({"role": "assistant", "content": "", "reasoning": "hm"})]
    chunks += [chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]
    response = streamed(*chunks, {"choices": [], "usage": {"prompt_tokens": 1}})
    assert [made.arguments for made in response.message.tool_calls] == [{"path": "a"}]
    with pytest.raises(ModelError, match="cut"):
        streamed(*chunks[:2], done=False)


def test_geminis_calls_without_index_and_id_and_its_wrapped_error() -> None:
    call = {"id": "", "type": "function", "extra_content": {"google": {"thought_signature": "s"}}}
    function = {"name": "fs__read", "arguments": '{"path":"a"}'}
    other = {**call, "function": {**function, "arguments": '{"path":"b"}'}}
    for place in ({}, {"index": 0}):
        response = streamed(
            chunk({"tool_calls": [{**call, "function": function, **place}]}),
            chunk({"tool_calls": [{**other, **place}]}),
            chunk({"extra_content": {"google": {"thought_signature": "t"}}}, "stop"),
        )
        made = response.message.tool_calls
        assert [call.arguments for call in made] == [{"path": "a"}, {"path": "b"}]
        assert len({call.id for call in made}) == 2
        assert all(call.extra for call in made)
        assert response.raw
        assert response.raw["fields"]["extra_content"]["google"]["thought_signature"] == "t"
    error = [{"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}}]
    for body in (json.dumps(error), json.dumps(error, indent=2)):
        with pytest.raises(ModelError) as caught:
            streamed(chunk({"content": "Half"}), body.encode())
        assert (caught.value.code, caught.value.status) == ("LLM_HTTP_ERROR", 503)


@pytest.mark.parametrize(
    "event",
    [
        b'event: error\ndata: {"message": "busy", "type": "overloaded_error"}',
        b'event: error\ndata: {"error": {"message": "busy", "type": "overloaded_error"}}',
        b'{"error": {"message": "busy", "type": "overloaded_error"}}',
        b'data: {"error": {"message": "busy", "code": 529}, "choices": []}',
    ],
)
def test_an_error_in_a_stream_is_seen_in_every_form(event: bytes) -> None:
    with pytest.raises(ModelError, match="busy") as caught:
        streamed(event)
    assert (caught.value.status, caught.value.retryable) == (529, True)


def test_pings_and_unknown_events_are_signs_of_life() -> None:
    response = streamed(
        b"event: ping\ndata: ping",
        b"data: ",
        b"retry: 3",
        b"id: 1",
        b"data: {}",
        b'event: moderation\ndata: {"choices": [], "moderation": {}}',
        chunk({"content": "x"}, "stop"),
    )
    assert response.message.text == "x"


def test_chunks_on_lines_of_their_own_are_an_answer_too() -> None:
    chunks = [chunk({"content": "a"}), chunk({"content": "b"}, "stop")]
    reader = AnswerReader(AnswerFold(WireNames([]), provider="p", origin="o", model="m"))
    reader.feed("\n".join(map(json.dumps, chunks)).encode())
    assert "".join(item.content for item in reader.end()) == "ab"


def test_the_message_and_the_delta_of_one_choice_count_once() -> None:
    # Perplexity: the message so far stands beside each delta.
    response = streamed(
        {"choices": [{"delta": {"content": "One "}, "message": {"content": "One "}}]},
        {"choices": [{"delta": {"content": "two"}, "message": {"content": "One two"}}]},
        {"choices": [{"delta": {}, "message": {"content": "One two"}, "finish_reason": "stop"}]},
    )
    assert response.message.text == "One two"


def test_a_reason_that_nobody_knows_is_kept_as_it_was_said() -> None:
    response = streamed(chunk({"content": "x"}, "bored"))
    assert response.finish_reason == "stop"
    assert response.raw
    assert response.raw["finish_reason"] == "bored"


@pytest.mark.parametrize(
    ("usage", "completion", "total"),
    [
        ({"completion_tokens": 5, "total_tokens": 115, "reasoning": 100}, 105, 115),
        ({"completion_tokens": 0, "total_tokens": 0, "reasoning": 7}, 7, 17),
        ({"completion_tokens": 5, "total_tokens": 15, "reasoning": 4}, 5, 15),
    ],
    ids=["beside", "more than the completion", "within"],
)
def test_reasoning_is_within_the_completion(
    usage: dict[str, int], completion: int, total: int
) -> None:
    details = {"completion_tokens_details": {"reasoning_tokens": usage["reasoning"]}}
    found = usage_of({"prompt_tokens": 10, **usage, **details})
    assert found
    assert (found.completion_tokens, found.total_tokens) == (completion, total)
    assert usage_of({"prompt_tokens": 2, "cached_tokens": 9}) == usage_of(
        {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 2}}
    )
