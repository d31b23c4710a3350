"""How an answer of an offline model becomes a stream: pieces, pace, and an estimate of usage.

Decides nothing about what is said.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
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
)
from nbagent.contracts.errors import ModelError

CHARS_PER_TOKEN = 4
"""A token of English text has about four characters; offline models count with that."""
_PART_TOKENS = 256
"""What an image or a file counts for."""
_ARGUMENTS_PIECE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an offline model says to one request."""

    text: str = ""
    pieces: tuple[str, ...] | None = None
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    """None = an estimate."""
    finish_reason: FinishReason | None = None
    wait_ms: float = 0.0
    notices: tuple[ClientNotice, ...] = ()
    failure: ModelError | None = None
    """Raised after the pieces."""


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
    answer: Answer, request: ChatRequest, *, delay_ms: float, timeout_s: float | None = None
) -> AsyncGenerator[ChatChunk]:
    """Stream an answer: notices, reasoning, text, calls, then the whole response.

    Args:
        delay_ms: before each piece.
        timeout_s: deadline of the whole answer.

    Raises:
        ModelError: the answer's failure, after its pieces; LLM_TIMEOUT at the deadline.
    """
    answer = _within_limits(answer, request)
    pace = _Pace(delay_ms, timeout_s)
    for notice in answer.notices:
        yield ChatChunk(notice=notice)
    if answer.wait_ms:
        await pace.wait(answer.wait_ms / 1000)
    for piece in split_pieces(answer.reasoning):
        await pace.piece()
        yield ChatChunk(reasoning=piece)
    for piece in split_pieces(answer.text) if answer.pieces is None else answer.pieces:
        await pace.piece()
        yield ChatChunk(content=piece)
    for index, call in enumerate(answer.calls):
        # A stream that breaks does so inside the last call, so that nobody takes it for whole.
        broken = answer.failure is not None and index == len(answer.calls) - 1
        for delta in _call_deltas(index, call, broken=broken):
            await pace.piece()
            yield ChatChunk(tool_call_delta=delta)
    await pace.wait(0)
    if answer.failure is not None:
        # A fresh one each time: a raised exception carries the traceback of its raising.
        raise _copy(answer.failure)
    response = _response(answer, request)
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


def _within_limits(answer: Answer, request: ChatRequest) -> Answer:
    """Cut the text at a stop sequence, and at `max_tokens` by the estimate."""
    if answer.pieces is not None:
        return answer
    starts = [answer.text.find(stop) for stop in request.stop_sequences if stop]
    found = [start for start in starts if start >= 0]
    if found:
        answer = replace(answer, text=answer.text[: min(found)])
    if request.max_tokens is not None and not answer.calls:
        room = request.max_tokens * CHARS_PER_TOKEN
        if len(answer.text) > room:
            return replace(answer, text=answer.text[:room], finish_reason="length")
    return answer


def _call_deltas(index: int, call: ToolCall, *, broken: bool) -> Iterator[ToolCallDelta]:
    yield ToolCallDelta(index, id=call.id, name=call.name)
    raw = call.arguments_raw[:-1] if broken else call.arguments_raw
    for start in range(0, len(raw), _ARGUMENTS_PIECE):
        yield ToolCallDelta(index, arguments=raw[start : start + _ARGUMENTS_PIECE])


def _response(answer: Answer, request: ChatRequest) -> ChatResponse:
    text = answer.text if answer.pieces is None else "".join(answer.pieces)
    message = Message(
        role="assistant",
        content=(TextPart(text=text),) if text else (),
        tool_calls=answer.calls,
        reasoning=answer.reasoning or None,
    )
    retries = sum(1 for notice in answer.notices if notice.kind == "retry")
    return ChatResponse(
        message=message,
        usage=answer.usage or estimated_usage(request, message),
        model=request.model,
        finish_reason=answer.finish_reason or ("tool_calls" if answer.calls else "stop"),
        meta=ResponseMeta(
            source="offline",
            attempts=retries + 1,
            retry_wait_ms=sum(notice.wait_s for notice in answer.notices) * 1000,
        ),
    )


def _copy(failure: ModelError) -> ModelError:
    return ModelError(
        failure.message,
        code=failure.code,
        details=failure.details,
        status=failure.status,
        retry_after_s=failure.retry_after_s,
        request_id=failure.request_id,
        retryable=failure.retryable,
    )
