"""nbagent's own threads: one with the engine's loop, one with the loop of async tools.

Owns their start, and their replacement after a fork, a crash or a tool that blocks its loop; not
the work on them.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_log = logging.getLogger("nbagent")


class PerProcess(Generic[T]):
    """A value of this process. A forked child gets its own."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        # The parent's value is never freed: closing a forked copy of a loop would unregister the
        # parent's sockets, as both share one epoll descriptor.
        self._instances = [(os.getpid(), make())]

    def __call__(self) -> T:
        pid, value = self._instances[-1]
        if pid != os.getpid():
            value = self._make()
            self._instances.append((os.getpid(), value))
        return value


class LoopThread(threading.Thread):
    """A daemon thread that runs a loop until it is retired."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_log_exception)
        self.retired = False
        """True: no new work comes here, running tasks continue."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self.start()

    def run(self) -> None:
        """Run the loop. SystemExit in one task ends `run_forever`; other tasks must continue."""
        asyncio.set_event_loop(self.loop)
        while not self.retired or self._tasks:
            try:
                self.loop.run_forever()
            except BaseException:
                _log.debug("%s went on after an error", self.name, exc_info=True)
        self.loop.close()

    def spawn(
        self, make: Callable[[], Coroutine[Any, Any, object]], context: contextvars.Context
    ) -> None:
        """Start a coroutine on the loop, in this context. Callable in any thread."""

        def begin() -> None:
            task = self.loop.create_task(make(), context=context)
            self._tasks.add(task)
            task.add_done_callback(self._forget)

        self.loop.call_soon_threadsafe(begin)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self.retired and not self._tasks:
            self.loop.stop()

    def abandon_task(self, task: asyncio.Task[Any] | None) -> None:
        """Retire this thread if `task` blocks its loop, and raise KeyboardInterrupt in the task."""
        if task is not None and asyncio.current_task(self.loop) is task:
            self.retired = True
            raise_in_thread(self.ident, KeyboardInterrupt)


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    _log.debug("on a loop of ours: %s", context.get("message"), exc_info=context.get("exception"))


def raise_in_thread(thread: int | None, error: type[BaseException] | None) -> None:
    """Raise an error in another thread, between two of its instructions; None withdraws it."""
    value = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), value)


class _Threads:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_name: dict[str, LoopThread] = {}


_threads = PerProcess(_Threads)


def _thread(name: str) -> LoopThread:
    threads = _threads()
    with threads.lock:
        thread = threads.by_name.get(name)
        if thread is None or thread.retired or not thread.is_alive():
            thread = threads.by_name[name] = LoopThread(name)
    return thread


def engine_thread() -> LoopThread:
    """Return the thread of model requests, servers and the store. Nothing may block it."""
    return _thread("nbagent-engine")


def tool_thread() -> LoopThread:
    """Return the thread of async tools; a new one if a tool blocked the last one."""
    return _thread("nbagent-tools")


def engine_loop() -> asyncio.AbstractEventLoop:
    """Return the loop of the engine thread; starts the thread if there is none (any more)."""
    return engine_thread().loop


def on_engine_thread() -> bool:
    """True if the caller is on one of nbagent's threads (the engine's or the async tools')."""
    return isinstance(threading.current_thread(), LoopThread)
