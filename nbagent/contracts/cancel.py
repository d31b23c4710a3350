"""The cancel token: one flag of a run that any thread may set and anybody may watch."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class CancelToken:
    """Set once, by any thread. Nobody cancels the task that iterates the engine; this is set.

    `after_turn` asks for a pause at the end of the running turn instead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self.is_set = False
        """Whether a stop was asked for."""
        self.after_turn = False

    def set(self) -> None:
        """Ask for a stop. Callbacks run in the calling thread; a second call does nothing."""
        with self._lock:
            if self.is_set:
                return
            self.is_set = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with suppress(Exception):
                callback()

    def on_set(self, callback: Callable[[], object]) -> None:
        """Call back when it is set, also when that is long after (at once when it is already)."""
        with self._lock:
            if not self.is_set:
                self._callbacks.append(callback)
                return
        callback()

    async def run_cancellable(
        self, work: Awaitable[T], grace_s: Callable[[], float | None] | float
    ) -> asyncio.Task[T]:
        """Await this in a task; a stop cancels it and leaves it behind after `grace_s` seconds.

        Where the function says None, when the stop comes, it is waited for to its end. Returns
        the task, not done if it was left; what it ended with is for the caller to look at.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        def stop() -> None:
            with suppress(RuntimeError):  # the loop has gone
                loop.call_soon_threadsafe(wake)

        async def run() -> T:
            # Not a callback of the task: that would come one round of the loop later.
            try:
                return await work
            finally:
                wake()

        task = loop.create_task(run())
        self.on_set(stop)
        try:
            await ended
            wait_s = grace_s() if callable(grace_s) else grace_s
            if not task.done() and wait_s is not None:
                task.cancel()
            if not task.done():
                await asyncio.wait((task,), timeout=wait_s)
        except BaseException:
            task.cancel()
            raise
        finally:
            if not task.done():
                # Whatever it ends with is of no use to anybody, and no news for asyncio's log.
                task.add_done_callback(lambda it: it.cancelled() or it.exception())
        return task
