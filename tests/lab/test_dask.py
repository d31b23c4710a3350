"""A batch on a cluster of two worker processes: what comes home, what is lost, what is refused.

Nine tests stand for the file by default; the others are proofs (`pytest -m proof`).
"""

# dask and pandas say little about their types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import cloudpickle
import distributed
import pandas as pd
import pytest
from dask import config  # pyright: ignore[reportPrivateImportUsage]
from distributed import LocalCluster
from pydantic import BaseModel
from servers.loopback import Visit
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent import UsageError, offline
from nbagent.contracts.model import ChatRequest
from nbagent.session.frontend import Frontend, use_frontend

WORKERS_KEY = "workers-own-key-4711-abcdef"
HOME_KEY = "home-own-key-0815-fedcba"
TABLE: Any = pd.DataFrame({"n": range(48)})
TEMPLATE = "Row {{ n }}"
Client: Any = distributed.Client
# As what is written in a notebook is: no worker can import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Server(ModelServer):
    """A little model that takes a while; a row's requests are counted."""

    pause_s = 0.0

    async def answer(self, visit: Visit) -> None:
        await asyncio.sleep(self.pause_s)
        await super().answer(visit)

    @property
    def asked(self) -> Counter[tuple[int, int]]:
        """By row and number of messages, how many requests there were."""
        return Counter((row_of(it), len(it["messages"])) for it in self.bodies)


