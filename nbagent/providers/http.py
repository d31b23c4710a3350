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
import zlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import httpcore2

from nbagent import __version__
from nbagent.contracts.canonical import load_json
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import SecretKey, redact, register
from nbagent.providers.base import is_loopback
from nbagent.providers.failures import request_id_of, response_error, without_key, without_logins
from nbagent.providers.streams import Backend, StaleConnection, Stream

CONNECT_TIMEOUT_S = 5.0
BETWEEN_BYTES_S = 300.0
"""Longest silence while an answer streams; comments and pings count as life."""
MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one whole answer, both as it is sent and after inflating."""
MAX_STREAM_BYTES = 64 * 1024 * 1024
"""Of one event stream: 128,000 tokens, each wrapped in 350 bytes, are 43 MB."""
_MOST_FRAMING = 4
"""A chunked answer may be this many times as long as what is in it."""
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_BODY_S = 5.0
_MAX_CONNECTIONS = 100
_KEEP_ALIVE_S = 60.0
_STALE_CONNECTIONS = 3
"""So many are passed over at once; then the server is left alone."""
_INFLATED_BYTES = 64 * 1024
"""Of one step."""
_GZIP = 0x1F
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
"""Names, IPv4, IPv6 with its zone; nothing else is worth asking a resolver for."""
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_SECRET_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"})

Fault = Callable[[int, Mapping[str, str], Any], ModelError | None]
"""What is special in one wire's refusals: status, headers, decoded JSON or None → the error."""


