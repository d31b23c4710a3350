"""One model request under a cancel token: its chunks as events, its outcome as a `ModelAnswer`.

Owns the partial answer of a request that was stopped or cut. Does not decide what follows.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import dataclass

from nbagent.contracts.canonical import monotonic_ms, new_id
from nbagent.contracts.errors import ErrorInfo, NbagentError, describe_error
from nbagent.contracts.events import (
    Notice,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolCallDelta,
    Waiting,
)
from nbagent.contracts.messages import (
    Message,
    TextPart,
    ToolCall,
    is_storable_json,
    parse_arguments,
    redacted,
)
from nbagent.contracts.model import ChatChunk, ChatRequest, ChatResponse, ClientNotice
from nbagent.contracts.ports import EventPort
from nbagent.contracts.secrets import StreamFilter, redact, redact_json
from nbagent.engine.plan import EnginePlan

_MAX_TOKENS = 2**53
"""A count above this is a mistake of the server; neither prices nor the store could take it."""
_GRACE_S = 0.25
"""A request that was cancelled has so long to end; then the run goes on without it."""


@dataclass(slots=True)
class CallTimes:
    """The attempts of a turn's requests, and how long these worked and waited."""

    attempts: int = 1
    retry_wait_ms: float = 0.0
    """Waited between attempts and for a rate limit."""
    model_ms: float = 0.0
    """The rest of the time of the requests."""
    ttft_ms: float | None = None
    """Of the last attempt."""
    _since_ms: float = 0.0
    """When the attempt began, or the wait before it."""
    _wait_ms: float = 0.0
    """How long this wait lasts, as the client says; 0: there is none."""
    _retries: bool = False
    """After this wait comes another attempt."""

    def begin(self) -> None:
        """A request leaves."""
        self._since_ms = monotonic_ms()

    def begin_wait(self, notice: ClientNotice) -> None:
        """The client begins to wait, before another attempt or before the first."""
        self._add_elapsed()
        self._wait_ms, self._retries = notice.wait_s * 1000, notice.kind == "retry"
        if self._retries:
            self.attempts += 1
            self.ttft_ms = None

    def note_output(self) -> None:
        """The person sees something of the answer."""
        if self.ttft_ms is None:
            self.ttft_ms = self._add_elapsed()

    def end(self, *, stopped: bool) -> None:
        """The request is over; a stop may have come before the wait for an attempt was."""
        if stopped and self._retries and monotonic_ms() - self._since_ms < self._wait_ms:
            self.attempts -= 1
        self._add_elapsed()

    def _add_elapsed(self) -> float:
        """Count what went by, and begin to count anew; returns how long the attempt worked."""
        now = monotonic_ms()
        waited = min(self._wait_ms, now - self._since_ms)
        worked = now - self._since_ms - waited
        self.retry_wait_ms += waited
        self.model_ms += worked
        self._since_ms, self._wait_ms, self._retries = now, 0.0, False
        return worked


