"""Read the answer of one attempt: split bytes into frames and give them to a wire's parser.

Decides when an answer is complete; the parser knows what the frames mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.deltas import Delta
from nbagent.contracts.errors import ModelError
from nbagent.providers.answer.answer_pipe import AnswerPipe
from nbagent.providers.answer.images import LongDataFilter
from nbagent.providers.answer.json_fields import objects_in
from nbagent.providers.answer.wire_deltas import LastEvent
from nbagent.providers.http_errors import answer_error
from nbagent.providers.transport.sse import (
    MAX_FRAME_BYTES,
    Splitter,
    Sse,
    bad_response,
    load_wire,
    preview,
)
from nbagent.providers.wires.base import Parser

_KEEP_ALIVE_EVENTS = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})
_KEEP_ALIVE_DATA = re.compile(
    rb":.*|null|\[\]|\"\"|\W{0,9}(?:ping|pong|heartbeat|keep[-_ ]?alive|processing)\W{0,9}",
    re.I | re.S,
)
"""Data of events that only keep the connection open, in place of comments."""
_BOM = b"\xef\xbb\xbf"
_MAX_BYTES = 64 * 2**20
"""Limit of one answer, without images that are too large: 128,000 tokens with 350 bytes around
each are 43 MB."""


class AnswerReader:
    """Reads the pieces of a 200 body: a stream of frames, or one JSON value.

    Before a ModelError, `feed` and `end` yield what was read until then.
    """

    def __init__(self, parser: Parser, pipe: AnswerPipe, splitter: Splitter) -> None:
        self._pipe = pipe
        self._parser = parser
        self._splitter = splitter
        self._is_stream = not isinstance(splitter, Sse)
        """True if the body is read as frames; for SSE its first byte decides."""
        self._is_json = False
        self._head = bytearray()
        self._long_data = LongDataFilter()
        self._n_bytes = 0
        self._saw_frame = False
        self._payload: Any = None
        """The last frame. Instead of an answer it may be an error in a form of its own."""

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """Read a piece of the body; yield its deltas."""
        try:
            self._feed(piece)
        except ModelError as error:
            yield from self._pipe.take()
            raise self._with_server_words(error) from None
        yield from self._pipe.take()

    def end(self) -> Iterator[Delta]:
        """Read the end of the body. Raises ModelError if it is no answer, or was cut."""
        try:
            self._end()
        except ModelError as error:
            yield from self._pipe.take()
            raise self._with_server_words(error) from None
        yield from self._pipe.take()

    def _with_server_words(self, error: ModelError) -> ModelError:
        """Return the error that the last frame states, if this one has no words of the server.

        An error object (`error`) is read by the parser; here are the forms without one.
        """
        if error.server_text or self._pipe.answered:
            return error
        stated = answer_error(self._payload)
        if stated is not None and stated.code == "LLM_BAD_RESPONSE" == error.code:
            line = stated.server_text.rstrip(".")
            quoted = bad_response(f"it contains no answer; the server says: {line}")
            stated.message = quoted.message
        return stated or error

    def _feed(self, piece: bytes) -> None:
        piece = self._long_data.feed(piece)
        self._n_bytes += len(piece)
        if self._n_bytes > _MAX_BYTES or len(self._head) > MAX_FRAME_BYTES:
            raise bad_response(f"it is larger than {_MAX_BYTES / 2**20:g} MB")
        if self._is_stream:
            self._read_frames(self._splitter.feed(piece))
            return
        self._head += piece
        if self._is_json:
            return
        # The first byte decides, not the content type: servers answer `stream: true` with JSON, and
        # the other way round. DeepSeek sends blank lines before a JSON body to keep it alive.
        start = bytes(self._head).removeprefix(_BOM).lstrip()
        if start[:1] in (b"{", b"["):
            self._is_json = True
        elif start and not _BOM.startswith(start):
            self._is_stream = True
            self._read_frames(self._splitter.feed(start))
        elif not start:
            self._head.clear()

    def _end(self) -> None:
        pipe = self._pipe
        try:
            if self._is_json:
                self._read_json(bytes(self._head))
            if not pipe.ended:
                self._read_frames(self._splitter.flush())
        except ModelError:
            # Half a frame after a complete text costs the usage, not the answer.
            if not pipe.is_usable():
                raise
        if not self._saw_frame:
            shown = preview(self._head)
            raise bad_response(
                f"it is neither JSON nor an event stream{f' ({shown!r})' if shown else ''}"
            )
        if not (pipe.ended or pipe.finished):
            pipe.take()  # Not shown: an unfinished last frame may be half a text.
            raise bad_response("the stream was cut before the answer was complete")
        if not pipe.answered:
            raise bad_response("it contains no answer", retry=pipe.no_host_answered)
        if pipe.lacks_announced_calls:
            fault = bad_response("it announces tool calls and contains none", retry=True)
            fault.kind = "missing_calls"
            raise fault
        pipe.close()
        if nothing := pipe.fault_of_nothing():
            raise nothing

    def _read_json(self, body: bytes) -> None:
        try:
            self._payload = value = load_wire(body)
        except ModelError:
            # Frames without `data:`, or an error object before the events. One line is invalid
            # JSON.
            if b"\n" not in body.strip():
                raise
            self._read_frames(self._splitter.feed(body))
            return
        self._saw_frame = True
        frames = objects_in(value)
        deltas = self._parser.read_whole(value)
        if len(frames) > 1:  # The frames of a stream, as one list (Gemini).
            deltas = chain.from_iterable(self._parser.read_event(b"", frame) for frame in frames)
        for delta in deltas:
            self._pipe.add(delta)
        self._pipe.add(LastEvent())

    def _read_frames(self, frames: list[tuple[bytes, bytes]]) -> None:
        pipe, parser, add = self._pipe, self._parser, self._pipe.add
        done = False
        for name, data in frames:
            if pipe.ended and not done:
                break
            if data.startswith(b"[DONE]"):
                # On a wire with another last event, a gateway added it, perhaps after half an
                # answer.
                if parser.ends_with_done:
                    done = self._saw_frame = True
                    pipe.add(LastEvent())
                continue
            if not data.strip() or name in _KEEP_ALIVE_EVENTS:
                continue
            if not data.startswith(b"{") and _KEEP_ALIVE_DATA.fullmatch(data.strip()):
                continue
            payload = load_wire(data)
            if done:
                # Some gateways send the usage after `[DONE]`; read nothing else from there.
                payload = {"usage": (json_object(payload) or {}).get("usage")}
            elif name == b"error" and "error" not in (json_object(payload) or {}):
                payload = {"error": payload or "an error event without a text"}
            self._saw_frame, self._payload = True, payload
            for delta in parser.read_event(name, payload):
                add(delta)
