"""One accumulator of an answer: deltas go in, the partial or the complete response comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, assert_never

from nbagent.contracts.corrections import AnswerRestarted, CallCorrected, TextCorrected
from nbagent.contracts.deltas import (
    AnswerEnd,
    CallEnd,
    Delta,
    ImagePiece,
    ReasoningPiece,
    TextPiece,
    WholeAnswer,
)
from nbagent.contracts.messages import ImagePart, Message, Part, TextPart, ToolCall, parse_arguments
from nbagent.contracts.model import CallDelta, ChatResponse, ClientNotice

_MAX_PIECES = 4_096
"""Pieces of a call's arguments that are kept apart."""


@dataclass(slots=True)
class _Call:
    """A call whose arguments arrive in pieces."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] | None = None
    is_repeat: bool = False

    def add(self, piece: str) -> None:
        """Add a piece of the arguments; many small texts would take 20 times their size."""
        self.arguments.append(piece)
        if len(self.arguments) > _MAX_PIECES:
            self.arguments = ["".join(self.arguments)]

    def build(self) -> ToolCall:
        raw = "".join(self.arguments)
        arguments = parse_arguments(raw)
        return ToolCall(
            id=self.id, name=self.name, arguments=arguments, arguments_raw=raw, extra=self.extra
        )


class Answer:
    """The answer so far."""

    def __init__(self) -> None:
        self._end: AnswerEnd | None = None
        self._whole: ChatResponse | None = None
        self._clear()

    def _clear(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._images: list[tuple[int, ImagePart]] = []
        """Pictures, each with the number of text pieces before it."""
        self._calls: dict[int, _Call] = {}

    @property
    def is_complete(self) -> bool:
        """True if the last delta has come."""
        return self._end is not None or self._whole is not None

    def add(self, delta: Delta) -> None:
        """Add one delta."""
        match delta:
            case TextPiece(text):
                self._text.append(text)
            case ReasoningPiece(text):
                self._reasoning.append(text)
            case CallDelta(index, id, name, arguments):
                call = self._calls.setdefault(index, _Call())
                call.id, call.name = call.id or id or "", call.name or name or ""
                call.add(arguments)
            case CallEnd(index, id, extra, is_repeat):
                call = self._calls.setdefault(index, _Call())
                call.id, call.extra, call.is_repeat = id, extra, is_repeat
            case ImagePiece(image):
                self._images.append((len(self._text), image))
            case TextCorrected() | CallCorrected() | AnswerRestarted():
                self._correct(delta)
            case AnswerEnd():
                self._end = delta
            case WholeAnswer(response):
                self._whole = response
            case ClientNotice():
                pass  # a message to the person, no part of the answer
            case _:
                assert_never(delta)

    def _correct(self, correction: TextCorrected | CallCorrected | AnswerRestarted) -> None:
        match correction:
            case TextCorrected(text, reasoning):
                if text is not None:
                    self._text = [text]
                    self._images = [(min(n, 1), image) for n, image in self._images]
                if reasoning is not None:
                    self._reasoning = [reasoning]
            case CallCorrected(index, name, arguments):
                call = self._calls.setdefault(index, _Call())
                call.name = call.name if name is None else name
                if arguments is not None:
                    call.arguments = [arguments]
            case AnswerRestarted():
                self._clear()

    def call_so_far(self, index: int) -> tuple[str, str]:
        """Return name and arguments of a call as they are now."""
        call = self._calls.get(index, _Call())
        return call.name, "".join(call.arguments)

    def response(self) -> ChatResponse | None:
        """Return the complete response; None before the last delta."""
        if self._whole is not None or self._end is None:
            return self._whole
        end = self._end
        calls = tuple(call.build() for call in self._calls.values() if not call.is_repeat)
        return ChatResponse(
            message=self._message(calls, end.raw),
            usage=end.usage,
            model=end.model,
            finish_reason=end.finish_reason,
            meta=end.meta,
        )

    def partial(self, model: str) -> ChatResponse | None:
        """Return a response from the parts that arrived; None if there is none.

        Its finish reason is `error`: calls of an unfinished answer are never run, as their
        arguments may be cut.
        """
        calls = tuple(call.build() for call in self._calls.values() if call.name)
        message = self._message(calls)
        if not (message.content or message.reasoning or calls):
            return None
        return ChatResponse(message=message, model=model, finish_reason="error")

    def _message(self, calls: tuple[ToolCall, ...], raw: dict[str, Any] | None = None) -> Message:
        return Message(
            role="assistant",
            content=self._parts(),
            tool_calls=calls,
            reasoning="".join(self._reasoning) or None,
            raw=raw,
        )

    def _parts(self) -> tuple[Part, ...]:
        """Return text and pictures in the order in which they came."""
        parts: list[Part] = []
        start = 0
        for end, image in [*self._images, (len(self._text), None)]:
            if text := "".join(self._text[start:end]):
                parts.append(TextPart(text=text))
            if image is not None:
                parts.append(image)
            start = end
        return tuple(parts)
