"""Input of the engine for one run: values, ports, and the conversation so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.messages import Message
from nbagent.contracts.model import Usage
from nbagent.contracts.ports import Approver, ChatClient, Composer, Cost, ToolHost
from nbagent.contracts.records import EngineTurn, Phase, RunRecord
from nbagent.contracts.tools import ToolContext


@dataclass(slots=True, kw_only=True)
class EnginePlan:
    """One run, ready to start."""

    run: RunRecord
    """The record at the start: phase Running, `messages` are those it adds, no turns."""
    history: tuple[Message, ...] = ()
    """The conversation before this run's own messages."""
    client: ChatClient
    model: str
    """The provider's own name of the model."""
    host: ToolHost
    composer: Composer
    context: ToolContext
    """Without turn and call; the engine adds them."""
    cancel: CancelToken
    approver: Approver | None = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of ChatRequest that the person set: `temperature`, `tool_choice`, …"""
    stream: bool = True
    first_index: int = 1
    """Index of the first turn; a child continues its parent's numbers."""
    phase_before: Phase = "Running"
    """Phase of the run that this one continues."""
    requests_before: int = 0
    """Requests since the person's last prompt, before this run."""
    price: Callable[[Usage, str], Cost | None] = lambda usage, model: None
    """Computes the cost of one response from its usage and the model that answered."""
    trim: bool = False
    """True if old tool results may be sent trimmed after a request was too large."""
    previous_turn: EngineTurn | None = None
    """Last turn before this run that used this model; in a fork, the turn that it repeats."""
    context_tokens: Callable[[], int | None] = lambda: None
    """Returns the model's context length if it is known without a request. Called after a refusal
    only."""
    overflow_advice: str = ""
    """Sentence with another way to a smaller request; may be empty."""
    notices: list[str] = field(default_factory=list[str])
    """Texts for the person from others (the store, a detached sink); stored in the record."""
