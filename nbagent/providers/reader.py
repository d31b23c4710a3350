"""The bytes of a 200 answer become frames, and each frame is given to the wire's parser.

Owns what counts as the end of an answer; what the frames mean is the wire's.
"""

from __future__ import annotations

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import ChatChunk
from nbagent.contracts.errors import ModelError
from nbagent.providers.assembly import Assembly
from nbagent.providers.errors import start_of
from nbagent.providers.frames import Splitter, Sse, bad_answer, load_wire
from nbagent.providers.wires import Parser

_LIFE_SIGNS = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})
_BOM = b"\xef\xbb\xbf"


class AnswerReader:
    """From the pieces of a 200 body to chunks: a stream of frames, or one JSON value."""

    def __init__(self, parser: Parser, into: Assembly, splitter: Splitter) -> None:
        self.into = into
        self.fault: ModelError | None = None
        """What was wrong behind the chunks that were given last; raise it after them, unless the
        answer `stands`."""
        self._parser = parser
        self._splitter = splitter
        self._is_stream = not isinstance(splitter, Sse)
        """Whether the body is read as frames; for SSE its first byte tells."""
        self._head = bytearray()
        self._is_json = False
        self._saw_frame = False

    def feed(self, piece: bytes) -> list[ChatChunk]:
        """The chunks that this piece completes."""
        if self._is_stream:
            return self._take(self._splitter.feed(piece))
        self._head += piece
        if self._is_json:
            return []
        # The first byte tells, whatever the content type says; keep-alives send blank lines first.
        start = bytes(self._head).removeprefix(_BOM).lstrip()
        if start[:1] in (b"{", b"["):
            self._is_json = True
        elif start and not _BOM.startswith(start):
            self._is_stream = True
            return self._take(self._splitter.feed(start))
        elif not start:
            self._head.clear()
        return []

    def end(self) -> list[ChatChunk]:
        """The body is over: the chunks still held.

        Raises:
            ModelError: the answer is not one, or was cut off.
        """
        out = self._rest_of_json() if self._is_json else self._rest_of_stream()
        if self.fault is not None and not self.into.stands():
            return out
        if not self._saw_frame:
            shown = start_of(self._head)
            raise bad_answer(
                f"neither JSON nor an event stream came{f' ({shown!r})' if shown else ''}"
            )
        if not (self.into.ended or self.into.finished):
            raise bad_answer("the stream was cut before the answer was complete")
        if not self.into.answered:
            raise bad_answer("the stream held no answer", retry=self.into.nobody_answered)
        self.into.close()
        return out + self.into.take_chunks()

    def _rest_of_stream(self) -> list[ChatChunk]:
        if not self._is_stream or self.into.ended:
            return []
        try:
            return self._take(self._splitter.flush())
        except ModelError:
            # Half a frame after the end of a text is lost usage, not a lost answer.
            if not self.into.stands():
                raise
        return []

    def _rest_of_json(self) -> list[ChatChunk]:
        body = bytes(self._head)
        try:
            found = load_wire(body)
        except ModelError:
            # Frames without `data:`, or an error object before the events; else it is no JSON.
            if b"\n" not in body.strip():
                raise
            self._is_stream = True
            out = self._take(self._splitter.feed(body))
            return out + self._rest_of_stream()
        self._parser.whole(found)
        self.into.end()
        self._saw_frame = True
        return self.into.take_chunks()

    def _take(self, frames: list[tuple[bytes, bytes]]) -> list[ChatChunk]:
        into, parser = self.into, self._parser
        try:
            for at, (name, data) in enumerate(frames):
                if into.ended:
                    break
                if data.startswith(b"[DONE]"):
                    if not parser.done_ends:
                        continue  # A gateway's, also behind half an answer.
                    self._saw_frame = into.ended = True
                    self._take_after_end(frames[at + 1 :])
                    break
                if not data.strip() or name in _LIFE_SIGNS:
                    continue
                found = load_wire(data)
                if name == b"error" and "error" not in (json_object(found) or {}):
                    found = {"error": found or "an error event without a text"}
                parser.event(name, found)
                self._saw_frame = True
        except ModelError as error:
            self.fault = error
            chunks = into.take_chunks()
            if not chunks:
                raise
            # What came before it, in the same packet, is kept.
            return chunks
        return into.take_chunks()

    def _take_after_end(self, frames: list[tuple[bytes, bytes]]) -> None:
        """Some gateways send the usage behind `[DONE]`: nothing else of it counts."""
        for name, data in frames:
            try:
                found = json_object(load_wire(data)) or {}
                self._parser.event(name, {"usage": found.get("usage")})
            except ModelError:
                return
