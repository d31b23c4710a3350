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
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
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
from nbagent.providers.chunked import ChunkDecoder
from nbagent.providers.failures import request_id_of, response_error
from nbagent.providers.sockets import AsyncioBackend, Patience, SocketStream, WaitedTooLong

CONNECT_TIMEOUT_S = 5.0
BETWEEN_BYTES_S = 300.0
"""Longest silence while an answer streams; comments and pings count as life."""
MAX_BODY_BYTES = 32 * 1024 * 1024
"""Of one answer, both as it is sent and after inflating."""
_MAX_ERROR_BYTES = 64 * 1024
_ERROR_BODY_S = 5.0
_MAX_CONNECTIONS = 100
_KEEP_ALIVE_S = 60.0
_INFLATE_STEP = 64 * 1024
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
        self.address = _Address(base_url)
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
        try:
            request = self._request(method, path, body, patience)
            response = await self._pool().handle_async_request(request)
        except Exception as error:
            fault = self._fault(error)
        else:
            answer = Answer(response, patience, self)
            if 200 <= response.status < 300:
                return answer
            fault = await self._refused(answer, path)
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
            url = self._targets[path] = self.address.url(path)
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
        return self._shared.pool(self.address)

    async def _refused(self, answer: Answer, path: str) -> ModelError:
        """The error of a response that is no success; the connection is given back."""
        shown = self.address.shown + path
        try:
            if 300 <= answer.status < 400:
                return _redirected(answer, shown)
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
        return response_error(answer.status, answer.headers, body, url=shown, text=text)

    def _fault(self, error: Exception) -> ModelError:
        return _as_model_error(error, self.address.server)


class Answer:
    """A 2xx response whose body has still to be read. Close it in any case."""

    def __init__(
        self, response: httpcore2.Response, patience: Patience, client: HttpClient
    ) -> None:
        self.status = response.status
        self.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.headers
        }
        self.request_id = request_id_of(self.headers)
        self._response = response
        self._patience = patience
        self._server = client.address.server

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The body as it arrives, decoded.

        Raises:
            ModelError: it broke off, came too slowly, or is larger than the cap.
        """
        fault: ModelError | None = None
        try:
            inflate = _inflater(self.headers.get("content-encoding", ""))
            total = inflated = 0
            async with aclosing(self._raw_pieces()) as raw:
                async for piece in raw:
                    total += len(piece)
                    if total > MAX_BODY_BYTES:
                        raise _too_large()
                    if inflate is None:
                        yield piece
                        continue
                    for part in inflate.feed(piece):
                        inflated += len(part)
                        if inflated > MAX_BODY_BYTES:
                            raise _too_large()
                        yield part
        except ModelError:
            raise
        except Exception as error:
            fault = _as_model_error(error, self._server)
        if fault is not None:
            raise fault

    def _raw_pieces(self) -> AsyncGenerator[bytes]:
        stream = cast("Any", self._response).extensions.get("network_stream")
        chunked = self.headers.get("transfer-encoding", "").strip().lower() == "chunked"
        if chunked and isinstance(stream, SocketStream) and stream.body_is_next:
            return self._chunked_pieces(stream)
        return self._pooled_pieces()

    def _pooled_pieces(self) -> AsyncGenerator[bytes]:
        stream = cast("AsyncIterable[bytes]", self._response.stream)
        return cast("AsyncGenerator[bytes]", stream.__aiter__())

    async def _chunked_pieces(self, stream: SocketStream) -> AsyncGenerator[bytes]:
        """A chunked body, read past the pool, which is then shown an empty one."""
        decoder = ChunkDecoder()
        while not decoder.done:
            data = await stream.read_body(self._patience)
            if not data:
                raise ConnectionResetError("the answer broke off")
            if piece := decoder.feed(data):
                yield piece
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
        """What is still to come must come within this time."""
        soon = asyncio.get_running_loop().time() + within_s
        self._patience.deadline = min(self._patience.deadline, soon)

    async def close(self) -> None:
        """Give the connection back if the body was read to its end; drop it otherwise."""
        await self._response.aclose()


@dataclass
class _LoopPools:
    """The connections of one event loop, kept as long as a client of it is open."""

    loop: asyncio.AbstractEventLoop
    users: int = 0
    pools: dict[str | None, httpcore2.AsyncConnectionPool] = field(
        default_factory=dict[str | None, httpcore2.AsyncConnectionPool]
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

    def pool(self, address: _Address) -> httpcore2.AsyncConnectionPool:
        slot = address.pool_slot
        pool = self.pools.get(slot)
        if pool is None:
            pool = self.pools[slot] = httpcore2.AsyncConnectionPool(
                ssl_context=_tls() if slot != "plain" else None,
                proxy=address.proxy(),
                max_connections=_MAX_CONNECTIONS,
                max_keepalive_connections=_MAX_CONNECTIONS // 4,
                keepalive_expiry=_KEEP_ALIVE_S,
                network_backend=cast("httpcore2.AsyncNetworkBackend", AsyncioBackend()),
            )
        return pool


_loops: dict[asyncio.AbstractEventLoop, _LoopPools] = {}


class _Address:
    """A base URL, parsed once."""

    def __init__(self, base_url: str) -> None:
        try:
            parts = urlsplit(base_url)
            port = parts.port
        except ValueError:
            raise UsageError(f"the base URL {base_url!r} cannot be read; check it.") from None
        if parts.username or parts.password:
            raise UsageError(
                "the base URL holds a name or a password; give the key in LLM_API_KEY instead."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                f"the base URL {base_url!r} is not one; write it as http://HOST:PORT/v1."
            )
        self.scheme = parts.scheme
        self.host = parts.hostname.encode("idna").decode() if parts.hostname else ""
        self.port = port
        self._path = parts.path.rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.server = name if port is None else f"{name}:{port}"
        self.shown = f"{self.scheme}://{self.server}{self._path}"
        """The base URL without its query; safe to show."""
        self._proxy_url = None if is_loopback(self.host) else _proxy_url(self.scheme, self.host)
        self.pool_slot = self._proxy_url or ("plain" if self.scheme == "http" else "tls")

    def url(self, path: str) -> httpcore2.URL:
        target = (self._path + path + self._query).encode()
        return httpcore2.URL(scheme=self.scheme, host=self.host, port=self.port, target=target)

    def proxy(self) -> httpcore2.Proxy | None:
        if self._proxy_url is None:
            return None
        parts = urlsplit(self._proxy_url)
        auth = None
        if parts.username:
            register(unquote(parts.password or ""))
            auth = (unquote(parts.username), unquote(parts.password or ""))
        host = parts.hostname or ""
        bare = httpcore2.URL(scheme=parts.scheme, host=host, port=parts.port, target="/")
        return httpcore2.Proxy(bare, auth=auth)


@cache
def _tls() -> ssl.SSLContext:
    # 23 ms to build: one for the process, made when the first https request needs it.
    return httpcore2.default_ssl_context()


def _proxy_url(scheme: str, host: str) -> str | None:
    # Imported late: only hosts that are not this machine need it.
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    found = proxies.get(scheme) or proxies.get("all")
    if not found or proxy_bypass(host):
        return None
    return found if "://" in found else f"http://{found}"


def _checked_headers(address: _Address, extra: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
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


class _Inflater:
    """Undoes gzip and deflate in bounded steps, so that a small bomb stays small."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._fresh = True

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._fresh and data:
            self._fresh = False
            # "deflate" without the zlib header: some servers send it, and browsers accept it.
            if not (data[0] == 0x1F or (data[0] & 0x0F == 8)):
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
        while data and not self._zlib.eof:
            part = self._zlib.decompress(data, _INFLATE_STEP)
            data = self._zlib.unconsumed_tail
            if part:
                yield part


