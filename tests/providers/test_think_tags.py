"""Reasoning between tags at the beginning of an answer, and tags that are text."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from nbagent.contracts.chat import ChatChunk, ChatResponse, ResponseMeta
from nbagent.providers.names import WireNames
from nbagent.providers.openai.answer import AnswerFold
from nbagent.providers.openai.reader import AnswerReader
from nbagent.providers.openai.think_tags import ThinkTags

STEPS = (1, 3, 7, 1000)
CALL = {"index": 0, "id": "c", "function": {"name": "b", "arguments": "{}"}}


def answered(
    pieces: list[str], *, finish: str = "stop", think_tags: bool = True, **delta: Any
) -> tuple[ChatResponse, list[ChatChunk]]:
    fold = AnswerFold(WireNames(["b"]), provider="p", origin="o", model="m", think_tags=think_tags)
    deltas = [*({"content": piece} for piece in pieces), delta]
    chunks: list[Any] = [{"choices": [{"delta": item, "finish_reason": None}]} for item in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    reader, shown = AnswerReader(fold), list[ChatChunk]()
    for item in chunks:
        shown += reader.feed(b"data: " + json.dumps(item).encode() + b"\n\n")
    shown += reader.end()
    return fold.response(ResponseMeta()), shown


def cut(text: str, step: int) -> list[str]:
    return [text[at : at + step] for at in range(0, len(text), step)]


SPLIT = {
    "plain": ("<think>hm</think>Yes.", "hm", "Yes."),
    "lines": ("<think>\nhm\n\nso\n</think>\n\nYes.", "hm\n\nso", "Yes."),
    "blank before": ("\n \n<think>hm</think> Yes.", "hm", "Yes."),
    "empty": ("<think>\n\n</think>\n\nYes.", None, "Yes."),
    "another tag": ("<thinking>hm</thinking>Yes.", "hm", "Yes."),
    "gemini": ("<thought>hm</thought>Yes.", "hm", "Yes."),
    "almost closed inside": ("<think>a </thin b < / c</think>Yes.", "a </thin b < / c", "Yes."),
    "opened again inside": ("<think>a <think> b</think>Yes.", "a <think> b", "Yes."),
    "only thoughts": ("<think>hm</think>", "hm", ""),
    "a tag later is text": (
        "<think>hm</think>Use `<think>x</think>` so.",
        "hm",
        "Use `<think>x</think>` so.",
    ),
}
KEPT = [
    "Yes.",
    "",
    "<",
    "<th",
    "<thin air>",
    "<thinker>a</thinker>",
    "`<think>` is a tag",
    "```xml\n<think>x</think>\n```",
    "The tag <think>x</think> is for reasoning.",
    "<b><think>x</think></b>",
    "</think> closes it",
]


@pytest.mark.parametrize("case", SPLIT.values(), ids=SPLIT)
def test_reasoning_is_split_off_the_beginning(case: tuple[str, str | None, str]) -> None:
    text, thought, said = case
    for step in STEPS:
        response, shown = answered(cut(text, step))
        assert (response.message.reasoning, response.message.text) == (thought, said)
        assert "".join(chunk.content for chunk in shown) == said
        assert "".join(chunk.reasoning for chunk in shown) == (thought or "")
        assert response.raw is None, "it does not go back: templates drop old thoughts"


@pytest.mark.parametrize("text", KEPT)
def test_a_tag_anywhere_else_is_text(text: str) -> None:
    for step in STEPS:
        response, shown = answered(cut(text, step))
        assert (response.message.reasoning, response.message.text) == (None, text)
        assert "".join(chunk.content for chunk in shown) == text


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_tag_that_is_never_closed_was_the_answers_own_word(step: int) -> None:
    text = "<think> is what Qwen writes first."
    response, shown = answered(cut(text, step))
    assert (response.message.reasoning, response.message.text) == (None, text)
    assert "".join(chunk.content for chunk in shown) == text


def test_thoughts_that_took_all_the_room_stay_thoughts() -> None:
    response, _ = answered(["<think>so much to"], finish="length")
    assert (response.message.reasoning, response.message.text) == ("so much to", "")
    assert response.finish_reason == "length"


def test_thoughts_before_a_call_stay_thoughts() -> None:
    response, _ = answered(["<think>I look."], tool_calls=[CALL])
    assert (response.message.reasoning, response.message.text) == ("I look.", "")
    assert response.finish_reason == "tool_calls"


def test_a_server_that_gives_the_reasoning_apart_means_a_tag_as_text() -> None:
    fold = AnswerFold(WireNames([]), provider="p", origin="o", model="m")
    for delta in ({"reasoning_content": "hm"}, {"content": "<think>x</think>"}):
        fold.take({"choices": [{"delta": delta}]}, [])
    message = fold.response(ResponseMeta()).message
    assert (message.reasoning, message.text) == ("hm", "<think>x</think>")


def test_providers_that_never_write_tags_keep_them_as_text() -> None:
    response, _ = answered(["<think>a</think>b"], think_tags=False)
    assert (response.message.reasoning, response.message.text) == (None, "<think>a</think>b")


def test_a_whole_answer_is_split_like_a_stream() -> None:
    body = {"choices": [{"message": {"content": "<think>hm</think>\nYes."}}]}
    reader = AnswerReader(AnswerFold(WireNames([]), provider="p", origin="o", model="m"))
    reader.feed(json.dumps(body).encode())
    reader.end()
    message = reader.fold.response(ResponseMeta()).message
    assert (message.reasoning, message.text) == ("hm", "Yes.")


@pytest.mark.parametrize("begin", ["", "<think>", "<think>x"])
def test_a_flood_of_blank_lines_is_read_in_linear_time(begin: str) -> None:
    tags = ThinkTags()
    tags.feed(begin)
    start = time.process_time()
    for _ in range(30_000):
        tags.feed("\n")
    assert time.process_time() - start < 5
