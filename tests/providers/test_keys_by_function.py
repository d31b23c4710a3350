"""Keys that a function returns: called for each request, never shown, and wrong in many ways."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.model import ChatRequest, ProviderConfig
from nbagent.contracts.secrets import SecretKey, redact
from nbagent.providers.catalogue import find_provider
from nbagent.providers.rate_limits import Limiter, export_limits

SECRET = "sk-canary-0123456789abcdef"


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer(["One.", "Two.", "Three."]) as server:
        yield server


def keys_of(server: ModelServer) -> list[str | None]:
    return [request.headers.get("authorization") for request in server.requests]


def rotating() -> Callable[[], str]:
    numbers = iter(range(99))
    return lambda: f"sk-number-{next(numbers)}-0123456789"


def test_each_request_of_a_run_carries_the_key_of_that_moment(server: ModelServer) -> None:
    agent = nbagent.Agent("openai:m", api_key=rotating(), base_url=server.url, retries=0)
    run = agent.run("Go.")
    run.resume("And on.").raise_for_error()
    agent.run("Anew.").raise_for_error()
    assert keys_of(server) == [f"Bearer sk-number-{n}-0123456789" for n in range(3)]


@pytest.mark.parametrize("refusals", [1, 2])
def test_a_function_is_asked_once_more_when_the_server_refuses_its_key(refusals: int) -> None:
    refusal = Reply(status=401, error={"error": {"message": "expired"}})
    with ModelServer([*[refusal] * refusals, "One."]) as server:
        run = nbagent.Agent("openai:m", api_key=rotating(), base_url=server.url, retries=0).run(
            "Go"
        )
        assert keys_of(server) == [f"Bearer sk-number-{n}-0123456789" for n in range(2)]
    assert run.ok == (refusals == 1)
    assert (run.error.code if run.error else "") == ("" if run.ok else "LLM_AUTH_FAILED")


def test_a_refused_key_that_is_a_text_is_sent_once() -> None:
    refusal = Reply(status=401, error={"error": {"message": "no"}})
    with ModelServer([refusal] * 2) as server:
        config = ProviderConfig(api_key=SECRET, base_url=server.url)

        async def ask() -> None:
            client = find_provider("openai").open(config)
            with pytest.raises(ModelError):
                message = nbagent.Message.of("user", "Hi")
                await client.chat(ChatRequest(model="m", messages=(message,)))
            await client.close()

        asyncio.run(ask())
        assert len(server.requests) == 1


async def coroutine() -> str:
    await asyncio.sleep(0)
    return SECRET


class Credentials:
    def token(self) -> str:
        return SECRET


class Text(str):
    def strip(self, chars: str | None = None) -> str:
        raise ValueError(str(self))


GOOD: dict[str, Any] = {
    "a function": lambda: SECRET,
    "a coroutine function": coroutine,
    "a bound method": Credentials().token,
    "a partial function": functools.partial(str, SECRET),
    "a SecretKey": lambda: SecretKey(SECRET),
    "a text of its own class": lambda: Text(SECRET),
    "with its scheme": lambda: f"Bearer {SECRET}",
    "with a line break": lambda: f"{SECRET}\n",
    "from another thread's point of view": lambda: (
        SECRET if threading.current_thread().name == "nbagent-key" else ""
    ),
    "the text itself": SECRET,
}


@pytest.mark.parametrize("key", GOOD.values(), ids=GOOD)
def test_a_key_of_any_form_is_sent_and_hidden(key: Any, server: ModelServer) -> None:
    config = ProviderConfig(api_key=key, base_url=server.url, retries=0)
    assert SECRET not in repr(config)

    async def ask() -> str:
        client = find_provider("openai").open(config)
        request = ChatRequest(model="m", messages=(nbagent.Message.of("user", "Hi"),))
        answer = await client.chat(request)
        await client.close()
        return answer.message.text

    assert asyncio.run(ask()) == "One."
    assert keys_of(server) == [f"Bearer {SECRET}"]
    assert SECRET not in redact(f"the key {SECRET} leaks")


def raising(error: BaseException) -> Callable[[], str]:
    def get() -> str:
        raise error

    return get


# id: function, code, words of the message.
BAD: dict[str, tuple[Any, str, str]] = {
    "raises": (raising(ValueError(f"bad {SECRET}")), "LLM_AUTH_FAILED", "failed (ValueError)"),
    "exits": (raising(SystemExit(SECRET)), "LLM_AUTH_FAILED", "failed (SystemExit)"),
    "interrupts": (raising(KeyboardInterrupt()), "LLM_AUTH_FAILED", "failed (KeyboardInterrupt)"),
    "returns nothing": (lambda: None, "LLM_AUTH_FAILED", "returned NoneType"),
    "returns an empty text": (lambda: " ", "LLM_AUTH_FAILED", "returned an empty text"),
    "returns bytes": (lambda: SECRET.encode(), "LLM_AUTH_FAILED", "returned bytes"),
    "returns no ASCII": (lambda: "schlüssel-0123456789", "LLM_AUTH_FAILED", "characters"),
    "returns two lines": (lambda: "sk-1\nX-Other: 1", "LLM_AUTH_FAILED", "characters"),
}


@pytest.mark.parametrize(("function", "code", "words"), BAD.values(), ids=BAD)
def test_a_function_without_a_key_ends_the_run_in_one_clear_line(
    function: Any, code: str, words: str, server: ModelServer
) -> None:
    run = nbagent.Agent("openai:m", api_key=function, base_url=server.url).run("Go.")
    assert run.error
    assert (run.error.code, server.requests) == (code, [])
    assert words in run.error.message
    assert run.error.message.isprintable()
    assert SECRET not in f"{run.error!r} {run.record!r}"


def test_a_function_that_blocks_holds_neither_other_runs_nor_the_deadline(
    server: ModelServer,
) -> None:
    release, called = threading.Event(), threading.Event()

    def block() -> str:
        called.set()
        release.wait(60)
        return SECRET

    agent = nbagent.Agent("openai:m", api_key=block, base_url=server.url)
    blocked = agent.start("Go.")
    assert called.wait(20)
    assert nbagent.Agent("openai:m", base_url=server.url).run("Others go on.").ok
    blocked.stop()
    assert blocked.wait().stop_reason == "stopped"
    late = nbagent.Agent("openai:m", api_key=block, base_url=server.url, timeout_s=0.2).run("Go.")
    release.set()
    assert late.error
    assert (late.error.code, "in time" in late.error.message) == ("LLM_TIMEOUT", True)
    assert len(server.requests) == 1


def test_a_limit_of_one_key_does_not_hold_the_next_ones() -> None:
    limited = Reply(status=429, error={"error": {"message": "slow"}}, headers={"Retry-After": "50"})
    new_key, together = rotating(), threading.Barrier(6)

    def key() -> str:
        text = new_key()
        if "-0-" not in text:
            together.wait(20)  # A request that is alone is sent in spite of a limit.
        return text

    with ModelServer([limited, *["Two."] * 6]) as server:
        agent = nbagent.Agent("openai:m", api_key=key, base_url=server.url, retries=0, timeout_s=20)
        first = agent.run("Go.")
        later = [agent.start("Go.") for _ in range(6)]
        assert [run.wait().text for run in later] == ["Two."] * 6
        assert first.error
        assert first.error.code == "LLM_RATE_LIMITED"
        assert export_limits()


def test_limiters_of_keys_that_are_not_used_any_more_are_forgotten() -> None:
    first = Limiter.shared("https://h", SecretKey("sk-first-0123456789"))
    for n in range(600):
        Limiter.shared("https://h", SecretKey(f"sk-{n}-0123456789"))
    assert Limiter.shared("https://h", SecretKey("sk-599-0123456789"))
    assert Limiter.shared("https://h", SecretKey("sk-first-0123456789")) is not first


@pytest.mark.parametrize("other", [{"model": "groq:m"}, {"model": "openai-compatible:m"}, {}])
def test_the_key_goes_to_no_other_server(other: dict[str, str], server: ModelServer) -> None:
    with ModelServer(["Others."] * 2) as second:
        agent = nbagent.Agent("openai:m", api_key=lambda: SECRET, base_url=server.url, retries=0)
        others: dict[str, Any] = {**other, "base_url": second.url}
        agent.run("Go.", **others).raise_for_error()
        agent.run("Go.").resume("On.", **others)
        agent.run("Go.", model="mistral:m").raise_for_error()
    assert keys_of(second) == [None, None]
    assert keys_of(server) == [f"Bearer {SECRET}", None]


def test_a_dry_run_says_that_a_function_is_asked_and_does_not_ask() -> None:
    agent = nbagent.Agent("openai:m", api_key=raising(AssertionError()), base_url="http://h/v1")
    dry = agent.dry_run("Go.")
    assert (dry.key, "that a function returns" in str(dry)) == ("function", True)


# arguments: words of the error.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a text": ({"model": "openai:m", "api_key": SECRET}, "environment variable"),
    "no model beside it": ({"api_key": lambda: SECRET}, "needs model="),
    "a number": ({"model": "openai:m", "api_key": 7}, "environment variable"),
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_function_is_refused_without_showing_it(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        nbagent.Agent(**arguments)
    assert SECRET not in str(caught.value)


def test_a_client_takes_a_function_too(server: ModelServer) -> None:
    async def ask() -> list[str | None]:
        for function in (rotating(), lambda: SECRET):
            client = nbagent.client("openai:m", api_key=function, base_url=server.url)
            await client.chat("Hi")
        with pytest.raises(ModelError, match=r"failed \(ZeroDivisionError\)"):
            await nbagent.client(
                "openai:m", api_key=raising(ZeroDivisionError()), base_url=server.url
            ).chat("Hi")
        return keys_of(server)

    assert asyncio.run(ask()) == ["Bearer sk-number-0-0123456789", f"Bearer {SECRET}"]


@pytest.mark.parametrize("key", [SECRET, 5, b"key", ["key"]], ids=repr)
def test_a_key_that_is_no_function_is_refused_with_the_way_to_give_one(key: Any) -> None:
    for call in (
        lambda: nbagent.Agent("openai:m", api_key=key),
        lambda: nbagent.Agent("openai:m").start("Go.", api_key=key),
    ):
        with pytest.raises(UsageError, match="give a function that returns the key") as caught:
            call()
        assert "OPENAI_API_KEY" in caught.value.message
        assert SECRET not in str(caught.value)
