"""`chat` and `chat_stream` over the one method of a client, and `send` over clients without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Protocol, cast

from nbagent.contracts.answer import Answer
from nbagent.contracts.corrections import AnswerRestarted, CallCorrected, TextCorrected
from nbagent.contracts.deltas import (
    AnswerEnd,
    CallEnd,
    Delta,
    ImagePiece,
    ReasoningPiece,
    TextPiece,
    WholeAnswer,
)
from nbagent.contracts.errors import ModelError
from nbagent.contracts.model import CallDelta, ChatChunk, ChatRequest, ChatResponse, ClientNotice
from nbagent.contracts.ports import ChatClient, SchemaClient


class ChatDoors(Protocol):
    """Gives a client with `send` the methods `chat` and `chat_stream`."""

    def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Send one request; yield its answer in deltas."""
        ...

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        """Send one request and return the whole answer."""
        return await read_answer(self.send(request, stream=False), notify)

    def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        """Send one request; yield its answer in chunks. The last has `done` and `response`."""
        return read_chunks(self.send(request, stream=True))


async def read_answer(
    deltas: AsyncGenerator[Delta], notify: Callable[[ClientNotice], None] | None = None
) -> ChatResponse:
    """Read deltas to their end and return the response."""
    answer = Answer()
    async with aclosing(deltas):
        async for delta in deltas:
            answer.add(delta)
            if notify is not None and isinstance(delta, ClientNotice):
                notify(delta)
            if (response := answer.response()) is not None:
                return response
    raise ModelError("the answer ended without a last chunk; try again.", code="LLM_BAD_RESPONSE")


async def read_chunks(deltas: AsyncGenerator[Delta]) -> AsyncGenerator[ChatChunk]:
    """Yield deltas as chunks; the last one has the response."""
    answer = Answer()
    async with aclosing(deltas):
        async for delta in deltas:
            answer.add(delta)
            if (chunk := _chunk(delta)) is not None:
                yield chunk
            elif (response := answer.response()) is not None:
                yield ChatChunk(
                    done=True,
                    finish_reason=response.finish_reason,
                    usage=response.usage,
                    response=response,
                )


def _chunk(delta: Delta) -> ChatChunk | None:
    """Return a delta as a chunk; None for the ends of calls and of the answer."""
    match delta:
        case TextPiece(text):
            return ChatChunk(content=text)
        case ReasoningPiece(text):
            return ChatChunk(reasoning=text)
        case CallDelta():
            return ChatChunk(tool_call_delta=delta)
        case ClientNotice():
            return ChatChunk(notice=delta)
        case TextCorrected() | CallCorrected() | AnswerRestarted():
            return ChatChunk(correction=delta)
        case ImagePiece(image):
            return ChatChunk(image=image)
        case CallEnd() | AnswerEnd() | WholeAnswer():
            return None


def with_send(client: object) -> ChatClient:
    """Return the client, with `send` if it is of a package that has only `chat_stream`."""
    return cast("ChatClient", client if hasattr(client, "send") else ChunkClient(client))


class ChunkClient(ChatDoors):
    """Gives `send` to a client whose `chat_stream` yields chunks.

    For packages written before deltas; it goes with the next version.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def has_schema_mode(self, request: ChatRequest) -> bool:
        """Return the inner client's answer."""
        inner = self._inner
        return isinstance(inner, SchemaClient) and inner.has_schema_mode(request)

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Send one request by the inner client's `chat_stream`, or by its `chat`."""
        deltas = self._streamed if stream or not hasattr(self._inner, "chat") else self._whole
        async with aclosing(deltas(request)) as pieces:
            async for delta in pieces:
                yield delta

    async def _streamed(self, request: ChatRequest) -> AsyncGenerator[Delta]:
        streamed: AsyncGenerator[ChatChunk] = self._inner.chat_stream(request)
        async with aclosing(streamed) as chunks:
            async for chunk in chunks:
                if chunk.content:
                    yield TextPiece(chunk.content)
                if chunk.reasoning:
                    yield ReasoningPiece(chunk.reasoning)
                if chunk.image is not None:
                    yield ImagePiece(chunk.image)
                for delta in (chunk.tool_call_delta, chunk.notice, chunk.correction):
                    if delta is not None:
                        yield delta
                if chunk.done and chunk.response is not None:
                    yield WholeAnswer(chunk.response)

    async def _whole(self, request: ChatRequest) -> AsyncGenerator[Delta]:
        """Yield the notices while `chat` runs, then its answer."""
        notices: asyncio.Queue[ClientNotice | None] = asyncio.Queue()

        async def answer() -> ChatResponse:
            try:
                return await self._inner.chat(request, notify=notices.put_nowait)
            finally:
                notices.put_nowait(None)

        task = asyncio.create_task(answer())
        try:
            while (notice := await notices.get()) is not None:
                yield notice
            for delta in whole_deltas(await task):
                yield delta
        finally:
            task.cancel()


def whole_deltas(response: ChatResponse) -> tuple[Delta, ...]:
    """Return a response that came whole as deltas."""
    message = response.message
    shown: tuple[Delta, ...] = ()
    if message.reasoning:
        shown += (ReasoningPiece(message.reasoning),)
    if message.text:
        shown += (TextPiece(message.text),)
    return (*shown, *map(ImagePiece, message.images), WholeAnswer(response))
