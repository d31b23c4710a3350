"""Views, callbacks and the disk may fail: the run goes on, says so, and loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_answered, check_record, check_run, fill_disk, look
from frontends import StandIn

import nbagent
from nbagent.archive.store import Store
from nbagent.contracts.events import Event, Notice, RunFinished, TextDelta, TurnFinished
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.providers.offline import call, script, step
from nbagent.session.frontend import use_frontend
from nbagent.session.stores import close_stores, current_store


def model_of() -> Any:
    return script([call("look", place="a"), "Done."])


class View:
    """Collects events; may fail in every way."""

    name = "test view"

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.events: list[Event] = []
        self.closed = 0

    def open(self, run: RunRecord, controls: RunControls) -> Sink:
        if self.fails == "open":
            raise RuntimeError("no screen")
        return self

    def handle(self, event: Event) -> None:
        self.events.append(event)
        if self.fails == type(event).__name__:
            raise RuntimeError("no paint")

    def close(self) -> None:
        self.closed += 1
        if self.fails == "close":
            raise RuntimeError("no end")


@pytest.mark.parametrize("error", [ValueError("odd"), SystemExit(3), KeyboardInterrupt()], ids=repr)
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
    use_frontend(StandIn(view=View(fails).open))
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


@pytest.mark.parametrize("way", ["full", "deleted", "replaced"])
def test_a_disk_that_fails_in_the_middle_moves_the_runs_into_memory_and_says_so_loudly(
    way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = current_store().path
    assert path is not None

    def spoil() -> str:
        """Spoil the disk."""
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
    assert notice.startswith("RUNS ARE NOT KEPT ON DISK")
    assert ("full" if way == "full" else "deleted or replaced") in notice
    assert notice in capsys.readouterr().err
    if way == "full":
        assert nbagent.open_run("before").text == "Before."
        assert check_run(run.resume("More."), model).record.notices == run.record.notices
    current_store().heartbeat()
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
        assert "RUNS ARE NOT KEPT ON DISK" in run.record.notices[0]
        assert nbagent.open_run(run.id).record == run.record


def test_where_no_folder_can_be_made_runs_are_in_memory_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "file" / "home"))
    model = model_of()
    run = check_run(nbagent.Agent(model=model, tools=[look]).run("Go."), model)
    assert "RUNS ARE NOT KEPT ON DISK" in run.record.notices[0]
    assert "RUNS ARE NOT KEPT ON DISK" in capsys.readouterr().err


def test_a_script_prints_what_the_person_should_know_and_with_echo_plain_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nbagent.Agent(model=model_of(), tools=[look]).run("Go.")
    assert capsys.readouterr() == ("", "")
    nbagent.Agent(tools=[]).run("Hello.")
    said = capsys.readouterr()
    assert (said.out, "offline:demo was chosen" in said.err) == ("", True)
    cut = step(calls=call("look", place="a").calls, finish_reason="length")
    model = script([call("look", place="a"), cut, "Done."])
    nbagent.Agent(model=model, tools=[look], echo=True).run("Go.")
    printed = capsys.readouterr().out
    assert 'C01  look(place="a") …' in printed
    assert 'C02  look(place="a") ✕ E_INVALID_ARGUMENTS' in printed
    assert "Done." in printed
