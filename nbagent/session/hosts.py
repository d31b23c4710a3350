"""Which tools a run has: from names, words and objects to one set of hosts, and their policy.

Owns the meaning of `--tools`. What each host does is its own affair.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import Resolve
from nbagent.contracts.ports import ToolHost
from nbagent.files.mounts import Mount, Mounts, parse_mount
from nbagent.session.policies import Policies, check_agent_policy
from nbagent.settings import RunOptions, Settings, Tools, project_folder, store_home
from nbagent.tools.base import HostOrder, HostSet, HostSource, nearest
from nbagent.tools.function_host import FunctionHost, namespace_tools
from nbagent.tools.hosts import OWN, host_of, host_words, open_hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """What a run has of tools."""

    host: HostSet
    policies: Policies
    mounts: Mapping[str, Any]
    """A `files.mounts.Mounts`; empty where no host has asked for one."""


def tools_of(
    tools: Tools | None,
    objects: tuple[object, ...] | None,
    *,
    options: RunOptions,
    settings: Settings,
    namespace: Callable[[], Mapping[str, Any]],
    join: Callable[..., HostSet] = HostSet,
) -> RunTools:
    """The hosts of a run, opened, and the policy for them.

    Args:
        tools: names and words, `none` or `all`; None: the notebook's own functions, unless
            `objects` are given.
        objects: functions, MCP servers and hosts that were given themselves.
        options: mounts, skills, policy and session of the run.
        settings: what holds for every run.
        namespace: the notebook's names.
        join: makes one host of the hosts.

    Raises:
        UsageError: a name is unknown, or a host cannot be opened.
    """
    if options.policy is not None:
        check_agent_policy(options.policy)
    policies = Policies(system=settings.policy, agent=options.policy)
    own, words = _named(tools, objects is not None, namespace())
    if tools != "none":
        # Who gives a folder wants it used.
        asked = {host_of(word) for word in words}
        words += ("fs",) if options.mounts and "filesystem" not in asked else ()
        words += ("skills",) if options.skills and "skills" not in asked else ()
    given = objects or ()
    sources = [cast("HostSource", one) for one in given if _is_source(one)]
    ready = [cast("ToolHost", one) for one in given if _is_host(one)]
    functions = [one for one in given if not (_is_source(one) or _is_host(one))]
    mounts: Mapping[str, Any] = {}
    hosts: list[ToolHost] = []
    if own != () or functions or not (words or sources or ready):
        hosts.append(FunctionHost(functions, namespace=namespace, names=own))
    if words or sources:
        asked = {host_of(word) for word in words}
        skills = _skills(options, settings) if "skills" in asked else None
        shown = skills.mounts if skills and "filesystem" in asked else ()
        mounts = _mounts(options, settings, shown)
        policies = replace(policies, resolve=resolving(mounts))
        order = HostOrder(
            words=(),
            project=project_folder(),
            mounts=mounts,
            skills=skills,
            namespace=namespace,
            policy=policies.effective,
            forbids=policies.denies,
        )
        hosts += open_hosts(words, order)
        hosts += [host for source in sources for host in source.open_hosts(order)]
    host = join([*hosts, *ready], hides=policies.hiding)
    return RunTools(host=host, policies=policies, mounts=mounts)


def _named(
    tools: Tools | None, has_objects: bool, namespace: Mapping[str, Any]
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The notebook's functions (None for all of them) and the words that are named."""
    if tools is None:
        return (() if has_objects else None), ()
    if tools == "none":
        return (), ()
    names = (tools,) if isinstance(tools, str) else tools
    marked = namespace_tools(namespace)
    own: list[str] = []
    words: list[str] = []
    for name in names:
        if name in (OWN, "all") and name not in marked:
            own += marked
        elif name in marked or type(namespace.get(name)) is FunctionType:
            own.append(name)
        elif not host_of(name):
            _check_no_slip(name, marked, namespace)
            own.append(name)
        else:
            words.append(name)
    if set(names) == {"all"}:
        return None, ()
    return tuple(own), tuple(words)


def _check_no_slip(name: str, marked: Mapping[str, Any], namespace: Mapping[str, Any]) -> None:
    """Raise UsageError for what is nearly the word of a host, and no name of the notebook's."""
    words = host_words()
    if name.partition(".")[0] not in namespace and nearest(name, [*marked, *words]) in words:
        raise UsageError(
            f"there is no tool {name!r}; did you mean {nearest(name, words)!r}? The words for "
            f"whole hosts are {', '.join(words)} (mcp:NAME for one server)"
        )


def _is_source(given: object) -> bool:
    # By their types: a callable's own attributes may raise anything.
    return callable(getattr(type(given), "open_hosts", None))


def _is_host(given: object) -> bool:
    kind = type(given)
    return hasattr(kind, "prepare") and hasattr(kind, "tools")


def _skills(options: RunOptions, settings: Settings) -> Any:
    """The skills of the project, of the person and of the folders given."""
    folders = import_module("nbagent.tools.skill_folders")  # most runs have none
    return folders.find_skills(project_folder(), (*(options.skills or ()), *settings.skills))


def _mounts(options: RunOptions, settings: Settings, skills: Iterable[Mount]) -> Mounts:
    """The mounts of a run, with those of skills that the file tools may read."""
    given = [*settings.mounts, *(options.mounts or ())]
    return Mounts.of(
        project=project_folder(),
        state=state_folder(options.session or settings.session),
        extra=[*(parse_mount(text, base=project_folder()) for text in given), *skills],
        closed=[store_home()],
    )


def resolving(mounts: Mounts) -> Resolve:
    """A rule about a file holds by whatever name of the file a call has it."""

    @lru_cache(maxsize=512)
    def resolve(host: str, name: str, glob: str) -> Sequence[str]:
        return mounts.resolve(glob) if (host, name) == ("fs", "path") else (glob,)

    return resolve


def state_folder(session: str) -> Path:
    """Where a session's `@state` is kept. Made when something is written."""
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in session)[:60]
    if safe != session or os.path.normcase("Aa") == os.path.normcase("aa"):
        # Two names may not share a folder.
        safe = f"{safe}-{sha256_hex(session)[:8]}"
    return store_home() / "state" / safe
