"""Where a model server is and how it is reached: its base URL, the proxy, the certificates.

Reads HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR. Opens nothing.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from functools import cache
from urllib.parse import SplitResult, unquote, urlsplit

from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import register
from nbagent.providers.base import is_loopback

_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
"""Names, IPv4, IPv6 with its zone; nothing else is worth asking a resolver for."""
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy."""

    scheme: str
    host: str
    port: int | None
    login: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Route:
    """What the connections to a server have in common; equal routes share a pool."""

    proxy_url: str | None
    certificates: tuple[str, str] | None
    """`SSL_CERT_FILE` and `SSL_CERT_DIR`; None without TLS."""

    def proxy(self) -> Proxy | None:
        """The proxy to go through.

        Raises:
            ModelError: the environment names one that cannot be used.
        """
        if self.proxy_url is None:
            return None
        try:
            parts = urlsplit(self.proxy_url)
            port, host = parts.port, parts.hostname
        except ValueError:
            host = port = parts = None
        if parts is None or not host:
            raise _bad_proxy("its address cannot be read")
        if parts.scheme not in ("http", "https"):
            raise _bad_proxy(f"it is a {parts.scheme[:20]!r} one, and only HTTP proxies are known")
        return Proxy(parts.scheme, host, port, _login(parts))


class Address:
    """A base URL, parsed once."""

    def __init__(self, base_url: str) -> None:
        try:
            parts = urlsplit(base_url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode()
        except ValueError:
            raise UsageError(f"the base URL {base_url!r} cannot be read; check it.") from None
        if parts.username or parts.password:
            raise UsageError(
                "the base URL holds a name or a password; give the key in LLM_API_KEY instead."
            )
        if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host):
            raise UsageError(
                f"the base URL {base_url!r} is not one; write it as http://HOST:PORT/v1."
            )
        self.scheme = parts.scheme
        self.host = host
        self.port = port
        self._path = parts.path.rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        name = f"[{host}]" if ":" in host else host
        self.server = name if port is None else f"{name}:{port}"
        self.shown = f"{self.scheme}://{self.server}{self._path}"
        """The base URL without its query; safe to show."""
        self._is_here = is_loopback(host)

    def target(self, path: str) -> bytes:
        """What a request line names."""
        return (self._path + path + self._query).encode()

    def route(self) -> Route:
        """How to get there now: a notebook may set a variable after its first request."""
        certificates = None
        if self.scheme == "https":
            environ = os.environ.get
            certificates = (environ("SSL_CERT_FILE", ""), environ("SSL_CERT_DIR", ""))
        if self._is_here:
            return Route(None, certificates)
        return Route(_proxy_url(self.scheme, self.host, _proxy_variables()), certificates)


def _proxy_variables() -> tuple[str | None, ...]:
    environ = os.environ.get
    return tuple(environ(form) for name in _PROXY_VARIABLES for form in (name, name.upper()))


@cache
def _proxy_url(scheme: str, host: str, variables: tuple[str | None, ...]) -> str | None:
    # Imported late: only hosts that are not this machine need it.
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    if not found or proxy_bypass(host):
        return None
    return found if "://" in found else f"http://{found}"


def _login(parts: SplitResult) -> tuple[str, str] | None:
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if password:
        # A short password is no secret to the filter by itself; as it is sent it is long enough.
        login = f"{user}:{password}"
        for text in (password, login, base64.b64encode(login.encode()).decode().rstrip("=")):
            register(text)
    return (user, password) if user else None


def _bad_proxy(why: str) -> ModelError:
    return ModelError(
        f"the proxy that the environment names cannot be used: {why}; correct HTTPS_PROXY,"
        " HTTP_PROXY or ALL_PROXY, or name the server in NO_PROXY.",
        code="LLM_HTTP_ERROR",
    )
