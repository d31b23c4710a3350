"""What an approval is bound to, and what no trick gets around: found by attacking it."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from engine.laws import codes
from session.approval_stage import (
    Asked,
    Shifting,
    delete,
    done,
    only,
    ran,
)

import nbagent
from nbagent.contracts.chat import ToolCall, ToolSpec, ToolTraits
from nbagent.contracts.errors import ToolError
from nbagent.contracts.policy import CallPreview, PersonAnswer, Question, ToolPolicy
from nbagent.contracts.ports import PreparedCall, ToolContext
from nbagent.providers.offline import call, script
from nbagent.session.approval import Policies


class Appearing(Shifting):
    """A host with one more tool after its first listing."""

    async def tools(self, context: ToolContext) -> list[ToolSpec]:
        (first,) = await super().tools(context)
        late = first.model_copy(update={"name": "late"})
        self.listed = getattr(self, "listed", 0) + 1
        return [first, late] if self.listed > 1 else [first]


def test_a_tool_that_appears_after_the_listing_is_asked_about_before_it_runs() -> None:
    host = Appearing(["one"], CallPreview(ruling="ask", why="it shifts"))
    run, _ = ran(call("late"), tools=[host])
    assert (only(run).approved_by, host.approved) == ("nobody", [])


def test_editing_keeps_the_binding_to_what_was_shown() -> None:
    host = Shifting(["one", "two", "two", "two", "two", "two"], CallPreview(ruling="ask"))

    def edit(question: Question) -> dict[str, int]:
        return {"a": len(answer.questions)}

    answer = Asked(edit)
    run, _ = ran(call("shift", a=0), tools=[host], answer=answer)
    _, second = answer.questions
    assert "changed while it was decided" in second.why
    assert (only(run).approval, only(run).args) == ("edited", {"a": 2})


class Picky(Shifting):
    """A host whose call with `a=9` cannot be done; a moment later it could."""

    def __init__(self) -> None:
        super().__init__(["one"], CallPreview(ruling="ask"))
        self.refused = 0

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        if call.arguments == {"a": 9} and not self.refused:
            self.refused += 1
            raise ToolError("it does not fit", code="E_PRECONDITION_FAILED")
        return await super().prepare(call, context)


def test_an_edited_call_that_failed_its_look_does_not_run() -> None:
    host = Picky()
    run, _ = ran(call("shift", a=0), tools=[host], answer=Asked({"a": 9}))
    assert codes(run) == ["E_PRECONDITION_FAILED"]
    assert (host.refused, host.approved) == (1, [])


def test_what_a_callback_does_to_its_question_changes_no_call() -> None:
    def answer(question: Question) -> bool:
        question.arguments["path"] = "b"
        return True

    run, _ = ran(call("delete", path="a"), answer=answer)
    assert (only(run).approval, done) == ("allowed", ["a"])


@pytest.mark.parametrize("choice", ["denied", "no", "", None])
def test_an_answer_that_is_none_is_refused(choice: Any) -> None:
    def answer(question: Question) -> PersonAnswer:
        return PersonAnswer(choice=choice)

    run, _ = ran(call("delete", path="a"), answer=answer)
    assert (only(run).approval, done) == ("denied", [])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, LookupError])
def test_an_async_callback_that_raises_anything_denies(error: type[BaseException]) -> None:
    async def fail(question: Question) -> bool:
        raise error("no")

    run, _ = ran(call("delete", path="a"), answer=fail)
    assert (run.text, only(run).approved_by, done) == ("Done.", "callback", [])
    assert error.__name__ in str(only(run).result.error)


def test_what_one_callback_allowed_for_the_session_another_is_asked_about() -> None:
    one, other = Asked("session"), Asked(False)
    ran(call("delete", path="a"), answer=one)
    run, _ = ran(call("delete", path="a"), answer=other)
    assert (only(run).approval, only(run).approved_by) == ("denied", "callback")
    run, _ = ran(call("delete", path="a"), answer=one)
    assert only(run).approved_by == "session"


def test_what_asks_every_time_is_never_allowed_for_the_session() -> None:
    host = Shifting(["one"], CallPreview(ruling="ask", every_time=True))
    answer = Asked("session")
    ran(call("shift"), call("shift"), tools=[host], answer=answer)
    assert [question.scope for question in answer.questions] == ["", ""]


@pytest.mark.parametrize("path", ["x", "@a/x"])
def test_rules_that_forbid_hold_for_every_form_of_a_call(path: str) -> None:
    nbagent.configure(deny=[f"shift(path={path})"])
    host = Shifting(["one"], CallPreview(), form={"path": "@a/x"})
    run, _ = ran(call("shift", path="x"), tools=[host])
    assert only(run).approved_by == "policy"


@pytest.mark.parametrize("rule", ["mcp", "mcp:*", "mcp:git", "mcp:g*", "git__*"])
def test_a_rule_may_name_a_server_in_many_ways(rule: str) -> None:
    spec = ToolSpec(name="git__log", traits=ToolTraits(host="mcp:git"))
    assert Policies(system=ToolPolicy(deny=[rule])).hiding(spec)


def test_an_agent_cannot_choose_a_weaker_isolation() -> None:
    def held(system: Any, agent: Any) -> str:
        both = Policies(system=ToolPolicy(isolation=system), agent=ToolPolicy(isolation=agent))
        return both.effective.isolation

    assert held("landlock", "process") == "landlock"
    assert held("auto", "process") == "auto"
    assert held("auto", "landlock") == "landlock"
    assert held("process", "landlock") == "landlock"


ODD: dict[str, dict[str, Any]] = {
    "a number as a rule": {"deny": [5]},
    "no limits": {"limits": None},
    "limits as a dict": {"limits": {"max_read_bytes": 1}},
    "an unknown isolation": {"isolation": "bogus"},
}


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_policy_is_one_clear_error(odd: str) -> None:
    with pytest.raises(nbagent.UsageError):
        ToolPolicy(**ODD[odd])


@pytest.mark.parametrize("value", ["x", None, float("nan"), -1, 0, True])
def test_an_odd_limit_is_one_clear_error(value: Any) -> None:
    with pytest.raises(nbagent.UsageError, match="max_read_bytes"):
        nbagent.ToolLimits(max_read_bytes=value)


def test_a_stop_ends_an_async_callback_at_once_and_is_nobodys_decision() -> None:
    async def never(question: Question) -> bool:
        await asyncio.sleep(60)
        return True

    model = script([call("delete", path="a"), "Done."])
    run = nbagent.Agent(model=model, tools=[delete], on_approval=never).start("Go.")
    threading.Timer(0.3, run.stop).start()
    began = time.monotonic()
    run.wait()
    assert time.monotonic() - began < 3
    assert (run.stop_reason, done) == ("stopped", [])
    it = only(run)
    assert (it.approval, it.approved_by, it.result.error.code) == (None, None, "E_INTERRUPTED")
    assert it.waited_ms > 200


def test_what_asks_every_time_gives_no_wrong_advice() -> None:
    host = Shifting(["one"], CallPreview(ruling="ask", firm=True))
    _, model = ran(call("shift"), tools=[host])
    said = model.requests[1].messages[-1].text
    assert "every time" in said
    assert "configure(allow" not in said


@pytest.mark.parametrize("given", ["yes", 7])
def test_on_approval_that_is_no_function_is_one_clear_error(given: Any) -> None:
    with pytest.raises(nbagent.UsageError, match="on_approval"):
        nbagent.Agent(tools=[delete], on_approval=given)
