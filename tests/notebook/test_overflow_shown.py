"""What a person sees of a request that is too long: live, saved, in a terminal, in a cell."""

from __future__ import annotations

import pytest
from engine.laws import check_run
from magic_shell import MagicShell

import nbagent
from nbagent.contracts.events import Event, TurnFinished
from nbagent.notebook.live_state import LiveState
from nbagent.notebook.plain_lines import PlainPrinter
from nbagent.notebook.static_html import bundle
from nbagent.notebook.view_state import view_of
from nbagent.providers.offline import call, error, script


def fetch(page: str) -> str:
    """Fetch a page."""
    return page * 9_000


def paused(trim: str) -> tuple[nbagent.Run, list[Event]]:
    refusal = error("LLM_CONTEXT_OVERFLOW", "too long")
    model = script([call("fetch", page="a"), call("fetch", page="b"), refusal, refusal])
    events: list[Event] = []
    run = nbagent.Agent(model=model, tools=[fetch], trim=trim).run("Go.", on_event=events.append)
    return check_run(run), events


def test_the_pause_says_in_every_form_what_takes_the_room() -> None:
    run, events = paused("none")
    lines: list[str] = []
    printer = PlainPrinter(lines.append)
    for event in events:
        printer.handle(event)
    forms = [*bundle(view_of(run.record)).values(), "".join(lines)]
    assert len(forms) == 4
    for form in forms:
        text = form.replace("\\", "").replace("&quot;", '"')
        assert "Paused: the request is too long" in text
        assert "LLM_CONTEXT_OVERFLOW" in text
        assert "about 4,6" in text
        assert "tokens (estimated)" in text
        assert "result of fetch in C01 48 %" in text
        assert "‖ LLM_CONTEXT_OVERFLOW: the request is too long for the model" in text


def test_the_turn_says_that_old_results_were_shortened() -> None:
    run, events = paused("tool-results")
    live = LiveState(run.record.model_copy(update={"phase": "Running", "turns": ()}))
    for event in events:
        live.fold(event)
        if isinstance(event, TurnFinished) and event.turn.id == "C03":
            shown = live.snapshot()["turns"][-1]
            stored = view_of(run.record)["turns"][-1]
            assert shown["request"]["words"] == stored["request"]["words"]
            assert shown["notices"] == stored["notices"]
    state = view_of(run.record)
    assert "2 old tool results shortened" in state["turns"][2]["request"]["words"]
    assert "shortened" not in state["turns"][1]["request"]["words"]
    for form in bundle(state).values():
        assert "1 tool result is sent shortened from here on" in form.replace("\\", "")


@pytest.mark.parametrize("quiet", ["", " --quiet"], ids=["shown", "quiet"])
def test_a_cell_that_pauses_so_is_no_error_and_its_run_goes_on(
    shell: MagicShell, quiet: str
) -> None:
    refusal = error("LLM_CONTEXT_OVERFLOW", "too long")
    model = script(
        [call("fetch", page="a"), call("fetch", page="b"), refusal, "Done."], name="narrow"
    )
    shell.user_ns["fetch"] = nbagent.tool(fetch)
    run = shell.agent(f"--model {model.model_id} --tools fetch{quiet}", "Go.")
    assert (run.phase, run.stop_reason) == ("WaitingUser", "length")
    assert check_run(run.resume(trim="tool-results")).text == "Done."
