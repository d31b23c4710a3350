"""Requests: tool choice, parameters, the growing prefix; and odd calls that come back."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from engine.laws import check_run, check_sent, codes, look, results
from servers.model_server import ModelServer

import nbagent
from nbagent.contracts.events import Event, ToolCallFinished
from nbagent.providers.offline import call, calls, script
from nbagent.session.chat_composer import TOOL_POLICY


@nbagent.tool(name="db.read")
def read(place: str) -> str:
    """Read a place."""
    return f"seen {place}"


@pytest.mark.parametrize(
    ("asked", "first", "second"),
    [
        (None, "auto", "auto"),
        ("none", "none", "none"),
        ("required", "required", "auto"),
        ("look", "look", "auto"),
    ],
)
def test_a_forced_tool_choice_holds_for_the_first_request_only(
    asked: str | None, first: str, second: str
) -> None:
    model = script([call("look", place="a"), "Done.", "Again."])
    run = nbagent.Agent(model=model, tools=[look], system="Be brief.").run("Go.", tool_choice=asked)
    check_run(run, model)
    assert model.requests[0].system_prompt == f"Be brief.\n\n{TOOL_POLICY}"
    assert [r.tool_choice for r in model.requests] == [first, second]
    check_run(run.resume("More."), model)
    assert model.requests[2].tool_choice == "auto"


def test_a_tool_choice_that_names_no_tool_is_refused_with_the_names() -> None:
    model = script(["Never."])
    run = nbagent.Agent(model=model, tools=[look]).run("Go.", tool_choice="lok")
    assert re.search(r"is not a tool of this run.*look", str(run.error))
    assert model.requests == []


def test_without_tools_no_tool_key_and_no_policy_is_sent() -> None:
    model = script(["Hello."])
    nbagent.Agent(model=model, tools=[], system="Be brief.").run("  Go\n", tool_choice="required")
    (request,) = model.requests
    assert (request.tools, request.tool_choice) == ((), None)
    assert request.system_prompt == "Be brief."
    assert request.messages[0].text == "  Go\n", "the prompt goes out as typed"


def test_fifty_calls_in_one_answer_are_run_and_answered_in_order() -> None:
    async def wait_a_little(n: int) -> int:
        """Wait."""
        return n

    made = [call("wait_a_little", n=n) if n % 2 else call("look", place=str(n)) for n in range(50)]
    model = script([calls(made), "Done."])
    run = check_run(nbagent.Agent(model=model, tools=[wait_a_little, look]).run("Go."), model)
    assert [r["data"] for r in results(run)] == [n if n % 2 else f"seen {n}" for n in range(50)]
    check_sent(model.requests)


def test_results_stand_in_the_order_of_the_calls_whichever_ends_first() -> None:
    other_ended = threading.Event()

    @nbagent.tool(threaded=True)
    def end_last() -> bool:
        """End after the other call."""
        return other_ended.wait(20)

    def see(event: Event) -> None:
        if isinstance(event, ToolCallFinished) and event.tool_run.tool_name == "look":
            other_ended.set()

    model = script([calls([call("end_last"), call("look", place="a")]), "Done."])
    run = nbagent.Agent(model=model, tools=[end_last, look]).run("Go.", on_event=see)
    assert [r["data"] for r in results(check_run(run, model))] == [True, "seen a"]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (call("lok", place="a"), "E_UNKNOWN_TOOL"),
        (call("look", raw="not json"), "E_INVALID_ARGUMENTS"),
        (call("look", raw='{"place": "' + "x" * 500_000 + '"'), "E_INVALID_ARGUMENTS"),
    ],
    ids=["typo", "words", "huge"],
)
def test_a_call_that_makes_no_sense_gets_an_error_and_the_run_goes_on(made: Any, code: str) -> None:
    model = script([calls([made, call("look", place="b")]), "Done."])
    run = check_run(nbagent.Agent(model=model, tools=[look]).run("Go."), model)
    assert run.ok, run.error
    assert codes(run) == [code, None]


ODD_PROMPTS = {
    "a megabyte": "word " * 200_000,
    "a lone surrogate": "before \ud800 after",
    "NUL": "before \0 after",
}


@pytest.mark.parametrize("prompt", ODD_PROMPTS.values(), ids=ODD_PROMPTS)
def test_odd_prompts_reach_a_real_server(prompt: str) -> None:
    with ModelServer(["Yes.", "And yes."]) as server:
        run = check_run(nbagent.Agent("openai:m", base_url=server.url, tools=[]).run(prompt))
        assert run.ok, run.error
        assert run.record.prompt == prompt
        assert check_run(run.resume(prompt)).ok
        sent = server.bodies[0]["messages"][0]["content"]
    assert sent.replace("\ufffd", "\ud800") == prompt
