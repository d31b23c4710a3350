"""An MCP server as a value: how it is started or reached, and what of that is secret.

Owns the checks and the hiding of keys. Starting it is `connection`'s, files are `config`'s.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import parse_qsl, urlsplit

from nbagent.contracts.canonical import sha_of
from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import SecretKey, redact, register

Protocol = Literal["auto", "2025-11-25", "2026-07-28"]
TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
_NAME = re.compile(r"(?!.*__)[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
_SECRET_NAME = re.compile(
    r"key|token|secret|passw|pwd|auth|cred|cookie|session|bearer|signature|dsn|(?:^|[_-])pat(?:$|[_-])",
    re.IGNORECASE,
)
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


def _nothing() -> dict[str, Held]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Description:
    """How an MCP server is started (`command`) or reached (`url`). Made by `described`."""

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, Held] = field(default_factory=_nothing)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, Held] = field(default_factory=_nothing)
    timeout_s: float = TIMEOUT_S
    """Without an answer or a sign of progress for so long, a call is given up."""
    start_timeout_s: float = START_TIMEOUT_S
    protocol: Protocol = "auto"
    source: str = ""
    """The file that it stands in."""

    @property
    def host_name(self) -> str:
        """The name of its tool host."""
        return f"mcp:{self.name}"

    @property
    def prefix(self) -> str:
        """What the names of its tools begin with."""
        return re.sub(r"[^A-Za-z0-9_-]", "_", self.name) + "__"

    @property
    def where(self) -> str:
        """Its command line or its URL, without keys."""
        return redact(self.url if self.url is not None else shlex.join(self.command))

    @property
    def identity(self) -> str:
        """Hash of the very program or address that a call reaches, and of what it is given."""
        folder = "" if self.url is not None else os.path.realpath(self.cwd or ".")
        return sha_of(
            [self.name, list(self.command), folder, self.url]
            + [sorted(revealed(held).items()) for held in (self.env, self.headers)]
        )

    def is_same(self, other: Description) -> bool:
        """Whether both mean the same server, started in the same way."""
        return self._all() == other._all()

    def _all(self) -> tuple[Any, ...]:
        return (
            (self.name, self.command, self.cwd, self.url, self.protocol),
            (self.timeout_s, self.start_timeout_s),
            revealed(self.env),
            revealed(self.headers),
        )

    def __repr__(self) -> str:
        told = [repr(self.name)]
        if self.url is not None:
            told.append(f"url={self.where!r}")
        else:
            told.append(f"command={[redact(word) for word in self.command]!r}")
        for label, held in (("env", self.env), ("headers", self.headers)):
            if held:
                told.append(f"{label}={{{', '.join(f'{name!r}: ***' for name in held)}}}")
        return f"{type(self).__name__}({', '.join(told)})"


def revealed(held: Mapping[str, Held]) -> dict[str, str]:
    """The plain values. Only what starts or calls the server asks for them."""
    return {k: v.reveal() if isinstance(v, SecretKey) else v for k, v in held.items()}


def described(
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
    source: str = "",
) -> Description:
    """Check and hold what a person gave.

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
    return Description(
        name=name,
        command=_words(name, command, args) if command is not None else (),
        env=_held(name, "env", env, _is_secret),
        cwd=None if cwd is None else str(Path(cwd).expanduser()),
        url=url,
        headers=_held(name, "headers", headers, _is_secret_header),
        timeout_s=float(timeout_s),
        start_timeout_s=float(start_timeout_s),
        protocol=protocol,
        source=source,
    )


def note_value(name: str, value: str) -> None:
    """Hide a value from now on, if the name of the variable that gave it says that it is a key."""
    if _is_secret(name, value):
        register(value)


def is_loopback(url: str) -> bool:
    """Whether the address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _words(name: str, command: str | Sequence[str], args: Sequence[str]) -> tuple[str, ...]:
    try:
        words = shlex.split(command) if isinstance(command, str) and not args else command
    except ValueError as error:
        raise UsageError(
            f"the command of the MCP server {name!r} cannot be split ({error}); give it as a list"
        ) from None
    given: list[Any] = [*([words] if isinstance(words, str) else words), *args]
    if not given or not all(isinstance(word, str | Path) for word in given) or not str(given[0]):
        raise UsageError(
            f"the command of the MCP server {name!r} must be a list of texts, "
            "such as ['uvx', 'mcp-server-git']"
        )
    told = tuple(str(word) for word in given)
    if any("\0" in word for word in told):
        raise UsageError(f"the command of the MCP server {name!r} has a NUL in it; take it out")
    for flag, value in zip(told, (*told[1:], ""), strict=True):
        # Keys belong into env; one that is given as an argument is hidden all the same.
        inside, equals, behind = flag.partition("=")
        if _FLAG.fullmatch(inside) and _SECRET_NAME.search(inside):
            register(behind if equals else value)
    return told


def _held(
    name: str, label: str, given: Mapping[str, Held] | None, is_secret: Any
) -> Mapping[str, Held]:
    held: dict[str, Held] = {}
    for key, value in cast("dict[Any, Any]", dict(given or {})).items():
        if not isinstance(key, str) or not isinstance(value, str | SecretKey):
            raise UsageError(f"{label} of the MCP server {name!r} must be texts; correct {key!r}")
        plain = value if isinstance(value, str) else value.reveal()
        if "\0" in key + plain or (label == "headers" and re.search(r"[\r\n]", key + plain)):
            raise UsageError(
                f"{label}[{key!r}] of the MCP server {name!r} holds a control character; "
                "take it out"
            )
        if isinstance(value, str) and is_secret(key, value):
            value = SecretKey(value)
            if label == "headers" and " " in plain:
                register(plain.partition(" ")[2])  # What stands behind `Bearer`.
        held[key] = value
    return held


def _is_secret(name: str, value: str) -> bool:
    return bool(_SECRET_NAME.search(name)) or not _PLAIN.fullmatch(value)


def _is_secret_header(name: str, value: str) -> bool:
    return name.lower() not in _PLAIN_HEADERS


def _check_url(name: str, url: str) -> None:
    """Keys go in headers, where no log and no record shows them; not in the address."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError(f"url={url!r} of {name!r} is no address; write https://host/path")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"the URL of the MCP server {name!r} holds a login; give it in headers={{…}} instead"
        )
    secret = [key for key, _ in parse_qsl(parts.query) if _SECRET_NAME.search(key)]
    if secret:
        raise UsageError(
            f"the URL of the MCP server {name!r} holds {secret[0]!r}; give it in headers={{…}}, "
            "where nothing shows it"
        )
    if parts.scheme == "http" and not is_loopback(url):
        raise UsageError(
            f"url={url!r} of {name!r} is not encrypted; use https (http is for this machine only)"
        )
