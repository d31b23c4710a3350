"""One HTTP request to a model server and its answer as bytes. The only user of the HTTP library.

Owns pools, TLS, proxies, deadlines, caps and decoding, and turns every fault into a ModelError.
It follows no redirect and retries nothing; what the bytes mean belongs to the adapters.

The pool is httpx2's own (`httpcore2`), called without the client around it: parsing the URL,
merging headers and wrapping streams for each request would double the cost of a turn.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import httpcore2

from nbagent import __version__
from nbagent.contracts.canonical import load_json
from nbagent.contracts.errors import ModelError, UsageError
from nbagent.contracts.secrets import SecretKey, redact, register
from nbagent.providers.errors import request_id_of, response_error, without_logins
from nbagent.providers.http.address import Address, Route
from nbagent.providers.http.chunked import ChunkDecoder
from nbagent.providers.http.inflating import inflater
from nbagent.providers.http.sockets import AsyncioBackend, Patience, SocketStream, WaitedTooLong

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
"""So many dead ones are passed over at once; a server that resets everything is left alone."""
_BROKEN = (ConnectionResetError, BrokenPipeError, httpcore2.RemoteProtocolError)
_SECRET_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"})


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
    ) -> None:
        self.address = Address(base_url)
        self._key = key
        self._key_header = key_header.encode()
        self._key_prefix = key_prefix
        self._headers = _checked_headers(self.address, headers or {})
        self._own_key_header = key_header.lower() in {name.lower() for name in headers or {}}
        self._targets: dict[str, httpcore2.URL] = {}
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
    ) -> Answer:
        """Send one request; returns when a 2xx status and the headers have come.

        Args:
            path: what follows the base URL, with its slash.
            deadline: the loop's time at which the whole answer must be there.

        Raises:
            ModelError: anything went wrong, or the status is not 2xx.
        """
        patience = Patience(between_bytes_s, deadline)
        spare = _STALE_CONNECTIONS
        while True:
            try:
                request = self._request(method, path, body, patience)
                response = await self._pool().handle_async_request(request)
            except Exception as error:
                if patience.was_stale and isinstance(error, _BROKEN) and spare > 0:
                    # The server had closed an idle connection: that is no answer to anything.
                    spare -= 1
                    patience.forget()
                    continue
                fault = _as_model_error(error, self.address.server)
            else:
                answer = Answer(response, patience, self)
                if 200 <= response.status < 300:
                    return answer
                fault = await self._refused(answer, path)
            break
        # Raised here, not in the handler: no context keeps the library's objects alive.
        raise fault

    async def close(self) -> None:
        """Let go of the connections; the last client of a loop closes them."""
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.release()

    def _request(
        self, method: str, path: str, body: bytes | None, patience: Patience
    ) -> httpcore2.Request:
        left = patience.deadline - asyncio.get_running_loop().time()
        if left <= 0:
            raise WaitedTooLong("deadline")
        url = self._targets.get(path)
        if url is None:
            url = self._targets[path] = _url_of(self.address, path)
        headers = list(self._headers)
        if body is not None:
            headers.append((b"Content-Type", b"application/json"))
            headers.append((b"Content-Length", b"%d" % len(body)))
        if self._key is not None and not self._own_key_header:
            headers.append((self._key_header, _header_of(self._key_prefix, self._key)))
        timeouts = {"connect": min(CONNECT_TIMEOUT_S, left), "read": patience, "pool": left}
        return httpcore2.Request(
            method, url, headers=headers, content=body, extensions={"timeout": timeouts}
        )

    def _pool(self) -> httpcore2.AsyncConnectionPool:
        loop = asyncio.get_running_loop()
        if self._shared is None or self._shared.loop is not loop:
            self._shared = _LoopPools.acquire(loop)
        return self._shared.pool(self.address.route())

    async def _refused(self, answer: Answer, path: str) -> ModelError:
        """The error of a response that is no success; the connection is given back."""
        shown = self.address.shown + path
        try:
            if 300 <= answer.status < 400:
                return _redirected(answer, shown)
            if answer.status == 407:
                # Its body may hold the request's headers, with the password of the proxy in them.
                return _proxy_refused(self.address.server, "407", "HTTP_PROXY")
            answer.hurry(_ERROR_BODY_S)
            try:
                raw = await answer.read(_MAX_ERROR_BYTES)
            except ModelError:
                raw = b""
        finally:
            await answer.close()
        text = raw.decode("utf-8", "replace")
        try:
            body: Any = load_json(raw)
        except (ValueError, RecursionError):
            body = None
        key_sent = self._key is not None or self._own_key_header
        return response_error(
            answer.status, answer.headers, body, url=shown, text=text, key_sent=key_sent
        )


class Answer:
    """A 2xx response whose body has still to be read. Close it in any case."""

    def __init__(
        self, response: httpcore2.Response, patience: Patience, client: HttpClient
    ) -> None:
        self.status = response.status
        self.headers = _joined(response.headers)
        self.request_id = request_id_of(self.headers)
        self._response = response
        self._patience = patience
        self._deadline = patience.deadline
        self._server = client.address.server

    async def pieces(self, limit: int = MAX_BODY_BYTES) -> AsyncGenerator[bytes]:
        """The body as it arrives, decoded.

        Raises:
            ModelError: it broke off, came too slowly, or is larger than `limit`.
        """
        fault: ModelError | None = None
        try:
            inflate = inflater(self.headers.get("content-encoding", ""))
            total = inflated = 0
            async with aclosing(self._raw_pieces(limit)) as raw:
                async for piece in raw:
                    total += len(piece)
                    if total > limit:
                        raise _too_large(limit)
                    if inflate is None:
                        yield piece
                        continue
                    for part in inflate.feed(piece):
                        inflated += len(part)
                        if inflated > limit:
                            raise _too_large(limit)
                        yield part
                        # A few bytes may hold a gigabyte: neither the loop nor the deadline waits.
                        await asyncio.sleep(0)
                        self._patience.check(asyncio.get_running_loop().time())
        except ModelError:
            raise
        except Exception as error:
            fault = _as_model_error(error, self._server)
        if fault is not None:
            raise fault

    def _raw_pieces(self, limit: int) -> AsyncGenerator[bytes]:
        stream = cast("Any", self._response).extensions.get("network_stream")
        if not isinstance(stream, SocketStream):
            return self._pooled_pieces()
        length = self.headers.get("content-length", "")
        chunked = self.headers.get("transfer-encoding", "").strip().lower() == "chunked"
        if not stream.body_is_next or (chunked and length):
            # What belongs to this answer cannot be told for sure: nothing follows it here.
            stream.spoil()
        elif length.isdecimal():
            # Bytes beyond the length would be read as the answer to the next request.
            stream.begin_body(int(length))
        if chunked and stream.body_is_next:
            return self._chunked_pieces(stream, limit * _MOST_FRAMING)
        return self._pooled_pieces()

    def _pooled_pieces(self) -> AsyncGenerator[bytes]:
        stream = cast("AsyncIterable[bytes]", self._response.stream)
        return cast("AsyncGenerator[bytes]", stream.__aiter__())

    async def _chunked_pieces(self, stream: SocketStream, limit: int) -> AsyncGenerator[bytes]:
        """A chunked body, read past the pool, which is then shown an empty one."""
        decoder = ChunkDecoder()
        total = 0
        while not decoder.done:
            data = await stream.read_body(self._patience)
            if not data:
                raise ConnectionResetError("the answer broke off")
            total += len(data)
            if total > limit:
                raise _too_large(limit)
            if piece := decoder.feed(data):
                yield piece
            if decoder.broken:
                raise _http_error("the server's chunked answer is broken; try again.")
        if decoder.surplus:
            return  # Never asked for: closing drops the connection, as the pool is not at the end.
        stream.put_back(b"0\r\n\r\n")
        async with aclosing(self._pooled_pieces()) as rest:
            async for _ in rest:
                pass

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body, or its first `limit` bytes."""
        parts: list[bytes] = []
        size = 0
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                parts.append(piece)
                size += len(piece)
                if size >= limit:
                    break
        return b"".join(parts)[:limit]

    def hurry(self, within_s: float) -> None:
        """What is still to come must come within this time from now; the last word counts."""
        soon = asyncio.get_running_loop().time() + within_s
        self._patience.deadline = min(self._deadline, soon)

    async def close(self) -> None:
        """Give the connection back if the body was read to its end; drop it otherwise."""
        await self._response.aclose()


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
            pool = self.pools[route] = httpcore2.AsyncConnectionPool(
                ssl_context=_tls(*route.certificates) if route.certificates else None,
                proxy=_proxy_of(route),
                max_connections=_MAX_CONNECTIONS,
                max_keepalive_connections=_MAX_CONNECTIONS // 4,
                keepalive_expiry=_KEEP_ALIVE_S,
                network_backend=cast("httpcore2.AsyncNetworkBackend", AsyncioBackend()),
            )
        return pool


