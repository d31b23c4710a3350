"""RunRequest: everything a person asked for one run. Every door makes one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nbagent.contracts.messages import Message, Part
from nbagent.contracts.records import Case
from nbagent.session.approval import OnApproval
from nbagent.settings.options import RunOptions

if TYPE_CHECKING:
    pass


Kind = Literal["start", "continue", "resume", "fork"]
"""Enters the history when a run goes on after an unfinished answer and nobody said anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a person wants done: the three doors all end in this."""

    prompt: str | None = None
    parts: tuple[Part, ...] = ()
    """The prompt with its images; empty when it is text only."""
    template: str | None = None
    messages: tuple[Message, ...] = ()
    """Of the person's own making, before the prompt."""
    options: RunOptions = field(default_factory=RunOptions)
    tools: tuple[object, ...] | None = None
    """Python functions, MCP servers; None: by name, from the options, the parent, the notebook."""
    on_approval: OnApproval | None = None
    kind: Kind = "start"
    parent_id: str | None = None
    fork_turn: str | None = None
    """The turn that is asked anew."""
    edits: Mapping[str, object] = field(default_factory=dict[str, object])
    """What a fork changes before its turn: results by the id of their call, answers by turn."""
    drop: tuple[str, ...] = ()
    """What it leaves out: turns and calls, by their ids."""
    defer_calls: bool = False
    """The calls of its answer wait until the run is resumed: a person chooses between answers."""
    dry_run: bool = False
    """Only to be looked at: a key may be missing."""
    case: Case | None = None
    """Of a batch, which it answers."""
    dropped: tuple[str, ...] = ()
    """Options of the run before that do not go on, also where `options` says nothing."""
    notices: tuple[str, ...] = ()
    """What the person should know of it, beside what is found here."""
