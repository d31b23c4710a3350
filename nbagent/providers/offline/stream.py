"""What an offline model says to one request, as a stream: pieces, pace, an estimate of usage.

Decides nothing about what is said.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace

from nbagent.contracts.canonical import dump_json, monotonic_ms
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    FinishReason,
    Message,
    ResponseMeta,
    TextPart,
    ToolCall,
    ToolCallDelta,
    Usage,
    parse_arguments,
)
from nbagent.contracts.errors import ErrorInfo, ModelError
from nbagent.providers.registry import whole_response

CHARS_PER_TOKEN = 4
"""A token of English text has about four characters; offline models count with that."""
_PART_TOKENS = 256
"""What an image or a file counts for."""
_ARGUMENTS_PIECE = 12


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call that an offline model makes."""

    name: str
    arguments_raw: str
    """The JSON text of the arguments, as the model would write it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an offline model says to one request."""

    text: str = ""
    pieces: tuple[str, ...] | None = None
    """How the text is streamed; None = token by token."""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    usage: Usage | None = None
    """None = an estimate."""
    finish_reason: FinishReason | None = None
    delay_ms: float | None = None
    """Between two pieces; None = the script's."""
    wait_ms: float = 0.0
    """Before the first piece."""
    retries: int = 0
    """Notices of a retry before the answer or the error."""
    failure: ModelError | None = None
    """Raised after the pieces."""
    only_waits: bool = False
    """The step holds no answer; the next one follows at once."""


class OfflineModel:
    """What all offline models share: whole answers and streams are one thing."""

    provider = "offline"

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        """One whole answer, without delays between pieces."""
        return await whole_response(self.stream(request, paced=False), notify)

    def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        """The answer in pieces of the size of tokens."""
        return self.stream(request)

    async def close(self) -> None:
        """Nothing to close."""

    def stream(self, request: ChatRequest, *, paced: bool = True) -> AsyncGenerator[ChatChunk]:
        """The answer in pieces, with or without delays between them."""
        raise NotImplementedError


class _Pace:
    """Waits between pieces, within the deadline of the request."""

    def __init__(self, delay_ms: float, timeout_s: float | None) -> None:
        self._delay_s = delay_ms / 1000
        self._timeout_s = timeout_s
        self._until_ms = None if timeout_s is None else monotonic_ms() + timeout_s * 1000

    async def piece(self) -> None:
        await self.wait(self._delay_s)

    async def wait(self, seconds: float) -> None:
        left_s = None if self._until_ms is None else (self._until_ms - monotonic_ms()) / 1000
        if left_s is None or seconds <= left_s:
            # A wait of nothing still lets the loop cancel the request.
            await asyncio.sleep(seconds)
            return
        await asyncio.sleep(max(left_s, 0))
        raise ModelError(
            f"no whole answer within {self._timeout_s:g} s; allow more with --timeout.",
            code="LLM_TIMEOUT",
            retryable=True,
        )


async def play(
    step: Step,
    request: ChatRequest,
    *,
    place: str,
    delay_ms: float = 0.0,
    timeout_s: float | None = None,
) -> AsyncGenerator[ChatChunk]:
    """Stream an answer: notices, reasoning, text, calls, then the whole response.

    Args:
        place: makes the ids of its calls unique in the conversation.
        delay_ms: before each piece, where the step does not say it.
        timeout_s: deadline of the whole answer.

    Raises:
        ModelError: the step's failure, after its pieces; LLM_TIMEOUT at the deadline.
    """
    step = _within_limits(step, request)
    calls = [_tool_call(f"call_{place}_{i}", one) for i, one in enumerate(step.calls, 1)]
    pace = _Pace(delay_ms, timeout_s)
    await pace.wait(step.wait_ms / 1000)
    notices = list(_retry_notices(step))
    for notice in notices:
        yield ChatChunk(notice=notice)
    for piece in split_pieces(step.reasoning):
        await pace.piece()
        yield ChatChunk(reasoning=piece)
    for piece in split_pieces(step.text) if step.pieces is None else step.pieces:
        await pace.piece()
        yield ChatChunk(content=piece)
    for index, call in enumerate(calls):
        # A stream that breaks does so inside the last call, so that nobody takes it for whole.
        broken = step.failure is not None and index == len(calls) - 1
        for delta in _call_deltas(index, call, broken=broken):
            await pace.piece()
            yield ChatChunk(tool_call_delta=delta)
    await pace.wait(0)
    if step.failure is not None:
        # A fresh one each time: a raised exception carries the traceback of its raising.
        raise copy(step.failure)
    response = _response(step, tuple(calls), notices, request)
    yield ChatChunk(
        done=True, finish_reason=response.finish_reason, usage=response.usage, response=response
    )


