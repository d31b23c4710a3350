"""What every tool host shares: joining hosts, choosing tools by name, answering unknown names.

Owns no tool. A further host (files, skills, notebook, mcp) is one new module beside `functions`;
the session hands it to `HostSet`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ErrorInfo, UsageError
from nbagent.contracts.ports import ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.records import ToolResult

_MOST_LISTED = 60


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


def select(names: str | Sequence[str] | None, available: Iterable[str]) -> tuple[str, ...]:
    """The tools that `--tools none | all | names` means, in the order written.

    Args:
        names: `None` and `"all"` mean all of them, `"none"` and an empty list mean no tool; else
            names, as a list or separated by commas or spaces.
        available: the names that there are.

    Raises:
        UsageError: a name is unknown; the message names the nearest.
    """
    there = tuple(available)
    if names is None:
        return there
    wanted = re.split(r"[\s,]+", names.strip()) if isinstance(names, str) else list(names)
    wanted = [name for name in wanted if name]
    if wanted == ["all"] and "all" not in there:
        return there
    if wanted == ["none"] and "none" not in there:
        return ()
    for name in wanted:
        if name not in there:
            raise unknown_name(name, there)
    return tuple(dict.fromkeys(wanted))


def unknown_name(name: str, available: Sequence[str]) -> UsageError:
    """The error for a tool name that a person typed wrongly."""
    close = nearest(name, available)
    if close:
        others = f" There are: {listed(available)}" if len(available) > 1 else ""
        return UsageError(f"there is no tool {name!r}; did you mean {close!r}?{others}")
    if not available:
        return UsageError(
            f"there is no tool {name!r}, nor any other; define one with @nbagent.tool"
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
    """

    def __init__(self, hosts: Sequence[ToolHost]) -> None:
        self._hosts = tuple(hosts)
        self._owners: dict[str, ToolHost] = {}
        self._listed_once = False

    @property
    def name(self) -> str:
        """The hosts' names, joined."""
        return "+".join(host.name for host in self._hosts)

    def visible_tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools of all hosts, in the order of the hosts.

        Raises:
            UsageError: two hosts offer a tool of the same name (first listing only).
        """
        return self._list(context, strict=not self._listed_once)

    def _list(self, context: ToolContext, *, strict: bool) -> list[ToolSpec]:
        owners: dict[str, ToolHost] = {}
        offers = [(host, spec) for host in self._hosts for spec in host.visible_tools(context)]
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
        return [spec for host, spec in offers if owners[spec.name] is host]

    async def execute(
        self, call: ToolCall, context: ToolContext, cancel: CancelToken
    ) -> ToolOutcome:
        """Run one call on the host that has the tool."""
        if call.name not in self._owners:
            self._list(context, strict=False)
        owner = self._owners.get(call.name)
        if owner is None:
            return unknown_tool(call.name, tuple(self._owners))
        return await owner.execute(call, context, cancel)
