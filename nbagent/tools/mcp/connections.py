"""All connections of this process: found by the server's name, closed at its end.

Owns which one is in use and that no server's process is left behind.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from concurrent.futures import wait
from contextlib import suppress

from nbagent.runtime import engine_loop, on_engine_thread
from nbagent.tools.mcp.connection import Connection
from nbagent.tools.mcp.description import Description
from nbagent.tools.mcp.processes import end_group

_EXIT_S = 1.5
"""How long the end of the process waits for servers to end by themselves."""
_KILLED_S = 0.5
_CLOSE_S = 8.0


class _Open:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[str, Connection] = {}
        self.made: weakref.WeakSet[Connection] = weakref.WeakSet()
        """All there are: a run that goes on may still hold one that was replaced."""
        self.inherited: list[Connection] = []


_open = _Open()


def connection_to(server: Description) -> Connection:
    """The connection to this server; one to another server of the same name is closed."""
    with _open.lock:
        known = _open.by_name.get(server.name)
        if known is not None and known.server.is_same(server):
            return known
        made = _open.by_name[server.name] = Connection(server)
        _open.made.add(made)
    if known is not None and known.is_open:
        asyncio.run_coroutine_threadsafe(known.close(), engine_loop())
    return made


def close_connection(server: Description) -> None:
    """End the connection to this server, if there is one, and its process. Any thread."""
    known = _open.by_name.get(server.name)
    if known is None or not known.is_open or not known.server.is_same(server):
        return
    closing = asyncio.run_coroutine_threadsafe(known.close(), engine_loop())
    if not on_engine_thread():
        with suppress(TimeoutError):
            closing.result(_CLOSE_S)


def _close_all() -> None:
    """At exit: ask all to end, then end those that do not."""
    left = [connection for connection in list(_open.made) if connection.is_open]
    if not left:
        return
    pids = [connection.pid for connection in left]
    loop = engine_loop()
    closing = [asyncio.run_coroutine_threadsafe(one.close(), loop) for one in left]
    wait(closing, timeout=_EXIT_S)
    for pid, future in zip(pids, closing, strict=True):
        if pid is not None and not future.done():
            end_group(pid, hard=True)
    wait(closing, timeout=_KILLED_S)  # Their pipes want to be closed while the loop lives.


def _after_fork() -> None:
    # The parent's connections: each knows itself that it is not this process's. None may be freed
    # here, for that closes.
    _open.lock = threading.Lock()
    _open.inherited += _open.made


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
