"""nbagent.offline.script: every kind of step, what is recorded, and what is said when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator

import pytest

from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    Message,
    ProviderConfig,
    Usage,
)
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.ports import ChatClient
from nbagent.providers.offline import (
    PROVIDER,
    Step,
    call,
    delay,
    error,
    reasoning,
    script,
    step,
    text,
)


def request(prompt: str = "go", model: str = "x") -> ChatRequest:
    return ChatRequest(model=model, messages=(Message.of("user", prompt),))


async def _collected(stream: AsyncGenerator[ChatChunk]) -> list[ChatChunk]:
    return [chunk async for chunk in stream]


def streamed(model: ChatClient, sent: ChatRequest | None = None) -> list[ChatChunk]:
    return asyncio.run(_collected(model.chat_stream(sent or request())))


def answered(model: ChatClient, sent: ChatRequest | None = None) -> ChatResponse:
    return asyncio.run(model.chat(sent or request()))


def test_steps_are_played_in_order_and_the_requests_are_kept() -> None:
    model = script(["one", text("two"), lambda sent: f"three after {len(sent.messages)}"])
    assert [answered(model, request(word)).message.text for word in "abc"] == [
        "one",
        "two",
        "three after 1",
    ]
    assert [sent.messages[0].text for sent in model.requests] == ["a", "b", "c"]
    model.assert_complete()


def test_given_pieces_are_streamed_as_they_are() -> None:
    chunks = streamed(script([text(pieces=["a", " b c ", "d"])]))
    assert [chunk.content for chunk in chunks if chunk.content] == ["a", " b c ", "d"]
    assert chunks[-1].response is not None
    assert chunks[-1].response.message.text == "a b c d"


def test_call_takes_its_arguments_by_name_or_as_a_mapping() -> None:
    model = script([call("orders", id=7), call("fs.read", {"path": "a.txt"}), call("now")])
    made = [answered(model).message.tool_calls[0] for _ in range(3)]
    assert [(one.name, one.arguments) for one in made] == [
        ("orders", {"id": 7}),
        ("fs.read", {"path": "a.txt"}),
        ("now", {}),
    ]
    assert len({one.id for one in made}) == 3


def test_step_combines_reasoning_text_calls_usage_and_finish_reason() -> None:
    usage = Usage(prompt_tokens=9, completion_tokens=4, total_tokens=13)
    model = script(
        [
            step(text="so", reasoning="hm, well", calls=[call("a", x=1)], usage=usage),
            step(text="cut", finish_reason="length"),
            reasoning("only this", "and that"),
        ]
    )
    chunks = streamed(model)
    assert "".join(chunk.reasoning for chunk in chunks) == "hm, well"
    first = chunks[-1].response
    assert first is not None
    assert (first.message.text, first.reasoning, first.usage) == ("so", "hm, well", usage)
    assert first.meta.source == "offline"
    assert answered(model).finish_reason == "length"
    last = answered(model)
    assert (last.reasoning, last.message.text) == ("only this", "and that")


def test_error_step_raises_with_its_code_and_wait() -> None:
    model = script([error("LLM_RATE_LIMITED", "slow down", retry_after_s=7, status=429)])
    with pytest.raises(ModelError, match="slow down") as caught:
        answered(model)
    assert caught.value.code == "LLM_RATE_LIMITED"
    assert caught.value.retry_after_s == 7
    assert caught.value.status == 429


def test_retries_are_told_before_the_error_and_before_an_answer() -> None:
    model = script([error("LLM_TIMEOUT", "late", retries=2), step(text="ok", retries=1)])
    told: list[ClientNotice] = []
    with pytest.raises(ModelError):
        asyncio.run(model.chat(request(), notify=told.append))
    assert [(notice.kind, notice.attempt) for notice in told] == [("retry", 1), ("retry", 2)]
    assert told[0].error is not None
    assert told[0].error.code == "LLM_TIMEOUT"
    chunks = streamed(model)
    assert chunks[0].notice is not None
    assert chunks[-1].response is not None
    assert chunks[-1].response.meta.attempts == 2


def test_delay_waits_before_the_next_step_and_takes_no_request() -> None:
    model = script([delay(0.05), delay(0.05), "late", step(text="later", wait_ms=100)])
    for expected in ("late", "later"):
        begun = monotonic_ms()
        assert answered(model).message.text == expected
        assert monotonic_ms() - begun >= 95
    assert len(model.requests) == 2
    model.assert_complete()


def test_delay_between_pieces_holds_for_streams_only() -> None:
    words = "one two three four five six"
    model = script([words, words], delay_ms=20)
    begun = monotonic_ms()
    streamed(model)
    paced_ms = monotonic_ms() - begun
    assert paced_ms >= 6 * 20 * 0.95
    begun = monotonic_ms()
    answered(model)
    assert monotonic_ms() - begun < paced_ms


def test_running_out_of_steps_says_how_many_there_were() -> None:
    model = script(["one"], name="short")
    answered(model)
    with pytest.raises(ModelError, match="offline:short has no step for request 2") as caught:
        answered(model)
    assert caught.value.code == "LLM_BAD_RESPONSE"
    assert "1 steps" in caught.value.message
    assert len(model.requests) == 2


def test_unused_steps_are_named() -> None:
    model = script(["one", call("orders", id=7), error("LLM_TIMEOUT"), delay(2), lambda _: "x"])
    answered(model)
    with pytest.raises(AssertionError) as caught:
        model.assert_complete()
    said = str(caught.value)
    for fragment in (
        "step 2",
        "offline.call('orders', {'id': 7})",
        "LLM_TIMEOUT",
        "offline.delay(2)",
        "a function",
    ):
        assert fragment in said
    assert "'one'" not in said


def test_function_may_give_a_step_and_its_error_is_a_model_error() -> None:
    def fail(sent: ChatRequest) -> Step:
        raise LookupError(sent.messages[0].text)

    model = script([lambda sent: call("echo", said=sent.messages[0].text), fail])
    assert answered(model, request("hi")).message.tool_calls[0].arguments == {"said": "hi"}
    with pytest.raises(ModelError, match="LookupError: why"):
        answered(model, request("why"))


def test_what_is_no_step_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="step 2"):
        script(["one", 2])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["", "demo", "two words", "a:b"], ids=repr)
def test_name_that_no_model_id_can_have_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        script(["one"], name=name)


def test_scripts_without_a_name_are_numbered_and_stay_apart() -> None:
    first, second = script(["a"]), script(["b"])
    assert first.name != second.name
    client = PROVIDER.open(ProviderConfig())
    assert answered(client, request(model=second.name)).message.text == "b"
    assert answered(client, request(model=first.name)).message.text == "a"


def test_unknown_model_names_what_there_is() -> None:
    script(["a"], name="known-one")
    client = PROVIDER.open(ProviderConfig())
    with pytest.raises(ModelError, match=r"offline:demo, .*offline:known-one") as caught:
        answered(client, request(model="known-won"))
    assert caught.value.status == 404


def test_many_threads_share_one_script_without_losing_a_step() -> None:
    model = script([str(number) for number in range(80)])
    got: list[str] = []

    def work() -> None:
        for _ in range(10):
            got.append(answered(model).message.text)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got, key=int) == [str(number) for number in range(80)]
    assert len(model.requests) == 80
    model.assert_complete()
