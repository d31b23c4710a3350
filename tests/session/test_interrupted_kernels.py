"""Runs whose kernel is gone in the middle of a turn: closed once, idempotent calls run again."""

from __future__ import annotations

from typing import Any

import pytest
from engine.laws import check_run, codes, results

import nbagent
from nbagent.contracts.canonical import new_id, utc_now
from nbagent.contracts.chat import ChatResponse, Message, ToolCall
from nbagent.contracts.events import ResponseReceived, RunStarted, TurnStarted
from nbagent.contracts.ports import ToolContext
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun, TurnRequest
from nbagent.providers.offline import script
from nbagent.session.stores import current_store


def left_open(*names: str) -> str:
    """A run that a kernel left with these calls at work; returns its id."""
    store, run_id, now = current_store(), new_id(), utc_now()
    words = Message.of("user", "Go.")
    made = tuple(
        ToolCall(id=f"call_{n}", name=name, arguments={}, arguments_raw="{}")
        for n, name in enumerate(names)
    )
    answer = Message(role="assistant", tool_calls=made)
    started = tuple(
        ToolRun(tool_call_id=call.id, tool_name=call.name, args={}, queued_at=now, started_at=now)
        for call in made
    )
    request = TurnRequest(n_messages=1, n_new=1, model="m")
    turn = EngineTurn(
        id="C01",
        run_id=run_id,
        index=1,
        request=request,
        response=ChatResponse(message=answer, finish_reason="tool_calls"),
        tool_runs=started,
        started_at=now,
    )
    run = RunRecord(
        id=run_id, session="s", model="offline:m", started_at=now, messages=(words,), prompt="Go."
    )
    store.write(RunStarted(run))
    store.write(TurnStarted(run_id, "C01", 1, request, (words,), "", ()))
    store.write(ResponseReceived(turn, answer, "", ()))
    store.release(run_id)
    return run_id


def tools_of(keys: list[str]) -> list[Any]:
    @nbagent.tool(idempotent=True)
    def put(context: ToolContext) -> str:
        """Put, as often as you like."""
        keys.append(context.idempotency_key)
        return "put"

    def write(context: ToolContext) -> str:
        """Write once."""
        keys.append(context.idempotency_key)
        return "written"

    return [put, write]


@pytest.mark.parametrize("way", ["resume", "next words", "fork"])
def test_idempotent_calls_run_again_with_their_key_and_the_others_do_not(way: str) -> None:
    keys: list[str] = []
    found = nbagent.open_run(left_open("put", "write", "put"))
    assert codes(found) == ["E_INTERRUPTED"] * 3
    model = script(["On."])
    options: Any = {"model": model, "tools": tools_of(keys)}
    if way == "fork":
        child = found.fork("C01", **options)
    else:
        child = found.resume(None if way == "resume" else "And?", **options)
    check_run(child)
    assert keys == [f"{found.id}/C01/call_0", f"{found.id}/C01/call_2"]
    closed = check_run(nbagent.open_run(found.id))
    assert codes(closed) == [None, "E_INTERRUPTED", None]
    assert (closed.phase, closed.error and closed.error.code) == ("Failed", "ENGINE_INTERRUPTED")
    if way != "fork":
        assert [r["ok"] for r in results(child)] == [True, False, True]
        assert child.turns[0].id == "C02"


def test_a_second_child_does_not_run_them_again() -> None:
    keys: list[str] = []
    run_id = left_open("put")
    model = script(["One.", "Two."])
    tools = tools_of(keys)
    first = nbagent.open_run(run_id).resume(model=model, tools=tools)
    second = nbagent.open_run(run_id).resume(model=model, tools=tools)
    assert len(keys) == 1
    assert first.messages[:3] == second.messages[:3] == nbagent.open_run(run_id).messages


def test_without_the_tools_the_run_still_goes_on() -> None:
    found = nbagent.open_run(left_open("put"))
    child = check_run(found.resume(model=script(["On."])))
    assert (codes(nbagent.open_run(found.id)), child.ok) == (["E_INTERRUPTED"], True)
