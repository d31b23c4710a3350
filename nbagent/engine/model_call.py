"""One model request under a cancel token: its chunks as events, its outcome in a `ModelCall`.

Owns the partial answer of a request that was stopped or cut off. Does not decide what follows.
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
    ImagePart,
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
"""Larger counts are an error of the server: JSON readers lose digits above 2**53, and SQLite
integers end at 2**63."""
_GRACE_S = 0.25
"""Time for a cancelled request to close its connection. Then the run continues without it: a stop
must be visible within 0.3 s."""


@dataclass(slots=True)
class CallTimes:
    """Attempts of a turn's requests, with their working and waiting times.

    The client does not report its times: they are derived from its notices.
    """

    attempts: int = 1
    retry_wait_ms: float = 0.0
    """Time waited between attempts and for a rate limit."""
    model_ms: float = 0.0
    """Time of the requests without waits."""
    ttft_ms: float | None = None
    """Time to the first token of the last attempt."""
    _since_ms: float = 0.0
    """Start of the current attempt, or of the wait before it."""
    _wait_ms: float = 0.0
    """Length of the current wait, as the client announced it; 0 if there is none."""
    _retries: bool = False
    """True if another attempt follows this wait."""

    def begin(self) -> None:
        """Note the start of a request."""
        self._since_ms = monotonic_ms()

    def begin_wait(self, notice: ClientNotice) -> None:
        """Note the start of a wait, before the first attempt or another one."""
        self._add_elapsed()
        self._wait_ms, self._retries = notice.wait_s * 1000, notice.kind == "retry"
        if self._retries:
            self.attempts += 1
            self.ttft_ms = None

    def note_output(self) -> None:
        """Note that a part of the answer arrived."""
        if self.ttft_ms is None:
            self.ttft_ms = self._add_elapsed()

    def end(self, *, stopped: bool) -> None:
        """Note the end of the request.

        If a stop came during the wait before an attempt, that attempt did not happen.
        """
        if stopped and self._retries and monotonic_ms() - self._since_ms < self._wait_ms:
            self.attempts -= 1
        self._add_elapsed()

    def _add_elapsed(self) -> float:
        """Add the time since the last call; return the attempt's working time in ms."""
        now = monotonic_ms()
        waited = min(self._wait_ms, now - self._since_ms)
        worked = now - self._since_ms - waited
        self.retry_wait_ms += waited
        self.model_ms += worked
        self._since_ms, self._wait_ms, self._retries = now, 0.0, False
        return worked


class _StreamedText:
    """A text that arrives in pieces: all is kept; a possible start of a secret is not shown."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.filter = StreamFilter()

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that may be shown now."""
        self.pieces.append(piece)
        return self.filter.feed(piece)

    def __str__(self) -> str:
        return "".join(self.pieces)


class _StreamedCall(_StreamedText):
    """A call whose arguments arrive in pieces."""

    id: str | None = None
    name: str | None = None


