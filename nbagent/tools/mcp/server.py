"""The `McpServer` value: command or URL, environment, headers and timeouts of an MCP server.

Owns the checks, the hiding of keys, and the table of open connections. Files with servers are read
in `config`; the protocol is spoken in `connection`.
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
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.secret_names import is_secret_name
from nbagent.contracts.secrets import SecretKey, redact, register_value
from nbagent.runtime import engine_loop, on_engine_thread

TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
MAX_TOOLS = 500
"""Limit for one server."""
_CLOSE_TIMEOUT_S = 8.0
"""Time for the `mcp` package to ask a server to end, and then to kill it."""
# Without `__`, which separates server and tool in `server__tool`.
_NAME = re.compile(r"(?!.*__)[^\W_][\w.-]{0,39}")
_PLAIN_HEADERS = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_FLAG = re.compile(r"--?[\w-]+")

SecretOrText = SecretKey | str
"""A value of the environment or of a header; a `SecretKey` if it may be a key."""


class McpServer:
    """An MCP server, made by `nbagent.mcp(…)`: pass it in `tools=` or name it: `--tools mcp:NAME`.

    It is started at its first use, shared by all runs of the process, and ended with the process.
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
        """Check the values of a person or a file; raise UsageError if one is not valid."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is not a valid name of an MCP server; use letters, digits, - . and "
                "single _, at most 40 characters"
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
        self.command: tuple[str, ...] = () if command is None else _split_command(name, command)
        self.env = _with_hidden_keys(name, "env", env)
        self.cwd = "" if command is None else os.path.abspath(Path(cwd or ".").expanduser())
        self.url = url
        self.headers = _with_hidden_keys(name, "headers", headers)
        self.timeout_s, self.start_timeout_s = float(timeout_s), float(start_timeout_s)

    @property
    def where(self) -> str:
        """Command line or URL, without keys."""
        return redact(self.url if self.url is not None else shlex.join(self.command))

    @cached_property
    def identity(self) -> str:
        """Hash of everything that decides which program or address a call reaches, and how."""
        revealed = [
            sorted(reveal_values(settings).items()) for settings in (self.env, self.headers)
        ]
        times = [self.timeout_s, self.start_timeout_s]
        return sha_of([self.name, list(self.command), self.cwd, self.url, *revealed, *times])

    def close(self) -> None:
        """End the process or connection now; the next use starts it again."""
        close_sessions(self._session)

    @property
    def is_running(self) -> bool:
        """True while the server is started or connected."""
        return self._session is not None and self._session.is_open

    @property
    def log(self) -> tuple[str, ...]:
        """Last lines that the server wrote to stderr."""
        return () if self._session is None else self._session.log_lines()

    @property
    def _session(self) -> SessionPort | None:
        connection = connections.get((self.identity, os.getpid()))
        return None if connection is None else connection.session

    def __repr__(self) -> str:
        return f"McpServer({self.name!r}, {self.where!r})"


class SessionPort(Protocol):
    """Session of a connection, from the start of a server to its end (see `connection`)."""

    @property
    def task(self) -> asyncio.Task[None]: ...
    @property
    def is_open(self) -> bool: ...
    def log_lines(self) -> tuple[str, ...]: ...
    async def end(self) -> None: ...


class ConnectionPort(Protocol):
    """Connection of a server, with the members that `McpServer` needs."""

    @property
    def server(self) -> McpServer: ...
    @property
    def session(self) -> SessionPort | None: ...


connections: dict[tuple[str, int], ConnectionPort] = {}
"""Connections by identity of the server and process id. None is ever removed: a run may still use a
server that was replaced, and a forked process that frees one would end its parent's server."""


def reveal_values(values: Mapping[str, SecretOrText]) -> dict[str, str]:
    """Return the plain values. Call it only to start or call the server."""
    return {k: v.reveal() if isinstance(v, SecretKey) else v for k, v in values.items()}


def is_loopback(url: str) -> bool:
    """True if the address belongs to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _split_command(name: str, command: str | Sequence[str]) -> tuple[str, ...]:
    try:
        parts: list[Any] = shlex.split(command) if isinstance(command, str) else list(command)
    except (TypeError, ValueError):
        parts = []
    arguments = tuple(map(str, parts))
    if not arguments or any(
        not isinstance(part, str | Path) or "\0" in str(part) for part in parts
    ):
        raise UsageError(
            f"the command of the MCP server {name!r} must be a list of texts, "
            "such as ['uvx', 'mcp-server-git']"
        )
    for flag, value in zip(arguments, (*arguments[1:], ""), strict=True):
        # Keys belong in env; one that is passed as an argument is hidden anyway.
        inside, equals, behind = flag.partition("=")
        if _FLAG.fullmatch(inside) and is_secret_name(inside):
            register_value(inside, behind if equals else value)
    return arguments


def _with_hidden_keys(
    name: str, label: str, texts_by_name: Mapping[str, str] | None
) -> Mapping[str, SecretOrText]:
    texts = cast("Mapping[str, str]", {} if texts_by_name is None else texts_by_name)
    control = re.compile(r"[\r\n\0]" if label == "headers" else "\0")
    try:
        is_wrong = any(control.search(text) for pair in texts.items() for text in pair)
    except (TypeError, AttributeError):  # Not a mapping of texts.
        is_wrong = True
    if is_wrong:
        raise UsageError(
            f"{label} of the MCP server {name!r} must be a dict of texts without control "
            "characters; correct it"
        )
    values: dict[str, SecretOrText] = dict(texts)
    for key, text in texts.items():
        # A header of any name may hold a key.
        is_secret = key.lower() not in _PLAIN_HEADERS if label == "headers" else is_secret_name(key)
        if is_secret:
            values[key] = SecretKey(text)
            # The key after `Bearer ` alone, too.
            register_value(key if is_secret_name(key) else "Authorization", text)
    return values


def _check_url(name: str, url: str) -> None:
    """Raise UsageError for an invalid URL or one with a key.

    URLs are shown and recorded, headers are not, so keys belong in headers.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (ValueError, AttributeError):
        parts, is_address = urlsplit(""), False
    secret = any(is_secret_name(key) for key, _ in parse_qsl(parts.query)) or "@" in parts.netloc
    if not is_address or secret or (parts.scheme == "http" and not is_loopback(url)):
        raise UsageError(
            f"the url of the MCP server {name!r} must be https://host/path, or http on this "
            "machine, without a login or a key; put these in headers={…}"
        )


def close_sessions(*sessions: SessionPort | None) -> None:
    """End servers: the package `mcp` asks each to end and then kills it. Any thread."""
    open_sessions = [
        session for session in sessions if session is not None and not session.task.done()
    ]
    ends = [
        asyncio.run_coroutine_threadsafe(session.end(), engine_loop()) for session in open_sessions
    ]
    if not on_engine_thread():  # There, waiting would block the loop that ends them.
        wait(ends, _CLOSE_TIMEOUT_S)


def _close_all() -> None:
    """End all servers at the exit of the process."""
    process = os.getpid()
    close_sessions(
        *(connection.session for (_, pid), connection in connections.items() if pid == process)
    )


atexit.register(_close_all)
