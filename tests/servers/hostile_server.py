"""A server on loopback that misbehaves as it is told: raw bytes, resets, silences, wrong TLS.

Each fault has its own base URL on one server, so that many can be met at once. It records what
it was asked. What the answers are is written in the tests; the bytes of good ones are here.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from servers.dialects import Dialect, chunked, dialect_of


class Visit:
    """One request that a fault answers."""

    def __init__(
        self,
        head: str,
        body: bytes,
        nth: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.head = head
        """Request line and headers, as they came."""
        self.body = body
        self.nth = nth
        """How many requests this fault has had, from 1."""
        self.keep = False
        """Set by the fault: the connection stays open for the next request."""
        self.reader = reader
        self._writer = writer

    def header(self, name: str) -> str | None:
        """A header of the request."""
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    @property
    def path(self) -> str:
        """What is asked for."""
        return self.head.split(" ")[1]

    @property
    def wire(self) -> Dialect:
        """The wire of the request."""
        return dialect_of(self.path)

    async def send(self, *pieces: bytes) -> None:
        """Send bytes; raises when the client is gone."""
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            if self._writer.transport.is_closing():
                raise ConnectionResetError

    async def drip(self, pieces: Sequence[bytes], between_s: float) -> None:
        """Send pieces with a pause after each."""
        for piece in pieces:
            await self.send(piece)
            await asyncio.sleep(between_s)

    async def flood(self, piece: bytes) -> None:
        """Send the same bytes until the client has had enough."""
        while True:
            await self.send(piece)
            await asyncio.sleep(0)

    async def silence(self) -> None:
        """Say nothing until the client leaves."""
        while await self.reader.read(65536):
            pass

    def reset(self) -> None:
        """Break the connection with a TCP reset."""
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Fault = Callable[[Visit], Awaitable[None]]
Meet = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class HostileServer:
    """Serves faults by the first part of the path: `url("name")` is the base URL of one."""

    def __init__(
        self,
        faults: dict[str, Fault] | None = None,
        *,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
        meet: Meet | None = None,
    ) -> None:
        """Serve faults.

        Args:
            meet: what becomes of each connection, where it is not HTTP.
        """
        self._meet = meet or self._meet_http
        self._writers: set[asyncio.StreamWriter] = set()
        self.faults = faults or {}
        self.host = host
        self.port = 0
        self.visits: dict[str, list[Visit]] = {}
        self.connections = 0
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="hostile-server", daemon=True)

    def url(self, name: str) -> str:
        """The base URL of a fault."""
        return f"{'https' if self._tls else 'http'}://{self.host}:{self.port}/{name}/v1"

    def asked(self, name: str) -> int:
        """How many answers of a model a fault was asked for."""
        return sum(visit.head.startswith("POST ") for visit in self.visits.get(name, ()))

    def __enter__(self) -> HostileServer:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        # A client that does not like the certificate is no news here.
        loop.set_exception_handler(_ignore)
        server = loop.run_until_complete(
            asyncio.start_server(self._welcome, self.host, 0, ssl=self._tls, backlog=512)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            loop.run_forever()
        finally:
            server.close()
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            for writer in self._writers:
                writer.transport.abort()
            # What was aborted is let go in the next rounds of the loop.
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            await self._meet(reader, writer)
        finally:
            with suppress(OSError, RuntimeError):
                writer.close()

    async def _meet_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._answer(reader, writer):
                pass

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        size = 0
        for line in head.lower().split("\r\n"):
            if line.startswith("content-length:"):
                size = int(line.partition(":")[2])
        body = await reader.readexactly(size)
        # A proxy is asked for a whole address, or (CONNECT) for a host.
        path = re.sub(r"^https?://[^/]*", "", head.split(" ")[1])
        name = path.lstrip("/").split("/")[0]
        visits = self.visits.setdefault(name, [])
        visit = Visit(head, body, len(visits) + 1, reader, writer)
        visits.append(visit)
        await self.faults.get(name, fine)(visit)
        return visit.keep


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    pass


async def fine(visit: Visit) -> None:
    """A good answer, streamed or whole as was asked; the connection stays open."""
    visit.keep = True
    await visit.send(answer(visit, "fine"))


def answer(visit: Visit, text: str) -> bytes:
    """A good answer as it was asked for."""
    wire = visit.wire
    if wire.asks_for_stream(visit.path, visit.json):
        return wire.head() + chunked(wire.stream(*wire.said(text))) + b"0\r\n\r\n"
    return whole(wire.whole(text))


def whole(
    body: Any, status: str = "200 OK", headers: Sequence[str] = (), kind: str = "application/json"
) -> bytes:
    """A response with a length. A body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = "".join(f"{line}\r\n" for line in headers)
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{extra}Content-Length: {len(data)}\r\n"
    return head.encode("latin-1") + b"\r\n" + data


def certificate(folder: Path, *names: str) -> Path | None:
    """A self-signed certificate with its key in one file; None where there is no `openssl`."""
    openssl = shutil.which("openssl")
    if openssl is None:
        return None
    path = folder / f"{names[0]}.pem"
    alternatives = ",".join(f"{'IP' if n[0].isdigit() else 'DNS'}:{n}" for n in names)
    command = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={names[0]}", "-keyout", str(path)]
    command += ["-addext", f"subjectAltName={alternatives}", "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def tls_of(certificate_file: Path) -> ssl.SSLContext:
    """What a server with this certificate needs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file)
    return context
