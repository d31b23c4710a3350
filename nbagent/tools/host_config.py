"""What a run wants of one tool host, and the port of things that open hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.ports import PatchGuard, ToolHost


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """What a run wants of one host, and what the host may use."""

    words: tuple[str, ...]
    """What was named: the host's own word (`fs`, `mcp:git`) for all, or single tools."""
    project: Path
    """The folder that `@project` is."""
    mounts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """A `files.mounts.Mounts`."""
    skills: Any = None
    """A `skill_folders.FoundSkills`, where the word `skills` was named."""
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    """Limits and isolation that hold, and the person's rules."""
    forbids: Callable[[str, str, Mapping[str, Any]], bool] = lambda tool, host, arguments: False
    """Whether the policies deny a call: a host that looks at many things asks for each of them."""
    guard: PatchGuard | None = None
    """Keeps a file that changes by checked updates only."""


class HostSource(Protocol):
    """Something that a person may put among the tools and that opens hosts: an MCP server."""

    def open_hosts(self, order: HostOrder) -> Sequence[ToolHost]: ...
