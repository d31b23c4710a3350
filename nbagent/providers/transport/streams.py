"""Byte streams over asyncio, below the HTTP pool: opening, reading, writing, TLS.

Knows no HTTP. It replaces the pool's own streams over anyio, whose reads cost several times
more.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
import ssl
from typing import Any

import httpcore2

_READ_AHEAD_BYTES = 256 * 1024
"""Pause a server that sends faster than it is read at this point."""
_HAPPY_EYEBALLS_DELAY_S = 0.25
"""Start the next address this long after the one before (Happy Eyeballs, RFC 8305)."""
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_USER_TIMEOUT": 60_000}
"""Give up a silent peer after about a minute, for example after a laptop slept: the system's
default is a quarter of an hour."""


class StaleConnection(ConnectionResetError):
    """A reused connection gave no answer: the server had closed it, or sent bytes unasked.

    The request is sent again on another connection.
    """


class Stream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One connection. Written bytes are sent by the next read, in one packet if possible."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.deadline = math.inf  # Reads end then; the next write resets it.
        self.received = 0  # Bytes that have been read.
        self.last_read = b""  # Bytes of the last read.
        self.unsent: list[bytes] = []
        self._received_at_send = 0  # Value of `received` when the last request was sent.
        self._arrived = b""
        self._closed_by: Exception | None = None
        self._changed = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self._arrived += data
        if len(self._arrived) > _READ_AHEAD_BYTES:
            self.transport.pause_reading()
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by asyncio. The error is raised after the bytes that arrived before it."""
        self._closed_by = exc or EOFError("closed while it was idle")
        self._changed.set()

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read the next bytes; empty if the peer has closed. Raises TimeoutError and OSError."""
        loop = asyncio.get_running_loop()
        if self.unsent:
            if self.received and self._arrived:
                raise StaleConnection("it sent bytes before the request")
            # Not `writelines`: it raises TypeError on a lost connection (Python 3.12, 3.13).
            self.transport.write(b"".join(self.unsent))
            self.unsent.clear()
            self._received_at_send = self.received
        if loop.time() >= self.deadline:
            raise TimeoutError
        if not self._arrived and self._closed_by is None:
            self._changed.clear()
            async with asyncio.timeout_at(min(loop.time() + (timeout or math.inf), self.deadline)):
                await self._changed.wait()
        data = self.last_read = self._arrived[:max_bytes]
        self._arrived = self._arrived[max_bytes:]
        self.transport.resume_reading()
        if not data and self.received == self._received_at_send > 0:
            raise StaleConnection(str(self._closed_by))
        if not data and not isinstance(self._closed_by, EOFError):
            raise ConnectionResetError(str(self._closed_by))
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
        """Encrypt the connection from now on; bytes of the proxy's answer are dropped."""
        self._arrived = b""
        self.received = self._received_at_send = 0
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
        """Answer the pool: `is_readable` is true if an idle connection cannot be used again."""
        if info == "is_readable":
            return self._closed_by is not None or bool(self._arrived)
        return self.transport.get_extra_info(info) if info == "ssl_object" else None


class NetworkBackend(httpcore2.AsyncNetworkBackend):
    """Opens connections for the pool."""

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *_: Any, **__: Any
    ) -> Stream:
        """Connect to the first address that answers. Raises OSError and ConnectTimeout."""
        delay_s = _HAPPY_EYEBALLS_DELAY_S if _has_slow_addresses(host) else None
        connecting = asyncio.get_running_loop().create_connection(
            Stream, host, port, happy_eyeballs_delay=delay_s
        )
        try:
            async with asyncio.timeout(timeout):
                transport, stream = await connecting
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE_OPTIONS.items():
            if hasattr(socket, name):  # Some systems lack some of them.
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return stream


def _has_slow_addresses(host: str) -> bool:
    """True if one address of the host may be silent while another one answers.

    asyncio's race of addresses loses an open socket if it is cancelled in the moment in which one
    connects: a probe of a server of this machine ends so. Loopback accepts or refuses at once, and
    a literal address has no other beside it, so neither needs a race.
    """
    if host == "localhost":
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False
