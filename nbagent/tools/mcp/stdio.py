"""A server as a child process: its environment, its pipes, its end.

Owns the process. The protocol's messages go through as the `mcp` package's streams; the package's
own transport keeps neither stderr nor the process, and reads a line of any length. Imports `mcp`:
only `wire` imports this module.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from nbagent.tools.mcp.description import Description, revealed
from nbagent.tools.mcp.incoming import readable
from nbagent.tools.mcp.life import Life, NotStartedError
from nbagent.tools.mcp.processes import end_group

_PASSED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
if sys.platform == "win32":
    _PASSED = (
        *("APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT"),
        *("PROCESSOR_ARCHITECTURE", "PROGRAMDATA", "PROGRAMFILES", "SYSTEMDRIVE", "SYSTEMROOT"),
        *("TEMP", "TMP", "USERNAME", "USERPROFILE", "WINDIR"),
    )
"""All that a server is given of the environment; keys have no place in these."""
_LONGEST_LINE_BYTES = 64_000_000
_PIECE_BYTES = 1 << 16
_GARBAGE_CHARS = 200
_LEAVE_S = 1.5
"""How long a server may take to end once its stdin is closed."""
_TERMINATE_S = 1.0
_LAST_WORDS_S = 0.3

Received = SessionMessage | Exception


def child_environment(server: Description) -> dict[str, str]:
    """What the server's process sees: a few names of ours, and those given to it."""
    own = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**own, **revealed(server.env)}


@asynccontextmanager
async def stdio_streams(
    server: Description, life: Life
) -> AsyncGenerator[
    tuple[MemoryObjectReceiveStream[Received], MemoryObjectSendStream[SessionMessage]]
]:
    """Start the server and join its pipes to a pair of streams; end it when left.

    Raises:
        NotStartedError: there is no such command, or it cannot be run.
    """
    process = await _spawn(server)
    life.begin(process.pid)
    to_session, received = anyio.create_memory_object_stream[Received](0)
    sending, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    pipes = _Pipes(process, life)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pipes.read_errors)
        tasks.start_soon(pipes.read_messages, to_session)
        tasks.start_soon(pipes.write_messages, from_session)
        try:
            yield received, sending
        finally:
            life.leave()
            with anyio.CancelScope(shield=True):
                await _end(process)
            for stream in (received, sending, to_session, from_session):
                stream.close()
            tasks.cancel_scope.cancel()


def _program(server: Description, environment: dict[str, str]) -> str:
    """The whole path of what is started."""
    program = server.command[0]
    found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None and os.path.basename(program) == program:
        # What was installed beside the kernel is there although its folder is not on the PATH.
        found = shutil.which(program, path=os.path.dirname(sys.executable))
    if found is None:
        raise NotStartedError(f"there is no command {program!r}; install it or give its whole path")
    if server.cwd is not None and not os.path.isdir(server.cwd):
        raise NotStartedError(f"its cwd {server.cwd!r} is no folder; correct it")
    return found


async def _spawn(server: Description) -> asyncio.subprocess.Process:
    environment = child_environment(server)
    program = _program(server, environment)
    own_group: dict[str, Any] = (
        {"creationflags": getattr(subprocess, "CREATE_NO_WINDOW", 0)}
        if sys.platform == "win32"
        else {"start_new_session": True}
    )
    try:
        return await asyncio.create_subprocess_exec(
            program,
            *server.command[1:],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=server.cwd,
            limit=_PIECE_BYTES,
            **own_group,
        )
    except (OSError, ValueError) as error:
        raise NotStartedError(f"{program!r} cannot be run ({error}); correct the command") from None


class _Pipes:
    def __init__(self, process: asyncio.subprocess.Process, life: Life) -> None:
        self._process = process
        self._life = life

    async def read_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_PIECE_BYTES):
            self._life.log.feed(data)
        self._life.told_all.set()

    async def read_messages(self, out: MemoryObjectSendStream[Received]) -> None:
        """Each line of stdout as a message; what is none goes to the log."""
        assert self._process.stdout is not None
        held = bytearray()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while data := await self._process.stdout.read(_PIECE_BYTES):
                start = len(held)
                held += data
                while (end := held.find(b"\n", start)) >= 0:
                    line, start = bytes(held[:end]), 0
                    del held[: end + 1]
                    await self._deliver(line, out)
                if len(held) > _LONGEST_LINE_BYTES:
                    self._life.log.add(f"[a line of over {_LONGEST_LINE_BYTES:,} bytes on stdout]")
                    break
        await self._wait_for_last_words()
        self._life.finish(self._process.returncode)
        out.close()

    async def _deliver(self, line: bytes, out: MemoryObjectSendStream[Received]) -> None:
        if not line.strip():
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            instead = await asyncio.to_thread(readable, line, self._life)
            if instead is None:
                start = line[:_GARBAGE_CHARS].decode("utf-8", "replace")
                self._life.log.add(f"[on stdout, no message of MCP] {start}")
            else:
                await out.send(instead)
            return
        await out.send(SessionMessage(message))

    async def _wait_for_last_words(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._life.told_all.wait()
            await _exited(self._process, _LAST_WORDS_S)

    async def write_messages(self, source: MemoryObjectReceiveStream[SessionMessage]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, anyio.ClosedResourceError):
            async for item in source:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                self._process.stdin.write(text.encode() + b"\n")
                await self._process.stdin.drain()
        source.close()  # Whoever writes now is told that nobody reads.


async def _end(process: asyncio.subprocess.Process) -> None:
    """Close stdin, wait a moment, then end it with all that it started."""
    if process.stdin is not None:
        with suppress(OSError, RuntimeError):
            process.stdin.close()
    if not await _exited(process, _LEAVE_S):
        end_group(process.pid, hard=False)
        if not await _exited(process, _TERMINATE_S):
            end_group(process.pid, hard=True)
            await _exited(process, _TERMINATE_S)
    # What it started and left behind.
    end_group(process.pid, hard=True)
    # The transport stays open while somebody else holds a pipe; nothing public closes it.
    transport = getattr(process, "_transport", None)
    if transport is not None:
        with suppress(Exception):
            transport.close()


async def _exited(process: asyncio.subprocess.Process, seconds: float) -> bool:
    # Not `process.wait()`: it also waits for the pipes, which a grandchild may hold.
    deadline = asyncio.get_running_loop().time() + seconds
    while process.returncode is None:
        if asyncio.get_running_loop().time() >= deadline:
            return False
        await asyncio.sleep(0.01)
    return True
