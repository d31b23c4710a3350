"""Policies and questions: what is allowed, asked and denied, who answers, what is kept of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from frontends import StandIn
from session.approval_stage import (
    Asked,
    Shifting,
    delete,
    done,
    look,
    only,
    ran,
)

import nbagent
from nbagent.contracts.events import ApprovalRequested, Event, Notice, ToolCallStarted
from nbagent.contracts.policy import CallPreview, PersonAnswer, Question, ToolPolicy
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook.asking import question_text
from nbagent.notebook.listings import tools_text
from nbagent.providers.offline import call, calls, script
from nbagent.session.approval import Policies
from nbagent.session.frontend import use_frontend

ANSWERS: dict[str, tuple[Any, str, tuple[str, ...]]] = {
    "true": (True, "allowed", ("a",)),
    "session": ("session", "allowed", ("a",)),
    "an answer": (PersonAnswer(choice="once"), "allowed", ("a",)),
    "other arguments": ({"path": "b"}, "edited", ("b",)),
    "the same arguments": ({"path": "a"}, "allowed", ("a",)),
    "false": (False, "denied", ()),
    "nothing": (None, "denied", ()),
    "a reason": ("never on a Friday", "denied", ()),
    "something else": (7, "denied", ()),
    "yes": ("yes", "denied", ()),
    "y": ("Y", "denied", ()),
}


@pytest.mark.parametrize("given", ANSWERS)
def test_on_approval_decides_with_what_it_returns(given: str) -> None:
    value, approval, ran_with = ANSWERS[given]
    answer = Asked(value)
    run, model = ran(call("delete", path="a"), answer=answer)
    it = only(run)
    assert (it.approval, it.approved_by, tuple(done)) == (approval, "callback", ran_with)
    (asked,) = answer.questions
    assert (asked.tool, asked.arguments, asked.scope) == ("delete", {"path": "a"}, "this very call")
    assert "ask=True" in asked.why
    if approval == "denied":
        assert it.result.error.code == "E_DENIED"
        said = model.requests[1].messages[-1].text
        assert "E_DENIED" in said
        assert given != "a reason" or "never on a Friday" in said
        assert given != "something else" or "on_approval returned a int" in said
        assert given not in ("yes", "y") or "return True to allow the call" in said
    else:
        assert it.args == {"path": ran_with[0]}


def test_a_callback_may_be_async_and_may_fail() -> None:
    async def agree(question: Question) -> bool:
        return True

    run, _ = ran(call("delete", path="a"), answer=agree)
    assert only(run).approval == "allowed"
    fail = Asked(LookupError("no answer today"))
    told: list[Event] = []
    model = script([call("delete", path="a"), "Done."])
    agent = nbagent.Agent(model=model, tools=[delete], on_approval=fail)
    run = agent.run("Go.", on_event=told.append)
    assert only(run).approval == "denied"
    assert "no answer today" in model.requests[1].messages[-1].text
    notices = [event.text for event in told if isinstance(event, Notice)]
    assert "no answer today" in notices[0], "the person is told too"


def test_time_waited_is_kept_apart_from_the_tools_own() -> None:
    def slow(question: Question) -> bool:
        time.sleep(0.3)
        return True

    run, _ = ran(call("delete", path="a"), answer=Asked(slow))
    it = only(run)
    assert it.waited_ms >= 290
    assert it.duration_ms < 250
    row = cast("Any", nbagent.tool_runs()).iloc[-1]
    assert (row["approval"], row["approved_by"]) == ("allowed", "callback")
    assert row["waited_ms"] >= 290


def test_where_nobody_can_answer_a_question_is_a_denial_that_says_what_to_do() -> None:
    run, model = ran(call("delete", path="a"))
    assert (only(run).approval, only(run).approved_by) == ("denied", "nobody")
    assert "on_approval" in model.requests[1].messages[-1].text
    assert not done


def paths(answer: Asked) -> list[str]:
    return [question.arguments["path"] for question in answer.questions]


def test_allowed_for_the_session_binds_to_the_very_call() -> None:
    answer = Asked("session")
    run, _ = ran(*(call("delete", path=path) for path in "aab"), answer=answer)
    assert paths(answer) == ["a", "b"]
    by = [it.approved_by for turn in run.turns for it in turn.tool_runs]
    assert by == ["callback", "session", "callback"]
    ran(call("delete", path="a"), answer=answer)
    assert paths(answer) == ["a", "b"]
    ran(call("delete", path="a"), answer=answer, session="another")
    assert paths(answer) == ["a", "b", "a"]


def test_another_definition_of_the_same_name_is_asked_about_again() -> None:
    def twin(path: str) -> str:
        """Delete a file, and more."""
        return path

    answer = Asked("session")
    for tool in delete, nbagent.tool(name="delete", ask=True)(twin):
        ran(call("delete", path="a"), tools=[tool], answer=answer)
    assert paths(answer) == ["a", "a"]


def test_rules_of_the_settings_allow_ask_deny_and_hide() -> None:
    nbagent.configure(allow="delete(path=tmp/*)", ask=["look"], deny="delete(path=tmp/keep*)")
    run, _ = ran(
        calls(
            [
                call("delete", path="tmp/a"),
                call("delete", path="tmp/keep"),
                call("delete", path="b"),
                call("look", path="b"),
            ]
        )
    )
    runs = run.turns[0].tool_runs
    assert [it.approval for it in runs] == [None, "denied", "denied", "denied"]
    assert [it.approved_by for it in runs] == [None, "policy", "nobody", "nobody"]
    assert done == ["tmp/a"]
    assert "tmp/keep" in runs[1].result.error.message
    nbagent.configure(allow=None, ask=None, deny=None, hide="delete")
    run, model = ran(call("delete", path="a"))
    assert [tool.name for tool in model.requests[0].tools] == ["look"]
    assert only(run).result.error.code == "E_DENIED"


def test_an_agent_may_tighten_and_never_loosen() -> None:
    policy = ToolPolicy(deny=["look(path=secret*)"], ask=["look"])
    run, _ = ran(
        calls([call("look", path="secrets"), call("look", path="a")]),
        policy=policy,
        answer=Asked(True),
    )
    assert [it.approval for it in run.turns[0].tool_runs] == ["denied", "allowed"]
    child = run.resume("Again.", model=script([call("look", path="secrets"), "Done."]))
    assert only(child).approved_by == "policy"
    with pytest.raises(nbagent.UsageError, match="only tighten"):
        ran(call("look", path="a"), policy=ToolPolicy(allow=["delete"]))
    nbagent.configure(deny="delete")
    agent_allows = ToolPolicy(ask=["delete"])
    _, model = ran("Hello.", policy=agent_allows)
    assert [tool.name for tool in model.requests[0].tools] == ["look"]


def test_an_edited_call_is_judged_anew() -> None:
    nbagent.configure(deny="delete(path=/etc/*)")
    run, _ = ran(call("delete", path="a"), answer=Asked({"path": "/etc/passwd"}))
    assert (only(run).approval, only(run).approved_by) == ("denied", "policy")
    assert not done


def test_a_rule_sees_the_arguments_as_the_function_will_get_them() -> None:
    nbagent.configure(deny="look(path=secret)")
    run, _ = ran(call("look", arguments={"path": "secret"}))
    assert only(run).approved_by == "policy"


def test_a_rule_sees_what_an_argument_is_when_the_model_leaves_it_out() -> None:
    @nbagent.tool
    def clear(path: str = "secret") -> None:
        """Clear a file."""
        done.append(path)

    nbagent.configure(deny="clear(path=secret)")
    run, _ = ran(call("clear"), tools=[clear])
    assert (only(run).approved_by, done) == ("policy", [])


@pytest.mark.parametrize("text", ["", "a b", "fs.write(path)", "(path=a)", "f(=x)"])
def test_what_is_no_pattern_is_one_clear_error(text: str) -> None:
    with pytest.raises(nbagent.UsageError, match="pattern"):
        ToolPolicy(deny=[text])
    with pytest.raises(nbagent.UsageError, match="pattern"):
        nbagent.configure(deny=[text])


def test_what_changed_while_it_was_decided_is_asked_about_again() -> None:
    host = Shifting(["one", "two", "two"], CallPreview(ruling="ask", why="it shifts"))
    answer = Asked(True)
    run, _ = ran(call("shift"), tools=[host], answer=answer)
    _, second = answer.questions
    assert "changed while it was decided" in second.why
    assert host.approved == ["two"]
    assert only(run).approval == "allowed"


def test_a_firm_question_is_asked_whatever_the_settings_allow() -> None:
    nbagent.configure(allow="shift")
    firm = Shifting(["one"], CallPreview(ruling="ask", firm=True, why="always asks"))
    run, _ = ran(call("shift"), tools=[firm])
    assert only(run).approved_by == "nobody"
    loose = Shifting(["one"], CallPreview(ruling="ask", why="asks"))
    run, _ = ran(call("shift"), tools=[loose])
    assert only(run).approved_by is None
    assert only(run).result.ok


def test_approval_of_a_whole_tool_covers_every_call_of_its_definition() -> None:
    answer = Asked("session")
    host = Shifting(["one"], CallPreview(ruling="ask", for_tool=True))
    ran(call("shift"), call("shift", a=1), tools=[host], answer=answer)
    assert [question.scope for question in answer.questions] == ["every call of shift"]


class View:
    """A view whose buttons a test presses."""

    name = "test view"

    def __init__(self, press: Callable[[RunControls, ApprovalRequested], object]) -> None:
        self.press = press
        self.can_answer = True

    def open(self, run: RunRecord, controls: RunControls) -> Sink:
        self.controls = controls
        return self

    def handle(self, event: Event) -> None:
        if isinstance(event, ApprovalRequested):
            threading.Thread(target=self.press, args=(self.controls, event)).start()

    def close(self) -> None:
        pass


def test_a_views_buttons_answer_once_and_parallel_questions_each_their_own() -> None:
    told: list[bool] = []

    def press(controls: RunControls, event: ApprovalRequested) -> None:
        choice = "deny" if event.args["path"] == "b" else "once"
        told.append(
            controls.answer(event.tool_call_id, PersonAnswer(choice=choice, reason="not b"))
        )
        time.sleep(0.05)
        told.append(controls.answer(event.tool_call_id, PersonAnswer(choice="once")))
        told.append(controls.answer("nobody's", PersonAnswer(choice="once")))

    use_frontend(StandIn(view=View(press).open))
    run, _ = ran(calls([call("delete", path="a"), call("delete", path="b")]))
    assert [it.approval for it in run.turns[0].tool_runs] == ["allowed", "denied"]
    assert {it.approved_by for it in run.turns[0].tool_runs} == {"person"}
    time.sleep(0.1)
    assert sorted(told) == [False] * 4 + [True] * 2


def test_a_stop_while_a_question_is_open_ends_the_run_at_once() -> None:
    use_frontend(StandIn(view=View(lambda controls, event: controls.stop()).open))
    began = time.monotonic()
    run, _ = ran(call("delete", path="a"))
    assert (run.stop_reason, done) == ("stopped", [])
    assert only(run).result.error.code == "E_INTERRUPTED"
    assert time.monotonic() - began < 3


def test_input_asks_in_the_waiting_thread_where_no_view_answers() -> None:
    threads: list[object] = []

    def ask(question: Question) -> PersonAnswer:
        threads.append(threading.current_thread())
        return PersonAnswer(choice="once")

    use_frontend(StandIn(ask=ask))
    run, _ = ran(call("delete", path="a"))
    assert (only(run).approved_by, done) == ("person", ["a"])
    assert threads == [threading.main_thread()]

    def closed(question: Question) -> PersonAnswer:
        raise EOFError

    use_frontend(StandIn(ask=closed))
    run, _ = ran(call("delete", path="a"))
    assert only(run).approval == "denied"


def test_a_view_that_never_gets_ready_gives_way_to_input() -> None:
    view = View(lambda controls, event: None)
    view.can_answer = False
    use_frontend(StandIn(view=view.open, ask=lambda question: PersonAnswer(choice="once")))
    began = time.monotonic()
    run, _ = ran(call("delete", path="a"))
    assert 1.9 < time.monotonic() - began < 5
    assert only(run).approval == "allowed"


def test_settings_and_agent_limits_are_joined_to_the_smaller() -> None:
    system = ToolPolicy(limits=replace(ToolPolicy().limits, max_read_bytes=100))
    agent = ToolPolicy(limits=replace(ToolPolicy().limits, max_read_bytes=10, max_write_bytes=7))
    held = Policies(system=system, agent=agent).effective.limits
    assert (held.max_read_bytes, held.max_write_bytes) == (10, 7)
    loose = ToolPolicy(limits=replace(ToolPolicy().limits, max_read_bytes=1000))
    assert Policies(system=system, agent=loose).effective.limits.max_read_bytes == 100


def test_the_listing_says_what_happens_at_a_call_and_why() -> None:
    use_frontend(StandIn({"delete": delete, "look": look}))
    nbagent.configure(ask="look", deny="delete(path=/etc/*)")
    said = tools_text(None)
    assert "look(path: string)  [asks first: ask='look']" in said
    assert "delete(path: string)  [asks first, some calls: deny=delete(path=/etc/*)]" in said
    assert "Rules of this notebook" in said


def test_a_display_name_stands_in_the_question_the_events_and_the_record() -> None:
    @nbagent.tool(display_name="Fetch a page", ask=True)
    def fetch() -> str:
        """Fetch."""
        return "fetched"

    asked: list[Question] = []
    events: list[object] = []

    def allowed(question: Question) -> bool:
        asked.append(question)
        return True

    agent = nbagent.Agent(script([call("fetch"), "Done."]), tools=[fetch], on_approval=allowed)
    run = agent.run("Go.", on_event=events.append)
    begun = [event for event in events if isinstance(event, ToolCallStarted)]
    names = [asked[0].display_name, begun[0].display_name, run.turns[0].tool_runs[0].display_name]
    assert names == ["Fetch a page"] * 3
    assert nbagent.open_run(run.id).turns[0].tool_runs == run.turns[0].tool_runs
    assert question_text(asked[0]).startswith("? Fetch a page (fetch) (functions) waits for you")
