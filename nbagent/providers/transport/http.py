"""One HTTP request to a model server and its answer as bytes.

Owns proxies, pools, TLS, deadlines, size limits and decompression, and turns every fault into a
ModelError. It follows no redirect and retries nothing; the wires know what the bytes mean.

The pool is httpx2's own (`httpcore2`), called without the client around it: parsing the URL,
merging headers and wrapping streams for each request would double the cost of a turn.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from copy import copy
from typing import Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

import httpcore2
from httpcore2 import AsyncConnectionPool as Pool

from nbagent.contracts.canonical import load_json
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import KeySource, SecretKey, register_secret
from nbagent.contracts.version import __version__
from nbagent.providers.address import is_loopback
from nbagent.providers.http_errors import request_id_of, response_error
from nbagent.providers.keys import Key, KeyHeader, current_key
from nbagent.providers.transport.sse import bad_response, make_inflater, safe_line
from nbagent.providers.transport.streams import NetworkBackend, StaleConnection, Stream

CONNECT_TIMEOUT_S = 5.0
BETWEEN_BYTES_S = 300.0
"""Longest silence while an answer streams. Every byte counts, also SSE comments and pings: servers
send them during long thinking to keep the connection open."""
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Limit of one body that is no answer, both compressed and decompressed."""
MAX_ANSWER_BYTES = 192 * 1024 * 1024
"""Limit of one answer on the connection: an image that is too large passes, and is not kept.
`AnswerReader` limits what is kept of it."""
_MAX_ERROR_BYTES = 256 * 1024
_ERROR_BODY_S = 5.0
_MAX_CONNECTIONS = 100
_KEEP_ALIVE_S = 60.0
_MAX_STALE_CONNECTIONS = 3  # Try another connection this many times, without a wait.
_URL_SAFE = "/%~!$&'()*+,;=:@?"  # Not quoted in a path or query, besides letters and digits.
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")  # Names, IPv4, IPv6 with its zone.

_BEARER = KeyHeader()


