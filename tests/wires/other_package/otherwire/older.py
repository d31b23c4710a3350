"""Providers written before deltas: their clients yield chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

from nbagent.contracts.messages import Message, ToolCall
from nbagent.contracts.model import (
    CallDelta,
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ProviderConfig,
    Usage,
)
from nbagent.providers.provider import Provider

_WRITTEN = '{"city": "Oslo"}'


class ChunkClient:
    """Calls a tool, then answers in two chunks."""

    provider = "olderwire"

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        yield ChatChunk(notice=ClientNotice("note", "an older client"))
        if request.tools and request.messages[-1].role != "tool":
            call = ToolCall(
                id="c1", name="population", arguments={"city": "Oslo"}, arguments_raw=_WRITTEN
            )
            yield ChatChunk(tool_call_delta=CallDelta(0, "c1", "population", _WRITTEN))
            yield _last("", (call,))
            return
        yield ChatChunk(reasoning="Hm.")
        yield ChatChunk(content="In chunks")
        yield _last("In chunks.", ())

    async def list_models(self) -> list[ModelInfo]:
        return [ModelInfo(id="x")]

    async def close(self) -> None:
        pass


class WholeClient(ChunkClient):
    """Has `chat`, too."""

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        if notify:
            notify(ClientNotice("note", "asked whole"))
        response = _last("Whole.", ()).response
        assert response
        return response


def _last(text: str, calls: tuple[ToolCall, ...]) -> ChatChunk:
    message = Message.of("assistant", text).model_copy(update={"tool_calls": calls})
    usage = Usage(completion_tokens=2)
    response = ChatResponse(message=message, usage=usage, model="x")
    return ChatChunk(done=True, finish_reason="stop", usage=usage, response=response)


def _provider(name: str, client: Callable[[], Any]) -> Provider:
    def opened(config: ProviderConfig) -> Any:
        return client()

    return Provider(name=name, open=opened, needs_key=False)


CHUNKS = _provider("olderwire", ChunkClient)
WHOLE = _provider("wholewire", WholeClient)
