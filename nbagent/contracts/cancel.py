"""The cancel token: one flag of a run. Any thread may set it and wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class CancelToken:
    """Flag that stops a run. Any thread may set it, once.

    A stop sets this flag and never cancels the engine's task: the engine must still answer every
    call and write the end of the run. `after_turn` asks for a pause at the end of the running turn
    instead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self.is_set = False
        """True after a stop was requested."""
        self.after_turn = False

    def set(self) -> None:
        """Request a stop. Callbacks run in the calling thread; a second call does nothing."""
        with self._lock:
            if self.is_set:
                return
            self.is_set = True
            callbacks, self._callbacks = self._callbacks, []
        # Outside the lock, which a callback may need for on_set.
        for callback in callbacks:
            with suppress(Exception):  # the others must still stop their work
                callback()

    def on_set(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call `callback` when the token is set; at once if it is set already.

        Returns:
            A function that withdraws the callback: a long run has many, and each keeps its work.
        """

        def withdraw() -> None:
            with self._lock, suppress(ValueError):  # it was called already
                self._callbacks.remove(callback)

        with self._lock:
            if not self.is_set:
                self._callbacks.append(callback)
                return withdraw
        callback()
        return withdraw

    async def run_cancellable(
        self, work: Awaitable[T], grace_s: Callable[[], float | None] | float
    ) -> asyncio.Task[T]:
        """Await `work` in a task. A stop cancels the task and abandons it after `grace_s` seconds.

        If `grace_s` is a function, it is called at the stop; None means: wait until it ends.
        Returns the task, not done if it was abandoned. The caller reads its result or exception.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not ended.done():
                ended.set_result(None)

        def stop() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(wake)

        async def run() -> T:
            # No done callback: it would run one iteration of the loop later.
            try:
                return await work
            finally:
                wake()

        task = loop.create_task(run())
        withdraw = self.on_set(stop)
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
            withdraw()
            if not task.done():
                # Read its exception, so that asyncio does not log it as never retrieved.
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task
