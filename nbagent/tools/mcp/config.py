"""MCP servers known to this process: `nbagent.mcp(…)`, `mcpServers` files, approvals."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nbagent.contracts.canonical import json_object, sha_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import is_storable_json
from nbagent.contracts.secrets import is_secret_name, register_secret
from nbagent.tools.tool_names import listed

if TYPE_CHECKING:
    pass
from nbagent.tools.mcp.server import START_TIMEOUT_S, TIMEOUT_S, McpServer

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
        """The server, as the person's own from now on; a UsageError where it describes none."""
        _allowed.add(self.identity)
        return _server(self.path, self.name, self.entry)


def mcp(
    name: str,
    *,
    command: str | Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
    file: str | Path | None = None,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
) -> McpServer:
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
        file: a JSON file with `{"mcpServers": {name: {command, args, env, url, headers}}}`.
        timeout: seconds without an answer or a sign of progress, after which a call is given up.
        start_timeout: seconds that it may take to start.

    Raises:
        UsageError: it describes no server, or the file is wrong; the message says where.
    """
    if file is not None:
        if command is not None or url is not None:
            raise UsageError("give nbagent.mcp either file=… or command=… or url=…, not two")
        path = Path(file).expanduser()
        entries = _entries(path)
        if name not in entries:
            raise UsageError(f"{path} has no MCP server {name!r}; it has: {listed(entries)}")
        server = _server(path, name, entries[name])
    elif command is None and url is None:
        known = found(name, Path.cwd())
        server = known.allow() if isinstance(known, ProjectServer) else known
    else:
        server = McpServer(
            name,
            command=command,
            env=env,
            cwd=cwd,
            url=url,
            headers=headers,
            timeout_s=timeout,
            start_timeout_s=start_timeout,
        )
    _servers[name] = server
    return server


_servers: dict[str, McpServer] = {}


def known_servers() -> Mapping[str, McpServer]:
    """By name, those made with `nbagent.mcp(…)` in this process."""
    return dict(_servers)


def configured_servers() -> list[str]:
    """The servers of the person's own: made in this process, or in the person's own file."""
    in_file = _entries(_own_file()) if _own_file().is_file() else {}
    return list(dict.fromkeys([*_servers, *in_file]))


def found(name: str, project: Path) -> McpServer | ProjectServer:
    """The server of a name; a UsageError where there is none."""
    if name in _servers:
        return _servers[name]
    names = list(_servers)
    for path, entries in _files(project):
        if name in entries:
            server = ProjectServer(name, path, entries[name])
            if path.name == PROJECT_FILE and server.identity not in _allowed:
                return server
            return _server(path, name, entries[name])
        names += entries
    raise UsageError(
        f"there is no MCP server {name!r}, there are: {listed(dict.fromkeys(names)) or 'none'}; "
        f"make one with nbagent.mcp({name!r}, command=[…]) or write it into {PROJECT_FILE}"
    )


def _files(project: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The entries of the person's own file, which comes first, and of the project's.

    The second is read only where it is asked for: a broken one of a project stops nothing else.
    """
    both = (_own_file(), project / PROJECT_FILE)
    yield from ((path, _entries(path)) for path in both if path.is_file())


def _own_file() -> Path:
    return Path.home() / ".config" / "nbagent" / "mcp.json"


def _entries(path: Path) -> dict[str, Any]:
    """The servers that a file describes and that are not switched off, by name."""
    try:
        with path.open("rb") as file:
            whole = json_object(json.loads(file.read(_MOST_BYTES))) or {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON ({error}); correct it") from None
    entries = json_object(whole.get("mcpServers"))
    if entries is None or not is_storable_json(entries):
        raise UsageError(
            f'{path} names no MCP servers; it should read {{"mcpServers": {{"name": '
            '{"command": "…", "args": […]}}}'
        )
    return {
        name: entry
        for name, entry in entries.items()
        if (json_object(entry) or {}).get("disabled") is not True
    }


def _server(path: Path, name: str, entry: Any) -> McpServer:
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
    if is_secret_name(match[1]):
        register_secret(value)
    return value
