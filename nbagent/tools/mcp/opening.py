"""The two doors to MCP servers: `nbagent.mcp(…)` and the words of `--tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import overload

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.secrets import SecretKey
from nbagent.tools.base import HostOrder
from nbagent.tools.mcp.config import read_servers
from nbagent.tools.mcp.description import START_TIMEOUT_S, TIMEOUT_S, Protocol, described
from nbagent.tools.mcp.server import (
    McpServer,
    find_owner,
    find_server,
    host_of,
    known_servers,
    remember,
)


@overload
def mcp(
    name: str,
    *,
    command: str | Sequence[str] | None = None,
    env: Mapping[str, str | SecretKey] | None = None,
    cwd: str | Path | None = None,
    url: str | None = None,
    headers: Mapping[str, str | SecretKey] | None = None,
    timeout: float = TIMEOUT_S,
    start_timeout: float = START_TIMEOUT_S,
    protocol: Protocol = "auto",
) -> McpServer: ...
@overload
def mcp(name: str, *, file: str | Path) -> McpServer: ...
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
    written in `.mcp.json` here or in `~/.config/nbagent/mcp.json`.

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
        if name is None:
            return tuple(remember(one) for one in read_servers(path))
        for description in read_servers(path, only=name):
            return remember(description)
        raise UsageError(f"{path} has no MCP server {name!r}; give one of those in it")
    if name is None:
        raise UsageError("give the server a name, nbagent.mcp('git', command=[…]), or a file=…")
    if command is None and url is None:
        return find_server(name, Path.cwd())
    description = described(
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
    return remember(description)


def open_hosts(order: HostOrder) -> Sequence[ToolHost]:
    """A host for each server that the words name: `mcp:git`, `mcp` (all known), `git__log`.

    Raises:
        UsageError: there is no such server, or the package is not installed.
    """
    wanted: dict[str, tuple[McpServer, list[str] | None]] = {}
    for word in order.words:
        for server, tool in _meant(word, order.project):
            before = wanted.get(server.name, (server, []))[1]
            # All of its tools win over single ones.
            tools = None if before is None or tool is None else [*before, tool]
            wanted[server.name] = server, tools
    return [host_of(server, only) for server, only in wanted.values()]


def _meant(word: str, project: Path) -> list[tuple[McpServer, str | None]]:
    if word == "mcp":
        servers = known_servers()
        if not servers:
            raise UsageError(
                "no MCP server is known; make one with nbagent.mcp('name', command=[…]) "
                "or name one of a file: mcp:name"
            )
        return [(server, None) for server in servers.values()]
    if word.startswith("mcp:"):
        name = word.removeprefix("mcp:")
        if "__" in name:
            return [(find_owner(name, project), name)]
        return [(find_server(name, project), None)]
    return [(find_owner(word, project), word)]
