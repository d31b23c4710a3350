"""The connection to an MCP server: started at its first use, shared by all runs of the process.

Owns the task that enters and leaves the contexts of the `mcp` package, the restart of a dead
server, the timeouts and the last listing. Runs on the engine's loop. Only this module, `transport`
and `incoming` import `mcp`; `host` imports this one when a server is used.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import anyio
import mcp_types as types
from anyio.abc import ObjectSendStream
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp_types.methods import validate_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from nbagent.contracts.canonical import dump_json, json_object
from nbagent.contracts.errors import NbagentError, ToolError
from nbagent.contracts.version import __version__
from nbagent.shown.texts import cut_middle, without_folders
from nbagent.tools.functions.outcome import error_summary
from nbagent.tools.json_schema import sanitize_text
from nbagent.tools.mcp.incoming import (
    BATCH,
    failure_of,
    first_problem,
    repair_error,
    repair_response,
    unreadable_line,
)
from nbagent.tools.mcp.server import MAX_TOOLS, McpServer, close_sessions, connections
from nbagent.tools.mcp.transport import transport_of

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, TransportStreams

FIRST_MODE = "auto"
"""The `mcp` package tries the newer protocol first, then the older one with `initialize`."""
_LIST_TIMEOUT_S = 10.0
"""A running server that lists its tools more slowly is restarted."""
_CLOSE_TIMEOUT_S = 8.0
_MAX_TIMEOUTS = 10
"""Each progress message restarts the timeout of a call, up to 10 timeouts in all."""
_MAX_PAGES = 50
"""A server may send new cursors for ever; one that it repeats ends the listing."""
_LOG_LINES = 50
_MAX_LINE_CHARS = 500
_QUOTED_LINES = 8
_QUOTED_CHARS = 600
_DEFINITION_FIELDS = {
    "name",
    "title",
    "description",
    "input_schema",
    "output_schema",
    "annotations",
}
"""Fields of a definition that are compared. `_meta` is not: it may differ in each listing."""
Progress = Callable[[float, float | None, str | None], None]


@dataclass(frozen=True, slots=True)
class Definitions:
    """Last listing of a server."""

    tools: tuple[dict[str, Any], ...] = ()
    """Definitions as the server sent them."""
    left_out: tuple[str, ...] = ()
    """Names of tools with an invalid definition, and of those beyond MAX_TOOLS."""


class Connection:
    """Connection to one server; opens a new session when the last one ended."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._lock = asyncio.Lock()
        self.session: ServerSession | None = None
        """Last session; it may have ended."""

    async def definitions(self, *, refresh: bool = False) -> Definitions:
        """Tools of the server.

        The server is asked when it starts, after it announced a change, after a call without an
        answer, and with `refresh`.

        Raises:
            ToolError: it does not start, or does not list its tools.
        """
        async with self._lock:
            before, session = self.session, await self._open_session()
            if session.is_outdated or (refresh and session is before):
                seconds = min(_LIST_TIMEOUT_S, self.server.timeout_s, self.server.start_timeout_s)
                try:
                    async with asyncio.timeout(seconds):
                        await session.list_tools()
                except Exception:
                    # A server that works on a call may be too busy to list: keep its last listing.
                    if not (session.running_calls and session.is_open):
                        session.closed.set()
                        session = await self._open_session()
            return session.definitions

    async def call(
        self, tool: str, arguments: dict[str, Any], on_progress: Progress
    ) -> types.CallToolResult:
        """Call a tool by the server's own name. If this task is cancelled, the server is told.

        Raises:
            ToolError: no answer or progress in time, the call was refused, or the server ended.
        """
        async with self._lock:
            session = await self._open_session()
        loop, seconds = asyncio.get_running_loop(), self.server.timeout_s
        last = loop.time() + _MAX_TIMEOUTS * seconds
        session.running_calls += 1
        try:
            async with asyncio.timeout(seconds) as limit:

                async def extend(progress: float, total: float | None, message: str | None) -> None:
                    if not limit.expired():
                        limit.reschedule(min(loop.time() + seconds, last))
                        on_progress(progress, total, message)

                return await session.client.call_tool(tool, arguments, progress_callback=extend)
        except TimeoutError:
            # The next call lists the tools first: a server that hangs is then restarted.
            session.is_outdated = True
            message = f"{tool} sent nothing for {seconds:g} s and was cancelled"
            message += "; its effects so far are unknown"
            raise ToolError(message, code="E_TIMEOUT") from None
        except MCPError as error:
            raise await self._call_error(error, session, tool) from error
        except ValidationError as error:
            raise ToolError(
                f"the MCP server {self.server.name!r} answered {tool} with an invalid result: "
                f"{first_problem(error)}"
            ) from error
        finally:
            session.running_calls -= 1

    async def _open_session(self) -> ServerSession:
        if self.session is not None and self.session.is_open:
            return self.session
        session = await self._start(FIRST_MODE)
        if session.has_ended and session.transport.needs_legacy_start:
            session = await self._start("legacy")
        if not session.is_open:
            raise ToolError(
                f"the MCP server {self.server.name!r} did not start{session.failure_text()}; "
                f"check {session.transport.settings}"
            )
        return session

    async def _start(self, mode: str) -> ServerSession:
        if self.session is not None:
            await self.session.end()
        self.session = session = ServerSession(self.server, mode)
        seconds = self.server.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await session.ready.wait()
        except TimeoutError:
            session.failure = f"no answer within {seconds:g} s (start_timeout=… allows more)"
            # The task may still wait for a server that never answers.
            session.start_closing()
        except asyncio.CancelledError:
            session.start_closing()
            raise
        else:
            if not session.is_open:
                await session.end()
        return session

    async def _call_error(self, error: MCPError, session: ServerSession, tool: str) -> ToolError:
        """Build the error of a failed call: server ended, HTTP session lost, or call refused."""
        if error.message == BATCH:
            return ToolError(f"the MCP server {self.server.name!r} did not run {tool}: {BATCH}")
        transport = session.transport
        is_session_lost = error.code == types.INVALID_REQUEST and transport.has_lost_session
        if error.code == types.CONNECTION_CLOSED or is_session_lost or not session.is_open:
            await session.end()
            return ToolError(
                f"{transport.end_event} while {tool} ran on the MCP server {self.server.name!r}, "
                f"its effects so far are unknown{session.failure_text()}; the next call starts it "
                "again"
            )
        reason = sanitize_text(error.message, 4_000) or "it gave no reason"
        return ToolError(f"the server answered with error {error.code}: {reason}")


