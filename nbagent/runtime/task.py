"""A run's task on the engine thread, as any other thread sees it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.runtime.courier import Courier, current_courier
from nbagent.runtime.guard import Guard
from nbagent.runtime.loop import engine_loop, hold, is_served, release

T = TypeVar("T")


class RunTask(Generic[T]):
    """A coroutine at work on the engine thread. Nobody cancels it: `stop` sets the token."""

    def __init__(self, courier: Courier, cancel: CancelToken, guard: Guard | None = None) -> None:
        self.guard = guard
        """What it was started under, for the wait that takes over."""
        self.courier = courier
        self.cancel = courier.cancel = cancel
        self.loop = engine_loop()
        self._future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    def start(
        cls,
        make_coro: Callable[[], Coroutine[Any, Any, T]],
        courier: Courier,
        cancel: CancelToken,
        guard: Guard | None = None,
    ) -> RunTask[T]:
        """Start it in a copy of the caller's context: what it prints lands in the caller's cell."""
        self = cls(courier, cancel, guard)
        context = contextvars.copy_context()
        context.run(current_courier.set, courier)
        hold(cancel)

        def begin() -> None:
            self._task = self.loop.create_task(self._main(make_coro), context=context)

        self.loop.call_soon_threadsafe(begin)
        return self

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()

    @property
    def lost(self) -> bool:
        """Whether it can never end: its thread died, or this is a forked child."""
        return not self._future.done() and not is_served(self.loop)

    def result(self) -> T:
        """What it returned; raises what it raised. Only when `done`."""
        return self._future.result(timeout=0)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call back on the engine thread when it ends, or at once when it has ended."""
        self._future.add_done_callback(lambda _: callback())

    def stop(self) -> None:
        """Ask for a stop; asked again, interrupt a job once more that swallowed the first."""
        if self.cancel.is_set:
            self.courier.insist()
        self.cancel.set()

    async def _main(self, make_coro: Callable[[], Coroutine[Any, Any, T]]) -> None:
        try:
            value = await make_coro()
        except BaseException as error:
            # SystemExit and the like as well: they must reach who waits, not end the thread.
            release(self.cancel)
            self._future.set_exception(error)
        else:
            release(self.cancel)
            self._future.set_result(value)
