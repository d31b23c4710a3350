"""Finds rules that name no tool by a typing error: such a rule would silently protect nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from nbagent.contracts.built_in_hosts import BUILT_IN_HOSTS, BUILT_IN_TOOLS, host_part
from nbagent.contracts.call_patterns import call_pattern
from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.nearest import misspelt_name
from nbagent.contracts.policy import ToolPolicy
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.schema_walk import property_schemas
from nbagent.tools.tool_names import FUNCTION_HOST

_GLOB_CHARS = frozenset("*?[")


def check_rules(
    policy: ToolPolicy | None, hosts: Iterable[ToolHost], namespace: Mapping[str, Any]
) -> None:
    """Raise UsageError for a rule of a run's own options that has a typing error."""
    problem = next(_misspelt_rules(policy, hosts, namespace), "")
    if problem:
        raise UsageError(problem)


def rule_notices(
    policy: ToolPolicy, hosts: Iterable[ToolHost], namespace: Mapping[str, Any]
) -> list[str]:
    """Return a notice for each rule of the settings that has a typing error."""
    return [
        f"A rule protects nothing: {text}" for text in _misspelt_rules(policy, hosts, namespace)
    ]


def _misspelt_rules(
    policy: ToolPolicy | None, hosts: Iterable[ToolHost], namespace: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for each rule that matches no tool but is nearly the name of one."""
    rules = policy.rules if policy is not None else ()
    specs = _listed_specs(hosts) if rules else []
    for kind, text in rules:
        written = call_pattern(text).tool
        near = _tool_meant(written, specs, namespace) or _argument_meant(text, specs)
        if near:
            name, nearest = near
            problem = f"{kind}={text!r} matches no call: there is no {name!r}"
            yield f"{problem}; did you mean {nearest!r}?"


def _listed_specs(hosts: Iterable[ToolHost]) -> list[ToolSpec]:
    """Return the tools that the hosts list without waiting: not those of MCP servers."""
    listings = [getattr(host, "specs", ()) for host in hosts]
    return [
        spec
        for listing in listings
        if isinstance(listing, list | tuple)
        for spec in cast("Sequence[Any]", listing)
        if isinstance(spec, ToolSpec)
    ]


def _tool_meant(
    written: str, specs: Sequence[ToolSpec], namespace: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return a rule's name that no tool has, and the tool or host of nearly the same name."""
    is_of_server = host_part(written) == "mcp" or "__" in written
    if not _GLOB_CHARS.isdisjoint(written) or is_of_server:
        return None
    hosts = {spec.traits.host for spec in specs} - {""}
    known = [*(spec.name for spec in specs), *hosts, *BUILT_IN_TOOLS, *BUILT_IN_HOSTS]
    known.append(FUNCTION_HOST)
    # A function of the notebook may be a tool of another run.
    if written in known or written in namespace:
        return None
    nearest = misspelt_name(written, known)
    return (written, nearest) if nearest else None


def _argument_meant(text: str, specs: Sequence[ToolSpec]) -> tuple[str, str] | None:
    """Return a rule's argument that none of its tools has, and the argument of nearly its name."""
    pattern = call_pattern(text)
    matching = [s for s in specs if pattern.matches_tool(s.name, s.traits.host)]
    names = list(dict.fromkeys(n for spec in matching for n in property_schemas(spec.parameters)))
    for written, _ in pattern.conditions:
        nearest = misspelt_name(written, names) if written not in names else None
        if nearest:
            return written, nearest
    return None
