"""A fast scripted model server in its own process, so that its CPU time is not ours.

What it plays stands in the path of the base URL: `/turns-20/v1` calls `step` until the 20th
answer, `/calls-3/v1` calls it three times at once, `/deltas-10000/v1` streams so many deltas in
one go, `/paced-10000-20/v1` spreads them over 20 seconds. `GET /log` tells when requests came and
answers left, and forgets it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

_USAGE = {"prompt_tokens": 420, "completion_tokens": 24, "total_tokens": 444}
_WORDS = "The agent reads what the tools said and thinks about what to do next. "
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class _Log:
    def __init__(self) -> None:
        self.came: list[float] = []
        self.answered: list[float] = []

    def take(self) -> bytes:
        data = json.dumps({"came": self.came, "answered": self.answered}).encode()
        self.came, self.answered = [], []
        return data


class _Connection(asyncio.Protocol):
    def __init__(self, log: _Log) -> None:
        self._log = log
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._pacing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pacing is not None:
            self._pacing.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        size = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                size = int(line[15:])
        if len(rest) >= size:
            self._buffer = rest[size:]
            self._answer(head.split(b" ", 2)[1].decode(), rest[:size])

    def _answer(self, path: str, body: bytes) -> None:
        if path == "/log":
            self._whole(self._log.take())
            return
        self._log.came.append(time.time())
        plot, *numbers = path.split("/")[1].split("-")
        counts = [float(number) for number in numbers]
        if plot == "paced":
            self._pacing = asyncio.get_running_loop().create_task(
                self._pace(int(counts[0]), counts[1])
            )
            return
        if plot == "deltas":
            self._write(_STREAM_HEAD + b"".join(_deltas(int(counts[0]))) + _end())
        else:
            message = _message(plot, int(counts[0]), body.count(b'"tool_call_id"'))
            if b'"stream":true' in body:
                self._write(_STREAM_HEAD + b"".join(_chunks(message)) + _end(message))
            else:
                self._whole(_completion(message))
        self._log.answered.append(time.time())

    async def _pace(self, count: int, seconds: float) -> None:
        self._write(_STREAM_HEAD)
        began = time.perf_counter()
        for i, delta in enumerate(_deltas(count)):
            left = began + seconds * i / count - time.perf_counter()
            if left > 0:
                await asyncio.sleep(left)
            self._write(delta)
        self._write(_end())

    def _whole(self, data: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._write(head % len(data) + data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _message(plot: str, count: int, results: int) -> dict[str, Any]:
    """The next answer of a script, from how many results the conversation has."""
    if plot == "calls":
        calls = [] if results else list(range(count))
    else:
        calls = [results] if results < count - 1 else []
    message: dict[str, Any] = {"role": "assistant", "content": _WORDS}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"call_{results}_{n}",
                "type": "function",
                "function": {"name": "step", "arguments": json.dumps({"n": n})},
            }
            for n in calls
        ]
    return message


def _finish(message: dict[str, Any]) -> str:
    return "tool_calls" if "tool_calls" in message else "stop"


def _completion(message: dict[str, Any]) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": _finish(message)}
    body = {"id": "c1", "object": "chat.completion", "model": "gpt-5.4", "choices": [choice]}
    return json.dumps({**body, "usage": _USAGE}).encode()


def _event(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **more}
    chunk = {
        "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
        "object": "chat.completion.chunk",
        "created": 1741570283,
        "model": "gpt-5.4",
        "choices": [choice],
    }
    data = b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _deltas(count: int) -> Iterator[bytes]:
    words = _WORDS.split()
    known = {word: _event({"content": f"{word} "}) for word in words}
    return (known[words[i % len(words)]] for i in range(count))


def _chunks(message: dict[str, Any]) -> Iterator[bytes]:
    yield _event({"role": "assistant", "content": ""})
    for word in str(message["content"]).split():
        yield _event({"content": f"{word} "})
    for i, call in enumerate(message.get("tool_calls", ())):
        yield _event({"tool_calls": [{"index": i, **call}]})


def _end(message: dict[str, Any] | None = None) -> bytes:
    usage = b'data: {"id":"c1","choices":[],"usage":%b}\n\n' % json.dumps(_USAGE).encode()
    last = _event({}, finish_reason=_finish(message or {}))
    return last + b"%x\r\n%b\r\n" % (len(usage), usage) + _STREAM_END


@contextmanager
def serving() -> Generator[str]:
    """Run the server in a process of its own; gives its address."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


async def _serve() -> None:
    log = _Log()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(log), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve())
