"""Questions about calls: who answers, what an answer is bound to, what is kept of it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, cast

import pytest
from engine.laws import codes
from frontends import StandIn
from session.approval_stage import (
    Asked,
    Shifting,
    Unsayable,
    UnsayableExit,
    View,
    delete,
    done,
    only,
    ran,
)

import nbagent
from nbagent.contracts.approval import CallPreview, PersonAnswer, PreviewPiece, Question
from nbagent.contracts.errors import ToolError
from nbagent.contracts.events import ApprovalRequested, Event, Notice, ToolCallStarted
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.ports import RunControls
from nbagent.contracts.tools import PreparedCall, ToolContext
from nbagent.providers.offline import call, calls, script
from nbagent.session.frontend import use_frontend
from nbagent.view.question import question_text

NO_JSON = ("denied", (), "not JSON")
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP = json.loads("[" * 200 + "]" * 200)
ANSWERS: dict[str, tuple[Any, str, tuple[str, ...], str]] = {
    "true": (True, "allowed", ("a",), ""),
    "session": ("session", "allowed", ("a",), ""),
    "an answer": (PersonAnswer(choice="once"), "allowed", ("a",), ""),
    "other arguments": ({"path": "b"}, "edited", ("b",), ""),
    "false": (False, "denied", (), "denied this call"),
    "a reason": ("never on a Friday", "denied", (), "never on a Friday"),
    "something else": (7, "denied", (), "on_approval returned a int"),
    "yes": ("yes", "denied", (), "return True to allow the call"),
    "a failure": (LookupError("no answer today"), "denied", (), "no answer today"),
    "a failure that cannot be said": (Unsayable(), "denied", (), "asking failed (Unsayable)"),
    "arguments in bytes": ({"path": b"a"}, *NO_JSON),
    "a date as an argument": ({"path": date(2026, 1, 2)}, *NO_JSON),
    "arguments too deep": ({"path": DEEP}, *NO_JSON),
    "an answer with a set": (PersonAnswer(choice="once", arguments={"path": {1}}), *NO_JSON),
}


@pytest.mark.parametrize("given", ANSWERS)
def test_on_approval_decides_with_what_it_returns(given: str) -> None:
    value, approval, ran_with, said = ANSWERS[given]
    answer = Asked(value)
    run, model = ran(call("delete", path="a"), answer=answer)
    it = only(run)
    assert (it.approval, it.approved_by, tuple(done)) == (approval, "callback", ran_with)
    (asked,) = answer.questions
    assert (asked.tool, asked.arguments, asked.scope) == (
        "delete",
        {"path": "a"},
        "this exact call",
    )
    assert (asked.summary, asked.why) == ("Delete a file.", "")
    result = model.requests[1].messages[-1].text
    assert ("E_DENIED" in result, said in result) == (approval == "denied", True)
    assert it.args == {"path": ran_with[0] if ran_with else "a"}


def test_what_is_said_of_a_denial_is_bounded() -> None:
    for answer in (
        "n" * 200_000,
        PersonAnswer(choice="deny", reason="n" * 200_000),
        LookupError("n" * 200_000),
    ):
        run, _ = ran(call("delete", path="a"), answer=Asked(answer))
        assert len(only(run).reason) < 5_000


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, SystemExit, LookupError, UnsayableExit])
def test_a_callback_may_be_async_and_one_that_raises_anything_denies(
    error: type[BaseException] | None,
) -> None:
    heard: list[Event] = []

    async def answer(question: Question) -> bool:
        if error is not None:
            raise error("no")
        return True

    model = script([call("delete", path="a"), "Done."])
    agent = nbagent.Agent(model=model, tools=[delete], on_approval=answer)
    run = agent.run("Go.", on_event=heard.append)
    notices = [event.text for event in heard if isinstance(event, Notice)]
    assert (run.text, only(run).approved_by) == ("Done.", "callback")
    assert only(run).approval == ("denied" if error else "allowed")
    if error is not None:
        assert error.__name__ in str(only(run).result.error)
        assert error.__name__ in notices[0], "the person is told too"


def test_time_waited_is_kept_apart_from_the_tools_own() -> None:
    def slow(question: Question) -> bool:
        time.sleep(0.3)
        question.arguments["path"] = "b"  # its own copy
        return True

    run, _ = ran(call("delete", path="a"), answer=slow)
    assert only(run).duration_ms < only(run).waited_ms >= 290
    assert done == ["a"]
    row = cast("Any", nbagent.tool_runs()).iloc[-1]
    assert (row["approval"], row["approved_by"]) == ("allowed", "callback")
    assert row["waited_ms"] >= 290


def test_where_nobody_can_answer_a_question_is_a_denial_that_says_what_to_do() -> None:
    run, model = ran(call("delete", path="a"))
    assert (only(run).approval, only(run).approved_by, done) == ("denied", "nobody", [])
    assert "on_approval" in model.requests[1].messages[-1].text
    assert "configure(allow" in model.requests[1].messages[-1].text
    firm = Shifting(["one"], CallPreview(ruling="ask", minimum=True))
    _, model = ran(call("shift"), tools=[firm])
    assert "configure(allow" not in model.requests[1].messages[-1].text


def test_allowed_for_the_session_binds_to_the_very_call_and_its_definition() -> None:
    answer = Asked("session")
    run, _ = ran(*(call("delete", path=path) for path in "aab"), answer=answer)
    assert answer.paths == ["a", "b"]
    by = [it.approved_by for turn in run.turns for it in turn.tool_runs]
    assert by == ["callback", "session", "callback"]
    ran(call("delete", path="a"), answer=answer)
    assert answer.paths == ["a", "b"]
    ran(call("delete", path="a"), answer=answer, session="another")
    assert answer.paths == ["a", "b", "a"]

    def twin(path: str) -> str:
        """Delete a file, and more."""
        return path

    twin_tool = nbagent.tool(name="delete", ask=True)(twin)
    ran(call("delete", path="a"), tools=[twin_tool], answer=answer)
    assert answer.paths == ["a", "b", "a", "a"]
    run, _ = ran(call("delete", path="a"), answer=Asked(False))
    assert only(run).approval == "denied", "another callback is asked"


SCOPES: dict[str, tuple[CallPreview, list[str]]] = {
    "a whole tool": (
        CallPreview(ruling="ask", session_scope="every call"),
        ["every call of shift"],
    ),
    "every time": (CallPreview(ruling="ask", session_scope="none"), ["", "", ""]),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_what_an_approval_for_the_session_covers_is_said_and_holds(scope: str) -> None:
    preview, scopes = SCOPES[scope]
    answer = Asked("session")
    steps = call("shift"), call("shift", a=1), call("shift")
    ran(*steps, tools=[Shifting(["one"], preview)], answer=answer)
    assert [question.scope for question in answer.questions] == scopes


def test_what_changed_while_it_was_decided_is_asked_about_again() -> None:
    host = Shifting(["one", "two", "two"], CallPreview(ruling="ask", why="it shifts"))
    answer = Asked(True)
    run, _ = ran(call("shift"), tools=[host], answer=answer)
    _, second = answer.questions
    assert "changed while the question was open" in second.why
    assert (host.approved, only(run).approval) == (["two"], "allowed")
    host = Shifting(["one", *["two"] * 5], CallPreview(ruling="ask"))

    def edit(question: Question) -> dict[str, int]:
        return {"a": len(editing.questions)}

    editing = Asked(edit)
    run, _ = ran(call("shift", a=0), tools=[host], answer=editing)
    assert (only(run).approval, only(run).args) == ("edited", {"a": 2})


class Appearing(Shifting):
    """A host with one more tool after its first listing."""

    listed = 0

    async def tools(self, context: ToolContext) -> list[Any]:
        self.listed += 1
        late = self.spec.model_copy(update={"name": "late"})
        return [self.spec, late] if self.listed > 1 else [self.spec]


def test_a_tool_that_appears_after_the_listing_is_asked_about_before_it_runs() -> None:
    host = Appearing(["one"], CallPreview(ruling="ask", why="it shifts"))
    run, _ = ran(call("late"), tools=[host])
    assert (only(run).approved_by, host.approved) == ("nobody", [])


class Picky(Shifting):
    """A host whose call with `a=9` cannot be done; a moment later it could."""

    refused = 0

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        if call.arguments == {"a": 9} and not self.refused:
            self.refused += 1
            raise ToolError("it does not fit", code="E_PRECONDITION_FAILED")
        return await super().prepare(call, context)


def test_an_edited_call_that_failed_its_look_does_not_run() -> None:
    host = Picky(["one"], CallPreview(ruling="ask"))
    run, _ = ran(call("shift", a=0), tools=[host], answer=Asked({"a": 9}))
    assert codes(run) == ["E_PRECONDITION_FAILED"]
    assert (host.refused, host.approved) == (1, [])
    (call_run,) = run.turns[0].tool_runs
    assert (call_run.approval, call_run.args, call_run.asked_args) == ("edited", {"a": 9}, {"a": 0})
    assert call_run.started_at is None
    assert "edited by the person" in run.messages[2].text


def test_a_views_buttons_answer_once_and_parallel_questions_each_their_own() -> None:
    taken: list[bool] = []

    def press(controls: RunControls, event: ApprovalRequested) -> None:
        choice = "deny" if event.args["path"] == "b" else "once"
        taken.append(controls.answer(event.tool_call_id, PersonAnswer(choice=choice)))
        time.sleep(0.05)
        taken.append(controls.answer(event.tool_call_id, PersonAnswer(choice="once")))
        taken.append(controls.answer("nobody's", PersonAnswer(choice="once")))

    use_frontend(StandIn(view=View(press).open))
    run, _ = ran(calls([call("delete", path="a"), call("delete", path="b")]))
    assert [it.approval for it in run.turns[0].tool_runs] == ["allowed", "denied"]
    assert {it.approved_by for it in run.turns[0].tool_runs} == {"person"}
    time.sleep(0.1)
    assert sorted(taken) == [False] * 4 + [True] * 2


def test_edited_arguments_are_previewed_and_nothing_runs_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.md").write_text("old\n")
    seen: list[list[str]] = []

    def press(controls: RunControls, event: ApprovalRequested) -> None:
        call_id, shown = event.tool_call_id, threading.Event()

        def show(why: str, pieces: Sequence[PreviewPiece]) -> None:
            seen.append([why, *(f"{piece.label}: {piece.text}" for piece in pieces)])
            shown.set()

        for path, content in (("a.md", "new\n"), ("b.md", "b\n"), ("../c", "")):
            given = {"path": path, "content": content}
            assert controls.preview(call_id, given, show)
            assert shown.wait(5)
            shown.clear()
        assert [file.name for file in tmp_path.glob("*.md")] == ["a.md"]
        assert not controls.preview("nobody's", {}, show)
        controls.answer(call_id, PersonAnswer(choice="session"))
        time.sleep(0.05)
        assert not controls.preview(call_id, {}, show)

    use_frontend(StandIn(view=View(press).open))
    write = call("fs.write", path="a.md", content="x")
    run, _ = ran(write, tools=["fs.write"])
    changed, made, outside = seen
    assert changed[1].startswith("change of @project/a.md: --- @project/a.md (old)")
    assert "-old\n+new\n" in changed[1]
    assert made == [
        "with the edited arguments: create @project/b.md (2 bytes)",
        "new file @project/b.md: b\n",
    ]
    assert outside[0] == ""
    assert outside[1].startswith("with these arguments: refused: ")
    assert (tmp_path / "a.md").read_text() == "x"
    assert only(run).reason == "for the session (every fs.write of @project/a.md)"


def test_a_stop_while_a_question_is_open_ends_the_run_at_once_and_is_nobodys_decision() -> None:
    async def never(question: Question) -> bool:
        threading.Timer(0.3, run.stop).start()
        await asyncio.sleep(60)
        return True

    use_frontend(StandIn(view=View(lambda controls, event: controls.stop()).open))
    began = time.monotonic()
    by_view, _ = ran(call("delete", path="a"))
    use_frontend(StandIn())
    model = script([call("delete", path="a"), "Done."])
    run = nbagent.Agent(model=model, tools=[delete], on_approval=never).start("Go.")
    by_callback = run.wait()
    assert time.monotonic() - began < 30
    for stopped in by_view, by_callback:
        it = only(stopped)
        assert (stopped.stop_reason, done) == ("stopped", [])
        assert (it.approval, it.approved_by, it.result.error.code) == (None, None, "E_INTERRUPTED")
    assert only(by_callback).waited_ms > 200


async def wipe(path: str) -> str:
    """Delete a file."""
    done.append(path)
    return "deleted"


@pytest.mark.parametrize("interruptible", [True, False], ids=["any tool", "a writing tool"])
def test_a_call_whose_question_a_stop_closed_never_begins(*, interruptible: bool) -> None:
    async def stop(question: Question) -> bool:
        run.stop()
        await asyncio.sleep(60)
        return True

    begun: list[Event] = []
    tool = nbagent.tool(ask=True, interruptible=interruptible)(wipe)
    done.clear()
    run = nbagent.Agent(model=script([call("wipe", path="a"), "Done."]), tools=[tool]).start(
        "Go.",
        on_approval=stop,
        on_event=lambda event: isinstance(event, ToolCallStarted) and begun.append(event),
    )
    stopped = run.wait()
    assert (stopped.stop_reason, done, begun) == ("stopped", [], [])
    it = only(stopped)
    assert (it.approval, it.result.error.code) == (None, "E_INTERRUPTED")
    assert "before the tool began" in it.result.error.message


@pytest.mark.timed
def test_input_asks_in_the_waiting_thread_where_no_view_gets_ready() -> None:
    threads: list[object] = []

    def ask(question: Question) -> PersonAnswer:
        threads.append(threading.current_thread())
        return PersonAnswer(choice="once")

    def closed(question: Question) -> PersonAnswer:
        raise EOFError

    view = View()
    view.can_answer = False
    use_frontend(StandIn(view=view.open, ask=ask))
    began = time.monotonic()
    run, _ = ran(call("delete", path="a"))
    assert 1.9 < time.monotonic() - began < 5
    assert (only(run).approved_by, done, threads) == ("person", ["a"], [threading.main_thread()])
    use_frontend(StandIn(ask=closed))
    run, _ = ran(call("delete", path="a"))
    assert (only(run).approval, done) == ("denied", [])


def test_a_display_name_stands_in_the_question_the_events_and_the_record() -> None:
    @nbagent.tool(display_name="Fetch a page", ask=True)
    def fetch() -> str:
        """Fetch."""
        return "fetched"

    answer = Asked(True)
    events: list[object] = []
    agent = nbagent.Agent(script([call("fetch"), "Done."]), tools=[fetch], on_approval=answer)
    run = agent.run("Go.", on_event=events.append)
    (question,) = answer.questions
    begun = [event for event in events if isinstance(event, ToolCallStarted)]
    names = [question.display_name, begun[0].display_name, run.turns[0].tool_runs[0].display_name]
    assert names == ["Fetch a page"] * 3
    assert nbagent.open_run(run.id).turns[0].tool_runs == run.turns[0].tool_runs
    assert question_text(question).startswith("? Fetch a page (fetch) needs your approval")


@pytest.mark.parametrize("given", ["yes", 7])
def test_on_approval_that_is_no_function_and_an_answer_that_is_none_are_refused(given: Any) -> None:
    with pytest.raises(nbagent.UsageError, match="on_approval"):
        nbagent.Agent(tools=[delete], on_approval=given)
    with pytest.raises(
        nbagent.UsageError, match="is not an answer; write 'once', 'session' or 'deny'"
    ):
        PersonAnswer(choice=given)
