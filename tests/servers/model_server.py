"""A small, fast model server on loopback that speaks Chat Completions; standard library only.

For tests, benches and notebooks in tests: `with ModelServer([...]) as server: server.url`.
It plays a script of answers, or (without one) behaves like a little model. It records requests.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass
class Reply:
    """One answer of the script. What is set is sent; a `status` other than 200 is an error."""

    text: str = ""
    calls: Sequence[tuple[str, Any]] = ()
    """`(name on the wire, arguments)`; arguments that are a str are sent as they are."""
    reasoning: str = ""
    finish: str | None = None
    usage: dict[str, Any] | None = None
    deltas: int | None = None
    """Into how many pieces the text is cut; by default one per word."""
    delay_s: float = 0.0
    """Before the answer."""
    between_s: float = 0.0
    """Between two deltas."""
    status: int = 200
    error: Any = None
    """The JSON body of an error, or a str that is sent as it is."""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    """Close the connection after the deltas, without an end."""
    raw: bytes | None = None
    """Sent as the whole body instead of everything above; see `raw_headers`."""
    raw_pieces: int | None = None
    """Send `raw` in pieces of so many bytes."""
    raw_type: str = "text/event-stream"


@dataclass
class Request:
    """One request that the server got."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: Any
    """The decoded JSON, or None."""
    connection: int
    """Counts the connections from 1."""


Step = Reply | str | Callable[[Request], "Reply | str"]


class ModelServer:
    """Answers in its own thread. After the script's last step it behaves like a little model."""

    def __init__(
        self, script: Sequence[Step] = (), *, models: Sequence[Any] = ("little",), port: int = 0
    ) -> None:
        self.requests: list[Request] = []
        self.models: list[Any] = list(models)
        self._script = list(script)
        self._port = port
        self._connections = 0
        self._loop = asyncio.new_event_loop()
        self._open: set[_Connection] = set()
        self._thread = threading.Thread(target=self._serve, name="model-server", daemon=True)
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        """The base URL, `…/v1`."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def bodies(self) -> list[Any]:
        """The JSON bodies of all chat requests."""
        return [request.body for request in self.requests if request.method == "POST"]

    def then(self, *steps: Step) -> None:
        """Add steps to the script."""
        self._script.extend(steps)

    def __enter__(self) -> ModelServer:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _serve(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(
            loop.create_server(lambda: _Connection(self, loop), "127.0.0.1", self._port)
        )
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            loop.run_forever()
        finally:
            server.close()
            for connection in list(self._open):
                connection.abort()
            pending = asyncio.all_tasks(loop)
            for task in pending:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    def _number(self, connection: _Connection) -> int:
        self._open.add(connection)
        self._connections += 1
        return self._connections

    def _reply_to(self, request: Request) -> Reply:
        self.requests.append(request)
        step: Step = self._script.pop(0) if self._script else little_model
        answer = step(request) if callable(step) else step
        return Reply(text=answer) if isinstance(answer, str) else answer


def little_model(request: Request) -> Reply:
    """Call the first offered tool once, then say what came back."""
    body = cast("dict[str, Any]", request.body or {})
    messages = cast("list[dict[str, Any]]", body.get("messages") or [])
    tools = cast("list[dict[str, Any]]", body.get("tools") or [])
    results: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        results.insert(0, str(message["content"]))
    said = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    if results:
        return Reply(text=f"The tools said: {'; '.join(results)}")
    if tools and body.get("tool_choice") != "none":
        function = tools[0]["function"]
        return Reply(calls=[(function["name"], _invented(function.get("parameters") or {}, said))])
    return Reply(text=f"You said: {said}")


def _invented(schema: dict[str, Any], said: Any) -> dict[str, Any]:
    """Arguments that fit a schema, the texts taken from what was said."""
    plain: dict[str, Any] = {
        "integer": 1,
        "number": 1.5,
        "boolean": True,
        "array": [],
        "object": {},
    }
    properties = cast("dict[str, dict[str, Any]]", schema.get("properties") or {})
    wanted = cast("list[str]", schema.get("required") or list(properties))
    words = str(said).split()
    values: dict[str, Any] = {}
    for name in wanted:
        rule = properties.get(name, {})
        if rule.get("enum"):
            values[name] = rule["enum"][0]
        else:
            values[name] = plain.get(str(rule.get("type")), words[-1] if words else "x")
    return values


def _details(model: dict[str, Any]) -> dict[str, Any]:
    """What Ollama's list says of a model."""
    meta: Any = model.get("meta")
    size: Any = cast("dict[str, Any]", meta).get("n_ctx") if isinstance(meta, dict) else None
    return {"context_length": model.get("max_model_len", size)}


