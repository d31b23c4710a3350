"""Connections between two requests, and stops: nothing of one answer gets into the next."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.hostile_cases import drips, refused, waits
from servers.hostile_server import (
    Fault,
    HostileServer,
    Visit,
    chunked,
    completion,
    delta,
    fine,
    said,
    sse,
    stream_head,
    whole,
)

import nbagent
from nbagent.contracts import events

_POISON = whole(completion("poisoned"))
_FINE = completion("fine")


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


def ask(server: HostileServer, fault: Fault, **options: Any) -> nbagent.Run:
    """One run that meets a fault."""
    server.faults["it"] = fault
    options.setdefault("timeout_s", 10)
    agent = nbagent.Agent(model="openai:m", tools="none", base_url=server.url("it"))
    return agent.run("hi", **options)


def kept(*pieces: bytes) -> Fault:
    """Sends bytes and keeps the connection for the next request."""

    async def serve(visit: Visit) -> None:
        visit.keep = True
        await visit.send(*pieces)

    return serve


_EARLY = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(whole(_FINE) + _POISON, id="after a length"),
        pytest.param(_EARLY + whole(_FINE) + _POISON, id="after early hints"),
        pytest.param(whole(_FINE) * 2, id="the same answer again"),
        pytest.param(whole(_FINE) + b"\r\n", id="an empty line"),
        pytest.param(
            stream_head() + chunked(json.dumps(_FINE).encode()) + b"0\r\n\r\n" + _POISON,
            id="after chunks",
        ),
        pytest.param(
            stream_head() + chunked(sse(*said("fine"))) + b"0\r\n\r\n" + _POISON, id="after events"
        ),
        pytest.param(
            stream_head("Content-Length: 7") + chunked(sse(*said("fine"))) + b"0\r\n\r\n" + _POISON,
            id="after a length and chunks",
        ),
        pytest.param(refused("400 X") + _POISON, id="after an error"),
        pytest.param(b"HTTP/1.1 204 X\r\n\r\n" + _POISON, id="after no content"),
        pytest.param(
            b"HTTP/1.1 302 X\r\nContent-Length: 0\r\n\r\n" + _POISON, id="after a redirect"
        ),
    ],
)
def test_bytes_after_an_answer_never_answer_the_next_request(
    server: HostileServer, answer: bytes
) -> None:
    ask(server, kept(answer), stream=False)
    assert ask(server, fine, stream=False).text == "fine"
    assert server.connections == 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_good_connection_is_used_again(server: HostileServer, stream: bool) -> None:
    texts = [ask(server, fine, stream=stream).text for _ in range(4)]
    assert texts == ["fine"] * 4
    assert server.connections == 1


def test_a_connection_with_early_hints_is_used_again(server: HostileServer) -> None:
    for _ in range(3):
        assert ask(server, kept(_EARLY * 2 + whole(_FINE)), stream=False).text == "fine"
    assert server.connections == 1


async def _ends_after_one(visit: Visit) -> None:
    await fine(visit)
    visit.keep = False


async def _closes_at_the_second(visit: Visit) -> None:
    if visit.nth % 2:
        return await fine(visit)
    visit.keep = False
    return None


async def _resets_at_the_second(visit: Visit) -> None:
    if visit.nth % 2:
        return await fine(visit)
    return visit.reset()


@pytest.mark.parametrize(
    ("fault", "asked"),
    [(_ends_after_one, 2), (_closes_at_the_second, 3), (_resets_at_the_second, 3)],
    ids=["closed while idle", "closes when asked again", "resets when asked again"],
)
def test_an_idle_connection_that_died_costs_nothing(
    server: HostileServer, fault: Fault, asked: int
) -> None:
    seen: list[events.Event] = []
    assert ask(server, fault).text == "fine"
    time.sleep(0.05)
    run = ask(server, fault, on_event=seen.append)
    assert run.text == "fine"
    assert not [event for event in seen if isinstance(event, events.Retrying)]
    assert run.turns[0].model_ms < 400, "no pause"
    assert server.asked("it") == asked


def test_a_server_that_always_closes_is_not_asked_for_ever(server: HostileServer) -> None:
    ask(server, fine)

    async def close(visit: Visit) -> None:
        pass

    run = ask(server, close)
    assert run.error
    assert run.error.code == "LLM_HTTP_ERROR"
    assert server.asked("it") == 1 + 4


def stopped_when(
    server: HostileServer, fault: Fault, ready: Callable[[events.Event], bool]
) -> tuple[nbagent.Run, float]:
    """A run that is stopped at an event, and the seconds from there to its end."""
    server.faults["it"] = fault
    at = threading.Event()
    agent = nbagent.Agent(model="openai:m", tools="none", base_url=server.url("it"))
    run = agent.start("hi", on_event=lambda event: at.set() if ready(event) else None)
    assert at.wait(10)
    time.sleep(0.05)
    began = time.monotonic()
    run.stop()
    run.wait()
    return run, time.monotonic() - began


_PART = stream_head() + chunked(sse(delta(content="part "), end=b""))


@pytest.mark.parametrize(
    ("fault", "ready", "text"),
    [
        (waits(), events.TurnStarted, ""),
        (drips(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), events.TurnStarted, ""),
        (waits(_PART), events.TextDelta, "part "),
        (drips(_PART, chunked(b": ping\n\n")), events.TextDelta, "part "),
        (kept(refused("429 X", "Retry-After: 30")), events.Retrying, ""),
        (kept(refused("500 X")), events.Retrying, ""),
    ],
    ids=["no reply", "headers drip", "in mid-stream", "pings", "told to wait", "backing off"],
)
def test_a_stop_ends_at_once_and_keeps_the_part(
    server: HostileServer, fault: Fault, ready: type[events.Event], text: str
) -> None:
    run, took_s = stopped_when(server, fault, lambda event: isinstance(event, ready))
    assert run.error
    assert run.error.code == "ENGINE_ABORTED"
    assert "".join(turn.text for turn in run.turns) == text
    assert took_s < 1.0
    assert ask(server, fine).text == "fine"


def test_a_refused_connection_is_named(server: HostileServer) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        run = nbagent.Agent(model="openai:m", tools="none", base_url=address).run("hi")
    assert run.error
    assert run.error.code == "LLM_HTTP_ERROR"
    assert run.error.message.endswith("is it running?")
    assert run.turns[0].notices, "both retries are told"


def test_a_full_backlog_is_a_timeout(server: HostileServer) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting: list[socket.socket] = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            waiting.append(filler)
        address = f"http://127.0.0.1:{full.getsockname()[1]}/v1"
        began = time.monotonic()
        agent = nbagent.Agent(model="openai:m", tools="none", base_url=address, timeout_s=0.5)
        run = agent.run("hi")
        took_s = time.monotonic() - began
        for filler in waiting:
            filler.close()
    assert run.error
    assert run.error.code == "LLM_TIMEOUT"
    assert took_s < 1.0


def _resolver(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], list[Any]], names: list[str]
) -> None:
    """Put a resolver of our own in place of the system's, which would ask the network."""

    def resolve(host: str, *_: Any, **__: Any) -> list[Any]:
        names.append(host)
        return answer()

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.mark.parametrize(
    ("number", "asked"), [(socket.EAI_NONAME, 1), (socket.EAI_AGAIN, 3)], ids=["none", "later"]
)
def test_a_name_that_is_not_found_is_named(
    monkeypatch: pytest.MonkeyPatch, number: int, asked: int
) -> None:
    names: list[str] = []

    def fails() -> list[Any]:
        raise socket.gaierror(number, "Name or service not known")

    _resolver(monkeypatch, fails, names)
    run = nbagent.Agent(model="openai:m", tools="none", base_url="http://models.test/v1").run("hi")
    assert run.error
    assert run.error.code == "LLM_HTTP_ERROR"
    assert "models.test" in run.error.message
    assert run.error.message.endswith("check it.")
    assert names == ["models.test"] * asked


