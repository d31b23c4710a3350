"""What an MCP server is: `nbagent.mcp(…)`, `mcpServers` files, and those that this process knows.

Owns the checks, the hiding of keys, and `${VARIABLE}` in files. A project's `.mcp.json` is a
stranger's: no variable of it is filled and nothing of it is started before the person allowed that
very entry. Talking to a server is `connection`'s.
"""

from __future__ import annotations

import asyncio
import atexit
import ipaddress
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, urlsplit

from nbagent.contracts.canonical import json_object, sha_of
from nbagent.contracts.chat import is_keepable
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.secrets import SecretKey, is_secret_name, redact, register
from nbagent.runtime import engine_loop, on_engine_thread
from nbagent.tools.base import HostOrder, listed

if TYPE_CHECKING:
    from nbagent.tools.mcp.connection import Connection, Life

TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
MOST_TOOLS = 500
"""Of one server."""
_CLOSE_S = 8.0
"""The `mcp` package asks a server to end, then ends it, within so long."""
_NAME = re.compile(r"(?!.*__)[^\W_][\w.-]{0,39}")
_PLAIN_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_FLAG = re.compile(r"--?[\w-]+")
PROJECT_FILE = ".mcp.json"
_MOST_BYTES = 1_000_000
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
_TYPES = ("stdio", "http", "streamable-http", "streamableHttp")
_allowed: set[str] = set()
"""Identities of projects' servers that the person allowed, as long as this process lives."""

Held = SecretKey | str
"""A value of the environment or of a header; a `SecretKey` when it may be a key."""


class McpServer:
    """An MCP server: put it among `tools=` or name it in `--tools mcp:NAME`.

    It is started at the first use, shared by all runs of the process, and ended with it. Made by
    `nbagent.mcp(…)`.
    """

    def __init__(
        self,
        name: str,
        *,
        command: str | Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Check and hold what a person or a file gave; a UsageError says what to write."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name for an MCP server; use letters, digits, - . and single _, "
                "at most 40 characters"
            )
        if (command is None) == (url is None):
            raise UsageError(
                f"the MCP server {name!r} needs either command=[…] or url=…; give one of them"
            )
        if not all(0 < seconds < math.inf for seconds in (timeout_s, start_timeout_s)):
            raise UsageError(f"the timeouts of {name!r} must be more than 0 seconds")
        if url is not None:
            _check_url(name, url)
        self.name = name
        self.command: tuple[str, ...] = () if command is None else _words(name, command)
        self.env = _held(name, "env", env)
        self.cwd = "" if command is None else os.path.abspath(Path(cwd or ".").expanduser())
        self.url = url
        self.headers = _held(name, "headers", headers)
        self.timeout_s, self.start_timeout_s = float(timeout_s), float(start_timeout_s)

    @property
    def where(self) -> str:
        """Its command line or its URL, without keys."""
        return redact(self.url if self.url is not None else shlex.join(self.command))

    @cached_property
    def identity(self) -> str:
        """Hash of the very program or address that a call reaches, and of what it is given."""
        held = [sorted(revealed(held).items()) for held in (self.env, self.headers)]
        times = [self.timeout_s, self.start_timeout_s]
        return sha_of([self.name, list(self.command), self.cwd, self.url, *held, *times])

    def open_hosts(self, order: HostOrder) -> Sequence[ToolHost]:
        """Its host, for one run."""
        return [import_module("nbagent.tools.mcp.host").McpHost(self)]

    def connection(self) -> Connection:
        """The one connection to it, not open yet. Imports the package `mcp` the first time.

        A server that had its name before is ended.
        """
        key = (self.identity, os.getpid())
        if key not in _connections:
            try:
                made = import_module("nbagent.tools.mcp.connection").Connection(self)
            except ImportError as error:
                raise UsageError(
                    f"MCP servers need the package mcp, version 2 ({error}); install it with "
                    "%pip install 'nbagent[mcp]' and restart the kernel"
                ) from None
            here = [one for (_, where), one in list(_connections.items()) if where == key[1]]
            _close(*(one.life for one in here if one.server.name == self.name))
            _connections.setdefault(key, made)
        return _connections[key]

    def close(self) -> None:
        """End its process or connection now; the next use starts it again."""
        _close(self._life)

    @property
    def is_running(self) -> bool:
        """Whether it is started or connected."""
        return self._life is not None and self._life.is_open

    @property
    def log(self) -> tuple[str, ...]:
        """The last lines that it wrote to stderr."""
        return () if self._life is None else self._life.log_lines()

    @property
    def _life(self) -> Life | None:
        connection = _connections.get((self.identity, os.getpid()))
        return None if connection is None else connection.life

    def __repr__(self) -> str:
        return f"McpServer({self.name!r}, {self.where!r})"


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
_connections: dict[tuple[str, int], Connection] = {}
"""By the server's identity and process. None is ever taken out: a run may still use a server that
was replaced, and in a forked process freeing one would end the parent's server."""


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
        register(value)
    return value