class ModelCall:
    """A request and its outcome: the complete response, or the part that arrived."""

    def __init__(self, turn_id: str, events: EventPort) -> None:
        self.response: ChatResponse | None = None
        self.error: ErrorInfo | None = None
        self.stopped = False
        self.times = CallTimes()
        self.notices: list[str] = []
        self._turn_id, self._emit = turn_id, events.emit
        self._text, self._reasoning = _StreamedText(), _StreamedText()
        self._images: list[ImagePart] = []
        self._calls: dict[int, _StreamedCall] = {}
        self._closed = False

    async def send(self, plan: EnginePlan, request: ChatRequest) -> None:
        """Send the request and emit its events. Never raises.

        May be called again with a shorter request after a refusal.
        """
        self.error, self._closed = None, False
        self.times.begin()
        task = await plan.cancel.run_cancellable(self._read_response(plan, request), _GRACE_S)
        self._closed = True
        self.times.end(stopped=plan.cancel.is_set)
        # A complete response stays valid whatever the client did after it.
        if self.response is None:
            self._set_failure(task, stopped=plan.cancel.is_set)
            self.build_partial(request.model)
        self._flush()

    async def _read_response(self, plan: EnginePlan, request: ChatRequest) -> None:
        if plan.stream:
            async with aclosing(plan.client.chat_stream(request)) as chunks:
                async for chunk in chunks:
                    self._on_chunk(chunk)
            return
        response = await plan.client.chat(
            request, notify=lambda notice: self._on_chunk(ChatChunk(notice=notice))
        )
        text, reasoning = response.message.text, response.reasoning or ""
        self._on_chunk(ChatChunk(content=text, reasoning=reasoning, done=True, response=response))

    def _on_chunk(self, chunk: ChatChunk) -> None:
        """Add a chunk to the answer and emit what may be shown."""
        if self._closed:  # an abandoned request may still deliver chunks
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
            shown, name = call.feed(delta.arguments), delta.name and redact(delta.name)
            self._emit(ToolCallDelta(self._turn_id, delta.index, name, shown))
        if chunk.image is not None:
            self.times.note_output()
            self._images.append(chunk.image)
        if chunk.notice is not None:
            self._on_notice(chunk.notice)
        if chunk.done and chunk.response is not None:
            self.response = redacted(_storable(chunk.response))

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
        """Emit the text that was kept back as a possible start of a secret."""
        if rest := self._reasoning.filter.flush():
            self._emit(ReasoningDelta(self._turn_id, rest))
        if rest := self._text.filter.flush():
            self._emit(TextDelta(self._turn_id, rest))
        for index, call in self._calls.items():
            if rest := call.filter.flush():
                self._emit(ToolCallDelta(self._turn_id, index, None, rest))

    def _set_failure(self, task: asyncio.Task[None], *, stopped: bool) -> None:
        """Set the reason why there is no complete response."""
        error = task.exception() if task.done() and not task.cancelled() else None
        if stopped:
            self.stopped = True
        elif isinstance(error, NbagentError):
            self.error = ErrorInfo(error.code, redact(error.message), redact_json(error.details))
        elif error is not None:
            self.error = ErrorInfo("UNKNOWN", describe_error(error))
        else:
            reason = "the client cancelled its own request"
            if not task.cancelled():
                reason = "the stream ended without its last chunk"
            self.error = ErrorInfo("LLM_BAD_RESPONSE", reason)

    def build_partial(self, model: str) -> None:
        """Build a response from the parts that arrived, if there is no complete one."""
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
        if self.response is not None or not (text or reasoning or calls or self._images):
            return
        message = Message(
            role="assistant",
            content=(*((TextPart(text=text),) if text else ()), *self._images),
            tool_calls=tuple(calls),
            reasoning=reasoning or None,
        )
        # `error`: calls of an unfinished answer are never run, as their arguments may be cut.
        response = ChatResponse(message=message, model=model, finish_reason="error")
        self.response = redacted(_storable(response))


def _storable(response: ChatResponse) -> ChatResponse:
    """Make a response storable; each call gets a unique id.

    Some servers send no ids, or the same id twice; results are matched to calls by id.
    """
    message, usage = response.message, response.usage
    if usage is not None and not all(0 <= count <= _MAX_TOKENS for _, count in usage):
        usage = None
    calls: dict[str, ToolCall] = {}
    for call in message.tool_calls:
        changes: dict[str, object] = {}
        if not call.id or call.id in calls:
            changes["id"] = f"call_{new_id()}"
        changes |= {
            n: None for n in ("arguments", "extra") if not is_storable_json(getattr(call, n))
        }
        storable_call = call.model_copy(update=changes) if changes else call
        calls[storable_call.id] = storable_call
    tool_calls, raw = tuple(calls.values()), message.raw if is_storable_json(message.raw) else None
    if (tool_calls, raw, usage) == (message.tool_calls, message.raw, response.usage):
        return response
    message = message.model_copy(update={"tool_calls": tool_calls, "raw": raw})
    return response.model_copy(update={"message": message, "usage": usage})
