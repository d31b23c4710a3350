"""The bytes of a 200 answer become events, and each event is given to the answer's fold.

Owns what counts as the end of a stream; what the events mean is in `answer`.
"""

from __future__ import annotations

from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import ChatChunk
from nbagent.contracts.errors import ModelError
from nbagent.providers.failures import start_of
from nbagent.providers.frames import Sse, bad_answer, clean, load_wire
from nbagent.providers.openai.answer import AnswerFold

_LIFE_SIGNS = frozenset({b"ping", b"heartbeat", b"keepalive", b"keep-alive"})
_BOM = b"\xef\xbb\xbf"


class AnswerReader:
    """From the pieces of a 200 body to chunks: an event stream, or one JSON object."""

    def __init__(self, fold: AnswerFold) -> None:
        self.fold = fold
        self.done = False
        """`[DONE]` was read; what follows does not matter."""
        self.fault: ModelError | None = None
        """What was wrong behind the chunks that were given last; raise it after them, unless the
        answer `stands`."""
        self._events: Sse | None = None
        self._head = bytearray()
        self._is_json = False
        self._saw_event = False

    @property
    def complete(self) -> bool:
        """Whether nothing that matters is still to come."""
        return self.done or self.fold.finished

    def stands(self, *, silent: bool = False) -> bool:
        """Whether the answer is whole, although a fault came now.

        A finish reason ends a text. Calls are run, so they wait for the end of the stream.

        Args:
            silent: the fault is that nothing came any more.
        """
        return self.done or self.fold.stands(silent=silent)

    def feed(self, piece: bytes) -> list[ChatChunk]:
        """The chunks that this piece completes."""
        if self._events is not None:
            return self._take(self._events.feed(piece))
        self._head += piece
        if self._is_json:
            return []
        # The first byte tells, whatever the content type says; keep-alives send blank lines first.
        start = bytes(self._head).removeprefix(_BOM).lstrip()
        if start[:1] in (b"{", b"["):
            self._is_json = True
        elif start and not _BOM.startswith(start):
            self._events = Sse()
            return self._take(self._events.feed(start))
        elif not start:
            self._head.clear()
        return []

    def end(self) -> list[ChatChunk]:
        """The body is over: the chunks still held.

        Raises:
            ModelError: the answer is not one, or was cut off.
        """
        out = self._rest_of_json() if self._is_json else self._rest_of_events()
        if self.fault is not None and not self.stands():
            return out
        if not self._saw_event:
            shown = start_of(self._head)
            raise bad_answer(
                f"neither JSON nor an event stream came{f' ({shown!r})' if shown else ''}"
            )
        if not self.complete:
            raise bad_answer("the stream was cut before the answer was complete")
        if not self.fold.answered:
            raise bad_answer("the stream held no answer", retry=self.fold.had_no_choice)
        self.fold.close(out)
        return out

    def _rest_of_events(self) -> list[ChatChunk]:
        if self._events is None or self.done:
            return []
        try:
            return self._take(self._events.flush())
        except ModelError:
            # Half an event after the end of a text is lost usage, not a lost answer.
            if not self.stands():
                raise
        return []

    def _rest_of_json(self) -> list[ChatChunk]:
        out: list[ChatChunk] = []
        body = bytes(self._head)
        try:
            found = _load(body)
        except ModelError:
            # Chunks without `data:`, or an error object before the events; else it is no JSON.
            if b"\n" not in body.strip():
                raise
            self._events = Sse()
            out = self._take(self._events.feed(body))
            return out + self._rest_of_events()
        self.fold.take_body(found, out)
        self._saw_event = True
        return out

    def _take(self, events: list[tuple[bytes, bytes]]) -> list[ChatChunk]:
        out: list[ChatChunk] = []
        try:
            for at, (name, data) in enumerate(events):
                if self.done:
                    break
                if data.startswith(b"[DONE]"):
                    self.done = self._saw_event = True
                    self._take_after_end(events[at + 1 :])
                    break
                if not data.strip() or name in _LIFE_SIGNS:
                    continue
                found = _load(data)
                if name == b"error" and "error" not in (json_object(found) or {}):
                    found = {"error": found or "an error event without a text"}
                self.fold.take(found, out)
                self._saw_event = True
        except ModelError as error:
            self.fault = error
            if not out:
                raise
            # What came before it, in the same packet, is kept.
        return out

    def _take_after_end(self, events: list[tuple[bytes, bytes]]) -> None:
        """Some gateways send the usage behind `[DONE]`: nothing else of it counts."""
        for _, data in events:
            try:
                found = json_object(_load(data)) or {}
            except ModelError:
                return
            self.fold.take_usage(found.get("usage"))


def _load(data: bytes) -> Any:
    found = load_wire(data)
    return clean(found) if b"\\u" in data else found
