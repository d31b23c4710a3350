"""MCP servers that this process knows: `nbagent.mcp(…)`, `mcpServers` files, approvals.

Owns the files, `${VARIABLE}` in them, and trust: a project's `.mcp.json` is untrusted, so none of
its variables is filled and none of its servers is started before the person allows that entry.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from nbagent.contracts.canonical import json_object, sha_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import is_storable_json
from nbagent.contracts.secrets import register_value
from nbagent.tools.mcp.server import START_TIMEOUT_S, TIMEOUT_S, McpServer
from nbagent.tools.tool_names import name_list

PROJECT_FILE = ".mcp.json"
_MAX_FILE_BYTES = 1_000_000
# The forms of Claude Code (`${NAME}`, `${NAME:-default}`) and VS Code (`${env:NAME}`).
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
# Programs that write such files spell streamable HTTP in three ways.
_TYPES = ("stdio", "http", "streamable-http", "streamableHttp")
_servers: dict[str, McpServer] = {}
"""Servers from `nbagent.mcp(…)`, by name."""
_allowed_identities: set[str] = set()
"""Identities of project servers that the person allowed; valid while this process lives."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectServer:
    """A server in a project's file that the person has not allowed yet."""

    name: str
    path: Path
    entry: Any
    """Entry as written in the file, with its variables not filled."""

    @property
    def identity(self) -> str:
        """Hash of everything that decides which program would be started."""
        return sha_of([self.name, os.path.realpath(self.path), self.entry])

    def allow(self) -> McpServer:
        """Trust this entry from now on; raise UsageError if it is not valid."""
        _allowed_identities.add(self.identity)
        return _server_from_entry(self.path, self.name, self.entry)


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
    """Register an MCP server under a name: `--tools mcp:NAME`, or `tools=[nbagent.mcp(…)]`.

    Nothing is started before a run uses the server. With a name alone, return the server of that
    name from this process, from `~/.config/nbagent/mcp.json` or from `.mcp.json` here. A call of
    this function counts as your approval; if only `--tools mcp:NAME` names an entry of `.mcp.json`,
    you are asked before it starts.

    Args:
        name: prefix of its tools: `name__tool`.
        command: program and arguments of a server that speaks over stdin and stdout.
        env: environment variables for the server, in addition to PATH, HOME and the like; put
            keys here.
        cwd: working directory of the server.
        url: address of a server that speaks streamable HTTP; https, or http on this machine.
        headers: sent with each request to `url`; put keys here.
        file: a JSON file with `{"mcpServers": {name: {command, args, env, url, headers}}}`.
        timeout: seconds without an answer or a progress message until a call is cancelled.
        start_timeout: seconds until a start is cancelled.

    Raises:
        UsageError: the arguments or the file are not valid; the message says where.
    """
    if file is not None:
        if command is not None or url is not None:
            raise UsageError("give nbagent.mcp only one of file=…, command=… and url=…")
        path = Path(file).expanduser()
        entries = _read_entries(path)
        if name not in entries:
            raise UsageError(f"{path} has no MCP server {name!r}; it has: {name_list(entries)}")
        server = _server_from_entry(path, name, entries[name])
    elif command is None and url is None:
        known = find_server(name, Path.cwd())
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


def known_servers() -> Mapping[str, McpServer]:
    """Servers made with `nbagent.mcp(…)` in this process, by name."""
    return dict(_servers)


def configured_servers() -> list[str]:
    """Names of trusted servers: made in this process, or in the person's own file."""
    in_file = _read_entries(_user_file()) if _user_file().is_file() else {}
    return list(dict.fromkeys([*_servers, *in_file]))


def find_server(name: str, project: Path) -> McpServer | ProjectServer:
    """Find the server of a name; raise UsageError if there is none.

    The entry of a project that is not allowed yet is returned as a `ProjectServer`.
    """
    if name in _servers:
        return _servers[name]
    names = list(_servers)
    for path, entries in _config_files(project):
        if name in entries:
            server = ProjectServer(name, path, entries[name])
            if path.name == PROJECT_FILE and server.identity not in _allowed_identities:
                return server
            return _server_from_entry(path, name, entries[name])
        names += entries
    raise UsageError(
        f"there is no MCP server {name!r}, there are: {name_list(dict.fromkeys(names)) or 'none'}; "
        f"make one with nbagent.mcp({name!r}, command=[…]) or write it into {PROJECT_FILE}"
    )


def _config_files(project: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the entries of the person's own file, then those of the project.

    The project's file is read only if it is needed, so that a broken one blocks no other server.
    """
    both = (_user_file(), project / PROJECT_FILE)
    yield from ((path, _read_entries(path)) for path in both if path.is_file())


def _user_file() -> Path:
    return Path.home() / ".config" / "nbagent" / "mcp.json"


def _read_entries(path: Path) -> dict[str, Any]:
    """Servers in a file by name, without the disabled ones."""
    try:
        with path.open("rb") as file:
            document = json_object(json.loads(file.read(_MAX_FILE_BYTES))) or {}
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} cannot be read as JSON ({error}); correct it") from None
    entries = json_object(document.get("mcpServers"))
    if entries is None or not is_storable_json(entries):
        raise UsageError(
            f'{path} has no MCP servers; write {{"mcpServers": {{"name": '
            '{"command": "…", "args": […]}}}'
        )
    return {
        name: entry
        for name, entry in entries.items()
        if (json_object(entry) or {}).get("disabled") is not True
    }


def _server_from_entry(path: Path, name: str, entry: Any) -> McpServer:
    try:
        fields = json_object(_fill_variables(entry)) or {}
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


def _fill_variables(value: Any) -> Any:
    """Fill the variables in all texts of a JSON value."""
    if isinstance(value, dict):
        return {key: _fill_variables(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_fill_variables(item) for item in cast("list[Any]", value)]
    return _VARIABLE.sub(_variable_value, value) if isinstance(value, str) else value


def _variable_value(match: re.Match[str]) -> str:
    # An empty variable counts as missing, as `:-` of a shell treats it.
    value = os.environ.get(match[1]) or match[2]
    if value is None:
        raise UsageError(
            f"it needs the variable {match[1]}, which is not set; set it before the kernel starts"
        )
    register_value(match[1], value)
    return value
