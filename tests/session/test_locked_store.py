"""Another process is writing to the store: runs wait for it visibly, and nothing else waits."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from engine.laws import check_run, codes

import nbagent
from nbagent.archive import database
from nbagent.contracts.events import Event, TurnStarted, Waiting
from nbagent.providers.offline import call, calls, script
from nbagent.session.stores import close_stores, current_store


@contextmanager
def locked() -> Generator[None]:
    """The store's file as another process leaves it in the middle of a long transaction."""
    path = current_store().path
    assert path is not None
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


class Watch:
    """An `on_event` that hears when a run waits."""

    def __init__(self) -> None:
        self.seen: list[Event] = []
        self.waits = threading.Event()

    @property
    def said(self) -> list[str]:
        return [event.text for event in self.seen if isinstance(event, Waiting)]

    def __call__(self, event: Event) -> None:
        self.seen.append(event)
        if isinstance(event, Waiting):
            self.waits.set()


def test_a_run_waits_for_the_store_says_so_and_is_kept_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    watch = Watch()
    model = script([call("look"), "Done."])
    look = nbagent.tool(name="look")(lambda: 1)
    current_store()
    with locked():
        run = nbagent.Agent(model=model, tools=[look]).start("Go.", on_event=watch)
        assert watch.waits.wait(10)
        assert model.requests == [], "nothing is asked before the run is on disk"
        assert not any(isinstance(event, TurnStarted) for event in watch.seen)
        with monkeypatch.context() as patched:
            patched.setenv("NBAGENT_HOME", str(tmp_path_factory.mktemp("other")))
            other = nbagent.Agent(model=script(["Two."]), tools=[]).start("Go.")
            assert other.wait(timeout=20).text == "Two.", "another store is not held up"
        assert run.phase == "Running"
    check_run(run.wait(timeout=20), model)
    assert run.ok
    assert "another process is writing" in watch.said[0]
    close_stores()
    assert nbagent.open_run(run.id).record == run.record


def test_a_stop_during_the_wait_cuts_the_tools_at_once_and_loses_no_turn() -> None:
    began, cut = threading.Event(), threading.Event()
    watch = Watch()

    async def endless() -> None:
        """Work."""
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            cut.set()

    def quick() -> int:
        """Give a number, once the other works."""
        began.wait(10)
        holder.__enter__()
        return 1

    tools = [endless, nbagent.tool(threaded=True)(quick)]
    holder = locked()
    agent = nbagent.Agent(model=script([calls([call("endless"), call("quick")])]), tools=tools)
    run = agent.start("Go.", on_event=watch)
    assert watch.waits.wait(10), "the result of `quick` cannot be committed"
    run.stop()
    assert cut.wait(2), "the running tool is interrupted while the commit waits"
    assert ["or stops, when it is done" in text for text in watch.said] == [True]
    holder.__exit__(None, None, None)
    check_run(run.wait(timeout=20))
    assert (run.phase, run.stop_reason) == ("Failed", "stopped")
    assert codes(run) == ["E_INTERRUPTED", None]
    close_stores()
    assert nbagent.open_run(run.id).record == run.record


def test_a_file_that_stays_locked_in_a_run_moves_the_runs_into_memory_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.3)
    holder = locked()

    def lock() -> str:
        """Lock the store."""
        holder.__enter__()
        return "locked"

    run = nbagent.Agent(model=script([call("lock"), "One."]), tools=[lock]).run("Go.")
    assert run.ok
    assert "RUNS ARE NOT KEPT ON DISK" in run.record.notices[0]
    assert "database is locked" in run.record.notices[0]
    assert current_store().path is None
    assert nbagent.open_run(run.id).record == run.record
    holder.__exit__(None, None, None)


def test_a_run_that_cannot_begin_because_the_file_stays_locked_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.3)
    agent = nbagent.Agent(model=script(["One.", "Two."]), tools=[])
    home = Path(os.environ["NBAGENT_HOME"])
    home.mkdir(parents=True)
    with closing(sqlite3.connect(home / "runs.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(nbagent.StoreError, match="locked by another process"):
            agent.run("Go.")
        other.execute("ROLLBACK")
    current_store()  # opened after all
    with locked(), pytest.raises(nbagent.StoreError, match="locked by another process"):
        agent.run("Go.")
    assert current_store().path is not None
    assert agent.run("Go.").text == "One."
    assert len(nbagent.runs()) == 1
