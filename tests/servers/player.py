"""A server on the client's own loop that plays given bytes; standard library only.

It answers every request with what was set last, in pieces, in any framing, with any end.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast

Framing = Literal["chunked", "length", "none"]
Ending = Literal["clean", "close", "reset", "silent"]
_SIZE = re.compile(rb"content-length: *(\d+)", re.I)


@dataclass(frozen=True, slots=True)
class Play:
    """One answer."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    pieces: int = 0
    """Bytes of each piece; 0: all at once."""
    framing: Framing = "chunked"
    ending: Ending = "clean"
    """`close`: without the last chunk; `reset`: by an RST; `silent`: it stays open."""

    def parts(self) -> Iterator[bytes]:
        """The bytes on the wire, piece by piece."""
        headers = dict(self.headers)
        if self.framing == "chunked":
            headers["transfer-encoding"] = "chunked"
        elif self.framing == "length":
            headers["content-length"] = str(len(self.body) + (self.ending != "clean"))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        yield f"HTTP/1.1 {self.status} Said\r\n{lines}\r\n".encode()
        step = self.pieces or len(self.body) or 1
        for at in range(0, len(self.body), step):
            piece = self.body[at : at + step]
            yield b"%x\r\n%b\r\n" % (len(piece), piece) if self.framing == "chunked" else piece
        if self.framing == "chunked" and self.ending == "clean":
            yield b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that came."""

    line: str
    headers: dict[str, str]
    body: Any
    connection: int


class Player:
    """Plays the answers in turn; the last one again and again."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.connections: set[_Connection] = set()
        self.count = 0
        self._plays: list[Play] = []
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Scheme, host and port."""
        assert self._server
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        """Listen on a free port, on the running loop."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self, loop), "127.0.0.1", 0)

    async def stop(self) -> None:
        """Close everything."""
        assert self._server
        self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    def play(self, plays: Sequence[Play]) -> None:
        """Set the answers, and forget what was asked."""
        self._plays = list(plays)
        self.asked = []

    def next_play(self) -> Play:
        """The answer to the request that came now."""
        return self._plays.pop(0) if len(self._plays) > 1 else self._plays[0]


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive."""

    def __init__(self, player: Player, loop: asyncio.AbstractEventLoop) -> None:
        self._player = player
        self._loop = loop
        self._data = b""
        player.count += 1
        self._number = player.count

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._player.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._player.connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        size = _SIZE.search(head)
        length = int(size[1]) if size else 0
        if not found or len(body) < length:
            return
        self._data = body[length:]
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {n.strip().lower(): v.strip() for n, _, v in (x.partition(":") for x in lines)}
        asked = Asked(first, headers, json.loads(body[:length] or b"null"), self._number)
        self._player.asked.append(asked)
        play = self._player.next_play()
        self._write(play.parts(), play)

    def _write(self, parts: Iterator[bytes], play: Play) -> None:
        if self.transport.is_closing():
            return
        piece = next(parts, None)
        if piece is not None:
            self.transport.write(piece)
            self._loop.call_soon(self._write, parts, play)
        elif play.ending == "reset":
            self._loop.call_later(0.01, self._reset)
        elif play.ending == "close" or (play.framing == "none" and play.ending == "clean"):
            self.transport.close()

    def _reset(self) -> None:
        with suppress(OSError):
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
