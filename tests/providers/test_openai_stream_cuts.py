"""A stream that is cut anywhere is an error, its text is kept, and no tool call of it is run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
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
from nbagent.providers.retry import RetryPolicy


def chunk(delta: Any, finish: str | None = None) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(index: int, arguments: str, **more: str) -> dict[str, Any]:
    head = {"id": f"c{index}"} if more else {}
    function = {**more, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, **head, "function": function}]})


CHUNKS: list[dict[str, Any]] = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "Hm, "}),
    chunk({"content": "I look. \u2028"}),
    call(0, "", name="look"),
    call(0, '{"place":'),
    call(0, ' "a"}'),
    call(1, '{"place": "b"}', name="look"),
    chunk({}, "tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": 9}},
]
_CHUNKS = b": hello\n\n" + b"".join(
    b"data: " + json.dumps(item, ensure_ascii=False).encode() + b"\n\n" for item in CHUNKS
)
STREAM = _CHUNKS + b"data: [DONE]\n\n"
LAST = b'"finish_reason": "tool_calls"}]}'
"""Behind the finish reason only an event that did not come whole tells of a cut."""
END = STREAM.index(LAST) + len(LAST)
SAID = STREAM.index(b"I look.")


def read(body: bytes, step: int = 0) -> tuple[AnswerFold, list[ChatChunk]]:
    reader = AnswerReader(AnswerFold(WireNames(["look"]), provider="p", origin="o", model="m"))
    shown: list[ChatChunk] = []
    for start in range(0, len(body), step or len(body) or 1):
        shown += reader.feed(body[start : start + (step or len(body))])
    shown += reader.end()
    return reader.fold, shown


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_a_cut_at_any_byte_is_no_answer(newline: bytes) -> None:
    body = STREAM.replace(b"\n", newline)
    end = body.index(LAST) + len(LAST)
    for cut in range(end):
        with pytest.raises(ModelError) as caught:
            read(body[:cut])
        assert caught.value.code == "LLM_BAD_RESPONSE"
    failed = 0
    for cut in range(end, len(body) + 1):
        try:
            fold, _ = read(body[:cut])
        except ModelError:
            failed += 1
            continue
        calls = fold.response(ResponseMeta()).message.tool_calls
        assert [made.arguments for made in calls] == [{"place": "a"}, {"place": "b"}]
    events = body.split(newline * 2)
    inside = sum(len(event) - len(b"data: ") for event in events[-3:] if event)
    assert 0 < failed < inside + 2, "only a cut within an event is seen at a clean end"


@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_the_pieces_do_not_matter(step: int, newline: bytes) -> None:
    body = b"\xef\xbb\xbf" + STREAM.replace(b"\n", newline)
    fold, shown = read(body, step)
    whole, _ = read(body)
    response = fold.response(ResponseMeta())
    assert response == whole.response(ResponseMeta())
    assert response.message.text == "I look. \u2028"
    assert "".join(item.content for item in shown) == response.message.text


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_pieces_of_1_3_and_7_bytes_over_a_socket_are_one_answer(newline: bytes) -> None:
    body = b"\xef\xbb\xbf" + STREAM.replace(b"\n", newline)

    async def go(url: str) -> list[ChatChunk]:
        client = OpenAIClient(ProviderConfig(base_url=url))
        request = ChatRequest(
            model="m",
            messages=(Message.of("user", "hi"),),
            tools=(ToolSpec(name="look"),),
        )
        try:
            last: list[ChatChunk] = []
            for _ in range(3):
                last += [item async for item in client.chat_stream(request)][-1:]
            return last
        finally:
            await client.close()

    with ModelServer([Reply(raw=body, raw_pieces=step) for step in (1, 3, 7)]) as server:
        for item in asyncio.run(go(server.url)):
            assert item.response
            assert item.response.message.text == "I look. \u2028"
            made = [call.arguments for call in item.response.message.tool_calls]
            assert made == [{"place": "a"}, {"place": "b"}]
            assert item.response.usage


def test_a_cut_without_a_finish_reason_loses_even_whole_calls() -> None:
    without = [item for item in CHUNKS if not item["choices"] or item["choices"][0]["delta"]]
    body = b"".join(b"data: " + json.dumps(item).encode() + b"\n\n" for item in without)
    with pytest.raises(ModelError, match="cut"):
        read(body)
    fold, _ = read(body + b"data: [DONE]\n\n")
    assert fold.response(ResponseMeta()).finish_reason == "tool_calls", "a clean end is an end"


def test_a_whole_answer_that_is_cut_at_any_byte_is_no_answer() -> None:
    call = {"id": "c", "function": {"name": "look", "arguments": '{"place": "a"}'}}
    message = {"content": "Yes.", "tool_calls": [call]}
    body = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    for encoded in (json.dumps(body).encode(), json.dumps(body, indent=1).encode()):
        for cut in range(len(encoded)):
            with pytest.raises(ModelError) as caught:
                read(b"\n\n" + encoded[:cut])
            assert caught.value.code == "LLM_BAD_RESPONSE"
        assert read(b"\n\n" + encoded)[0].response(ResponseMeta()).message.tool_calls


def cuts(count: int) -> list[int]:
    return [END * n // count for n in range(1, count)] + [END - 1]


def test_a_run_whose_answer_is_cut_runs_no_tool_and_keeps_the_text() -> None:
    ran: list[str] = []

    def look(place: str) -> str:
        """Look."""
        ran.append(place)
        return "seen"

    places = cuts(16)
    replies = [Reply(raw=STREAM[:cut], raw_pieces=97) for cut in places]
    with ModelServer(replies) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[look])
        for cut in places:
            run = agent.run("Go.")
            assert run.error is not None
            assert (run.stop_reason, run.error.code) == ("error", "LLM_BAD_RESPONSE")
            assert run.text.strip() == ("I look." if cut > SAID + 80 else "")
            for tool_run in run.turns[0].tool_runs:
                assert tool_run.result is not None
                assert tool_run.result.error is not None
                assert tool_run.result.error.code == "E_INTERRUPTED"
        assert len(server.requests) == len(places), "a cut after the first token is not asked again"
        server.then(Reply(raw=STREAM), "Done.")
        assert agent.run("Go.").text == "Done."
    assert ran == ["a", "b"]


def test_a_body_shorter_than_it_says_is_an_error_at_any_offset() -> None:
    headers = {"Content-Length": str(len(STREAM))}

    async def go(url: str, places: list[int]) -> list[str]:
        config = ProviderConfig(base_url=url)
        client = OpenAIClient(config, retry=RetryPolicy(retries=0))
        request = ChatRequest(model="m", messages=(Message.of("user", "hi"),))
        codes: list[str] = []
        for _ in places:
            with pytest.raises(ModelError) as caught:
                async for item in client.chat_stream(request):
                    assert not item.done
            codes.append(caught.value.code)
        await client.close()
        return codes

    places = cuts(24)
    with ModelServer([Reply(raw=STREAM[:cut], headers=headers) for cut in places]) as server:
        codes = asyncio.run(go(server.url, places))
    assert set(codes) <= {"LLM_HTTP_ERROR", "LLM_BAD_RESPONSE"}
