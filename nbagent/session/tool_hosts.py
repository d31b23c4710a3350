"""The tool hosts of a run, opened from names, words and objects, and the rules for them.

Owns the meaning of `--tools`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from nbagent.contracts.call_patterns import GlobResolver
from nbagent.contracts.canonical import is_run_id, sha256_hex
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import PatchGuard, ToolHost
from nbagent.files.mounts import (
    PACKAGE,
    PROJECT,
    STATE,
    Mount,
    Mounts,
    chosen_folder,
    parse_mount,
    without_dots,
)
from nbagent.files.opening import open_root
from nbagent.session.approval import PolicyRules, tighten_policy
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import private_folders, project_folder, store_home
from nbagent.settings.types import Tools
from nbagent.store.home import writing_folder
from nbagent.tools.functions.host import FunctionHost, namespace_tools
from nbagent.tools.host_config import HostConfig, HostSource
from nbagent.tools.hosts import host_module, is_host_source, open_hosts, open_source_hosts
from nbagent.tools.tool_names import FUNCTION_HOST

_HOST_METHODS = (
    *("tools", "prepare", "getVisibleTools", "executeToolCall"),
    *("get_visible_tools", "execute_tool_call", "execute_tool"),
)
"""Methods by which an object is meant as a tool host: nbagent's, and those of the protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFolders:
    """Folders of a workflow run, in addition to the project."""

    package: Path
    state: Path
    guard: PatchGuard


def open_run_tools(
    tools: Tools | None,
    objects: tuple[object, ...] | None,
    *,
    options: RunOptions,
    settings: Settings,
    namespace: Callable[[], Mapping[str, Any]],
    folders: WorkflowFolders | None = None,
) -> tuple[list[ToolHost], PolicyRules]:
    """Open the hosts of a run, and return them with their rules.

    `tools` are names of functions and hosts; None means the notebook's own functions, unless there
    are `objects` (functions, MCP servers, hosts). `folders` belong to a workflow, which needs the
    file tools.
    """
    rules = PolicyRules(tighten_policy(settings.policy, options.policy))
    names, host_names = _split_names(tools, objects is not None, namespace())
    if tools == "all":  # a server whose tools are all denied is not started
        host_names = [word for word in host_names if not rules.deny_rule("", word)]
    if tools != "none":
        # A folder of --mount or --skills is of use only with the tools for it.
        named_hosts = {host_module(word) for word in host_names}
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
        if is_host_source(tool):
            sources.append(cast("HostSource", tool))
        elif hasattr(kind, "prepare") and hasattr(kind, "tools"):
            ready.append(cast("ToolHost", tool))
        elif not callable(tool) and any(hasattr(kind, name) for name in _HOST_METHODS):
            raise UsageError(
                f"a {kind.__name__} is no tool host; give it the methods of nbagent.ToolHost: "
                "`async tools(context)` lists the tools (getVisibleTools of the protocol), "
                "`async prepare(call, context)` checks a call and returns an nbagent.PreparedCall "
                "that runs it (executeToolCall)"
            )
        else:
            functions.append(tool)
    hosts: list[ToolHost] = []
    if names != [] or functions or not (host_names or sources or ready):
        hosts.append(FunctionHost(functions, namespace=namespace, names=names))
    if host_names or sources:
        skills = _skills(options, settings) if "skills" in map(host_module, host_names) else None
        mounts = run_mounts(options, settings, folders)
        rules = PolicyRules(rules.policy, glob_resolver(mounts))
        order = HostConfig(
            names=(),
            project=project_folder(),
            mounts=mounts,
            skills=skills,
            policy=rules.policy,
            is_denied=rules.denies,
            guard=folders.guard if folders else None,
        )
        hosts += open_hosts(host_names, order)
        hosts += [host for source in sources for host in open_source_hosts(source, order)]
    return [*hosts, *ready], rules


