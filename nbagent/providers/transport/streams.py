"""Byte streams over asyncio, below the HTTP pool: opening, reading, writing, TLS.

Knows no HTTP. It stands in for the pool's own streams over anyio, which cost several times as
much for each read.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from typing import Any

import httpcore2

_READ_AHEAD_BYTES = 256 * 1024
"""A server that sends faster than it is read is paused at this point."""
_NEXT_ADDRESS_AFTER_S = 0.25
"""IPv6 and IPv4 are tried side by side, so far apart (RFC 8305)."""
_DEAD_PEER = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_USER_TIMEOUT": 60_000}
"""When a silent peer is given up, after a laptop slept: the default is a quarter of an hour."""


class StaleConnection(ConnectionResetError):
    """A connection that was used before gave no answer: it had been closed, or spoke unasked."""


class Stream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One connection. What is written is sent, in one packet if possible, by the next read."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.deadline = math.inf  # Reads end then; it holds until something is written.
        self.received = 0  # Bytes that have been read.
        self.last = b""  # The bytes that were read last.
        self.unsent: list[bytes] = []
        self._asked_at = 0  # What had been read when the last request was sent.
        self._arrived = b""
        self._lost: Exception | None = None
        self._news = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._arrived += data
        if len(self._arrived) > _READ_AHEAD_BYTES:
            self.transport.pause_reading()
        self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio. The error comes behind what arrived, not instead of it."""
        self._lost = exc or EOFError("closed while it was idle")
        self._news.set()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes; empty when the peer has closed. Raises TimeoutError and OSError."""
        loop = asyncio.get_running_loop()
        if self.unsent:
            if self.received and self._arrived:
                raise StaleConnection("it sent something before it was asked")
            # `writelines` raises TypeError where the connection was lost (Python 3.12, 3.13).
            self.transport.write(b"".join(self.unsent))
            self.unsent.clear()
            self._asked_at = self.received
        if loop.time() >= self.deadline:
            raise TimeoutError
        if not self._arrived and self._lost is None:
            self._news.clear()
            async with asyncio.timeout_at(min(loop.time() + (timeout or math.inf), self.deadline)):
                await self._news.wait()
        data = self.last = self._arrived[:max_bytes]
        self._arrived = self._arrived[max_bytes:]
        self.transport.resume_reading()
        if not data and self.received == self._asked_at > 0:
            raise StaleConnection(str(self._lost))
        if not data and not isinstance(self._lost, EOFError):
            raise ConnectionResetError(str(self._lost))
        self.received += len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Queue bytes until the next read."""
        if buffer:
            self.deadline = math.inf
            self.unsent.append(buffer)

    async def aclose(self) -> None:
        """Drop the connection at once."""
        self.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> Stream:
        """Encrypt the connection from here on. What was said before does not count."""
        self._arrived = b""
        self.received = self._asked_at = 0
        try:
            async with asyncio.timeout(timeout):
                encrypted = await asyncio.get_running_loop().start_tls(
                    self.transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None
        if encrypted is None:
            raise ConnectionResetError("the server closed the connection during the TLS handshake")
        self.transport = encrypted
        return self

    def get_extra_info(self, info: str) -> Any:
        """What the pool asks: whether an idle connection can be used no more."""
        if info == "is_readable":
            return self._lost is not None or bool(self._arrived)
        return self.transport.get_extra_info(info) if info == "ssl_object" else None


class Backend(httpcore2.AsyncNetworkBackend):
    """Opens connections for the pool."""

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *_: Any, **__: Any
    ) -> Stream:
        """Connect to the first address that answers. Raises OSError and ConnectTimeout."""
        connecting = asyncio.get_running_loop().create_connection(
            Stream, host, port, happy_eyeballs_delay=_NEXT_ADDRESS_AFTER_S
        )
        try:
            async with asyncio.timeout(timeout):
                transport, stream = await connecting
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _DEAD_PEER.items():
            if hasattr(socket, name):  # Not on every system.
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return stream
