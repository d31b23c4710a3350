"""The clients of offline models: steps of a script, and how the demo paces and counts."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncGenerator
from typing import Any

import pytest

import nbagent
from nbagent import offline
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ProviderConfig,
    Usage,
)
from nbagent.contracts.ports import ChatClient
from nbagent.providers.offline import (
    DELAY_VARIABLE,
    PROVIDER,
    ScriptedAnswer,
    call,
    delay,
    error,
    reasoning,
    script,
    step,
    text,
)
from nbagent.providers.offline.stream import estimate_tokens

DEMO = PROVIDER.open(ProviderConfig())


def request(prompt: str = "go", model: str = "x", **fields: Any) -> ChatRequest:
    return ChatRequest(model=model, messages=(Message.of("user", prompt),), **fields)


async def _collected(stream: AsyncGenerator[ChatChunk]) -> list[ChatChunk]:
    return [chunk async for chunk in stream]


def streamed(model: ChatClient, sent: ChatRequest | None = None) -> list[ChatChunk]:
    return asyncio.run(_collected(model.chat_stream(sent or request())))


def answered(model: ChatClient, sent: ChatRequest | None = None) -> ChatResponse:
    return asyncio.run(model.chat(sent or request()))


def test_steps_are_played_in_order_and_the_requests_are_kept() -> None:
    def three(sent: ChatRequest) -> str:
        return f"three after {len(sent.messages)}"

    def echo(sent: ChatRequest) -> ScriptedAnswer:
        return call("echo", said=sent.messages[0].text)

    usage = Usage(prompt_tokens=9, completion_tokens=4, total_tokens=13)
    steps = [
        "one",
        text("two"),
        three,
        call("orders", id=7),
        call("fs.read", {"path": "a.txt"}),
        step(text="so", reasoning="hm, well", calls=[call("a", x=1)], usage=usage),
        step(text="cut", finish_reason="length"),
        reasoning("only this", "and that"),
        echo,
    ]
    model = script(steps)
    responses = [answered(model, request(word)) for word in "abcdefghi"]
    texts = ["one", "two", "three after 1", "", "", "so", "cut", "and that", ""]
    assert [response.message.text for response in responses] == texts
    assert [response.reasoning for response in responses[5:8]] == ["hm, well", None, "only this"]
    assert (responses[5].usage, responses[6].finish_reason) == (usage, "length")
    calls = [made for response in responses for made in response.message.tool_calls]
    asked = [("orders", {"id": 7}), ("fs.read", {"path": "a.txt"}), ("a", {"x": 1})]
    assert [(made.name, made.arguments) for made in calls] == [*asked, ("echo", {"said": "i"})]
    assert len({made.id for made in calls}) == len(calls)
    assert {response.meta.source for response in responses} == {"offline"}
    assert "".join(sent.messages[0].text for sent in model.requests) == "abcdefghi"
    model.assert_complete()


def test_error_is_raised_with_its_code_and_wait_and_retries_are_told() -> None:
    broken = error("LLM_RATE_LIMITED", "slow down", retry_after_s=7, status=429, retries=2)
    model = script([broken, step(text="ok", retries=1)])
    told: list[ClientNotice] = []
    with pytest.raises(ModelError, match="slow down") as caught:
        asyncio.run(model.chat(request(), notify=told.append))
    found = caught.value
    assert (found.code, found.retry_after_s, found.status) == ("LLM_RATE_LIMITED", 7, 429)
    assert [(notice.kind, notice.attempt) for notice in told] == [("retry", 1), ("retry", 2)]
    assert told[0].error is not None
    assert told[0].error.code == "LLM_RATE_LIMITED"
    chunks = streamed(model)
    assert chunks[0].notice is not None
    assert chunks[-1].response is not None
    assert chunks[-1].response.meta.attempts == 2


@pytest.mark.timed
def test_delays_wait_before_a_step_and_between_the_pieces_of_streams_only() -> None:
    words = "one two three four five six"
    paced = script([words, words, text(pieces=["a", " b c ", "d"])], delay_ms=20)
    model = script([delay(0.05), delay(0.05), "late", step(text="later", wait_ms=100)])
    begun = monotonic_ms()
    streamed(paced)
    paced_ms = monotonic_ms() - begun
    assert paced_ms >= 6 * 20 * 0.95
    for client, expected, least_ms, most_ms in (
        (paced, words, 0, paced_ms),
        (model, "late", 95, 10_000),
        (model, "later", 95, 10_000),
    ):
        begun = monotonic_ms()
        assert answered(client).message.text == expected
        assert least_ms <= monotonic_ms() - begun < most_ms
    assert len(model.requests) == 2, "a delay takes no request"
    model.assert_complete()
    assert [chunk.content for chunk in streamed(paced) if chunk.content] == ["a", " b c ", "d"]


def test_running_out_of_steps_and_unused_ones_are_said() -> None:
    model = script(["one"], name="short")
    answered(model)
    with pytest.raises(ModelError, match=r"no step for request 2.*1 steps") as late:
        answered(model)
    assert (late.value.code, len(model.requests)) == ("LLM_BAD_RESPONSE", 2)
    model = script(["one", call("orders", id=7), error("LLM_TIMEOUT"), delay(2), lambda _: "x"])
    answered(model)
    with pytest.raises(AssertionError) as caught:
        model.assert_complete()
    said = str(caught.value)
    parts = ("step 2", "offline.call('orders', {'id': 7})", "LLM_TIMEOUT", "offline.delay(2)")
    assert [part for part in (*parts, "a function") if part not in said] == []
    assert "'one'" not in said
    with pytest.raises(ModelError, match="ZeroDivisionError"):
        answered(script([lambda _: str(1 // 0)]))


@pytest.mark.parametrize("name", ["", "demo", "two words", "a:b"], ids=repr)
def test_name_that_no_model_id_can_have_and_what_is_no_step_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        script(["one"], name=name)
    with pytest.raises(UsageError, match="step 2"):
        script(["one", 2])  # pyright: ignore[reportArgumentType]


def test_a_function_alone_answers_every_request() -> None:
    model = offline.script(lambda request: f"to {request.messages[-1].text}")
    agent = nbagent.Agent(model=model, tools=[], quiet=True)
    assert [agent.run(f"{n}").text for n in range(3)] == ["to 0", "to 1", "to 2"]
    model.assert_complete()
    elsewhere = pickle.loads(pickle.dumps(offline.script(len_of_prompt)))
    assert nbagent.Agent(model=elsewhere, tools=[], quiet=True).run("abc").text == "3"


def len_of_prompt(request: ChatRequest) -> str:
    return str(len(request.messages[-1].text))


@pytest.mark.parametrize("steps", ["a text", offline.text("an answer"), 3, None])
def test_a_script_of_no_list_is_refused(steps: Any) -> None:
    with pytest.raises(UsageError, match="give a list of steps, or one function"):
        offline.script(steps)


def test_scripts_stay_apart_and_an_unknown_one_names_what_there_is() -> None:
    first, second = script(["a"]), script(["b"])
    client = PROVIDER.open(ProviderConfig())
    assert answered(client, request(model=second.name)).message.text == "b"
    assert answered(client, request(model=first.name)).message.text == "a"
    script(["a"], name="known-one")
    with pytest.raises(ModelError, match=r"offline:demo, .*offline:known-one") as caught:
        answered(client, request(model="known-won"))
    assert caught.value.status == 404


# The demo's streams, its pace, its tokens and its limits.


@pytest.mark.timed
@pytest.mark.parametrize(("variable", "least_ms"), [("", 15), ("25", 25), ("-3", 15)])
def test_a_stream_is_paced_and_a_whole_answer_or_a_pace_of_zero_does_not_wait(
    variable: str, least_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DELAY_VARIABLE, "0")
    begun = monotonic_ms()
    streamed(DEMO, request("Count to 2000", "demo"))
    monkeypatch.setenv(DELAY_VARIABLE, variable)
    answered(DEMO, request("Count to 2000", "demo"))
    assert monotonic_ms() - begun < 2000 * 15 / 3
    begun = monotonic_ms()
    chunks = streamed(DEMO, request("Count to 5", "demo"))
    pieces = [chunk for chunk in chunks if chunk.content or chunk.reasoning]
    assert len(pieces) * least_ms * 0.95 <= monotonic_ms() - begun


def test_usage_is_four_characters_a_token_and_what_was_sent_before_is_cached() -> None:
    first = request("Hey " + "x" * 396, "demo", system_prompt="y" * 40)
    one = answered(DEMO, first)
    assert one.usage is not None
    assert (one.usage.prompt_tokens, one.usage.cached_tokens) == (100 + 10, 0)
    assert one.usage.reasoning_tokens == estimate_tokens(len(one.reasoning or ""))
    told = estimate_tokens(len(one.message.text)) + one.usage.reasoning_tokens
    assert (one.usage.completion_tokens, one.usage.total_tokens) == (told, 110 + told)
    messages = (*first.messages, one.message, Message.of("user", "And then?"))
    two = answered(DEMO, first.model_copy(update={"messages": messages}))
    assert two.usage is not None
    assert two.usage.prompt_tokens > two.usage.cached_tokens == one.usage.prompt_tokens


@pytest.mark.parametrize(
    ("limits", "text", "finish"),
    [
        ({"max_tokens": 5}, "1 2 3 4 5 6 7 8 9 10", "length"),
        ({"stop_sequences": ("11", "7 ")}, "1 2 3 4 5 6 ", "stop"),
    ],
)
def test_answer_ends_at_a_limit_and_says_so(limits: dict[str, Any], text: str, finish: str) -> None:
    response = answered(DEMO, request("Count to 100", "demo", **limits))
    assert (response.message.text, response.finish_reason) == (text, finish)
