"""Every end of a turn: phase, stop reason, code, law 1, and that the run can go on from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from engine.laws import check_run, check_sent, codes, error_code, results
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.providers.offline import call, cut, error, script, step, text

made: list[int] = []


def double(number: int) -> int:
    """Twice a number."""
    made.append(number)
    return 2 * number


@pytest.fixture(autouse=True)
def forget() -> None:
    made.clear()


def ended(reason: Any, **more: Any) -> Any:
    return replace(step(**more), finish_reason=reason)


TWO = [call("double", number=1), call("double", number=2)]
ENDS: dict[str, tuple[Any, str, str, str | None, list[str]]] = {
    "answered": ("Done.", "WaitingUser", "answered", None, []),
    "length": (ended("length", text="Do"), "WaitingUser", "length", None, []),
    "filter": (ended("content_filter", text="Do"), "WaitingUser", "content_filter", None, []),
    "filter with calls": (
        ended("content_filter", calls=TWO),
        "WaitingUser",
        "content_filter",
        None,
        ["E_INTERRUPTED", "E_INTERRUPTED"],
    ),
    "error": (ended("error", text="Do"), "Failed", "error", "LLM_BAD_RESPONSE", []),
    "refused": (error("LLM_AUTH_FAILED"), "Failed", "error", "LLM_AUTH_FAILED", []),
    "cut in the text": (cut("Half of"), "Failed", "error", "LLM_BAD_RESPONSE", []),
    "cut in a call": (
        cut("I look", calls=TWO),
        "Failed",
        "error",
        "LLM_BAD_RESPONSE",
        ["E_INTERRUPTED", "E_INTERRUPTED"],
    ),
    "cut at once": (cut(), "Failed", "error", "LLM_BAD_RESPONSE", []),
    "empty": (text(""), "WaitingUser", "answered", None, []),
}


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("end", ENDS)
def test_a_turn_ends_as_the_page_says_and_the_run_goes_on(end: str, stream: bool) -> None:
    answer, phase, reason, code, tool_codes = ENDS[end]
    model = script([answer, "And more."])
    agent = nbagent.Agent(model=model, tools=[double], stream=stream)
    run = check_run(agent.run("Double them."), model)
    assert (run.phase, run.stop_reason, error_code(run)) == (phase, reason, code)
    assert run.ok is (reason == "answered")
    if stream or "cut" not in end:
        assert codes(run) == tool_codes
    assert not made, "no call of a turn that ended so is run"
    if stream and end == "cut in a call":
        assert [m.role for m in run.messages] == ["user", "assistant", "tool", "tool"]
        arguments = [made.arguments for made in run.messages[1].tool_calls]
        assert arguments == [{"number": 1}, None], "cut in the middle of the arguments"
    before = run.record
    if run.phase == "Failed":
        with pytest.raises(nbagent.NbagentError, match=code):
            run.raise_for_error()
    else:
        assert run.raise_for_error() is run
    if reason in ("answered", "content_filter"):
        with pytest.raises(UsageError, match="say what to do next"):
            run.resume()
        child = run.resume("Go on.")
    else:
        child = run.resume()
    check_run(child, model)
    check_sent(model.requests)
    assert (child.text, child.turns[0].id) == ("And more.", "C02")
    assert nbagent.open_run(run.id).record == before == run.record
    model.assert_complete()


def test_length_with_calls_tells_the_model_and_goes_on() -> None:
    model = script([ended("length", calls=TWO), "Then I say it shorter."])
    run = check_run(nbagent.Agent(model=model, tools=[double]).run("Go."), model)
    assert run.ok
    assert codes(run) == ["E_INVALID_ARGUMENTS", "E_INVALID_ARGUMENTS"]
    assert "length limit" in results(run)[0]["error"]["message"]
    assert not made


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("empty", [1, 3])
def test_an_answer_that_announces_calls_and_has_none_is_asked_for_once_more(
    stream: bool, empty: int
) -> None:
    nothing = Reply(finish="tool_calls")
    with ModelServer([*[nothing] * empty, Reply(text="Done.")]) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, tools=[double], stream=stream)
        run = check_run(agent.run("Go."))
        assert len(server.bodies) == 2
    assert run.ok == (empty == 1)
    assert empty == 1 or error_code(run) == "LLM_BAD_RESPONSE"