class HttpClient:
    """Sends requests to one base URL. All clients of one event loop share its connections."""

    def __init__(
        self,
        base_url: str,
        *,
        key: Key | None = None,
        key_header: KeyHeader = _BEARER,
        headers: Mapping[str, str] | None = None,
        advice: str = "",
        withheld_key: str = "",
    ) -> None:
        self.address = Address(base_url)
        headers = headers or {}
        defaults = {
            "Host": self.address.server,
            "Accept": "application/json, text/event-stream",
            # Small events hardly shrink, and proxies that compress a stream also delay it.
            "Accept-Encoding": "identity",
            "User-Agent": f"nbagent/{__version__}",
        }
        self._defaults, self._headers = defaults, headers
        # Header names have no case. The person's headers replace the defaults, also the key.
        self._override_names = override_names = {name.lower() for name in headers}
        self._key = None if key_header.names() & override_names else key
        self.has_key = key is not None or bool(
            override_names & (key_header.names() | {"authorization"})
        )
        """True if a key is sent."""
        self.asks_key = isinstance(self._key, KeySource)
        """True if a function returns the key."""
        self._key_header = key_header
        self._withheld_key = withheld_key
        self._advice = advice or "is it running?"

    async def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        deadline: float,
        between_bytes_s: float = BETWEEN_BYTES_S,
        headers: Mapping[str, str] | None = None,
        key: SecretKey | None = None,
        once: bool = False,
    ) -> Response:
        """Send one request; return its response after a 2xx status and the headers, else raise.

        Args:
            path: path below the base URL, with its slash; its query comes before the URL's.
            deadline: the whole answer must be there by then; loop time.
            headers: headers of this request; the person's headers replace them.
            key: the key of `current_key`, if it was asked for already.
            once: True if it must never arrive twice. A connection that closes without an answer is
                an error then; else the request is sent again on another connection.
        """
        key = key or await self.current_key(deadline)
        request = self._request(method, path, body, headers or {}, key)
        connect_s = min(CONNECT_TIMEOUT_S, deadline - asyncio.get_running_loop().time())
        request.extensions = {"timeout": {"connect": connect_s, "read": between_bytes_s}}
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._send_request(request, deadline, once=once)
        except Exception as error:
            fault = _model_error(error, self.address.server, deadline, self._advice)
        else:
            if 200 <= response.status < 300:
                return response
            fault = await self._status_error(response, path)
        # Not raised in the handler: its context would keep the library's objects alive.
        raise fault

    def at(self, base_url: str) -> HttpClient:
        """Return a copy for another base URL of the same server."""
        other = copy(self)
        other.address = Address(base_url)
        return other

    async def current_key(self, deadline: float) -> SecretKey | None:
        """Return the key for the next request. Raises ModelError."""
        return await current_key(self._key, deadline)

    async def aclose(self) -> None:
        """Close the idle connections of this event loop."""
        for pool in _pools.get(asyncio.get_running_loop(), {}).values():
            await _close_idle(pool)
        # The loop frees closed sockets in its next iteration.
        await asyncio.sleep(0)

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None,
        extra: Mapping[str, str],
        key: SecretKey | None,
    ) -> httpcore2.Request:
        usual = {**self._defaults, **extra}.items()
        headers = {name: text for name, text in usual if name.lower() not in self._override_names}
        headers |= self._headers
        if body is not None:
            if "Content-Type" not in extra:  # a file is sent as a form
                headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(body))
        if key is not None:
            headers |= self._key_header.encode(key)
        coded = [(name.encode(), text.encode()) for name, text in headers.items()]
        return httpcore2.Request(method, self.address.url(path), headers=coded, content=body)

    async def _send_request(
        self, request: httpcore2.Request, deadline: float, *, once: bool
    ) -> Response:
        for _ in range(_MAX_STALE_CONNECTIONS + 1):
            pool = _pool_for(self.address.route())
            if once:
                await _close_idle(pool, request.url.origin)
            # If the server had closed an idle connection, nothing was sent, as a rule: try a new
            # one. Whether it read the request before it closed cannot be known.
            with suppress(*(() if once else (StaleConnection,))):
                response = await pool.handle_async_request(request)
                stream = cast("Stream", cast("Any", response).extensions["network_stream"])
                if not stream.unsent:
                    return Response(response, stream, deadline, self.address.server)
                # Bytes left from the previous response do not answer a request not sent yet.
                await response.aclose()
            # Those of one server end together (a restart, a loaded server that closes late): more
            # than are tried here, and the attempt would fail although no request had arrived.
            await _close_idle(pool, request.url.origin)
        raise ConnectionResetError("it closes every connection, or answers before the request")

    async def _status_error(self, response: Response, path: str) -> ModelError:
        shown = self.address.display_url + path.partition("?")[0]
        raw, body = b"", None
        async with aclosing(response):
            if 300 <= response.status < 400:
                # Following it would send the key to another host, and turn POST into GET.
                location = safe_line(re.split("[?#]", response.headers.get("location", ""))[0], 300)
                return _http_error(
                    f"{shown} answered with a redirect (HTTP {response.status}) to"
                    f" {location.rpartition('@')[2] or 'nowhere'!r}, which is not followed; give"
                    " the final address as base URL.",
                    status=response.status,
                    request_id=response.request_id,
                )
            if response.status == 407:
                # The body may repeat the request's headers with the proxy's password.
                return _proxy_refused(self.address.server, "407", "HTTP_PROXY")
            response.shorten_deadline(_ERROR_BODY_S)
            with suppress(ModelError, ValueError, RecursionError):
                raw = await response.read(_MAX_ERROR_BYTES)
                body = load_json(raw)
        return response_error(
            response.status,
            response.headers,
            body,
            url=shown,
            text=raw.decode("utf-8", "replace"),
            key_sent=self.has_key,
            withheld_key=self._withheld_key,
        )


