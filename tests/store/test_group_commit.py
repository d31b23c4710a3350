"""Runs at work together share transactions; each keeps what it was told is on disk."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_file, check_run
from store.dying_process import Forker, at_statement, commit_all, crowd, notes
from store.made_records import plain_run, record_of
from store.older_stores import without_upkeep

import nbagent
from nbagent.contracts.errors import StoreError
from nbagent.contracts.events import (
    Event,
    ResponseReceived,
    RunFinished,
    RunStarted,
    ToolCallFinished,
    TurnFinished,
    Waiting,
)
from nbagent.contracts.messages import Message
from nbagent.providers.offline import Script, call, script, step
from nbagent.session.stores import current_store
from nbagent.store.writer import Store

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="no fork and no SIGKILL there")
RUNS = 12


@pytest.fixture(autouse=True)
def nothing_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    without_upkeep(monkeypatch)


def statements_of(store: Store) -> list[str]:
    """The statements that a store's writing connection does from now on."""
    done: list[str] = []
    database: Any = store.database
    database._connection.set_trace_callback(done.append)
    return done


def test_runs_in_one_loop_share_their_transactions(store: Store) -> None:
    done, runs = statements_of(store), crowd(RUNS)
    asyncio.run(commit_all(store, runs))
    for events in runs.values():
        assert store.load(record_of(events).id) == record_of(events)
    committed = sum(len(stored(events)) for events in runs.values())
    assert committed > 80
    assert done.count("COMMIT") < committed / 3
    assert done.count("ROLLBACK") == 0
    check_file(store)


def stored(events: Sequence[Event]) -> list[Event]:
    """The events that are written."""
    kinds = (RunStarted, ResponseReceived, TurnFinished, RunFinished)
    return [
        event
        for event in events
        if isinstance(event, kinds) or (isinstance(event, ToolCallFinished) and event.pending)
    ]


def broken_start(run_id: str, **changes: Any) -> Event:
    """The start of a run with values that cannot be stored."""
    (start, *_) = plain_run(1, run_id=run_id)
    assert isinstance(start, RunStarted)
    return replace(start, run=start.run.model_copy(update=changes))


BROKEN: dict[str, tuple[Callable[[], Event], type[Exception]]] = {
    "a run that is there already": (lambda: broken_start("0" * 16), StoreError),
    "a value that is no JSON": (lambda: broken_start("e" * 16, options={"a": object()}), TypeError),
    "a message that is no JSON, after its run": (
        lambda: broken_start(
            "e" * 16,
            messages=(Message.of("user", "go").model_copy(update={"raw": {"a": object()}}),),
        ),
        TypeError,
    ),
    "a number that is too large": (
        lambda: broken_start("e" * 16, execution_count=2**70),
        OverflowError,
    ),
    "a value that is no cell": (lambda: broken_start("e" * 16, name=object()), StoreError),
    "a text that is too long": (lambda: broken_start("e" * 16, prompt="x" * 300_000), StoreError),
}


@pytest.mark.parametrize("what", BROKEN)
def test_an_error_of_one_run_rolls_back_no_other(what: str, store: Store) -> None:
    runs, (make, error) = crowd(RUNS), BROKEN[what]
    database: Any = store.database
    database._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 200_000)
    raised: list[BaseException] = []

    async def broken() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        for _ in range(5):
            try:
                await store.commit(make())
            except Exception as failure:
                raised.append(failure)

    async def both() -> None:
        await asyncio.gather(commit_all(store, runs), broken())

    asyncio.run(both())
    assert [type(failure) for failure in raised] == [error] * 5, raised
    assert store.warning is None, "no disk failed"
    for events in runs.values():
        assert store.load(record_of(events).id) == record_of(events)
    assert store.counts()["runs"] == RUNS
    check_file(store)


@pytest.mark.parametrize("at", [2, 9, 100, 101, 102, 103, 150, 263])
def test_a_disk_that_fails_in_the_middle_of_a_group_loses_nothing(at: int, home: Path) -> None:
    runs, happened = crowd(RUNS), list[int]()

    def fail() -> None:
        happened.append(at)
        raise sqlite3.OperationalError("disk I/O error")

    warnings: list[str] = []
    with at_statement(0, fail):
        store = Store.open(home)
    store.on_warning(warnings.append)
    with at_statement(at, fail):
        asyncio.run(commit_all(store, runs))
    assert happened == [at]
    assert len(warnings) == 1
    assert "disk I/O error" in warnings[0]
    for events in runs.values():
        assert store.load(record_of(events).id) == record_of(events)
    assert store.counts()["runs"] == RUNS
    store.close()
    with closing(Store.open(home)) as store:
        check_file(store)