def revealed(held: Mapping[str, Held]) -> dict[str, str]:
    """The plain values. Only what starts or calls the server asks for them."""
    return {k: v.reveal() if isinstance(v, SecretKey) else v for k, v in held.items()}


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _words(name: str, command: str | Sequence[str]) -> tuple[str, ...]:
    try:
        given: list[Any] = shlex.split(command) if isinstance(command, str) else list(command)
    except (TypeError, ValueError):
        given = []
    words = tuple(map(str, given))
    if not words or any(not isinstance(word, str | Path) or "\0" in str(word) for word in given):
        raise UsageError(
            f"the command of the MCP server {name!r} must be a list of texts, "
            "such as ['uvx', 'mcp-server-git']"
        )
    for flag, value in zip(words, (*words[1:], ""), strict=True):
        # Keys belong into env; one that is given as an argument is hidden all the same.
        inside, equals, behind = flag.partition("=")
        if _FLAG.fullmatch(inside) and is_secret_name(inside):
            register(behind if equals else value)
    return words


def _held(name: str, label: str, given: Mapping[str, str] | None) -> Mapping[str, Held]:
    texts = cast("Mapping[str, str]", {} if given is None else given)
    control = re.compile(r"[\r\n\0]" if label == "headers" else "\0")
    try:
        is_wrong = any(control.search(text) for pair in texts.items() for text in pair)
    except (TypeError, AttributeError):  # Something else than texts.
        is_wrong = True
    if is_wrong:
        raise UsageError(
            f"{label} of the MCP server {name!r} must be texts by their names, without control "
            "characters; correct them"
        )
    held: dict[str, Held] = dict(texts)
    for key, text in texts.items():
        is_secret = key.lower() not in _PLAIN_HEADERS if label == "headers" else is_secret_name(key)
        if is_secret:
            held[key] = SecretKey(text)
            register(text.partition(" ")[2])  # What stands behind `Bearer`.
    return held


def _check_url(name: str, url: str) -> None:
    """Keys go in headers, where no log and no record shows them; not in the address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (ValueError, AttributeError):
        parts, is_address = urlsplit(""), False
    secret = any(is_secret_name(key) for key, _ in parse_qsl(parts.query)) or "@" in parts.netloc
    if not is_address or secret or (parts.scheme == "http" and not is_loopback(url)):
        raise UsageError(
            f"the url of the MCP server {name!r} must be https://host/path, or http on this "
            "machine, without a login or a key, which belong into headers={…}"
        )


def _close(*lives: Life | None) -> None:
    left = [life for life in lives if life is not None and not life.task.done()]
    ends = [asyncio.run_coroutine_threadsafe(life.end(), engine_loop()) for life in left]
    if not on_engine_thread():
        wait(ends, _CLOSE_S)


def _close_all() -> None:
    """At the end of the process: no server is left behind."""
    process = os.getpid()
    _close(*(one.life for (_, where), one in _connections.items() if where == process))


atexit.register(_close_all)
