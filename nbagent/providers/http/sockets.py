"""Byte streams over asyncio for the HTTP pool: waiting with a deadline, bounded buffers.

Knows no HTTP. It stands in for the pool's own anyio streams, which cost several times as much.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Literal

_READ_AHEAD_BYTES = 256 * 1024
"""A server that sends faster than it is read is paused at this point."""
_GATHER_BYTES = 64 * 1024
"""Request head and body leave in one packet up to this size."""


_HEAD_END = re.compile(rb"\n\r?\n")
_INFORMATIONAL = re.compile(rb"HTTP/1\.\d (?!101)1\d\d")
_STATUS_BYTES = len(b"HTTP/1.1 200")
_DEAD_AFTER_S = 60
"""A peer that acknowledges nothing for so long is gone."""
_KEEP_ALIVE = (
    ("SO_KEEPALIVE", socket.SOL_SOCKET, 1),
    ("TCP_KEEPIDLE", socket.IPPROTO_TCP, 30),
    ("TCP_KEEPINTVL", socket.IPPROTO_TCP, 10),
    ("TCP_KEEPCNT", socket.IPPROTO_TCP, 3),
    ("TCP_USER_TIMEOUT", socket.IPPROTO_TCP, _DEAD_AFTER_S * 1000),
)


class Patience(float):
    """Seconds to wait for the next bytes, never beyond `deadline` (in the loop's time).

    It is a number so that the pool can pass it through to `SocketStream.read`.
    """

    deadline: float
    was_stale: bool
    """The request left on a connection that had served before, and nothing has come back."""

    def __new__(cls, between_s: float, deadline: float) -> Patience:
        """Wait at most `between_s` at a time."""
        self = super().__new__(cls, between_s)
        self.deadline = deadline
        self.was_stale = False
        return self

    def check(self, now: float) -> None:
        """Raise when the deadline has passed."""
        if now >= self.deadline:
            raise WaitedTooLong("deadline")

    def forget(self) -> None:
        """The request is made again, on another connection."""
        self.was_stale = False


class WaitedTooLong(TimeoutError):
    """A wait ended without what it waited for."""

    def __init__(self, kind: Literal["connect", "silence", "deadline"]) -> None:
        super().__init__(kind)
        self.kind = kind


class SocketStream(asyncio.Protocol):
    """One connection. Reads are served from what has arrived; writes leave with the next read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._arrived = bytearray()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._ended = False
        self._paused = False
        self._error: Exception | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._wake_at = 0.0
        self._head_tail: bytes | None = None
        """While the head of an answer is read: the last bytes handed out. None in its body."""
        self._head_start = b""
        self._body_left: int | None = None
        """Bytes of the body that are still to be handed out, where its length is known."""
        self._requests = 0
        self._spoilt = False
        self.body_is_next = False
        """Exactly the head of an answer was handed out: its body can be read from here."""

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
        """The server will send no more."""
        self._ended = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone; the reader is told why."""
        self._ended = True
        self._error = self._error or exc
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._wake()

    # What the pool calls.

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """The next bytes; empty when the server has closed. Raises OSError."""
        self.body_is_next = False
        if self._unsent:
            self._flush()
        in_head = self._head_tail is not None
        if in_head and isinstance(timeout, Patience):
            timeout.was_stale = self._requests > 1 and not self._head_start
        await self._arrival(timeout)
        if in_head and self._arrived:
            if isinstance(timeout, Patience):
                timeout.was_stale = False
            return self._rest_of_head(max_bytes)
        return self._hand_out(max_bytes)

    async def read_body(self, timeout: float | None) -> bytes:
        """The next bytes of a body that the pool does not read itself."""
        await self._arrival(timeout)
        return self._hand_out(_READ_AHEAD_BYTES)

    def begin_body(self, length: int) -> None:
        """No more than so many bytes belong to this answer; others stay here."""
        self._body_left = length

    def spoil(self) -> None:
        """Let no other request use this connection."""
        self._spoilt = True

    def put_back(self, data: bytes) -> None:
        """Bytes that `read` hands out first."""
        self._arrived[:0] = data

    async def _arrival(self, timeout: float | None) -> None:
        deadline = timeout.deadline if isinstance(timeout, Patience) else float("inf")
        now = self._loop.time()
        if now >= deadline:
            raise WaitedTooLong("deadline")
        if not self._arrived and not self._ended:
            until = deadline if timeout is None else min(now + timeout, deadline)
            await self._wait(until, "deadline" if until == deadline else "silence")
        if not self._arrived and self._error is not None:
            raise ConnectionResetError(str(self._error))

    def _rest_of_head(self, max_bytes: int) -> bytes:
        """What has arrived of the head, and nothing of the body."""
        tail = self._head_tail or b""
        window = tail + bytes(self._arrived[:max_bytes])
        if len(self._head_start) < _STATUS_BYTES:
            self._head_start += bytes(self._arrived[: _STATUS_BYTES - len(self._head_start)])
        found = _HEAD_END.search(window)
        if found is None:
            self._head_tail = window[-3:]
            return self._hand_out(max_bytes)
        data = self._hand_out(found.end() - len(tail))
        if _INFORMATIONAL.match(self._head_start):
            # 100 Continue, 103 Early Hints: the head of the answer itself is still to come.
            self._head_tail, self._head_start = b"", b""
            return data
        self._head_tail = None
        self.body_is_next = True
        return data

    def _hand_out(self, max_bytes: int) -> bytes:
        if self._body_left is not None:
            max_bytes = min(max_bytes, self._body_left)
            self._body_left -= min(max_bytes, len(self._arrived))
        if len(self._arrived) <= max_bytes:
            data, self._arrived = bytes(self._arrived), bytearray()
        else:
            data = bytes(self._arrived[:max_bytes])
            del self._arrived[:max_bytes]
        if self._paused and self._transport and len(self._arrived) < _READ_AHEAD_BYTES // 2:
            self._paused = False
            self._transport.resume_reading()
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Queue bytes; they are sent when the answer is read."""
        if buffer:
            self._unsent.append(buffer)
            self._unsent_bytes += len(buffer)
            if self._unsent_bytes > _GATHER_BYTES:
                self._flush()

    async def aclose(self) -> None:
        """Drop the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> SocketStream:
        """Encrypt the connection from here on."""
        assert self._transport is not None
        if self._unsent:
            self._flush()
        try:
            async with asyncio.timeout(timeout):
                transport = await self._loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError:
            self._transport.abort()
            raise WaitedTooLong("connect") from None
        except BaseException:
            self._transport.abort()
            raise
        if transport is None:
            raise ConnectionResetError("the server closed the connection during the TLS handshake")
        self._transport = transport
        self._requests = 0  # What a proxy was asked before does not count.
        return self

    def get_extra_info(self, info: str) -> Any:
        """What the pool asks: whether an idle connection was closed by the server."""
        if info == "is_readable":
            return self._ended or self._spoilt or bool(self._arrived)
        if info == "ssl_object" and self._transport is not None:
            return self._transport.get_extra_info("ssl_object")
        return None

    def _flush(self) -> None:
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._head_tail is None:
            # Not the rest of a long request: a new one.
            self._requests += 1
            self._body_left = None
            self._head_tail, self._head_start = b"", b""
        if self._transport is not None and not self._ended:
            self._transport.write(data)

    async def _wait(self, until: float, kind: Literal["silence", "deadline"]) -> None:
        self._reader = reader = self._loop.create_future()
        self._wake_at = until
        # One timer serves many reads: it is set again only when it fires too early.
        if self._alarm is None or self._alarm.when() > until:
            self._set_alarm(until)
        try:
            await reader
        finally:
            self._reader = None
        if not self._arrived and not self._ended:
            raise WaitedTooLong(kind)

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._ring) if when != float("inf") else None

    def _ring(self) -> None:
        self._alarm = None
        if self._reader is None:
            return
        if self._loop.time() >= self._wake_at:
            self._wake()
        else:
            self._set_alarm(self._wake_at)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class AsyncioBackend:
    """Opens connections for the pool."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> SocketStream:
        """Connect, trying IPv6 and IPv4 side by side. Raises OSError."""
        loop = asyncio.get_running_loop()
        stream = SocketStream(loop)
        try:
            async with asyncio.timeout(timeout):
                transport, _ = await loop.create_connection(
                    lambda: stream, host, port, happy_eyeballs_delay=0.25
                )
        except TimeoutError:
            raise WaitedTooLong("connect") from None
        raw = transport.get_extra_info("socket")
        if raw is not None:
            _notice_dead_peers(raw)
        return stream

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> SocketStream:
        """Not used here."""
        raise OSError("unix sockets are not supported")

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


def _notice_dead_peers(raw: socket.socket) -> None:
    # A laptop that slept, or a router that forgot: the defaults wait for a quarter of an hour.
    for name, level, value in _KEEP_ALIVE:
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                raw.setsockopt(level, option, value)
