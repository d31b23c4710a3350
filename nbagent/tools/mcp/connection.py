"""The one connection to an MCP server: started at the first use, shared by all runs of the process.

Owns the task that enters and leaves the contexts of the `mcp` package, the restart after a death,
the timeouts, the last listing, and what a server sends made fit for the package. Runs on the
engine's loop. The only module that imports `mcp`; `server` imports it when a server is used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, cast

import anyio
import httpx2
import mcp_types as types
from anyio.abc import ObjectSendStream
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import NbagentError, ToolError
from nbagent.contracts.version import __version__
from nbagent.shown.texts import cut_middle, without_folders
from nbagent.tools.functions.outcome import summary
from nbagent.tools.json_schema import visible
from nbagent.tools.mcp.server import (
    MOST_TOOLS,
    McpServer,
    close_lives,
    connections,
    is_loopback,
    revealed,
)

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams

FIRST_MODE = "auto"
"""The newer protocol where the server speaks it, else the older one with its handshake."""
_LIST_S = 10.0
"""The most that a server which runs may take to list its tools again; then it is started anew."""
_CLOSE_S = 8.0
_LAST_WORDS_S = 0.5
_HTTP_TIMEOUT_S = 30.0
_MOST_TIMEOUTS = 10
"""Progress lengthens a call up to so many times its timeout."""
_MOST_PAGES = 50
_LARGEST_MESSAGE = 32_000_000
"""Bytes of an event over HTTP. A line of stdout has no bound: a program of one's own writes it."""
_LINES_KEPT = 50
_LINE_BYTES = 16_384
_LINE_CHARS = 500
_QUOTED_LINES = 8
_QUOTED_CHARS = 600
_KEPT = {"name", "title", "description", "input_schema", "output_schema", "annotations"}
"""What makes a definition: not `_meta`, which may be new at each listing."""
Progress = Callable[[float, float | None, str | None], None]


@dataclass(frozen=True, slots=True)
class Definitions:
    """What a server listed last."""

    tools: tuple[dict[str, Any], ...] = ()
    """As the server defines them."""
    left_out: tuple[str, ...] = ()
    """The names of those that cannot be read, and of those beyond MOST_TOOLS."""


