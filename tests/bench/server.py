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
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from servers.dialects import CHAT, call, chunked, completion, delta
from servers.hostile_server import whole
from servers.loopback import Loopback, Visit

_USAGE = {"prompt_tokens": 420, "completion_tokens": 24, "total_tokens": 444}
_WORDS = "The agent reads what the tools said and thinks about what to do next. "
_CHUNK = {
    "id": "chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG",
    "object": "chat.completion.chunk",
    "created": 1741570283,
    "model": "gpt-5.4",
}


class _BenchServer(Loopback):
    def __init__(self) -> None:
        super().__init__()
        self.log: dict[str, list[float]] = {"came": [], "answered": []}

    async def answer(self, visit: Visit) -> None:
        visit.keep = True
        if visit.path == "/log":
            told, self.log = self.log, {"came": [], "answered": []}
            return await visit.send(whole(told))
        self.log["came"].append(time.time())
        plot, *numbers = visit.path.split("/")[1].split("-")
        count = int(numbers[0])
        if plot == "paced":
            return await _pace(visit, count, float(numbers[1]))
        if plot == "deltas":
            await visit.send(CHAT.head() + b"".join(_deltas(count)) + _end())
        else:
            calls = _calls(plot, count, visit.data.count(b'"tool_call_id"'))
            await visit.send(_streamed(calls) if visit.body.get("stream") else _whole(calls))
        self.log["answered"].append(time.time())
        return None


async def _pace(visit: Visit, count: int, seconds: float) -> None:
    await visit.send(CHAT.head())
    began = time.perf_counter()
    for i, piece in enumerate(_deltas(count)):
        await asyncio.sleep(max(0, began + seconds * i / count - time.perf_counter()))
        await visit.send(piece)
    await visit.send(_end())


def _calls(plot: str, count: int, results: int) -> list[dict[str, Any]]:
    """The calls of the next answer, from how many results the conversation has."""
    if plot == "calls":
        numbers = [] if results else list(range(count))
    else:
        numbers = [results] if results < count - 1 else []
    return [call("step", json.dumps({"n": n}), id=f"call_{results}_{n}", index=n) for n in numbers]


def _whole(calls: list[dict[str, Any]]) -> bytes:
    made = completion(_WORDS, **({"tool_calls": calls} if calls else {}))
    return whole({"id": "c1", "object": "chat.completion", **made, "usage": _USAGE})


def _event(chunk: dict[str, Any]) -> bytes:
    data = json.dumps({**_CHUNK, **chunk}, separators=(",", ":")).encode()
    return chunked(b"data: " + data + b"\n\n")


def _deltas(count: int) -> list[bytes]:
    words = [_event(delta(content=f"{word} ")) for word in _WORDS.split()]
    return [words[i % len(words)] for i in range(count)]


def _streamed(calls: list[dict[str, Any]]) -> bytes:
    made = [delta(tool_calls=[{**one, "index": i}]) for i, one in enumerate(calls)]
    events = [_event(delta(role="assistant", content="")), *_deltas(len(_WORDS.split()))]
    end = _end("tool_calls" if calls else "stop")
    return CHAT.head() + b"".join([*events, *map(_event, made)]) + end


def _end(finish: str = "stop") -> bytes:
    usage = _event({"choices": [], "usage": _USAGE})
    return _event(delta(finish)) + usage + chunked(CHAT.end) + b"0\r\n\r\n"


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
    server = _BenchServer()
    await server.start()
    print(server.origin, flush=True)
    await asyncio.sleep(float("inf"))


if __name__ == "__main__":
    asyncio.run(_serve())
