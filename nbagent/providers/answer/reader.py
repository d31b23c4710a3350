"""Reads the answer of one attempt: frames from bytes, given to a wire's parser."""

from __future__ import annotations

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ModelError
from nbagent.providers.answer.builder import Assembly
from nbagent.providers.transport.sse import Splitter, Sse, bad_answer, load_wire, start_of
from nbagent.providers.wires.base import Parser

_LIFE_SIGNS = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})


_BOM = b"\xef\xbb\xbf"


NO_CALLS = "no_calls"
"""The code of an answer that announces calls and has none; such a one is asked for once more."""


class AnswerReader:
    """Takes the pieces of a 200 body: a stream of frames, or one JSON value.

    It says what counts as the end of an answer; what the frames mean is the parser's. What came
    is in the assembly, also when a ModelError is raised behind it.
    """

    def __init__(self, parser: Parser, into: Assembly, splitter: Splitter) -> None:
        self._into = into
        self._parser = parser
        self._splitter = splitter
        self._is_stream = not isinstance(splitter, Sse)
        """Whether the body is read as frames; for SSE its first byte tells."""
        self._is_json = False
        self._head = bytearray()
        self._saw_frame = False

    def feed(self, piece: bytes) -> None:
        """Take what this piece completes."""
        if self._is_stream:
            self._take(self._splitter.feed(piece))
            return
        self._head += piece
        if self._is_json:
            return
        # The first byte tells, whatever the content type says; keep-alives send blank lines first.
        start = bytes(self._head).removeprefix(_BOM).lstrip()
        if start[:1] in (b"{", b"["):
            self._is_json = True
        elif start and not _BOM.startswith(start):
            self._is_stream = True
            self._take(self._splitter.feed(start))
        elif not start:
            self._head.clear()

    def end(self) -> None:
        """The body is over. Raises ModelError when it is no answer, or was cut off."""
        into = self._into
        try:
            if self._is_json:
                self._take_json(bytes(self._head))
            if not into.ended:
                self._take(self._splitter.flush())
        except ModelError:
            # Half a frame after the end of a text is lost usage, not a lost answer.
            if not into.stands():
                raise
        if not self._saw_frame:
            shown = start_of(self._head)
            raise bad_answer(
                f"neither JSON nor an event stream came{f' ({shown!r})' if shown else ''}"
            )
        if not (into.ended or into.finished):
            into.take_chunks()  # What stood behind the last end of a frame may be half of it.
            raise bad_answer("the stream was cut before the answer was complete")
        if not into.answered:
            raise bad_answer("the stream held no answer", retry=into.nobody_answered)
        if into.misses_calls:
            fault = bad_answer("it ends in tool calls and has none", retry=True)
            fault.details["code"] = NO_CALLS
            raise fault
        into.close()

    def _take_json(self, body: bytes) -> None:
        try:
            found = load_wire(body)
        except ModelError:
            # Frames without `data:`, or an error object before the events; else it is no JSON.
            if b"\n" not in body.strip():
                raise
            self._take(self._splitter.feed(body))
            return
        self._parser.whole(found)
        self._saw_frame = True
        self._into.end()

    def _take(self, frames: list[tuple[bytes, bytes]]) -> None:
        into, parser = self._into, self._parser
        done = False
        for name, data in frames:
            if into.ended and not done:
                break
            if data.startswith(b"[DONE]"):
                # On a wire with another last word it is a gateway's, also behind half an answer.
                if parser.done_ends:
                    done = into.ended = self._saw_frame = True
                continue
            if not data.strip() or name in _LIFE_SIGNS:
                continue
            found = load_wire(data)
            if done:
                # Some gateways send the usage behind `[DONE]`: nothing else of it counts.
                found = {"usage": (json_object(found) or {}).get("usage")}
            elif name == b"error" and "error" not in (json_object(found) or {}):
                found = {"error": found or "an error event without a text"}
            parser.event(name, found)
            self._saw_frame = True
