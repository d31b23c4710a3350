"""The panel without a browser: what it starts, what it tells the box, and what it never keeps."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from panel_stage import Stage, Wire, until

import nbagent
from nbagent import offline
from nbagent.archive.codec import unpacked
from nbagent.contracts.errors import StoreError
from nbagent.notebook.panel.choices import HOSTS
from nbagent.notebook.panel.talk import KEPT
from nbagent.settings import configure

KEY = "sk-canary-0123456789abcdef"


def area(city: str) -> float:
    """Area of a city."""
    return 454.1


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    made = Stage(Wire(), monkeypatch)
    yield made
    for handle in made.handles:
        handle.stop()


def part(parent: Any, name: str) -> Any:
    """A part of the form by the class of its widget."""
    return next(box for box in parent.children if name in box._dom_classes)


def fields(stage: Stage) -> dict[str, Any]:
    """The fields of the form by their labels."""
    form = part(stage.panel.form.root, "nba-panel-form")
    return {widget.description: widget for widget in form.children if hasattr(widget, "value")}


def ticks(stage: Stage) -> dict[str, Any]:
    """The check boxes of the notebook's own tools."""
    return {name: box for name, box in boxes(stage).items() if name not in HOSTS}


def boxes(stage: Stage) -> dict[str, Any]:
    """All check boxes of the list of tools."""
    tools = part(part(stage.panel.form.root, "nba-panel-form"), "nba-panel-tools")
    return {box.description: box for box in tools.children if hasattr(box, "indent")}


def test_a_prompt_becomes_a_run_of_the_same_store_and_the_next_one_goes_on(stage: Stage) -> None:
    form = stage.panel.form
    run = stage.run("What is the population of Oslo?")
    assert run.text == "**Oslo**: **717,710** (`population`)"
    assert stage.told() == [{"kind": "taken", "id": "m1"}]
    assert stage.store.load(run.id) == run
    assert (run.kind, run.cell_id, run.parent_id) == ("start", None, None)
    assert nbagent.open_run("last").id == run.id
    assert form.totals.value.startswith("1 run · 2 turns · ")
    said, view = form.talk.children
    assert said.state == {"who": "You", "text": "What is the population of Oslo?"}
    assert view.state["status"]["word"] == "Answered"
    assert stage.state["goes_on"]
    second = stage.run("And of Bergen?")
    assert (second.kind, second.parent_id) == ("continue", run.id)
    assert "291,940" in second.text
    assert form.totals.value.startswith("2 runs · ")
    stage.panel.begin_anew()
    assert not stage.state["goes_on"]
    assert form.talk.children == ()
    third = stage.run("Hello")
    assert (third.kind, third.parent_id) == ("start", None)
    assert list(nbagent.runs()["run_id"]) == [run.id, second.id, third.id]


def test_a_second_prompt_while_a_run_is_at_work_comes_back(stage: Stage) -> None:
    stage.ask("Use nap with 30 seconds")
    assert stage.state["working"]
    asked = stage.ask("And now?")
    assert stage.told()[-1] == {"kind": "refused", "id": asked, "prompt": "And now?"}
    assert "still at work" in stage.state["error"]
    until(lambda: stage.handles[0].record.messages)
    stage.stop()
    stage.settle()
    assert len(stage.store.runs()) == 1
    assert stage.state["status"] == "Stopped. Continue goes on from there."
    assert stage.state["can_continue"]


