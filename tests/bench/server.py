"""A fast scripted model server in its own process, so that its CPU time is not ours.

What it plays stands in the path of the base URL: `/turns-20/v1` calls `step` until the 20th
answer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
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
    async def answer(self, visit: Visit) -> None:
        visit.keep = True
        count = int(visit.path.split("/")[1].removeprefix("turns-"))
        calls = _calls(count, visit.data.count(b'"tool_call_id"'))
        await visit.send(_streamed(calls) if visit.body.get("stream") else _whole(calls))


def _calls(count: int, results: int) -> list[dict[str, Any]]:
    """The call of the next answer, from how many results the conversation has; none at its end."""
    if results == count - 1:
        return []
    return [call("step", json.dumps({"n": results}), id=f"call_{results}", index=results)]


def _whole(calls: list[dict[str, Any]]) -> bytes:
    made = completion(_WORDS, **({"tool_calls": calls} if calls else {}))
    return whole({"id": "c1", "object": "chat.completion", **made, "usage": _USAGE})


def _event(chunk: dict[str, Any]) -> bytes:
    data = json.dumps({**_CHUNK, **chunk}, separators=(",", ":")).encode()
    return chunked(b"data: " + data + b"\n\n")


def _streamed(calls: list[dict[str, Any]]) -> bytes:
    made = [delta(tool_calls=[{**one, "index": i}]) for i, one in enumerate(calls)]
    words = [_event(delta(content=f"{word} ")) for word in _WORDS.split()]
    events = [_event(delta(role="assistant", content="")), *words]
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