@needs_fork
@pytest.mark.parametrize(
    "step",
    [
        pytest.param(83, id="some"),
        pytest.param(3, id="all", marks=[pytest.mark.proof, pytest.mark.timeout(1800)]),
    ],
)
def test_what_was_acknowledged_is_there_after_a_kill(
    step: int, forker: Forker, tmp_path: Path
) -> None:
    runs = crowd(RUNS)
    kills = 0
    for n in count(20, step):
        home = tmp_path / str(n)
        home.mkdir()
        if forker.run("crowd", home, die_at=n):
            break
        kills += 1
        with closing(Store.open(home)) as store:
            check_file(store)
            for line in notes(home / "notes"):
                run_id, index = line.split()
                check_on_disk(store, runs[run_id][int(index)])
            # A run is there with its first event or not at all.
            started = {line.split()[0] for line in notes(home / "notes")}
            assert started <= {run_id for run_id in runs if is_there(store, run_id)}
    assert kills > 5


def is_there(store: Store, run_id: str) -> bool:
    with store.reading() as c:
        return c.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone() is not None


def check_on_disk(store: Store, event: Event) -> None:
    """An event that was acknowledged is in the store."""
    match event:
        case RunStarted(run=run):
            assert store.load(run.id).prompt == run.prompt
        case ResponseReceived(turn=turn):
            found = store.load(turn.run_id).turns[turn.index - 1]
            assert found.response == turn.response
        case ToolCallFinished(run_id=run_id, tool_run=tool_run):
            results = {
                it.tool_call_id: it.result
                for turn in store.load(run_id).turns
                for it in turn.tool_runs
            }
            assert results[tool_run.tool_call_id] == tool_run.result
        case TurnFinished(turn=turn):
            assert store.load(turn.run_id).turns[turn.index - 1] == turn
        case RunFinished(run=run):
            assert store.load(run.id) == run
        case _:
            raise AssertionError(event)


# Through agents


def meeting(n: int) -> tuple[Script, Callable[..., Any], threading.Event, list[str]]:
    """A model and a tool in which `n` runs wait for each other and for an event."""
    there, go = list[str](), threading.Event()

    async def meet(name: str) -> str:
        """Meet the others."""
        there.append(name)
        await asyncio.to_thread(go.wait)
        return f"met as {name}"

    answers = [step(calls=[call("meet", name="a"), call("meet", name="b")])] * n
    return script([*answers, *[step(text="All met.")] * n], name="meeting"), meet, go, there


def test_a_stop_while_a_group_waits_for_another_writer_loses_nothing(tmp_path: Path) -> None:
    n = 4
    model, meet, go, there = meeting(n)
    waits: list[str] = []
    agent = nbagent.Agent(model=model, tools=[meet])
    runs = [
        agent.start(
            f"Meet, {i}.",
            on_event=lambda event, i=i: (
                waits.append(str(i)) if isinstance(event, Waiting) else None
            ),
        )
        for i in range(n)
    ]
    wait_for(lambda: len(there) == 2 * n)
    path = current_store().path
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        go.set()
        wait_for(lambda: set(waits) == {str(i) for i in range(n)})
        runs[0].stop()
        assert {run.phase for run in runs} == {"Running"}
        other.execute("ROLLBACK")
    ended = [run.wait(30) for run in runs]
    assert [run.stop_reason for run in ended] == ["stopped", *["answered"] * (n - 1)]
    for run in ended:
        check_run(run)
        results = [tool_run.result for turn in run.turns for tool_run in turn.tool_runs]
        assert [result.ok for result in results if result] == [True, True]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is true; the test's own limit ends it."""
    never = threading.Event()
    while not condition():
        never.wait(0.005)


@pytest.mark.parametrize(
    ("durable", "level"),
    [((False, True, False), 2), ((False, False), 1), ((True,), 2)],
    ids=["one of them", "none", "alone"],
)
def test_a_group_is_on_disk_after_a_power_cut_if_one_event_of_it_has_to_be(
    durable: tuple[bool, ...], level: int, home: Path
) -> None:
    async def levels(store: Store) -> list[int]:
        commits = (
            store.database.commit(
                # How SQLite writes: 2 is FULL, with an fsync; 1 is NORMAL, without.
                lambda c: c.execute("PRAGMA synchronous").fetchone()[0],
                durable=is_durable,
                memory_if_busy=False,
                on_wait=lambda: None,
                grouped=True,
            )
            for is_durable in durable
        )
        return list(await asyncio.gather(*commits))

    with closing(Store.open(home)) as store:
        assert asyncio.run(levels(store)) == [level] * len(durable)
