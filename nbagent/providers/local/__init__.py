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
from nbagent.providers.local.process import ServerProcess, running_servers, server_of
from nbagent.providers.local.pull import HUB, INSTALL, cached, downloaded, size_text
from nbagent.providers.registry import Provider, whole_response

NAME = "local"
_MAGIC = b"GGUF"


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
        return await whole_response(self._asked(request, stream=False), notify)

    def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]:
        """One request, its answer in chunks; the last one has `done` and `response`."""
        return self._asked(request, stream=True)

    async def list_models(self) -> list[ModelInfo]:
        """The files that are served now, and those in the hub's cache."""
        lengths = {server.path: server.context_length for server in running_servers()}
        hub = {name: lengths.pop(cached(name) or Path(), None) for name in downloaded()}
        served = {str(path): length for path, length in lengths.items()}
        return [ModelInfo(id=name, context_length=n) for name, n in (served | hub).items()]

    async def close(self) -> None:
        """Stop the servers that it asked."""
        while self._clients:
            server, client = self._clients.popitem()
            await client.close()
            server.stop()

    async def _asked(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[ChatChunk]:
        server = server_of(self._file_of(request.model))
        if not server.settled:
            size = size_text(server.path.stat().st_size)
            yield ChatChunk(notice=ClientNotice("wait", f"loading {server.path.name} ({size})"))
        url = await server.started(self._config.timeout_s)
        if server not in self._clients:
            self._clients[server] = _client_at(url, server, self._config)
        client = self._clients[server]
        try:
            async with aclosing(_answer(client, request, stream=stream)) as chunks:
                async for chunk in chunks:
                    if chunk.notice is not None and chunk.notice.kind == "retry":
                        await server.check()  # waiting does not bring it back
                    yield chunk
        except ModelError as error:
            if error.status is None:
                await server.check()
            raise

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
        else:
            path = Path(os.path.abspath(os.path.expanduser(path)))
            fault = _fault_of(path)
        if path is None or fault:
            raise ModelError(f"{model!r} {fault}.", code="LLM_HTTP_ERROR")
        return path


def _fault_of(path: Path) -> str:
    """What keeps a file from being served; nothing for one that looks like a model."""
    try:
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "is no file"
            return f"{kind}; name a GGUF file, or see %agent pull"
        with path.open("rb") as file:
            begins = file.read(len(_MAGIC))
    except (OSError, ValueError) as error:
        return f"cannot be read ({error}); check the path"
    return "" if begins == _MAGIC else "is no GGUF file; choose another, or download it anew"


def _client_at(url: str, server: ServerProcess, config: ProviderConfig) -> ChatClient:
    """The client that speaks to the child: Chat Completions, as llama.cpp takes them."""
    # Imported late: listing the providers must not load the HTTP library.
    from nbagent.providers.exchange import WireClient

    inner = replace(
        config, base_url=f"{url}/v1", api_key=server.key, organization_id=None, project_id=None
    )
    return WireClient(Chat(PROFILES["llamacpp"]), inner, provider=NAME)


async def _answer(
    client: ChatClient, request: ChatRequest, *, stream: bool
) -> AsyncGenerator[ChatChunk]:
    if stream:
        async with aclosing(client.chat_stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk
    else:
        response = await client.chat(request)
        yield ChatChunk(done=True, response=response)


PROVIDER = Provider(name=NAME, open=LocalClient, needs_key=False, is_free=True)
