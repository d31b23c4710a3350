"""Going on and branching: resume, the person's next words, forks that change, retries, the tree."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run, check_sent, codes, column, look, results

import nbagent
from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.events import TurnFinished
from nbagent.contracts.messages import CONTINUE_PROMPT, Message, ToolCall
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.records import ForkedFrom, ToolResult
from nbagent.providers.offline import ScriptedAnswer, call, calls, error, reasoning, script, step
from nbagent.session.run_notices import DEFERRED_NOTICE
from nbagent.session.stores import close_stores
from nbagent.settings.options import RunOptions
from nbagent.store.rows import to_notebook_json
from nbagent.view.node import text_of
from nbagent.view.printers import html
from nbagent.view.run_tree import tree_node


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
    assert [m.text for m in child.messages] == ["Tell.", "Once upon", CONTINUE_PROMPT, " a time."]
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
    assert [run.record.forked_from for run in runs] == [None, None, ForkedFrom(turn_id="C03"), None]
    assert {run.record.nbagent_version for run in runs} == {nbagent.__version__}
    assert [check_run(run).messages[0].text for run in runs] == ["Go."] * 4
    assert len(set(column(nbagent.runs(), "template_sha"))) == 2
    assert len(nbagent.runs(tags="demo")) == len(nbagent.runs(tags=["two", "none"])) == 3
    assert len(nbagent.runs(tags=["demo", "other"])) == 4


A, B, C = "call_1_1", "call_2_1", "call_2_2"
"""The calls of `three_turns`, by their ids."""


def three_turns() -> nbagent.Run:
    """C01 looks at a, C02 says something and looks at b and c, C03 answers; then a fourth turn."""
    two = step(text="Both.", calls=[call("look", place="b"), call("look", place="c")])
    model = script([call("look", place="a"), two, "Old.", "And more."])
    run = nbagent.Agent(model=model, tools=[look]).run("Go.")
    return run.resume("More?")


def said(messages: tuple[Message, ...]) -> list[str]:
    """Messages in short: `user: Go.`, `assistant: Both. + call_2_1, call_2_2`, `tool: …`."""
    return [
        f"{it.role}: {it.text}" + "".join(f" + {one.id}" for one in it.tool_calls)
        for it in messages
    ]


def data(value: str) -> str:
    return f'tool: {{"ok":true,"data":{value}}}'


BEFORE = [
    *("user: Go.", f"assistant:  + {A}", data('"seen a"')),
    *(f"assistant: Both. + {B} + {C}", data('"seen b"'), data('"seen c"')),
    *("assistant: Old.", "user: More?"),
]
FAILED = 'tool: {"ok":false,"error":{"code":"ENOENT","message":"no such place"}}'
CHANGES: dict[str, tuple[dict[str, Any], dict[int, str | None], int]] = {
    # what is given, what becomes of which message, how many are shared
    "a-result": ({"edits": {B: {"n": 1}}}, {4: data('{"n":1}')}, 4),
    "a-result-by-turn-and-call": ({"edits": {f"C01/{A}": None}}, {2: data("null")}, 2),
    "a-failure": ({"edits": {A: ToolError("no such place", code="ENOENT")}}, {2: FAILED}, 2),
    "a-tool-result": ({"edits": {C: ToolResult(ok=True, data=[2])}}, {5: data("[2]")}, 5),
    "an-answer": ({"edits": {"C03": "New."}}, {6: "assistant: New."}, 6),
    "an-answer-with-calls": ({"edits": {"C02": ""}}, {3: f"assistant:  + {B} + {C}"}, 3),
    "a-turn-left-out": ({"drop": ["C02"]}, {3: None, 4: None, 5: None}, 3),
    "a-call-left-out": ({"drop": [B]}, {3: f"assistant: Both. + {C}", 4: None}, 3),
    "all-calls-left-out": ({"drop": (B, C)}, {3: "assistant: Both.", 4: None, 5: None}, 3),
    "an-empty-turn-goes": ({"drop": A}, {1: None, 2: None}, 1),
    "several": (
        {"edits": {A: 1, "C03": "New."}, "drop": ["C02"]},
        {2: data("1"), 3: None, 4: None, 5: None, 6: "assistant: New."},
        2,
    ),
}


@pytest.mark.parametrize(("given", "changed", "shared"), CHANGES.values(), ids=CHANGES)
def test_fork_sends_the_conversation_as_it_was_changed(
    given: dict[str, Any], changed: dict[int, str | None], shared: int
) -> None:
    run = three_turns()
    kept, model = run.record, script(["Then.", "Next.", "Again."])
    fork = check_run(run.fork("C04", model=model, **given), model)
    expected = [changed.get(i, it) for i, it in enumerate(BEFORE)]
    assert said(model.requests[0].messages) == [it for it in expected if it is not None]
    record = fork.record
    drop = given.get("drop", ())
    assert record.forked_from == ForkedFrom(
        turn_id="C04",
        edits=tuple(given.get("edits", {})),
        drop=(drop,) if isinstance(drop, str) else tuple(drop),
    )
    assert (record.kind, record.shared_messages) == ("fork", shared)
    assert record.options.keys() <= RunOptions.rows().keys()
    assert len(record.copied) == len(record.messages) - 1
    assert all(name in record.notices[0] for names in given.values() for name in names)
    close_stores()
    child = check_run(nbagent.open_run(fork.id).resume("And?", tools=[look]), model)
    assert said(child.messages)[-3:] == ["assistant: Then.", "user: And?", "assistant: Next."]
    assert child.record.notices == ()
    assert child.record.forked_from is None
    assert column(nbagent.messages(run=fork.id), "source").count("copy") == len(record.copied)
    assert fork.request_of("C01") == run.request_of("C01")
    assert nbagent.open_run(run.id).record == kept


def test_fork_of_a_changed_fork_finds_the_turns_that_it_has_as_copies() -> None:
    run = three_turns()
    first = run.fork("C04", edits={A: "else"}, model=script(["Then."]))
    model = script(["Now."])
    second = check_run(first.fork("C04", drop=["C02"], edits={"C03": "New."}, model=model), model)
    assert second.record.shared_messages == 3
    assert said(second.messages)[2:] == [
        data('"else"'),
        *("assistant: New.", "user: More?", "assistant: Now."),
    ]
    with pytest.raises(UsageError, match=f"no turn and no call before C04 is 'C02'; .*: C01, {A}"):
        second.fork("C04", drop=["C02"])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an-unknown-turn": ({"drop": ["C09"]}, f"'C09'; there are: C01, {A}, C02, {B}, {C}"),
    "the-turn-itself": ({"edits": {"C03": "New."}}, "before C03 is 'C03'"),
    "both": ({"edits": {B: 1}, "drop": ["C02"]}, f"{B} cannot be both changed and left out"),
    "no-text-for-a-turn": ({"edits": {"C02": 5}}, "C02 is a turn, so give the text"),
    "no-mapping": ({"edits": ["C02"]}, "write edits="),
    "no-words-left": ({"drop": [B, C]}, "ends with an answer"),
}


@pytest.mark.parametrize(("given", "why"), REFUSED.values(), ids=REFUSED)
def test_change_that_cannot_be_made_is_refused_at_once(given: dict[str, Any], why: str) -> None:
    run = nbagent.open_run(three_turns().record.parent_id or "")
    with pytest.raises(UsageError, match=why):
        run.fork("C03", **given)
    assert len(nbagent.runs()) == 2


def test_call_id_that_stands_twice_needs_its_turn() -> None:
    def look_again(request: ChatRequest) -> ScriptedAnswer:
        return call("look", place="a")

    first = nbagent.Agent(model=script([look_again, "One."]), tools=[look]).run("Go.")
    run = first.resume("Again?", model=script([look_again, "Two.", "Three."]))
    with pytest.raises(UsageError, match=f"'{A}'; write 'C01/{A}' or 'C03/{A}'"):
        run.fork("C04", edits={A: 1})
    fork = check_run(run.fork("C04", edits={f"C03/{A}": 1}))
    assert [it["data"] for it in results(fork)] == ["seen a", 1]


def test_changed_answer_keeps_nothing_of_what_the_model_thought() -> None:
    model = script([reasoning("Hm.", "One."), "Two."])
    run = nbagent.Agent(model=model).run("Go.").resume("And?")
    fork = run.fork("C02", edits={"C01": "Uno."}, model=script(["Dos."]))
    answer = check_run(fork).messages[1]
    assert (answer.text, answer.reasoning, answer.raw) == ("Uno.", None, None)


# Retries


def test_calls_of_a_retry_wait_until_its_run_is_chosen() -> None:
    seen: list[str] = []

    def mark(place: str) -> str:
        """Mark a place."""
        seen.append(place)
        return f"marked {place}"

    run = nbagent.Agent(model=script(["No."]), tools=[mark]).run("Go.")
    again = [call("mark", place="a"), calls([call("mark", place="b"), call("mark", place="c")])]
    model = script([*again, "Done."])
    spread = run.retry(2, model=model, temperature=1.0)
    one, two = sorted((check_run(it) for it in spread), key=lambda it: len(results(it)))
    assert (seen, len(spread), spread[0].id) == ([], 2, spread.runs[0].id)
    assert [codes(one), codes(two)] == [["E_INTERRUPTED"], ["E_INTERRUPTED"] * 2]
    assert [(it.phase, it.stop_reason) for it in spread] == [("WaitingUser", "stopped")] * 2
    assert DEFERRED_NOTICE in one.record.notices
    close_stores()
    chosen = check_run(nbagent.open_run(two.id).resume(tools=[mark]))
    assert (sorted(seen), chosen.text, codes(chosen)) == (["b", "c"], "Done.", [None, None])
    assert len(model.requests) == 3, "the answer that was there is not asked for again"
    assert chosen.turns[0].response is not None
    assert chosen.turns[0].response.meta.source == "replay"
    assert [turn.id for turn in chosen.turns] == ["C01", "C02"]
    assert (chosen.record.kind, chosen.record.parent_id) == ("fork", two.id)
    assert model.requests[2].temperature == 1.0
    other = check_run(nbagent.open_run(one.id).resume("Never mind.", model=script(["Well."])))
    assert (other.text, seen) == ("Well.", seen[:2])


def test_retry_shows_which_answers_are_the_same() -> None:
    run = nbagent.Agent(model=script(["Oslo <b>.", "Late."])).run("Go.").resume("And?")
    first = nbagent.open_run(run.record.parent_id or "")
    spread = first.retry(3, turn="C01", model=script(["Bergen.", "Oslo <b>.", "Bergen."]))
    frame = spread.frame()
    assert column(frame, "run_id") == [first.id, *(it.id for it in spread)]
    assert sorted(column(frame, "answer")) == [1, 1, 2, 2]
    assert "4 answers, 2 different" in str(spread)
    shown: Any = spread
    assert "Oslo &lt;b&gt;." in shown._repr_html_()
    assert [it.record.forked_from for it in spread] == [
        ForkedFrom(turn_id="C01", defer_calls=True)
    ] * 3
    assert nbagent.open_run("last").id == first.id
    (one,) = first.retry(model=script(["So."]))
    assert nbagent.open_run("last").id == one.id


@pytest.mark.parametrize(
    ("given", "why"), [({"n": 0}, "expected 1 to 50"), ({"turn": "C07"}, "no turn 'C07'")]
)
def test_retry_that_cannot_be_made_is_refused(given: dict[str, Any], why: str) -> None:
    run = nbagent.Agent(model=script(["One."])).run("Go.")
    with pytest.raises(UsageError, match=why):
        run.retry(**given)


# The tree


def test_tree_of_a_session_shows_what_goes_on_from_what() -> None:
    agent = nbagent.Agent(model=script(["One <b>.", "Two.", "Three.", "Else."]), session="s")
    first = agent.run("Go.")
    second = first.resume("And?")
    fork = first.fork("C01", "Or?")
    third = second.resume("Then?")
    nbagent.Agent(model=script(["Not here."])).run("Another session.")
    tree = nbagent.session_tree("s")
    assert [len(tree.branches), tree.current] == [1, third.id]
    lines = str(tree).splitlines()
    ids = [it.id[:8] for it in (first, fork, second, third)]
    assert [line[2:].lstrip()[:8] for line in lines] == ids
    assert lines[1].startswith(f"    {fork.id[:8]}  C01 again: Or? → ")
    assert lines[3].startswith(f"* {third.id[:8]}  continued: Then? → ")
    shown: Any = tree
    page = shown._repr_html_()
    assert page.count("<details") == page.count('data-do="show"') == 4
    assert "One &lt;b&gt;." in page
    assert text_of(tree_node(tree.branches, current=first.id)).count("you are here") == 1
    assert html(tree_node(nbagent.session_tree().branches)).count("<li") == 1
    with pytest.raises(UsageError, match="no run of session 'none'"):
        nbagent.session_tree("none")


def test_runs_of_a_saved_notebook_are_not_retried(tmp_path: Path) -> None:
    record = nbagent.Agent(model=script(["One."])).run("Go.").record
    file = tmp_path / "x.ipynb"
    outputs = [{"metadata": {"nbagent": to_notebook_json(record)}}]
    file.write_bytes(dump_json({"cells": [{"outputs": outputs}]}))
    run = nbagent.read_notebook(file).open_run("last")
    for go_on in (run.retry, run.resume, lambda: run.fork("C01")):
        with pytest.raises(UsageError, match="read from a notebook"):
            go_on()


def test_rendered_answer_is_the_text_and_shows_itself_as_html() -> None:
    text = "Oslo has **717,710** <script>x</script>."
    shown: Any = nbagent.Agent(model=script([text])).run("Go.").answer
    assert (shown, str(shown), f"{shown:.4}") == (text, text, "Oslo")
    page = shown._repr_html_()
    assert "<strong>717,710</strong> &lt;script&gt;" in page
    assert "<script" not in page


def test_tree_of_many_runs_in_one_line_is_flat() -> None:
    run = nbagent.Agent(model=script(["So."] * 61), session="s").run("Go.")
    for _ in range(10):
        run = run.resume("And?")
    for _ in range(50):
        run = run.fork(run.turns[0].id)
    page = html(tree_node(nbagent.session_tree("s").branches))
    assert page.count("<li") == 61
    assert page.count("<ul") == 41, "40 levels and the list itself"
