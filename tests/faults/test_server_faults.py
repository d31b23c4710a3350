"""Every fault of a model server through the real door: the right code, in time, and then on.

All faults of a table are met by runs of one process and one engine loop; each is followed by a
run on the same server that has to be fine. The tables are in `servers/hostile_*.py`.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from servers.hostile_bodies import BODIES, CALL_CASES, CALLS, ERROR_OBJECTS, STREAMS, USAGES
from servers.hostile_cases import (
    CUT,
    ELSEWHERE,
    FRAMING,
    LASTING,
    PASSING,
    SILENCES,
    STATUSES,
    Case,
)
from servers.hostile_server import HostileServer, Visit

import nbagent
from nbagent.contracts import events
from nbagent.contracts.errors import CODES
from nbagent.session.stores import close_stores

KEY = "sk-hostile-0123456789abcdefghij"
AT_ONCE = {**STATUSES, **FRAMING, **BODIES, **USAGES, **STREAMS, **ERROR_OBJECTS, **CUT}
TABLE = {**AT_ONCE, **PASSING, **LASTING, **SILENCES, **CALL_CASES}
_STALE = {
    "reset before the headers",
    "closed without an answer",
    "answer as in HTTP/0.9",
    "an SSH server",
}
_ADVICE = re.compile(
    r"\b(try again|check|raise|give the|shorten|choose|correct|look at|is it running|anew)\b", re.I
)


@dataclass
class Met:
    """What came of a case."""

    run: nbagent.Run
    took_s: float
    events: list[events.Event]
    after: str
    """The text of the run that followed."""


@dataclass
class World:
    """The servers, and every case with its outcome."""

    server: HostileServer
    bystander: HostileServer
    reached: set[tuple[str, int]]
    met: dict[str, Met]
    looked_at: list[str]
    """Where the tool was called."""


def _elsewhere(case: Case, address: str) -> Case:
    """The case with the other server's address in it."""

    async def serve(visit: Visit) -> None:
        send = visit.send

        async def with_address(*pieces: bytes) -> None:
            await send(*(p.replace(ELSEWHERE.encode(), address.encode()) for p in pieces))

        visit.send = with_address
        await case.serve(visit)

    return replace(case, serve=serve)


def _recorder(reached: set[tuple[str, int]]) -> Callable[[socket.socket, Any], None]:
    connect = socket.socket.connect

    def record(self: socket.socket, address: Any) -> None:
        # The address of a Unix socket is a path.
        if not isinstance(address, str | bytes):
            reached.add((str(address[0]), int(address[1])))
        connect(self, address)

    return record


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    reached: set[tuple[str, int]] = set()
    with (
        pytest.MonkeyPatch.context() as patch,
        HostileServer() as server,
        HostileServer(host="127.0.0.2") as bystander,
    ):
        patch.setenv("NBAGENT_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("LLM_API_KEY", KEY)
        patch.setattr(socket.socket, "connect", _recorder(reached))
        cases = {name: _elsewhere(case, bystander.url("x")) for name, case in TABLE.items()}
        server.faults = {_path(name): case.serve for name, case in cases.items()}
        found = World(server, bystander, reached, {}, [])
        _meet_all(found)
        yield found
        close_stores()


def _path(name: str) -> str:
    return re.sub(r"\W", "-", name)


def _meet_all(world: World) -> None:
    # Those that wait for a clock are under way together, while the others come by a few at once.
    with ThreadPoolExecutor(len(PASSING) + len(LASTING)) as waiting, ThreadPoolExecutor(4) as few:
        met = [waiting.submit(_meet, world, *item) for item in {**PASSING, **LASTING}.items()]
        met += [few.submit(_meet, world, *item) for item in {**AT_ONCE, **CALL_CASES}.items()]
    # What is timed has the machine for itself.
    with ThreadPoolExecutor(len(SILENCES)) as timed:
        met += [timed.submit(_meet, world, *item) for item in SILENCES.items()]
    for one in met:
        one.result()


def _meet(world: World, name: str, case: Case) -> None:
    seen: list[events.Event] = []

    def look(at: str) -> str:
        world.looked_at.append(f"{name}: {at}")
        return "seen"

    tools = [nbagent.tool(threaded=True)(look)] if name in CALL_CASES else "none"
    agent = nbagent.Agent(model="openai:m", tools=tools, stream=case.stream)
    base_url = world.server.url(_path(name))
    began = time.monotonic()
    run = agent.run("hi", base_url=base_url, timeout_s=case.timeout_s, on_event=seen.append)
    took_s = time.monotonic() - began
    after = nbagent.Agent(model="openai:m", tools="none", base_url=world.server.url("good"))
    world.met[name] = Met(run, took_s, seen, after.run("hi", timeout_s=20).text)


@pytest.mark.parametrize("name", TABLE)
def test_a_fault_has_its_code_and_leaves_the_next_run_fine(world: World, name: str) -> None:
    case, met = TABLE[name], world.met[name]
    run = met.run
    code = run.error.code if run.error else ""
    assert code == case.code, f"{run.error}"
    assert run.ok == (not case.code)
    assert code in CODES - {"UNKNOWN", "E_INTERNAL"} or not code
    shown = run.text if run.ok else "".join(turn.text for turn in run.turns)
    assert shown == case.text
    # What breaks before the first byte on a connection that had served is asked at once again,
    # up to three times.
    spare = 3 * case.asked if name in _STALE else 0
    assert 0 <= world.server.asked(_path(name)) - case.asked <= spare
    assert met.after == "fine"
    if run.error is not None:
        message = run.error.message
        assert re.search(case.says, message)
        assert message.isprintable(), "one line without control characters"
        assert "Traceback" not in message or "lines" in name
        assert len(message) < 1_000
        assert _ADVICE.search(re.split(r"[.;:(…]\s", message.rstrip(".?"))[-1]), message
    if name in SILENCES:
        # Half a second past the deadline on a machine of its own; these run four at a time.
        assert met.took_s < case.timeout_s + 2.0


def test_no_fault_makes_it_ask_another_host(world: World) -> None:
    assert world.bystander.connections == 0
    assert {address for address in world.reached if address[1] not in (0, 1)} <= {
        (world.server.host, world.server.port)
    }


def test_the_key_is_in_no_record_of_a_fault(world: World) -> None:
    for met in world.met.values():
        assert KEY not in met.run.record.model_dump_json()
    asked = [visit for visits in world.server.visits.values() for visit in visits]
    assert all(visit.header("authorization") == f"Bearer {KEY}" for visit in asked)


def test_there_are_more_than_two_hundred_faults() -> None:
    assert len(TABLE) > 200


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_a_server_garbles_are_mended_or_answered(world: World, name: str) -> None:
    outcomes = CALLS[name][1]
    turn = world.met[f"call: {name}"].run.turns[0]
    results = [run.result for run in turn.tool_runs]
    got = tuple("ok" if r and r.ok else r.error.code if r and r.error else "" for r in results)
    assert got == outcomes
    ids = [run.tool_call_id for run in turn.tool_runs]
    assert len(set(ids)) == len(ids)
    assert all(ids)
    assert sum(where.startswith(f"call: {name}: ") for where in world.looked_at) == sum(
        outcome == "ok" for outcome in outcomes
    )
    sent = world.server.visits[_path(f"call: {name}")][1].json["messages"]
    calls = [c["id"] for message in sent for c in message.get("tool_calls", ())]
    assert calls == [message["tool_call_id"] for message in sent if message["role"] == "tool"]
