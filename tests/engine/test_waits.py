"""Attempts, waits and times of a turn: counted by the engine, for every client alike."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from engine.test_broken_parts import plan_of, run_plan, whole

from nbagent.contracts import events
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.model import ChatChunk, ChatRequest, ChatResponse, ClientNotice
from nbagent.store import dataframes
from nbagent.store.writer import Store
from nbagent.view.live import LivePicture
from nbagent.view.node import text_of
from nbagent.view.timing import time_bar

LIMIT = "waiting 0.2 s: rate limit of api.openai.com"
Step = ClientNotice | ChatChunk | float | str


class Waits:
    """Plays its steps: a notice or chunk is told, a number slept, a text answered."""

    def __init__(self, *steps: Step) -> None:
        self._steps = steps

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        for one in self._steps:
            match one:
                case ClientNotice():
                    yield ChatChunk(notice=one)
                case ChatChunk():
                    yield one
                case str():
                    yield ChatChunk(content=one)
                    yield whole(one)
                case _:
                    await asyncio.sleep(one)

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        async for chunk in self.chat_stream(request):
            if chunk.notice and notify:
                notify(chunk.notice)
            if chunk.response:
                return chunk.response
        raise AssertionError("the steps end without an answer")


def retry(attempt: int, wait_s: float) -> ClientNotice:
    error = ErrorInfo("LLM_HTTP_ERROR", "busy")
    return ClientNotice("retry", "again", attempt=attempt, wait_s=wait_s, error=error)


def wait(wait_s: float, text: str = LIMIT) -> ClientNotice:
    return ClientNotice("wait", text, wait_s=wait_s)


@pytest.mark.timed
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_times_are_those_of_the_last_attempt_and_waits_are_counted_apart(stream: bool) -> None:
    # 0.1 s fail, 0.3 s wait, 0.05 s fail, 0.2 s wait, 0.15 s to the answer.
    seen = ChatChunk(reasoning="Hm.")
    client = Waits(0.1, seen, retry(1, 0.3), 0.3, 0.05, retry(2, 0.2), 0.2, 0.15, "At last.")
    store = Store.memory()
    record = run_plan(plan_of(client, stream=stream))
    store.add(record)
    (turn,) = record.turns
    assert turn.attempts == 3
    assert 495 <= turn.retry_wait_ms < 700
    assert turn.ttft_ms is not None
    assert 145 <= turn.ttft_ms < 290
    assert 295 <= turn.model_ms < 600
    assert turn.duration_ms >= 795
    assert store.load(record.id) == record
    frame: Any = dataframes.read_frame([store], "turns", {})
    assert list(frame["attempts"]) == [3]
    assert list(frame["retry_wait_ms"]) == [turn.retry_wait_ms]
    store.close()


@pytest.mark.timed
@pytest.mark.parametrize(
    "notices",
    [(wait(0.2), 0.2), (wait(math.inf), 0.2, wait(0, "")), (wait(0.1), 0.1, wait(0.1), 0.1)],
    ids=["of a known length", "until it is told", "two in a row"],
)
def test_a_rate_limit_is_told_while_it_lasts_and_not_counted_as_the_models_time(
    notices: tuple[Step, ...],
) -> None:
    seen: list[tuple[type, bool]] = []
    pictures: list[LivePicture] = []

    def see(event: events.Event) -> None:
        if isinstance(event, events.RunStarted):
            pictures.append(LivePicture(event.run))
        pictures[0].update(event)
        seen.append((type(event), LIMIT in text_of(pictures[0].picture())))

    (turn,) = run_plan(plan_of(Waits(*notices, 0.05, "Done.")), see).turns
    assert (events.Waiting, True) in seen, "told before the answer comes"
    assert (events.TextDelta, False) in seen
    assert turn.attempts == 1
    assert 170 <= turn.retry_wait_ms < 400
    assert turn.ttft_ms is not None
    assert 0 < turn.ttft_ms < 190
    assert [piece.kind for piece in time_bar((turn,))] == ["bad", "model"]