def row_of(body: Any) -> int:
    said = next(it["content"] for it in body["messages"] if it["role"] == "user")
    return int(said.split()[-1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("workers")
    env = {"NBAGENT_HOME": str(home), "XDG_CONFIG_HOME": str(home), "TEAM_KEY": WORKERS_KEY}
    how: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": ":0", "env": env}
    make: Any = LocalCluster
    with (
        config.set({"distributed.scheduler.allowed-failures": 1}),
        make(n_workers=2, processes=True, **how) as made,
    ):
        yield made


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with Client(cluster, set_as_default=False) as made:
        made.wait_for_workers(2, timeout=30)
        yield made


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def pid_tool() -> Any:
    @nbagent.tool
    def where(text: str) -> str:
        """Say who works."""
        return f"{text} in {os.getpid()}."

    return where


def agent(server: Server, *tools: Any, **options: Any) -> nbagent.Agent:
    return nbagent.Agent("openai:m", base_url=server.url, tools=tools or [pid_tool()], **options)


def talker(server: Server, **options: Any) -> nbagent.Agent:
    return nbagent.Agent("openai:m", base_url=server.url, tools="none", **options)


def map_on(client: Any, agent: nbagent.Agent, table: Any = TABLE, **how: Any) -> Any:
    given: dict[str, Any] = {"name": "b", "executor": client, **how}
    return agent.map(table, TEMPLATE, **given)


def until(done: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def finished() -> set[int]:
    runs: Any = nbagent.runs(batch="b")
    return {int(key) for key in runs[runs["stop_reason"] == "answered"]["row_key"]}


# What comes home


def test_rows_run_on_all_workers_and_their_traces_come_home(client: Any, server: Server) -> None:
    server.pause_s = 0.02
    batch = map_on(client, agent(server)).wait()
    assert (batch.progress.state, batch.progress.ok) == ("Finished", 48)
    assert server.asked == Counter({(row, n): 1 for row in range(48) for n in (2, 4)})
    pids = batch.frame()["text"].str.extract(r"in (\d+)\.")[0].astype(int)
    assert set(pids) == set(client.run(os.getpid).values())
    run = batch.open_run(7)
    assert [it.tool_name for turn in run.turns for it in turn.tool_runs] == ["where"]
    assert run.record.prompt == "Row 7"
    assert [it.role for it in run.request_of("C02").messages] == ["user", "assistant", "tool"]
    assert len(nbagent.tool_runs(batch="b")) == 48
    again = map_on(client, agent(server)).wait()
    assert (again.progress.reused, len(server.bodies)) == (48, 96)


@pytest.mark.proof
def test_nothing_of_a_batch_that_is_over_stays_on_the_cluster(
    cluster: Any, client: Any, server: Server
) -> None:
    def held() -> int:
        gc.collect()
        return sum(type(it).__name__ == "WorkerBatch" for it in gc.get_objects())

    assert map_on(client, agent(server), TABLE.head(4)).wait().progress.ok == 4
    assert [*client.run(held).values()] == [0, 0]
    until(lambda: not cluster.scheduler.tasks)


@pytest.mark.proof
def test_more_runs_are_at_work_than_the_workers_have_threads(client: Any, server: Server) -> None:
    server.pause_s = 1.0
    batch = map_on(client, talker(server))
    until(lambda: len(server.open) >= 12)
    assert batch.wait().progress.ok == 48


def test_what_holds_at_home_holds_on_the_workers(
    client: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("LLM_MODEL", "openai:of-home")
    nbagent.configure(max_tokens=77, system="Be brief.", deny=["where"])
    batch = map_on(client, nbagent.Agent(tools=[pid_tool()]), TABLE.head(4)).wait()
    first = server.bodies[0]
    assert (first["model"], first["max_tokens"]) == ("of-home", 77)
    assert first["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "tools" not in first
    assert batch.progress.ok == 4


class Verdict(BaseModel):
    right: bool


class City(BaseModel):
    name: str


def test_scripts_types_approvals_and_the_notebooks_tools_are_sent(client: Any) -> None:
    class Names(Frontend):
        def namespace(self) -> Mapping[str, Any]:
            return {"guess": guess, "City": City}

    @nbagent.tool(ask=True)
    def guess(city: City) -> str:
        return city.name.upper()

    guess.__annotations__["city"] = "City"  # As with `from __future__ import annotations`.

    def answer(request: ChatRequest) -> Any:
        if request.messages[-1].role == "tool":
            return f'{{"right": {str("OSLO" in request.messages[-1].text).lower()}}}'
        return offline.call("guess", city={"name": "Oslo"})

    def allow(question: Any) -> bool:
        return question.tool == "guess"

    use_frontend(Names())
    model = offline.script([answer] * 40)
    asking = nbagent.Agent(model=model, on_approval=allow, output=Verdict)
    batch = map_on(client, asking, TABLE.head(8)).wait()
    assert batch.frame()["output_right"].tolist() == [True] * 8
    runs: Any = nbagent.tool_runs(batch="b")
    assert set(runs[runs["tool_name"] == "guess"]["approved_by"]) == {"callback"}
    assert batch.open_run(3).output == Verdict(right=True)
    assert model.requests == []  # They went to its copies on the workers.


@pytest.mark.proof
def test_a_tool_is_loaded_once_in_a_workers_process(client: Any, server: Server) -> None:
    calls: list[str] = []

    @nbagent.tool
    def where(text: str) -> str:
        """Say who works."""
        calls.append(text)
        return f"call {len(calls)} in {os.getpid()}."

    batch = map_on(client, agent(server, where)).wait()
    texts = batch.frame()["text"]
    most = texts.str.extract(r"call (\d+) in (\d+)").astype(int).groupby(1)[0].max()
    assert most.sum() == 48


# What is lost


def test_a_killed_worker_loses_no_finished_row(client: Any, server: Server) -> None:
    server.pause_s = 0.3
    one = next(iter(client.run(os.getpid).values()))
    batch = map_on(client, agent(server), concurrency=8)
    until(lambda: batch.progress.ok >= 16)
    before, n = finished(), len(server.bodies)
    until(lambda: len(server.bodies) >= n + 8)  # Both have answers to wait for.
    os.kill(one, signal.SIGKILL)
    batch.wait()
    assert finished() == set(range(48))
    assert len(nbagent.runs(batch="b")) == 48
    twice = {row for (row, _), n in server.asked.items() if n > 1}
    assert not twice & before
    # Those that were at work on it; not one more.
    assert 1 <= len(twice) <= 8


def test_an_interrupt_of_the_process_group_ends_no_worker(client: Any, server: Server) -> None:
    server.pause_s = 0.2
    batch = map_on(client, agent(server))
    until(lambda: len(server.bodies) >= 4)
    pids = set(client.run(os.getpid).values())
    for pid in pids:
        os.kill(pid, signal.SIGINT)  # As ■ and Ctrl-C do.
    assert batch.wait().progress.ok == 48
    assert set(server.asked.values()) == {1}
    assert set(client.run(os.getpid).values()) == pids


@pytest.mark.proof
def test_a_case_that_kills_its_workers_fails_alone(client: Any, server: Server) -> None:
    @nbagent.tool
    def where(text: str) -> str:
        """Say who works."""
        if text == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return text

    table = TABLE.head(3)
    batch = map_on(client, agent(server, where), table, concurrency=1).wait()
    assert (batch.progress.state, batch.progress.ok, batch.progress.failed) == ("Finished", 2, 1)
    (failure,) = batch.progress.failures
    assert failure.row_key == "1"
    assert failure.why.startswith("ENGINE_INTERRUPTED: 2 workers died while they made this run")


@pytest.mark.proof
def test_a_cluster_that_is_gone_ends_the_batch_and_the_same_call_goes_on(
    client: Any, server: Server
) -> None:
    server.pause_s = 0.1
    make: Any = LocalCluster
    how: dict[str, Any] = {"n_workers": 1, "dashboard_address": ":0"}
    with make(**how) as other, Client(other, set_as_default=False) as its_client:
        batch = map_on(its_client, agent(server), concurrency=4)
        until(lambda: len(finished()) >= 8)
        other.close()
        batch.wait(timeout=30)
    assert batch.progress.state == "Stopped"
    assert "is gone; connect a new client and start the same cell again" in batch.progress.why
    before = finished()
    assert 8 <= len(before) < 48
    asked = len(server.bodies)
    assert map_on(client, agent(server)).wait().progress.ok == 48
    assert not {row_of(it) for it in server.bodies[asked:]} & before


# Ends


def test_a_stop_reaches_all_workers_and_the_same_call_goes_on(
    client: Any, server: Server, tmp_path: Path
) -> None:
    wait = tmp_path / "wait"

    @nbagent.tool
    def where(text: str) -> str:
        """Say who works."""
        while int(text) >= 4 and wait.exists():
            time.sleep(0.01)
        return text

    wait.touch()
    batch = map_on(client, agent(server, where), concurrency=8)
    until(lambda: len(finished()) == 4 and len(server.bodies) >= 4 * 2 + 8)
    batch.stop()
    batch.wait(timeout=30)  # The tools would never end.
    assert (batch.progress.state, batch.progress.failed) == ("Stopped", 0)
    runs: Any = nbagent.runs(batch="b")
    assert Counter(runs["stop_reason"]) == {"answered": 4, "stopped": 8}
    # They were stopped in the middle of a call: what was answered is not asked again.
    wait.unlink()
    assert map_on(client, agent(server, where), concurrency=8).wait().progress.ok == 48
    assert set(server.asked.values()) == {1}
    stopped = runs[runs["stop_reason"] == "stopped"]
    after: Any = nbagent.runs(batch="b")
    assert set(after["parent_id"].dropna()) == set(stopped["run_id"])


@pytest.mark.proof
def test_a_stop_cancels_what_has_not_begun(server: Server) -> None:
    make: Any = LocalCluster
    how: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": ":0"}
    with make(n_workers=0, **how) as empty, Client(empty, set_as_default=False) as client:
        batch = map_on(client, talker(server), concurrency=8)
        time.sleep(0.5)
        batch.stop()
        batch.wait(timeout=20)
        assert (batch.progress.state, batch.progress.failed) == ("Stopped", 0)
        assert nbagent.runs(batch="b").empty
        empty.scale(1)
        assert batch.resume().progress.ok == 48
    assert set(server.asked.values()) == {1}


def test_the_budget_is_that_of_the_whole_batch(client: Any, server: Server) -> None:
    def price(usd: float | None) -> None:
        from nbagent.contracts.ports import Cost
        from nbagent.session import models

        held: Any = models
        held.real = getattr(held, "real", held.cost_of)
        held.cost_of = held.real if usd is None else lambda *_, **__: Cost(input_usd=usd)

    client.run(price, 0.1)
    price(0.1)
    try:
        batch = map_on(client, talker(server), max_cost_usd=1.05, concurrency=4).wait()
    finally:
        client.run(price, None)
        price(None)
    assert batch.progress.cost_usd == pytest.approx(1.0)
    assert "max_cost_usd=1.05 is used up" in batch.progress.why
    assert len(server.bodies) == 10


@pytest.mark.proof
def test_what_one_worker_learns_of_a_servers_limits_holds_for_all(
    client: Any, server: Server
) -> None:
    closed_s = 1.0
    times: list[float] = []

    def answer(visit: Visit) -> Reply:
        times.append(time.monotonic())
        if len(times) == 1:
            return Reply(status=429, headers={"Retry-After": str(int(closed_s))})
        return Reply("fine")

    server.then(*[answer] * 60)
    batch = map_on(client, talker(server, retries=0), TABLE.head(1), name="first").wait()
    assert batch.progress.failures[0].why.startswith("LLM_RATE_LIMITED")
    batch = map_on(client, talker(server), TABLE.head(4)).wait()
    assert batch.progress.ok == 4
    assert min(times[1:]) - times[0] > closed_s - 0.2


# What is refused, and what is never sent


def closes_over(value: Any) -> Any:
    @nbagent.tool
    def where(text: str) -> str:
        """Say who works."""
        return f"{text}{value}"

    return where


class Holds:
    """Object that holds a value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def where(self, text: str) -> str:
        """Say who works."""
        return f"{text}{self.value}"


class Open(NamedTuple):
    file: TextIO
    socket: socket.socket


REFUSED: dict[str, tuple[Callable[[Open], dict[str, Any]], str]] = {
    "lock": (lambda _: {"tools": [closes_over(threading.Lock())]}, r"the tool 'where' cannot be"),
    "socket": (lambda it: {"tools": [closes_over(it.socket)]}, r"the tool 'where' cannot be"),
    "file": (lambda it: {"tools": [closes_over(it.file)]}, r"'where' .* an open file"),
    "method": (lambda _: {"tools": [Holds(threading.Lock()).where]}, r"the tool 'where' cannot be"),
    "secret": (
        lambda _: {"tools": [closes_over(HOME_KEY)]},
        r"the tool 'where' holds a secret .* read it from the workers' environment",
    ),
    "approval": (
        lambda _: {"tools": [pid_tool()], "on_approval": closes_over(threading.Lock())},
        r"on_approval cannot be sent",
    ),
    "mcp": (
        lambda _: {"tools": [nbagent.mcp("git", command=["true"])]},
        r"the tools of 'git' belong to this process",
    ),
    "word": (lambda _: {"tools": ["fs", "notebook"]}, r"the tools 'notebook' belong to this"),
    "headers": (
        lambda _: {"tools": "none", "headers": {"X-Team": "one"}},
        r"headers may hold secrets.* set NBAGENT_HEADERS in the workers' environment",
    ),
    "cassette": (
        lambda _: {"tools": "none", "cassette": "a.jsonl", "cache": "auto"},
        r"cache='auto' names files of this machine",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(it, marks=() if it == "secret" else pytest.mark.proof) for it in REFUSED]
)
def test_what_cannot_be_sent_is_refused_before_anything_is(
    name: str, client: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME_API_KEY", HOME_KEY)
    options, said = REFUSED[name]
    given: dict[str, Any] = {"base_url": server.url}
    with (
        (tmp_path / "file").open("w+") as file,
        socket.socket() as made,
        pytest.raises(UsageError, match=said),
    ):
        map_on(client, nbagent.Agent("openai:m", **given, **options(Open(file, made))))
    assert (server.bodies, nbagent.runs(batch="b").empty) == ([], True)


def test_keys_are_those_of_the_workers_and_none_is_sent(
    client: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME_API_KEY", HOME_KEY)
    sent: list[bytes] = []

    def noted(real: Any) -> Any:
        def note(self: Any, *work: Any, **how: Any) -> Any:
            sent.extend(it for it in work if isinstance(it, bytes))
            return real(self, *work, **how)

        return note

    for name in ("submit", "run"):
        monkeypatch.setattr(Client, name, noted(getattr(Client, name)))
    keyed = agent(server, key_variable="TEAM_KEY", system=f"My key is {HOME_KEY}.")
    table = TABLE.head(4).assign(n=[f"{HOME_KEY} {n}" for n in range(4)])
    batch = map_on(client, keyed, table).wait()
    assert batch.progress.ok == 4
    heads = {it.headers["authorization"] for it in server.requests}
    assert heads == {f"Bearer {WORKERS_KEY}"}
    assert len(sent) == 4 + 1
    together = b"".join(sent)
    assert b"TEAM_KEY" in together
    assert b"FunctionTool" not in together  # Its definition is made anew there.
    for key in (HOME_KEY, WORKERS_KEY):
        assert key.encode() not in together
        assert key not in str(server.bodies)


@pytest.mark.proof
def test_a_key_that_a_worker_has_not_is_named(client: Any, server: Server) -> None:
    batch = map_on(client, talker(server, key_variable="NO_SUCH_KEY"), TABLE.head(2)).wait()
    why = batch.progress.failures[0].why
    assert why.startswith("LLM_AUTH_FAILED: on the worker tcp://127.0.0.1:")
    assert "set NO_SUCH_KEY in the environment" in why
    assert server.bodies == []


@pytest.mark.proof
def test_headers_of_the_workers_environment_are_sent_and_must_be_there(
    client: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAGENT_HEADERS", '{"X-Team": "home"}')
    nbagent.configure(model="openai:m", base_url=server.url)
    agent = nbagent.Agent(tools="none")
    batch = map_on(client, agent, TABLE.head(2)).wait()
    assert "headers has no X-Team here; set NBAGENT_HEADERS" in batch.progress.failures[0].why

    def set_there(value: str) -> None:
        os.environ["NBAGENT_HEADERS"] = value

    client.run(set_there, '{"X-Team": "workers"}')
    try:
        assert map_on(client, agent, TABLE.head(2)).wait().progress.ok == 2
    finally:
        client.run(set_there, "")
    assert {it.headers["x-team"] for it in server.requests} == {"workers"}


@pytest.mark.proof
def test_a_module_that_the_workers_lack_is_named(
    client: Any, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 'def where(text: str) -> str:\n    """Say who works."""\n    return text\n'
    (tmp_path / "tools_beside.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    from tools_beside import where  # pyright: ignore[reportMissingImports]

    batch = map_on(client, agent(server, where), TABLE.head(2)).wait()
    why = batch.progress.failures[0].why
    assert "No module named 'tools_beside'" in why
    assert "client.upload_file(…)" in why
    client.upload_file(str(tmp_path / "tools_beside.py"))
    assert map_on(client, agent(server, where), TABLE.head(2)).wait().progress.ok == 2


@pytest.mark.proof
def test_a_client_that_is_closed_is_refused(cluster: Any, server: Server) -> None:
    with Client(cluster, set_as_default=False) as closed:
        pass
    with pytest.raises(UsageError, match=r"this Dask client is closed; connect a new one"):
        map_on(closed, talker(server))
