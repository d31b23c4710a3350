"""The protocol, by the official `mcp` package: connecting, listing, calling.

With `stdio` and `incoming` the only module that imports `mcp`; `connection` imports it late, in a
thread. What the server asks of us is answered here: no roots, no model, no person.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx2
import mcp_types as types
from mcp import Client, ClientSession, MCPError
from mcp.client import ClientRequestContext, IncomingMessage, Transport
from mcp.client.streamable_http import streamable_http_client
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from nbagent import __version__
from nbagent.contracts.secrets import redact
from nbagent.tools.mcp.definitions import MOST_TOOLS
from nbagent.tools.mcp.description import Description, is_loopback, revealed
from nbagent.tools.mcp.incoming import checked
from nbagent.tools.mcp.life import Life
from nbagent.tools.mcp.stdio import stdio_streams

_MODES = {"auto": "auto", "2025-11-25": "legacy", "2026-07-28": "2026-07-28"}
_MOST_PAGES = 50
_HTTP_TIMEOUT_S = 30.0
_LARGEST_EVENT_BYTES = 32_000_000
_LOGGED_CHARS = 400
_KEPT = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
"""What makes a definition: not `_meta`, which may be new at each listing."""

Progress = Callable[[float, float | None, str | None], None]


class _Quiet(logging.Filter):
    """Sends what the package logs to nbagent's own log, redacted, as details.

    It logs whole exceptions with the server's words in them, and without a handler Python prints
    these into the cell.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "client" and "mcp" not in record.pathname:
            return True  # A logger of this name may well be the person's own.
        _log.debug("mcp: %s", redact(record.getMessage())[:_LOGGED_CHARS])
        return False


_log = logging.getLogger("nbagent")
_quiet = _Quiet()
for _name in (
    "client",
    "mcp.client.client",
    "mcp.client.streamable_http",
    "mcp.shared.dispatcher",
    "mcp.shared.jsonrpc_dispatcher",
    "mcp.client.caching",
):
    logging.getLogger(_name).addFilter(_quiet)


class Wire:
    """An open connection."""

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def version(self) -> str:
        """The protocol that was agreed on."""
        return self._client.protocol_version

    @property
    def is_handshake(self) -> bool:
        """Whether it is one of the older protocols, which begin with `initialize`."""
        return self.version in HANDSHAKE_PROTOCOL_VERSIONS

    async def list_tools(self) -> list[dict[str, Any]]:
        """The tools as the server defines them, page by page."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            try:
                page = await self._client.list_tools(cursor=cursor)
            except MCPError as error:
                if error.code == types.METHOD_NOT_FOUND:
                    return tools  # It has none.
                raise
            for tool in page.tools:
                whole = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                tools.append({key: whole[key] for key in _KEPT if key in whole})
            cursor = page.next_cursor
            if cursor is None or len(tools) > MOST_TOOLS:
                break
        return tools

    async def call(
        self, tool: str, arguments: dict[str, Any], on_progress: Progress
    ) -> types.CallToolResult:
        """Call a tool; cancelling this tells the server so."""

        async def hand_on(progress: float, total: float | None, message: str | None) -> None:
            on_progress(progress, total, message)

        return await self._client.call_tool(tool, arguments, progress_callback=hand_on)

    async def watch_tools(self, life: Life) -> None:
        """Follow changes of the tools where the protocol asks for a subscription."""
        capability = self._client.server_capabilities.tools
        # Nothing is said of its tools when the protocol was fixed and nobody asked for it.
        silent = capability is not None and not capability.list_changed
        if silent or self.version not in MODERN_PROTOCOL_VERSIONS:
            return
        # A server that ends it is asked again when the next run lists.
        with suppress(Exception):
            async with self._client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    life.tools_changed.set()


@asynccontextmanager
async def connected(server: Description, life: Life, *, mode: str) -> AsyncGenerator[Wire]:
    """Connect for as long as the context is open; one task enters and leaves it.

    Args:
        server: what to start or to reach.
        life: where it is written down what happens.
        mode: `auto` asks for the newest protocol first; `legacy` begins with the handshake.
    """

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        life.log.add(f"[{params.level}] {params.data!s:.{_LOGGED_CHARS}}")

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            life.tools_changed.set()

    async with AsyncExitStack() as stack:
        transport = await _transport(server, life, stack)
        agreed: list[Client] = []
        client = Client(
            checked(transport, life, lambda: agreed[0].protocol_version),
            mode=mode,
            cache=None,
            client_info=types.Implementation(name="nbagent", version=__version__),
            logging_callback=on_log,
            message_handler=on_message,
        )
        agreed.append(client)
        await stack.enter_async_context(client)
        _restrain(client.session, life)
        yield Wire(client)


def first_mode(server: Description) -> str:
    """How to begin with a server that was never met."""
    return _MODES[server.protocol]


async def _transport(server: Description, life: Life, stack: AsyncExitStack) -> Transport:
    if server.url is None:
        return stdio_streams(server, life)

    async def note_status(response: httpx2.Response) -> None:
        life.http_status = response.status_code if response.status_code >= 400 else None

    # A proxy would see what is sent to this machine in plain text. Redirects: the package follows
    # none that leaves the address it was given.
    http = httpx2.AsyncClient(
        headers=revealed(server.headers),
        timeout=httpx2.Timeout(_HTTP_TIMEOUT_S, read=server.timeout_s + _HTTP_TIMEOUT_S),
        trust_env=not is_loopback(server.url),
        follow_redirects=False,
        event_hooks={"response": [note_status]},
    )
    await stack.enter_async_context(http)
    return streamable_http_client(
        server.url, http_client=http, max_sse_event_size=_LARGEST_EVENT_BYTES
    )


def _restrain(session: ClientSession, life: Life) -> None:
    """Put our own answers in the place of two public methods of this one session.

    A server's requests are answered without saying before that we could do such things (as giving
    the package callbacks would). And no result is checked against the server's own schema: a
    pattern in it could hang the engine's loop, and a model can read what does not fit.
    """

    async def answer(context: ClientRequestContext, request: types.InputRequest) -> Any:
        if isinstance(request, types.ListRootsRequest):
            life.refuse("the folders it may use (roots; it was told: none)")
            return types.ListRootsResult(roots=[])
        if isinstance(request, types.CreateMessageRequest):
            what = "a model's answer (sampling)"
        else:
            what = "an answer of the person (elicitation)"
        life.refuse(f"{what}; it was refused")
        return types.ErrorData(
            code=types.INVALID_REQUEST, message=f"nbagent does not give servers {what}"
        )

    async def accept(name: str, result: types.CallToolResult) -> None:
        return None

    vars(session).update(dispatch_input_request=answer, validate_tool_result=accept)


def is_closed(error: BaseException) -> bool:
    """Whether it says that the connection is gone."""
    return isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED


def is_forgotten(error: BaseException, life: Life) -> bool:
    """Whether the server no longer knows the session, and so has not run the call.

    By the protocol it says so with status 404; the words in it are each server's own.
    """
    refused = isinstance(error, MCPError) and error.code == types.INVALID_REQUEST
    return refused and life.http_status == 404


def refusal_of(error: BaseException) -> tuple[int, str] | None:
    """Code and message, when the server answered with an error of the protocol."""
    return (error.code, error.message) if isinstance(error, MCPError) else None
