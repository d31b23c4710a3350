"""The buttons below a finished run: what a page says is checked before anything is done."""

from __future__ import annotations

from typing import Any

import comm
import pytest
from frontends import StandIn
from panel_stage import Wire, until

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.export.cell import cell_text
from nbagent.notebook import button_actions
from nbagent.notebook.messages import Message
from nbagent.notebook.outputs import Output, find_output
from nbagent.session.frontend import Cell, use_frontend
from nbagent.session.request import RunRequest
from nbagent.view import node

BAD: dict[str, dict[str, Any]] = {
    "unknown output": {"at": "0-1"},
    "unknown run": {"run": "0" * 16},
    "no verb": {"do": None},
    "an approval": {"do": "answer", "choice": "once"},
    "a list": {"do": ["retry"]},
    "words that are no text": {"fields": {"prompt": {"a": 1}}},
    "endless words": {"fields": {"prompt": "x" * 200_000}},
    "an endless verb": {"do": "retry" * 1_000},
    "a turn that is no text": {"turn": 5},
}


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """A front end with widgets, whose messages are kept."""
    made = Wire()
    monkeypatch.setattr(comm, "create_comm", made.open)
    monkeypatch.setattr(button_actions, "_actions", None)
    return made


@pytest.fixture
def output() -> Output:
    """An output with a finished run."""
    run = nbagent.Agent(model="offline:demo", tools=[], max_turns=7).run("Hello {{ braces }}")
    output = Output()
    output.add(run.id)
    return output


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_a_message_that_is_not_whole_does_nothing(
    output: Output, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []

    def note(work: object, **_: object) -> None:
        done.append(work)

    monkeypatch.setattr(button_actions, "start_by_click", note)
    monkeypatch.setattr(button_actions, "run_in_thread", note)
    fine: dict[str, Any] = {"do": "retry", "at": output.id, "run": output.run_ids[0]}
    fine |= {"kind": "act", "fields": {"n": "3"}}
    button_actions.on_message({**fine, **change})
    button_actions.on_message([fine])
    assert done == []
    button_actions.on_message(fine)
    assert len(done) == 1


def test_only_the_last_thousand_outputs_are_remembered(output: Output) -> None:
    others = [Output() for _ in range(1_000)]
    assert find_output(output.id) is None
    assert [find_output(one.id) for one in others] == others


def test_retry_and_fork_name_a_turn_of_the_run_and_continue_its_end(output: Output) -> None:
    run = output.load(output.run_ids[0])

    def ask(do: str, turn: str = "", **fields: str) -> RunRequest:
        return button_actions.to_request(
            Message(kind="act", do=do, run=run.id, turn=turn, fields=fields), output
        )

    retry = ask("retry", n="3")
    assert (retry.kind, retry.fork_turn, retry.prompt) == ("fork", "C01", None)
    assert retry.defer_calls
    fork = ask("fork", "C01", prompt=" in short ")
    assert (fork.fork_turn, fork.prompt, fork.parent_id) == ("C01", "in short", run.id)
    assert not fork.defer_calls
    assert ask("continue", prompt=" ").kind == "resume"
    assert ask("continue", prompt="more").kind == "continue"
    with pytest.raises(UsageError, match="has no turn 'C09'"):
        ask("fork", "C09")
    output.running_id = "another"
    with pytest.raises(UsageError, match="still running"):
        ask("retry")


@pytest.mark.parametrize("n", ["1", "4", "x"])
def test_a_retry_asks_once_whatever_a_page_says(output: Output, n: str) -> None:
    handles: list[Any] = []
    use_frontend(StandIn(set_last=handles.append))
    (asked,) = output.run_ids
    click = {"kind": "act", "do": "retry", "at": output.id, "run": asked, "fields": {"n": n}}
    button_actions.on_message(click)
    until(lambda: bool(handles) and not output.running_id)
    (handle,) = handles
    handle.wait(20)
    assert output.parts == [(asked,), (handle.id,)]


@pytest.mark.parametrize("is_in_the_way", [True, False])
def test_a_retry_that_cannot_begin_says_why(
    output: Output, wire: Wire, is_in_the_way: bool
) -> None:
    def cell() -> Cell:
        raise UsageError("no more than that")

    button_actions.enable_buttons()
    if is_in_the_way:
        output.running_id = "another"
    else:
        use_frontend(StandIn(cell=cell))
    (asked,) = output.run_ids
    click = {"kind": "act", "do": "retry", "at": output.id, "run": asked, "fields": {}}
    button_actions.on_message(click)
    until(lambda: len(wire.replies) > 1)
    why = "still running" if is_in_the_way else "no more than that"
    assert why in wire.replies[-1]["said"]
    assert output.parts == [(asked,)]


def test_buttons_of_a_page_that_was_loaded_anew_start_nothing_and_say_what_to_do(
    output: Output, wire: Wire
) -> None:
    button_actions.enable_buttons()

    def said(at: Output, do: str, **more: Any) -> str:
        before = len(wire.replies)
        told = {"kind": "act", "do": do, "at": at.id, "run": at.run_ids[0], **more}
        button_actions.on_message(told)
        until(lambda: len(wire.replies) > before)
        return wire.replies[-1].get("said", "")

    button_actions.on_message({"kind": "ready"})
    assert said(output, "retry") == ""
    button_actions.on_message({"kind": "ready"})
    advice = f"%agent show {output.run_ids[0][:8]} in a cell"
    for do in ("retry", "fork", "continue", "compare"):
        assert advice in said(output, do)
        assert advice in said(output, do, fields={"n": "1"}), "the form was open already"
    assert said(output, "cell") == "Copied: paste it into a cell"
    assert len(nbagent.runs()) == 1
    again = Output()
    again.add(output.run_ids[0])
    assert said(again, "retry") == ""


def test_buttons_of_the_first_page_work_on_when_a_second_one_is_loaded(
    output: Output, wire: Wire
) -> None:
    button_actions.enable_buttons()

    def said(at: Output, tab: object) -> str:
        before = len(wire.replies)
        told = {"kind": "act", "do": "retry", "at": at.id, "run": at.run_ids[0], "tab": tab}
        button_actions.on_message(told)
        until(lambda: len(wire.replies) > before)
        return wire.replies[-1].get("said", "")

    button_actions.on_message({"kind": "ready", "tab": "first"})
    button_actions.on_message({"kind": "ready", "tab": "second"})
    button_actions.on_message({"kind": "ready", "tab": "first"})
    assert said(output, "first") == ""
    assert "%agent show" in said(output, "second")
    later = Output()
    later.add(output.run_ids[0])
    assert [said(later, tab) for tab in ("first", "second")] == ["", ""]
    for odd in (5, ["first"], "x" * 10_000, None):
        button_actions.on_message({"kind": "ready", "tab": odd})
    assert said(output, "first") == ""


def test_only_the_page_of_a_click_gets_the_reply_and_its_words_have_no_code(
    output: Output, wire: Wire
) -> None:
    button_actions.enable_buttons()
    for tab in ("first", "late"):
        button_actions.on_message({"kind": "ready", "tab": tab})
    click = {"kind": "act", "do": "continue", "at": output.id, "run": output.run_ids[0]}
    answers = {tab: {**click, "tab": tab, "fields": {"prompt": tab}} for tab in ("late", "first")}
    button_actions.on_message(answers["late"])
    until(lambda: len(wire.replies) == 1)
    button_actions.on_message(answers["first"])
    until(lambda: [*nbagent.runs()["prompt"]][1:] == ["first"])
    said = [(reply["tab"], reply.get("said", "")) for reply in wire.replies]
    assert [tab for tab, _ in said] == ["late", "first"]
    assert said[0][1].startswith("nothing was started: this page was loaded after the run; ")
    assert said[1][1] == "Starts as soon as the kernel is free"


@pytest.mark.parametrize("tab", ["first", "late"])
def test_a_click_on_a_deleted_run_says_that_it_was_deleted(
    output: Output, wire: Wire, tab: str
) -> None:
    button_actions.enable_buttons()
    for name in ("first", "late"):
        button_actions.on_message({"kind": "ready", "tab": name})
    (run_id,) = output.run_ids
    nbagent.open_run(run_id).forget()
    click = {"kind": "act", "at": output.id, "run": run_id, "tab": tab}
    for do in ("retry", "compare", "cell"):
        before = len(wire.replies)
        button_actions.on_message({**click, "do": do})
        until(lambda before=before: len(wire.replies) > before)
        assert wire.replies[-1]["said"] == f"run {run_id[:8]} was deleted"


def test_comparing_offers_the_run_before_then_the_session_then_the_last_ones() -> None:
    agent = nbagent.Agent(model="offline:demo", tools=[])
    elsewhere = agent.run("Elsewhere", session="other")
    first = agent.run("First", session="one")
    second = first.resume("Second")
    third = agent.run("Third", session="one")
    fork = second.fork("C02")
    expected = {
        second.id: [first, fork, third, elsewhere],
        fork.id: [second, third, first, elsewhere],
    }
    for run_id, others in expected.items():
        run = nbagent.open_run(run_id).record
        assert [it.id for it in button_actions.comparable_runs(run)] == [it.id for it in others]
        form = button_actions.form_node(Message(kind="act", do="compare", run=run.id), run)
        assert form is not None
        words = node.text_of(form)
        assert f"{others[0].id[:8]} · {others[0].record.prompt}" in words


def test_a_run_as_a_cell_asks_the_same(output: Output) -> None:
    head, prompt = cell_text(output.load(output.run_ids[0])).splitlines()
    assert head.startswith("%%agent ")
    assert {"offline:demo", "--max-turns", "7"} <= {*head.split()}
    # Braces that were typed as such do not become an expression.
    assert prompt == "Hello {{ '{{' }} braces }}"
