"""What an MCP server is: `nbagent.mcp(…)`, `mcpServers` files, and those that this process knows.

Owns the checks, the hiding of keys, and `${VARIABLE}` in files. A project's `.mcp.json` is a
stranger's: no variable of it is filled and nothing of it is started before the person allowed that
very entry. Talking to a server is `connection`'s.
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
from nbagent.contracts.secrets import SecretKey, is_secret_name, redact, register_secret
from nbagent.runtime import engine_loop, on_engine_thread

TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
MOST_TOOLS = 500
"""Of one server."""
_CLOSE_S = 8.0
"""The `mcp` package asks a server to end, then ends it, within so long."""
_NAME = re.compile(r"(?!.*__)[^\W_][\w.-]{0,39}")
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

    def close(self) -> None:
        """End its process or connection now; the next use starts it again."""
        close_lives(self._life)

    @property
    def is_running(self) -> bool:
        """Whether it is started or connected."""
        return self._life is not None and self._life.is_open

    @property
    def log(self) -> tuple[str, ...]:
        """The last lines that it wrote to stderr."""
        return () if self._life is None else self._life.log_lines()

    @property
    def _life(self) -> ServerLife | None:
        connection = connections.get((self.identity, os.getpid()))
        return None if connection is None else connection.life

    def __repr__(self) -> str:
        return f"McpServer({self.name!r}, {self.where!r})"


class ServerLife(Protocol):
    """One life of a connection, from the start of the server to its end."""

    @property
    def task(self) -> asyncio.Task[None]: ...
    @property
    def is_open(self) -> bool: ...
    def log_lines(self) -> tuple[str, ...]: ...
    async def end(self) -> None: ...


class ServerConnection(Protocol):
    """The connection of a server, as far as the server itself asks about it."""

    @property
    def server(self) -> McpServer: ...
    @property
    def life(self) -> ServerLife | None: ...


connections: dict[tuple[str, int], ServerConnection] = {}
"""By the server's identity and process. None is ever taken out: a run may still use a server that
was replaced, and in a forked process freeing one would end the parent's server."""


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
            register_secret(behind if equals else value)
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
            register_secret(text.partition(" ")[2])  # What stands behind `Bearer`.
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


def close_lives(*lives: ServerLife | None) -> None:
    """End servers: each is asked to end, then ended by the package `mcp`. Any thread."""
    left = [life for life in lives if life is not None and not life.task.done()]
    ends = [asyncio.run_coroutine_threadsafe(life.end(), engine_loop()) for life in left]
    if not on_engine_thread():
        wait(ends, _CLOSE_S)


def _close_all() -> None:
    """At the end of the process: no server is left behind."""
    process = os.getpid()
    close_lives(*(one.life for (_, pid), one in connections.items() if pid == process))


atexit.register(_close_all)
