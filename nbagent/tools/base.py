"""What every tool host shares: joining hosts, choosing tools by name, answering unknown names.

Owns no tool. A further host is one new module beside `functions` with an `open_hosts`, or an entry
point of an installed package (group `nbagent.tools`); `hosts` finds it by its word.
"""

from __future__ import annotations

import asyncio
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError
from nbagent.contracts.policy import CallPreview, ToolPolicy
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolHost, ToolOutcome
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
    skills: Any = None
    """A `skill_folders.FoundSkills`, where the word `skills` was named."""
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


def unknown_call(name: str, known: Sequence[str]) -> ToolError:
    """The error for a model that called a tool that is not there."""
    close = nearest(name, known)
    message = f"there is no tool {name[:100]!r}"
    if close:
        message += f"; did you mean {close!r}?"
    message += f" Use one of: {listed(known)}" if known else "; answer without tools"
    return ToolError(message, code="E_UNKNOWN_TOOL")


class HostSet:
    """Several hosts as one: lists all their tools and routes each call by its name.

    The first listing refuses two tools of one name. A name that a host adds later and that is
    taken stays with the host that had it, so that a run under way is not lost.

    Args:
        hosts: in the order in which their tools are listed.
        hides: why the model is not shown a tool; empty where it is.
    """

    def __init__(
        self, hosts: Sequence[ToolHost], *, hides: Callable[[ToolSpec], str] = lambda spec: ""
    ) -> None:
        self._hosts = tuple(hosts)
        self._hides = hides
        self._owners: dict[str, ToolHost] = {}
        self.offered: tuple[ToolSpec, ...] = ()
        """All that the hosts listed last, the hidden ones too."""
        self._listed_once = False

    @property
    def name(self) -> str:
        """The hosts' names, joined."""
        return "+".join(self.host_names)

    @property
    def host_names(self) -> tuple[str, ...]:
        """The hosts' names."""
        return tuple(host.name for host in self._hosts)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the hosts want the person to know by now."""
        return tuple(text for host in self._hosts for text in getattr(host, "warnings", ()))

    @property
    def lists_at_once(self) -> bool:
        """Whether no host waits for anything when it lists its tools."""
        return all(getattr(host, "lists_at_once", False) for host in self._hosts)

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools of all hosts, in the order of the hosts, without the hidden ones.

        Raises:
            UsageError: two hosts offer a tool of the same name (first listing only).
            NbagentError: a host cannot be used.
        """
        if self._listed_once or len(self._hosts) == 1:
            listings = [await host.tools(context) for host in self._hosts]
        else:  # servers start side by side
            listings = await asyncio.gather(*(host.tools(context) for host in self._hosts))
        offers = [
            (host, spec)
            for host, specs in zip(self._hosts, listings, strict=True)
            for spec in specs
        ]
        owners: dict[str, ToolHost] = {}
        for host, spec in offers:
            first = owners.setdefault(spec.name, host)
            if first is not host and not self._listed_once:
                raise UsageError(
                    f"the tool hosts {first.name!r} and {host.name!r} both have a tool "
                    f"{spec.name!r}; rename one of them or leave it out with --tools"
                )
            if self._owners.get(spec.name) is host:
                owners[spec.name] = host
        self._owners, self._listed_once = owners, True
        kept = [spec for host, spec in offers if owners[spec.name] is host]
        self.offered = tuple(kept)
        return [spec for spec in kept if not self._hides(spec)]

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call on the host that has the tool.

        Raises:
            ToolError: no host has it, or the call cannot be made.
        """
        owner = self._owners.get(call.name)
        if owner is None:
            await self.tools(context)  # it may be new
            owner = self._owners.get(call.name)
        if owner is None:
            shown = [spec.name for spec in self.offered if not self._hides(spec)]
            raise unknown_call(call.name, shown)
        spec = next(spec for spec in self.offered if spec.name == call.name)
        if rule := self._hides(spec):
            return _denied(spec, call, rule)
        return await owner.prepare(call, context)


def _denied(spec: ToolSpec, call: ToolCall, rule: str) -> PreparedCall:
    """A call of a tool that the model is not shown: no host sees it."""
    error = ErrorInfo("E_DENIED", f"the policy denies this call: {rule}")

    async def refuse(context: ToolContext) -> ToolOutcome:
        return ToolOutcome(result=ToolResult.failure(error))

    preview = CallPreview(ruling="deny", firm=True, why=rule)
    return PreparedCall(spec=spec, arguments=call.arguments or {}, preview=preview, run=refuse)
