"""Going on: resume, the person's next words, forks, and runs whose kernel is gone."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from engine.laws import check_run, check_sent, codes, column, look, results

import nbagent
from nbagent.contracts.chat import CONTINUE, Message, ToolCall
from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import TurnFinished
from nbagent.providers.offline import call, error, script, step
from nbagent.session.stores import close_stores


def test_turn_ids_go_on_and_the_parents_record_never_changes() -> None:
    model = script([call("look", place="a"), "One.", "Two.", error("LLM_TIMEOUT"), "Three."])
    first = check_run(nbagent.Agent(model=model, tools=[look]).run("Go."), model)
    kept = first.record
    second = check_run(first.resume("Next."), model)
    third = check_run(second.resume("And next."), model)
    fourth = check_run(third.resume(), model)
    runs = (first, second, third, fourth)
    assert [turn.id for run in runs for turn in run.turns] == ["C01", "C02", "C03", "C04", "C05"]
    assert [run.record.kind for run in runs] == ["start", "continue", "continue", "resume"]
    assert fourth.text == "Three."
    assert fourth.request_of("C01") == first.request_of("C01")
    assert nbagent.open_run(first.id).record == kept == first.record
    check_sent(model.requests)


def test_a_run_in_a_store_that_was_opened_anew_goes_on() -> None:
    model = script(["One.", "Two."])
    options: dict[str, Any] = {"system": "Be brief.", "temperature": 0.3, "max_turns": 2}
    first = nbagent.Agent(model=model, **options).run("Go.", session="s")
    close_stores()
    found = nbagent.open_run(first.id[:6])
    assert found.record == first.record
    second = check_run(found.resume("More."), model)
    assert (second.session, second.text, second.record.limits.max_turns) == ("s", "Two.", 2)
    assert second.record.notices == ()
    assert (model.requests[1].temperature, model.requests[1].system_prompt) == (0.3, "Be brief.")


def test_after_a_cut_answer_the_model_is_told_to_go_on() -> None:
    model = script([step(text="Once upon", finish_reason="length"), " a time.", "There was."])
    run = nbagent.Agent(model=model).run("Tell.")
    child = check_run(run.resume(), model)
    assert [m.text for m in child.messages] == ["Tell.", "Once upon", CONTINUE, " a time."]
    assert child.record.prompt == "Tell."
    more = check_run(child.resume("And then?"), model)
    assert [m.text for m in more.messages[4:]] == ["And then?", "There was."]


def test_fork_keeps_the_turns_before_and_asks_this_one_anew() -> None:
    made = [call("look", place="a"), call("look", place="b"), "Old.", "New.", "Newest."]
    model = script(made)
    run = check_run(nbagent.Agent(model=model, tools=[look]).run("Go."), model)
    fork = check_run(run.fork("C03", temperature=1.5), model)
    assert ([turn.id for turn in fork.turns], fork.text) == (["C03"], "New.")
    assert fork.messages[:-1] == run.messages[:-1]
    assert model.requests[3].messages == model.requests[2].messages
    assert model.requests[3].temperature == 1.5
    other = check_run(run.fork("C02", "But look at c."))
    assert [m.text for m in other.messages][-2:] == ["But look at c.", "Newest."]
    assert [turn.id for turn in other.turns] == ["C02"]
    assert (run.text, other.record.kind) == ("Old.", "fork")
    with pytest.raises(UsageError, match="no turn 'C09'; its own turns: C01, C02, C03"):
        run.fork("C09")


def test_a_run_at_work_cannot_be_gone_on_with() -> None:
    begun = threading.Event()
    agent = nbagent.Agent(model=script([step(text="Slow.", wait_ms=10_000)]))
    run = agent.start("Go.", on_event=lambda event: begun.set())
    try:
        assert begun.wait(10)
        for handle in run, nbagent.open_run(run.id):
            with pytest.raises(UsageError, match="still at work"):
                handle.resume("More.")
        assert nbagent.open_run(run.id).phase == "Running"
    finally:
        nbagent.open_run(run.id).stop()
        assert run.wait().stop_reason == "stopped"


def test_messages_of_the_persons_own_come_before_the_prompt() -> None:
    ids = ("c1", "c2")
    asked = [ToolCall(id=id, name="look", arguments={}, arguments_raw="{}") for id in ids]
    content = Message.of("tool", '{"ok":true,"data":1}').content
    own = [
        Message.of("user", "Look."),
        Message(role="assistant", tool_calls=tuple(asked)),
        *(Message(role="tool", tool_call_id=id, name="look", content=content) for id in ids),
        Message.of("assistant", "One."),
    ]
    model = script(["Two.", "Three."])
    agent = nbagent.Agent(model=model)
    run = check_run(agent.run("And now?", messages=own), model)
    assert model.requests[0].messages[:5] == tuple(own)
    assert run.messages[-1].text == "Two."
    first, calls, one, two, _ = own
    for bad in ([calls], [calls, one], [one], [calls, two, one], [calls, first, one, two]):
        with pytest.raises(UsageError, match=r"^E_INVALID_ARGUMENTS: messages: "):
            agent.run("And now?", messages=bad)
    generated: Any = (Message.of("user", text) for text in ("Before.", "Then."))
    agent.run("Go.", messages=generated)
    assert [m.text for m in model.requests[1].messages] == ["Before.", "Then.", "Go."]


def test_the_handle_of_a_run_at_work_shows_what_is_committed() -> None:
    seen: list[tuple[int, int]] = []
    box: list[nbagent.Run] = []

    def peek() -> str:
        """Look at the run itself."""
        return f"{len(box[0].turns)} turns, {len(box[0].messages)} messages"

    def on_event(event: object) -> None:
        if isinstance(event, TurnFinished):
            seen.append((len(box[0].turns), len(box[0].messages)))

    model = script([call("peek"), "Done."])
    box.append(nbagent.Agent(model=model, tools=[peek]).start("Go.", on_event=on_event))
    run = box[0].wait()
    assert results(run)[0]["data"] == "0 turns, 1 messages"
    assert seen == [(1, 3), (2, 4)]
    assert codes(check_run(run, model)) == [None]


def test_tags_and_the_prompt_that_is_answered_go_on_and_a_record_says_what_made_it() -> None:
    model = script([call("look", place="a"), error("LLM_TIMEOUT"), "One.", "Two.", "Three."])
    agent = nbagent.Agent(model=model, tools=[look], tags=("demo", "two"))
    first = agent.run("Go.")
    resumed = first.resume()
    forked = resumed.fork(resumed.turns[0].id, temperature=0.1)
    continued = forked.resume("Next.", tags="other")
    runs = [first, resumed, forked, continued]
    assert [run.record.tags for run in runs] == [("demo", "two")] * 3 + [("other",)]
    assert [run.record.prompt for run in runs] == ["Go."] * 3 + ["Next."]
    assert [run.record.forked_from for run in runs] == [None, None, "C03", None]
    assert {run.record.nbagent_version for run in runs} == {nbagent.__version__}
    assert [check_run(run).messages[0].text for run in runs] == ["Go."] * 4
    assert len(set(column(nbagent.runs(), "template_sha"))) == 2
    assert len(nbagent.runs(tags="demo")) == len(nbagent.runs(tags=["two", "none"])) == 3
    assert len(nbagent.runs(tags=["demo", "other"])) == 4
