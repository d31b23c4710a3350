"""Open the tool hosts of a run and join them: find a host by its name, route calls by tool name.

Owns no tool. To add a host, write a module here with `open_hosts` and add it to `BuiltInHost`, or
publish an entry point in the group `nbagent.tools`. Only the modules of hosts that a run uses are
imported.
"""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, assert_never, cast

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.built_in_hosts import (
    BUILT_IN_HOSTS,
    BuiltInHost,
    built_in_host,
    host_part,
)
from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact_truncated
from nbagent.contracts.tools import PreparedCall, ToolContext, ToolOutcome
from nbagent.settings.installed import installed_entry_points
from nbagent.shown.texts import VALUE_ERRORS, class_name, error_line, without_folders
from nbagent.tools.host_config import HostConfig, HostSource
from nbagent.tools.mcp.server import McpServer
from nbagent.tools.tool_names import check_tool_name, unknown_call_error

ENTRY_POINT_GROUP = "nbagent.tools"
_MAX_ERROR_CHARS = 1_000
_BUILT_IN_NAMES = ("fs", "skills", "notebook", "mcp")


def _name_of(host: ToolHost) -> str:
    # A person's own host may have no name; its class has one.
    return getattr(host, "name", "") or type(host).__name__


class HostSet:
    """Several hosts as one: list all their tools and route each call by its name.

    A name belongs to the host that listed it first. The first listing raises UsageError for an
    invalid name or one that two hosts list. Later listings skip such tools, so that a server that
    changes its tools does not end a run. `hidden_reason` returns why a tool is hidden from the
    model; an empty text shows it.
    """

    def __init__(
        self,
        hosts: Sequence[ToolHost],
        *,
        hidden_reason: Callable[[ToolSpec], str] = lambda spec: "",
    ) -> None:
        self._hosts = tuple(hosts)
        self._hidden_reason = hidden_reason
        self._owners: dict[str, ToolHost] = {}
        self._specs: dict[str, ToolSpec] = {}
        self._has_listed = False

    @property
    def name(self) -> str:
        return "+".join(self.host_names)

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(map(_name_of, self._hosts))

    @property
    def all_specs(self) -> tuple[ToolSpec, ...]:
        """All tools of the last listing, hidden ones included."""
        return tuple(self._specs.values())

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notices of the hosts for the person, so far."""
        return tuple(text for host in self._hosts for text in getattr(host, "warnings", ()))

    @property
    def lists_at_once(self) -> bool:
        """True if every host lists its tools without waiting."""
        return all(getattr(host, "lists_at_once", False) for host in self._hosts)

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """The tools of all hosts, in the order of the hosts, without the hidden ones."""
        if self._has_listed or len(self._hosts) == 1:
            listings = [await _listing(host, context) for host in self._hosts]
        else:  # servers start side by side
            listings = await asyncio.gather(*(_listing(host, context) for host in self._hosts))
        self._specs = {
            spec.name: spec
            for host, specs in zip(self._hosts, listings, strict=True)
            for spec in _checked_specs(specs, host)
            if self._owner(spec.name, host) is host
        }
        self._has_listed = True
        return [spec for spec in self.all_specs if not self._hidden_reason(spec)]

    def _owner(self, name: str, host: ToolHost) -> ToolHost | None:
        """Host that owns a name which `host` lists; None if the name is invalid."""
        owner = self._owners.get(name)
        if owner is None:
            try:
                check_tool_name(name, _name_of(host))
            except UsageError as error:
                if self._has_listed:
                    return None
                raise UsageError(f"tool host {_name_of(host)!r}: {error.message}") from None
            self._owners[name] = host
            return host
        if owner is not host and not self._has_listed:
            raise UsageError(
                f"the tool hosts {_name_of(owner)!r} and {_name_of(host)!r} both have a tool "
                f"{name!r}; rename one of them or leave it out with --tools"
            )
        return owner

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Check a call on the host of its tool; raise ToolError if there is no such tool."""
        if call.name not in self._specs:
            await self.tools(context)  # An MCP server may have added it since the last listing.
        spec = self._specs.get(call.name)
        if spec is None:
            shown = [spec.name for spec in self.all_specs if not self._hidden_reason(spec)]
            raise unknown_call_error(call.name, shown)
        if rule := self._hidden_reason(spec):
            return _denied_call(spec, call, rule)
        host = self._owners[call.name]
        try:
            prepared = await host.prepare(call, context)
        except ToolError:
            raise
        except VALUE_ERRORS as error:
            raise ToolError(_raised(error, _name_of(host)), code="E_INTERNAL") from None
        return _guarded(prepared, host)


async def _listing(host: ToolHost, context: ToolContext) -> Sequence[ToolSpec]:
    """List the tools of a host; its SystemExit would end the program of the person."""
    try:
        return await host.tools(context)
    except SystemExit:
        why = f"tool host {_name_of(host)!r}: `tools` raised SystemExit; return a list of ToolSpec"
        raise UsageError(why) from None


def _raised(error: BaseException, name: str) -> str:
    line = redact_truncated(without_folders(error_line(error)[:_MAX_ERROR_CHARS]))
    return f"{line}; the tool host {name!r} must return errors in a ToolOutcome"


