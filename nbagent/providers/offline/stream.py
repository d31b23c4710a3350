"""Play one answer of an offline model: pieces, delays, estimated usage.

The content comes from a script or from the demo's rules.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat_doors import ChatDoors
from nbagent.contracts.deltas import Delta, ImagePiece, ReasoningPiece, TextPiece, WholeAnswer
from nbagent.contracts.errors import ModelError
from nbagent.contracts.messages import ImagePart, Message, TextPart, ToolCall, parse_arguments
from nbagent.contracts.model import (
    CallDelta,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    FinishReason,
    ResponseMeta,
    Usage,
)
from nbagent.engine.overflow import CHARS_PER_TOKEN, message_chars, tools_chars

_PIECE = re.compile(r"\s*\S{1,8}|\s+\Z")
"""About one token: a word with the space before it, or a part of a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedAnswer:
    """Answer of an offline model to one request: text, reasoning and calls."""

    text: str = ""
    pieces: Sequence[str] | None = None
    """Chunks of the text, instead of `text`; without them the text is streamed by tokens."""
    reasoning: str = ""
    images: Sequence[ImagePart] = ()
    """Images of the answer, after its text."""
    calls: Sequence[ScriptedAnswer | ToolCall] = ()
    """Results of `call`. Their ids are set when the step is played."""
    usage: Usage | None = None
    """None for an estimate."""
    finish_reason: FinishReason | None = None
    delay_ms: float | None = None
    """Wait before each piece of a stream; None for the script's."""
    wait_ms: float = 0.0
    """Wait before the first piece."""
    retries: int = 0
    """Number of retry notices before the answer or the error."""
    error: ScriptedAnswer | ModelError | None = None
    """Result of `error`; raised after the pieces."""
    only_waits: bool = False
    """The step has no answer; the next one follows at once."""
    place: str = ""
    """Prefix of the call ids, unique in the conversation; the model sets it."""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """All calls, also from nested steps."""
        parts = [
            entry.tool_calls if isinstance(entry, ScriptedAnswer) else [entry]
            for entry in self.calls
        ]
        return [call for part in parts for call in part]

    @property
    def failure(self) -> ModelError | None:
        """The error, also from a nested step."""
        return self.error.failure if isinstance(self.error, ScriptedAnswer) else self.error


def call(
    name: str,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    raw: str | None = None,
    **named: Any,
) -> ScriptedAnswer:
    """One tool call: `call("population", city="Oslo")` or `call("fs.read", {"path": "a.txt"})`.

    Args:
        raw: text of the arguments as the model writes it, also invalid JSON; instead of the others.
    """
    if raw is None:
        raw = dump_json({**(arguments or {}), **named}).decode()
    tool_call = ToolCall(id="", name=name, arguments=parse_arguments(raw), arguments_raw=raw)
    return ScriptedAnswer(calls=(tool_call,))


