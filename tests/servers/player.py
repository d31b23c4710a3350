"""A server on the client's own loop that plays given bytes; standard library only.

It answers every request with what was set last, in pieces, in any framing, with any end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from servers.loopback import Loopback, Visit

Framing = Literal["chunked", "length", "none"]
Ending = Literal["clean", "close", "reset", "silent"]


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


class Player(Loopback):
    """Plays the answers in turn; the last one again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Visit] = []
        self._plays: list[Play] = []

    def play(self, plays: Sequence[Play]) -> None:
        self._plays = list(plays)
        self.asked = []

    async def answer(self, visit: Visit) -> None:
        self.asked.append(visit)
        play = self._plays.pop(0) if len(self._plays) > 1 else self._plays[0]
        await visit.drip(play.parts(), 0)
        if play.ending == "reset":
            await asyncio.sleep(0.01)
            visit.reset()
        elif play.ending == "silent":
            await visit.silence()
        visit.keep = play.ending == "clean" and play.framing != "none"
