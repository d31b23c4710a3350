"""How an MCP server is named: `nbagent.mcp(…)`, the words of `--tools`, and `mcpServers` files.

Owns reading such files and `${VARIABLE}` in them. A project's `.mcp.json` is a stranger's: no
variable of it is filled and nothing of it is started before the person allowed that very entry.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

from nbagent.contracts.canonical import json_object, sha_of
from nbagent.contracts.chat import is_keepable
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.secrets import SecretKey, register
from nbagent.tools.base import HostOrder, listed
from nbagent.tools.mcp.host import McpHost
from nbagent.tools.mcp.server import (
    START_TIMEOUT_S,
    TIMEOUT_S,
    McpServer,
    Protocol,
    check_installed,
    is_secret,
    known_servers,
    prefix_of,
    remember,
)

PROJECT_FILE = ".mcp.json"
_MOST_BYTES = 1_000_000
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
_TYPES = ("stdio", "http", "streamable-http", "streamableHttp")
_allowed: set[str] = set()
"""Identities of projects' servers that the person allowed, as long as this process lives."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectServer:
    """A server that a project's file describes, and that the person has not allowed yet."""

    name: str
    path: Path
    entry: Any
    """As it stands in the file, its variables not filled."""

    @property
    def identity(self) -> str:
        """Hash of all that decides what would be started."""
        return sha_of([self.name, os.path.realpath(self.path), self.entry])

    def allow(self) -> McpServer:
        """The server, as the person's own from now on.

        Raises:
            UsageError: the entry describes no server, or a variable of it is not set.
        """
        _allowed.add(self.identity)
        return remember(_server(self.path, self.name, self.entry, looked_up=True))


@overload
def mcp(
    name: str,
    *,
    command: str | Sequence[str] | None = None,
    env: Mapping[str, str | SecretKey] | None = None,
    cwd: str | Path | None = None,
    url: str | None = None,
    headers: Mapping[str, str | SecretKey] | None = None,
    file: str | Path | None = None,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
    protocol: Protocol = "auto",
) -> McpServer: ...
@overload
def mcp(*, file: str | Path) -> tuple[McpServer, ...]: ...
def mcp(
    name: str | None = None,
    *,
    command: str | Sequence[str] | None = None,
    env: Mapping[str, str | SecretKey] | None = None,
    cwd: str | Path | None = None,
    url: str | None = None,
    headers: Mapping[str, str | SecretKey] | None = None,
    file: str | Path | None = None,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
    protocol: Protocol = "auto",
) -> McpServer | tuple[McpServer, ...]:
    """Make an MCP server known under a name: `--tools mcp:NAME`, or `tools=[nbagent.mcp(…)]`.

    Nothing is started before a run uses it. With a name alone, the server known under it or
    written in `~/.config/nbagent/mcp.json` or in `.mcp.json` here. What you name here is yours:
    an entry of `.mcp.json` that only `--tools mcp:NAME` names is asked about before it starts.

    Args:
        name: what its tools' names begin with: `name__tool`.
        command: the program and its arguments, for a server that speaks over stdin and stdout.
        env: what it is given of the environment beside PATH, HOME and the like; keys go here.
        cwd: the folder that it is started in.
        url: where a server is that speaks streamable HTTP; https, or http on this machine.
        headers: sent with each request to `url`; keys go here.
        file: a JSON file with `{"mcpServers": {name: {command, args, env, url, headers}}}`; all
            of its servers are made known, or the one of the name.
        timeout: seconds without an answer or a sign of progress, after which a call is given up.
        start_timeout: seconds that it may take to start.
        protocol: `"2025-11-25"` or `"2026-07-28"`, for a server that does not tell which.

    Raises:
        UsageError: it describes no server, or the file is wrong; the message says where.
    """
    if file is not None:
        if command is not None or url is not None:
            raise UsageError("give nbagent.mcp either file=… or command=… or url=…, not two")
        path = Path(file).expanduser()
        entries = _entries(path)
        if name is None:
            return tuple(remember(_server(path, key, entry)) for key, entry in entries.items())
        if name not in entries:
            raise UsageError(f"{path} has no MCP server {name!r}; it has: {listed(entries)}")
        return remember(_server(path, name, entries[name]))
    if name is None:
        raise UsageError("give the server a name, nbagent.mcp('git', command=[…]), or a file=…")
    if command is None and url is None:
        server = _found(name, Path.cwd())
        return server.allow() if isinstance(server, ProjectServer) else server
    server = McpServer(
        name,
        command=command,
        env=env,
        cwd=cwd,
        url=url,
        headers=headers,
        timeout_s=timeout,
        start_timeout_s=start_timeout,
        protocol=protocol,
    )
    return remember(server)


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """A host for each server that the words name: `mcp:git`, `mcp` (all known), `git__log`.

    Raises:
        UsageError: there is no such server, or the package is not installed.
    """
    check_installed()
    wanted: dict[str, list[str] | None] = {}
    for word in order.words:
        names, tool = _meant(word, order.project)
        for name in names:
            before = wanted.get(name, [])
            # All of its tools win over single ones.
            wanted[name] = None if before is None or tool is None else [*before, tool]
    return [McpHost(_found(name, order.project), only) for name, only in wanted.items()]


