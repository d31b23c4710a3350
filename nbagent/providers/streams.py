"""Byte streams over asyncio, below the HTTP pool: opening, reading, writing, TLS.

Knows no HTTP. It stands in for the pool's own streams over anyio, which cost several times as
much for each read.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import httpcore2

from nbagent.contracts.errors import ModelError

_READ_AHEAD_BYTES = 256 * 1024
"""A server that sends faster than it is read is paused at this point."""
_NEXT_ADDRESS_AFTER_S = 0.25
"""IPv6 and IPv4 are tried side by side, so far apart (RFC 8305)."""
_KEEP_ALIVE = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 30),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 10),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
    ("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, 60_000),
)


class StaleConnection(ConnectionResetError):
    """The peer had closed a connection that was used before, and answered nothing since."""


class Stream(asyncio.Protocol, httpcore2.AsyncNetworkStream):
    """One connection. What is written is sent, in one packet if possible, by the next read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.deadline = float("inf")
        """Reads end then (the loop's time); it holds until something is written."""
        self.received = 0
        """Bytes that have been read."""
        self.answered = False
        """Something was read since the last write."""
        self.last = b""
        """The bytes that were read last."""
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._arrived = bytearray()
        self._unsent: list[bytes] = []
        self._reader: asyncio.Future[None] | None = None
        self._used = False
        """Something had been read before the last write."""
        self._ended = False
        self._paused = False
        self._error: Exception | None = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Take what arrived and wake the reader."""
        self._arrived += data
        if len(self._arrived) > _READ_AHEAD_BYTES and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """The peer will send no more."""
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; the reader is told why."""
        self._ended = True
        self._error = self._error or exc
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # What the pool calls.

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes; empty when the peer has closed.

        Raises:
            TimeoutError: nothing came within `timeout`, or before the deadline.
            OSError: the connection broke; StaleConnection before the first byte of an answer.
        """
        if self._unsent:
            self._send()
        self.check_deadline()
        if not self._arrived and not self._ended:
            await self._arrival(timeout)
        if not self._arrived:
            if self._used and not self.answered:
                raise StaleConnection(str(self._error or "closed while it was idle"))
            if self._error is not None:
                raise ConnectionResetError(str(self._error))
        self.answered = True
        self.received += min(max_bytes, len(self._arrived))
        self.last = data = bytes(self._arrived[:max_bytes])
        del self._arrived[:max_bytes]
        if self._paused and self._transport and len(self._arrived) < _READ_AHEAD_BYTES // 2:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def _arrival(self, timeout: float | None) -> None:
        silent_until = float("inf") if timeout is None else self._loop.time() + timeout
        self._reader = self._loop.create_future()
        try:
            async with asyncio.timeout_at(min(silent_until, self.deadline)):
                await self._reader
        finally:
            self._reader = None

    def check_deadline(self) -> None:
        """Raise TimeoutError when it has passed."""
        if self._loop.time() >= self.deadline:
            raise TimeoutError

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Queue bytes until the next read."""
        if buffer:
            self._used, self.answered = self._used or self.answered, False
            self.deadline = float("inf")
            self._unsent.append(buffer)

    def _send(self) -> None:
        if self._transport is not None and not self._ended:
            self._transport.writelines(self._unsent)
        self._unsent.clear()

    async def aclose(self) -> None:
        """Drop the connection at once."""
        self._ended = True
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> Stream:
        """Encrypt the connection from here on."""
        assert self._transport is not None
        try:
            async with asyncio.timeout(timeout):
                transport = await self._loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except BaseException as error:
            self._transport.abort()
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout from None
            raise
        if transport is None:
            raise ConnectionResetError("the server closed the connection during the TLS handshake")
        self._transport = transport
        self._used = self.answered = False  # What a proxy was asked before does not count.
        return self

    def get_extra_info(self, info: str) -> Any:
        """What the pool asks: whether an idle connection can be used no more."""
        if info == "is_readable":
            return self._ended or bool(self._arrived)
        if info == "ssl_object" and self._transport is not None:
            return self._transport.get_extra_info("ssl_object")
        return None


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
        """Connect to the first address that answers.

        Raises:
            OSError: none does, or the name is not found.
            httpcore2.ConnectTimeout: it took too long.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, stream = await loop.create_connection(
                    lambda: Stream(loop), host, port, happy_eyeballs_delay=_NEXT_ADDRESS_AFTER_S
                )
        except TimeoutError:
            raise httpcore2.ConnectTimeout from None
        _notice_dead_peers(transport.get_extra_info("socket"))
        return stream


@cache
def tls_context(certificates: str) -> ssl.SSLContext:
    """What SSL_CERT_FILE or SSL_CERT_DIR names, or the system's certificates. Raises ModelError.

    23 ms to build, so one for the process. The library reads the variables itself; the argument
    tells contexts apart.
    """
    try:
        return httpcore2.default_ssl_context()
    except (OSError, ValueError) as error:
        what = f"no certificates can be read from {certificates!r} ({error})"
    raise ModelError(f"{what}; correct SSL_CERT_DIR or SSL_CERT_FILE.", code="LLM_HTTP_ERROR")


def _notice_dead_peers(raw: socket.socket) -> None:
    # A laptop that slept, or a router that forgot: the defaults wait for a quarter of an hour.
    for name, level, value in _KEEP_ALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                raw.setsockopt(level, option, value)
