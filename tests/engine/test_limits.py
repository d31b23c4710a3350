"""Where a run pauses or ends by itself: max_turns, max_requests, loops, the budget."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from engine.laws import check_run, check_sent, codes, error_code, results

import nbagent
from nbagent.contracts.approval import Question
from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ChatRequest, Usage
from nbagent.providers.offline import Script, ScriptedAnswer, call, calls, script, step
from nbagent.run import Run


def look(place: int) -> int:
    """Look at a place."""
    return place


def broken(place: int, b: int = 0) -> int:
    """Fail."""
    raise RuntimeError(f"nothing at {place}")


def endless(name: str = "look") -> Script:
    """A model that looks at one place after the other and never answers."""

    def ask(request: ChatRequest) -> ScriptedAnswer:
        return call(name, place=len(request.messages))

    return script([ask] * 60)


def state(run: Run) -> tuple[Any, ...]:
    return run.phase, run.stop_reason, error_code(run)


def test_at_max_turns_the_run_pauses_and_loses_nothing() -> None:
    model = endless()
    run = check_run(nbagent.Agent(model=model, tools=[look], max_turns=3).run("Go."), model)
    assert state(run) == ("WaitingUser", "max_turns", "ENGINE_MAX_TURNS")
    assert run.error is not None
    assert run.error.details == {"max_turns": 3}
    assert len(run.turns) == 3
    assert codes(run) == [None] * 3
    child = check_run(run.resume(), model)
    assert [turn.id for turn in child.turns] == ["C04", "C05", "C06"]
    assert [turn.phase_before for turn in child.turns] == ["WaitingUser", "Running", "Running"]
    check_sent(model.requests)


def test_max_requests_counts_over_resumes_and_ends_the_run() -> None:
    model = endless()
    agent = nbagent.Agent(model=model, tools=[look], max_turns=2, max_requests=5)
    first = agent.run("Go.")
    second = first.resume()
    third = check_run(second.resume(), model)
    assert [len(run.turns) for run in (first, second, third)] == [2, 2, 1]
    assert state(third) == ("Failed", "max_turns", "ENGINE_MAX_TURNS")
    assert third.error is not None
    assert third.error.details == {"max_requests": 5}
    with pytest.raises(
        UsageError, match=r"limit of 5 requests \(max_requests\); say what to do next"
    ):
        third.resume()
    assert len(model.requests) == 5
    # The person's words begin a new count; with a higher max_requests the old count continues.
    further = third.resume("Look further.")
    assert [len(further.turns), len(further.resume().turns)] == [2, 2]
    assert len(third.resume(max_requests=6).turns) == 1
    fork = second.fork("C04", max_turns=1)
    assert (fork.turns[0].id, fork.stop_reason) == ("C04", "max_turns")
    again = fork.resume(max_turns=2)
    assert (len(again.turns), again.phase) == (1, "Failed"), "it keeps three requests, and one"


def test_the_second_failure_warns_the_model_and_the_third_stops() -> None:
    # The order of the arguments does not hide it.
    raws = ('{"place":1,"b":2}', '{"b":2,"place":1}', '{ "place":1, "b":2 }')
    model = script([*[call("broken", raw=raw) for raw in raws], "Never."])
    run = check_run(nbagent.Agent(model=model, tools=[broken]).run("Go."), model)
    assert state(run) == ("WaitingUser", "loop_detected", "ENGINE_LOOP_DETECTED")
    told = [result["error"].get("details", {}).get("warning") for result in results(run)]
    assert told[0] is None
    assert "failed 2 times" in told[1]
    assert [r.repeat_n for turn in run.turns for r in turn.tool_runs] == [1, 2, 3]
    assert check_run(run.resume(), model).text == "Never."


def moody(mood: str) -> int:
    """Fail, or give another number each time."""
    if mood == "bad":
        raise RuntimeError("not now")
    return next(_numbers)


def wavers() -> int:
    """Fail twice, then not, and so on."""
    number = next(_waves)
    if number % 3 < 2:
        raise RuntimeError("not now")
    return number


_numbers, _waves = count(), count()
BAD, GOOD, BEST = (call("moody", mood=mood) for mood in ("bad", "good", "best"))
SAME = call("look", place=1)
LOOPS: dict[str, tuple[list[ScriptedAnswer], dict[str, Any], int, str]] = {
    "one failure": ([BAD] * 6, {"max_repeated_failures": 1}, 1, "failed 1 times"),
    "side by side": ([calls([BAD] * 3)], {}, 1, "failed 3 times"),
    "the same result": ([SAME] * 8, {}, 6, "the same result 6 times"),
    "two calls in turns": ([GOOD, BEST] * 6, {}, 8, "take turns, 4 times"),
    "a success between": ([call("wavers")] * 5, {}, 0, ""),
    "other results": ([GOOD] * 8, {}, 0, ""),
}


@pytest.mark.parametrize(("steps", "limit", "turns", "why"), LOOPS.values(), ids=LOOPS)
def test_going_in_circles_pauses_the_run(
    steps: list[ScriptedAnswer], limit: dict[str, Any], turns: int, why: str
) -> None:
    model = script([*steps, "Done."])
    run = nbagent.Agent(model=model, tools=[look, moody, wavers], **limit).run("Go.")
    check_run(run, model)
    if turns:
        assert (run.stop_reason, len(run.turns)) == ("loop_detected", turns)
        assert why in str(run.error)
    else:
        assert run.ok, run.error


@pytest.mark.parametrize("kind", ["the person", "a rule", "length"])
def test_a_call_that_is_refused_again_and_again_is_a_loop(kind: str) -> None:
    asked: list[Question] = []

    def deny(question: Question) -> bool:
        asked.append(question)
        return False

    again = step(
        calls=[call("look", place=1)], finish_reason="length" if kind == "length" else "tool_calls"
    )
    model = script([again] * 6)
    agent = nbagent.Agent(model=model, tools=[nbagent.tool(ask=kind == "the person")(look)])
    nbagent.configure(deny=["look(place=1)"] if kind == "a rule" else [])
    run = check_run(agent.run("Go.", on_approval=deny), model)
    assert (run.stop_reason, len(run.turns)) == ("loop_detected", 3)
    assert len(asked) == (2 if kind == "the person" else 0), "nobody is asked the same three times"
    assert {it.host for turn in run.turns for it in turn.tool_runs} == {"functions"}


def test_the_run_pauses_before_a_request_that_would_pass_the_budget() -> None:
    usage = Usage(prompt_tokens=80, completion_tokens=20, total_tokens=100)
    answers = [step(calls=[call("look", place=n)], usage=usage) for n in range(4)]
    model = script([*answers, "Done."])
    agent = nbagent.Agent(model=model, tools=[look], max_total_tokens=190)
    run = check_run(agent.run("Go."), model)
    assert state(run) == ("WaitingUser", "budget", "ENGINE_BUDGET")
    # 100 of each turn, and 100 and the result at least of the next one.
    assert (len(run.turns), run.usage.total_tokens) == (1, 100)
    assert codes(run) == [None]
    assert check_run(run.resume(max_total_tokens=10_000), model).text == "Done."


def test_a_first_request_over_the_budget_is_not_sent_and_max_tokens_counts() -> None:
    model = script(["Hello."])
    agent = nbagent.Agent(model=model, tools=[], max_total_tokens=500)
    run = agent.run("Go.", max_tokens=600)
    assert (state(run), run.turns) == (("WaitingUser", "budget", "ENGINE_BUDGET"), ())
    assert agent.run("x" * 4_000).stop_reason == "budget"
    assert model.requests == []
    assert agent.run("Go.").ok


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://llm.example.org/v1", "limit max_total_tokens$"),
        ("http://127.0.0.1:1/v1", "runs the model itself, name its provider: vllm:m, "),
    ],
    ids=["a server", "a gateway on this machine"],
)
def test_a_budget_in_usd_needs_a_price(
    url: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0001")
    agent = nbagent.Agent("openai:m", base_url=url, max_cost_usd=1)
    with pytest.raises(UsageError, match=rf"no price is known for openai:m; .*{advice}"):
        agent.run("Go.")


def test_offline_models_cost_nothing_and_an_answer_over_the_budget_is_an_answer() -> None:
    long = step(text="Long.", usage=Usage(total_tokens=10_000))
    limits: dict[str, Any] = {"max_cost_usd": 0.01, "max_total_tokens": 500}
    run = nbagent.Agent(model=script([call("look", place=1), long]), tools=[look]).run(
        "Go.", **limits
    )
    assert (run.ok, run.cost_usd or 0) == (True, 0)


def test_a_budget_of_nothing_sends_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key-0001")
    run = nbagent.Agent("openai:gpt-5.4", max_cost_usd=0).run("Go.")
    assert run.error is not None
    assert run.error.code == "ENGINE_BUDGET"
    assert "the limit of $0 (max_cost_usd) allows no request; raise" in run.error.message