class Connection:
    """To one server."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._lock = asyncio.Lock()
        self.life: Life | None = None
        """The last one, which may have ended."""

    async def definitions(self, *, anew: bool = False) -> Definitions:
        """The tools, asked of the server when it is started, when it said that they changed, after
        a call that got no answer, or when `anew` is wanted.

        Raises:
            ToolError: it does not start, or does not list its tools.
        """
        async with self._lock:
            before, life = self.life, await self._ready()
            if life.is_outdated or (anew and life is before):
                seconds = min(_LIST_S, self.server.timeout_s, self.server.start_timeout_s)
                try:
                    async with asyncio.timeout(seconds):
                        await life.list_tools()
                except Exception:
                    if not (life.calls and life.is_open):  # Else it is busy.
                        life.over.set()
                        life = await self._ready()
            return life.definitions

    async def call(
        self, tool: str, arguments: dict[str, Any], on_progress: Progress
    ) -> types.CallToolResult:
        """Call a tool of the server by its own name. To be cancelled tells the server so.

        Raises:
            ToolError: it gave no sign in time, refused the call, or is not there any more.
        """
        async with self._lock:
            life = await self._ready()
        loop, seconds = asyncio.get_running_loop(), self.server.timeout_s
        last = loop.time() + _MOST_TIMEOUTS * seconds
        life.calls += 1
        try:
            async with asyncio.timeout(seconds) as limit:

                async def go_on(progress: float, total: float | None, message: str | None) -> None:
                    if not limit.expired():
                        limit.reschedule(min(loop.time() + seconds, last))
                        on_progress(progress, total, message)

                return await life.client.call_tool(tool, arguments, progress_callback=go_on)
        except TimeoutError:
            life.is_outdated = True  # A sign of life is asked for before the next call.
            message = f"{tool} gave no sign for {seconds:g} s and was cancelled"
            raise ToolError(f"{message}; what it did so far is unknown", code="E_TIMEOUT") from None
        except MCPError as error:
            raise await self._failed(error, life, tool) from error
        finally:
            life.calls -= 1

    async def _ready(self) -> Life:
        if self.life is not None and self.life.is_open:
            return self.life
        by_stdio = self.server.url is None
        life = await self._started(FIRST_MODE)
        if life.has_ended and by_stdio:
            # Some servers of the older protocols end at any request before `initialize`.
            life = await self._started("legacy")
        if not life.is_open:
            raise ToolError(
                f"the MCP server {self.server.name!r} did not start{life.last_words()}; "
                f"check {'its command' if by_stdio else 'its URL and headers'}"
            )
        return life

    async def _started(self, mode: str) -> Life:
        if self.life is not None:
            await self.life.end()
        self.life = life = Life(self.server, mode)
        seconds = self.server.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await life.tried.wait()
        except TimeoutError:
            life.failure = f"it has not answered within {seconds:g} s (start_timeout=… gives more)"
            life.leave()
        except asyncio.CancelledError:
            life.leave()
            raise
        else:
            if not life.is_open:
                await life.end()
        return life

    async def _failed(self, error: MCPError, life: Life, tool: str) -> ToolError:
        """Why a call failed: the server went away, forgot the session, or refused it."""
        forgot = error.code == types.INVALID_REQUEST and life.http_status == 404
        if error.code == types.CONNECTION_CLOSED or forgot or not life.is_open:
            await life.end()
            what = "the server ended" if self.server.url is None else "the connection was lost"
            return ToolError(
                f"{what} while {tool} ran on the MCP server {self.server.name!r}, what it did so "
                f"far is unknown{life.last_words()}; the next call starts it again"
            )
        said = visible(error.message, 4_000) or "it gave no reason"
        return ToolError(f"the server answered with error {error.code}: {said}")


def connection_of(server: McpServer) -> Connection:
    """The one connection of a server in this process, not open yet where it is new.

    Another server that had the same name before is ended.
    """
    process = os.getpid()
    key = (server.identity, process)
    connection = connections.get(key)
    if isinstance(connection, Connection):
        return connection
    connection = Connection(server)
    here = [other for (_, pid), other in list(connections.items()) if pid == process]
    close_lives(*(other.life for other in here if other.server.name == server.name))
    # Two threads may have made one each: the first stays.
    first = connections.setdefault(key, connection)
    return first if isinstance(first, Connection) else connection


class Life:
    """One life of the connection, from the start of the server to its end."""

    def __init__(self, server: McpServer, mode: str) -> None:
        self._server = server
        self._log: deque[str] = deque(maxlen=_LINES_KEPT)
        self._stderr: threading.Thread | None = None
        self._left_out: list[str] = []
        self._version = ""
        """The protocol, once it is agreed on."""
        self.client = Client(
            self._streams(),
            mode=mode,
            cache=None,
            client_info=types.Implementation(name="nbagent", version=__version__),
        )
        self.definitions = Definitions()
        self.tried = asyncio.Event()
        """It listed its tools, or failed to start."""
        self.over = asyncio.Event()
        """The server went away, or shall."""
        self.has_ended = False
        """It went away by itself."""
        self.failure = ""
        self.http_status: int | None = None
        """The last status, where it was no success."""
        self.is_outdated = False
        """It said that its tools changed, or a call got no answer."""
        self.calls = 0
        """Calls that it works on."""
        self.task = asyncio.create_task(self._live(), name=f"mcp:{server.name}")

    @property
    def is_open(self) -> bool:
        """Whether it can be asked something. Any thread."""
        return self.tried.is_set() and not self.over.is_set()

    async def list_tools(self) -> None:
        """Ask the server for its tools, page by page."""
        self.is_outdated = False
        self._left_out = []
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(_MOST_PAGES):
            page = await self.client.list_tools(cursor=cursor)
            tools += [
                tool.model_dump(mode="json", by_alias=True, exclude_none=True, include=_KEPT)
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None or len(tools) > MOST_TOOLS:
                break
        beyond = [str(tool.get("name")) for tool in tools[MOST_TOOLS:]]
        self.definitions = Definitions(tuple(tools[:MOST_TOOLS]), (*self._left_out, *beyond))

    def leave(self) -> None:
        """Have the contexts left, which ends the server's process."""
        if not self.tried.is_set() and not self.over.is_set():
            self.task.cancel()  # It is still entering them.
        self.over.set()

    async def end(self) -> None:
        """Leave, wait for that, and read the server's last words."""
        self.leave()
        await asyncio.wait((self.task,), timeout=_CLOSE_S)
        if self._stderr is not None:
            await asyncio.to_thread(self._stderr.join, _LAST_WORDS_S)

    def log_lines(self) -> tuple[str, ...]:
        lines = (visible(line[: 8 * _LINE_CHARS], _LINE_CHARS) for line in tuple(self._log))
        return tuple(line for line in lines if line)

    def last_words(self) -> str:
        """`: why it ended; it said last: …`, for an error; empty when nothing is known."""
        what = f": {self.failure}" if self.failure else ""
        if self.http_status is not None:
            what += f" (HTTP {self.http_status})"
        lines = " | ".join(self.log_lines()[-_QUOTED_LINES:])
        text = cut_middle(without_folders(lines), _QUOTED_CHARS)
        return f"{what}; it said last: {text}" if text else what

    async def _live(self) -> None:
        """The task that enters and leaves all contexts."""
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.client)
                self._version = self.client.protocol_version
                # No result is checked against the server's own schema: a pattern in it could hang
                # the engine's loop, and a model can read what does not fit.
                vars(self.client.session).update(validate_tool_result=_accept)
                watching = asyncio.create_task(_watch(self.client))
                stack.callback(watching.cancel)
                await self.list_tools()
                self.tried.set()
                await self.over.wait()
        except Exception as error:
            ended = self.has_ended and self._server.url is None
            self.failure = self.failure or ("it ended at once" if ended else _reason(error))
        finally:
            self.over.set()
            self.tried.set()

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[TransportStreams]:
        """The transport's streams, with what the server sends looked at first."""
        async with AsyncExitStack() as stack:
            read, write = await self._transport(stack)
            send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            stack.callback(receive.close)
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(self._read, read, send)
            try:
                yield receive, write
            finally:
                group.cancel_scope.cancel()

    async def _transport(self, stack: AsyncExitStack) -> TransportStreams:
        server = self._server
        if server.url is None:
            # What is installed beside the kernel is found, too.
            path = revealed(server.env).get("PATH") or os.environ.get("PATH", os.defpath)
            folders = f"{path}{os.pathsep}{os.path.dirname(sys.executable)}"
            parameters = StdioServerParameters(
                command=shutil.which(server.command[0], path=folders) or server.command[0],
                args=list(server.command[1:]),
                env=revealed(server.env),
                cwd=server.cwd,
                encoding_error_handler="replace",
            )
            with self._stderr_file() as errlog:
                return await stack.enter_async_context(stdio_client(parameters, errlog))

        async def note_status(response: httpx2.Response) -> None:
            self.http_status = response.status_code if response.status_code >= 400 else None

        # A proxy would see what is sent to this machine in plain text. Redirects: the package
        # follows none that leaves the address it was given.
        http = httpx2.AsyncClient(
            headers=revealed(server.headers),
            timeout=httpx2.Timeout(_HTTP_TIMEOUT_S, read=server.timeout_s + _HTTP_TIMEOUT_S),
            trust_env=not is_loopback(server.url),
            event_hooks={"response": [note_status]},
        )
        await stack.enter_async_context(http)
        streams = streamable_http_client(
            server.url, http_client=http, max_sse_event_size=_LARGEST_MESSAGE
        )
        return await stack.enter_async_context(streams)

    @contextmanager
    def _stderr_file(self) -> Generator[TextIO]:
        """A file for the server's stderr; a thread keeps its last lines as long as one writes."""
        reading, writing = os.pipe()

        def read() -> None:
            with open(reading, "rb") as pipe:
                for line in iter(lambda: pipe.readline(_LINE_BYTES), b""):
                    self._log.append(line.decode("utf-8", "replace"))

        self._stderr = threading.Thread(target=read, name="nbagent MCP stderr", daemon=True)
        self._stderr.start()
        with open(writing, "w") as file:
            yield file

    async def _read(
        self,
        source: ReadStream[SessionMessage | Exception],
        out: ObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Hand on what can be read, till the server ends or breaks the protocol."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with out:
                async for item in source:
                    if isinstance(item, SessionMessage):
                        self._look_at(item.message)
                        await out.send(item)
                    elif self._is_message(item):
                        self.failure = "it sent a message that cannot be read"
                        break
        self.has_ended = not self.over.is_set()
        self.over.set()

    def _is_message(self, error: Exception) -> bool:
        """Whether what cannot be read was meant as a message, not a line printed to stdout."""
        pieces = [str(error)]
        if isinstance(error, ValidationError):
            pieces = [str(each["input"]) for each in error.errors(include_url=False)]
        line = max(pieces, key=len)
        self._log.append(f"[on stdout, no message of MCP] {line[:200]}")
        return line.lstrip().startswith("{") and "jsonrpc" in line

    def _look_at(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCNotification):
            if message.method == "notifications/tools/list_changed":
                self.is_outdated = True
        elif isinstance(message, types.JSONRPCResponse) and self._version:
            tools: Any = message.result.get("tools")
            if isinstance(tools, list):
                # The package refuses a whole listing for one bad definition.
                each = cast("list[Any]", tools)
                message.result["tools"] = [tool for tool in each if self._is_usable(tool)]

    def _is_usable(self, tool: Any) -> bool:
        # What a listing of either protocol has beside its tools.
        whole = {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        try:
            validate_server_result("tools/list", self._version, whole)
            types.ListToolsResult.model_validate(whole, by_name=False)
        except (ValueError, RecursionError):
            self._left_out.append(str((json_object(tool) or {}).get("name") or "without a name"))
            return False
        return True


async def _watch(client: Client) -> None:
    """Ask to be told of changes, where the protocol tells only who asks."""
    is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    tools = client.server_capabilities.tools
    if not (is_modern and tools and tools.list_changed):
        return
    # A server that ends it is asked again when the next run lists.
    with suppress(Exception):
        async with client.listen(tools_list_changed=True) as changes:
            async for _ in changes:
                pass


async def _accept(name: str, result: types.CallToolResult) -> None:
    """In place of the check of a result against its schema."""


def _reason(error: BaseException) -> str:
    """The innermost reason, short: the package wraps them in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return visible(error.message if isinstance(error, NbagentError) else summary(error), 400)


# The package logs whole exceptions with the server's words in them, and without a handler Python
# prints these into the cell. A logger named `client` may well be the person's own, too.
for _name in (
    *("client", "mcp.client.caching", "mcp.client.client", "mcp.client.stdio"),
    *("mcp.client.streamable_http", "mcp.shared.dispatcher", "mcp.shared.jsonrpc_dispatcher"),
):
    logging.getLogger(_name).addFilter(lambda it: f"{os.sep}mcp{os.sep}" not in it.pathname)
