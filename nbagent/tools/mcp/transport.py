"""Transports of MCP servers: how messages reach a server, and what is known when that fails.

A class for each transport, chosen by `transport_of`; `connection` speaks the protocol over any of
them and asks none which one it is.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Generator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

import httpx2
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from nbagent.tools.mcp.server import McpServer, is_loopback, reveal_values

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

_STDERR_WAIT_S = 0.5
_HTTP_TIMEOUT_S = 30.0
_MAX_EVENT_BYTES = 32_000_000
"""Limit of an event over HTTP. Lines of stdout have none: they come from a local program."""
_MAX_LINE_BYTES = 16_384


class Transport(Protocol):
    """One way to a server, for one session."""

    settings: str
    """The person checks these if the server does not start."""
    end_event: str
    """Name of the event when the other side is gone."""
    needs_legacy_start: bool
    """True if a server that ends at its start may be one that exits at any request before
    `initialize`, as some of the older protocol do."""

    async def open(self, stack: AsyncExitStack) -> TransportStreams:
        """Enter the contexts of the transport and return its streams."""
        ...

    async def read_rest(self) -> None:
        """Read what the server wrote before its end."""
        ...

    @property
    def end_reason(self) -> str:
        """Reason of an end without an error; empty if none is known."""
        ...

    @property
    def has_lost_session(self) -> bool:
        """True if the server does not know this session any more."""
        ...

    @property
    def status_text(self) -> str:
        """Last status of the transport that was an error, to append to a reason; may be empty."""
        ...


class StdioTransport:
    """A program of this machine: messages over stdin and stdout, its log on stderr."""

    settings = "its command"
    end_event = "the server ended"
    needs_legacy_start = True
    end_reason = "it ended at once"
    has_lost_session = False
    status_text = ""

    def __init__(self, server: McpServer, log: deque[str]) -> None:
        self._server, self._log = server, log
        self._reader: threading.Thread | None = None

    async def open(self, stack: AsyncExitStack) -> TransportStreams:
        server = self._server
        # Programs installed in the kernel's own environment are found too, as in `%pip`.
        path = reveal_values(server.env).get("PATH") or os.environ.get("PATH", os.defpath)
        folders = f"{path}{os.pathsep}{os.path.dirname(sys.executable)}"
        parameters = StdioServerParameters(
            command=shutil.which(server.command[0], path=folders) or server.command[0],
            args=list(server.command[1:]),
            env=reveal_values(server.env),
            cwd=server.cwd,
            encoding_error_handler="replace",
        )
        with self._stderr_file() as errlog:
            return await stack.enter_async_context(stdio_client(parameters, errlog))

    async def read_rest(self) -> None:
        if self._reader is not None:
            await asyncio.to_thread(self._reader.join, _STDERR_WAIT_S)

    @contextmanager
    def _stderr_file(self) -> Generator[TextIO]:
        """Open a file for the server's stderr; a thread collects its last lines until it closes."""
        reading, writing = os.pipe()

        def read() -> None:
            with open(reading, "rb") as pipe:
                for line in iter(lambda: pipe.readline(_MAX_LINE_BYTES), b""):
                    self._log.append(line.decode("utf-8", "replace"))

        self._reader = threading.Thread(target=read, name="nbagent MCP stderr", daemon=True)
        self._reader.start()
        with open(writing, "w") as file:
            yield file


class HttpTransport:
    """A server at a URL that speaks streamable HTTP."""

    settings = "its URL and headers"
    end_event = "the connection was lost"
    needs_legacy_start = False
    end_reason = ""

    def __init__(self, server: McpServer, url: str) -> None:
        self._server, self._url = server, url
        self._error_status: int | None = None

    async def open(self, stack: AsyncExitStack) -> TransportStreams:
        # No proxy for loopback: it would see plain text. Redirects need no check here: the package
        # follows none to another host.
        http = httpx2.AsyncClient(
            headers=reveal_values(self._server.headers),
            # Longer than the timeout of a call, which then ends it with the better error.
            timeout=httpx2.Timeout(_HTTP_TIMEOUT_S, read=self._server.timeout_s + _HTTP_TIMEOUT_S),
            trust_env=not is_loopback(self._url),
            event_hooks={"response": [self._note_status]},
        )
        await stack.enter_async_context(http)
        streams = streamable_http_client(
            self._url, http_client=http, max_sse_event_size=_MAX_EVENT_BYTES
        )
        return await stack.enter_async_context(streams)

    async def read_rest(self) -> None:
        """Nothing is left to read: a server at a URL has no log here."""

    @property
    def has_lost_session(self) -> bool:
        # HTTP 404 means that the server does not know this session (MCP specification).
        return self._error_status == 404

    @property
    def status_text(self) -> str:
        return "" if self._error_status is None else f" (HTTP {self._error_status})"

    async def _note_status(self, response: httpx2.Response) -> None:
        self._error_status = response.status_code if response.status_code >= 400 else None


def transport_of(server: McpServer, log: deque[str]) -> Transport:
    """Make the transport of a server; lines that the server logs go into `log`."""
    return StdioTransport(server, log) if server.url is None else HttpTransport(server, server.url)