def split_pieces(text: str) -> Iterator[str]:
    """Cut a text into pieces of the size of tokens: a word with the space before it, or less."""
    yield from re.findall(r"\s*\S{1,8}|\s+\Z", text)


def estimated_tokens(text: str) -> int:
    """Tokens of a text, estimated: one for every four characters begun."""
    return -(-len(text) // CHARS_PER_TOKEN)


def estimated_usage(request: ChatRequest, message: Message) -> Usage:
    """Usage by the estimate. Cached = what the request before had sent too.

    The request before ended where the last assistant message of this one stands.
    """
    base = estimated_tokens(request.system_prompt)
    for tool in request.tools:
        shape = dump_json(tool.parameters).decode("utf-8", "replace")
        base += estimated_tokens(tool.name + tool.description + shape)
    sizes = [_message_tokens(one) for one in request.messages]
    answers = [i for i, one in enumerate(request.messages) if one.role == "assistant"]
    cached = base + sum(sizes[: answers[-1]]) if answers else 0
    prompt = base + sum(sizes)
    reasoning = estimated_tokens(message.reasoning or "")
    completion = _message_tokens(message) + reasoning
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
    )


def _message_tokens(message: Message) -> int:
    called = "".join(call.name + call.arguments_raw for call in message.tool_calls)
    others = sum(1 for part in message.content if not isinstance(part, TextPart))
    return estimated_tokens(message.text + called) + others * _PART_TOKENS


def _within_limits(step: Step, request: ChatRequest) -> Step:
    """Cut the text at a stop sequence, and at `max_tokens` by the estimate."""
    if step.pieces is not None:
        return step
    starts = [step.text.find(stop) for stop in request.stop_sequences if stop]
    end = min((start for start in starts if start >= 0), default=len(step.text))
    room = (request.max_tokens or 0) * CHARS_PER_TOKEN
    if request.max_tokens is not None and not step.calls and end > room:
        return replace(step, text=step.text[:room], finish_reason="length")
    return replace(step, text=step.text[:end])


def _tool_call(call_id: str, made: Call) -> ToolCall:
    return ToolCall(
        id=call_id,
        name=made.name,
        arguments=parse_arguments(made.arguments_raw),
        arguments_raw=made.arguments_raw,
    )


def _retry_notices(step: Step) -> Iterator[ClientNotice]:
    failure = step.failure
    info = failure.info if failure else ErrorInfo("LLM_RATE_LIMITED", "the script says so")
    for attempt in range(1, step.retries + 1):
        yield ClientNotice(
            kind="retry",
            text=f"retry {attempt} of {step.retries}: {info.message}",
            attempt=attempt,
            wait_s=(failure.retry_after_s if failure else None) or 0.0,
            error=info,
        )


def _call_deltas(index: int, call: ToolCall, *, broken: bool) -> Iterator[ToolCallDelta]:
    yield ToolCallDelta(index, id=call.id, name=call.name)
    raw = call.arguments_raw[:-1] if broken else call.arguments_raw
    for start in range(0, len(raw), _ARGUMENTS_PIECE):
        yield ToolCallDelta(index, arguments=raw[start : start + _ARGUMENTS_PIECE])


def _response(
    step: Step, calls: tuple[ToolCall, ...], notices: list[ClientNotice], request: ChatRequest
) -> ChatResponse:
    text = step.text if step.pieces is None else "".join(step.pieces)
    message = Message(
        role="assistant",
        content=(TextPart(text=text),) if text else (),
        tool_calls=calls,
        reasoning=step.reasoning or None,
    )
    return ChatResponse(
        message=message,
        usage=step.usage or estimated_usage(request, message),
        model=request.model,
        finish_reason=step.finish_reason or ("tool_calls" if calls else "stop"),
        meta=ResponseMeta(
            source="offline",
            attempts=len(notices) + 1,
            retry_wait_ms=sum(notice.wait_s for notice in notices) * 1000,
        ),
    )