class HttpClient:
    """Sends requests to one base URL. Many clients of one event loop share its connections."""

    def __init__(
        self,
        base_url: str,
        *,
        key: SecretKey | None = None,
        key_header: str = "Authorization",
        key_prefix: str = "Bearer ",
        headers: Mapping[str, str] | None = None,
        fault: Fault | None = None,
    ) -> None:
        self.address = Address(base_url)
        defaults = {
            "Host": self.address.server,
            "Accept": "application/json, text/event-stream",
            # Nothing is gained by inflating tokens, and proxies buffer what they deflate.
            "Accept-Encoding": "identity",
            "User-Agent": f"nbagent/{__version__}",
        }
        self._headers = _merged(defaults, headers or {})
        has_own_key = key_header.lower() in {name.lower() for name in headers or {}}
        self._key = None if has_own_key else key
        self._sends_key = has_own_key or key is not None
        self._key_header = key_header
        self._key_prefix = key_prefix
        self._fault = fault
        self._shared: _LoopPools | None = None

    def __repr__(self) -> str:
        return f"HttpClient({self.address.shown!r})"

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
        """Send one request; returns when a 2xx status and the headers have come.

        Args:
            path: what follows the base URL, with its slash; its query is put before the URL's.
            deadline: the loop's time at which the whole answer must be there.
            headers: of this request, beside or instead of the client's.

        Raises:
            ModelError: anything went wrong, or the status is not 2xx.
        """
        try:
            async with asyncio.timeout_at(deadline):
                request = self._request(method, path, body, headers or {})
                response = await self._answered(request, deadline, between_bytes_s)
        except Exception as error:
            fault = _model_error(error, self.address.server, deadline)
        else:
            if 200 <= response.status < 300:
                return response
            fault = await self._refusal(response, path)
        # Raised here, not in the handler: no context keeps the library's objects alive.
        raise fault

    async def aclose(self) -> None:
        """Let go of the connections; the last client of an event loop closes them."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()

    def _request(
        self, method: str, path: str, body: bytes | None, extra: Mapping[str, str]
    ) -> httpcore2.Request:
        headers = _merged(self._headers, extra) if extra else self._headers.copy()
        if body is not None:
            headers["Content-Type"] = "application/json"
            headers["Content-Length"] = str(len(body))
        if self._key is not None:
            headers[self._key_header] = _header_of(self._key_prefix, self._key)
        coded = [(name.encode(), text.encode()) for name, text in headers.items()]
        return httpcore2.Request(method, self.address.url(path), headers=coded, content=body)

    async def _answered(
        self, request: httpcore2.Request, deadline: float, between_bytes_s: float
    ) -> Response:
        """The response to the request, whatever its status."""
        left = deadline - asyncio.get_running_loop().time()
        request.extensions["timeout"] = {
            "connect": min(CONNECT_TIMEOUT_S, left),
            "read": between_bytes_s,
        }
        for spare in reversed(range(_STALE_CONNECTIONS + 1)):
            try:
                response = await self._pool().handle_async_request(request)
            except StaleConnection:
                # The server had closed an idle connection: that is no answer to anything.
                if not spare:
                    raise
                continue
            stream = response.extensions["network_stream"]
            if not isinstance(stream, Stream):
                await response.aclose()
                raise _http_error(
                    "the server wants another protocol than HTTP; check the base URL."
                )
            if stream.answered:
                return Response(response, stream, deadline, self.address.server)
            # Read with the answer before it, so no answer to this request.
            await response.aclose()
        raise ConnectionResetError("the server answers before it is asked")

    def _pool(self) -> httpcore2.AsyncConnectionPool:
        loop = asyncio.get_running_loop()
        if self._shared is None or self._shared.loop is not loop:
            self._shared = _LoopPools.acquire(loop)
        return self._shared.pool(self.address.route())

    async def _refusal(self, response: Response, path: str) -> ModelError:
        """The error of a response that is no success; the connection is given back."""
        shown = self.address.shown + path.partition("?")[0]
        raw = b""
        try:
            if 300 <= response.status < 400:
                return _redirected(response, shown)
            if response.status == 407:
                # Its body may hold the request's headers, with the password of the proxy in them.
                return _proxy_refused(self.address.server, "407", "HTTP_PROXY")
            response.shorten(_ERROR_BODY_S)
            raw = await response.read(_MAX_ERROR_BYTES)
        except ModelError:
            pass
        finally:
            await response.aclose()
        try:
            body: Any = load_json(raw)
        except (ValueError, RecursionError):
            body = None
        special = self._fault and self._fault(response.status, response.headers, body)
        if special is not None:
            return special
        text = raw.decode("utf-8", "replace")
        error = response_error(response.status, response.headers, body, url=shown, text=text)
        if error.code == "LLM_AUTH_FAILED" and not self._sends_key:
            error = without_key(error)
        return error


class Response:
    """A response whose body has still to be read. Close it in any case."""

    def __init__(
        self, response: httpcore2.Response, stream: Stream, deadline: float, server: str
    ) -> None:
        self.status = response.status
        self.headers: dict[str, str] = {}
        """By names in lower case; what came twice is joined, as HTTP has it."""
        for raw_name, raw_value in response.headers:
            name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
            before = self.headers.get(name)
            self.headers[name] = value if before is None else f"{before}, {value}"
        self.request_id = request_id_of(self.headers)
        self._response = response
        self._stream = stream
        self._deadline = stream.deadline = deadline
        self._server = server

    async def pieces(self, limit: int = MAX_BODY_BYTES) -> AsyncGenerator[bytes]:
        """The body as it arrives, inflated.

        Raises:
            ModelError: it broke off, came too slowly, or is larger than `limit`.
        """
        fault: ModelError | None = None
        try:
            inflater = _inflater_of(self.headers.get("content-encoding", ""))
            inflated = 0
            async with aclosing(self._raw_pieces(limit)) as raw:
                async for piece in raw:
                    if inflater is None:
                        yield piece
                        continue
                    for part in inflater.feed(piece):
                        inflated += len(part)
                        if inflated > limit:
                            raise _too_large(limit)
                        yield part
                        # A few bytes may hold a gigabyte: neither the loop nor the deadline waits.
                        await asyncio.sleep(0)
                        if asyncio.get_running_loop().time() >= self._stream.deadline:
                            raise TimeoutError
        except Exception as error:
            fault = _model_error(error, self._server, self._stream.deadline)
        if fault is not None:
            raise fault

    async def _raw_pieces(self, limit: int) -> AsyncGenerator[bytes]:
        total, most = 0, self._stream.received + limit * _MOST_FRAMING
        piece = b""
        body = cast("AsyncGenerator[bytes]", aiter(cast("Any", self._response.stream)))
        async with aclosing(body):
            async for piece in body:
                total += len(piece)
                if total > limit or self._stream.received > most:
                    raise _too_large(limit)
                yield piece
        # Bytes behind an answer would be taken for the answer to the next request.
        end = b"0\r\n\r\n" if "transfer-encoding" in self.headers else piece or b"\r\n\r\n"
        if not self._stream.last.endswith(end):
            await self._stream.aclose()

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body, or its first `limit` bytes."""
        data = bytearray()
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                data += piece
                if len(data) > limit:
                    break
        return bytes(data[:limit])

    def shorten(self, within_s: float) -> None:
        """What is still to come must come within this time from now; the last word counts."""
        soon = asyncio.get_running_loop().time() + within_s
        self._stream.deadline = min(self._deadline, soon)

    async def aclose(self) -> None:
        """Give the connection back if the body was read to its end; drop it otherwise."""
        await self._response.aclose()


