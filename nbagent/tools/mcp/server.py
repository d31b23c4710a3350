"""The MCP servers that are known in this process: made by hand, or found in a file.

Owns the value that a person holds and how a server is found by its name.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.tools.base import HostOrder, nearest
from nbagent.tools.mcp.config import PROJECT_FILE, names_in, places, read_servers
from nbagent.tools.mcp.connection import check_installed
from nbagent.tools.mcp.connections import close_connection, connection_to
from nbagent.tools.mcp.description import Description
from nbagent.tools.mcp.host import McpHost


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class McpServer(Description):
    """An MCP server: put it among `tools=` or name it in `--tools mcp:NAME`.

    It is started at the first use, shared by all runs of the process, and ended with it.
    """

    def open_hosts(self, order: HostOrder) -> Sequence[ToolHost]:
        """Its host, for one run."""
        return [host_of(self)]

    def close(self) -> None:
        """End its process or connection now; the next use starts it again."""
        close_connection(self)

    @property
    def is_running(self) -> bool:
        """Whether it is started or connected."""
        return connection_to(self).is_open

    @property
    def log(self) -> tuple[str, ...]:
        """The last lines that it wrote to stderr or logged."""
        return tuple(connection_to(self).log_lines())


class _Known:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.servers: dict[str, McpServer] = {}
        self.looked_up: set[str] = set()
        """Names that were found in a file when they were needed, and are read anew each time."""


_known = _Known()


def remember(description: Description, *, looked_up: bool = False) -> McpServer:
    """The server under its name; the one that is known already when nothing has changed."""
    with _known.lock:
        old = _known.servers.get(description.name)
        (_known.looked_up.add if looked_up else _known.looked_up.discard)(description.name)
        if old is not None and old.is_same(description):
            return old
        values = {field.name: getattr(description, field.name) for field in fields(description)}
        made = _known.servers[description.name] = McpServer(**values)
    if old is not None:
        close_connection(old)
    return made


def known_servers() -> Mapping[str, McpServer]:
    """By name, those made with `nbagent.mcp(…)`, or used from a file, in this process."""
    return dict(_known.servers)


def find_server(name: str, project: Path) -> McpServer:
    """The server of this name: known, or in a file of the project or the person.

    Raises:
        UsageError: there is none, or the file is wrong.
    """
    found = _found(name, project)
    if found is not None:
        return found
    there = _all_names(project)
    close = nearest(name, there)
    hint = f"; did you mean {close!r}?" if close else ""
    raise UsageError(
        f"there is no MCP server {name!r}{hint}; make one with "
        f"nbagent.mcp({name!r}, command=[…]) or write it into {PROJECT_FILE}"
    )


def find_owner(tool: str, project: Path) -> McpServer:
    """The server that a tool's name (`server__tool`) begins with.

    Raises:
        UsageError: there is none.
    """
    names = sorted(_all_names(project), key=len, reverse=True)
    for name in names:
        if tool.startswith(Description(name=name).prefix):
            return find_server(name, project)
    return find_server(tool.partition("__")[0], project)


def host_of(server: McpServer, only: Iterable[str] | None = None) -> McpHost:
    """A host for one run."""
    check_installed()
    return McpHost(connection_to(server), only)


def _found(name: str, project: Path) -> McpServer | None:
    known = _known.servers.get(name)
    if known is not None and name not in _known.looked_up:
        return known
    for path in places(project):
        if path.is_file():
            for description in read_servers(path, only=name):
                return remember(description, looked_up=True)
    return known


def _all_names(project: Path) -> list[str]:
    names = list(_known.servers)
    for path in places(project):
        if path.is_file():
            names += names_in(path)
    return list(dict.fromkeys(names))
