"""Everything the engine tells, in the order in which it happens.

Committed before the engine goes on: RunStarted, MessagesAdded, ResponseReceived,
ToolCallFinished, TurnFinished, RunFinished. The others pass by and are not kept.
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
class Event:
    """Anything that the engine tells."""


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """A run begins. `run.messages` has the person's words that it adds."""

    run: RunRecord


@dataclass(frozen=True, slots=True)
class TurnStarted(Event):
    """A request is about to leave; once more when it leaves again with shortened tool results."""

    turn_id: str
    request: TurnRequest
    messages: tuple[Message, ...]
    """The new messages in it."""
    system_prompt: str
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class TextDelta(Event):
    """A fragment of the answer."""

    turn_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(Event):
    """A fragment of what the model thinks aloud."""

    turn_id: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta(Event):
    """A fragment of a call. `call_index` counts the calls of the response from 0."""

    turn_id: str
    call_index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Retrying(Event):
    """A request failed and is made again after a wait."""

    turn_id: str
    attempt: int
    wait_s: float
    error: ErrorInfo | None
    text: str


@dataclass(frozen=True, slots=True)
class Waiting(Event):
    """The run waits for something: a free kernel, a rate limit. No text: no longer."""

    turn_id: str | None
    text: str
    wait_s: float = 0.0
    """0 when nobody knows."""


@dataclass(frozen=True, slots=True)
class ResponseReceived(Event):
    """A response with calls is whole. `turn.tool_runs` says which of them will start now.

    Once this is committed the tools may run.
    """

    turn: EngineTurn
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    """What the hashes of the turn's request stand for."""


@dataclass(frozen=True, slots=True)
class ApprovalRequested(Event):
    """A person is asked about a call. The run waits for the answer."""

    turn_id: str
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    question: Question


@dataclass(frozen=True, slots=True)
class ToolCallStarted(Event):
    """A tool begins to work."""

    turn_id: str
    tool_call_id: str
    tool_name: str
    args: dict[str, Any]
    display_name: str = ""
    """What cards call the tool; empty: its name."""


@dataclass(frozen=True, slots=True)
class ToolProgress(Event):
    """A tool says how far it is. `fraction` is 0–1 when it knows."""

    turn_id: str
    tool_call_id: str
    text: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class ToolCallFinished(Event):
    """A call has its result. `pending` calls of the turn are still at work."""

    run_id: str
    turn_id: str
    tool_run: ToolRun
    pending: int


@dataclass(frozen=True, slots=True)
class TurnFinished(Event):
    """A turn is over. `messages` are all that it added: the assistant's, then the tools'.

    `system_prompt` and `tools` are what its request's hashes stand for.
    """

    turn: EngineTurn
    messages: tuple[Message, ...]
    system_prompt: str
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class MessagesAdded(Event):
    """Messages enter the history between two turns: directives and briefs of a workflow."""

    run_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """Something the person should know."""

    level: Literal["info", "warning", "error"]
    text: str
    turn_id: str | None = None


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The run is over; the record is whole."""

    run: RunRecord
