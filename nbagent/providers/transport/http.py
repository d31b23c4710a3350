"""One HTTP request to a model server and its answer as bytes.

Owns addresses, proxies, pools, TLS, deadlines, caps and inflating, and turns every fault into a
ModelError. It follows no redirect and retries nothing; what the bytes mean belongs to the wires.

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
from typing import Any, cast
from urllib.parse import SplitResult, quote, unquote, urlsplit

import httpcore2
from httpcore2 import AsyncConnectionPool as Pool

from nbagent import __version__
from nbagent.contracts.canonical import load_json
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import SecretKey, register_secret
from nbagent.providers.address import is_loopback
from nbagent.providers.http_errors import request_id_of, response_error
from nbagent.providers.transport.sse import bad_answer, inflater_of, shown_line
from nbagent.providers.transport.streams import Backend, StaleConnection, Stream

CONNECT_TIMEOUT_S = 5.0
BETWEEN_BYTES_S = 300.0
"""Longest silence while an answer streams; comments and pings count as life."""
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one whole answer, both as it is sent and after inflating."""
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Of one event stream: 128,000 tokens, each wrapped in 350 bytes, are 43 MB."""
_MAX_ERROR_BYTES = 256 * 1024
_ERROR_BODY_S = 5.0
_MAX_CONNECTIONS = 100
_KEEP_ALIVE_S = 60.0
_STALE_CONNECTIONS = 3  # Passed over at once; then the server is left alone.
_IN_URL = "/%~!$&'()*+,;=:@?"  # Of a path or query, besides letters and digits.
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")  # Names, IPv4, IPv6 with its zone.


class HttpClient:
    """Sends requests to one base URL. All clients of one event loop share its connections."""

    def __init__(
        self,
        base_url: str,
        *,
        key: SecretKey | None = None,
        key_header: str = "Authorization",
        key_prefix: str = "Bearer ",
        headers: Mapping[str, str] | None = None,
        advice: str = "",
    ) -> None:
        self.address = Address(base_url)
        headers = headers or {}
        defaults = {
            "Host": self.address.server,
            "Accept": "application/json, text/event-stream",
            # Nothing is gained by inflating tokens, and proxies buffer what they deflate.
            "Accept-Encoding": "identity",
            "User-Agent": f"nbagent/{__version__}",
        }
        self._defaults, self._headers = defaults, headers
        # Names have no case; what the person gave replaces the others.
        self._given = given = {name.lower() for name in headers}
        self._key = None if key_header.lower() in given else key
        self.has_key = key is not None or bool(given & {key_header.lower(), "authorization"})
        """Whether a key is sent."""
        self._key_header, self._key_prefix = key_header, key_prefix
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
    ) -> Response:
        """Send one request; returns when a 2xx status and the headers have come, else raises.

        Args:
            path: what follows the base URL, with its slash; its query is put before the URL's.
            deadline: the loop's time at which the whole answer must be there.
            headers: of this request; those of the client go before them.
        """
        request = self._request(method, path, body, headers or {})
        connect_s = min(CONNECT_TIMEOUT_S, deadline - asyncio.get_running_loop().time())
        request.extensions = {"timeout": {"connect": connect_s, "read": between_bytes_s}}
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._answered(request, deadline)
        except Exception as error:
            fault = _model_error(error, self.address.server, deadline, self._advice)
        else:
            if 200 <= response.status < 300:
                return response
            fault = await self._refusal(response, path)
        # Raised here, not in the handler: no context keeps the library's objects alive.
        raise fault

    async def aclose(self) -> None:
        """Close the connections of this event loop that wait for a request."""
        for pool in _pools.get(asyncio.get_running_loop(), {}).values():
            for connection in pool.connections:
                if connection.is_idle():
                    await connection.aclose()
        # Closed sockets are let go in the loop's next round.
        await asyncio.sleep(0)

    def _request(
        self, method: str, path: str, body: bytes | None, extra: Mapping[str, str]
    ) -> httpcore2.Request:
        usual = {**self._defaults, **extra}.items()
        headers = {name: text for name, text in usual if name.lower() not in self._given}
        headers |= self._headers
        if body is not None:
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(body))
        if self._key is not None:
            text = self._key.reveal().strip()
            if not text.isascii() or not text.isprintable():
                what = "the key has characters that no key has; copy it again."
                raise ModelError(what, code="LLM_AUTH_FAILED")
            headers[self._key_header] = self._key_prefix + text
        coded = [(name.encode(), text.encode()) for name, text in headers.items()]
        return httpcore2.Request(method, self.address.url(path), headers=coded, content=body)

    async def _answered(self, request: httpcore2.Request, deadline: float) -> Response:
        for _ in range(_STALE_CONNECTIONS + 1):
            # An idle connection that the server had closed is no answer to anything.
            with suppress(StaleConnection):
                response = await _pool_of(self.address.route()).handle_async_request(request)
                stream = cast("Stream", cast("Any", response).extensions["network_stream"])
                if not stream.unsent:
                    return Response(response, stream, deadline, self.address.server)
                # What was read behind the answer before is none to what was not sent yet.
                await response.aclose()
        raise ConnectionResetError("it keeps none open, or answers before it is asked")

    async def _refusal(self, response: Response, path: str) -> ModelError:
        shown = self.address.shown + path.partition("?")[0]
        raw, body = b"", None
        async with aclosing(response):
            if 300 <= response.status < 400:
                # Following it would carry the key to another host, and turn POST into GET.
                location = shown_line(
                    re.split("[?#]", response.headers.get("location", ""))[0], 300
                )
                return _http_error(
                    f"{shown} answered with a redirect (HTTP {response.status}) to"
                    f" {location.rpartition('@')[2] or 'nowhere'!r}, which is not followed; give"
                    " the final address as base URL.",
                    status=response.status,
                    request_id=response.request_id,
                )
            if response.status == 407:
                # Its body may hold the request's headers, with the password of the proxy in them.
                return _proxy_refused(self.address.server, "407", "HTTP_PROXY")
            response.shorten(_ERROR_BODY_S)
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
        )


class Response:
    """A response whose body has still to be read. Close it in any case."""

    def __init__(
        self, response: httpcore2.Response, stream: Stream, deadline: float, server: str
    ) -> None:
        self.status = response.status
        # By names in lower case; what came twice is joined, as HTTP has it.
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
        """The body as it arrives, inflated; chunks that arrived together come as one piece.

        Raises:
            ModelError: it broke off, or it is over the limit.
        """
        inflate = inflater_of(self.headers.get("content-encoding", ""))
        stream, total, most = self._stream, 0, self._stream.received + limit
        body = cast("AsyncGenerator[bytes]", aiter(cast("Any", self._response.stream)))
        held, last, fault = bytearray(), b"", None
        async with aclosing(body):
            while fault is None:
                try:
                    piece = await anext(body, b"")
                except Exception as error:
                    piece, fault = b"", _model_error(error, self._server, stream.deadline)
                last = piece or last
                held += piece
                # More of it has arrived. (Half a chunk may hold those before it back.)
                if piece and not stream.last.endswith((piece, piece + b"\r\n")):
                    continue
                for part in inflate(bytes(held)):
                    total += len(part)
                    if total > limit or stream.received > most:
                        raise bad_answer(f"it is larger than {limit / 2**20:g} MB")
                    yield part
                held.clear()
                if not piece:
                    break
        if fault is not None:
            raise fault
        # Bytes behind an answer would be taken for the answer to the next request.
        end = b"0\r\n\r\n" if "transfer-encoding" in self.headers else last or b"\r\n\r\n"
        if not stream.last.endswith(end):
            await stream.aclose()

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises ModelError, also when it is over the limit."""
        async with aclosing(self.pieces(limit)) as pieces:
            return b"".join([piece async for piece in pieces])

    def shorten(self, within_s: float) -> None:
        """What is still to come must come within this time from now."""
        soon = asyncio.get_running_loop().time() + within_s
        self._stream.deadline = min(self._deadline, soon)

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end; drop it otherwise."""
        self._stream.last = b""  # What an answer said stays with nobody who waits for the next.
        await self._response.aclose()


class Address:
    """A base URL, parsed once."""

    def __init__(self, base_url: str) -> None:
        if "@" in base_url.partition("://")[2].partition("/")[0]:
            what = "the base URL holds a name or a password"
            raise UsageError(f"{what}; give the key in LLM_API_KEY instead.")
        try:
            parts, self.host = _parts_of(base_url)
        except ValueError:
            what = f"the base URL {base_url!r} is none"
            raise UsageError(f"{what}; write it as http://HOST:PORT/v1.") from None
        self.scheme, self.port = parts.scheme, parts.port
        self._path = quote(parts.path.rstrip("/"), _IN_URL, errors="replace")
        self._query = quote(parts.query, _IN_URL, errors="replace")
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.server = name if self.port is None else f"{name}:{self.port}"
        self.shown = f"{self.scheme}://{self.server}{self._path}"
        """The base URL without its query; safe to show."""
        self._is_here = is_loopback(base_url)

    def url(self, path: str) -> httpcore2.URL:
        """What is asked for: the path below the base URL, and both queries."""
        path, _, query = path.partition("?")
        query = "&".join(filter(None, (query, self._query)))
        target = f"{self._path}{path}{f'?{query}' if query else ''}"
        return httpcore2.URL(scheme=self.scheme, host=self.host, port=self.port, target=target)

    def route(self) -> _Route:
        """The proxy and the certificates now: a notebook may set them after its first request."""
        certificates = proxy_url = None
        if self.scheme == "https":
            certificates = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR", "")
        if not self._is_here:
            # 40 ms, and a server on this machine does not need it.
            from urllib.request import getproxies, proxy_bypass

            proxies = {} if proxy_bypass(self.host) else getproxies()
            proxy_url = proxies.get(self.scheme) or proxies.get("all")
        return proxy_url, certificates


def _parts_of(url: str) -> tuple[SplitResult, str]:
    """An HTTP address and its host in ASCII; raises ValueError."""
    parts = urlsplit(url)
    host = (parts.hostname or "").encode("idna").decode()
    # The library would ask the usual port for port 0.
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or parts.port == 0:
        raise ValueError(url)
    return parts, host


_Route = tuple[str | None, str | None]
"""A proxy, and where the certificates are."""
_pools: dict[asyncio.AbstractEventLoop, dict[_Route, Pool]] = {}


def _pool_of(route: _Route) -> Pool:
    """Of this event loop, and of the proxy and the certificates that hold now."""
    loop, (proxy, certificates) = asyncio.get_running_loop(), route
    if loop not in _pools:
        for closed in [known for known in _pools if known.is_closed()]:
            del _pools[closed]
        _pools[loop] = {}
    if route not in _pools[loop]:
        try:
            # It reads the variables itself, in 23 ms.
            tls = None if certificates is None else httpcore2.default_ssl_context()
        except (OSError, ValueError) as error:
            what = f"no certificates can be read from {certificates!r} ({error})"
            raise _http_error(f"{what}; correct SSL_CERT_DIR or SSL_CERT_FILE.") from None
        _pools[loop][route] = Pool(
            ssl_context=tls,
            proxy=_proxy(proxy) if proxy else None,
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS // 4,
            keepalive_expiry=_KEEP_ALIVE_S,
            network_backend=Backend(),
        )
    return _pools[loop][route]


def _proxy(address: str) -> httpcore2.Proxy:
    try:
        parts, host = _parts_of(address if "://" in address else f"http://{address}")
    except ValueError:
        raise _http_error(
            "the proxy that the environment names cannot be used: its address cannot be read, and"
            " only HTTP proxies are known; correct HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, or name"
            " the server in NO_PROXY."
        ) from None
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if password:
        # A short password is no secret to the filter by itself; as it is sent it is long enough.
        login = f"{user}:{password}"
        for text in (password, login, base64.b64encode(login.encode()).decode().rstrip("=")):
            register_secret(text)
    url = httpcore2.URL(scheme=parts.scheme, host=host, port=parts.port, target="/")
    # The library takes text for ASCII.
    return httpcore2.Proxy(url, auth=(user.encode(), password.encode()) if user else None)


def _model_error(error: Exception, server: str, deadline: float, advice: str = "") -> ModelError:
    """The ModelError of any fault of the transport, its text free of secrets."""
    said = shown_line(str(error), 300) or type(error).__name__
    match error:
        case ModelError():
            return error
        case httpcore2.ConnectTimeout():
            text = f"{server} did not accept a connection in time; {advice}"
            return ModelError(text, code="LLM_TIMEOUT", retryable=True)
        case TimeoutError():
            what = "fell silent in the middle of its answer; try again."
            if asyncio.get_running_loop().time() >= deadline:
                what = "did not answer in the time allowed; raise --timeout or try again."
            return ModelError(f"{server} {what}", code="LLM_TIMEOUT")
        case httpcore2.ProxyError():
            # The status alone: the rest is the proxy's own words, and it was shown a password.
            return _proxy_refused(server, said.partition(" ")[0], "HTTPS_PROXY")
        case httpcore2.ProtocolError() if "disconnected" not in said and "closed" not in said:
            return _http_error(f"{server} did not speak HTTP as it should ({said}); try again.")
        case ConnectionResetError() | BrokenPipeError() | httpcore2.ProtocolError():
            return _http_error(f"{server} broke the connection ({said}); try again.", retry=True)
        case ssl.SSLError():
            text = f"no secure connection to {server} ({said}); check it or SSL_CERT_FILE."
            return _http_error(text)
        case socket.gaierror():
            retry = error.errno == socket.EAI_AGAIN
            return _http_error(f"the name {server} cannot be found ({said}); check it.", retry)
        case OSError():
            return _http_error(f"cannot connect to {server} ({said}); {advice}", retry=True)
        case _:
            said = f"{type(error).__name__}: {said}"
            return ModelError(f"the request to {server} failed: {said}; please report it.")


def _http_error(text: str, retry: bool = False, **more: Any) -> ModelError:
    return ModelError(text, code="LLM_HTTP_ERROR", retryable=retry, **more)


def _proxy_refused(server: str, status: str, variable: str) -> ModelError:
    return _http_error(f"the proxy refused the way to {server} (HTTP {status}); check {variable}.")
