"""Deltas: the parts of one answer, from a client to the engine, in the order in which they come.

Values only. `answer.Answer` adds them up; the last one is an `AnswerEnd` or a `WholeAnswer`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.corrections import AnswerRestarted, CallCorrected, TextCorrected
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.model import (
    CallDelta,
    ChatResponse,
    ClientNotice,
    FinishReason,
    ResponseMeta,
    Usage,
)


@dataclass(slots=True)
class TextPiece:
    """A piece of the text."""

    text: str


@dataclass(slots=True)
class ReasoningPiece:
    """A piece of the reasoning."""

    text: str


@dataclass(slots=True)
class ImagePiece:
    """A picture of the answer, after the text before it."""

    image: ImagePart


@dataclass(slots=True)
class CallEnd:
    """A call is complete."""

    index: int
    id: str
    extra: dict[str, Any] | None = None
    """Vendor fields that must be sent back with the call."""
    is_repeat: bool = False
    """The server sent the same call before; it counts once."""


@dataclass(slots=True)
class AnswerEnd:
    """The answer is complete."""

    finish_reason: FinishReason = "stop"
    model: str = ""
    usage: Usage | None = None
    raw: dict[str, Any] | None = None
    """Vendor data to send back with the message."""
    meta: ResponseMeta = field(default_factory=ResponseMeta)


@dataclass(slots=True)
class WholeAnswer:
    """The complete answer of a client that has it as a value: a recording, another package.

    It replaces the pieces that came before.
    """

    response: ChatResponse


Delta = (
    TextPiece
    | ReasoningPiece
    | CallDelta
    | CallEnd
    | ImagePiece
    | TextCorrected
    | CallCorrected
    | AnswerRestarted
    | ClientNotice
    | AnswerEnd
    | WholeAnswer
)
