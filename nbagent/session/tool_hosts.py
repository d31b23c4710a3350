"""Which tools a run has: from names, words and objects to hosts, and the rules for them.

Owns the meaning of `--tools`. What each host does is its own affair.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from nbagent.contracts.call_patterns import GlobResolver
from nbagent.contracts.canonical import is_run_id, sha256_hex
from nbagent.contracts.ports import PatchGuard, ToolHost
from nbagent.files.mounts import PACKAGE, Mount, Mounts, parse_mount, without_dots
from nbagent.session.approval import PolicyRules, tightened
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import project_folder, store_home
from nbagent.settings.types import Tools
from nbagent.tools.functions.host import FunctionHost, namespace_tools
from nbagent.tools.host_config import HostOrder, HostSource
from nbagent.tools.hosts import host_of, is_source, open_hosts, open_source
from nbagent.tools.tool_names import OWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    """What the file tools of a workflow run have beside the project."""

    package: Path
    state: Path
    guard: PatchGuard


def tools_of(
    tools: Tools | None,
    objects: tuple[object, ...] | None,
    *,
    options: RunOptions,
    settings: Settings,
    namespace: Callable[[], Mapping[str, Any]],
    folders: Folders | None = None,
) -> tuple[list[ToolHost], PolicyRules]:
    """The hosts of a run, opened, and the rules for them.

    `tools` are names and words; None: the notebook's own functions, unless there are `objects`
    (functions, MCP servers, hosts) that were given themselves. `folders` are a workflow's, which
    cannot do without the file tools.
    """
    rules = PolicyRules(tightened(settings.policy, options.policy))
    names, host_names = _named(tools, objects is not None, namespace())
    if tools == "all":  # no server is started for nothing
        host_names = [word for word in host_names if not rules.forbidding("", word)]
    if tools != "none":
        # Who gives a folder wants it used.
        named_hosts = {host_of(word) for word in host_names}
        host_names += ["fs"] if options.mounts and "filesystem" not in named_hosts else []
        host_names += ["skills"] if options.skills and "skills" not in named_hosts else []
    if folders is not None:
        files = ("fs.read", "fs.list", "fs.search", "fs.write", "fs.apply_patch")
        host_names += () if {"fs", "filesystem"} & set(host_names) else files
    functions: list[Any] = []
    sources: list[HostSource] = []
    ready: list[ToolHost] = []
    for tool in objects or ():
        # By their types: a callable's own attributes may raise anything.
        kind = type(tool)
        if is_source(tool):
            sources.append(cast("HostSource", tool))
        elif hasattr(kind, "prepare") and hasattr(kind, "tools"):
            ready.append(cast("ToolHost", tool))
        else:
            functions.append(tool)
    hosts: list[ToolHost] = []
    if names != [] or functions or not (host_names or sources or ready):
        hosts.append(FunctionHost(functions, namespace=namespace, names=names))
    if host_names or sources:
        skills = _skills(options, settings) if "skills" in map(host_of, host_names) else None
        mounts = mounts_of(options, settings, folders)
        rules = PolicyRules(rules.policy, resolving(mounts))
        order = HostOrder(
            words=(),
            project=project_folder(),
            mounts=mounts,
            skills=skills,
            policy=rules.policy,
            forbids=rules.denies,
            guard=folders.guard if folders else None,
        )
        hosts += open_hosts(host_names, order)
        hosts += [host for source in sources for host in open_source(source, order)]
    return [*hosts, *ready], rules


def _named(
    tools: Tools | None, has_objects: bool, namespace: Mapping[str, Any]
) -> tuple[list[str] | None, list[str]]:
    """The notebook's functions (None for all of them) and the words that are named."""
    if tools is None:
        return ([] if has_objects else None), []
    if tools == "none":
        return [], []
    if tools == "all":
        return None, [*words_of_all()]
    marked = namespace_tools(namespace)
    own: list[str] = []
    host_names: list[str] = []
    for name in (tools,) if isinstance(tools, str) else tools:
        if name == OWN and name not in marked:
            own += marked
        elif name in marked or type(namespace.get(name)) is FunctionType or not host_of(name):
            own.append(name)
        else:
            host_names.append(name)
    return own, host_names


def words_of_all() -> tuple[str, ...]:
    """What `all` gives beside the notebook's functions; no server that only a project describes."""
    from nbagent.tools.mcp.config import configured_servers  # late: most runs have none

    servers = configured_servers()
    return ("fs", "skills", "notebook", *(f"mcp:{name}" for name in servers))


def _skills(options: RunOptions, settings: Settings) -> Any:
    """The skills of the project, of the person and of the folders given."""
    from nbagent.tools.skill_folders import find_skills  # late: most runs have none

    return find_skills(project_folder(), (*(options.skills or ()), *settings.skills))


def mounts_of(options: RunOptions, settings: Settings, folders: Folders | None) -> Mounts:
    """The folders that a run has."""
    project = project_folder()
    mount_texts = [*settings.mounts, *(options.mounts or ())]
    package = [Mount(PACKAGE, folders.package)] if folders else []
    return Mounts.of(
        project=project,
        state=folders.state if folders else _state_folder(options.session or settings.session),
        extra=[*package, *(parse_mount(text, base=project) for text in mount_texts)],
        closed=[store_home()],
    )


def resolving(mounts: Mounts) -> GlobResolver:
    """A rule about a file holds by whatever name of the file a call has it."""

    @lru_cache(maxsize=512)
    def resolve(host: str, name: str, glob: str) -> Sequence[str]:
        if (host, name) == ("fs", "path"):
            return mounts.resolve(glob)
        return (glob, without_dots(glob)) if host == "skills" else (glob,)

    return resolve


def _state_folder(session: str) -> Path:
    """Where a session's `@state` is kept. Made when something is written."""
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in session)[:60]
    if is_run_id(safe):  # such a folder is a workflow's
        safe = f"session-{safe}"
    if safe != session or os.path.normcase("Aa") == os.path.normcase("aa"):
        # Two names may not share a folder.
        safe = f"{safe}-{sha256_hex(session)[:8]}"
    return store_home() / "state" / safe