class OfflineModel(ChatDoors, Protocol):
    """Base of all offline models: plays a step, as a stream or as a whole."""

    provider = "offline"
    timeout_s = float("inf")
    """Time limit of a whole answer."""

    def answer(self, request: ChatRequest) -> ScriptedAnswer:
        """Return the answer. Raises ModelError if there is none; other errors become one."""
        ...

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Yield the answer in pieces of about a token; in a stream with delays between them."""
        until_s = time.monotonic() + self.timeout_s
        try:
            step = _apply_limits(self.answer(request), request)
        except ModelError:
            raise
        except Exception as failure:
            # From a script's function, or from the demo's rules for an unusual schema or prompt.
            raise ModelError(
                f"the offline model raised {type(failure).__name__}: {failure}; correct the"
                " function of its script, or please report the prompt."
            ) from failure
        delay_s = (step.delay_ms or 0.0) / 1000 if stream else 0.0
        response = _build_response(step, request)
        await _wait(step.wait_ms / 1000, until_s)
        failure = step.failure or ModelError("the script says so", code="LLM_RATE_LIMITED")
        for attempt in range(1, step.retries + 1):
            text = f"retry {attempt} of {step.retries}: {failure.message}"
            after_s = failure.retry_after_s or 0.0
            yield ClientNotice("retry", text, attempt, wait_s=after_s, error=failure.info)
        *pieces, last = response_deltas(response, step.pieces)
        if step.failure is not None and response.message.tool_calls:
            # Break the stream inside the last call: a complete call would be trusted and run.
            end = pieces[-1]
            assert isinstance(end, CallDelta)
            pieces[-1] = replace(end, arguments=end.arguments[:-1])
        for piece in pieces:
            await _wait(delay_s, until_s)
            yield piece
        if step.failure is not None:
            # A copy each time: an exception keeps the traceback of its last raise.
            raise copy(step.failure)
        yield last

    async def close(self) -> None:
        """Nothing to close."""


def response_deltas(response: ChatResponse, texts: Sequence[str] | None = None) -> Iterator[Delta]:
    """Yield a whole answer in pieces; `texts` are the pieces of its text, else one per token."""
    message = response.message
    for piece in _PIECE.findall(message.reasoning or ""):
        yield ReasoningPiece(piece)
    for piece in _PIECE.findall(message.text) if texts is None else texts:
        yield TextPiece(piece)
    for image in message.images:
        yield ImagePiece(image)
    for index, call in enumerate(message.tool_calls):
        yield CallDelta(index, id=call.id, name=call.name)
        for piece in re.findall(r"(?s).{1,12}", call.arguments_raw):
            yield CallDelta(index, arguments=piece)
    yield WholeAnswer(response)


def estimate_tokens(chars: int) -> int:
    """Estimate the tokens of a text: one per four characters, rounded up."""
    return -(-chars // CHARS_PER_TOKEN)


async def _wait(seconds: float, until_s: float) -> None:
    left_s = until_s - time.monotonic()
    await asyncio.sleep(max(0, min(seconds, left_s)))
    if seconds > left_s:
        message = "the offline model waits longer than the time limit; raise it with --timeout."
        raise ModelError(message, code="LLM_TIMEOUT", retryable=True)


def _apply_limits(step: ScriptedAnswer, request: ChatRequest) -> ScriptedAnswer:
    """Cut the text at a stop sequence, and at `max_tokens` by the estimate."""
    if step.pieces is not None:
        return replace(step, text="".join(step.pieces))
    text = step.text
    for stop in filter(None, request.stop_sequences):
        text = text.partition(stop)[0]
    room = (request.max_tokens or 0) * CHARS_PER_TOKEN
    if request.max_tokens is not None and not step.tool_calls and len(text) > room:
        return replace(step, text=text[:room], finish_reason="length")
    return replace(step, text=text)


def _build_response(step: ScriptedAnswer, request: ChatRequest) -> ChatResponse:
    calls = [
        call.model_copy(update={"id": f"call_{step.place}_{number}"})
        for number, call in enumerate(step.tool_calls, 1)
    ]
    message = Message(
        role="assistant",
        content=(*((TextPart(text=step.text),) if step.text else ()), *step.images),
        tool_calls=tuple(calls),
        reasoning=step.reasoning or None,
    )
    return ChatResponse(
        message=message,
        usage=step.usage or _estimated_usage(request, message),
        model=request.model,
        finish_reason=step.finish_reason or ("tool_calls" if calls else "stop"),
        meta=ResponseMeta(source="offline", attempts=step.retries + 1),
    )


def _estimated_usage(request: ChatRequest, message: Message) -> Usage:
    """Estimate the usage. Cached tokens are those that the previous request sent, too.

    The previous request ended before the last assistant message of this one.
    """
    base = estimate_tokens(len(request.system_prompt))
    base += sum(estimate_tokens(tools_chars([tool])) for tool in request.tools)
    sizes = [estimate_tokens(message_chars(earlier)) for earlier in request.messages]
    answers = [i for i, earlier in enumerate(request.messages) if earlier.role == "assistant"]
    prompt, reasoning = base + sum(sizes), estimate_tokens(len(message.reasoning or ""))
    completion = estimate_tokens(message_chars(message)) + reasoning
    cached = base + sum(sizes[: answers[-1]]) if answers else 0
    return Usage.of(prompt, completion, cached=cached, reasoning=reasoning)
