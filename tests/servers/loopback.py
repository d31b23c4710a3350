"""The HTTP/1.1 server on loopback under every stand-in for a provider; standard library only.

Owns connections and requests; what is answered is its subclasses': `ModelServer` plays a script,
`HostileServer` misbehaves, `Player` plays given bytes on the client's own loop.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self


@dataclass(eq=False)
class Visit:
    """One request, and the connection on which it is answered."""

    head: str
    """Request line and headers, as they came."""
    data: bytes
    """The body, as it came."""
    connection: int
    """Counts the connections from 1."""
    reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    nth: int = 1
    """How many requests its fault has had, from 1."""
    keep: bool = False
    """Set by who answers: the connection stays open for the next request."""

    @property
    def line(self) -> str:
        return self.head.partition("\r\n")[0]

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    @cached_property
    def headers(self) -> dict[str, str]:
        lines = (line.partition(":") for line in self.head.split("\r\n")[1:])
        return {name.strip().lower(): value.strip() for name, _, value in lines if name}

    @cached_property
    def body(self) -> Any:
        return json.loads(self.data) if self.data else None

    async def send(self, *pieces: bytes) -> None:
        """Send bytes; raises when the client is gone."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            if self._writer.transport.is_closing():
                raise ConnectionResetError

    async def drip(self, pieces: Iterable[bytes], between_s: float) -> None:
        for piece in pieces:
            await self.send(piece)
            await asyncio.sleep(between_s)

    async def flood(self, piece: bytes) -> None:
        """Send the same bytes until the client has had enough."""
        while True:
            await self.drip([piece], 0)

    async def silence(self) -> None:
        while await self.reader.read(65536):
            pass

    def reset(self) -> None:
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


class Loopback:
    """Serves in a thread of its own (`with`), or on the running loop (`start` and `stop`)."""

    def __init__(
        self, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.host = host
        self.port = port
        self.connections = 0
        """How many there have been."""
        self.open: set[asyncio.Task[Any]] = set()
        """The connections that are open now."""
        self._tls = tls
        self._server: asyncio.Server | None = None

    @property
    def origin(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}"

    async def answer(self, visit: Visit) -> None:
        raise NotImplementedError

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after another."""
        number, keep = self.connections, True
        while keep:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").removesuffix("\r\n\r\n")
            visit = Visit(head, b"", number, reader, writer)
            visit.data = await reader.readexactly(int(visit.headers.get("content-length", "0")))
            await self.answer(visit)
            keep = visit.keep

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._welcome, self.host, self.port, ssl=self._tls, backlog=512
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server
        self._server.close()
        for task in self.open:
            task.cancel()
        await asyncio.gather(*self.open, return_exceptions=True)
        # What was aborted is let go in the next rounds of the loop.
        await asyncio.sleep(0.01)

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        # A socket that a test left open is reported in this test, not in a later one.
        gc.collect()

    def _serve(self, ready: threading.Event) -> None:
        with asyncio.Runner() as runner:
            self._loop = runner.get_loop()
            self._loop.set_exception_handler(_ignore)
            runner.run(self.start())
            ready.set()
            self._loop.run_forever()
            runner.run(self.stop())

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self.open.add(task)
        self.connections += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self.meet(reader, writer)
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self.open.discard(task)
            with suppress(OSError, RuntimeError):
                writer.close()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A client that does not like the certificate is no news here."""