_loops: dict[asyncio.AbstractEventLoop, _LoopPools] = {}


def _url_of(address: Address, path: str) -> httpcore2.URL:
    return httpcore2.URL(
        scheme=address.scheme, host=address.host, port=address.port, target=address.target(path)
    )


def _proxy_of(route: Route) -> httpcore2.Proxy | None:
    proxy = route.proxy()
    if proxy is None:
        return None
    url = httpcore2.URL(scheme=proxy.scheme, host=proxy.host, port=proxy.port, target="/")
    login = proxy.login
    # The library takes text for ASCII.
    coded = (login[0].encode(), login[1].encode()) if login else None
    return httpcore2.Proxy(url, auth=coded)


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


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by their name in lower case; what came twice is joined, as HTTP has it."""
    joined: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    return joined


def _checked_headers(address: Address, extra: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    headers = {
        "Host": address.server,
        "Accept": "application/json, text/event-stream",
        # Nothing is gained by inflating a stream of tokens, and proxies buffer what they deflate.
        "Accept-Encoding": "identity",
        "User-Agent": f"nbagent/{__version__}",
    }
    given = {name.lower() for name in extra}
    headers = {name: text for name, text in headers.items() if name.lower() not in given}
    for name, text in extra.items():
        if name.lower() in _SECRET_HEADERS:
            register(text.removeprefix("Bearer "))
        if not (name + text).isascii() or any(ord(char) < 32 for char in name + text):
            raise UsageError(f"header {name!r} has characters that cannot be sent; correct it.")
        headers[name] = text
    return [(name.encode(), text.encode()) for name, text in headers.items()]


def _header_of(prefix: str, key: SecretKey) -> bytes:
    text = key.reveal().strip()
    if not text.isascii() or not text.isprintable():
        raise ModelError(
            "the key has characters that no key has; copy it again.", code="LLM_AUTH_FAILED"
        )
    return (prefix + text).encode()


def _too_large(limit: int) -> ModelError:
    return ModelError(
        f"the server sent more than {limit // 2**20} MB; the answer was cut off. Ask for less, or"
        " check the base URL.",
        code="LLM_BAD_RESPONSE",
    )


def _redirected(answer: Answer, shown: str) -> ModelError:
    # A redirect would carry the key to another host, and turns POST into GET.
    location = redact(answer.headers.get("location", "").split("?")[0].split("#")[0])[:300]
    place = location.rpartition("@")[2] if "@" in location else location
    return ModelError(
        f"{shown} answered with a redirect (HTTP {answer.status}) to {place or 'nowhere'!r}, which"
        " is not followed; give the final address as base URL.",
        code="LLM_HTTP_ERROR",
        status=answer.status,
        request_id=answer.request_id,
    )


def _as_model_error(error: Exception, server: str) -> ModelError:
    """The ModelError of any fault of the transport, its text free of secrets."""
    if isinstance(error, ModelError):
        return error
    said = without_logins(redact(" ".join(str(error).split())))[:300] or type(error).__name__
    if isinstance(error, WaitedTooLong):
        return _timed_out(error, server)
    if isinstance(error, httpcore2.TimeoutException):
        return ModelError(
            f"no connection to {server} became free in time; run fewer at once.", code="LLM_TIMEOUT"
        )
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
    if isinstance(error, httpcore2.ProtocolError | httpcore2.NetworkError):
        return _http_error(f"the request to {server} failed ({said}); check the base URL.")
    return ModelError(
        f"the request to {server} failed: {type(error).__name__}: {said}; please report it."
    )


def _http_error(text: str, *, retry: bool = False) -> ModelError:
    return ModelError(text, code="LLM_HTTP_ERROR", retryable=retry)


def _proxy_refused(server: str, status: str, variable: str) -> ModelError:
    return _http_error(f"the proxy refused the way to {server} (HTTP {status}); check {variable}.")


def _timed_out(error: WaitedTooLong, server: str) -> ModelError:
    texts = {
        "connect": f"{server} did not accept a connection in time; is it running?",
        "silence": f"{server} fell silent in the middle of its answer; try again.",
        "deadline": f"{server} did not answer in the time allowed; raise --timeout or try again.",
    }
    return ModelError(texts[error.kind], code="LLM_TIMEOUT", retryable=error.kind == "connect")
