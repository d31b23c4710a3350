"""One model request under a cancel token: its deltas as events, its outcome in a `ModelCall`.

Owns the `Answer`, and so the part of it that came before a stop. Does not decide what follows.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing
from dataclasses import dataclass
from typing import assert_never

from nbagent.contracts.answer import Answer
from nbagent.contracts.answer_redaction import AnswerRedactor, redacted_response
from nbagent.contracts.canonical import monotonic_ms, new_id
from nbagent.contracts.corrections import (
    AnswerRestarted,
    CallCorrected,
    Correction,
    TextCorrected,
)
from nbagent.contracts.deltas import (
    AnswerEnd,
    CallEnd,
    Delta,
    ImagePiece,
    ReasoningPiece,
    TextPiece,
    WholeAnswer,
)
from nbagent.contracts.errors import ErrorInfo, ModelError, NbagentError, describe_error
from nbagent.contracts.events import (
    Notice,
    ReasoningDelta,
    Retrying,
    TextDelta,
    ToolCallDelta,
    TurnCorrected,
    Waiting,
)
from nbagent.contracts.messages import ToolCall, is_storable_json
from nbagent.contracts.model import CallDelta, ChatRequest, ChatResponse, ClientNotice
from nbagent.contracts.ports import EventPort
from nbagent.contracts.secrets import redact, redact_json
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


class ModelCall:
    """A request and its outcome: the complete response, or the part that arrived."""

    def __init__(self, turn_id: str, events: EventPort) -> None:
        self.response: ChatResponse | None = None
        self.error: ErrorInfo | None = None
        self.stopped = False
        self.times = CallTimes()
        self.notices: list[str] = []
        self.failed_attempts: list[str] = []
        """HTTP status of each failed attempt; the code of an error without one."""
        self._turn_id, self._emit = turn_id, events.emit
        self._answer = Answer()
        self._redactor = AnswerRedactor()
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
            self.use_partial(request.model)
        self._flush()

    async def _read_response(self, plan: EnginePlan, request: ChatRequest) -> None:
        async with aclosing(plan.client.send(request, stream=plan.stream)) as deltas:
            async for delta in deltas:
                self._on_delta(delta)

    def _on_delta(self, delta: Delta) -> None:
        """Add a delta to the answer and emit what may be shown."""
        if self._closed:  # an abandoned request may still deliver
            return
        self._answer.add(delta)
        match delta:
            case TextPiece(text):
                self.times.note_output()
                self._emit(TextDelta(self._turn_id, self._redactor.text.feed(text)))
            case ReasoningPiece(text):
                self.times.note_output()
                self._emit(ReasoningDelta(self._turn_id, self._redactor.reasoning.feed(text)))
            case CallDelta(index, _, name, arguments):
                self.times.note_output()
                shown = self._redactor.arguments[index].feed(arguments)
                self._emit(ToolCallDelta(self._turn_id, index, name and redact(name), shown))
            case TextCorrected() | CallCorrected() | AnswerRestarted():
                self._on_correction(delta)
            case ClientNotice():
                self._on_notice(delta)
            case ImagePiece():
                self.times.note_output()
            case CallEnd():
                pass
            case AnswerEnd() | WholeAnswer():
                response = self._answer.response()
                self.response = response and redacted_response(_storable(response))
            case _:
                assert_never(delta)

    def _on_correction(self, correction: Correction) -> None:
        """Show what replaces the answer so far; a corrected call is shown whole."""
        if isinstance(correction, CallCorrected):
            name, arguments = self._answer.call_so_far(correction.index)
            correction = CallCorrected(correction.index, name, arguments)
        match self._redactor.correct(correction):
            case TextCorrected(text, reasoning):
                event = TurnCorrected(self._turn_id, text=text, reasoning=reasoning)
            case CallCorrected(index, name, arguments):
                call = ToolCallDelta(self._turn_id, index, name, arguments or "")
                event = TurnCorrected(self._turn_id, call=call)
            case AnswerRestarted():
                event = TurnCorrected(self._turn_id, restarted=True)
        self._emit(event)

    def _on_notice(self, notice: ClientNotice) -> None:
        text = redact(notice.text)
        if text:
            self.notices.append(text)
        if notice.kind == "retry":
            code = notice.error.code if notice.error else "UNKNOWN"
            self.failed_attempts.append(str(notice.status or code))
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
        if rest := self._redactor.reasoning.flush():
            self._emit(ReasoningDelta(self._turn_id, rest))
        if rest := self._redactor.text.flush():
            self._emit(TextDelta(self._turn_id, rest))
        for index, rest in self._redactor.flush_arguments():
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
        if self.error is not None:
            status = error.status if isinstance(error, ModelError) else None
            self.failed_attempts.append(str(status or self.error.code))

    def use_partial(self, model: str) -> None:
        """Take the parts that arrived as the response, if there is no complete one."""
        if self.response is None and (partial := self._answer.partial(model)) is not None:
            self.response = redacted_response(_storable(partial))


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