class Address:
    """A base URL, parsed once."""

    def __init__(self, base_url: str) -> None:
        try:
            parts = urlsplit(base_url)
            self.port = parts.port
            self.host = (parts.hostname or "").encode("idna").decode()
        except ValueError:
            raise UsageError(f"the base URL {base_url!r} cannot be read; check it.") from None
        if parts.username or parts.password:
            raise UsageError(
                "the base URL holds a name or a password; give the key in LLM_API_KEY instead."
            )
        if parts.scheme not in ("http", "https") or not _HOST.fullmatch(self.host):
            raise UsageError(
                f"the base URL {base_url!r} is not one; write it as http://HOST:PORT/v1."
            )
        self.scheme = parts.scheme
        self._path = parts.path.rstrip("/")
        self._query = parts.query
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.server = name if self.port is None else f"{name}:{self.port}"
        self.shown = f"{self.scheme}://{self.server}{self._path}"
        """The base URL without its query; safe to show."""
        self._is_here = is_loopback(self.host)

    def url(self, path: str) -> httpcore2.URL:
        """What is asked for: the path below the base URL, and both queries."""
        path, _, query = path.partition("?")
        query = "&".join(filter(None, (query, self._query)))
        target = f"{self._path}{path}{f'?{query}' if query else ''}"
        return httpcore2.URL(scheme=self.scheme, host=self.host, port=self.port, target=target)

    def route(self) -> Route:
        """How to get there now: a notebook may set a variable after its first request."""
        environ = os.environ.get
        certificates = proxy_url = None
        if self.scheme == "https":
            certificates = (environ("SSL_CERT_FILE", ""), environ("SSL_CERT_DIR", ""))
        if not self._is_here:
            both = [form for name in _PROXY_VARIABLES for form in (name, name.upper())]
            proxy_url = _proxy_url(self.scheme, self.host, tuple(map(environ, both)))
        return Route(proxy_url, certificates)


@dataclass(frozen=True, slots=True)
class Route:
    """What the connections to a server have in common; equal routes share a pool."""

    proxy_url: str | None
    certificates: tuple[str, str] | None
    """`SSL_CERT_FILE` and `SSL_CERT_DIR`; None without TLS."""

    def open(self) -> httpcore2.AsyncConnectionPool:
        """A pool for it. Raises ModelError when the environment names what cannot be used."""
        return httpcore2.AsyncConnectionPool(
            ssl_context=_tls(*self.certificates) if self.certificates else None,
            proxy=_proxy(self.proxy_url) if self.proxy_url else None,
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS // 4,
            keepalive_expiry=_KEEP_ALIVE_S,
            network_backend=Backend(),
        )


