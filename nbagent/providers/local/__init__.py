"""The `local` provider: a GGUF file on disk, served by llama.cpp's own server in a child process.

Owns which file a model id means. What is sent to the server is Chat Completions; the child is in
`process`, its program in `serve`, downloads are in `pull`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ProviderConfig,
)
from nbagent.contracts.errors import ModelError
from nbagent.contracts.ports import ChatClient
from nbagent.providers.chat import PROFILES, Chat
from nbagent.providers.local.process import ServerProcess, server_of
from nbagent.providers.local.pull import HUB, INSTALL, cached, downloaded, size_text
from nbagent.providers.registry import Provider, whole_response

NAME = "local"


class LocalClient:
    """Answers for `local:` models; starts a server for each file that it is asked about."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._clients: dict[ServerProcess, ChatClient] = {}

    def __repr__(self) -> str:
        return f"LocalClient({', '.join(server.path.name for server in self._clients)})"

    @property
    def provider(self) -> str:
        """`local`."""
        return NAME

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse:
        """One request, one whole answer."""
        return await whole_response(self.chat_stream(request), notify)

    async def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        """One request, its answer in chunks; the last one has `done` and `response`."""
        server = server_of(self._file_of(request.model))
        if not server.settled:
            size = size_text(server.path.stat().st_size)
            yield ChatChunk(notice=ClientNotice("wait", f"loading {server.path.name} ({size})"))
        url = await server.started(self._config.timeout_s)
        if server not in self._clients:
            self._clients[server] = _client_at(url, server, self._config)
        try:
            async with aclosing(self._clients[server].chat_stream(request)) as chunks:
                async for chunk in chunks:
                    if chunk.notice is not None and chunk.notice.kind == "retry":
                        await server.check()  # waiting does not bring it back
                    yield chunk
        except ModelError as error:
            if error.status is None:
                await server.check()
            raise

    async def list_models(self) -> list[ModelInfo]:
        """The files that it has asked, with their context, and those in the hub's cache."""
        lengths: dict[Path, int | None] = {}
        for server, client in self._clients.items():
            if server.alive:
                [model] = await client.list_models()
                lengths[server.path] = model.context_length
        hub = {name: lengths.pop(cached(name) or Path(), None) for name in downloaded()}
        served = {str(path): length for path, length in lengths.items()}
        return [ModelInfo(id=name, context_length=n) for name, n in (served | hub).items()]

    async def close(self) -> None:
        """Stop the servers that it asked."""
        while self._clients:
            server, client = self._clients.popitem()
            await client.close()
            server.stop()

    def _file_of(self, model: str) -> Path:
        """The file that a model's name means. Raises ModelError when it cannot be served."""
        if self._config.base_url:
            raise ModelError(
                "a local: model has a server of its own; leave out the base URL, or write"
                f" openai:{model} for the server at {self._config.base_url}.",
                code="LLM_HTTP_ERROR",
            )
        if find_spec("xllamacpp") is None:
            text = f"local: models need the package xllamacpp; {INSTALL}."
            raise ModelError(text, code="LLM_HTTP_ERROR")
        path = cached(model) if model.startswith(HUB) else Path(model)
        if path is None:
            fault = f"was not downloaded yet; run %agent pull {model.removeprefix(HUB)}"
            raise ModelError(f"{model!r} {fault}.", code="LLM_HTTP_ERROR")
        path = Path(os.path.abspath(os.path.expanduser(path)))
        if not path.is_file():
            fault = "is no file; name a GGUF file, or see %agent pull"
            raise ModelError(f"{model!r} {fault}.", code="LLM_HTTP_ERROR")
        return path


def _client_at(url: str, server: ServerProcess, config: ProviderConfig) -> ChatClient:
    """The client that speaks to the child: Chat Completions, as llama.cpp takes them."""
    # Imported late: listing the providers must not load the HTTP library.
    from nbagent.providers.exchange import WireClient

    inner = replace(
        config, base_url=f"{url}/v1", api_key=server.key, organization_id=None, project_id=None
    )
    return WireClient(Chat(PROFILES["llamacpp"]), inner, provider=NAME)


PROVIDER = Provider(name=NAME, open=LocalClient, needs_key=False)