class Response:
    """A response whose body was not read yet. Always close it."""

    def __init__(
        self, response: httpcore2.Response, stream: Stream, deadline: float, server: str
    ) -> None:
        self.status = response.status
        # Names in lower case; repeated headers are joined with commas, as HTTP defines it.
        self.headers: dict[str, str] = {}
        for raw_name, raw_value in response.headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.request_id = request_id_of(self.headers)
        self._response = response
        self._stream = stream
        self._deadline = stream.deadline = deadline
        self._server = server

    async def pieces(self, limit: int = MAX_BODY_BYTES) -> AsyncGenerator[bytes]:
        """Yield the body as it arrives, decompressed; chunks that arrived together are one piece.

        Raises:
            ModelError: the connection broke, or the body is over the limit.
        """
        inflate = make_inflater(self.headers.get("content-encoding", ""))
        stream, total, most = self._stream, 0, self._stream.received + limit
        body = cast("AsyncGenerator[bytes]", aiter(cast("Any", self._response.stream)))
        buffer, last, fault = bytearray(), b"", None
        async with aclosing(body):
            while fault is None:
                try:
                    piece = await anext(body, b"")
                except Exception as error:
                    piece, fault = b"", _model_error(error, self._server, stream.deadline)
                last = piece or last
                buffer += piece
                # More has arrived already: join it. (Half a chunk may delay the chunks before it.)
                if piece and not stream.last_read.endswith((piece, piece + b"\r\n")):
                    continue
                for part in inflate(bytes(buffer)):
                    total += len(part)
                    if total > limit or stream.received > most:
                        raise bad_response(f"it is larger than {limit / 2**20:g} MB")
                    yield part
                buffer.clear()
                if not piece:
                    break
        if fault is not None:
            raise fault
        # Bytes after the body would be read as the answer to the next request on this connection.
        end = b"0\r\n\r\n" if "transfer-encoding" in self.headers else last or b"\r\n\r\n"
        if not stream.last_read.endswith(end):
            await stream.aclose()

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """Read the whole body. Raises ModelError, also if it is over the limit."""
        async with aclosing(self.pieces(limit)) as pieces:
            return b"".join([piece async for piece in pieces])

    def shorten_deadline(self, within_s: float) -> None:
        """The rest of the body must arrive within this time from now."""
        soon = asyncio.get_running_loop().time() + within_s
        self._stream.deadline = min(self._deadline, soon)

    async def aclose(self) -> None:
        """Return the connection to the pool if the body was read to its end, else drop it."""
        # An idle connection must not keep an answer in memory.
        self._stream.last_read = b""
        await self._response.aclose()


class Address:
    """A base URL in parts, safe to show and to send to."""

    def __init__(self, base_url: str) -> None:
        if "@" in base_url.partition("://")[2].partition("/")[0]:
            problem = "the base URL contains a user name or a password"
            raise UsageError(f"{problem}; give the key in LLM_API_KEY instead.")
        try:
            parts, self.host = _split_url(base_url)
        except ValueError:
            problem = f"the base URL {base_url!r} is not valid"
            raise UsageError(f"{problem}; write it as http://HOST:PORT/v1.") from None
        self.scheme, self.port = parts.scheme, parts.port
        self._path = quote(parts.path.rstrip("/"), _URL_SAFE, errors="replace")
        self._query = quote(parts.query, _URL_SAFE, errors="replace")
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.server = name if self.port is None else f"{name}:{self.port}"
        self.display_url = f"{self.scheme}://{self.server}{self._path}"
        """Base URL without its query, which may hold a key; safe to show."""
        self._is_loopback = is_loopback(base_url)

    def url(self, path: str) -> httpcore2.URL:
        """URL of a request: the path below the base URL, and both queries."""
        path, _, query = path.partition("?")
        query = "&".join(filter(None, (query, self._query)))
        target = f"{self._path}{path}{f'?{query}' if query else ''}"
        return httpcore2.URL(scheme=self.scheme, host=self.host, port=self.port, target=target)

    def route(self) -> _Route:
        """Return proxy and certificates. Read each time: a notebook may set them later."""
        certificates = proxy_url = None
        if self.scheme == "https":
            variable = next(filter(os.environ.get, _CERTIFICATE_VARIABLES), "")
            certificates = (variable, os.environ.get(variable, ""))
        if not self._is_loopback:
            # Late import: it costs 40 ms, and a server on this machine needs no proxy.
            from urllib.request import getproxies, proxy_bypass

            proxies = {} if proxy_bypass(self.host) else getproxies()
            proxy_url = proxies.get(self.scheme) or proxies.get("all")
        return proxy_url, certificates


def _split_url(url: str) -> tuple[SplitResult, str]:
    """Split an HTTP URL; return its parts and its host in ASCII. Raises ValueError."""
    parts = urlsplit(url)
    host = (parts.hostname or "").encode("idna").decode()
    # The library would use the default port instead of port 0.
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or parts.port == 0:
        raise ValueError(url)
    return parts, host


_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""The first that is set counts. Companies with a proxy that decrypts often set only the last two,
for requests and curl; both may hold a file or a folder."""
_Route = tuple[str | None, tuple[str, str] | None]
"""URL of the proxy, and variable and path of the certificates; None for none, ("", "") for the
system's."""
_pools: dict[asyncio.AbstractEventLoop, dict[_Route, Pool]] = {}


