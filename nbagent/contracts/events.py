"""Events that the engine yields, in the order in which they happen.

The engine continues only after these are committed to the store: RunStarted, MessagesAdded,
ResponseReceived, ToolCallFinished, TurnFinished, RunFinished. The others are not stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nbagent.contracts.approval import Question
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.records import EngineTurn, RunRecord, ToolRun, TurnRequest


@dataclass(frozen=True, slots=True)
class BaseEvent:
    """Base of all events."""


@dataclass(frozen=True, slots=True)
class RunStarted(BaseEvent):
    """A run begins. `run.messages` are the person's messages that it adds; in a workflow directive
    and brief come before the prompt."""

    run: RunRecord


@dataclass(frozen=True, slots=True)
class TurnStarted(BaseEvent):
    """A request is about to be sent. Repeated if it is sent again with shortened tool results."""

    turn_id: str
    request: TurnRequest
    messages: tuple[Message, ...]
    """The new messages in it."""
    system_prompt: str
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class TextDelta(BaseEvent):
    """A fragment of the answer."""

    turn_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(BaseEvent):
    """A fragment of the model's reasoning."""

    turn_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta(BaseEvent):
    """A fragment of a call. `call_index` counts the calls of the response from 0."""

    turn_id: str
    call_index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class TurnCorrected(BaseEvent):
    """The server replaces parts of its answer. `restarted` voids all of it; None leaves a part."""

    turn_id: str
    restarted: bool = False
    text: str | None = None
    """The whole text so far."""
    reasoning: str | None = None
    """The whole reasoning so far."""
    call: ToolCallDelta | None = None
    """A call with all its arguments so far."""


@dataclass(frozen=True, slots=True)
class Retrying(BaseEvent):
    """A request failed and is retried after a wait."""

    turn_id: str
    attempt: int
    wait_s: float
    error: ErrorInfo | None
    text: str


@dataclass(frozen=True, slots=True)
class Waiting(BaseEvent):
    """The run waits for something: a free kernel, a rate limit. Empty `text`: the wait is over."""

    turn_id: str | None
    text: str
    wait_s: float = 0.0
    """0 if unknown."""


@dataclass(frozen=True, slots=True)
class ResponseReceived(BaseEvent):
    """A response with calls is complete. `turn.tool_runs` are the calls that start now.

    Tools run only after this is committed: if the process dies during a call, the store knows
    that the call may have happened.
    """

    turn: EngineTurn
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    """Like `system_prompt`, the content behind a hash in the turn's request."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested(BaseEvent):
    """A person is asked about a call. The run waits for the answer."""

    turn_id: str
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    question: Question


@dataclass(frozen=True, slots=True)
class ToolCallStarted(BaseEvent):
    """A tool starts."""

    turn_id: str
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    display_name: str = ""
    """Name of the tool on cards; empty: `tool_name`."""


@dataclass(frozen=True, slots=True)
class ToolProgress(BaseEvent):
    """A tool reports progress. `fraction` is 0–1; None if unknown."""

    turn_id: str
    tool_call_id: str
    text: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class ToolCallFinished(BaseEvent):
    """A call has its result. `pending` calls of the turn still run."""

    run_id: str
    turn_id: str
    tool_run: ToolRun
    pending: int


@dataclass(frozen=True, slots=True)
class TurnFinished(BaseEvent):
    """A turn is over. `messages` are all that it added: the assistant's, then the tools'.

    `system_prompt` and `tools` are the contents behind the hashes in its request.
    """

    turn: EngineTurn
    messages: tuple[Message, ...]
    system_prompt: str
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class MessagesAdded(BaseEvent):
    """Messages enter the history between two turns: directives and briefs of a workflow."""

    run_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Notice(BaseEvent):
    """Something the person should know."""

    level: Literal["info", "warning", "error"]
    text: str
    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunFinished(BaseEvent):
    """The run is over; the record is complete."""

    run: RunRecord


Event = (
    RunStarted
    | TurnStarted
    | TextDelta
    | ReasoningDelta
    | ToolCallDelta
    | TurnCorrected
    | Retrying
    | Waiting
    | ResponseReceived
    | ApprovalRequested
    | ToolCallStarted
    | ToolProgress
    | ToolCallFinished
    | TurnFinished
    | MessagesAdded
    | Notice
    | RunFinished
)
"""Every event. Handlers `match` over it and end in `assert_never`, so that pyright reports a
handler that forgot a new event."""
