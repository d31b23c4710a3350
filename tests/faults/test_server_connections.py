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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from servers.dialects import CHAT, DIALECTS, Dialect, chunked, completion
from servers.hostile_cases import drips, refused, then_fine, waits
from servers.hostile_server import Fault, HostileServer, answer, fine, whole
from servers.loopback import Visit

import nbagent
from nbagent.contracts import events
from nbagent.view.live import LivePicture
from nbagent.view.node import text_of
from nbagent.view.printers import html
from nbagent.view.run_picture import picture
from nbagent.view.terminal import PlainPrinter

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


async def _two_answers(visit: Visit) -> None:
    visit.keep = True
    await visit.send(answer(visit, "fine") + answer(visit, "poisoned"))


ON_CHAT: dict[str, Fault] = {
    "after early hints": kept(_EARLY + whole(_FINE) + _POISON),
    "an empty line": kept(whole(_FINE) + b"\r\n"),
    "after a length and chunks": kept(CHAT.head("Content-Length: 7") + _EVENTS + _POISON),
    "after an error": kept(refused("400 X") + _POISON),
    "after no content": kept(b"HTTP/1.1 204 X\r\n\r\n" + _POISON),
    "after a redirect": kept(b"HTTP/1.1 302 X\r\nContent-Length: 0\r\n\r\n" + _POISON),
}
FORMS = [(wire, stream) for wire in DIALECTS for stream in (True, False)]
FORM_IDS = [f"{wire.name}-{'stream' if stream else 'whole'}" for wire, stream in FORMS]


@pytest.mark.parametrize(
    ("wire", "stream", "surplus"),
    [
        *(pytest.param(CHAT, False, surplus, id=name) for name, surplus in ON_CHAT.items()),
        *((*form, _two_answers) for form in FORMS),
    ],
)
def test_bytes_after_an_answer_never_answer_the_next_request(
    server: HostileServer, wire: Dialect, stream: bool, surplus: Fault
) -> None:
    first = ask(server, surplus, wire, stream=stream)
    assert surplus is not _two_answers or first.text == "fine"
    assert ask(server, fine, wire, stream=stream).text == "fine"
    assert server.connections == 2


@pytest.mark.parametrize(
    ("wire", "stream", "good"),
    [*((*form, fine) for form in FORMS), (CHAT, False, kept(_EARLY * 2 + whole(_FINE)))],
    ids=[*FORM_IDS, "early hints"],
)
def test_a_good_connection_is_used_again(
    server: HostileServer, wire: Dialect, stream: bool, good: Fault
) -> None:
    texts = [ask(server, good, wire, stream=stream).text for _ in range(4)]
    assert texts == ["fine"] * 4
    assert server.connections == 1


async def _ends_after_one(visit: Visit) -> None:
    await fine(visit)
    visit.keep = False


def _dies_at_the_second(*, resets: bool) -> Fault:
    async def serve(visit: Visit) -> None:
        if visit.nth % 2:
            return await fine(visit)
        visit.keep = False
        return visit.reset() if resets else None

    return serve


