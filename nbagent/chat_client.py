"""`nbagent.client`: the model interface alone, without an agent, tools or a record.

Answers are redacted, as those of runs, and names of models have no hidden characters.

The connections belong to the engine's loop. A client can be awaited on any loop: in a cell, in a
script's `asyncio.run`, in a test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import fields, replace
from typing import Any, Self, TypeVar

from nbagent import runtime
from nbagent.contracts.answer_redaction import AnswerRedactor, redacted_response
from nbagent.contracts.errors import UsageError, unknown_argument
from nbagent.contracts.hidden_characters import visible
from nbagent.contracts.messages import Message, redacted
from nbagent.contracts.model import (
    CallDelta,
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ModelInfo,
    ProviderConfig,
)
from nbagent.contracts.secrets import (
    KeyFunction,
    SecretKey,
    redact,
    register_environment,
)
from nbagent.session.models import ResolvedModel, resolve_model, resolve_settings
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import current_settings, without_secrets

T = TypeVar("T")
RequestSource = ChatRequest | str | Sequence[Message | Mapping[str, Any]]
"""A request, the user's words, or messages."""
_ARGUMENTS = (
    "model",
    *(item.name for item in fields(ProviderConfig) if item.name != "default_model"),
)
_FORMS = (
    'write chat("text"), chat([{"role": "user", "content": "text"}]) or '
    'chat(nbagent.ChatRequest(messages=[nbagent.Message.of("user", "text")]))'
)


class Client:
    """Sends requests to one model's server. Made by `nbagent.client`."""

    def __init__(self, resolved: ResolvedModel) -> None:
        self._resolved = resolved

    @property
    def model(self) -> str:
        """The provider's own name of the model; used by requests that name none."""
        return self._resolved.model

    @property
    def provider(self) -> str:
        return self._resolved.provider

    def __repr__(self) -> str:
        return f"<Client {self._resolved.model_id}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        # Nothing to close: the connections are kept for the next client of this server.
        pass

    async def chat(self, request: RequestSource) -> ChatResponse:
        """Send a request and return the whole answer. Raises ModelError.

        A text is a request with one message of the user; a list is a request with these messages.
        """
        return _shown(await _on_engine_loop(self._resolved.client.chat(self._request(request))))

    async def chat_stream(self, request: RequestSource) -> AsyncGenerator[ChatChunk]:
        """Send a request and yield its answer in chunks; the last has `done` and `response`.

        Takes what `chat` takes. Leaving the loop closes the connection. Raises ModelError.
        """
        chunks = self._resolved.client.chat_stream(self._request(request))
        here = asyncio.get_running_loop()
        queue: asyncio.Queue[ChatChunk | None] = asyncio.Queue()

        async def read() -> None:
            try:
                async with aclosing(chunks):
                    async for chunk in chunks:
                        here.call_soon_threadsafe(queue.put_nowait, chunk)
            finally:
                here.call_soon_threadsafe(queue.put_nowait, None)

        reader = asyncio.run_coroutine_threadsafe(read(), runtime.engine_loop())
        try:
            redactor = _ChunkRedactor()
            while (chunk := await queue.get()) is not None:
                for shown in redactor.feed(chunk):
                    yield shown
            for shown in redactor.flush():
                yield shown
            await asyncio.wrap_future(reader)  # raises the error of the stream
        finally:
            reader.cancel()

    async def list_models(self) -> list[ModelInfo]:
        """List the models of the server. Raises ModelError."""
        models = await _on_engine_loop(self._resolved.client.list_models())
        return [
            model.model_copy(update={"id": visible(model.id)}) for model in map(redacted, models)
        ]

    def _request(self, source: RequestSource) -> ChatRequest:
        """Make the request with this client's model; raise UsageError if it is none."""
        request = source
        if isinstance(source, str):
            request = ChatRequest(messages=(Message.of("user", source),))
        elif isinstance(source, Sequence):
            try:
                request = ChatRequest.model_validate({"messages": source})
            except ValueError:
                raise UsageError(f"a message is not valid; {_FORMS}") from None
        if not isinstance(request, ChatRequest):
            raise UsageError(f"a {type(request).__name__} is no request; {_FORMS}")
        return request if request.model else request.model_copy(update={"model": self.model})


