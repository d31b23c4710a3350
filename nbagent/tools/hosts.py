"""What every tool host shares: names of tools, several hosts as one, and which host a word means.

Owns no tool. A further host is one new module here with an `open_hosts` and a row in `BUILT_IN`, or
an entry point of an installed package (group `nbagent.tools`). Only the module of a host that was
asked for is imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.errors import ErrorInfo, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.tools.host_config import HostOrder, HostSource
from nbagent.tools.mcp.server import McpServer
from nbagent.tools.tool_names import BUILT_IN, SKILL_TOOLS, checked_name, unknown_call

ENTRY_POINT_GROUP = "nbagent.tools"
_WORDS = ("fs", "skills", "notebook", "mcp")










class HostSet:
    """Several hosts as one: lists all their tools and routes each call by its name.

    A name belongs to the host that listed it first. The first listing refuses a name that is none
    or that is listed twice; later such tools are left out, so that a run under way is not lost.
    `hides` says why the model is not shown a tool; nothing where it is.
    """

    def __init__(
        self, hosts: Sequence[ToolHost], *, hides: Callable[[ToolSpec], str] = lambda spec: ""
    ) -> None:
        self._hosts = tuple(hosts)
        self._hides = hides
        self._owners: dict[str, ToolHost] = {}
        self._offered: dict[str, ToolSpec] = {}
        self._listed_once = False

    @property
    def name(self) -> str:
        return "+".join(self.host_names)

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self._hosts)

    @property
    def offered(self) -> tuple[ToolSpec, ...]:
        """All that the hosts listed last, the hidden ones too."""
        return tuple(self._offered.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the hosts want the person to know by now."""
        return tuple(text for host in self._hosts for text in getattr(host, "warnings", ()))

    @property
    def lists_at_once(self) -> bool:
        """Whether no host waits for anything when it lists its tools."""
        return all(getattr(host, "lists_at_once", False) for host in self._hosts)

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools of all hosts, in the order of the hosts, without the hidden ones."""
        if self._listed_once or len(self._hosts) == 1:
            listings = [await host.tools(context) for host in self._hosts]
        else:  # servers start side by side
            listings = await asyncio.gather(*(host.tools(context) for host in self._hosts))
        self._offered = {
            spec.name: spec
            for host, specs in zip(self._hosts, listings, strict=True)
            for spec in specs
            if self._owner(spec.name, host) is host
        }
        self._listed_once = True
        return [spec for spec in self.offered if not self._hides(spec)]

    def _owner(self, name: str, host: ToolHost) -> ToolHost | None:
        """The host that has a name which this one lists; None for what is no name."""
        owner = self._owners.get(name)
        if owner is None:
            try:
                checked_name(name, host.name)
            except UsageError as error:
                if self._listed_once:
                    return None
                raise UsageError(f"the tool host {host.name!r}: {error.message}") from None
            self._owners[name] = host
            return host
        if owner is not host and not self._listed_once:
            raise UsageError(
                f"the tool hosts {owner.name!r} and {host.name!r} both have a tool {name!r}; "
                "rename one of them or leave it out with --tools"
            )
        return owner

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call on the host that has the tool; ToolError where none has it."""
        if call.name not in self._offered:
            await self.tools(context)  # it may be new
        spec = self._offered.get(call.name)
        if spec is None:
            shown = [spec.name for spec in self.offered if not self._hides(spec)]
            raise unknown_call(call.name, shown)
        if rule := self._hides(spec):
            return _denied(spec, call, rule)
        return await self._owners[call.name].prepare(call, context)


def _denied(spec: ToolSpec, call: ToolCall, rule: str) -> PreparedCall:
    """A call of a tool that the model is not shown: no host sees it."""
    error = ErrorInfo("E_DENIED", f"the policy denies this call: {rule}")

    async def refuse(context: ToolContext) -> ToolOutcome:
        return ToolOutcome(result=ToolResult.failure(error))

    preview = CallPreview(ruling="deny", minimum=True, why=rule)
    return PreparedCall(spec=spec, arguments=call.arguments or {}, preview=preview, run=refuse)


def host_words() -> tuple[str, ...]:
    """What can stand for all tools of a host."""
    return tuple(sorted({*_WORDS, *_installed()}))


def host_of(word: str) -> str | None:
    """The module (or entry point) whose host has this word or tool; None when there is none."""
    first = word.partition(":")[0].partition(".")[0]
    if first in BUILT_IN or first in _installed():
        return BUILT_IN.get(first, first)
    if word in SKILL_TOOLS:
        return "skills"
    return "mcp" if "__" in word.strip("_") else None


def open_hosts(words: Iterable[str], order: HostOrder) -> list[ToolHost]:
    """The hosts that the words mean, each opened once with all words of its own."""
    asked: dict[str, list[str]] = {}
    for word in words:
        module = host_of(word)
        if module is None:
            raise UsageError(f"{word!r} names no tool host; there are: {', '.join(host_words())}")
        asked.setdefault(module, []).append(word)
    hosts: list[ToolHost] = []
    for module, its_words in asked.items():
        hosts += _opener(module)(replace(order, words=tuple(its_words)))
    return hosts


def is_source(value: object) -> bool:
    """True for an MCP server and for whatever opens hosts itself."""
    # By the type: a callable's own attributes may raise anything.
    kind = type(value)
    return issubclass(kind, McpServer) or callable(getattr(kind, "open_hosts", None))


def open_source(source: McpServer | HostSource, order: HostOrder) -> Sequence[ToolHost]:
    """The hosts of an object among the tools: of an MCP server, or of what opens hosts itself."""
    if isinstance(source, McpServer):
        from nbagent.tools.mcp.host import McpHost

        return [McpHost(source)]
    return source.open_hosts(order)


def _opener(module: str) -> Callable[[HostOrder], Sequence[ToolHost]]:
    # Late, one by one: only the module of a host that a run asks for is imported.
    if module == "filesystem":
        from nbagent.tools.filesystem import open_hosts as opener
    elif module == "skills":
        from nbagent.tools.skills import open_hosts as opener
    elif module == "notebook":
        from nbagent.tools.notebook import open_hosts as opener
    elif module == "mcp":
        from nbagent.tools.mcp.host import open_hosts as opener
    else:
        return _installed_opener(module)
    return opener


def _installed_opener(module: str) -> Callable[[HostOrder], Sequence[ToolHost]]:
    entry = _installed()[module]
    try:
        found: Any = entry.load()
    except Exception as error:
        raise UsageError(
            f"the tool host {module!r} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}; repair or uninstall its package"
        ) from error
    return found


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}