@_wires
@pytest.mark.parametrize(
    ("fault", "asked"),
    [
        (_ends_after_one, 2),
        (_dies_at_the_second(resets=False), 3),
        (_dies_at_the_second(resets=True), 3),
    ],
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
    response = run.turns[0].response
    assert response
    assert response.meta.retry_wait_ms == 0, "no pause"
    assert server.asked("it") == asked


def _together(runs: int) -> Fault:
    """Answers when so many requests are there, each on a connection; closes at the next request."""
    waiting: set[int] = set()
    everyone = asyncio.Event()

    async def serve(visit: Visit) -> None:
        if visit.connection in waiting:
            visit.keep = False
            return
        if len(waiting) < runs:
            waiting.add(visit.connection)
            if len(waiting) == runs:
                everyone.set()
            await everyone.wait()
        await fine(visit)

    return serve


def test_many_idle_connections_that_died_cost_no_attempt(server: HostileServer) -> None:
    """A loaded server closes the connections of many runs late; the next run meets them all."""
    runs, fault = 8, _together(8)
    with ThreadPoolExecutor(runs) as threads:
        firsts = [threads.submit(ask, server, fault) for _ in range(runs)]
        assert {first.result().text for first in firsts} == {"fine"}
    assert server.connections == runs
    run = ask(server, fault)
    assert (run.text, run.turns[0].attempts, run.turns[0].notices) == ("fine", 1, ())
    assert server.asked("it") == runs + 2, "one idle connection is tried, then a new one"


def part_of(wire: Dialect) -> bytes:
    """The start of a stream, to the end of a chunk."""
    return wire.head() + chunked(wire.stream(*wire.part("part "), end=b""))


STOPPED: dict[str, tuple[Fault, type[events.Event], str, Dialect]] = {
    "no reply": (waits(), events.TurnStarted, "", CHAT),
    "headers drip": (drips(b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), events.TurnStarted, "", CHAT),
    "pings": (drips(part_of(CHAT), chunked(CHAT.blank)), events.TextDelta, "part ", CHAT),
    "told to wait": (kept(refused("429 X", "Retry-After: 2")), events.Retrying, "", CHAT),
    "backing off": (kept(refused("500 X")), events.Retrying, "", CHAT),
    **{w.name: (waits(part_of(w)), events.TextDelta, "part ", w) for w in DIALECTS},
}


@pytest.mark.timed
@pytest.mark.parametrize(("fault", "ready", "text", "wire"), STOPPED.values(), ids=STOPPED)
def test_a_stop_ends_at_once_keeps_the_part_and_the_run_goes_on(
    server: HostileServer, fault: Fault, ready: type[events.Event], text: str, wire: Dialect
) -> None:
    server.faults["it"] = fault
    at = threading.Event()
    run = agent_at(server, wire).start(
        "hi", on_event=lambda event: at.set() if isinstance(event, ready) else None
    )
    assert at.wait(10)
    time.sleep(0.05)
    began = time.monotonic()
    run.stop()
    run.wait()
    assert time.monotonic() - began < 1.8
    assert run.error
    assert run.error.code == "ENGINE_ABORTED"
    assert "".join(turn.text for turn in run.turns) == text
    assert {turn.attempts for turn in run.turns} == {1}, "the next attempt was not made"
    server.faults["it"] = fine
    assert run.resume().text == "fine"


# Servers that cannot be reached.


def unreachable(address: str, code: str = "LLM_HTTP_ERROR", timeout_s: float = 10) -> nbagent.Run:
    """A run that asked in vain, and was told so in time."""
    agent = nbagent.Agent(model="openai:m", tools="none", base_url=address, timeout_s=timeout_s)
    began = time.monotonic()
    run = agent.run("hi")
    assert time.monotonic() - began < timeout_s + 5
    assert run.error
    assert run.error.code == code
    return run


@pytest.fixture
def bound() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        yield made


def test_a_port_that_nobody_serves_is_named_and_a_full_backlog_is_a_timeout(
    bound: socket.socket,
) -> None:
    address = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"
    run = unreachable(address)
    assert str(run.error).endswith("is it running?")
    assert run.turns[0].notices, "both retries are told"
    bound.listen(0)
    waiting = [socket.socket() for _ in range(3)]
    for filler in waiting:
        filler.setblocking(False)
        filler.connect_ex(bound.getsockname())
    unreachable(address, "LLM_TIMEOUT", 0.5)
    for filler in waiting:
        filler.close()


@pytest.mark.parametrize(
    ("number", "asked"),
    [(socket.EAI_NONAME, 1), (socket.EAI_AGAIN, 3), (None, 1)],
    ids=["none", "later", "no answer"],
)
def test_a_name_that_is_not_found_is_named_and_a_resolver_that_hangs_is_a_timeout(
    monkeypatch: pytest.MonkeyPatch, number: int | None, asked: int
) -> None:
    names: list[str] = []
    release = threading.Event()

    def fails(host: str, *_: Any, **__: Any) -> list[Any]:
        names.append(host)
        if number is None:
            release.wait(10)
        raise socket.gaierror(number, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fails)
    if number is None:
        unreachable("http://models.test/v1", "LLM_TIMEOUT", 0.5)
        release.set()
    else:
        said = str(unreachable("http://models.test/v1").error)
        assert "models.test" in said
        assert said.endswith("check it.")
    assert names == ["models.test"] * asked


@pytest.mark.parametrize(
    "url",
    ["http://a..b/v1", f"http://{'x' * 70}.test/v1", "http://127.0.0.1:0", "127.0.0.1:0/v1"],
)
def test_an_address_that_nobody_can_have_is_a_usage_error(url: str) -> None:
    with pytest.raises(nbagent.UsageError):
        nbagent.Agent(model="openai:m", tools="none", base_url=url).run("hi")


@_wires
def test_two_answers_at_once_do_not_mix(server: HostileServer, wire: Dialect) -> None:
    async def own(visit: Visit) -> None:
        visit.keep = True
        words = re.findall(rb"number \d+", visit.data)[-1].decode()
        await asyncio.sleep(0.01)
        await visit.send(answer(visit, words))

    server.faults["it"] = own
    runs = [agent_at(server, wire).start(f"number {n}") for n in range(20)]
    assert [run.wait().text for run in runs] == [f"number {n}" for n in range(20)]


# Waiting before a request is made again.


def test_a_wait_is_seen_in_every_view_until_the_answer_comes(server: HostileServer) -> None:
    refusal = refused("429 X", "Retry-After: 0.3", message="slow\ndown")
    pictures: list[LivePicture] = []
    shown: dict[str, str] = {}
    out = io.StringIO()
    printer = PlainPrinter(out.write)

    def see(event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            pictures.append(LivePicture(event.run))
        pictures[0].update(event)
        ops = pictures[0].draw_changes()
        shown[type(event).__name__] = text_of(pictures[0].picture())
        printer.handle(event)
        if isinstance(event, events.Retrying):
            assert [op for op in ops if op[1] == "head"], "the front end is told"
            assert "again in 0.3 s: LLM_RATE_LIMITED" in out.getvalue(), "printed while it lasts"

    run = ask(server, then_fine(refusal), on_event=see)
    assert "again in 0.3 s · attempt 1 failed · LLM_RATE_LIMITED" in shown["Retrying"]
    assert "slow down" in shown["Retrying"]
    assert "attempt 1" not in shown["TextDelta"], "over, it is not said any more"
    saved = html(picture(run.record))
    assert "note: 1 retry, waited 30" in saved
    assert "retries, waits, failures 30" in saved


@pytest.mark.timed
def test_a_wait_lasts_as_long_as_was_asked_for_and_one_that_is_too_long_is_none(
    server: HostileServer,
) -> None:
    busy = refused("429 X", "Retry-After: 0", message="slow down")
    run = ask(server, then_fine(busy, busy))
    assert run.text == "fine"
    response = run.turns[0].response
    assert response
    assert response.meta.attempts == 3
    assert response.meta.retry_wait_ms <= 50
    assert run.turns[0].model_ms < 500, "loosely: a pause would have been longer"
    began = time.monotonic()
    asked = server.asked("it")
    long = kept(refused("429 X", "Retry-After: 5"))
    run = ask(server, long, timeout_s=2)
    assert time.monotonic() - began < 1
    assert run.error
    assert run.error.code == "LLM_RATE_LIMITED"
    assert server.asked("it") == asked + 1


def test_a_server_that_asks_for_more_than_a_minute_is_not_waited_for(server: HostileServer) -> None:
    waits: list[float] = []

    def see(event: events.Event) -> None:
        if isinstance(event, events.Retrying | events.Waiting):
            waits.append(event.wait_s)
            run.stop()  # Else a failing test would last as long as the wait.

    server.faults["it"] = kept(refused("429 X", "Retry-After: 61", message="slow down"))
    run = agent_at(server).start("hi", on_event=see, timeout_s=600)
    error = run.wait().error
    assert waits == []
    assert error
    assert error.code == "LLM_RATE_LIMITED"
    assert server.asked("it") == 1