def _pool_for(route: _Route) -> Pool:
    """Return the pool for this event loop, proxy and certificates; create it if needed."""
    loop, (proxy, certificates) = asyncio.get_running_loop(), route
    if loop not in _pools:
        for closed in [known for known in _pools if known.is_closed()]:
            del _pools[closed]
        _pools[loop] = {}
    if route not in _pools[loop]:
        tls = None if certificates is None else _ssl_context(*certificates)
        _pools[loop][route] = Pool(
            ssl_context=tls,
            proxy=_proxy(proxy) if proxy else None,
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS // 4,
            keepalive_expiry=_KEEP_ALIVE_S,
            network_backend=NetworkBackend(),
        )
    return _pools[loop][route]


def _ssl_context(variable: str, path: str) -> ssl.SSLContext:
    """Load certificates, which costs 23 ms. Raises ModelError that names the variable."""
    try:
        if not variable:
            return httpcore2.default_ssl_context()
        if os.path.isdir(path):
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except (OSError, ValueError) as error:
        problem = f"the certificates in {path!r} cannot be read ({error})"
        raise _http_error(f"{problem}; correct {variable}.") from None


async def _close_idle(pool: Pool, origin: httpcore2.Origin | None = None) -> None:
    """Close the idle connections of a pool, or only those to one server."""
    for connection in pool.connections:
        if connection.is_idle() and (origin is None or connection.can_handle_request(origin)):
            await connection.aclose()


def _proxy(address: str) -> httpcore2.Proxy:
    try:
        parts, host = _split_url(address if "://" in address else f"http://{address}")
    except ValueError:
        raise _http_error(
            "the proxy in the environment cannot be used: its address is not valid, or it is not an"
            " HTTP proxy; correct HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, or name the server in"
            " NO_PROXY."
        ) from None
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if password:
        # The secret filter ignores short texts; register the forms that are sent, which are longer.
        login = f"{user}:{password}"
        for text in (password, login, base64.b64encode(login.encode()).decode().rstrip("=")):
            register_secret(text)
    url = httpcore2.URL(scheme=parts.scheme, host=host, port=parts.port, target="/")
    # As bytes: the library encodes text as ASCII, and a password may hold other characters.
    return httpcore2.Proxy(url, auth=(user.encode(), password.encode()) if user else None)


def _model_error(error: Exception, server: str, deadline: float, advice: str = "") -> ModelError:
    """Turn any fault of the transport into a ModelError whose text holds no secrets."""
    reason = safe_line(str(error), 300) or type(error).__name__
    match error:
        case ModelError():
            return error
        case httpcore2.ConnectTimeout():
            text = f"{server} did not accept a connection in time; {advice}"
            return ModelError(text, code="LLM_TIMEOUT", retryable=True)
        case TimeoutError():
            problem = "stopped sending in the middle of its answer; try again."
            if asyncio.get_running_loop().time() >= deadline:
                problem = "did not answer in the time allowed; raise --timeout or try again."
            return ModelError(f"{server} {problem}", code="LLM_TIMEOUT")
        case httpcore2.ProxyError():
            # Only the status: the rest is the proxy's own text, and it has received a password.
            return _proxy_refused(server, reason.partition(" ")[0], "HTTPS_PROXY")
        case httpcore2.ProtocolError() if "disconnected" not in reason and "closed" not in reason:
            return _http_error(f"{server} did not speak HTTP as it should ({reason}); try again.")
        case ConnectionResetError() | BrokenPipeError() | httpcore2.ProtocolError():
            return _http_error(f"{server} broke the connection ({reason}); try again.", retry=True)
        case ssl.SSLError():
            text = f"no secure connection to {server} ({reason}); check it or SSL_CERT_FILE."
            return _http_error(text)
        case socket.gaierror():
            retry = error.errno == socket.EAI_AGAIN
            return _http_error(f"the name {server} cannot be found ({reason}); check it.", retry)
        case OSError():
            return _http_error(f"cannot connect to {server} ({reason}); {advice}", retry=True)
        case _:
            reason = f"{type(error).__name__}: {reason}"
            return ModelError(f"the request to {server} failed: {reason}; please report it.")


def _http_error(text: str, retry: bool = False, **more: Any) -> ModelError:
    return ModelError(text, code="LLM_HTTP_ERROR", retryable=retry, **more)


def _proxy_refused(server: str, status: str, variable: str) -> ModelError:
    return _http_error(f"the proxy refused the way to {server} (HTTP {status}); check {variable}.")
