"""Jobs: single calls of a run, executed in a thread or on a loop.

Owns the states of one job (queued, running, over), its time limit and its interruption. Where a job
runs is decided in `run_task`.
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
from nbagent.runtime.interrupt import InterruptGuard

GRACE_S = 0.2
"""Time for an interrupted job to end. Then it is abandoned: it may be blocked in C code."""


@dataclass(eq=False)
class Job:
    """One call. Created on the loop that awaits the result; runs once, in the creator's context."""

    work: Callable[[], Any]
    where: RanIn
    interruptible: bool
    timeout_s: float | None
    label: str
    thread: int | None = None
    stop_wanted: bool = False
    on_abandoned: Callable[[], None] = lambda: None
    """Called if it was interrupted, did not end, and is abandoned."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    state: Literal["queued", "running", "over"] = "queued"
    task: asyncio.Task[Any] | None = None
    """Task that runs it, if it runs on a loop."""

    def __post_init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        self._interrupt: Callable[[bool], None] = lambda again: None

    async def outcome(self) -> tuple[Any, RanIn]:
        """Wait for the end. If cancelled, or at the time limit, interrupt it and wait GRACE_S.

        Raises:
            TimeoutError: the time limit passed, counted from the start of the job.
            CancelledError: it was stopped.
        """
        try:
            await self._ended
        except (asyncio.CancelledError, TimeoutError) as why:
            self.stop()
            self._ended = self._loop.create_future()
            if self.state != "over":
                await asyncio.wait((self._ended,), timeout=GRACE_S)
            if self.state != "over":
                self.on_abandoned()
            was_cancelled = self.interruptible and isinstance(why, asyncio.CancelledError)
            if was_cancelled or self._error is not None or self.state != "over":
                raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._error is not None:
            raise self._error
        return self._value, self.where

    def begin(self, interrupt: Callable[[bool], None]) -> bool:
        """Mark it as running, with a function that interrupts it; False if it was dropped."""
        with self._lock:
            if self.state != "queued":
                return False
            self.state = "running"
            self.thread = threading.get_ident()
            self._interrupt = interrupt
        if self.timeout_s is not None:
            self._call_on_loop(self._start_timer)
        return True

    def stop(self, *, again: bool = False) -> None:
        """Drop it if it is queued; interrupt it if it runs and is interruptible. Any thread.

        It is interrupted only once, so that it can clean up; `again` interrupts it once more.
        """
        with self._lock:
            queued = self.state == "queued"
            is_running = self.state == "running" and self.interruptible
            self.stop_wanted = self.stop_wanted or queued or is_running
        if queued:
            self.end(error=asyncio.CancelledError("stopped before it began"))
        elif is_running:
            self._interrupt(again)

    def end(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the outcome, unless it has one. Any thread."""
        with self._lock:
            if self.state == "over":
                return
            self.state, self._value, self._error = "over", value, error
        self._call_on_loop(self._notify)

    def run_sync(self, guard: InterruptGuard | None) -> None:
        """Run it in this thread and store the outcome; without a guard nothing interrupts it."""
        if not self.begin(lambda again: guard.interrupt(self, again=again) if guard else None):
            return
        try:
            if guard is None:
                self.end(self.context.run(self.work))
            else:
                self.end(guard.run(self, lambda: self.context.run(self.work)))
        except BaseException as error:
            is_ours = self.stop_wanted or (guard is not None and guard.stopping)
            is_stop = isinstance(error, KeyboardInterrupt) and is_ours
            self.end(error=asyncio.CancelledError() if is_stop else _loop_safe(error))

    async def run_async(self) -> None:
        """Await it in the current task, which is its own, in its context."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self.task = task

        def interrupt(again: bool) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(task.cancel)

        if not self.begin(interrupt):
            return
        try:
            self.end(await self.work())
        except asyncio.CancelledError as error:
            # Code may cancel its own task, as a TaskGroup does when a task of it fails.
            self.end(error=error if self.stop_wanted else _loop_safe(error.__cause__ or error))
        except BaseException as error:
            self.end(error=_loop_safe(error))

    def _start_timer(self) -> None:
        if self.state == "running":
            self._timer = self._loop.call_later(self.timeout_s or 0.0, self._on_timeout)

    def _on_timeout(self) -> None:
        if not self._ended.done() and not self.stop_wanted:
            self._ended.set_exception(TimeoutError())

    def _notify(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _call_on_loop(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop that awaits the result is closed
            self._loop.call_soon_threadsafe(call)


def _loop_safe(error: BaseException) -> BaseException:
    """Wrap errors that asyncio cannot transport.

    SystemExit and KeyboardInterrupt would end the loop, and a future refuses StopIteration.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    wrapped = RuntimeError(describe_error(error))
    wrapped.__cause__ = error
    return wrapped
