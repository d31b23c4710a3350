"""One model request under a cancel token: its chunks as events, its outcome as a `ModelAnswer`.

Owns the partial text of a request that was stopped or cut. Does not decide what follows.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import monotonic_ms, new_id
from nbagent.contracts.chat import (
    CallDelta,
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    Message,
    TextPart,
    ToolCall,
    Usage,
    is_keepable,
    parse_arguments,
    redacted,
)
from nbagent.contracts.errors import ErrorInfo, ModelError, NbagentError
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
from nbagent.contracts.secrets import StreamFilter, redact, redact_cut, redact_json

T = TypeVar("T")

_MOST_TOKENS = 2**53
"""A count above this is a mistake of the server; neither prices nor the store could take it."""
_GRACE_S = 0.25
"""A request that was cancelled has so long to end; then the run goes on without it."""


class Mailbox(Generic[T]):
    """Hands items from tasks of one loop to one reader of the same loop, many per wake-up."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._woken = False

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Let the reader look again, also without an item."""
        self._woken = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def take(self) -> deque[T]:
        """All items that are there."""
        self._woken = False
        items, self._items = self._items, deque()
        return items

    async def wait(self) -> None:
        """Return as soon as there may be something to take."""
        if self._woken:
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
class Times:
    """When the attempts of a turn's requests began, and how long was waited between them."""

    attempts: int = 1
    retry_wait_ms: float = 0.0
    """Waited between attempts and for a rate limit."""
    model_ms: float = 0.0
    """From each request to its end, without the waits."""
    ttft_ms: float | None = None
    """Of the last attempt."""
    _asked_at: float = 0.0
    _waited_before: float = 0.0
    _attempt_at: float = 0.0
    _wait_ms: float = 0.0
    """How long the wait that began at `_attempt_at` lasts, as the client says; 0: it is over."""
    _retries: bool = False
    """After this wait comes another attempt."""

    def begin(self) -> None:
        """A request leaves."""
        self._asked_at = self._attempt_at = monotonic_ms()
        self._waited_before = self.retry_wait_ms

    def waits(self, notice: ClientNotice) -> None:
        """The client begins to wait, before another attempt or before the first."""
        self.goes_on()
        if notice.kind == "retry":
            self.attempts += 1
            self.ttft_ms = None
        self._attempt_at, self._wait_ms = monotonic_ms(), notice.wait_s * 1000
        self._retries = notice.kind == "retry"

    def goes_on(self) -> float:
        """Something arrived: a wait is over. Returns for how long the attempt is at work."""
        since = monotonic_ms() - self._attempt_at
        waited = min(self._wait_ms, since)
        self.retry_wait_ms += waited
        self._wait_ms, self._retries = 0.0, False
        return since - waited

    def shows(self) -> None:
        """The person sees something of the answer."""
        if self.ttft_ms is None:
            self.ttft_ms = self.goes_on()

    def end(self, *, stopped: bool) -> None:
        """The request is over; a stop may have come before the wait for an attempt was."""
        if stopped and self._retries and monotonic_ms() - self._attempt_at < self._wait_ms:
            self.attempts -= 1
        self.goes_on()
        waited = self.retry_wait_ms - self._waited_before
        self.model_ms += max(0.0, monotonic_ms() - self._asked_at - waited)


@dataclass(slots=True)
class ModelAnswer:
    """What came of a request."""

    response: ChatResponse | None = None
    error: ErrorInfo | None = None
    stopped: bool = False
    times: Times = field(default_factory=Times)
    notices: list[str] = field(default_factory=list[str])
    shown_text: StreamFilter = field(default_factory=StreamFilter)
    shown_reasoning: StreamFilter = field(default_factory=StreamFilter)
    _text: list[str] = field(default_factory=list[str])
    _reasoning: list[str] = field(default_factory=list[str])
    _calls: dict[int, _PartialCall] = field(default_factory=dict[int, _PartialCall])
    _shown_calls: dict[int, StreamFilter] = field(default_factory=dict[int, StreamFilter])

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
        self.keep(ChatResponse(message=message, model=model, finish_reason="error"))

    def keep(self, response: ChatResponse) -> None:
        """Take a response: keepable, without secrets, every call with an id of its own."""
        response = redacted(_keepable(response))
        calls = _told_apart(response.message.tool_calls)
        if calls is not response.message.tool_calls:
            message = response.message.model_copy(update={"tool_calls": calls})
            response = response.model_copy(update={"message": message})
        self.response = response

    def add_call(self, delta: CallDelta) -> str:
        """Keep a fragment of a call; returns what may be shown of it."""
        call = self._calls.setdefault(delta.index, _PartialCall())
        call.id = call.id or delta.id
        call.name = call.name or delta.name
        call.pieces.append(delta.arguments)
        return self._shown_calls.setdefault(delta.index, StreamFilter()).feed(delta.arguments)

    def shown_calls(self) -> Iterable[tuple[int, StreamFilter]]:
        """The filters of the calls' arguments, by the index of the call."""
        return self._shown_calls.items()

    def add_text(self, text: str) -> None:
        """Keep a fragment of the text."""
        self._text.append(text)

    def add_reasoning(self, text: str) -> None:
        """Keep a fragment of the reasoning."""
        self._reasoning.append(text)


def _keepable(response: ChatResponse) -> ChatResponse:
    """The response without what no record can hold; the response itself when it holds none."""
    message, usage = response.message, response.usage
    changes: dict[str, object] = {}
    if usage is not None and not all(0 <= count <= _MOST_TOKENS for _, count in usage):
        believed = {name: count for name, count in usage if 0 <= count <= _MOST_TOKENS}
        changes["usage"] = Usage(**believed)
    calls = tuple(_keepable_call(call) for call in message.tool_calls)
    raw = message.raw if is_keepable(message.raw) else None
    same = all(a is b for a, b in zip(calls, message.tool_calls, strict=True))
    if not same or raw is not message.raw:
        changes["message"] = message.model_copy(update={"tool_calls": calls, "raw": raw})
    return response.model_copy(update=changes) if changes else response


