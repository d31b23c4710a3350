"""Waiting before a request is made again: seen in every view while it lasts, and no longer."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any

import pytest
from servers.hostile_cases import refused, then_fine
from servers.hostile_server import HostileServer, Visit, chunked, delta, sse, stream_head

import nbagent
from nbagent.contracts import events
from nbagent.notebook.live_state import LiveState
from nbagent.notebook.plain_lines import PlainPrinter
from nbagent.notebook.static_html import html
from nbagent.notebook.view_state import view_of
from nbagent.providers.retry import retry_after_s

BUSY = refused("429 X", "Retry-After: 0", message="slow down")


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with HostileServer() as running:
        yield running


def ask(server: HostileServer, **options: Any) -> nbagent.Run:
    agent = nbagent.Agent(model="openai:m", tools="none", base_url=server.url("it"))
    options.setdefault("timeout_s", 10)
    return agent.run("hi", **options)


def test_two_refusals_without_a_wait_cost_no_time(server: HostileServer) -> None:
    server.faults["it"] = then_fine(BUSY, BUSY)
    run = ask(server)
    assert run.text == "fine"
    response = run.turns[0].response
    assert response
    assert response.meta.retries == 2
    assert response.meta.retry_wait_ms <= 50
    assert run.turns[0].model_ms < 500, "loosely: a pause would have been longer"


def test_a_wait_is_seen_in_the_live_picture_until_the_answer_comes(server: HostileServer) -> None:
    refusal = refused("429 X", "Retry-After: 0.3", message="slow\ndown")
    server.faults["it"] = then_fine(refusal)
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

    run = ask(server, on_event=see)
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
    server.faults["it"] = then_fine(refused("503 X", "Retry-After: 0.3", message="busy"))
    out = io.StringIO()
    printer = PlainPrinter(out.write)
    at: dict[str, float] = {}

    def see(event: events.Event) -> None:
        printer.handle(event)
        if "again in 0.3 s: LLM_HTTP_ERROR" in out.getvalue():
            at.setdefault("told", time.monotonic())
        if isinstance(event, events.TextDelta):
            at["answered"] = time.monotonic()

    ask(server, on_event=see)
    assert at["answered"] - at["told"] > 0.2


def test_a_run_that_gave_up_tells_its_attempts(server: HostileServer) -> None:
    server.faults["it"] = then_fine(BUSY, BUSY, BUSY)
    run = ask(server)
    assert run.error
    assert run.error.code == "LLM_RATE_LIMITED"
    picture = view_of(run.record)
    told = " ".join(picture["turns"][0]["notices"])
    assert told.count("Trying again in 0.0 s") == 2


@pytest.mark.parametrize(
    ("wait", "timeout_s", "says"),
    [("61", 10, "61 s"), ("3600", 10, "3,600 s"), ("5", 2, "too many requests")],
    ids=["longer than a minute", "an hour", "longer than the time allowed"],
)
def test_a_wait_that_is_too_long_returns_at_once(
    server: HostileServer, wait: str, timeout_s: float, says: str
) -> None:
    server.faults["it"] = then_fine(refused("429 X", f"Retry-After: {wait}"))
    began = time.monotonic()
    run = ask(server, timeout_s=timeout_s)
    assert time.monotonic() - began < 1
    assert run.error
    assert run.error.code == "LLM_RATE_LIMITED"
    assert says in run.error.message
    assert server.asked("it") == 1


def test_nothing_is_asked_again_after_the_first_token(server: HostileServer) -> None:
    async def breaks(visit: Visit) -> None:
        await visit.send(stream_head(), chunked(sse(delta(content="part "), end=b"")))
        await asyncio.sleep(0.05)
        visit.reset()

    server.faults["it"] = breaks
    run = ask(server)
    assert (run.turns[0].text, server.asked("it")) == ("part ", 1)
    server.faults["it"] = then_fine()
    assert run.resume().text == "fine"


@pytest.mark.parametrize(
    ("headers", "low", "high"),
    [
        ({}, None, None),
        ({"retry-after": ""}, None, None),
        ({"retry-after": "NaN"}, None, None),
        ({"retry-after": "soon"}, None, None),
        ({"retry-after": "-3"}, 0, 0),
        ({"retry-after": "1.5"}, 1.5, 1.5),
        ({"retry-after": "1e9"}, 1e9, 1e9),
        ({"retry-after": "inf"}, float("inf"), float("inf")),
        ({"retry-after": "2, 9"}, 9, 9),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0, 0),
        ({"retry-after": formatdate(time.time() + 3600, usegmt=True)}, 3000, 3601),
        ({"retry-after": "Wed, 99 Foo 99999999999 07:28:00 GMT"}, None, None),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25, 0.25),
        ({"retry-after-ms": "", "retry-after": "9"}, 9, 9),
    ],
)
def test_a_wait_is_read_in_every_form(
    headers: dict[str, str], low: float | None, high: float | None
) -> None:
    found = retry_after_s(headers)
    assert found is low if found is None or low is None or high is None else low <= found <= high