def test_a_resolver_that_hangs_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    release = threading.Event()

    def hangs() -> list[Any]:
        release.wait(10)
        return []

    _resolver(monkeypatch, hangs, names)
    agent = nbagent.Agent(model="openai:m", tools="none", timeout_s=0.5)
    began = time.monotonic()
    run = agent.run("hi", base_url="http://models.test/v1")
    took_s = time.monotonic() - began
    release.set()
    assert run.error
    assert run.error.code == "LLM_TIMEOUT"
    assert took_s < 1.0


@pytest.mark.parametrize("host", ["a..b", "x" * 70 + ".test", "bad host", "[::1"])
def test_a_host_that_is_none_is_a_usage_error(host: str) -> None:
    with pytest.raises(nbagent.UsageError):
        nbagent.Agent(model="openai:m", tools="none", base_url=f"http://{host}/v1").run("hi")


def test_two_answers_at_once_do_not_mix(server: HostileServer) -> None:
    async def own(visit: Visit) -> None:
        visit.keep = True
        words = visit.json["messages"][-1]["content"]
        await asyncio.sleep(0.01)
        await visit.send(stream_head(), chunked(sse(*said(words))), b"0\r\n\r\n")

    server.faults["it"] = own
    agent = nbagent.Agent(model="openai:m", tools="none", base_url=server.url("it"))
    runs = [agent.start(f"number {n}") for n in range(20)]
    assert [run.wait().text for run in runs] == [f"number {n}" for n in range(20)]