class _ChunkRedactor:
    """Redacts a stream of chunks: keeps back a possible start of a secret."""

    def __init__(self) -> None:
        register_environment()
        self._redactor = AnswerRedactor()

    def feed(self, chunk: ChatChunk) -> Iterator[ChatChunk]:
        """Yield what may be shown now; the last chunk comes after all that was kept back."""
        delta, notice, response = chunk.tool_call_delta, chunk.notice, chunk.response
        correction = chunk.correction and self._redactor.correct(chunk.correction)
        if delta is not None:
            name = delta.name and redact(delta.name)
            arguments = self._redactor.arguments[delta.index].feed(delta.arguments)
            delta = replace(delta, name=name, arguments=arguments)
        shown = replace(
            chunk,
            content=self._redactor.text.feed(chunk.content),
            reasoning=self._redactor.reasoning.feed(chunk.reasoning),
            tool_call_delta=delta,
            notice=notice and replace(notice, text=redact(notice.text)),
            response=response and _shown(response),
            correction=correction,
        )
        if chunk.done:
            rests = list(self.flush())
            if rests and (shown.content or shown.reasoning or delta):
                yield replace(shown, done=False, response=None, usage=None, finish_reason=None)
                shown = replace(shown, content="", reasoning="", tool_call_delta=None, notice=None)
            yield from rests
        yield shown

    def flush(self) -> Iterator[ChatChunk]:
        """Yield what was kept back."""
        text, reasoning = self._redactor.text.flush(), self._redactor.reasoning.flush()
        if text or reasoning:
            yield ChatChunk(content=text, reasoning=reasoning)
        for index, rest in self._redactor.flush_arguments():
            yield ChatChunk(tool_call_delta=CallDelta(index=index, arguments=rest))


def _shown(response: ChatResponse) -> ChatResponse:
    response = redacted_response(response)
    return response.model_copy(update={"model": visible(response.model)})


def client(
    model: str | object | None = None,
    *,
    api_key: str | SecretKey | KeyFunction | None = None,
    base_url: str | None = None,
    organization_id: str | None = None,
    project_id: str | None = None,
    timeout_s: float | None = None,
    retries: int | None = None,
    headers: Mapping[str, str] | None = None,
    extra_body: Mapping[str, Any] | None = None,
    **unknown: Any,
) -> Client:
    """Return a client of a model (`"openai:gpt-5.4"`), with `chat`, `chat_stream`, `list_models`.

    Without a model it takes the one of the settings. The other arguments are the fields of
    `ProviderConfig`; those that are None come from the settings and the environment. An `api_key=`
    is a secret, as one of the environment is: never shown or stored. In a notebook a variable of
    the environment is better, because the text of a cell is saved. It can be a function that
    returns the key, also a coroutine function: called in a thread of its own for each request, so
    that it may block and that a token which expires is always fresh.

    Raises:
        UsageError: a value is not valid, or the server needs a key and there is none (with the code
            LLM_AUTH_FAILED).
    """
    if unknown:
        raise unknown_argument("nbagent.client", unknown, _ARGUMENTS)
    given: dict[str, Any] = {
        "model": getattr(model, "model_id", model),  # A script of `nbagent.offline` has an id.
        "base_url": base_url,
        "organization_id": organization_id,
        "project_id": project_id,
        "timeout_s": timeout_s,
        "retries": retries,
        "headers": dict(headers) if headers else None,
        "extra_body": dict(extra_body) if extra_body else None,
    }
    set_options = {name: value for name, value in given.items() if value is not None}
    options = without_secrets(RunOptions().with_changes(**set_options))
    settings = resolve_settings(options, current_settings())
    return Client(resolve_model(settings, api_key=ProviderConfig(api_key=api_key).key))


async def _on_engine_loop(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine on the engine's loop, from any loop."""
    loop = runtime.engine_loop()
    if asyncio.get_running_loop() is loop:
        return await work
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
