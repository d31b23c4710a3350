"""Addresses of servers: parse them, compare them by origin (scheme, host, port).

Pure: asks no server and reads no environment variable.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

from nbagent.contracts.errors import UsageError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
"""Value of a part of a template. Without dots and slashes it cannot name another server."""
_ANY_PART = re.compile(r"\\\{\w+\\\}")
_HOST_PART = "[a-z0-9-]+"
_CACHE_SIZE = 256  # Each turn asks again about the address of its server.


@lru_cache(_CACHE_SIZE)
def origin(url: str | None) -> str | None:
    """Scheme, host and port of an address; None for no address. A key belongs to one origin.

    An unreadable address has an origin of its own, so that it never equals another one.
    """
    if not url or not (url := url.strip()):
        return None
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return f"unreadable:{url}"
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def host_of(url: str | None) -> str:
    """Host of an address; empty if there is none or it cannot be read."""
    return urlsplit(origin(url) or "").hostname or ""


@lru_cache(_CACHE_SIZE)
def is_loopback(url: str | None) -> bool:
    """True if the host of an address is this machine."""
    host = host_of(url)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def normalize_base_url(
    text: str, *, default_path: str = "", endpoint_paths: Iterable[str] = ()
) -> str:
    """Complete a base URL that a person typed: add a scheme and a path, cut an endpoint's path.

    Args:
        default_path: path to add if only a host was given.
        endpoint_paths: paths of endpoints that people copy along; they are cut off.
    """
    text = text.strip()
    if "://" not in text:
        text = f"{'http' if is_loopback(text) else 'https'}://{text}"
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UsageError(f"the base URL {text!r} cannot be read; check it.") from None
    path = typed_path = parts.path.rstrip("/")
    for endpoint_path in endpoint_paths:
        path = path.removesuffix(endpoint_path).rstrip("/")
    if not path and not typed_path:
        path = default_path
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


@dataclass(frozen=True, slots=True)
class UrlTemplate:
    """A base URL with parts in braces that each person sets: `https://{region}.example.org/v1`."""

    text: str
    variables: Mapping[str, tuple[str, ...]]
    """Environment variables of each part; the first one that is set wins."""
    exceptions: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """Other templates, by a part and its value."""
    others: tuple[str, ...] = ()
    """Templates of further servers of the same provider."""

    def fill(
        self, provider: str, parts: Mapping[str, str | None], environ: Mapping[str, str]
    ) -> str:
        """Return the URL; `parts` that are set win over the environment.

        Raises:
            UsageError: a part is not set, or cannot be a part of an address.
        """
        values: dict[str, str] = {}
        for name, variables in self.variables.items():
            named = (environ.get(variable, "").strip() for variable in variables)
            value = parts.get(name) or next(filter(None, named), "")
            variable = " or ".join(variables)
            if not value:
                raise UsageError(
                    f"{provider} needs a {name}: set {variable} in the environment before the "
                    "kernel starts, or give the server's URL (base_url=…)."
                )
            if not _URL_PART.fullmatch(value):
                raise UsageError(
                    f"{variable} is {value!r}, which cannot be the {name} of {provider}; "
                    "write letters, digits and -."
                )
            values[name] = value
        special = next(
            (self.exceptions[part] for part in values.items() if part in self.exceptions), None
        )
        return (special or self.text).format_map(values)

    def matches(self, url: str | None) -> bool:
        """True if the address has the origin of this template, with any values of its parts."""
        at = origin(url) or ""
        return any(
            re.fullmatch(_ANY_PART.sub(_HOST_PART, re.escape(origin_text)), at)
            for text in (self.text, *self.exceptions.values(), *self.others)
            if (origin_text := origin(text))
        )
