"""The engine thread: one daemon thread with an asyncio loop for the whole process.

Owns its start, its restart after a fork or a death, and its quiet end; not what runs on it.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

from nbagent.contracts.cancel import CancelToken

_log = logging.getLogger("nbagent")
_EXIT_S = 1.0
"""How long the end of the process waits for runs to end cleanly."""


class _Engine:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_note)
        self.closing = False
        self.thread = threading.Thread(target=self._main, name="nbagent-engine", daemon=True)
        self.thread.start()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive() and not self.loop.is_closed() and not self.closing

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self.closing and not self.loop.is_closed():
            # SystemExit in a task falls through run_forever; other runs must not die of it.
            try:
                self.loop.run_forever()
            except BaseException:
                _log.debug("the engine thread went on after an error", exc_info=True)

    def close(self) -> None:
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._begin_end)
        self.thread.join(_EXIT_S)
        if not self.thread.is_alive() and not self.loop.is_closed():
            self.loop.close()

    def _begin_end(self) -> None:
        self.closing = True
        self._ending = self.loop.create_task(self._end())

    async def _end(self) -> None:
        tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_EXIT_S / 2)
        await self.loop.shutdown_asyncgens()
        self.loop.stop()


def _note(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.debug(
        "on the engine thread: %s", context.get("message"), exc_info=context.get("exception")
    )


class _Process:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engine: _Engine | None = None
        self.running: set[CancelToken] = set()
        # Never freed: closing a forked copy of a loop would unregister the parent's sockets.
        self.inherited: list[Any] = []


_process = _Process()


def engine_loop() -> asyncio.AbstractEventLoop:
    """The loop of the engine thread; starts the thread when there is none (any more)."""
    engine = _process.engine
    if engine is not None and engine.alive:
        return engine.loop
    with _process.lock:
        if _process.engine is None or not _process.engine.alive:
            _process.engine = _Engine()
        return _process.engine.loop


def on_engine_thread() -> bool:
    """Whether the caller is on the engine thread, where nothing may block."""
    engine = _process.engine
    return engine is not None and engine.thread is threading.current_thread()


def is_served(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this loop is the living engine's: false after a fork or when its thread died."""
    engine = _process.engine
    return engine is not None and engine.loop is loop and engine.thread.is_alive()


def hold(cancel: CancelToken) -> None:
    """A run began: the end of the process stops it and waits a moment for it."""
    _process.running.add(cancel)


def release(cancel: CancelToken) -> None:
    """That run has ended."""
    _process.running.discard(cancel)


def _finish() -> None:
    engine = _process.engine
    if engine is None or not engine.alive:
        return
    for cancel in list(_process.running):
        cancel.set()
    deadline = time.monotonic() + _EXIT_S
    while _process.running and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.close()


def _after_fork() -> None:
    _process.lock = threading.Lock()
    _process.inherited.append(_process.engine)
    _process.engine = None
    _process.running = set()


atexit.register(_finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
