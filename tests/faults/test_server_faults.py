"""Every fault of a model server on every wire, through the real door: the right code, in time.

All faults of the tables are met by runs of one process and one engine loop; each is followed by
a run on the same server that has to be fine. The tables are in `servers/hostile_*.py`, the wires
in `servers/dialects.py`. Every run is offered a tool, which runs for whole calls only.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run
from servers.dialects import CHAT, DIALECTS
from servers.hostile_cases import ELSEWHERE, TABLES, Case, lasting, passing, silences
from servers.hostile_server import HostileServer
from servers.loopback import Visit

import nbagent
from nbagent.contracts.errors import CODES
from nbagent.session.stores import close_stores

KEY = "sk-hostile-0123456789abcdefghij"
WIRES = {wire.name: wire for wire in DIALECTS}
ROWS = [(wire, name) for wire, table in TABLES.items() for name in table]
_WAITING = {**passing(CHAT), **lasting(CHAT)}.keys()
_SILENT = silences(CHAT).keys()
_STALE = {
    "reset before the headers",
    "closed without an answer",
    "answer as in HTTP/0.9",
    "an SSH server",
}
_ADVICE = re.compile(
    r"\b(try again|check|raise|give the|shorten|choose|correct|look at|is it running|anew"
    r"|get it|sign in)\b",
    re.I,
)


Row = tuple[str, str]
"""A wire and a case."""


@dataclass
class Met:
    """Outcome of a case."""

    run: nbagent.Run
    took_s: float
    after: str
    """The text of the run that followed."""


@dataclass
class World:
    """The servers, and every case with its outcome."""

    server: HostileServer
    bystander: HostileServer
    reached: set[tuple[str, int]]
    met: dict[Row, Met]
    looked_at: list[Row]
    """The cases in which the tool was called: it runs for whole calls only."""
    home: Path


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
        home = tmp_path_factory.mktemp("home")
        patch.setenv("NBAGENT_HOME", str(home))
        patch.setenv("HOSTILE_KEY", KEY)
        patch.setattr(socket.socket, "connect", _recorder(reached))
        cases = {
            (wire.name, name): _elsewhere(case, bystander.url("x"))
            for wire in DIALECTS
            for name, case in TABLES[wire.name].items()
        }
        server.faults = {_path(row): case.serve for row, case in cases.items()}
        found = World(server, bystander, reached, {}, [], home)
        _meet_all(found, cases)
        yield found
        close_stores()


def _path(row: Row) -> str:
    return re.sub(r"\W", "-", "-".join(row))


def _meet_all(world: World, cases: dict[Row, Case]) -> None:
    waiting = [row for row in cases if row[1] in _WAITING]
    silent = [row for row in cases if row[1] in _SILENT]
    rest = cases.keys() - {*waiting, *silent}
    # Those that wait for a clock are under way together, while the others come by a few at once.
    with ThreadPoolExecutor(len(waiting)) as many, ThreadPoolExecutor(4) as few:
        met = [many.submit(_meet, world, row, cases[row]) for row in waiting]
        met += [few.submit(_meet, world, row, cases[row]) for row in sorted(rest)]
    # What is timed has the machine for itself, a wire at a time.
    for wire in WIRES:
        with ThreadPoolExecutor(len(_SILENT)) as timed:
            mine = [row for row in silent if row[0] == wire]
            met += [timed.submit(_meet, world, row, cases[row]) for row in mine]
    for one in met:
        one.result()


def _agent(looked_at: list[Row], row: Row, **options: Any) -> nbagent.Agent:
    """An agent on a wire, with a tool that says when it ran."""

    def look(at: str) -> str:
        looked_at.append(row)
        return "seen"

    tools = [nbagent.tool(threaded=True)(look)]
    model = WIRES[row[0]].model
    return nbagent.Agent(model=model, tools=tools, key_variable="HOSTILE_KEY", **options)


def _meet(world: World, row: Row, case: Case) -> None:
    agent = _agent(world.looked_at, row, stream=case.stream)
    began = time.monotonic()
    run = agent.run("hi", base_url=world.server.url(_path(row)), timeout_s=case.timeout_s)
    took_s = time.monotonic() - began
    after = agent.run("hi", base_url=world.server.url("good"), timeout_s=20, stream=True)
    world.met[row] = Met(run, took_s, after.text)


@pytest.mark.parametrize(("wire", "name"), ROWS)
def test_a_fault_has_its_code_and_leaves_the_next_run_fine(
    world: World, wire: str, name: str
) -> None:
    case, met = TABLES[wire][name], world.met[wire, name]
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
    asked = world.server.asked(_path((wire, name)))
    assert 0 <= asked - case.asked <= spare, [turn.notices for turn in run.turns]
    assert met.after == "fine"
    assert (wire, name) not in world.looked_at
    if run.error is not None:
        message = run.error.message
        assert re.search(case.says, message)
        assert message.isprintable(), "one line without control characters"
        assert "Traceback" not in message or "lines" in name
        assert len(message) < 1_000
        assert _ADVICE.search(re.split(r"[.;:(…]\s", message.rstrip(".?"))[-1]), message
    if name in _SILENT:
        # Without a deadline it would never end; these run many at a time, on any machine.
        assert met.took_s < case.timeout_s + 10


def test_every_run_keeps_the_laws(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBAGENT_HOME", str(world.home))
    rows = [*world.met]
    for row in rows:
        check_run(world.met[row].run, whole_store=row is rows[-1])


def test_no_fault_makes_it_ask_another_host(world: World) -> None:
    assert world.bystander.connections == 0
    assert {address for address in world.reached if address[1] not in (0, 1)} <= {
        (world.server.host, world.server.port)
    }


def test_the_key_is_in_no_record_of_a_fault(world: World) -> None:
    for met in world.met.values():
        assert KEY not in met.run.record.model_dump_json()
    for row in world.met:
        wire = WIRES[row[0]]
        for visit in world.server.visits[_path(row)]:
            assert visit.headers[wire.key_header.lower()] == f"{wire.key_prefix}{KEY}"
