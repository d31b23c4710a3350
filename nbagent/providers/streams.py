"""Byte streams over asyncio, below the HTTP pool: opening, reading, writing, TLS.

Knows no HTTP. It stands in for the pool's own streams over anyio, which cost several times as
much for each read.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Iterable
from functools import cache
from typing import Any

import httpcore2

from nbagent.contracts.errors import ModelError

_READ_AHEAD_BYTES = 256 * 1024
"""A server that sends faster than it is read is paused at this point."""
_NEXT_ADDRESS_AFTER_S = 0.25
"""IPv6 and IPv4 are tried side by side, so far apart (RFC 8305)."""
_DEAD_PEER = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_USER_TIMEOUT": 60_000}
"""When a silent peer is given up, after a laptop slept: the default is a quarter of an hour."""


class StaleConnection(ConnectionResetError):
    """The peer had closed a connection that was used before, and answered nothing since."""


class _Reader(asyncio.StreamReader):
    """What arrived; an error comes behind it, not instead of it."""

    arrived = 0
    error: Exception | None = None

    def feed_data(self, data: Any) -> None:
        """Called by asyncio."""
        self.arrived += len(data)
        super().feed_data(data)

    def set_exception(self, exc: Exception) -> None:
        """Called by asyncio when the connection broke."""
        self.error = exc
        self.feed_eof()


class Stream(httpcore2.AsyncNetworkStream):
    """One connection. What is written is sent, in one packet if possible, by the next read."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self.deadline = math.inf  # Reads end then; it holds until something is written.
        self.received = 0  # Bytes that have been read.
        self.answered = False  # Something was read since the last write.
        self.last = b""  # The bytes that were read last.
        self._reader = reader
        self._writer = writer
        self._unsent: list[bytes] = []
        self._used = False  # Something had been read before the last write.

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes; empty when the peer has closed. Raises TimeoutError and OSError."""
        if self._unsent:
            self._writer.writelines(self._unsent)
            self._unsent.clear()
        if _now() >= self.deadline:
            raise TimeoutError
        reader = self._reader
        if reader.arrived > self.received:
            data = await reader.read(max_bytes)
        else:
            async with asyncio.timeout_at(min(_now() + (timeout or math.inf), self.deadline)):
                data = await reader.read(max_bytes)
        if not data:
            if self._used and not self.answered:
                raise StaleConnection(str(reader.error or "closed while it was idle"))
            if reader.error is not None:
                raise ConnectionResetError(str(reader.error))
        self.answered = True
        self.received += len(data)
        self.last = data
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Queue bytes until the next read."""
        if buffer:
            self._used, self.answered = self._used or self.answered, False
            self.deadline = math.inf
            self._unsent.append(buffer)

    async def aclose(self) -> None:
        """Drop the connection at once."""
        self._writer.transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> Stream:
        """Encrypt the connection from here on."""
        transport = self._writer.transport
        try:
            async with asyncio.timeout(timeout):
                await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException as error:
            transport.abort()
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout from None
            raise
        if not self._writer.transport:
            raise ConnectionResetError("the server closed the connection during the TLS handshake")
        self._used = self.answered = False  # What a proxy was asked before does not count.
        return self

    def get_extra_info(self, info: str) -> Any:
        """What the pool asks: whether an idle connection can be used no more."""
        if info == "is_readable":
            return self._reader.at_eof() or self._reader.arrived > self.received
        return self._writer.get_extra_info(info) if info == "ssl_object" else None


def _now() -> float:
    return asyncio.get_running_loop().time()


class Backend(httpcore2.AsyncNetworkBackend):
    """Opens connections for the pool."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Stream:
        """Connect to the first address that answers. Raises OSError and ConnectTimeout."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                reader = _Reader(limit=_READ_AHEAD_BYTES)
                transport, protocol = await loop.create_connection(
                    lambda: asyncio.StreamReaderProtocol(reader),
                    host,
                    port,
                    happy_eyeballs_delay=_NEXT_ADDRESS_AFTER_S,
                )
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _DEAD_PEER.items():
            if hasattr(socket, name):  # Not on every system.
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


@cache
def tls_context(certificates: str) -> ssl.SSLContext:
    """What SSL_CERT_FILE or SSL_CERT_DIR names, or the system's certificates. Raises ModelError.

    The library reads the variables itself; the argument tells contexts apart, 23 ms each.
    """
    try:
        return httpcore2.default_ssl_context()
    except (OSError, ValueError) as error:
        what = f"no certificates can be read from {certificates!r} ({error})"
    raise ModelError(f"{what}; correct SSL_CERT_DIR or SSL_CERT_FILE.", code="LLM_HTTP_ERROR")
