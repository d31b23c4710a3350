"""Views, callbacks and the disk may fail: the run goes on, says so, and loses nothing.

Nor when another process is writing to the store: the run waits for it visibly.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_answered, check_record, check_run, codes, fill_disk, look
from frontends import StandIn
from session.approval_stage import Unsayable, UnsayableExit, View

import nbagent
from nbagent.contracts.events import (
    Event,
    Notice,
    RunFinished,
    TextDelta,
    TurnFinished,
    TurnStarted,
    Waiting,
)
from nbagent.providers.offline import call, calls, delay, script, step
from nbagent.session import active_run
from nbagent.session.frontend import use_frontend
from nbagent.session.stores import close_stores, current_store
from nbagent.store import connections, database
from nbagent.store.writer import Store


def model_of() -> Any:
    return script([call("look", place="a"), "Done."])


@pytest.mark.parametrize(
    "error",
    [ValueError("odd"), SystemExit(3), KeyboardInterrupt(), Unsayable(), UnsayableExit()],
    ids=lambda error: type(error).__name__,
)
def test_a_callback_that_raises_is_detached_and_named(error: BaseException) -> None:
    seen: list[Event] = []

    def on_event(event: Event) -> None:
        seen.append(event)
        if isinstance(event, TurnFinished):
            raise error

    view = View()
    use_frontend(StandIn(view=view.open))
    model = model_of()
    run = nbagent.Agent(model=model, tools=[look]).run("Go.", on_event=on_event)
    assert check_run(run, model).ok
    assert isinstance(seen[-1], TurnFinished), "it hears nothing more"
    assert f"on_event was detached: {type(error).__name__}" in run.record.notices[0]
    assert [e.text for e in view.events if isinstance(e, Notice)] == list(run.record.notices)
    assert isinstance(view.events[-1], RunFinished)
    assert view.closed == 1


@pytest.mark.parametrize("fails", ["open", "close", "RunStarted", "TextDelta", "RunFinished"])
def test_a_view_that_fails_anywhere_does_not_touch_the_run(fails: str) -> None:
    use_frontend(StandIn(view=View(fails=fails).open))
    heard: list[Event] = []
    model = model_of()
    run = nbagent.Agent(model=model, tools=[look]).run("Go.", on_event=heard.append)
    assert check_run(run, model).ok
    assert len([e for e in heard if isinstance(e, TurnFinished)]) == 2
    if fails != "close":
        assert any(isinstance(e, Notice) and "RuntimeError" in e.text for e in heard)


def test_events_are_seen_only_after_they_are_committed_and_deltas_are_never_stored() -> None:
    stored: list[tuple[str, int]] = []
    deltas: list[Event] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TurnFinished):
            record = current_store().load(event.turn.run_id)
            stored.append((record.turns[-1].id, len(record.messages)))
        elif isinstance(event, TextDelta):
            deltas.append(event)

    model = script([call("look", place="a"), " ".join(f"word{n}" for n in range(300))])
    assert nbagent.Agent(model=model, tools=[look]).run("Go.", on_event=on_event).ok
    assert stored == [("C01", 3), ("C02", 4)]
    assert len(deltas) > 100
    counts = current_store().counts()
    assert counts == {"runs": 1, "turns": 2, "tool_runs": 1, "messages": 4}


def test_the_lease_of_the_store_is_kept_alive_while_a_run_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(active_run, "_HEARTBEAT_S", 0.05)
    beats: list[Store] = []
    heartbeat = Store.heartbeat

    def counted(store: Store) -> bool:
        beats.append(store)
        return heartbeat(store)

    monkeypatch.setattr(Store, "heartbeat", counted)
    agents = [nbagent.Agent(model=script([delay(s), "Done."])) for s in (0.0, 0.4)]
    runs = [agent.start("Go.") for agent in agents]
    assert all(run.wait().ok for run in runs)
    assert len(beats) >= 3
    done = len(beats)
    time.sleep(0.2)
    assert len(beats) == done


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


def shorten_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait shortly for a locked store: where it is opened, and in a transaction."""
    for room in (connections, database):
        monkeypatch.setattr(room, "BUSY_TIMEOUT_S", 0.3)


