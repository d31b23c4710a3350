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
from contextlib import suppress
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
    from nbagent.tools.mcp.connection import Connection

Protocol = Literal["auto", "2025-11-25", "2026-07-28"]
TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
MOST_TOOLS = 500
"""Of one server."""
_CLOSE_S = 8.0
"""The `mcp` package asks a server to end, then ends it, within so long."""
_NAME = re.compile(r"(?!.*__)[^\W_][\w.-]{0,39}")
_NOT_ON_WIRES = re.compile(r"[^A-Za-z0-9_-]")
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
        args: Sequence[str] = (),
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
            timeout_s: without an answer or a sign of progress for so long, a call is given up.
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
        for label, seconds in (("timeout", timeout_s), ("start_timeout", start_timeout_s)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise UsageError(f"{label}={seconds!r} of {name!r} must be more than 0 seconds")
        if protocol not in get_args(Protocol):
            raise UsageError(f"protocol={protocol!r} is unknown; use one of {get_args(Protocol)}")
        if url is not None:
            _check_url(name, url)
        self.name = name
        self.command: tuple[str, ...] = () if command is None else _words(name, command, args)
        self.env = _held(name, "env", env)
        self.cwd = "" if command is None else os.path.abspath(Path(cwd or ".").expanduser())
        self.url = url
        self.headers = _held(name, "headers", headers)
        self.timeout_s, self.start_timeout_s = float(timeout_s), float(start_timeout_s)
        self.protocol: Protocol = protocol
        self.looked_up = looked_up

    @property
    def host_name(self) -> str:
        """The name of its tool host."""
        return f"mcp:{self.name}"

    @property
    def where(self) -> str:
        """Its command line or its URL, without keys."""
        return redact(self.url if self.url is not None else shlex.join(self.command))

    @property
    def identity(self) -> str:
        """Hash of the very program or address that a call reaches, and of what it is given."""
        held = [sorted(revealed(held).items()) for held in (self.env, self.headers)]
        return sha_of([self.name, list(self.command), self.cwd, self.url, *held])

    def is_same(self, other: McpServer) -> bool:
        """Whether both mean the same server, started and waited for in the same way."""
        one, two = ((s.identity, s.timeout_s, s.start_timeout_s, s.protocol) for s in (self, other))
        return one == two

    def open_hosts(self, order: HostOrder) -> Sequence[ToolHost]:
        """Its host, for one run."""
        check_installed()
        return [import_module("nbagent.tools.mcp.host").McpHost(self)]

    def connection(self) -> Connection:
        """The one connection to it, not open yet. Imports the package `mcp` the first time."""
        if self._open() is None:
            check_installed()
            try:
                module = import_module("nbagent.tools.mcp.connection")
            except ImportError as error:
                raise _missing(f" ({error})") from None
            _known.connections.setdefault((self, os.getpid()), module.Connection(self))
        return _known.connections[self, os.getpid()]

    def _open(self) -> Connection | None:
        return _known.connections.get((self, os.getpid()))

    def close(self) -> None:
        """End its process or connection now; the next use starts it again."""
        connection = self._open()
        if connection is not None and not connection.has_ended:
            closing = asyncio.run_coroutine_threadsafe(connection.close(), engine_loop())
            if not on_engine_thread():
                with suppress(TimeoutError):
                    closing.result(_CLOSE_S)

    @property
    def is_running(self) -> bool:
        """Whether it is started or connected."""
        connection = self._open()
        return connection is not None and connection.is_open

    @property
    def log(self) -> tuple[str, ...]:
        """The last lines that it wrote to stderr or logged."""
        connection = self._open()
        return () if connection is None else connection.log_lines()

    def __repr__(self) -> str:
        words = [redact(word) for word in self.command]
        where = f"command={words!r}" if self.url is None else f"url={self.where!r}"
        names = {"env": list(self.env), "headers": list(self.headers)}
        held = "".join(f", {label}={keys!r}" for label, keys in names.items() if keys)
        return f"McpServer({self.name!r}, {where}{held})"


class _Known:
    """The servers of this process."""

    def __init__(self) -> None:
        self.servers: dict[str, McpServer] = {}
        self.connections: dict[tuple[McpServer, int], Connection] = {}
        """By server and process. None is ever taken out: a run may still use a server that was
        replaced, and in a forked process freeing one would end the parent's server."""


_known = _Known()


def remember(server: McpServer) -> McpServer:
    """The server under its name; the one that is known already when nothing has changed."""
    old = _known.servers.get(server.name)
    if old is not None and old.is_same(server) and old.looked_up == server.looked_up:
        return old
    _known.servers[server.name] = server
    if old is not None:
        old.close()
    return server


def known_servers() -> Mapping[str, McpServer]:
    """By name, those made with `nbagent.mcp(…)`, or used from a file, in this process."""
    return dict(_known.servers)


def prefix_of(server: str) -> str:
    """What the names of a server's tools begin with, in characters that every wire takes."""
    return _NOT_ON_WIRES.sub("_", server) + "__"


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


def _words(name: str, command: str | Sequence[str], args: Sequence[str]) -> tuple[str, ...]:
    try:
        words = shlex.split(command) if isinstance(command, str) and not args else command
    except ValueError as error:
        raise UsageError(
            f"the command of the MCP server {name!r} cannot be split ({error}); give it as a list"
        ) from None
    given: list[Any] = [*([words] if isinstance(words, str) else words), *args]
    texts = tuple(str(word) for word in given)
    fit = all(isinstance(word, str | Path) and "\0" not in str(word) for word in given)
    if not fit or not texts or not texts[0] or isinstance(args, str):
        raise UsageError(
            f"the command of the MCP server {name!r} must be a list of texts, "
            "such as ['uvx', 'mcp-server-git']"
        )
    for flag, value in zip(texts, (*texts[1:], ""), strict=True):
        # Keys belong into env; one that is given as an argument is hidden all the same.
        inside, equals, behind = flag.partition("=")
        if _FLAG.fullmatch(inside) and is_secret_name(inside):
            register(behind if equals else value)
    return texts


def _held(name: str, label: str, given: Mapping[str, Held] | None) -> Mapping[str, Held]:
    if not isinstance(cast("Any", given), dict | None):
        raise UsageError(f"{label} of the MCP server {name!r} must be texts by their names")
    held: dict[str, Held] = {}
    for key, value in cast("dict[Any, Any]", given or {}).items():
        if not isinstance(key, str) or not isinstance(value, str | SecretKey):
            raise UsageError(f"{label} of the MCP server {name!r} must be texts; correct {key!r}")
        plain = value if isinstance(value, str) else value.reveal()
        if "\0" in key + plain or (label == "headers" and re.search(r"[\r\n]", key + plain)):
            raise UsageError(
                f"{label}[{key!r}] of the MCP server {name!r} holds a control character; "
                "take it out"
            )
        header = label == "headers" and key.lower() not in _PLAIN_HEADERS
        if isinstance(value, str) and (header or (label == "env" and is_secret(key, value))):
            value = SecretKey(value)
            register(plain.partition(" ")[2] if header else "")  # What stands behind `Bearer`.
        held[key] = value
    return held


def _check_url(name: str, url: str) -> None:
    """Keys go in headers, where no log and no record shows them; not in the address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except (ValueError, AttributeError):
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"url={url!r} of {name!r} is no address; write https://host/path")
    secret = [key for key, _ in parse_qsl(parts.query) if is_secret_name(key)]
    if parts.username is not None or parts.password is not None or secret:
        raise UsageError(
            f"the URL of the MCP server {name!r} holds {secret[0] if secret else 'a login'!r}; "
            "give it in headers={…}, where nothing shows it"
        )
    if parts.scheme == "http" and not is_loopback(url):
        raise UsageError(
            f"url={url!r} of {name!r} is not encrypted; use https (http is for this machine only)"
        )


def _close_all() -> None:
    """At the end of the process: no server is left behind."""
    ours = (one for (_, process), one in _known.connections.items() if process == os.getpid())
    left = [one for one in ours if not one.has_ended]
    if left:
        loop = engine_loop()
        wait([asyncio.run_coroutine_threadsafe(one.close(), loop) for one in left], _CLOSE_S)


atexit.register(_close_all)
