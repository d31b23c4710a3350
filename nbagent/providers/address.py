"""Addresses of servers: read once, compared by origin (scheme, host, port). Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from nbagent.contracts.errors import UsageError

if TYPE_CHECKING:
    pass


_PORTS = {"http": 80, "https": 443}


_ADDRESSES = 256
"""So many addresses are kept as they were read: each turn asks about the one of its server."""


@lru_cache(_ADDRESSES)
def origin(url: str | None) -> str | None:
    """Scheme, host and port of an address: what a key is made for. None for no address."""
    if not url:
        return None
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        return f"unreadable:{url}"
    host = parts.hostname or ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def host_of(url: str | None) -> str:
    """The host of an address; empty where there is none or it cannot be read."""
    return urlsplit(origin(url) or "").hostname or ""


@lru_cache(_ADDRESSES)
def is_loopback(url: str | None) -> bool:
    """Whether the host of an address is this machine."""
    host = host_of(url)
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def normal_base_url(text: str, *, home: str = "", endings: Iterable[str] = ()) -> str:
    """A base URL as it was meant: with a scheme, without an endpoint's path, with a path.

    Args:
        home: the path where a host was given alone.
        endings: paths of endpoints that people copy along.
    """
    text = text.strip()
    if "://" not in text:
        text = f"{'http' if is_loopback(text) else 'https'}://{text}"
    try:
        parts = urlsplit(text)
    except ValueError:
        raise UsageError(f"the base URL {text!r} cannot be read; check it.") from None
    path = given = parts.path.rstrip("/")
    for ending in endings:
        path = path.removesuffix(ending).rstrip("/")
    if not path and not given:
        path = home
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
