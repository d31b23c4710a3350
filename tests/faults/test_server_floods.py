"""Servers that send too much on any wire: the process stays small, every flood has its code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from itertools import chain, repeat
from pathlib import Path

import pytest
from servers.dialects import CHAT, DIALECTS, Called, Dialect, chunked, delta
from servers.hostile_server import Fault, HostileServer
from servers.loopback import Visit

PEAK_MB = 150
TIMEOUT_S = 120
"""Of the client."""
_CLIENT = """
import json, re, sys, time
from pathlib import Path
import nbagent

model, *urls = sys.argv[1:]
for url in urls:
    began = time.monotonic()
    agent = nbagent.Agent(model=model, tools="none", base_url=url, key_variable="HOSTILE_KEY")
    run = agent.run("hi", timeout_s=TIMEOUT_S, stream="/whole-" not in url)
    code = run.error.code if run.error else ""
    text = "".join(turn.text for turn in run.turns)
    said = run.error.message if run.error else ""
    took_s = time.monotonic() - began
    peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    print(json.dumps([url.split("/")[-2], code, text[:20], said[:300], took_s, int(peak[1])]))
"""
"""Asks a model at each base URL once, in a process of its own, so that the peak is a client's."""
_BARE = b"HTTP/1.1 200 OK\r\n\r\n"
_PART = CHAT.stream(delta(content="part "), end=b"")
_MB = 2**20


