"""run.to_script() and offline.replay(run): a run of any kind, as the script of its model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from engine.laws import population

import nbagent
from nbagent import offline
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.secrets import SecretKey


def called(run: nbagent.Run) -> list[tuple[str, Any, str | None]]:
    runs = [one for turn in run.turns for one in turn.tool_runs]
    return [(one.tool_name, one.args, one.result and one.result.to_json().decode()) for one in runs]


def said(run: nbagent.Run) -> list[Any]:
    messages = [turn.response.message for turn in run.turns if turn.response]
    return [(one.reasoning, [it.arguments_raw for it in one.tool_calls]) for one in messages]


def asked(model: object, **options: Any) -> nbagent.Run:
    return nbagent.Agent(model=model, tools=[population], quiet=True, **options).run("Why, Ada's?")


def test_of(run: nbagent.Run) -> Callable[..., None]:
    made: dict[str, Any] = {}
    exec(run.to_script(), made)
    return made["test_why_ada_s"]


test_of.__test__ = False  # type: ignore[attr-defined]
OSLO = offline.call("population", city="Oslo")
RUNS: dict[str, list[Any]] = {
    "an answer": ["'One'\n\"two\" {three} \\ \N{SNOWMAN}"],
    "no words": [""],
    "calls and reasoning": [
        offline.step(text="Wait.", reasoning="hm", calls=[OSLO, OSLO]),
        offline.call("population", city="Rome"),
        offline.call("population", raw='{"city": '),
        offline.call("missing"),
        "It is large.",
    ],
    "an error": [OSLO, offline.error("LLM_RATE_LIMITED", "slow down", status=429)],
    "a cut stream": [offline.cut("so far", calls=[OSLO])],
    "a length": [offline.step(text="so f", finish_reason="length")],
}


@pytest.mark.parametrize("case", RUNS)
def test_replayed_run_and_its_text_say_call_and_end_as_the_first_did(case: str) -> None:
    first = asked(offline.script(RUNS[case]))
    again = asked(offline.replay(first))
    assert called(again) == called(first)
    assert [turn.text for turn in again.turns] == [turn.text for turn in first.turns]
    assert [turn.error for turn in again.turns] == [turn.error for turn in first.turns]
    assert again.stop_reason == first.stop_reason
    assert said(again) == said(first)
    stored = nbagent.open_run(first.id)
    assert stored.to_script() == first.to_script()
    test_of(stored)(tools=[population])


def test_text_beside_its_functions_is_a_test_and_fails_where_tools_are_called_otherwise() -> None:
    made: dict[str, Any] = {"population": population}
    text = asked(offline.script([OSLO, "Large."])).to_script()
    exec(text, made)
    made["test_why_ada_s"]()
    exec(text.replace("'population', {", "'people', {"), made)
    with pytest.raises(AssertionError):
        made["test_why_ada_s"](tools=[population])
    paused = asked(offline.script([OSLO]), max_turns=1)
    test_of(paused)(tools=[population])
    assert asked(offline.replay(paused), max_turns=1).stop_reason == "max_turns"


def test_secret_that_the_model_said_is_in_no_text() -> None:
    run = asked(offline.script(["The key is kx-7f3a9d21-secret."]))
    SecretKey("kx-7f3a9d21-secret")
    assert "7f3a9d21" not in run.to_script()
    request = ChatRequest(model="x", messages=(nbagent.Message.of("user", "Go."),))
    assert "7f3a9d21" not in asyncio.run(offline.replay(run).chat(request)).message.text


def test_replay_of_a_real_provider_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBAGENT_OFFLINE_DELAY_MS", "0")
    run = asked("offline:demo")
    model = offline.replay(run)
    assert model.model_id == f"offline:replay-{run.id[:8]}"
    assert asked(model.model_id).text == run.text
    model.assert_complete()