class _Connection(asyncio.Protocol):
    """HTTP/1.1 with keep-alive, as far as a client of models needs it."""

    def __init__(self, server: ModelServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._buffer = b""
        self._number = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._number = self._server._number(self)  # pyright: ignore[reportPrivateUsage]

    def connection_lost(self, exc: Exception | None) -> None:
        self._server._open.discard(self)  # pyright: ignore[reportPrivateUsage]
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        size = int(headers.get("content-length", "0"))
        if len(rest) < size:
            return
        self._buffer = rest[size:]
        method, path, _ = lines[0].split(" ")
        body = json.loads(rest[:size]) if size else None
        self._handle(Request(method, path, headers, body, self._number))

    def _handle(self, request: Request) -> None:
        if request.method == "GET" and request.path.endswith(("/models", "/api/tags")):
            self._server.requests.append(request)
            listed = [{"id": m} if isinstance(m, str) else m for m in self._server.models]
            body: Any = {"object": "list", "data": listed}
            if request.path.endswith("/api/tags"):
                body = {"models": [{"model": m["id"], "details": _details(m)} for m in listed]}
            self._send(200, json.dumps(body).encode())
            return
        reply = self._server._reply_to(request)  # pyright: ignore[reportPrivateUsage]
        body = cast("dict[str, Any]", request.body or {})
        if reply.delay_s or reply.between_s or reply.raw_pieces:
            self._task = self._loop.create_task(self._slowly(reply, body))
        else:
            for _ in self._parts(reply, body):
                pass

    async def _slowly(self, reply: Reply, body: dict[str, Any]) -> None:
        await asyncio.sleep(reply.delay_s)
        for _ in self._parts(reply, body):
            await asyncio.sleep(reply.between_s)

    def _parts(self, reply: Reply, body: dict[str, Any]) -> Iterator[None]:
        """Write the answer; yields where it may wait."""
        if reply.raw is not None:
            yield from self._raw(reply)
        elif reply.status != 200 or reply.error is not None:
            error = reply.error if reply.error is not None else {"error": {"message": "scripted"}}
            data = error.encode() if isinstance(error, str) else json.dumps(error).encode()
            self._send(reply.status, data, reply.headers)
        elif body.get("stream"):
            yield from self._stream(reply, body)
        else:
            self._send(200, json.dumps(_whole(reply, body)).encode(), reply.headers)

    def _raw(self, reply: Reply) -> Iterator[None]:
        raw = reply.raw or b""
        extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        head = f"HTTP/1.1 {reply.status} X\r\nContent-Type: {reply.raw_type}\r\n{extra}"
        self._write(f"{head}Connection: close\r\n\r\n".encode())
        step = reply.raw_pieces or max(1, len(raw))
        for start in range(0, len(raw), step):
            self._write(raw[start : start + step])
            yield
        self.close()

    def _stream(self, reply: Reply, body: dict[str, Any]) -> Iterator[None]:
        extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        self._write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            + extra.encode()
            + b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for chunk in _chunks(reply, body):
            data = b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
            self._write(b"%x\r\n%b\r\n" % (len(data), data))
            yield
        if reply.cut:
            self.close()
        else:
            self._write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{extra}"
        self._write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _usage(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    if reply.usage is not None:
        return reply.usage
    prompt = len(json.dumps(body.get("messages", []))) // 4 + 1
    completion = len(reply.text.split()) + 5 * len(reply.calls) + 1
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def _wire_calls(reply: Reply, body: dict[str, Any]) -> list[dict[str, Any]]:
    turn = len(cast("list[Any]", body.get("messages") or []))
    return [
        {
            "index": n,
            "id": f"call_{turn}_{n}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": args if isinstance(args, str) else json.dumps(args),
            },
        }
        for n, (name, args) in enumerate(reply.calls)
    ]


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _whole(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = _wire_calls(reply, body)
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    return {
        "id": "c1",
        "object": "chat.completion",
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}],
        "usage": _usage(reply, body),
    }


def _chunks(reply: Reply, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "c1", "model": body.get("model"), "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    for word in _pieces(reply.reasoning, None):
        yield chunk({"reasoning_content": word})
    for piece in _pieces(reply.text, reply.deltas):
        yield chunk({"content": piece})
    for call in _wire_calls(reply, body):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        start = {**call, "function": {**call["function"], "arguments": arguments[:half]}}
        yield chunk({"tool_calls": [start]})
        rest = {"index": call["index"], "function": {"arguments": arguments[half:]}}
        yield chunk({"tool_calls": [rest]})
    if reply.cut:
        return
    yield chunk({}, _finish(reply))
    options = cast("dict[str, Any]", body.get("stream_options") or {})
    if options.get("include_usage"):
        yield {"id": "c1", "choices": [], "usage": _usage(reply, body)}


def _pieces(text: str, count: int | None) -> list[str]:
    if not text:
        return []
    if count is None:
        words = text.split(" ")
        return [word if n == 0 else f" {word}" for n, word in enumerate(words)]
    if count > len(text):
        # More deltas than letters: the text is repeated so that the count holds.
        text *= -(-count // len(text))
    return [text[i * len(text) // count : (i + 1) * len(text) // count] for i in range(count)]
