"""Addresses of servers: parse them, compare them by origin (scheme, host, port).

Pure: asks no server and reads no environment variable.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import urlsplit, urlunsplit

from nbagent.contracts.errors import UsageError

_DEFAULT_PORTS = {"http": 80, "https": 443}
_CACHE_SIZE = 256  # Each turn asks again about the address of its server.


@lru_cache(_CACHE_SIZE)
def origin(url: str | None) -> str | None:
    """Scheme, host and port of an address; None for no address. A key belongs to one origin.

    An unreadable address has an origin of its own, so that it never equals another one.
    """
    if not url:
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