def flood(start: bytes, piece: bytes, *, head: bytes = _BARE) -> Fault:
    """A start, and then the same bytes for ever."""
    block = piece * max(1, 65_536 // len(piece))

    async def serve(visit: Visit) -> None:
        await visit.send(head + start)
        await visit.flood(block)

    return serve


def gzip_of(start: bytes, piece: bytes) -> tuple[bytes, bytes]:
    """The start of a gzip stream, and a block of it that can be repeated for ever."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(piece * (4 * _MB // len(piece))) + packer.flush(zlib.Z_FULL_FLUSH)
    return first, block


def events(*made: object) -> bytes:
    """Events without an end."""
    return CHAT.stream(*made, end=b"")


def tiny(count: int) -> Fault:
    """Serve this number of events of one letter, and a good end."""
    one = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'

    async def serve(visit: Visit) -> None:
        await visit.send(CHAT.head())
        for block in chain(repeat(one * 1_000, count // 1_000), [CHAT.stream(*CHAT.said("y"))]):
            await visit.send(chunked(block))
        await visit.send(b"0\r\n\r\n")

    return serve


_OPEN = b"HTTP/1.1 200 OK\r\n"
_ZIPPED = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
_BOMB = gzip_of(b"{", b" ")
_LINE_BOMB = gzip_of(_PART, b"x")
_COMMENT_BOMB = gzip_of(_PART, b": \n\n")
_NEW_CALL = {"function": {"name": "f"}}
_LISTS = b'data: {"choices":[' + b"[]," * (2 * _MB) + b"[]]}\n\n"
_EXTENDED = b"1;" + b"x" * 8_000 + b"\r\n \r\n"
_BAD = "LLM_BAD_RESPONSE"
_DETAILS = events(delta(reasoning_details=[{"index": n} for n in range(12_000)]))
_SIGNED = {"text": "part ", "thoughtSignature": "eA=="}
_ENDED = {"content": {"parts": [_SIGNED]}, "finishReason": "STOP"}
_BEHIND: dict[str, object] = {"content": {"parts": [{"text": "x"}, {"inlineData": {}}] * 10_000}}

FLOODS: dict[str, tuple[Fault, str, str]] = {
    "whole-gzip bomb": (flood(*_BOMB, head=_ZIPPED), _BAD, ""),
    "gzip bomb": (flood(*_LINE_BOMB, head=_ZIPPED), _BAD, "part "),
    "endless line without a field": (flood(_PART, b"x"), _BAD, "part "),
    "endless event of many lines": (flood(_PART, b"data: xxxxxxxxxxxxxxxx\n"), _BAD, "part "),
    "endless calls": (flood(_PART, events(delta(tool_calls=[_NEW_CALL]))), _BAD, "part "),
    "many events": (tiny(50_000), "", "x"),
    "whole-endless brackets": (flood(b"", b"["), _BAD, ""),
    "lists in an event": (flood(_PART + _LISTS, b"\n"), _BAD, "part "),
    "details of many kinds": (flood(_PART + _DETAILS, b"\n"), _BAD, "part "),
    "endless headers": (flood(b"", b"x: y\r\n", head=_OPEN), "LLM_HTTP_ERROR", ""),
    "one endless header": (flood(b"x: ", b"y", head=_OPEN), "LLM_HTTP_ERROR", ""),
    "endless chunk size": (flood(b"", b"0", head=CHAT.head()), "LLM_HTTP_ERROR", ""),
    "endless chunk extensions": (flood(b"", _EXTENDED, head=CHAT.head()), _BAD, ""),
}
"""Of the transport and of events, on Chat Completions."""
LONG_FLOODS: dict[str, tuple[Fault, str, str]] = {
    "gzip bomb of comments": (flood(*_COMMENT_BOMB, head=_ZIPPED), _BAD, "part "),
    "endless empty lines": (flood(_PART, b"\n"), _BAD, "part "),
    "a million events": (tiny(1_000_000), "", "x"),
}
"""Tens of megabytes have to be read before the cap is reached."""


_WIRES = [wire for wire in DIALECTS if wire.name != "azure"]  # Its answers are chat's.
_ARGUMENTS = {"chat": 1, "responses": 2, "anthropic": 3, "google": 0, "ollama": 0}
"""Which event of an answer with a call has the most of the arguments."""


def floods_of(wire: Dialect) -> dict[str, tuple[Fault, str, str]]:
    """Floods for a wire's own parser: text, reasoning, lines, frames, a whole answer."""
    part = wire.stream(*wire.part("part "), end=b"")
    text = wire.stream(wire.part("x" * 9_000)[-1], end=b"")
    thought = wire.stream(wire.reasoning("x" * 9_000), end=b"")
    call_events = wire.said("", Called(arguments={"at": "x" * 9_000}))
    called = wire.stream(call_events[_ARGUMENTS[wire.name]], end=b"")
    start, _, _ = json.dumps(wire.whole("PLACE")).encode().partition(b"PLACE")
    behind = wire.stream({"candidates": [_ENDED]}, {"candidates": [_BEHIND]}, end=b"")
    own = {"many parts behind the end": (flood(behind, b"\n"), "", "part x")}
    return (own if wire.name == "google" else {}) | {
        "endless text": (flood(part, text), _BAD, "part "),
        "endless reasoning": (flood(part, thought), _BAD, "part "),
        "endless arguments": (flood(part, called), _BAD, "part "),
        "endless line": (flood(part + text[:-20], b"x"), _BAD, "part "),
        "endless after the end": (flood(wire.stream(*wire.said("fine")), b"x"), "", "fine"),
        "whole-endless text": (flood(start, b"x"), _BAD, ""),
        "whole-endless lists": (flood(b'{"%b":[' % wire.holder.encode(), b"[],"), _BAD, ""),
        "endless error": (flood(b"", b"x", head=b"HTTP/1.1 400 X\r\n\r\n"), "LLM_HTTP_ERROR", ""),
        "endless error line": (flood(part + b'{"error": "', b"x"), _BAD, "part "),
    }


def long_floods_of(wire: Dialect) -> dict[str, tuple[Fault, str, str]]:
    part = wire.stream(*wire.part("part "), end=b"")
    letter = wire.stream(wire.part("x")[-1], end=b"")
    return {
        "endless signs of life": (flood(part, wire.blank), _BAD, "part "),
        "endless letters": (flood(part, letter), _BAD, "part "),
    }


def _path(name: str) -> str:
    return name.replace(" ", "-")


def check(wire: Dialect, table: dict[str, tuple[Fault, str, str]]) -> None:
    """Let a process of its own meet the faults; look at the outcomes and at its peak."""
    with HostileServer({_path(name): fault for name, (fault, _, _) in table.items()}) as server:
        urls = [server.url(_path(name)) for name in table]
        done = subprocess.run(
            [sys.executable, "-c", f"TIMEOUT_S = {TIMEOUT_S}{_CLIENT}", wire.model, *urls],
            env={**os.environ, "HOSTILE_KEY": "sk-hostile-0123456789abcdefghij"},
            capture_output=True,
            text=True,
            timeout=600,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    found = {line[0]: line[1:] for line in map(json.loads, done.stdout.splitlines())}
    wrong = {
        name: found[_path(name)]
        for name, (_, code, text) in table.items()
        if found[_path(name)][0] != code or not found[_path(name)][1].startswith(text)
    }
    assert wrong == {}
    assert all(took_s < TIMEOUT_S + 2.0 for *_, took_s, _ in found.values())
    peaks = {name: outcome[-1] / 1024 for name, outcome in found.items()}
    print("peaks, MB:", {name: round(mb) for name, mb in peaks.items()})
    assert max(peaks.values()) <= PEAK_MB, peaks


def _marks(wire: Dialect, long: bool) -> list[pytest.MarkDecorator]:
    """Two wires stand for the five by default: each takes seconds of both cores."""
    if long:
        return [pytest.mark.proof, pytest.mark.timeout(620)]
    return [] if wire.name in ("chat", "anthropic") else [pytest.mark.proof]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak there")
@pytest.mark.parametrize(
    ("wire", "long"),
    [
        pytest.param(wire, long, id=f"{wire.name}-{long}", marks=_marks(wire, long))
        for long in (False, True)
        for wire in _WIRES
    ],
)
def test_floods_end_with_their_code_and_leave_the_process_small(wire: Dialect, long: bool) -> None:
    if long:
        check(wire, long_floods_of(wire) | (LONG_FLOODS if wire is CHAT else {}))
    else:
        check(wire, floods_of(wire) | (FLOODS if wire is CHAT else {}))
