"""What the engine is given for one run: values, ports, and where the conversation stands."""

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
    """As it begins: phase Running, `messages` are the words it adds, no turns."""
    history: tuple[Message, ...] = ()
    """The conversation before this run's own messages."""
    client: ChatClient
    model: str
    """The provider's own name of the model."""
    host: ToolHost
    composer: Composer
    context: ToolContext
    """Without turn and call; the engine fills these in."""
    cancel: CancelToken
    approver: Approver | None = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of ChatRequest that the person set: `temperature`, `tool_choice`, …"""
    stream: bool = True
    first_index: int = 1
    """Index of the first turn; a child goes on counting where its parent stood."""
    phase_before: Phase = "Running"
    """Of the run that this one goes on with."""
    requests_before: int = 0
    """Requests since the person's last words, before this run."""
    price: Callable[[Usage, str], Cost | None] = lambda usage, model: None
    """What one response cost, from its usage and the model that answered."""
    trim: bool = False
    """Whether old tool results may be sent shortened once a request was too large."""
    before: EngineTurn | None = None
    """The last turn that asked this model before this run; in a fork, the one asked anew."""
    context_tokens: Callable[[], int | None] = lambda: None
    """What the model takes, as far as it is known without asking. Only called after a refusal."""
    smaller: str = ""
    """How else the person gets to a smaller request, as a sentence."""
    notices: list[str] = field(default_factory=list[str])
    """What others (the store, a detached sink) told the person; ends up in the record."""