REFUSED = {
    "model": ("Model", "nosuch:model", "there is no provider 'nosuch'"),
    "key": ("Model", "openai:gpt-5.4", "openai needs a key: set "),
    "demo": ("Model", "openai:gpt-5.4", "or offline:demo in the Model field to go on"),
    "turns": ("Max turns", "0", "expected a whole number from 1"),
    "many turns": ("Max turns", "99", "larger than the ceiling"),
    "tokens": ("Max tokens (run)", "many", "expected a whole number from 1"),
    "cost": ("Max $", "-1", "expected a number of US dollars"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_one_line_and_the_prompt_comes_back(stage: Stage, case: str) -> None:
    field, value, words = REFUSED[case]
    stage.typed(fields(stage)[field], value)
    asked = stage.ask("Hello?")
    assert words in stage.state["error"]
    assert "\n" not in stage.state["error"]
    assert "--" not in stage.state["error"]
    assert stage.told() == [{"kind": "refused", "id": asked, "prompt": "Hello?"}]
    assert stage.handles == []
    assert not stage.state["working"]
    fits = {"Model": "offline:demo", "Max tokens (run)": "70000"}
    stage.typed(fields(stage)[field], fits.get(field, "7"))
    assert stage.run("Hello?").stop_reason == "answered"
    assert stage.state["error"] == ""


def test_a_prompt_that_cannot_be_asked_comes_back(stage: Stage) -> None:
    for prompt in ("  \n", "{{ 1 + }}", "{{ nosuch }}"):
        asked = stage.ask(prompt)
        assert stage.state["error"]
        assert stage.told()[-1] == {"kind": "refused", "id": asked, "prompt": prompt}


@pytest.mark.parametrize("soon", [True, False], ids=["at once", "later"])
def test_a_run_that_breaks_before_it_begins_loses_no_words(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, soon: bool
) -> None:
    began = threading.Event()

    async def broken(*_: object) -> None:
        if not soon:
            await asyncio.to_thread(began.wait)
        raise StoreError("the disk is gone; mend it")

    monkeypatch.setattr("nbagent.session.active.run_engine", broken)
    stage.ask("Hello?")
    began.set()
    until(lambda: stage.state["error"])
    stage.settle()
    assert "the disk is gone; mend it" in stage.state["error"]
    until(lambda: stage.told()[-1]["kind"] == "refused")
    assert stage.told()[-1]["prompt"] == "Hello?"
    assert not stage.state["goes_on"]
    assert stage.panel.form.talk.children[1].state["status"]["word"] == "Failed"


def test_the_list_of_tools_follows_the_notebook(stage: Stage) -> None:
    assert [*ticks(stage)] == ["population", "nap"]
    # All ticks mean the notebook's own tools, also those of later.
    assert "tools" not in stage.run("Hello").options
    ticks(stage)["nap"].value = False
    first = stage.run("What is the population of Oslo?")
    assert first.options["tools"] == ["population"]
    kept = ticks(stage)["population"]
    stage.namespace["area"] = nbagent.tool(area)
    stage.panel.after_cell()
    marks = {name: box.value for name, box in ticks(stage).items()}
    assert marks == {"population": True, "nap": False, "area": True}
    assert ticks(stage)["population"] is kept
    del stage.namespace["population"]
    second = stage.run("What is the area of Oslo?")
    assert [*ticks(stage)] == ["nap", "area"]
    assert second.options["tools"] == ["area"]
    assert "454.1" in second.text
    for box in ticks(stage).values():
        box.value = False
    assert stage.run("What is the area of Bergen?").options["tools"] == "none"


def test_hosts_go_along_once_ticked_and_settings_without_tools_tick_none(stage: Stage) -> None:
    found = {name: box.value for name, box in boxes(stage).items() if name in HOSTS}
    assert found == dict.fromkeys(HOSTS, False)
    boxes(stage)["fs"].value = True
    run = stage.run("What is the population of Oslo?")
    assert run.options["tools"] == ["population", "nap", "fs"]
    assert "fs.read" in {spec.name for tools in run.toolsets.values() for spec in tools}
    configure(tools="none")
    try:
        stage.namespace["area"] = nbagent.tool(area)
        stage.panel.after_cell()
        assert not ticks(stage)["area"].value
    finally:
        configure(tools=None)


def test_a_reopened_run_ticks_what_it_had_and_settings_that_say_all_tick_all(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbagent.tools.mcp.server._servers", {})

    def ticked() -> list[str]:
        return [name for name, box in boxes(stage).items() if box.value]

    for tools, expected in (None, ["population", "nap"]), ("all", ["population", "nap", *HOSTS]):
        run = nbagent.Agent("offline:demo", tools=tools).run("Hello")
        stage.panel.after_cell()
        stage.panel.form.runs.value = run.id
        assert ticked() == expected
    nbagent.mcp("city", command=["never", "started"])
    configure(tools="all")
    try:
        stage.panel.after_cell()
        assert ticked() == ["population", "nap", *HOSTS, "mcp:city"]
        options, dropped = stage.panel.form.choices().options(None)
        assert options.tools is None
        assert "tools" in dropped, "as the settings say"
        boxes(stage)["mcp:city"].value = False
        assert stage.run("Hello").options["tools"] == ["population", "nap", *HOSTS]
    finally:
        configure(tools=None)


def test_a_run_of_a_cell_is_reopened_with_its_options_and_goes_on(stage: Stage) -> None:
    agent = nbagent.Agent("offline:demo", tools=("population",), system="Be brief.", max_turns=7)
    first = agent.run("What is the population of Oslo?", max_cost_usd=1.5)
    first.resume("And of Bergen?")
    stage.panel.after_cell()
    listed = dict(stage.panel.form.runs.options)
    assert listed["And of Bergen?"] == stage.handles[-1].id
    stage.panel.form.runs.value = stage.handles[-1].id
    words = [child.state.get("text") for child in stage.panel.form.talk.children[::2]]
    assert words == ["What is the population of Oslo?", "And of Bergen?"]
    assert stage.panel.form.runs.value == ""
    found = fields(stage)
    assert found["Model"].value == "offline:demo"
    assert (found["Max turns"].value, found["Max $"].value) == ("7", "1.5")
    assert stage.state["system"] == "Be brief."
    marks = {name: box.value for name, box in ticks(stage).items()}
    assert marks == {"population": True, "nap": False}
    assert stage.panel.form.totals.value.startswith("2 runs · ")
    found["Max turns"].value, found["Max $"].value = "20", ""
    run = stage.run("And of Oslo?", system="")
    assert run.parent_id == stage.handles[-2].id
    assert (run.limits.max_turns, run.limits.max_cost_usd) == (20, None)
    assert "system" not in run.options
    assert run.options["tools"] == ["population"]


def test_only_the_last_runs_stay_on_the_page_until_those_are_forgotten(stage: Stage) -> None:
    form = stage.panel.form
    for _ in range(KEPT + 2):
        stage.run("Say hello")
    assert len(form.talk.children) == 2 * KEPT
    closed = {m["comm"] for m in stage.wire.sent if m["type"] == "comm_close"}
    assert len(closed) == 8  # words and view, and the layout of each, of two runs
    older = [handle.id[:8] for handle in stage.handles[:2]]
    assert form.note.value == (
        "2 earlier runs of this conversation are no longer shown here "
        f"({', '.join(older)}); %agent show {older[1]} shows that one again."
    )
    assert form.totals.value.startswith(f"{KEPT + 2} runs")
    stage.panel.forget(stage.store.forget(stage.handles[1].id, children=True))
    said, view = form.talk.children
    assert said.state["text"] == "Say hello"
    assert view.state["status"]["word"] == "Answered"
    assert form.note.value == ""
    assert stage.run("Hello").parent_id == stage.handles[0].id


def test_a_forgotten_run_goes_from_the_panel_and_the_one_before_goes_on(stage: Stage) -> None:
    form = stage.panel.form
    other = stage.run("Hello")
    stage.panel.begin_anew()
    first = stage.run("What is the population of Oslo?")
    kept = form.talk.children
    second = stage.run("And of Bergen?")
    # One of another conversation goes without a word.
    for run_id in (other.id, second.id):
        stage.panel.forget(stage.store.forget(run_id))
    assert form.talk.children == kept
    assert form.totals.value.startswith("1 run · ")
    assert [run_id for _, run_id in form.runs.options] == ["", first.id]
    assert "291,940" not in json.dumps(stage.shown[-1][0])
    assert "717,710" in json.dumps(stage.shown[-1][0])
    third = stage.run("And of Bergen, again?")
    assert (third.kind, third.parent_id) == ("continue", first.id)
    stage.panel.forget(stage.store.forget(first.id, children=True))
    assert form.talk.children == ()
    assert len(form.runs.options) == 1
    assert "717,710" not in json.dumps(stage.shown[-1][0])
    assert stage.state["status"] == (
        "All of this conversation was forgotten; the next prompt begins a new one"
    )
    assert not stage.state["goes_on"]
    assert stage.run("Hello").kind == "start"
    assert stage.state["status"] == ""


def test_the_saved_form_has_the_last_runs_and_their_record_as_text(stage: Stage) -> None:
    (widget, _), (before, how) = stage.shown
    assert [*widget] == ["application/vnd.jupyter.widget-view+json"]
    assert "run this cell again" in before["text/plain"]
    assert not how["update"]
    run = stage.run("Population of Oslo? <img src=x onerror=alert(1)> [a](javascript:1)\u202e")
    after, how = stage.shown[-1]
    assert how["update"]
    assert unpacked(how["metadata"]["nbagent"]).id == run.id
    for kind in ("text/html", "text/markdown", "text/plain"):
        assert "Population of Oslo?" in after[kind]
        assert "717,710" in after[kind]
    assert "<img" not in after["text/html"]
    assert "<img src=x onerror=alert(1)> [a](javascript:1)" in after["text/markdown"]


def test_no_key_stays_in_a_widget_or_leaves_on_the_wire(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY_API_KEY", KEY)
    for field in fields(stage).values():
        stage.typed(field, f"x{KEY}")
        assert field.value == "x[redacted]"
    stage.panel.form.box.act({"kind": "system", "text": f"Use {KEY}."})
    assert stage.state["system"] == "Use [redacted]."
    stage.ask(f"What does {KEY} open?")
    assert stage.told()[-1]["prompt"] == "What does [redacted] open?"
    stage.ask(f"{{{{ open('{KEY}') }}}}")
    assert "[redacted]" in stage.state["error"]
    for name, field in fields(stage).items():
        stage.typed(field, {"Max turns": "3"}.get(name, ""))
    run = stage.run(f"{{{{ 1 + 1 }}}} {KEY}", system=f"Never say {KEY}.")
    assert run.prompt == "2 [redacted]"
    offline.script([f"It is {KEY}."], name="talks")
    stage.typed(fields(stage)["Model"], "offline:talks")
    stage.run("Tell me.")
    everything = json.dumps([stage.wire.sent, stage.shown], default=str)
    assert KEY not in everything
    assert "It is [redacted]." in everything
