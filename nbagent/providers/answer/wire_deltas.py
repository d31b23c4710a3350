"""What a wire's parser yields: deltas as the server writes them.

Text may still hold reasoning between tags, calls have the server's keys and the names of the wire.
`answer_pipe` turns them into the deltas of `contracts`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nbagent.contracts.deltas import ReasoningPiece, TextPiece
from nbagent.contracts.errors import ModelError
from nbagent.contracts.model import FinishReason, Usage
from nbagent.providers.answer.images import SentFile


@dataclass(slots=True)
class Picture:
    """An image of the answer, after the text before it; it may be left out."""

    sent: SentFile


@dataclass(slots=True)
class CallPart:
    """A call or a fragment of one."""

    key: object
    """The call's index or the id of its item; None if the server sends neither; a new `object()`
    for a call that arrives whole."""
    id: str = ""
    name: str = ""
    """Its name on the wire."""
    arguments: str = ""
    extra: dict[str, Any] | None = None
    """Vendor fields that must be sent back with the call."""


@dataclass(slots=True)
class CallArguments:
    """All arguments of a call; they replace its fragments."""

    key: object
    arguments: str


@dataclass(slots=True)
class ReasoningField:
    """Name of the field that the reasoning comes in, if a wire has several.

    It goes back in the same. With such a field a tag in the text is text.
    """

    name: str


@dataclass(slots=True)
class Facts:
    """Facts about the answer. It has begun, even if nothing else came."""

    model: str = ""
    """Name of the model that ran, as the server reports it."""
    raw: Mapping[str, Any] | None = None
    """Fields that the provider needs back with the message."""
    vendor: Mapping[str, Any] | None = None
    """Further fields for the record; never sent back."""
    vendor_without: Collection[str] = ()
    """Names in `vendor` that are left out."""
    begun: bool = True
    """False if no part of an answer has come yet."""
    refused: bool = False
    """The model refused to answer."""
    unread: Sequence[str] = ()
    """Names of fields that hold something, in a form that no wire reads."""
    no_host: bool = False
    """The gateway says that no host answered (OpenRouter: `choices` is null). Worth a retry."""


@dataclass(slots=True)
class UsageReport:
    """Counts of the answer. A later one replaces an earlier one."""

    usage: Usage | None


@dataclass(slots=True)
class Finish:
    """The finish reason; None for an unknown word."""

    reason: FinishReason | None
    word: str = ""


@dataclass(slots=True)
class Continuation:
    """Parameters to add to the same request to get the rest of the answer."""

    params: dict[str, Any]


@dataclass(slots=True)
class ServerFault:
    """An error object inside a 200 answer."""

    error: ModelError


@dataclass(slots=True)
class Restart:
    """Everything before is void: the server begins its answer again."""


@dataclass(slots=True)
class LastEvent:
    """The wire's last event; the rest is ignored."""


WireDelta = (
    TextPiece
    | ReasoningPiece
    | Picture
    | CallPart
    | CallArguments
    | ReasoningField
    | Facts
    | UsageReport
    | Finish
    | Continuation
    | ServerFault
    | Restart
    | LastEvent
)


class Progress(Protocol):
    """What a parser may know of the answer so far."""

    @property
    def has_text(self) -> bool:
        """True if text has come, or a tag that may still become text."""
        ...

    @property
    def has_reasoning(self) -> bool:
        """True if reasoning has come."""
        ...

    @property
    def has_calls(self) -> bool:
        """True if a call has come."""
        ...

    @property
    def image_number(self) -> int | None:
        """Number of the last picture in the message, from 0; None if it was left out."""
        ...

    @property
    def finished(self) -> bool:
        """True if a finish reason has come."""
        ...

    @property
    def raw_fields(self) -> Mapping[str, Any]:
        """Fields for `raw` so far, also of earlier requests for the same answer."""
        ...
