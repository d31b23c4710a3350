"""Parts plugged into the engine that raise, lie or never end: no bare exception, no lost turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import pytest
from engine.laws import check_answered, check_record

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import new_id, utc_now
from nbagent.contracts.chat_doors import with_send
from nbagent.contracts.events import Event, RunFinished, TextDelta
from nbagent.contracts.messages import Message, ToolCall
from nbagent.contracts.model import CallDelta, ChatChunk, ChatRequest, ChatResponse, Usage
from nbagent.contracts.ports import Cost
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import ToolContext
from nbagent.engine import EnginePlan, run_engine
from nbagent.providers.offline import call, script
from nbagent.runtime import RunTask
from nbagent.session.chat_composer import ChatComposer
from nbagent.tools.functions.host import FunctionHost
from nbagent.tools.hosts import HostSet

Streamer = Callable[[ChatRequest], AsyncGenerator[Any]]


async def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


class Client:
    """A client around one function."""

    def __init__(self, stream: Streamer) -> None:
        self.chat_stream = stream


def plan_of(client: Any, **changes: Any) -> EnginePlan:
    run_id = new_id()
    run = RunRecord(
        id=run_id,
        session="s",
        model="odd:m",
        started_at=utc_now(),
        messages=(Message.of("user", "Go."),),
    )
    plan = EnginePlan(
        run=run,
        client=with_send(client),
        model="m",
        host=HostSet([FunctionHost([look])]),
        composer=ChatComposer("Be brief."),
        context=ToolContext(run_id=run_id, session="s", runner=RunTask()),
        cancel=CancelToken(),
    )
    return replace(plan, **changes)


class Listener:
    """Tells one function of everything."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event

    def emit(self, event: Event) -> None:
        self._on_event(event)

    async def commit(self, event: Event) -> None:
        self.emit(event)


def run_plan(plan: EnginePlan, on_event: Callable[[Event], None] = lambda event: None) -> RunRecord:
    record = asyncio.run(run_engine(plan, Listener(on_event)))
    check_record(record)
    check_answered(record.messages)
    return record


def whole(text: str = "", *made: ToolCall) -> ChatChunk:
    message = Message.of("assistant", text).model_copy(update={"tool_calls": made})
    response = ChatResponse(message=message, usage=Usage(total_tokens=1), model="m")
    return ChatChunk(done=True, response=response)


class Unspeakable(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


HALF = (
    ChatChunk(content="Half "),
    ChatChunk(tool_call_delta=CallDelta(0, id="c", name="look", arguments='{"pl')),
)
ODD: Any = "a str"
ENDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "ValueError": ((ValueError("odd"),), "UNKNOWN"),
    "an error without words": ((Unspeakable(),), "UNKNOWN"),
    "CancelledError": ((asyncio.CancelledError(),), "LLM_BAD_RESPONSE"),
    "no response": ((ChatChunk(done=True),), "LLM_BAD_RESPONSE"),
    "an odd response": ((ChatChunk(done=True, response=ODD),), "UNKNOWN"),
}


@pytest.mark.parametrize(("last", "code"), ENDS.values(), ids=ENDS)
def test_however_a_client_ends_wrongly_the_run_keeps_its_part(
    last: tuple[Any, ...], code: str
) -> None:
    async def stream(request: ChatRequest) -> AsyncGenerator[Any]:
        for chunk in (*HALF, *last):
            if isinstance(chunk, BaseException):
                raise chunk
            yield chunk

    record = run_plan(plan_of(Client(stream)))
    assert (record.phase, record.stop_reason) == ("Failed", "error")
    assert record.error is not None
    assert record.error.code == code
    assert record.text == "Half "
    assert [m.role for m in record.messages] == ["user", "assistant", "tool"]


def test_a_client_that_fails_after_its_whole_answer_has_answered() -> None:
    async def stream(request: ChatRequest) -> AsyncGenerator[Any]:
        yield whole("All of it.")
        raise OSError("while closing")

    assert run_plan(plan_of(Client(stream))).stop_reason == "answered"


def test_a_client_that_swallows_its_cancellation_is_left_behind_at_a_stop() -> None:
    async def stream(request: ChatRequest) -> AsyncGenerator[Any]:
        yield ChatChunk(content="Half")
        for _ in range(20):
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    plan = plan_of(Client(stream))
    began = time.monotonic()
    moments: list[float] = []

    def on_event(event: Event) -> None:
        if isinstance(event, TextDelta):
            plan.cancel.set()
        if isinstance(event, RunFinished):
            moments.append(time.monotonic() - began)

    async def main() -> None:
        record = await run_engine(plan, Listener(on_event))
        assert (record.stop_reason, record.text) == ("stopped", "Half")
        for _ in range(30):  # end what was left behind, so that the loop can close
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

    asyncio.run(main())
    assert moments[0] < 15  # it would last 20 s


class Raises:
    """A host, composer, approver or price list whose method raises the n-th time."""

    def __init__(self, inner: Any, method: str, nth: int = 1) -> None:
        self._inner, self._method, self._left = inner, method, nth

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            self._left -= 1
            if self._left == 0:
                raise OSError(5, f"{name} is broken", "/home/me")
        return getattr(self._inner, name)


def two_turns() -> Any:
    return script([call("look", place="a"), "Done."])


@pytest.mark.parametrize(
    ("part", "method", "nth", "turns"),
    [
        ("composer", "before_turn", 1, 0),
        ("composer", "before_turn", 2, 1),
        ("composer", "after_turn", 1, 1),
        ("composer", "after_turn", 2, 2),
        ("host", "tools", 1, 0),
        ("host", "tools", 2, 1),
    ],
)
def test_a_part_that_raises_ends_the_run_with_the_turns_so_far(
    part: str, method: str, nth: int, turns: int
) -> None:
    plan = plan_of(two_turns())
    record = run_plan(replace(plan, **{part: Raises(getattr(plan, part), method, nth)}))
    assert (record.phase, record.stop_reason) == ("Failed", "error")
    assert record.error is not None
    assert record.error.code == "E_INTERNAL"
    assert f"{method} is broken" in record.error.message
    assert "/home" not in record.error.message
    assert (len(record.turns), record.text) == (turns, "Done." if turns == 2 else "")
    assert method == "before_turn" or part == "host" or record.turns[-1].error == record.error


@pytest.mark.parametrize(("part", "method"), [("host", "prepare"), ("approver", "review")])
def test_a_host_or_approver_that_raises_gives_its_call_an_error_result(
    part: str, method: str
) -> None:
    plan = plan_of(two_turns())
    record = run_plan(replace(plan, **{part: Raises(getattr(plan, part), method)}))
    assert record.stop_reason == "answered"
    (tool_run,) = record.turns[0].tool_runs
    assert tool_run.result is not None
    assert str(tool_run.result.error) == f"E_INTERNAL: OSError: {method} is broken"


@pytest.mark.parametrize(("known", "cost_usd"), [([], None), (["asked"], 4.0)])
def test_a_price_list_that_raises_is_an_unknown_price_unless_it_knows_the_asked_model(
    known: list[str], cost_usd: float | None
) -> None:
    def price(usage: Usage, model: str) -> Cost:
        known.index(model)
        return Cost(input_usd=2.0)

    record = run_plan(plan_of(two_turns(), price=price, model="asked"))
    assert (record.stop_reason, record.cost_usd) == ("answered", cost_usd)
