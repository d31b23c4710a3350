"""Connections between two requests, waiting before a retry, and stops.

Nothing of one answer gets into the next; a wait is seen in every view while it lasts.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers.dialects import CHAT, DIALECTS, Dialect, chunked, completion, delta
from servers.hostile_cases import drips, refused, resets, then_fine, waits
from servers.hostile_server import Fault, HostileServer, Visit, answer, fine, whole

import nbagent
from nbagent.contracts import events
from nbagent.notebook.live_state import LiveState
from nbagent.notebook.plain_lines import PlainPrinter
from nbagent.notebook.static_html import html
from nbagent.notebook.view_state import view_of

_POISON = whole(completion("poisoned"))
_FINE = completion("fine")
_EVENTS = chunked(CHAT.stream(*CHAT.said("fine"))) + b"0\r\n\r\n"
_wires = pytest.mark.parametrize("wire", DIALECTS, ids=lambda wire: wire.name)


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_KEY", "sk-hostile-0123456789abcdefghij")


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


def agent_at(server: HostileServer, wire: Dialect = CHAT) -> nbagent.Agent:
    """An agent that asks the server on a wire."""
    return nbagent.Agent(
        model=wire.model, tools="none", base_url=server.url("it"), key_variable="HOSTILE_KEY"
    )


def ask(server: HostileServer, fault: Fault, wire: Dialect = CHAT, **options: Any) -> nbagent.Run:
    """One run that meets a fault."""
    server.faults["it"] = fault
    options.setdefault("timeout_s", 10)
    return agent_at(server, wire).run("hi", **options)


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
        pytest.param(_EARLY + whole(_FINE) + _POISON, id="after early hints"),
        pytest.param(whole(_FINE) + b"\r\n", id="an empty line"),
        pytest.param(
            CHAT.head("Content-Length: 7") + _EVENTS + _POISON,
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


@_wires
@pytest.mark.parametrize("stream", [True, False])
def test_bytes_after_an_answer_of_any_wire_never_answer_the_next_request(
    server: HostileServer, wire: Dialect, stream: bool
) -> None:
    async def poisons(visit: Visit) -> None:
        visit.keep = True
        await visit.send(answer(visit, "fine") + answer(visit, "poisoned"))

    assert ask(server, poisons, wire, stream=stream).text == "fine"
    assert ask(server, fine, wire, stream=stream).text == "fine"
    assert server.connections == 2


@_wires
@pytest.mark.parametrize("stream", [True, False])
def test_a_good_connection_is_used_again(
    server: HostileServer, wire: Dialect, stream: bool
) -> None:
    texts = [ask(server, fine, wire, stream=stream).text for _ in range(4)]
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


@_wires
@pytest.mark.parametrize(
    ("fault", "asked"),
    [(_ends_after_one, 2), (_closes_at_the_second, 3), (_resets_at_the_second, 3)],
    ids=["closed while idle", "closes when asked again", "resets when asked again"],
)
def test_an_idle_connection_that_died_costs_nothing(
    server: HostileServer, wire: Dialect, fault: Fault, asked: int
) -> None:
    seen: list[events.Event] = []
    assert ask(server, fault, wire).text == "fine"
    time.sleep(0.05)
    run = ask(server, fault, wire, on_event=seen.append)
    assert run.text == "fine"
    assert not [event for event in seen if isinstance(event, events.Retrying)]
    assert run.turns[0].model_ms < 400, "no pause"
    assert server.asked("it") == asked


def stopped_when(
    server: HostileServer, fault: Fault, ready: Callable[[events.Event], bool], wire: Dialect = CHAT
) -> tuple[nbagent.Run, float]:
    """A run that is stopped at an event, and the seconds from there to its end."""
    server.faults["it"] = fault
    at = threading.Event()
    run = agent_at(server, wire).start(
        "hi", on_event=lambda event: at.set() if ready(event) else None
    )
    assert at.wait(10)
    time.sleep(0.05)
    began = time.monotonic()
    run.stop()
    run.wait()
    return run, time.monotonic() - began


_PART = CHAT.head() + chunked(CHAT.stream(delta(content="part "), end=b""))


@pytest.mark.parametrize(
    ("fault", "ready", "text"),
    [
        (waits(), events.TurnStarted, ""),
        (drips(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), events.TurnStarted, ""),
        (drips(_PART, chunked(b": ping\n\n")), events.TextDelta, "part "),
        (kept(refused("429 X", "Retry-After: 30")), events.Retrying, ""),
        (kept(refused("500 X")), events.Retrying, ""),
    ],
    ids=["no reply", "headers drip", "pings", "told to wait", "backing off"],
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


@_wires
def test_a_stop_in_mid_stream_keeps_the_part_on_every_wire(
    server: HostileServer, wire: Dialect
) -> None:
    part = wire.head() + chunked(wire.stream(*wire.part("part "), end=b""))
    run, took_s = stopped_when(
        server, waits(part), lambda event: isinstance(event, events.TextDelta), wire
    )
    assert run.error
    assert run.error.code == "ENGINE_ABORTED"
    assert run.turns[0].text == "part "
    assert took_s < 1.0


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


@pytest.mark.parametrize(
    "url",
    [
        *("http://a..b/v1", f"http://{'x' * 70}.test/v1", "http://bad host/v1", "http://[::1/v1"),
        *("ftp://h/v1", "http://user:pw@h/v1", "http://h:port/v1", "http://"),
        *("http://127.0.0.1:0", "127.0.0.1:0/v1"),
    ],
)
def test_an_address_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(nbagent.UsageError):
        nbagent.Agent(model="openai:m", tools="none", base_url=url).run("hi")


@_wires
def test_two_answers_at_once_do_not_mix(server: HostileServer, wire: Dialect) -> None:
    async def own(visit: Visit) -> None:
        visit.keep = True
        words = re.findall(rb"number \d+", visit.body)[-1].decode()
        await asyncio.sleep(0.01)
        await visit.send(answer(visit, words))

    server.faults["it"] = own
    runs = [agent_at(server, wire).start(f"number {n}") for n in range(20)]
    assert [run.wait().text for run in runs] == [f"number {n}" for n in range(20)]


# Waiting before a request is made again.

BUSY = refused("429 X", "Retry-After: 0", message="slow down")


def again(server: HostileServer, *bad: bytes, **options: Any) -> nbagent.Run:
    """A run that is refused first."""
    return ask(server, then_fine(*bad), **options)


def test_two_refusals_without_a_wait_cost_no_time(server: HostileServer) -> None:
    run = again(server, BUSY, BUSY)
    assert run.text == "fine"
    response = run.turns[0].response
    assert response
    assert response.meta.attempts == 3
    assert response.meta.retry_wait_ms <= 50
    assert run.turns[0].model_ms < 500, "loosely: a pause would have been longer"


def test_a_wait_is_seen_in_the_live_picture_until_the_answer_comes(server: HostileServer) -> None:
    refusal = refused("429 X", "Retry-After: 0.3", message="slow\ndown")
    pictures: list[LiveState] = []
    said: list[tuple[str, str, str]] = []

    def see(event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            pictures.append(LiveState(event.run))
        ops = pictures[0].fold(event)
        picture = pictures[0].snapshot()
        said.append((type(event).__name__, picture["activity"], picture["doing"]))
        if isinstance(event, events.Retrying):
            assert [op for op in ops if op["op"] == "head"], "the front end is told"

    run = again(server, refusal, on_event=see)
    told = {name: (activity, doing) for name, activity, doing in said}
    activity, doing = told["Retrying"]
    assert activity.startswith("attempt 1 failed, again in 0.3 s · LLM_RATE_LIMITED")
    assert "slow down" in activity
    assert doing == "bad"
    assert told["TextDelta"] == ("", "model"), "over, it is not said any more"
    picture = view_of(run.record)
    assert "1 retry, waited 0.3 s" in " ".join(picture["turns"][0]["notices"])
    assert "retries and failures 0.3 s" in picture["bar_words"]
    assert "1 retry, waited" in html(picture), "the saved picture says so too"


def test_a_wait_is_a_plain_line_while_it_lasts(server: HostileServer) -> None:
    out = io.StringIO()
    printer = PlainPrinter(out.write)
    at: dict[str, float] = {}

    def see(event: events.Event) -> None:
        printer.handle(event)
        if "again in 0.3 s: LLM_HTTP_ERROR" in out.getvalue():
            at.setdefault("told", time.monotonic())
        if isinstance(event, events.TextDelta):
            at["answered"] = time.monotonic()

    again(server, refused("503 X", "Retry-After: 0.3", message="busy"), on_event=see)
    assert at["answered"] - at["told"] > 0.2


def test_a_run_that_gave_up_tells_its_attempts(server: HostileServer) -> None:
    run = again(server, BUSY, BUSY, BUSY)
    assert run.error
    assert run.error.code == "LLM_RATE_LIMITED"
    picture = view_of(run.record)
    told = " ".join(picture["turns"][0]["notices"])
    assert told.count("Trying again in 0.0 s") == 2


def test_a_wait_that_is_longer_than_the_time_allowed_returns_at_once(server: HostileServer) -> None:
    began = time.monotonic()
    run = again(server, refused("429 X", "Retry-After: 5"), timeout_s=2)
    assert time.monotonic() - began < 1
    assert run.error
    assert run.error.code == "LLM_RATE_LIMITED"
    assert server.asked("it") == 1


@_wires
def test_a_run_that_broke_after_its_first_token_can_be_resumed(
    server: HostileServer, wire: Dialect
) -> None:
    part = wire.head() + chunked(wire.stream(*wire.part("part "), end=b""))
    run = ask(server, resets(part), wire)
    assert (run.turns[0].text, server.asked("it")) == ("part ", 1)
    server.faults["it"] = fine
    assert run.resume().text == "fine"
