"""What an MCP server is: how it is started or reached, and those that this process knows.

Owns the checks and the hiding of keys. Finding a server by its name and files of servers are
`config`'s, talking to one is `connection`'s.
"""

from __future__ import annotations

import asyncio
import atexit
import ipaddress
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from urllib.parse import parse_qsl, urlsplit

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import ToolHost
from nbagent.contracts.secrets import SecretKey, is_secret_name, redact, register
from nbagent.runtime import engine_loop, on_engine_thread
from nbagent.tools.base import HostOrder

if TYPE_CHECKING:
    from nbagent.tools.mcp.connection import Connection, Life

Protocol = Literal["auto", "2025-11-25", "2026-07-28"]
TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
MOST_TOOLS = 500
"""Of one server."""
_CLOSE_S = 8.0
"""The `mcp` package asks a server to end, then ends it, within so long."""
_NAME = re.compile(r"(?!.*__)[^\W_][\w.-]{0,39}")
_PLAIN = re.compile(
    r"(?:[A-Za-z]+|\d{1,4})(?:[-_ /.,:+=]+(?:[A-Za-z]+|\d{1,4}))*"
    r"|(?:~|\.{0,2}[/\\]|[A-Za-z]:[/\\])[^@]*"
    r"|https?://[^@?]*"
)
"""Values that are no key: words and short numbers, paths, addresses. Hiding them would garble
ordinary text."""
_PLAIN_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_FLAG = re.compile(r"--?[\w-]+")

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
        env: Mapping[str, Held] | None = None,
        cwd: str | Path | None = None,
        url: str | None = None,
        headers: Mapping[str, Held] | None = None,
        timeout_s: float = TIMEOUT_S,
        start_timeout_s: float = START_TIMEOUT_S,
        protocol: Protocol = "auto",
        looked_up: bool = False,
    ) -> None:
        """Check and hold what a person gave.

        Args:
            looked_up: it was found in a file by its name; the file is read anew for each run.

        Raises:
            UsageError: it describes no server; the message says what to write.
        """
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
        if protocol not in get_args(Protocol):
            raise UsageError(f"protocol={protocol!r} is unknown; use one of {get_args(Protocol)}")
        if url is not None:
            _check_url(name, url)
        self.name = name
        self.command: tuple[str, ...] = () if command is None else _words(name, command)
        self.env = _held(name, "env", env)
        self.cwd = "" if command is None else os.path.abspath(Path(cwd or ".").expanduser())
        self.url = url
        self.headers = _held(name, "headers", headers)
        self.timeout_s, self.start_timeout_s = float(timeout_s), float(start_timeout_s)
        self.protocol: Protocol = protocol
        self.looked_up = looked_up

    @property
    def where(self) -> str:
        """Its command line or its URL, without keys."""
        return redact(self.url if self.url is not None else shlex.join(self.command))

    @property
    def identity(self) -> str:
        """Hash of the very program or address that a call reaches, and of what it is given."""
        held = [sorted(revealed(held).items()) for held in (self.env, self.headers)]
        return sha_of([self.name, list(self.command), self.cwd, self.url, *held])

    def open_hosts(self, order: HostOrder) -> Sequence[ToolHost]:
        """Its host, for one run."""
        check_installed()
        return [import_module("nbagent.tools.mcp.host").McpHost(self)]

    def connection(self) -> Connection:
        """The one connection to it, not open yet. Imports the package `mcp` the first time."""
        key = (self, os.getpid())
        if key not in _connections:
            try:
                made = import_module("nbagent.tools.mcp.connection").Connection(self)
            except ImportError as error:
                raise _missing(f" ({error})") from None
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
        connection = _connections.get((self, os.getpid()))
        return None if connection is None else connection.life

    def __repr__(self) -> str:
        given = {"env": list(self.env), "headers": list(self.headers)}
        names = "".join(f", {label}={keys!r}" for label, keys in given.items() if keys)
        return f"McpServer({self.name!r}, {self.where!r}{names})"


_servers: dict[str, McpServer] = {}
"""Those of this process by name."""
_connections: dict[tuple[McpServer, int], Connection] = {}
"""By server and process. None is ever taken out: a run may still use a server that was replaced,
and in a forked process freeing one would end the parent's server."""


def remember(server: McpServer) -> McpServer:
    """The server under its name; the one that is known already when nothing has changed."""
    old = _servers.get(server.name)
    if old is not None and _all_of(old) == _all_of(server):
        return old
    _servers[server.name] = server
    if old is not None:
        old.close()
    return server


def _all_of(server: McpServer) -> tuple[Any, ...]:
    times = (server.timeout_s, server.start_timeout_s)
    return (server.identity, times, server.protocol, server.looked_up)


def known_servers() -> Mapping[str, McpServer]:
    """By name, those made with `nbagent.mcp(…)`, or used from a file, in this process."""
    return dict(_servers)


def prefix_of(server: str) -> str:
    """What the names of a server's tools begin with, in characters that every wire takes."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", server) + "__"


def revealed(held: Mapping[str, Held]) -> dict[str, str]:
    """The plain values. Only what starts or calls the server asks for them."""
    return {k: v.reveal() if isinstance(v, SecretKey) else v for k, v in held.items()}


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of this name and value may hold a key."""
    return is_secret_name(name) or not _PLAIN.fullmatch(value)


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_installed() -> None:
    """Raises a UsageError when the package `mcp` is not there. Imports nothing."""
    if find_spec("mcp") is None:
        raise _missing("")


def _missing(why: str) -> UsageError:
    return UsageError(
        f"MCP servers need the package mcp, version 2{why}; install it with "
        "%pip install 'nbagent[mcp]' and restart the kernel"
    )


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


def _held(name: str, label: str, given: Mapping[str, Held] | None) -> Mapping[str, Held]:
    wrong = UsageError(
        f"{label} of the MCP server {name!r} must be texts by their names, without control "
        "characters; correct them"
    )
    if not isinstance(cast("Any", given), Mapping | None):
        raise wrong
    held: dict[str, Held] = {}
    for key, value in cast("Mapping[Any, Any]", given or {}).items():
        plain = value.reveal() if isinstance(value, SecretKey) else value
        if not isinstance(key, str) or not isinstance(plain, str):
            raise wrong
        if re.search(r"[\r\n\0]" if label == "headers" else "\0", key + plain):
            raise wrong
        held[key] = value
        is_open = key.lower() in _PLAIN_HEADERS if label == "headers" else not is_secret(key, plain)
        if isinstance(value, str) and not is_open:
            held[key] = SecretKey(value)
            register(value.partition(" ")[2])  # What stands behind `Bearer`.
    return held


def _check_url(name: str, url: str) -> None:
    """Keys go in headers, where no log and no record shows them; not in the address."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (ValueError, AttributeError):
        parts, is_address = urlsplit(""), False
    if not is_address:
        raise UsageError(f"url={url!r} of {name!r} is no address; write https://host/path")
    secret = any(is_secret_name(key) for key, _ in parse_qsl(parts.query))
    if secret or parts.username is not None or parts.password is not None:
        raise UsageError(
            f"the URL of the MCP server {name!r} holds a key or a login; give it in headers={{…}}, "
            "where nothing shows it"
        )
    if parts.scheme == "http" and not is_loopback(url):
        raise UsageError(
            f"url={url!r} of {name!r} is not encrypted; use https (http is for this machine only)"
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