def _meant(word: str, project: Path) -> tuple[Sequence[str], str | None]:
    """The servers that a word names, and the tool, when it names one."""
    if word == "mcp":
        if not known_servers():
            raise UsageError(
                "no MCP server is known; make one with nbagent.mcp('name', command=[…]) "
                "or name one of a file: mcp:name"
            )
        return list(known_servers()), None
    name = word.removeprefix("mcp:")
    if "__" not in name:
        return [name], None
    owners = [one for one in _names(project) if name.startswith(prefix_of(one))]
    return [max(owners, key=len, default=name.partition("__")[0])], name


def _names(project: Path) -> list[str]:
    in_files = (name for _, entries in _files(project) for name in entries)
    return list(dict.fromkeys([*known_servers(), *in_files]))


def _found(name: str, project: Path) -> McpServer | ProjectServer:
    known = known_servers().get(name)
    if known is not None and not known.looked_up:
        return known
    for path, entries in _files(project):
        if name in entries:
            server = ProjectServer(name, path, entries[name])
            if path.name == PROJECT_FILE and server.identity not in _allowed:
                return server
            return remember(_server(path, name, entries[name], looked_up=True))
    raise UsageError(
        f"there is no MCP server {name!r}, there are: {listed(_names(project)) or 'none'}; make "
        f"one with nbagent.mcp({name!r}, command=[…]) or write it into {PROJECT_FILE}"
    )


def _files(project: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The entries of the person's own file, which comes first, and of the project's.

    The second is read only where it is asked for: a broken one of a project stops nothing else.
    """
    own = Path.home() / ".config" / "nbagent" / "mcp.json"
    yield from ((path, _entries(path)) for path in (own, project / PROJECT_FILE) if path.is_file())


def _entries(path: Path) -> dict[str, Any]:
    """The servers that a file describes and that are not switched off, by name."""
    try:
        with path.open("rb") as file:
            whole = json_object(json.loads(file.read(_MOST_BYTES))) or {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON ({error}); correct it") from None
    entries = json_object(whole.get("mcpServers"))
    if entries is None or not is_keepable(entries):
        raise UsageError(
            f'{path} names no MCP servers; it should read {{"mcpServers": {{"name": '
            '{"command": "…", "args": […]}}}'
        )
    return {
        name: entry
        for name, entry in entries.items()
        if (json_object(entry) or {}).get("disabled") is not True
    }


def _server(path: Path, name: str, entry: Any, *, looked_up: bool = False) -> McpServer:
    try:
        fields = json_object(_filled(entry)) or {}
        args = fields.get("args", [])
        if fields.get("type", "stdio") not in _TYPES or not isinstance(args, list):
            raise UsageError("give command and a list of args, or url and the type http")
        command, cwd = cast("Any", fields.get("command")), fields.get("cwd")
        return McpServer(
            name,
            command=[command, *cast("Any", args)] if args else command,
            env=fields.get("env"),
            cwd=path.parent / Path(str(cwd)).expanduser() if cwd else None,
            url=fields.get("url"),
            headers=fields.get("headers"),
            looked_up=looked_up,
        )
    except UsageError as error:
        raise UsageError(f"{path}, mcpServers.{name}: {error.message}") from None


def _filled(value: Any) -> Any:
    """The value with its variables filled in."""
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_filled(item) for item in cast("list[Any]", value)]
    return _VARIABLE.sub(_variable, value) if isinstance(value, str) else value


def _variable(match: re.Match[str]) -> str:
    value = os.environ.get(match[1]) or match[2]
    if value is None:
        raise UsageError(
            f"it needs the variable {match[1]}, which is not set; set it before the kernel starts"
        )
    if is_secret(match[1], value):
        register(value)
    return value