@dataclass
class _LoopPools:
    """The connections of one event loop, kept as long as a client of it is open."""

    loop: asyncio.AbstractEventLoop
    users: int = 0
    pools: dict[Route, httpcore2.AsyncConnectionPool] = field(
        default_factory=dict[Route, httpcore2.AsyncConnectionPool]
    )

    @staticmethod
    def acquire(loop: asyncio.AbstractEventLoop) -> _LoopPools:
        for other in [known for known in _loops if known.is_closed()]:
            _loops.pop(other, None)
        shared = _loops.setdefault(loop, _LoopPools(loop))
        shared.users += 1
        return shared

    async def release(self) -> None:
        self.users -= 1
        if self.users > 0 or self.loop is not asyncio.get_running_loop():
            return
        _loops.pop(self.loop, None)
        pools, self.pools = list(self.pools.values()), {}
        for pool in pools:
            await pool.aclose()
        # Closed sockets are let go in the loop's next round.
        await asyncio.sleep(0)

    def pool(self, route: Route) -> httpcore2.AsyncConnectionPool:
        pool = self.pools.get(route)
        if pool is None:
            pool = self.pools[route] = route.open()
        return pool


_loops: dict[asyncio.AbstractEventLoop, _LoopPools] = {}


@cache
def _tls(certificate_file: str, certificate_folder: str) -> ssl.SSLContext:
    # 23 ms to build: one for the process, made when the first https request needs it.
    # The two are named to tell contexts apart; the library reads the variables itself.
    try:
        return httpcore2.default_ssl_context()
    except (OSError, ValueError) as error:
        name = "SSL_CERT_FILE" if certificate_file else "SSL_CERT_DIR"
        named = certificate_file or certificate_folder
        raise _http_error(
            f"no certificates can be read from {named!r} ({error}); correct {name}."
        ) from None


@cache
def _proxy_url(scheme: str, host: str, variables: tuple[str | None, ...]) -> str | None:
    # Imported late: only hosts that are not this machine need it.
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    if not found or proxy_bypass(host):
        return None
    return found if "://" in found else f"http://{found}"


def _proxy(address: str) -> httpcore2.Proxy:
    why = "its address cannot be read"
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _bad_proxy(why) from None
    if not host:
        raise _bad_proxy(why)
    if parts.scheme not in ("http", "https"):
        raise _bad_proxy(f"it is a {parts.scheme[:20]!r} one, and only HTTP proxies are known")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if password:
        # A short password is no secret to the filter by itself; as it is sent it is long enough.
        login = f"{user}:{password}"
        for text in (password, login, base64.b64encode(login.encode()).decode().rstrip("=")):
            register(text)
    url = httpcore2.URL(scheme=parts.scheme, host=host, port=port, target="/")
    # The library takes text for ASCII.
    return httpcore2.Proxy(url, auth=(user.encode(), password.encode()) if user else None)


def _bad_proxy(why: str) -> ModelError:
    return _http_error(
        f"the proxy that the environment names cannot be used: {why}; correct HTTPS_PROXY,"
        " HTTP_PROXY or ALL_PROXY, or name the server in NO_PROXY."
    )


