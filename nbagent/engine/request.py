"""One model request under a cancel token: its chunks as events, its outcome as an `Answer`.

Owns the partial text of a request that was stopped or cut. Does not decide what follows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import monotonic_ms, new_id
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    Message,
    TextPart,
    ToolCall,
    parse_arguments,
    redacted,
)
from nbagent.contracts.chat import ToolCallDelta as ChunkDelta
from nbagent.contracts.errors import ErrorInfo, NbagentError
from nbagent.contracts.events import (
    Event,
    Notice,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolCallDelta,
    Waiting,
)
from nbagent.contracts.ports import ChatClient
from nbagent.contracts.secrets import StreamFilter, redact

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Hands items from tasks of one loop to one reader of the same loop, many per wake-up."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Let the reader look again, also without an item."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def take(self) -> deque[T]:
        """All items that are there."""
        items, self._items = self._items, deque()
        return items

    async def wait(self) -> None:
        """Return as soon as there may be something to take."""
        if self._items:
            return
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None


@dataclass(slots=True)
class _PartialCall:
    id: str | None = None
    name: str | None = None
    pieces: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class Answer:
    """What came of a request."""

    response: ChatResponse | None = None
    error: ErrorInfo | None = None
    stopped: bool = False
    ttft_ms: float | None = None
    model_ms: float = 0.0
    notices: list[str] = field(default_factory=list[str])
    shown_text: StreamFilter = field(default_factory=StreamFilter)
    shown_reasoning: StreamFilter = field(default_factory=StreamFilter)
    _text: list[str] = field(default_factory=list[str])
    _reasoning: list[str] = field(default_factory=list[str])
    _calls: dict[int, _PartialCall] = field(default_factory=dict[int, _PartialCall])

    def keep_part(self, model: str) -> None:
        """Make a response of what had arrived, when no whole one did."""
        if self.response is not None:
            return
        calls = tuple(
            ToolCall(
                id=call.id or f"call_{new_id()}",
                name=call.name,
                arguments=parse_arguments("".join(call.pieces)),
                arguments_raw="".join(call.pieces),
            )
            for call in self._calls.values()
            if call.name
        )
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        if not (text or reasoning or calls):
            return
        message = Message(
            role="assistant",
            content=(TextPart(text=text),) if text else (),
            tool_calls=calls,
            reasoning=reasoning or None,
        )
        self.response = redacted(ChatResponse(message=message, model=model, finish_reason="error"))

    def add_call(self, delta: ChunkDelta) -> None:
        """Keep a fragment of a call."""
        call = self._calls.setdefault(delta.index, _PartialCall())
        call.id = call.id or delta.id
        call.name = call.name or delta.name
        call.pieces.append(delta.arguments)

    def add_text(self, text: str) -> None:
        """Keep a fragment of the text."""
        self._text.append(text)

    def add_reasoning(self, text: str) -> None:
        """Keep a fragment of the reasoning."""
        self._reasoning.append(text)


async def ask(
    client: ChatClient,
    request: ChatRequest,
    answer: Answer,
    *,
    turn_id: str,
    cancel: CancelToken,
    stream: bool,
) -> AsyncGenerator[Event]:
    """Make the request, yield what happens, fill in `answer`. Never raises."""
    mailbox: Mailbox[ChatChunk] = Mailbox()
    loop = asyncio.get_running_loop()
    task = loop.create_task(_produce(client, request, mailbox, stream))
    task.add_done_callback(lambda _: mailbox.wake())
    forget = cancel.on_set(lambda: loop.call_soon_threadsafe(task.cancel))
    began = monotonic_ms()
    try:
        while True:
            for chunk in mailbox.take():
                for event in _events_of(chunk, answer, turn_id, began):
                    yield event
            if task.done():
                break
            await mailbox.wait()
        for chunk in mailbox.take():
            for event in _events_of(chunk, answer, turn_id, began):
                yield event
    finally:
        forget()
        if not task.done():
            task.cancel()
            with suppress(BaseException):
                await task
        answer.model_ms = monotonic_ms() - began
    _close(answer, task, cancel, request.model)


async def _produce(
    client: ChatClient, request: ChatRequest, mailbox: Mailbox[ChatChunk], stream: bool
) -> None:
    if not stream:
        response = await client.chat(
            request, notify=lambda notice: mailbox.put(ChatChunk(notice=notice))
        )
        mailbox.put(_whole(response))
        return
    async with aclosing(client.chat_stream(request)) as chunks:
        async for chunk in chunks:
            mailbox.put(chunk)


def _whole(response: ChatResponse) -> ChatChunk:
    return ChatChunk(
        content=response.message.text,
        reasoning=response.reasoning or "",
        done=True,
        finish_reason=response.finish_reason,
        usage=response.usage,
        response=response,
    )


def _close(answer: Answer, task: asyncio.Task[None], cancel: CancelToken, model: str) -> None:
    if task.cancelled() or (cancel.is_set and answer.response is None):
        answer.stopped = True
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it
    elif (error := task.exception()) is not None:
        answer.error = _info_of(error)
    elif answer.response is None:
        answer.error = ErrorInfo(
            "LLM_BAD_RESPONSE", "the stream ended without an end; run %agent resume to ask again"
        )
    answer.keep_part(model)


def _info_of(error: BaseException) -> ErrorInfo:
    if isinstance(error, NbagentError):
        return ErrorInfo(error.code, redact(error.message), error.details)
    return ErrorInfo("UNKNOWN", redact(f"{type(error).__name__}: {error}"))


def _events_of(chunk: ChatChunk, answer: Answer, turn_id: str, began: float) -> list[Event]:
    events: list[Event] = []
    if chunk.content:
        answer.add_text(chunk.content)
        events.append(TextDelta(turn_id, answer.shown_text.feed(chunk.content)))
    if chunk.reasoning:
        answer.add_reasoning(chunk.reasoning)
        events.append(ReasoningDelta(turn_id, answer.shown_reasoning.feed(chunk.reasoning)))
    if (delta := chunk.tool_call_delta) is not None:
        answer.add_call(delta)
        events.append(ToolCallDelta(turn_id, delta.index, delta.name, delta.arguments))
    if events and answer.ttft_ms is None:
        answer.ttft_ms = monotonic_ms() - began
    if chunk.notice is not None:
        events.append(_notice_event(chunk.notice, answer, turn_id))
    if chunk.done and chunk.response is not None:
        answer.response = redacted(chunk.response)
        if rest := answer.shown_text.flush():
            events.append(TextDelta(turn_id, rest))
        if rest := answer.shown_reasoning.flush():
            events.append(ReasoningDelta(turn_id, rest))
    return events


def _notice_event(notice: ClientNotice, answer: Answer, turn_id: str) -> Event:
    answer.notices.append(notice.text)
    if notice.kind == "retry":
        return Retrying(turn_id, notice.attempt, notice.wait_s, notice.error, notice.text)
    if notice.kind == "wait":
        return Waiting(turn_id, notice.text)
    return Notice("info", notice.text, turn_id)