@pytest.mark.parametrize("way", ["full", "deleted", "replaced", "locked"])
def test_a_disk_that_fails_in_the_middle_moves_the_runs_into_memory_and_says_so_loudly(
    way: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = current_store().path
    assert path is not None
    lock = ExitStack()
    if way == "locked":
        shorten_wait(monkeypatch)

    def spoil() -> str:
        """Spoil the disk."""
        if way == "locked":
            lock.enter_context(locked())
            return "locked"
        if way == "full":
            fill_disk()
            return "x" * 200_000
        shutil.rmtree(path.parent)
        if way == "replaced":
            Store.open(path.parent).close()
        return "gone"

    nbagent.Agent(model=script(["Before."])).run("First.", name="before")
    model = script([call("spoil"), call("look", place="b"), "Done.", "More."])
    agent = nbagent.Agent(model=model, tools=[nbagent.tool(max_result_chars=10**6)(spoil), look])
    run = check_run(agent.run("Go."), model)
    assert (run.ok, len(run.turns)) == (True, 3)
    (notice,) = run.record.notices
    assert notice.startswith("RUNS ARE NOT SAVED ON DISK")
    said = {"full": "full", "locked": "database is locked"}.get(way, "deleted or replaced")
    assert said in notice
    assert notice in capsys.readouterr().err
    if way == "full":
        assert nbagent.open_run("before").text == "Before."
        assert check_run(run.resume("More."), model).record.notices == run.record.notices
    current_store().heartbeat()
    lock.close()
    close_stores()


def test_both_runs_at_work_hear_that_the_disk_failed() -> None:
    def big(place: int) -> str:
        """Fill the disk."""
        return "x" * 40_000

    both = [call("big", place=n) for n in range(6)]
    agent = nbagent.Agent(model=script([*both, "Done.", "Done."]), tools=[big])
    runs = [agent.start("One."), agent.start("Two.")]
    fill_disk()
    for run in runs:
        run.wait()
        check_answered(run.messages)
        check_record(run.record)
        assert "RUNS ARE NOT SAVED ON DISK" in run.record.notices[0]
        assert nbagent.open_run(run.id).record == run.record


def test_a_script_prints_what_the_person_should_know_and_with_echo_plain_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nbagent.Agent(model=model_of(), tools=[look]).run("Go.")
    assert capsys.readouterr() == ("", "")
    nbagent.Agent(tools=[]).run("Hello.")
    said = capsys.readouterr()
    assert (said.out, "not by a model: no key and no local server" in said.err) == ("", True)
    cut = step(calls=call("look", place="a").calls, finish_reason="length")
    model = script([call("look", place="a"), cut, "Done."])
    nbagent.Agent(model=model, tools=[look], echo=True).run("Go.")
    printed = capsys.readouterr().out
    calls = re.findall(r"^(C0\d)  \d\d:\d\d:\d\d (look.*?) [→✕]", printed, re.MULTILINE)
    assert calls == [("C01", 'look(place="a")'), ("C02", 'look(place="a")')], "each once"
    assert "✕ E_INVALID_ARGUMENTS" in printed
    assert "Done." in printed


class Screen(io.StringIO):
    """An output of which a person reads every line, if it is a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "options", "shows_calls", "shows_answer"),
    [
        (True, {}, True, False),
        (True, {"echo": True}, True, True),
        (True, {"echo": False}, False, False),
        (True, {"quiet": True}, False, False),
        (False, {}, False, False),
        (False, {"echo": True}, True, True),
    ],
    ids=str,
)
def test_a_script_in_a_terminal_shows_calls_while_they_happen(
    is_terminal: bool,
    options: dict[str, Any],
    shows_calls: bool,
    shows_answer: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Screen(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stdout", screen)
    shown_in_the_call = list[str]()

    def slow(place: str) -> str:
        shown_in_the_call.append(screen.getvalue())
        return "sunny"

    model = script([call("slow", place="a\x1b[2J"), "Done."])
    nbagent.Agent(model=model, tools=[slow], **options).run("Go.")
    begin = 'C01  ▸ slow(place="a⟦U+001B⟧[2J") …\n'
    (shown,) = shown_in_the_call
    assert shown.endswith(begin) == shows_calls
    printed = screen.getvalue()
    assert printed.count(begin) == printed.count(' → "sunny"') == int(shows_calls)
    assert ("Done." in printed) == shows_answer
    assert bool(printed) == shows_calls


def test_the_line_of_a_beginning_call_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789abcdef")
    monkeypatch.setattr("sys.stdout", screen := Screen(is_terminal=True))
    model = script([call("look", place="sk-canary-0123456789abcdef"), "Done."])
    nbagent.Agent(model=model, tools=[look]).run("Go.")
    assert "▸ look(" in screen.getvalue()
    assert "canary" not in screen.getvalue()


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
    assert ["continues (or stops) when it is done" in text for text in watch.said] == [True]
    holder.__exit__(None, None, None)
    check_run(run.wait(timeout=20))
    assert (run.phase, run.stop_reason) == ("Failed", "stopped")
    assert codes(run) == ["E_INTERRUPTED", None]
    close_stores()
    assert nbagent.open_run(run.id).record == run.record


def test_a_run_that_cannot_begin_because_the_file_stays_locked_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_wait(monkeypatch)
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


SCRIPT = """
import nbagent
def broken(event):
    raise ValueError("no")
agent = nbagent.Agent(model="offline:demo", tools=["skills"], **{options})
agent.run("Hello.", on_event=broken)
"""
WARNINGS = ("is not audited", "on_event was detached", "the skill 'empty' is skipped")


@pytest.mark.parametrize("options", [{}, {"echo": True}, {"quiet": True}], ids=str)
def test_a_script_prints_each_warning_once(tmp_path: Path, options: dict[str, Any]) -> None:
    skill = tmp_path / ".agents/skills/empty"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: empty\n---\n")
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(options=options)],
        cwd=tmp_path,
        env={**os.environ, "NBAGENT_HOME": str(tmp_path / "file" / "no folder")},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = done.stdout + done.stderr
    assert [printed.count(warning) for warning in WARNINGS] == [1, 1, 1], printed
    assert printed.count("RUNS ARE NOT SAVED ON DISK") == ("quiet" not in options)
