"""What every tool host shares: names of tools, several hosts as one, and which host a word means.

Owns no tool. A further host is one new module here with an `open_hosts` and a row in `BUILT_IN`, or
an entry point of an installed package (group `nbagent.tools`). Only the module of a host that was
asked for is imported.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.errors import ErrorInfo, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.ports import PatchGuard, ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.tools.tool_names import BUILT_IN, SKILL_TOOLS, checked_name, unknown_call

ENTRY_POINT_GROUP = "nbagent.tools"
_WORDS = ("fs", "skills", "notebook", "mcp")
_PROGRESS_EVERY_MS = 40.0
_ALL_SHOWN = 100


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


def paced_progress(context: ToolContext) -> Callable[..., None]:
    """What shows progress: the first texts all, then so many a second, and the last one.

    A loop that reports a million times would fill the queue faster than anybody reads it.
    """
    shown, next_ms = 0, 0.0

    def show(make_text: Callable[[], str], fraction: float | None = None) -> None:
        nonlocal shown, next_ms
        now_ms = monotonic_ms()
        if shown < _ALL_SHOWN or now_ms >= next_ms or fraction == 1.0:
            shown, next_ms = shown + 1, now_ms + _PROGRESS_EVERY_MS
            context.progress(make_text(), fraction)

    return show


def captured(context: ToolContext) -> AbstractContextManager[Callable[[Any], object]]:
    """Keep what is printed and displayed meanwhile for the call's card, where it has one.

    Only in the main thread: elsewhere it could not be told from what others print meanwhile.
    """
    if context.capture is None or threading.current_thread() is not threading.main_thread():
        return nullcontext(lambda value: None)
    return context.capture(context.output, paced_progress(context))


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


def _opener(module: str) -> Callable[[HostOrder], Sequence[ToolHost]]:
    if module in BUILT_IN.values():
        return import_module(f"nbagent.tools.{module}").open_hosts
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
