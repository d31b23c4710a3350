"""What every tool host shares: joining hosts, choosing tools by name, answering unknown names.

Owns no tool. A further host is one new module beside `functions` with an `open_hosts`, or an entry
point of an installed package (group `nbagent.tools`); `hosts` finds it by its word.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ErrorInfo, UsageError
from nbagent.contracts.policy import CallPreview, ToolPolicy
from nbagent.contracts.ports import (
    PreparingHost,
    PreviewingHost,
    ToolContext,
    ToolHost,
    ToolOutcome,
)
from nbagent.contracts.records import ToolResult

_MOST_LISTED = 60


def _no_names() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOrder:
    """What a run wants of one host, and what the host may use."""

    words: tuple[str, ...]
    """What was named: the host's own word (`fs`, `mcp:git`) for all, or single tools."""
    project: Path
    """The folder that `@project` is."""
    mounts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """A `files.mounts.Mounts`."""
    skills: tuple[str, ...] = ()
    """Further folders of skills."""
    namespace: Callable[[], Mapping[str, Any]] = _no_names
    """The names of the notebook."""
    policy: ToolPolicy = field(default_factory=ToolPolicy)
    """Limits and isolation that hold, and the person's rules."""
    forbids: Callable[[str, str, Mapping[str, Any]], bool] = lambda tool, host, arguments: False
    """Whether the policies deny a call: a host that looks at many things asks for each of them."""


@runtime_checkable
class HostSource(Protocol):
    """Something that a person may put among the tools and that opens hosts: an MCP server."""

    def open_hosts(self, order: HostOrder) -> Sequence[ToolHost]:
        """The hosts for one run."""
        ...


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that the person or the model most likely meant."""
    names = list(known)
    folded = {re.sub(r"[^a-z0-9]", "", n.lower()): n for n in reversed(names)}
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    if key in folded:
        return folded[key]
    close = difflib.get_close_matches(name, names, 1, 0.5) or [
        folded[k] for k in difflib.get_close_matches(key, folded, 1, 0.6)
    ]
    return close[0] if close else None


def listed(names: Iterable[str]) -> str:
    """The names in one line, a long list cut at its end."""
    names = list(names)
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def unknown_name(name: str, available: Sequence[str]) -> UsageError:
    """The error for a tool name that a person typed wrongly."""
    close = nearest(name, available)
    if close:
        others = f" There are: {listed(available)}" if len(available) > 1 else ""
        return UsageError(f"there is no tool {name!r}; did you mean {close!r}?{others}")
    if not available:
        return UsageError(
            f"there is no tool {name!r}, nor any other; define one with @nbagent.tool, or name "
            "fs, skills, notebook or mcp:NAME"
        )
    return UsageError(f"there is no tool {name!r}; there are: {listed(available)}")


def unknown_tool(name: str, known: Sequence[str]) -> ToolOutcome:
    """The result for a model that called a tool that is not there."""
    close = nearest(name, known)
    message = f"there is no tool {name[:100]!r}"
    if close:
        message += f"; did you mean {close!r}?"
    message += f" Use one of: {listed(known)}" if known else "; answer without tools"
    return ToolOutcome(result=ToolResult.failure(ErrorInfo("E_UNKNOWN_TOOL", message)))


class HostSet:
    """Several hosts as one: lists all their tools and routes each call by its name.

    The first listing refuses two tools of one name. A name that a host adds later and that is
    taken stays with the host that had it, so that a run under way is not lost.

    Args:
        hosts: in the order in which their tools are listed.
        hides: says which tools the model is not shown; for it they are not there.
    """

    def __init__(
        self,
        hosts: Sequence[ToolHost],
        *,
        hides: Callable[[ToolSpec], bool] = lambda spec: False,
    ) -> None:
        self._hosts = tuple(hosts)
        self._hides = hides
        self._owners: dict[str, ToolHost] = {}
        self._specs: dict[str, ToolSpec] = {}
        self.offered: tuple[ToolSpec, ...] = ()
        """All that the hosts listed last, the hidden ones too."""
        self._listed_once = False

    @property
    def name(self) -> str:
        """The hosts' names, joined."""
        return "+".join(self.host_names)

    def visible_tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools of all hosts, in the order of the hosts.

        Raises:
            UsageError: two hosts offer a tool of the same name (first listing only).
        """
        return self._list(context, strict=not self._listed_once)

    def _list(self, context: ToolContext, *, strict: bool) -> list[ToolSpec]:
        owners: dict[str, ToolHost] = {}
        offers = [(host, spec) for host in self._hosts for spec in host.visible_tools(context)]
        self.offered = tuple(spec for _, spec in offers)
        offers = [(host, spec) for host, spec in offers if not self._hides(spec)]
        for host, spec in offers:
            first = owners.setdefault(spec.name, host)
            if first is not host and strict:
                raise UsageError(
                    f"the tool hosts {first.name!r} and {host.name!r} both have a tool "
                    f"{spec.name!r}; rename one of them or leave it out with --tools"
                )
            if self._owners.get(spec.name) is host:
                owners[spec.name] = host
        self._owners, self._listed_once = owners, True
        kept = [spec for host, spec in offers if owners[spec.name] is host]
        self._specs = {spec.name: spec for spec in kept}
        return kept

    def spec_of(self, name: str, context: ToolContext | None = None) -> ToolSpec | None:
        """The tool as it was last listed; with a context an unknown one is looked for once more."""
        if name not in self._specs and context is not None:
            self._list(context, strict=False)
        return self._specs.get(name)

    @property
    def host_names(self) -> tuple[str, ...]:
        """The hosts' names."""
        return tuple(host.name for host in self._hosts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the hosts want the person to know by now."""
        return tuple(text for host in self._hosts for text in getattr(host, "warnings", ()))

    @property
    def prepares(self) -> bool:
        """Whether a host has to get ready before the first listing."""
        return any(isinstance(host, PreparingHost) for host in self._hosts)

    async def prepare(self, context: ToolContext) -> None:
        """Let each host get ready that has to. On the engine's loop."""
        for host in self._hosts:
            if isinstance(host, PreparingHost):
                await host.prepare(context)

    async def preview(self, call: ToolCall, context: ToolContext) -> CallPreview:
        """What the tool's host says about a call."""
        owner, spec = self._owners.get(call.name), self._specs.get(call.name)
        if owner is None or spec is None:
            return CallPreview()
        if isinstance(owner, PreviewingHost):
            return await owner.preview(call, context)
        return CallPreview(ruling=spec.traits.ruling)

    async def execute(
        self, call: ToolCall, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        """Run one call on the host that has the tool."""
        if not self._listed_once:
            self._list(context, strict=False)
        # Not looked for anew: what was not there when the call was reviewed does not run.
        owner = self._owners.get(call.name)
        if owner is None:
            return unknown_tool(call.name, tuple(self._owners))
        return await owner.execute(call, context, cancel)