class _StreamedText:
    """A text that arrives in pieces: kept whole, shown without what may become a secret."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.filter = StreamFilter()

    def feed(self, piece: str) -> str:
        """Keep a piece; returns what may be shown now."""
        self.pieces.append(piece)
        return self.filter.feed(piece)

    def __str__(self) -> str:
        return "".join(self.pieces)


class _StreamedCall(_StreamedText):
    """The arguments of a call."""

    id: str | None = None
    name: str | None = None


class ModelAnswer:
    """What came of a request: the whole response, or what had arrived of it."""

    def __init__(self, turn_id: str, events: EventPort) -> None:
        self.response: ChatResponse | None = None
        self.error: ErrorInfo | None = None
        self.stopped = False
        self.times = CallTimes()
        self.notices: list[str] = []
        self._turn_id, self._emit = turn_id, events.emit
        self._text, self._reasoning = _StreamedText(), _StreamedText()
        self._calls: dict[int, _StreamedCall] = {}
        self._over = False

    async def ask(self, plan: EnginePlan, request: ChatRequest) -> None:
        """Make the request, also once more after a refusal, and tell what happens. Never raises."""
        self.error, self._over = None, False
        self.times.begin()
        task = await plan.cancel.run_cancellable(self._read_response(plan, request), _GRACE_S)
        self._over = True
        self.times.end(stopped=plan.cancel.is_set)
        if self.response is None:  # else it is whole: what the client did afterwards does not count
            self._cut(task, stopped=plan.cancel.is_set)
            self.keep_part(request.model)
        self._flush()

    async def _read_response(self, plan: EnginePlan, request: ChatRequest) -> None:
        if plan.stream:
            async with aclosing(plan.client.chat_stream(request)) as chunks:
                async for chunk in chunks:
                    self._take(chunk)
            return
        response = await plan.client.chat(
            request, notify=lambda notice: self._take(ChatChunk(notice=notice))
        )
        text, reasoning = response.message.text, response.reasoning or ""
        self._take(ChatChunk(content=text, reasoning=reasoning, done=True, response=response))

    def _take(self, chunk: ChatChunk) -> None:
        """Keep a chunk, and show what may be shown of it."""
        if self._over:
            return
        if chunk.content:
            self.times.note_output()
            self._emit(TextDelta(self._turn_id, self._text.feed(chunk.content)))
        if chunk.reasoning:
            self.times.note_output()
            self._emit(ReasoningDelta(self._turn_id, self._reasoning.feed(chunk.reasoning)))
        if (delta := chunk.tool_call_delta) is not None:
            self.times.note_output()
            call = self._calls.setdefault(delta.index, _StreamedCall())
            call.id, call.name = call.id or delta.id, call.name or delta.name
            shown = call.feed(delta.arguments)
            self._emit(ToolCallDelta(self._turn_id, delta.index, delta.name, shown))
        if chunk.notice is not None:
            self._on_notice(chunk.notice)
        if chunk.done and chunk.response is not None:
            self.response = redacted(_keepable(chunk.response))

    def _on_notice(self, notice: ClientNotice) -> None:
        text = redact(notice.text)
        if text:
            self.notices.append(text)
        if notice.kind == "retry":
            self.times.begin_wait(notice)
            error, wait_s = notice.error, notice.wait_s
            self._emit(Retrying(self._turn_id, notice.attempt, wait_s, error, text))
        elif notice.kind == "wait":
            self.times.begin_wait(notice)
            wait_s = notice.wait_s if math.isfinite(notice.wait_s) else 0.0
            self._emit(Waiting(self._turn_id, text, wait_s))
        else:
            self._emit(Notice("info", text, self._turn_id))

    def _flush(self) -> None:
        """Show what was held back because it might have become a secret."""
        if rest := self._reasoning.filter.flush():
            self._emit(ReasoningDelta(self._turn_id, rest))
        if rest := self._text.filter.flush():
            self._emit(TextDelta(self._turn_id, rest))
        for index, call in self._calls.items():
            if rest := call.filter.flush():
                self._emit(ToolCallDelta(self._turn_id, index, None, rest))

    def _cut(self, task: asyncio.Task[None], *, stopped: bool) -> None:
        """Say why there is no whole response."""
        error = task.exception() if task.done() and not task.cancelled() else None
        if stopped:
            self.stopped = True
        elif isinstance(error, NbagentError):
            self.error = ErrorInfo(error.code, redact(error.message), redact_json(error.details))
        elif error is not None:
            self.error = ErrorInfo("UNKNOWN", describe_error(error))
        else:
            what = "the client cancelled its own request"
            if not task.cancelled():
                what = "the stream ended without an end"
            self.error = ErrorInfo("LLM_BAD_RESPONSE", what)

    def keep_part(self, model: str) -> None:
        """Make a response of what had arrived, when no whole one did."""
        text, reasoning = str(self._text), str(self._reasoning)
        calls = [
            ToolCall(
                id=call.id or "",
                name=call.name,
                arguments=parse_arguments(str(call)),
                arguments_raw=str(call),
            )
            for call in self._calls.values()
            if call.name
        ]
        if self.response is not None or not (text or reasoning or calls):
            return
        message = Message(
            role="assistant",
            content=(TextPart(text=text),) if text else (),
            tool_calls=tuple(calls),
            reasoning=reasoning or None,
        )
        response = ChatResponse(message=message, model=model, finish_reason="error")
        self.response = redacted(_keepable(response))


def _keepable(response: ChatResponse) -> ChatResponse:
    """The response of whatever client as a record can hold it, each call with an id of its own."""
    message, usage = response.message, response.usage
    if usage is not None and not all(0 <= count <= _MAX_TOKENS for _, count in usage):
        usage = None
    calls: dict[str, ToolCall] = {}
    for call in message.tool_calls:
        changes: dict[str, object] = {}
        if not call.id or call.id in calls:
            changes["id"] = f"call_{new_id()}"
        changes |= {n: None for n in ("arguments", "extra") if not is_storable_json(getattr(call, n))}
        kept = call.model_copy(update=changes) if changes else call
        calls[kept.id] = kept
    tool_calls, raw = tuple(calls.values()), message.raw if is_storable_json(message.raw) else None
    if (tool_calls, raw, usage) == (message.tool_calls, message.raw, response.usage):
        return response
    message = message.model_copy(update={"tool_calls": tool_calls, "raw": raw})
    return response.model_copy(update={"message": message, "usage": usage})
