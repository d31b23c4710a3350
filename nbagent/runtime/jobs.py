"""Jobs: single pieces of a run's work, on their way to a thread or a loop and back.

Owns the life of one job (queued, running, over), its time limit and what a stop does to it. Where
it runs is the courier's affair.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from nbagent.contracts.errors import describe_error
from nbagent.contracts.records import RanIn
from nbagent.runtime.interrupt import Watch

GRACE_S = 0.2
"""A job that was interrupted and does not end (it sits in C code) is given up after this long."""


@dataclass(eq=False)
class Job:
    """Made on the loop that wants the result; run once, anywhere, in the context it was made in."""

    work: Callable[[], Any]
    place: RanIn
    interruptible: bool
    timeout_s: float | None
    label: str
    thread: int | None = None
    stop_wanted: bool = False
    on_left: Callable[[], None] = lambda: None
    """Called when it has not ended although it was interrupted, and is given up."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    state: Literal["queued", "running", "over"] = "queued"
    task: asyncio.Task[Any] | None = None
    """What runs it, on the loop that it runs on."""

    def __post_init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._bell: asyncio.Future[None] = self._loop.create_future()
        self._clock: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._strike: Callable[[bool], None] = lambda again: None

    async def outcome(self) -> tuple[Any, RanIn]:
        """Wait for the end. Cancelled or over its time: interrupt it, and wait a little longer.

        Raises:
            TimeoutError: it was over its time, which counts from its begin.
            CancelledError: it was stopped.
        """
        try:
            await self._bell
        except (asyncio.CancelledError, TimeoutError) as why:
            self.stop()
            self._bell = self._loop.create_future()
            if self.state != "over":
                await asyncio.wait((self._bell,), timeout=GRACE_S)
            if self.state != "over":
                self.on_left()
            unwanted = self.interruptible and isinstance(why, asyncio.CancelledError)
            if unwanted or self._error is not None or self.state != "over":
                raise
        finally:
            if self._clock is not None:
                self._clock.cancel()
        if self._error is not None:
            raise self._error
        return self._value, self.place

    def begin(self, strike: Callable[[bool], None]) -> bool:
        """Say that it runs now and how to interrupt it; false when it is not wanted any more."""
        with self._lock:
            if self.state != "queued":
                return False
            self.state = "running"
            self.thread = threading.get_ident()
            self._strike = strike
        if self.timeout_s is not None:
            self._on_its_loop(self._start_clock)
        return True

    def stop(self, *, again: bool = False) -> None:
        """Drop it if it waits, interrupt it if it runs and may be interrupted. Any thread.

        It is interrupted once, so that it can clean up; `again` interrupts it once more.
        """
        with self._lock:
            queued = self.state == "queued"
            struck = self.state == "running" and self.interruptible
            self.stop_wanted = self.stop_wanted or queued or struck
        if queued:
            self.end(error=asyncio.CancelledError("stopped before it began"))
        elif struck:
            self._strike(again)

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """It is over, unless it was before. Any thread."""
        with self._lock:
            if self.state == "over":
                return
            self.state, self._value, self._error = "over", value, error
        self._on_its_loop(self._ring)

    def run_in(self, watch: Watch | None) -> None:
        """Run it in this thread; without a watch nothing interrupts it. Its outcome is kept."""
        if not self.begin(lambda again: watch.strike(self, again=again) if watch else None):
            return
        try:
            if watch is None:
                self.end(self.context.run(self.work))
            else:
                self.end(watch.run(self, lambda: self.context.run(self.work)))
        except BaseException as error:
            wanted = self.stop_wanted or (watch is not None and watch.stopping)
            stopped = isinstance(error, KeyboardInterrupt) and wanted
            self.end(error=asyncio.CancelledError() if stopped else _tamed(error))

    async def perform(self) -> None:
        """Await it in a task of its own, in its context."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self.task = task

        def strike(again: bool) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

        if not self.begin(strike):
            return
        try:
            self.end(await self.work())
        except asyncio.CancelledError as error:
            self.end(error=error if self.stop_wanted else _tamed(error))
        except BaseException as error:
            self.end(error=_tamed(error))

    def _start_clock(self) -> None:
        if self.state == "running":
            self._clock = self._loop.call_later(self.timeout_s or 0.0, self._time_is_up)

    def _time_is_up(self) -> None:
        if not self._bell.done() and not self.stop_wanted:
            self._bell.set_exception(TimeoutError())

    def _ring(self) -> None:
        if not self._bell.done():
            self._bell.set_result(None)

    def _on_its_loop(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop that wanted it has gone
            self._loop.call_soon_threadsafe(call)


def _tamed(error: BaseException) -> BaseException:
    """An error that may pass through asyncio: SystemExit would end the loop it passes through."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    tamed = RuntimeError(describe_error(error))
    tamed.__cause__ = error
    return tamed
