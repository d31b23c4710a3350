"""The fold of a Chat Completions answer: the assembler's rules, finish, usage, cut streams."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nbagent.contracts.chat import ChatChunk, ChatResponse, FinishReason, ResponseMeta, Usage
from nbagent.contracts.errors import ModelError
from nbagent.providers.names import WireNames
from nbagent.providers.openai.answer import AnswerFold
from nbagent.providers.openai.reader import AnswerReader
from nbagent.providers.openai.usage import usage_of


def fold_of(*tools: str) -> AnswerFold:
    return AnswerFold(WireNames(tools), provider="openai", origin="http://x:1", model="m")


def chunk(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "m1", "choices": [{"delta": delta, "finish_reason": finish}], **more}


def calls(*items: dict[str, Any]) -> dict[str, Any]:
    return chunk({"tool_calls": list(items)})


def folded(*chunks: dict[str, Any], tools: tuple[str, ...] = ("fs.read", "b")) -> ChatResponse:
    fold = fold_of(*tools)
    out: list[ChatChunk] = []
    for item in chunks:
        fold.take(item, out)
    return fold.response(ResponseMeta())


def sse(*chunks: Any, done: bool = True) -> bytes:
    body = b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in chunks)
    return body + (b"data: [DONE]\n\n" if done else b"")


def read(body: bytes, step: int | None = None) -> tuple[ChatResponse, list[ChatChunk]]:
    reader = AnswerReader(fold_of("fs.read"))
    shown: list[ChatChunk] = []
    for start in range(0, len(body), step or len(body) or 1):
        shown += reader.feed(body[start : start + (step or len(body))])
    shown += reader.end()
    return reader.fold.response(ResponseMeta()), shown


CALL = {"index": 0, "id": "c1", "function": {"name": "fs__read", "arguments": ""}}
STREAM = sse(
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Hm"}),
    chunk({"content": "Grüße \u2028 both"}),
    calls(CALL),
    calls({"index": 0, "function": {"arguments": '{"path":'}}),
    calls({"index": 0, "function": {"arguments": '"a"}'}}),
    chunk({}, "tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 9}},
)


@pytest.mark.parametrize("step", [1, 3, 7, None], ids=["1", "3", "7", "whole"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_stream_in_pieces_gives_the_same_answer(step: int | None, newline: bytes) -> None:
    body = b": keep-alive\n\n" + STREAM
    response, shown = read(b"\xef\xbb\xbf" + body.replace(b"\n", newline), step)
    assert response.message.text == "Grüße \u2028 both"
    assert response.message.reasoning == "Hm"
    assert response.message.tool_calls[0].name == "fs.read"
    assert response.message.tool_calls[0].arguments == {"path": "a"}
    assert response.finish_reason == "tool_calls"
    assert response.usage
    assert response.usage.total_tokens == 29
    assert "".join(item.content for item in shown) == response.message.text
    deltas = [item.tool_call_delta for item in shown if item.tool_call_delta]
    assert next((d.id, d.name) for d in deltas) == ("c1", "fs.read")
    assert "".join(d.arguments for d in deltas) == '{"path":"a"}'


def test_cut_at_every_byte_never_passes_for_an_answer() -> None:
    finish = STREAM.index(b'"finish_reason": "tool_calls"}]}') + len(
        b'"finish_reason": "tool_calls"}]}'
    )
    for end in range(finish):
        with pytest.raises(ModelError) as caught:
            read(STREAM[:end])
        assert caught.value.code == "LLM_BAD_RESPONSE"
    # Behind the finish reason only whole events may be missing: half of one may be an error.
    whole_events = {STREAM.index(b"\n\n", finish), STREAM.index(b"data: [DONE]"), len(STREAM)}
    for end in range(finish, len(STREAM) + 1):
        try:
            made = read(STREAM[:end])[0].message.tool_calls
        except ModelError:
            assert end not in whole_events
        else:
            assert made[0].arguments == {"path": "a"}


def test_a_text_is_whole_at_its_finish_reason_whatever_is_cut_behind_it() -> None:
    body = sse(chunk({"content": "x"}, "stop"), {"usage": {"prompt_tokens": 1}})
    for end in range(body.index(b"}]}") + 3, len(body) + 1):
        assert read(body[:end])[0].message.text == "x"


def test_clean_end_without_finish_reason_is_a_stop() -> None:
    assert read(sse(chunk({"content": "x"})))[0].finish_reason == "stop"


def test_what_follows_done_is_ignored() -> None:
    body = sse(chunk({"content": "x"}, "stop")) + sse(chunk({"content": "y"}))
    assert read(body)[0].message.text == "x"


def test_text_that_arrives_together_is_one_chunk() -> None:
    _, shown = read(sse(*[chunk({"content": "a"})] * 9, chunk({}, "stop")))
    assert [item.content for item in shown] == ["a" * 9]


@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        pytest.param(
            [
                {"index": 0, "id": "x", "function": {"name": "b", "arguments": "{}"}},
                {"index": 0, "id": "y", "function": {"name": "b", "arguments": "{}"}},
            ],
            [("x", "b", "{}"), ("y", "b", "{}")],
            id="every call has index 0",
        ),
        pytest.param(
            [
                {"id": "x", "function": {"name": "b", "arguments": '{"a"'}},
                {"function": {"arguments": ":1}"}},
                {"id": "y", "function": {"name": "b", "arguments": ""}},
            ],
            [("x", "b", '{"a":1}'), ("y", "b", "")],
            id="no index",
        ),
        pytest.param(
            [
                {"index": 3, "id": "x", "function": {"name": "b", "arguments": "{"}},
                {"index": 3, "id": "null", "function": {"name": "b", "arguments": "}"}},
                {"index": 3, "id": "", "function": {"name": "", "arguments": None}},
            ],
            [("x", "b", "{}")],
            id="gapped index, repeated name, null id",
        ),
        pytest.param(
            [{"index": 0, "id": "x", "function": {"name": "b", "arguments": {"a": 1}}}],
            [("x", "b", '{"a":1}')],
            id="arguments as an object",
        ),
        pytest.param(
            [
                {"index": 0, "id": "x", "function": {"name": "b"}},
                {"index": 1, "id": "x", "function": {"name": "b"}},
            ],
            [("x", "b", ""), ("x_2", "b", "")],
            id="duplicate id",
        ),
        pytest.param(
            [{"index": 0, "id": "x", "function": {"name": "functions.fs__read"}}],
            [("x", "fs.read", "")],
            id="leaked prefix",
        ),
        pytest.param(
            [{"index": 0, "id": "x", "function": {"name": "made_up"}}],
            [("x", "made_up", "")],
            id="unknown tool",
        ),
    ],
)
def test_calls_are_put_together(deltas: list[Any], expected: list[tuple[str, str, str]]) -> None:
    response = folded(*[calls(delta) for delta in deltas], chunk({}, "stop"))
    got = [(call.id, call.name, call.arguments_raw) for call in response.message.tool_calls]
    assert got == expected
    assert response.finish_reason == "tool_calls"


def test_missing_ids_are_made_and_differ() -> None:
    response = folded(
        calls({"function": {"name": "b", "arguments": "{}"}}),
        calls({"function": {"name": "b", "arguments": "{}"}}),
    )
    first, second = response.message.tool_calls
    assert first.id.startswith("call_")
    assert len(first.id) == len("call_") + 24
    assert first.id != second.id


def test_arguments_that_are_not_json_are_kept_as_written() -> None:
    call = folded(calls({**CALL, "function": {"name": "b", "arguments": "{oh"}}))
    assert call.message.tool_calls[0].arguments is None
    assert call.message.tool_calls[0].arguments_raw == "{oh"


def test_vendor_fields_of_a_call_are_kept() -> None:
    extra = {"google": {"thought_signature": "s"}}
    response = folded(calls({**CALL, "extra_content": extra}))
    assert response.message.tool_calls[0].extra == {"extra_content": extra}


def test_whole_message_in_the_last_chunk_counts_once() -> None:
    late = {"content": "ab", "tool_calls": [{"id": "x", "function": {"name": "b"}}]}
    last = {"choices": [{"delta": {}, "message": late, "finish_reason": "stop"}]}
    response = folded(chunk({"content": "ab"}), last)
    assert response.message.text == "ab"
    assert [call.id for call in response.message.tool_calls] == ["x"]


@pytest.mark.parametrize("empty", [{"choices": []}, {"choices": None}, chunk(None)])
def test_chunks_without_a_delta_are_skipped(empty: dict[str, Any]) -> None:
    assert folded(empty, chunk({"content": "x"}, "stop")).message.text == "x"


@pytest.mark.parametrize(
    ("wire", "has_text", "expected"),
    [
        ("stop", True, "stop"),
        ("eos", True, "stop"),
        ("tool_calls", True, "stop"),
        ("length", True, "length"),
        ("model_length", True, "length"),
        ("content_filter", False, "content_filter"),
        ("insufficient_system_resource", True, "error"),
        ("something_new", True, "stop"),
        ("something_new", False, "error"),
    ],
)
def test_finish_reasons_are_mapped(wire: str, has_text: bool, expected: FinishReason) -> None:
    assert folded(chunk({"content": "x" if has_text else ""}, wire)).finish_reason == expected


def test_a_refusal_is_text_and_a_filter() -> None:
    response = folded(chunk({"refusal": "I will not."}, "stop"))
    assert (response.message.text, response.finish_reason) == ("I will not.", "content_filter")


def test_both_reasoning_fields_count_once() -> None:
    response = folded(chunk({"reasoning": "a", "reasoning_content": "a"}, "stop"))
    assert response.message.reasoning == "a"
    assert response.raw
    assert response.raw["reasoning_field"] == "reasoning"


def test_reasoning_details_are_joined_for_the_way_back() -> None:
    part = {"type": "reasoning.text", "index": 0}
    response = folded(
        chunk({"reasoning_details": [{**part, "text": "a"}]}),
        chunk({"reasoning_details": [{**part, "text": "b", "signature": "s"}]}, "stop"),
    )
    kept = [{**part, "text": "ab", "signature": "s"}]
    assert response.raw
    assert response.raw["fields"] == {"reasoning_details": kept}


def test_content_lists_give_text_and_thoughts() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    response = folded(chunk({"content": [thinking, {"type": "text", "text": "yes"}]}, "stop"))
    assert (response.message.text, response.message.reasoning) == ("yes", "hm")


def test_newlines_before_the_first_word_are_dropped() -> None:
    assert folded(chunk({"content": "\n\n"}), chunk({"content": " a\n"})).message.text == "a\n"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ({"prompt_tokens": 3, "completion_tokens": 4}, (3, 4, 7, 0, 0)),
        ({"prompt_tokens": float("nan"), "completion_tokens": None}, (0, 0, 0, 0, 0)),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 5, "total_tokens": 9}, (9, 0, 9, 5, 0)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 8,
                "prompt_tokens_details": {"cached_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 6},
            },
            (9, 8, 17, 2, 6),
        ),
        ({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, 0, 9, 0, 0)),
    ],
)
def test_usage_is_read(usage: Any, expected: tuple[int, ...] | None) -> None:
    found = usage_of(usage)
    assert (tuple(found.model_dump().values()) if found else None) == expected


def test_usage_on_every_chunk_is_not_added_up() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1}
    response = folded(
        chunk({"content": "a"}, usage=usage),
        chunk({"content": "b"}, "stop", usage={**usage, "completion_tokens": 2}),
    )
    assert response.usage
    assert response.usage.total_tokens == 7


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="empty list"),
        pytest.param(b"{}", id="empty object"),
        pytest.param(b"<html>", id="html"),
        pytest.param(b'{"choices": []}', id="no choices"),
        pytest.param(b'{"choices": [{"message": 3}]}', id="wrong type"),
        pytest.param(b'{"choices": [{"message": {"content": 3}}]}', id="wrong content"),
        pytest.param(b'{"choices": [', id="cut json"),
        pytest.param(b'{"choices": "\xff"}', id="bad utf-8"),
        pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="too deep"),
        pytest.param(b"data: [DONE]\n\n", id="only an end"),
        pytest.param(b"data: {oops\n\n", id="bad event"),
        pytest.param(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', id="no end"),
    ],
)
def test_what_is_no_answer_is_a_bad_response(body: bytes) -> None:
    with pytest.raises(ModelError) as caught:
        read(body)
    assert caught.value.code == "LLM_BAD_RESPONSE"


def test_a_lone_surrogate_and_nan_are_accepted() -> None:
    body = b'data: {"choices":[{"delta":{"content":"a\\ud800b"},"finish_reason":"stop"}],'
    response, _ = read(body + b'"usage":{"prompt_tokens":NaN}}\n\n')
    assert response.message.text == "a\ufffdb"
    assert response.usage
    assert response.usage.total_tokens == 0


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        ({"message": "no", "type": "server_error", "code": None}, "LLM_HTTP_ERROR", True),
        ({"message": "busy", "code": 429}, "LLM_RATE_LIMITED", True),
        ({"message": "no", "code": "insufficient_quota"}, "LLM_QUOTA_EXCEEDED", False),
        ({"message": "no", "type": "overloaded_error"}, "LLM_HTTP_ERROR", True),
        ({"message": "no", "code": "context_length_exceeded"}, "LLM_CONTEXT_OVERFLOW", False),
        ({"message": "something"}, "LLM_BAD_RESPONSE", False),
        ("something", "LLM_BAD_RESPONSE", False),
    ],
)
def test_error_objects_inside_a_200_are_told_apart(error: Any, code: str, retryable: bool) -> None:
    for body in (sse({"error": error}), json.dumps({"error": error}).encode()):
        with pytest.raises(ModelError) as caught:
            read(body)
        assert (caught.value.code, caught.value.retryable) == (code, retryable)


@pytest.mark.parametrize("count", [2**53 + 1, 2**70, 10**400, 1e300, -5], ids=lambda n: str(n)[:9])
def test_a_token_count_that_nobody_can_believe_is_missing(count: Any) -> None:
    details = {"cached_tokens": count}
    found = usage_of({"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": count})
    assert found == Usage(prompt_tokens=7, completion_tokens=2, total_tokens=9)
    found = usage_of({"prompt_tokens": count, "prompt_tokens_details": details})
    assert found == Usage()
    assert usage_of({"total_tokens": 2**53}) == Usage(total_tokens=2**53)


@pytest.mark.parametrize("depth", [300, 1_000])
def test_arguments_as_an_object_that_is_nested_too_deeply_are_none(depth: int) -> None:
    arguments = '{"a":' + "[" * depth + "]" * depth + "}"
    body = json.dumps(chunk({"content": "Half.", "tool_calls": [CALL | {"function": "HERE"}]}))
    function = '{"name": "fs__read", "arguments": ' + arguments + "}"
    response, _ = read(b"data: " + body.replace('"HERE"', function).encode() + b"\n\ndata: [DONE]")
    (made,) = response.message.tool_calls
    assert (response.message.text, made.name, made.arguments) == ("Half.", "fs.read", None)
    assert json.loads(made.arguments_raw).startswith("arguments nested too deeply")
