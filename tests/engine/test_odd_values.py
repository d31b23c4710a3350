"""Values that not everything can hold: nested deeply, infinite, beyond 64 bits. Nothing is lost."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from engine.laws import check_run, codes, results
from engine.test_broken_parts import Client, plan_of, run_plan, whole
from shown.many_values import nested

import nbagent
from nbagent.contracts.messages import MAX_DEPTH, Message, ToolCall
from nbagent.contracts.model import ChatRequest, ChatResponse, Usage
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.offline import call, calls, script, step
from nbagent.store.rows import from_notebook_json, to_notebook_json
from nbagent.view.run_picture import page, picture


def deep_json(depth: int) -> str:
    return '{"a":' + "[" * depth + "]" * depth + "}"


def take(a: Any = None) -> str:
    """Take anything."""
    return "taken"


def check_forms(run: nbagent.Run) -> None:
    """The record survives the store, a saved notebook and its picture."""
    check_run(run)
    assert from_notebook_json(json.loads(json.dumps(to_notebook_json(run.record)))) == run.record
    assert "</details>" in page(picture(run.record))


ODD = {
    **{f"depth {depth}": deep_json(depth) for depth in (MAX_DEPTH, 100_000)},
    "infinite": '{"a":1e999}',
    "infinite inside": '{"a":[{"b":-1e400}]}',
    "no JSON": "{a",
}


@pytest.mark.parametrize("raw", ODD.values(), ids=ODD)
@pytest.mark.parametrize("secret", [False, True], ids=["no secret", "a secret is known"])
def test_arguments_that_no_record_can_hold_are_answered_with_an_error(
    raw: str, secret: bool
) -> None:
    if secret:
        SecretKey("a-secret-of-the-deep")
    most = call("take", raw=deep_json(MAX_DEPTH - 1))
    asks = calls([call("take", raw=raw), call("take", a="a-secret-of-the-deep"), most])
    model = script([step(text="Let me see.", calls=[asks]), "Done."])
    run = nbagent.Agent(model=model, tools=[take]).run("Go.")
    check_forms(run)
    assert (run.stop_reason, run.text) == ("answered", "Done.")
    assert run.turns[0].text == "Let me see."
    assert codes(run) == ["E_INVALID_ARGUMENTS", None, None]
    assert f"at most {MAX_DEPTH} levels" in results(run)[0]["error"]["message"]
    assert not (secret and "a-secret-of-the-deep" in repr(run.record))


def test_a_result_that_no_record_can_hold_is_an_error_for_the_model() -> None:
    def dig(depth: int, kind: str) -> Any:
        """Dig."""
        value = nested(depth)
        return ToolResult(ok=True, data=value) if kind == "result" else value

    def fall() -> Any:
        """Fall."""
        raise nbagent.ToolError("too deep", details={"a": nested(600)})

    asks = [call("dig", depth=d, kind=k) for d in (600, 100_000) for k in ("plain", "result")]

    def box() -> Any:
        """Box."""
        return ToolResult(ok=True, data=[object()])

    model = script([calls([*asks, call("fall"), call("box")]), "Done."])
    run = nbagent.Agent(model=model, tools=[dig, fall, box]).run("Go.")
    check_forms(run)
    assert run.text == "Done."
    assert codes(run) == [None, "E_TOOL_FAILED", None, *["E_TOOL_FAILED"] * 3]


def test_what_a_client_gives_and_no_record_can_hold_is_left_out() -> None:
    odd = ToolCall(
        id="c",
        name="look",
        arguments={"place": float("inf")},
        arguments_raw='{"place": 1e999}',
        extra={"a": nested(600)},
    )

    async def stream(request: ChatRequest) -> AsyncGenerator[Any]:
        chunk = whole("Done.")
        if len(request.messages) == 1:
            message = Message.of("assistant", "Half.").model_copy(
                update={"tool_calls": (odd,), "raw": {"a": nested(600)}}
            )
            usage = Usage(prompt_tokens=7, completion_tokens=-1, total_tokens=2**70)
            chunk.response = ChatResponse(message=message, usage=usage, model="m")
        yield chunk

    record = run_plan(plan_of(Client(stream)))
    assert record.text == "Done."
    response = record.turns[0].response
    assert response is not None
    assert (response.message.text, response.message.raw) == ("Half.", None)
    (kept,) = response.message.tool_calls
    assert (kept.arguments, kept.arguments_raw, kept.extra) == (None, odd.arguments_raw, None)
    assert response.usage is None
    assert from_notebook_json(json.loads(json.dumps(to_notebook_json(record)))) == record


def test_calls_that_a_client_gives_no_id_or_one_id_get_ids_and_results_of_their_own() -> None:
    made = [
        ToolCall(id=id, name="look", arguments={"place": place}, arguments_raw="{}")
        for id, place in (("", "a"), ("", "b"), ("c", "c"), ("c", "d"))
    ]

    async def stream(request: ChatRequest) -> AsyncGenerator[Any]:
        yield whole("Done.") if len(request.messages) > 1 else whole("", *made)

    record = run_plan(plan_of(Client(stream)))
    assert (record.stop_reason, record.text) == ("answered", "Done.")
    runs = record.turns[0].tool_runs
    assert [run.result and run.result.data for run in runs] == [f"seen {it}" for it in "abcd"]
    assert len({run.tool_call_id for run in runs} - {""}) == 4
    assert runs[2].tool_call_id == "c", "an id that is there and free is kept"
