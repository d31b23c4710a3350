"""Jobs: single pieces of a run's work, on their way to a thread or a loop and back.

Owns the life of one job (queued, running, over) and what a stop does to it. Where it runs is
the courier's affair.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.ports import Interrupted
from nbagent.contracts.records import RanIn
from nbagent.runtime.watch import Watch

T = TypeVar("T")
GRACE_S = 0.2
"""A job that was interrupted and does not end (it sits in C code) is given up after this long."""
POLL_S = 0.03


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job."""

    value: Any = None
    error: BaseException | None = None
    place: RanIn = "waiting thread"


class Job(Generic[T]):
    """Made on the loop that wants the result; run once, anywhere, in the context it was made in."""

    place: RanIn | None = None

    def __init__(self, *, interruptible: bool, cancel: CancelToken, label: str) -> None:
        self.interruptible = interruptible
        self.stop_wanted = False
        self.cancel = cancel
        self.label = label
        self.context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Outcome] = self._loop.create_future()
        self._lock = threading.Lock()
        self.state: Literal["queued", "running", "over"] = "queued"
        self._strike: Callable[[bool], None] = lambda again: None

    async def outcome(self) -> tuple[T, RanIn]:
        """Wait for the end. A stop, or the end of the task that waits here, interrupts the job."""
        forget = self.cancel.on_set(self.stop)
        try:
            outcome = await self._future
        except asyncio.CancelledError:
            self.stop()
            raise
        finally:
            forget()
        if outcome.error is not None:
            raise outcome.error
        return outcome.value, outcome.place

    def begin(self, strike: Callable[[bool], None]) -> bool:
        """Say that it runs now and how to interrupt it; false when it is not wanted any more."""
        with self._lock:
            if self.state != "queued":
                return False
            self.state = "running"
            self._strike = strike
            return True

    def settle(self, outcome: Outcome) -> None:
        """Hand over what came of it. Any thread."""
        with self._lock:
            self.state = "over"
        with suppress(RuntimeError):  # the loop that wanted it has gone
            self._loop.call_soon_threadsafe(self._deliver, outcome)

    def fail(self, error: BaseException) -> None:
        """End it from outside, unless it has ended."""
        if self.state != "over":
            self.settle(Outcome(error=error))

    def stop(self, *, again: bool = False) -> None:
        """Drop it if it waits, interrupt it if it runs and may be interrupted. Any thread.

        It is interrupted once, so that it can clean up; `again` interrupts it once more.
        """
        with self._lock:
            dropped = self.state == "queued"
            struck = self.state == "running" and self.interruptible
            self.stop_wanted = self.stop_wanted or dropped or struck
            if dropped:
                self.state = "over"
        outcome = Outcome(error=Interrupted("a stop came before it ended"))
        with suppress(RuntimeError):
            if dropped:
                self._loop.call_soon_threadsafe(self._deliver, outcome)
            elif struck:
                self._strike(again)
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, GRACE_S, self._deliver, outcome
                )

    def _deliver(self, outcome: Outcome) -> None:
        if not self._future.done():
            self._future.set_result(outcome)


class SyncJob(Job[T]):
    """A function, for a thread."""

    def __init__(
        self, work: Callable[[], T], *, interruptible: bool, cancel: CancelToken, label: str = ""
    ) -> None:
        super().__init__(interruptible=interruptible, cancel=cancel, label=label)
        self._work = work

    def run_in(self, watch: Watch) -> None:
        """Run it in this thread, which `watch` guards. Whatever it raises is its outcome."""
        if not self.begin(lambda again: watch.strike(self, again=again)):
            return
        place = self.place or here()
        try:
            value = watch.run(self, lambda: self.context.run(self._work))
            self.settle(Outcome(value=value, place=place))
        except BaseException as error:
            self.settle(Outcome(error=_tame(error), place=place))


class AsyncJob(Job[T]):
    """A coroutine function, for a loop."""

    def __init__(
        self, work: Callable[[], Awaitable[T]], *, cancel: CancelToken, label: str = ""
    ) -> None:
        super().__init__(interruptible=True, cancel=cancel, label=label)
        self._work = work

    async def perform(self, poll: Callable[[], None] | None = None) -> None:
        """Run it on the running loop; `poll` is called meanwhile, every 30 ms."""
        loop = asyncio.get_running_loop()
        tasks: list[asyncio.Task[Outcome]] = []

        def strike(again: bool) -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])

        if not self.begin(strike):
            return
        task = loop.create_task(self._body(), context=self.context)
        tasks.append(task)
        try:
            while not task.done():
                await asyncio.wait(tasks, timeout=None if poll is None else POLL_S)
                if poll is not None:
                    poll()
            self.settle(task.result())
        finally:
            if not task.done():
                task.cancel()
            self.fail(Interrupted("the loop that it ran on was left"))

    async def _body(self) -> Outcome:
        try:
            return Outcome(value=await self._work(), place="notebook loop")
        except asyncio.CancelledError as error:
            tamed = Interrupted("stopped") if self.stop_wanted else _tame(error)
            return Outcome(error=tamed, place="notebook loop")
        except BaseException as error:
            return Outcome(error=_tame(error), place="notebook loop")


def here() -> RanIn:
    """The name of this thread for a record."""
    main = threading.current_thread() is threading.main_thread()
    return "main thread" if main else "waiting thread"


def _tame(error: BaseException) -> BaseException:
    """An error that may pass through asyncio: SystemExit would end the loop it passes through."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    tamed = RuntimeError(f"{type(error).__name__}: {error}")
    tamed.__cause__ = error
    return tamed