def _inflater(encoding: str) -> _Inflater | None:
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Inflater()
    raise ModelError(
        f"the server encoded its answer as {redact(encoding)[:40]!r}, which was not asked for.",
        code="LLM_BAD_RESPONSE",
    )


def _too_large() -> ModelError:
    return ModelError(
        f"the server sent more than {MAX_BODY_BYTES // 2**20} MB; the answer was cut off.",
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
    said = redact(" ".join(str(error).split()))[:300] or type(error).__name__
    if isinstance(error, WaitedTooLong):
        return _timed_out(error, server)
    if isinstance(error, httpcore2.TimeoutException):
        return ModelError(
            f"no connection to {server} became free in time; run fewer at once.", code="LLM_TIMEOUT"
        )
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
    if isinstance(error, httpcore2.ProxyError | httpcore2.ProtocolError | httpcore2.NetworkError):
        return _http_error(f"the request to {server} failed ({said}).")
    if isinstance(error, zlib.error):
        return ModelError(
            f"the answer of {server} cannot be inflated ({said}).", code="LLM_BAD_RESPONSE"
        )
    return ModelError(f"the request to {server} failed: {type(error).__name__}: {said}.")


def _http_error(text: str, *, retry: bool = False) -> ModelError:
    return ModelError(text, code="LLM_HTTP_ERROR", retryable=retry)


def _timed_out(error: WaitedTooLong, server: str) -> ModelError:
    texts = {
        "connect": f"{server} did not accept a connection in time; is it running?",
        "silence": f"{server} fell silent in the middle of its answer; try again.",
        "deadline": f"{server} did not answer in the time allowed; raise --timeout or try again.",
    }
    return ModelError(texts[error.kind], code="LLM_TIMEOUT", retryable=error.kind == "connect")