def connection_of(server: McpServer) -> Connection:
    """Return the connection of a server in this process; a new one is not open yet.

    Another server that had the same name before is ended.
    """
    process = os.getpid()
    key = (server.identity, process)
    connection = connections.get(key)
    if isinstance(connection, Connection):
        return connection
    connection = Connection(server)
    own = [other for (_, pid), other in list(connections.items()) if pid == process]
    close_sessions(*(other.session for other in own if other.server.name == server.name))
    # Two threads may create one at the same time: `setdefault` keeps the first.
    first = connections.setdefault(key, connection)
    return first if isinstance(first, Connection) else connection


class ServerSession:
    """One session of a connection, from the start of the server to its end."""

    def __init__(self, server: McpServer, mode: str) -> None:
        self._server = server
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self.transport = transport_of(server, self._log)
        self._left_out: list[str] = []
        self._version = ""
        """Protocol version, empty before it is negotiated."""
        self.client = Client(
            self._streams(),
            mode=mode,
            # `Definitions` keeps the last listing; a cached one would hide changes.
            cache=None,
            client_info=types.Implementation(name="nbagent", version=__version__),
        )
        self.definitions = Definitions()
        self.ready = asyncio.Event()
        """Set when the server listed its tools, or failed to start."""
        self.closed = asyncio.Event()
        """Set when the server ended or must end."""
        self.has_ended = False
        """True if the server ended by itself."""
        self.failure = ""
        self.is_outdated = False
        """True after a change of its tools, or a call without an answer."""
        self.running_calls = 0
        """Number of running calls."""
        self.task = asyncio.create_task(self._hold_open(), name=f"mcp:{server.name}")

    @property
    def is_open(self) -> bool:
        """True if the server can take requests. Any thread."""
        return self.ready.is_set() and not self.closed.is_set()

    async def list_tools(self) -> None:
        """Ask the server for its tools, page by page."""
        self.is_outdated = False
        self._left_out = []
        tools: dict[bytes, dict[str, Any]] = {}  # A server that ignores the cursor repeats a page.
        cursors: set[str | None] = set()
        cursor: str | None = None
        while cursor not in cursors and len(cursors) < _MAX_PAGES and len(tools) <= MAX_TOOLS:
            cursors.add(cursor)
            page = await self.client.list_tools(cursor=cursor)
            for tool in page.tools:
                definition = tool.model_dump(
                    mode="json", by_alias=True, exclude_none=True, include=_DEFINITION_FIELDS
                )
                tools.setdefault(dump_json(definition), definition)
            cursor = page.next_cursor
            if cursor is None:
                break
        definitions = (*tools.values(),)
        beyond = [str(tool.get("name")) for tool in definitions[MAX_TOOLS:]]
        left_out = dict.fromkeys([*self._left_out, *beyond])
        self.definitions = Definitions(definitions[:MAX_TOOLS], (*left_out,))

    def start_closing(self) -> None:
        """Make the task leave its contexts, which ends the server's process."""
        if not self.ready.is_set() and not self.closed.is_set():
            self.task.cancel()  # It is still entering them.
        self.closed.set()

    async def end(self) -> None:
        """Close the session, wait for the end, and read the rest of stderr."""
        self.start_closing()
        await asyncio.wait((self.task,), timeout=_CLOSE_TIMEOUT_S)
        await self.transport.read_rest()

    def log_lines(self) -> tuple[str, ...]:
        lines = (
            sanitize_text(line[: 8 * _MAX_LINE_CHARS], _MAX_LINE_CHARS) for line in tuple(self._log)
        )
        return tuple(line for line in lines if line)

    def failure_text(self) -> str:
        """Reason of the end and the last lines of stderr, to append to an error; may be empty."""
        details = f": {self.failure}" if self.failure else ""
        details += self.transport.status_text
        lines = " | ".join(self.log_lines()[-_QUOTED_LINES:])
        text = cut_middle(without_folders(lines), _QUOTED_CHARS)
        return f"{details}; last output: {text}" if text else details

    async def _hold_open(self) -> None:
        """Enter all contexts, wait for the close, leave them.

        One task does both, because anyio's cancel scopes must be left by the task that entered.
        """
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.client)
                self._version = self.client.protocol_version
                # Results are not checked against the server's own schema: a `pattern` in it could
                # block the engine's loop for ever, and a model can read an invalid result.
                vars(self.client.session).update(validate_tool_result=_skip_validation)
                watching = asyncio.create_task(_listen_for_changes(self.client))
                stack.callback(watching.cancel)
                await self.list_tools()
                self.ready.set()
                await self.closed.wait()
        except Exception as error:
            end_reason = self.transport.end_reason if self.has_ended else ""
            self.failure = self.failure or end_reason or _innermost_reason(error)
        finally:
            self.closed.set()
            self.ready.set()

    @asynccontextmanager
    async def _streams(self) -> AsyncGenerator[TransportStreams]:
        """Streams of the transport; messages of the server pass `_relay` first."""
        async with AsyncExitStack() as stack:
            read, write = await self.transport.open(stack)
            send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            stack.callback(receive.close)
            group = await stack.enter_async_context(anyio.create_task_group())
            group.start_soon(self._relay, read, send)
            try:
                yield receive, write
            finally:
                group.cancel_scope.cancel()

    async def _relay(
        self,
        source: ReadStream[SessionMessage | Exception],
        out: ObjectSendStream[SessionMessage | Exception],
    ) -> None:
        """Relay valid messages until the server ends or breaks the protocol."""
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with out:
                async for item in source:
                    if isinstance(item, SessionMessage):
                        self._inspect(item.message)
                        await out.send(item)
                        continue
                    line = unreadable_line(item)
                    self._log.append(f"[on stdout, not an MCP message] {line[:200]}")
                    if failure := failure_of(item):
                        self.failure = failure
                        break
        self.has_ended = not self.closed.is_set()
        self.closed.set()

    def _inspect(self, message: types.JSONRPCMessage) -> None:
        if isinstance(message, types.JSONRPCNotification):
            if message.method == "notifications/tools/list_changed":
                self.is_outdated = True
        elif isinstance(message, types.JSONRPCError):
            repair_error(message)
        elif isinstance(message, types.JSONRPCResponse):
            repair_response(message)
            tools: Any = message.result.get("tools")
            if isinstance(tools, list) and self._version:
                # The package refuses a whole listing because of one invalid definition.
                definitions = cast("list[Any]", tools)
                message.result["tools"] = [
                    tool for tool in definitions if self._is_valid_definition(tool)
                ]

    def _is_valid_definition(self, tool: Any) -> bool:
        # The other keys are those that a listing of either protocol version needs.
        listing = {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        try:
            validate_server_result("tools/list", self._version, listing)
            types.ListToolsResult.model_validate(listing, by_name=False)
        except (ValueError, RecursionError):
            self._left_out.append(str((json_object(tool) or {}).get("name") or "without a name"))
            return False
        return True


async def _listen_for_changes(client: Client) -> None:
    """Subscribe to changes of the tools: servers of the newer protocol announce them only then."""
    is_modern = client.protocol_version in MODERN_PROTOCOL_VERSIONS
    tools = client.server_capabilities.tools
    if not (is_modern and tools and tools.list_changed):
        return
    # If the server ends the subscription, the next run lists the tools anyway.
    with suppress(Exception):
        async with client.listen(tools_list_changed=True) as changes:
            async for _ in changes:
                pass


async def _skip_validation(name: str, result: types.CallToolResult) -> None:
    """Replaces the package's check of a result against its schema."""


def _innermost_reason(error: BaseException) -> str:
    """First error inside nested exception groups, as a short text."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, ValidationError):
        return f"it sent an invalid message: {sanitize_text(first_problem(error), 400)}"
    return sanitize_text(
        error.message if isinstance(error, NbagentError) else error_summary(error), 400
    )


# The package logs exceptions with untrusted text of the server, and without a handler Python prints
# these into the cell. The filter checks the path: a person's own logger may be called `client` too.
for _name in (
    *("client", "mcp.client.caching", "mcp.client.client", "mcp.client.stdio"),
    *("mcp.client.streamable_http", "mcp.shared.dispatcher", "mcp.shared.jsonrpc_dispatcher"),
):
    logging.getLogger(_name).addFilter(lambda it: f"{os.sep}mcp{os.sep}" not in it.pathname)
