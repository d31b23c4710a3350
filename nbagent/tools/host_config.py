"""Configuration of one tool host for one run, and the port of objects that open hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.ports import PatchGuard, ToolHost


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """Tools that a run takes from one host, and the things that the host may use."""

    names: tuple[str, ...]
    """Names of single tools, or of the host itself (`fs`, `mcp:git`) for all its tools."""
    project: Path
    """Folder of the mount `@project`."""
    mounts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """A `files.mounts.Mounts`."""
    skills: Any = None
    """A `skill_folders.FoundSkills` if the skills were searched already."""
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    """Limits, isolation and the person's rules."""
    is_denied: Callable[[str, str, Mapping[str, Any]], bool] = lambda tool, host, arguments: False
    """True if the policies deny a call; `fs.list` and `fs.search` ask for each path they visit."""
    guard: PatchGuard | None = None
    """Protects files that may change only by checked updates, such as a workflow's document."""


class HostSource(Protocol):
    """An object among `tools=` that opens hosts of its own."""

    def open_hosts(self, config: HostConfig) -> Sequence[ToolHost]: ...