def _keepable_call(call: ToolCall) -> ToolCall:
    if is_keepable(call.arguments) and is_keepable(call.extra):
        return call
    extra = call.extra if is_keepable(call.extra) else None
    arguments = call.arguments if is_keepable(call.arguments) else None
    return call.model_copy(update={"arguments": arguments, "extra": extra})


def _told_apart(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """The calls, with fresh ids where a server left them out or gave one twice."""
    seen: set[str] = set()
    fresh: list[ToolCall] = []
    for call in calls:
        if not call.id or call.id in seen:
            call = call.model_copy(update={"id": f"call_{new_id()}"})
        seen.add(call.id)
        fresh.append(call)
    same = all(a is b for a, b in zip(calls, fresh, strict=True))
    return calls if same else tuple(fresh)


async def ask(
    client: ChatClient,
    request: ChatRequest,
    answer: ModelAnswer,
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
    patience = _Patience(task, mailbox)
    forget = cancel.on_set(lambda: loop.call_soon_threadsafe(patience.begin))
    answer.times.begin()
    try:
        over = False
        while not over:
            # Looked at before the chunks are taken: what comes between is taken the next time.
            over = task.done() or patience.over
            for chunk in mailbox.take():
                for event in _events_of(chunk, answer, turn_id):
                    yield event
            if not over:
                await mailbox.wait()
    finally:
        forget()
        patience.end()
        task.cancel()
        answer.times.end(stopped=cancel.is_set)
    _close(answer, task, cancel, request.model)
    for event in _rest_of(answer, turn_id):
        yield event


class _Patience:
    """After a stop: cancels the request, and leaves one behind that does not end of it."""

    def __init__(self, task: asyncio.Task[None], mailbox: Mailbox[ChatChunk]) -> None:
        self.task, self.mailbox = task, mailbox
        self.over = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self.task.cancel()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GRACE_S, self._leave)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.task.done():
            # Whatever it ends with is of no use to anybody, and no news for asyncio's log.
            self.task.add_done_callback(_look_at)

    def _leave(self) -> None:
        self.over = True
        self.mailbox.wake()


def _look_at(task: asyncio.Task[None]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


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
            if not isinstance(chunk, ChatChunk):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModelError(
                    f"the client streamed a {type(chunk).__name__} for a chunk; mend the client",
                    code="LLM_BAD_RESPONSE",
                )
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


def _close(answer: ModelAnswer, task: asyncio.Task[None], cancel: CancelToken, model: str) -> None:
    error = _look_at(task) if task.done() else None
    if answer.response is not None:
        return  # whole: what the client did after its last chunk does not count
    if cancel.is_set:
        answer.stopped = True
    elif error is not None:
        answer.error = _info_of(error)
    elif task.cancelled():
        answer.error = ErrorInfo(
            "LLM_BAD_RESPONSE", "the client cancelled its own request; %agent resume asks again"
        )
    else:
        answer.error = ErrorInfo(
            "LLM_BAD_RESPONSE", "the stream ended without an end; %agent resume asks again"
        )
    answer.keep_part(model)


def _info_of(error: BaseException) -> ErrorInfo:
    if isinstance(error, NbagentError):
        return ErrorInfo(error.code, redact(error.message), redact_json(error.details))
    return ErrorInfo("UNKNOWN", described(error))


def described(error: BaseException) -> str:
    """`Type: message` of any exception, also of one whose message cannot be made."""
    try:
        return redact_cut(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__


def _events_of(chunk: ChatChunk, answer: ModelAnswer, turn_id: str) -> list[Event]:
    events: list[Event] = []
    if chunk.content:
        answer.add_text(chunk.content)
        events.append(TextDelta(turn_id, answer.shown_text.feed(chunk.content)))
    if chunk.reasoning:
        answer.add_reasoning(chunk.reasoning)
        events.append(ReasoningDelta(turn_id, answer.shown_reasoning.feed(chunk.reasoning)))
    if (delta := chunk.tool_call_delta) is not None:
        arguments = answer.add_call(delta)
        events.append(ToolCallDelta(turn_id, delta.index, delta.name, arguments))
    if events:
        answer.times.shows()
    if chunk.notice is not None:
        events.append(_notice_event(chunk.notice, answer, turn_id))
    if chunk.done and chunk.response is not None:
        answer.keep(chunk.response)
    return events


def _rest_of(answer: ModelAnswer, turn_id: str) -> list[Event]:
    """What the filters held back because it might have become a secret."""
    events: list[Event] = []
    if rest := answer.shown_reasoning.flush():
        events.append(ReasoningDelta(turn_id, rest))
    if rest := answer.shown_text.flush():
        events.append(TextDelta(turn_id, rest))
    for index, shown in answer.shown_calls():
        if rest := shown.flush():
            events.append(ToolCallDelta(turn_id, index, None, rest))
    return events


def _notice_event(notice: ClientNotice, answer: ModelAnswer, turn_id: str) -> Event:
    text = redact(notice.text)
    if text:
        answer.notices.append(text)
    if notice.kind in ("retry", "wait"):
        answer.times.waits(notice)
    if notice.kind == "retry":
        return Retrying(turn_id, notice.attempt, notice.wait_s, notice.error, text)
    if notice.kind == "wait":
        return Waiting(turn_id, text, notice.wait_s if math.isfinite(notice.wait_s) else 0.0)
    return Notice("info", text, turn_id)