def _merged(headers: dict[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Headers, some of them replaced; their names have no case."""
    given = {name.lower() for name in extra}
    merged = {name: text for name, text in headers.items() if name.lower() not in given}
    for name, text in extra.items():
        if name.lower() in _SECRET_HEADERS:
            register(text.removeprefix("Bearer "))
        if not (name + text).isascii() or any(ord(char) < 32 for char in name + text):
            raise UsageError(f"header {name!r} has characters that cannot be sent; correct it.")
        merged[name] = text
    return merged


def _header_of(prefix: str, key: SecretKey) -> str:
    text = key.reveal().strip()
    if not text.isascii() or not text.isprintable():
        raise ModelError(
            "the key has characters that no key has; copy it again.", code="LLM_AUTH_FAILED"
        )
    return prefix + text


class Inflater:
    """Plain bytes from pieces of gzip or deflate, in steps, so that a small bomb stays small.

    Compression is never asked for; some servers and proxies compress all the same.
    """

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj()
        self._at_start = True
        self._is_gzip = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes hold, in pieces of at most 64 kB. Raises ModelError."""
        while data:
            if self._at_start:
                self._begin(data[0])
            try:
                part = self._zlib.decompress(data, _INFLATED_BYTES)
                while part:
                    yield part
                    # Asked until nothing comes: the last bytes may wait inside, without input.
                    part = self._zlib.decompress(self._zlib.unconsumed_tail, _INFLATED_BYTES)
            except zlib.error as error:
                raise ModelError(
                    f"the compressed answer is damaged ({error}); try again.",
                    code="LLM_BAD_RESPONSE",
                ) from None
            if not self._zlib.eof:
                return
            data = self._zlib.unused_data
            if not (self._is_gzip and data[:1] == bytes([_GZIP])):
                return  # What follows the end is of no use to anybody.
            self._at_start = True

    def _begin(self, first: int) -> None:
        self._at_start = False
        self._is_gzip = first == _GZIP
        # "deflate" without the zlib header: some servers send it, and browsers accept it.
        bare = not self._is_gzip and first & 0x0F != 8
        self._zlib = zlib.decompressobj(-zlib.MAX_WBITS if bare else zlib.MAX_WBITS | 32)


def _inflater_of(encoding: str) -> Inflater | None:
    """What undoes an encoding; None when there is nothing to undo."""
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return Inflater()
    raise ModelError(
        f"the server encoded its answer as {redact(encoding)[:40]!r}, which was not asked for;"
        " check the server or the proxy before it.",
        code="LLM_BAD_RESPONSE",
    )


def _model_error(error: Exception, server: str, deadline: float) -> ModelError:
    """The ModelError of any fault of the transport, its text free of secrets."""
    if isinstance(error, ModelError):
        return error
    said = without_logins(redact(" ".join(str(error).split())))[:300] or type(error).__name__
    if isinstance(error, httpcore2.ConnectTimeout):
        text = f"{server} did not accept a connection in time; is it running?"
        return ModelError(text, code="LLM_TIMEOUT", retryable=True)
    if isinstance(error, TimeoutError):
        late = asyncio.get_running_loop().time() >= deadline
        what = "did not answer in the time allowed; raise --timeout or try again."
        silent = "fell silent in the middle of its answer; try again."
        return ModelError(f"{server} {what if late else silent}", code="LLM_TIMEOUT")
    if isinstance(error, httpcore2.ProxyError):
        # The status alone: the rest is the proxy's own words, and it was shown a password.
        return _proxy_refused(server, said.partition(" ")[0], "HTTPS_PROXY")
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return _http_error(f"{server} broke the connection ({said}); try again.", retry=True)
    if isinstance(error, httpcore2.RemoteProtocolError):
        broke = "disconnected" in said or "closed" in said
        what = "broke the connection" if broke else "did not speak HTTP as it should"
        return _http_error(f"{server} {what} ({said}); try again.", retry=broke)
    if isinstance(error, ssl.SSLError):
        return _http_error(f"no secure connection to {server} ({said}); check it or SSL_CERT_FILE.")
    if isinstance(error, socket.gaierror):
        again = error.errno == socket.EAI_AGAIN
        return _http_error(f"the name {server} cannot be found ({said}); check it.", retry=again)
    if isinstance(error, OSError):
        return _http_error(f"cannot connect to {server} ({said}); is it running?", retry=True)
    if isinstance(error, httpcore2.ProtocolError):
        return _http_error(f"the request to {server} failed ({said}); check the base URL.")
    return ModelError(
        f"the request to {server} failed: {type(error).__name__}: {said}; please report it."
    )


def _http_error(text: str, *, retry: bool = False) -> ModelError:
    return ModelError(text, code="LLM_HTTP_ERROR", retryable=retry)


def _proxy_refused(server: str, status: str, variable: str) -> ModelError:
    return _http_error(f"the proxy refused the way to {server} (HTTP {status}); check {variable}.")


def _redirected(response: Response, shown: str) -> ModelError:
    # A redirect would carry the key to another host, and turns POST into GET.
    location = redact(response.headers.get("location", "").split("?")[0].split("#")[0])[:300]
    place = location.rpartition("@")[2] if "@" in location else location
    return ModelError(
        f"{shown} answered with a redirect (HTTP {response.status}) to {place or 'nowhere'!r},"
        " which is not followed; give the final address as base URL.",
        code="LLM_HTTP_ERROR",
        status=response.status,
        request_id=response.request_id,
    )


def _too_large(limit: int) -> ModelError:
    return ModelError(
        f"the server sent more than {limit // 2**20} MB; the answer was cut off. Ask for less, or"
        " check the base URL.",
        code="LLM_BAD_RESPONSE",
    )
