"""RunRequest: everything a user asked for in one run. Magic, panel and Python all make one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from nbagent.contracts.messages import Message, Part
from nbagent.contracts.records import Case
from nbagent.contracts.secrets import KeySource
from nbagent.providers.address import origin
from nbagent.providers.default_model import with_provider
from nbagent.session.approval import OnApproval
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import provider_of

Kind = Literal["start", "continue", "resume", "fork"]
"""How a run relates to the run before it; part of its record."""


@dataclass(frozen=True, slots=True)
class ServerKey:
    """A key of a function, and the server that it is for. It is sent to no other one."""

    source: KeySource
    model: str
    base_url: str | None

    def for_settings(self, run: Settings, usual: Settings) -> KeySource | None:
        """Return the function if a run with these settings asks this server; else None.

        Args:
            run: the settings of the run.
            usual: those of every run; their address is that of a key given without one.
        """
        if run.model is None:
            return None
        same_provider = provider_of(with_provider(run.model)) == provider_of(self.model)
        same_address = origin(run.base_url) == origin(self.base_url or usual.base_url)
        return self.source if same_provider and same_address else None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One request for a run, from the magic, the panel or Python."""

    prompt: str | None = None
    parts: tuple[Part, ...] = ()
    """The prompt with its images and files; empty if it is text only."""
    template: str | None = None
    messages: tuple[Message, ...] = ()
    """Messages that the person wrote themselves; they come before the prompt."""
    options: RunOptions = field(default_factory=RunOptions)
    tools: tuple[object, ...] | None = None
    """Python functions and MCP servers; None: tools by name (options, parent run, notebook)."""
    on_approval: OnApproval | None = None
    api_key: ServerKey | None = None
    kind: Kind = "start"
    parent_id: str | None = None
    fork_turn: str | None = None
    """Id of the turn that a fork repeats."""
    edits: Mapping[str, object] = field(default_factory=dict[str, object])
    """Changes before the forked turn: results by call id, answers by turn id."""
    drop: tuple[str, ...] = ()
    """Ids of turns and calls that a fork leaves out."""
    defer_calls: bool = False
    """The tool calls of the answer wait until the run is resumed, so that a person can first choose
    between several answers."""
    dry_run: bool = False
    """Nothing is sent, so a missing key is no error."""
    case: Case | None = None
    """Case of a batch that this run answers."""
    not_inherited: tuple[str, ...] = ()
    """Options of the parent run that are not inherited, even if `options` does not set them."""
    notices: tuple[str, ...] = ()
    """Notices for the person, in addition to those of `prepare_run`."""