def _guarded(prepared: object, host: ToolHost) -> PreparedCall:
    """Make a prepared call whose errors fail this call only, also if the host is wrong."""
    name = _name_of(host)
    spec = cast("object", getattr(prepared, "spec", None))
    if not isinstance(prepared, PreparedCall) or not isinstance(spec, ToolSpec):
        raise ToolError(
            f"the tool host {name!r} returned {class_name(prepared)} from `prepare`; return a "
            "PreparedCall",
            code="E_INTERNAL",
        )

    async def run(context: ToolContext) -> ToolOutcome:
        try:
            outcome = cast("object", await prepared.run(context))
        except VALUE_ERRORS as error:
            why = _raised(error, name)
        else:
            if isinstance(outcome, ToolOutcome):
                return outcome
            why = (
                f"the tool host {name!r} returned {class_name(outcome)} from `run`; return a "
                "ToolOutcome"
            )
        info = ErrorInfo("E_INTERNAL", why)
        return ToolOutcome(result=ToolResult.failure(info))

    return replace(prepared, spec=_with_host(spec, host), run=run)


def _checked_specs(listed: Any, host: ToolHost) -> Sequence[ToolSpec]:
    """Return what a host listed as specs; the form of OpenAI's API is taken, too."""
    items = cast("Sequence[Any]", listed if isinstance(listed, list | tuple) else (listed,))
    return [_checked_spec(item, host) for item in items]


def _checked_spec(item: Any, host: ToolHost) -> ToolSpec:
    if isinstance(item, ToolSpec):
        return _with_host(item, host)
    form = json_object(item) or {}
    try:
        spec = ToolSpec.model_validate(json_object(form.get("function")) or form)
    except ValueError:
        raise UsageError(
            f"tool host {_name_of(host)!r} lists {reprlib.repr(item)}, which is no tool; return a "
            "list of nbagent.ToolSpec(name=…, description=…, parameters={…})"
        ) from None
    return _with_host(spec, host)


def _with_host(spec: ToolSpec, host: ToolHost) -> ToolSpec:
    """Copy a spec that names no host with the name of its own, for rules, records and frames."""
    if spec.traits.host:
        return spec
    traits = spec.traits.model_copy(update={"host": _name_of(host)})
    return spec.model_copy(update={"traits": traits})


def _denied_call(spec: ToolSpec, call: ToolCall, rule: str) -> PreparedCall:
    """Refuse a call of a hidden tool here: its host is not asked.

    A model can guess the name of a hidden tool, or remember it from before the policy changed.
    """
    error = ErrorInfo("E_DENIED", f"the policy denies this call: {rule}")

    async def refuse(context: ToolContext) -> ToolOutcome:
        return ToolOutcome(result=ToolResult.failure(error))

    preview = CallPreview(ruling="deny", minimum=True, why=rule)
    return PreparedCall(spec=spec, arguments=call.arguments or {}, preview=preview, run=refuse)


def host_names() -> tuple[str, ...]:
    """Names that select all tools of a host: the built-in ones and those of installed packages."""
    return tuple(sorted({*_BUILT_IN_NAMES, *_installed_hosts()}))


def host_module(name: str) -> str | None:
    """Module or entry point of the host that has this name or tool; None if there is none."""
    first = host_part(name)
    if first not in BUILT_IN_HOSTS and first in _installed_hosts():
        return first
    return built_in_host(name)


def open_hosts(names: Iterable[str], config: HostConfig) -> list[ToolHost]:
    """Open each host that is named, once, with all of its names."""
    names_by_module: dict[str, list[str]] = {}
    for name in names:
        module = host_module(name)
        if module is None:
            raise UsageError(f"{name!r} names no tool host; there are: {', '.join(host_names())}")
        names_by_module.setdefault(module, []).append(name)
    hosts: list[ToolHost] = []
    for module, module_names in names_by_module.items():
        hosts += _opener(module)(replace(config, names=tuple(module_names)))
    return hosts


def is_host_source(value: object) -> bool:
    """True for an MCP server and for any other object that opens hosts."""
    # Only the type is asked: an object's own attributes may run code and raise anything.
    kind = type(value)
    return issubclass(kind, McpServer) or callable(getattr(kind, "open_hosts", None))


def open_source_hosts(source: McpServer | HostSource, config: HostConfig) -> Sequence[ToolHost]:
    """Open the hosts of an object among `tools=`: an MCP server, or a `HostSource`."""
    if isinstance(source, McpServer):
        # Late, as in `_built_in_opener`.
        from nbagent.tools.mcp.host import McpHost

        return [McpHost(source)]
    return source.open_hosts(config)


def _built_in_opener(host: BuiltInHost) -> Callable[[HostConfig], Sequence[ToolHost]]:
    # Imported late, one by one: each host has dependencies that most runs do not need.
    match host:
        case "filesystem":
            from nbagent.tools.filesystem import open_hosts as opener
        case "skills":
            from nbagent.tools.skills import open_hosts as opener
        case "notebook":
            from nbagent.tools.notebook import open_hosts as opener
        case "mcp":
            from nbagent.tools.mcp.host import open_hosts as opener
        case _:
            assert_never(host)
    return opener


def _opener(module: str) -> Callable[[HostConfig], Sequence[ToolHost]]:
    built_in = BUILT_IN_HOSTS.get(module)
    return _installed_opener(module) if built_in is None else _built_in_opener(built_in)


def _installed_opener(module: str) -> Callable[[HostConfig], Sequence[ToolHost]]:
    entry = _installed_hosts()[module]
    try:
        opener: Any = entry.load()
    except Exception as error:
        raise UsageError(
            f"the tool host {module!r} ({entry.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}; repair or uninstall its package"
        ) from error
    return opener


# Cached: it reads the metadata of every installed package.
@cache
def _installed_hosts() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in installed_entry_points(ENTRY_POINT_GROUP)}