def _split_names(
    tools: Tools | None, has_objects: bool, namespace: Mapping[str, Any]
) -> tuple[list[str] | None, list[str]]:
    """The named functions of the notebook (None: all of them), and the named hosts."""
    if tools is None:
        return ([] if has_objects else None), []
    if tools == "none":
        return [], []
    if tools == "all":
        return None, [*all_host_names()]
    marked = namespace_tools(namespace)
    own: list[str] = []
    host_names: list[str] = []
    for name in (tools,) if isinstance(tools, str) else tools:
        if name == FUNCTION_HOST and name not in marked:
            own += marked
        # A function of the notebook wins over a host of the same name.
        elif name in marked or type(namespace.get(name)) is FunctionType or not host_module(name):
            own.append(name)
        else:
            host_names.append(name)
    return own, host_names


def all_host_names() -> tuple[str, ...]:
    """Hosts of `all`, besides the notebook's functions. A server that only the project's file
    describes is left out."""
    from nbagent.tools.mcp.config import configured_servers  # late: most runs have none

    servers = configured_servers()
    return ("fs", "skills", "notebook", *(f"mcp:{name}" for name in servers))


def _skills(options: RunOptions, settings: Settings) -> Any:
    """The skills of the project, of the user, and of the `--skills` folders."""
    from nbagent.tools.skill_folders import find_skills  # late: most runs have none

    return find_skills(project_folder(), (*(options.skills or ()), *settings.skills))


def run_mounts(options: RunOptions, settings: Settings, folders: WorkflowFolders | None) -> Mounts:
    """The mounts of a run."""
    project = project_folder()
    mount_texts = [*settings.mounts, *(options.mounts or ())]
    package = [Mount(PACKAGE, folders.package)] if folders else []
    return Mounts.of(
        project=project,
        state=folders.state if folders else _state_folder(options.session or settings.session),
        extra=[*package, *(parse_mount(text, base=project) for text in mount_texts)],
        # A tool must neither read nor change stored runs.
        closed=[store_home(), writing_folder()],
        private=private_folders(),
    )


def mount_names(
    options: RunOptions, settings: Settings, folders: WorkflowFolders | None
) -> dict[str, str]:
    """The folders of a run's mounts with their names, also of a run without file tools."""
    project = project_folder()
    mounts = [Mount(PROJECT, project)]
    if folders:
        mounts += [Mount(PACKAGE, folders.package), Mount(STATE, folders.state)]
    else:
        mounts.append(Mount(STATE, _state_folder(options.session or settings.session)))
    for text in (*settings.mounts, *(options.mounts or ())):
        with suppress(UsageError):  # a run that needs this mount has failed before
            mounts.append(parse_mount(text, base=project))
    # Code names the project by the way on which it came there, which may be a link.
    names = {str(chosen_folder(mount.root)): mount.name for mount in mounts}
    return {str(project): PROJECT, **names, **{str(mount.root): mount.name for mount in mounts}}


def glob_resolver(mounts: Mounts) -> GlobResolver:
    """Resolve paths in rules: a rule about a file applies to every name of that file."""

    @lru_cache(maxsize=512)
    def resolve(host: str, name: str, glob: str) -> Sequence[str]:
        if (host, name) == ("fs", "path"):
            return mounts.resolve(glob)
        return (glob, without_dots(glob)) if host == "skills" else (glob,)

    return resolve


def _state_folder(session: str) -> Path:
    """Folder of a session's `@state`. It is created at the first write."""
    states = writing_folder() / "state"
    safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in session)[:60]
    if is_run_id(safe):  # such a folder is a workflow's
        safe = f"session-{safe}"
    # Another name may give the same text, or differ only in case or in the form of an accent,
    # which not every file system tells apart.
    if safe != session or not safe.isascii() or safe != safe.lower():
        named = f"{safe}-{sha256_hex(session)[:8]}"
        # An earlier nbagent added no hash for the case alone.
        return states / (safe if safe == session and _has_entry(states, safe) else named)
    return states / safe


def _has_entry(folder: Path, name: str) -> bool:
    """True if a folder lists exactly this name, in its case."""
    try:
        with closing(open_root(folder)) as opened:
            return any(entry.name == name for entry in opened.scan())
    except OSError:
        return False
