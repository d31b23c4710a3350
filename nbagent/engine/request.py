"""One model request under a cancel token: its chunks as events, its outcome as a `ModelAnswer`.

Owns the partial answer of a request that was stopped or cut. Does not decide what follows.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

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
from nbagent.contracts.ports import EventPort
from nbagent.contracts.secrets import StreamFilter, redact, redact_cut, redact_json
from nbagent.engine.plan import EnginePlan

_MOST_TOKENS = 2**53
"""A count above this is a mistake of the server; neither prices nor the store could take it."""
_GRACE_S = 0.25
"""A request that was cancelled has so long to end; then the run goes on without it."""


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
class _PartialCall:
    id: str | None = None
    name: str | None = None
    pieces: list[str] = field(default_factory=list[str])
    shown: StreamFilter = field(default_factory=StreamFilter)


@dataclass(slots=True)
class ModelAnswer:
    """What came of a request: the whole response, or what had arrived of it."""

    response: ChatResponse | None = None
    error: ErrorInfo | None = None
    stopped: bool = False
    times: Times = field(default_factory=Times)
    notices: list[str] = field(default_factory=list[str])
    _text: list[str] = field(default_factory=list[str])
    _reasoning: list[str] = field(default_factory=list[str])
    _calls: dict[int, _PartialCall] = field(default_factory=dict[int, _PartialCall])
    _shown_text: StreamFilter = field(default_factory=StreamFilter)
    _shown_reasoning: StreamFilter = field(default_factory=StreamFilter)

    def take(self, chunk: ChatChunk, turn_id: str, events: EventPort) -> None:
        """Keep a chunk, and show what may be shown of it."""
        if chunk.content:
            self._text.append(chunk.content)
            self.times.shows()
            events.emit(TextDelta(turn_id, self._shown_text.feed(chunk.content)))
        if chunk.reasoning:
            self._reasoning.append(chunk.reasoning)
            self.times.shows()
            events.emit(ReasoningDelta(turn_id, self._shown_reasoning.feed(chunk.reasoning)))
        if chunk.tool_call_delta is not None:
            self.times.shows()
            events.emit(self._call_delta(chunk.tool_call_delta, turn_id))
        if chunk.notice is not None:
            events.emit(self._notice(chunk.notice, turn_id))
        if chunk.done and chunk.response is not None:
            self.response = redacted(_keepable(chunk.response))

    def flush(self, turn_id: str, events: EventPort) -> None:
        """Show what was held back because it might have become a secret."""
        if rest := self._shown_reasoning.flush():
            events.emit(ReasoningDelta(turn_id, rest))
        if rest := self._shown_text.flush():
            events.emit(TextDelta(turn_id, rest))
        for index, call in self._calls.items():
            if rest := call.shown.flush():
                events.emit(ToolCallDelta(turn_id, index, None, rest))

    def keep_part(self, model: str) -> None:
        """Make a response of what had arrived, when no whole one did."""
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        calls = tuple(
            ToolCall(
                id=call.id or "",
                name=call.name,
                arguments=parse_arguments(raw := "".join(call.pieces)),
                arguments_raw=raw,
            )
            for call in self._calls.values()
            if call.name
        )
        if self.response is not None or not (text or reasoning or calls):
            return
        message = Message(
            role="assistant",
            content=(TextPart(text=text),) if text else (),
            tool_calls=calls,
            reasoning=reasoning or None,
        )
        response = ChatResponse(message=message, model=model, finish_reason="error")
        self.response = redacted(_keepable(response))

    def _call_delta(self, delta: CallDelta, turn_id: str) -> Event:
        call = self._calls.setdefault(delta.index, _PartialCall())
        call.id = call.id or delta.id
        call.name = call.name or delta.name
        call.pieces.append(delta.arguments)
        return ToolCallDelta(turn_id, delta.index, delta.name, call.shown.feed(delta.arguments))

    def _notice(self, notice: ClientNotice, turn_id: str) -> Event:
        text = redact(notice.text)
        if text:
            self.notices.append(text)
        if notice.kind in ("retry", "wait"):
            self.times.waits(notice)
        if notice.kind == "retry":
            return Retrying(turn_id, notice.attempt, notice.wait_s, notice.error, text)
        if notice.kind == "wait":
            return Waiting(turn_id, text, notice.wait_s if math.isfinite(notice.wait_s) else 0.0)
        return Notice("info", text, turn_id)


def _keepable(response: ChatResponse) -> ChatResponse:
    """The response of whatever client as a record can hold it, each call with an id of its own."""
    message, usage = response.message, response.usage
    if usage is not None and not all(0 <= count <= _MOST_TOKENS for _, count in usage):
        usage = Usage(**{name: count for name, count in usage if 0 <= count <= _MOST_TOKENS})
    seen: set[str] = set()
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        changes: dict[str, object] = {}
        if not call.id or call.id in seen:
            changes["id"] = f"call_{new_id()}"
        changes |= {n: None for n in ("arguments", "extra") if not is_keepable(getattr(call, n))}
        calls.append(call.model_copy(update=changes) if changes else call)
        seen.add(calls[-1].id)
    raw = message.raw if is_keepable(message.raw) else None
    same = raw is message.raw and all(
        a is b for a, b in zip(calls, message.tool_calls, strict=True)
    )
    if same and usage is response.usage:
        return response
    message = message.model_copy(update={"tool_calls": tuple(calls), "raw": raw})
    return response.model_copy(update={"message": message, "usage": usage})


async def ask(
    plan: EnginePlan, request: ChatRequest, answer: ModelAnswer, turn_id: str, events: EventPort
) -> None:
    """Make the request, tell what happens, fill in `answer`. Never raises."""
    over = False

    def take(chunk: ChatChunk) -> None:
        if not over:
            answer.take(chunk, turn_id, events)

    answer.times.begin()
    task = asyncio.ensure_future(_chunks(plan, request, take))
    await plan.cancel.finished(task, _GRACE_S)
    over = True
    answer.times.end(stopped=plan.cancel.is_set)
    if answer.response is None:  # else it is whole: what the client did afterwards does not count
        _cut(answer, task, stopped=plan.cancel.is_set)
        answer.keep_part(request.model)
    answer.flush(turn_id, events)


async def _chunks(
    plan: EnginePlan, request: ChatRequest, take: Callable[[ChatChunk], None]
) -> None:
    if not plan.stream:
        response = await plan.client.chat(
            request, notify=lambda notice: take(ChatChunk(notice=notice))
        )
        text, reasoning = response.message.text, response.reasoning or ""
        take(ChatChunk(content=text, reasoning=reasoning, done=True, response=response))
        return
    async with aclosing(plan.client.chat_stream(request)) as chunks:
        async for chunk in chunks:
            if not isinstance(chunk, ChatChunk):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModelError(
                    f"the client streamed a {type(chunk).__name__} for a chunk; mend the client",
                    code="LLM_BAD_RESPONSE",
                )
            take(chunk)


def _cut(answer: ModelAnswer, task: asyncio.Future[None], *, stopped: bool) -> None:
    """Say why there is no whole response."""
    error = task.exception() if task.done() and not task.cancelled() else None
    if stopped:
        answer.stopped = True
    elif isinstance(error, NbagentError):
        answer.error = ErrorInfo(error.code, redact(error.message), redact_json(error.details))
    elif error is not None:
        answer.error = ErrorInfo("UNKNOWN", described(error))
    else:
        what = "the stream ended without an end"
        if task.cancelled():
            what = "the client cancelled its own request"
        answer.error = ErrorInfo("LLM_BAD_RESPONSE", f"{what}; %agent resume asks again")


def described(error: BaseException) -> str:
    """`Type: message` of any exception, also of one whose message cannot be made."""
    try:
        return redact_cut(f"{type(error).__name__}: {error}")
    except Exception:
        return type(error).__name__
