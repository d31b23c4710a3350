"""Waiting for a run: in a thread (`wait`), on a loop (`await_here`), with its events (`follow`).

Whoever waits runs the jobs of the run's courier, so that they happen in its thread.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, Protocol, TypeVar

from nbagent.contracts.errors import EngineError, UsageError
from nbagent.contracts.events import Event
from nbagent.runtime.channel import EventChannel
from nbagent.runtime.courier import AnyJob, Courier, Server, current_courier, run_to_end
from nbagent.runtime.jobs import POLL_S, AsyncJob, SyncJob
from nbagent.runtime.loop import on_engine_thread
from nbagent.runtime.task import RunTask
from nbagent.runtime.watch import Watch

T = TypeVar("T")
# On Windows a signal does not break a wait for a lock.
_TICK_S = 0.1 if sys.platform == "win32" else 0.5
STOP_LIMIT_S = 30.0
"""A stopped run that has not ended after this long is left behind."""


class Pump(Protocol):
    """Delivers what the front end sends while the main thread waits. A context manager."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...

    def poll(self) -> None:
        """Deliver what has come. Quick; called every 30 ms and between jobs."""
        ...


class _Interrupted:
    execution: str | None = None


_interrupted = _Interrupted()


def check_interrupted(execution: str | None) -> None:
    """Raise KeyboardInterrupt if a wait in this execution of a cell was interrupted before.

    So ■ ends a cell that runs agents in a loop, not only the agent that was running.
    """
    if execution is not None and execution == _interrupted.execution:
        raise KeyboardInterrupt("this cell was interrupted; no further run is started in it")


def wait(
    task: RunTask[T],
    *,
    pump: Pump | None = None,
    timeout: float | None = None,
    execution: str | None = None,
    stop_limit_s: float = STOP_LIMIT_S,
) -> T:
    """Wait in this thread for a run, running its synchronous jobs here, in order.

    The first KeyboardInterrupt (in the main thread) is a stop: the run ends in its own way and
    its result is returned. A second one gets out; the run finishes its stop in the background.

    Args:
        task: the run.
        pump: polled while this thread waits.
        timeout: seconds; the run goes on after them.
        execution: the cell execution that waits; see `check_interrupted`.
        stop_limit_s: seconds after a stop at which a run that does not end is left behind.

    Raises:
        TimeoutError: `timeout` is over.
        KeyboardInterrupt: a second interrupt.
        EngineError: the run can never end, or did not end after a stop.
    """
    _refuse_deadlock(task.courier)
    waiting = _Waiting(task, pump, timeout, stop_limit_s)
    try:
        with waiting.watch:
            waiting.run()
    finally:
        if waiting.watch.interrupted:
            _interrupted.execution = execution
    return task.result()


class _Waiting:
    """One call of `wait`."""

    def __init__(
        self, task: RunTask[Any], pump: Pump | None, timeout: float | None, stop_limit_s: float
    ) -> None:
        self.task = task
        self.pump = pump
        self.bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        # SimpleQueue.put may be called in a signal handler, even one that interrupts its get.
        guarded = task.guard and task.guard.take_over()
        self.watch = guarded or Watch(task.cancel)
        self.watch.ring = self._ring
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.stop_limit_s = stop_limit_s
        self.stopped_at: float | None = None

    def run(self) -> None:
        server = Server(self._ring)
        self.task.courier.attach(server)
        try:
            self.task.add_done_callback(self._ring)
            with self.pump or nullcontext():
                while not self.task.done:
                    try:
                        self._turn(server)
                    except KeyboardInterrupt:
                        if not self.watch.abandoned:
                            # The handler was not ours (a tool replaced it): the same rules.
                            self.watch.user_interrupt()
                    self._check()
        finally:
            self.task.courier.detach(server)

    def _turn(self, server: Server) -> None:
        job = self.task.courier.take(server)
        if job is None:
            with suppress(queue.Empty):
                self.bell.get(timeout=self._tick())
        else:
            self._perform(job)
            self.stopped_at = None
        self._poll()

    def _perform(self, job: AnyJob) -> None:
        courier = self.task.courier
        if isinstance(job, SyncJob):
            courier.run_here(job, self.watch)
            return
        before, courier.busy_thread = courier.busy_thread, threading.get_ident()
        poll = None if self.pump is None else self.pump.poll
        try:
            self.watch.run_foreign(lambda: run_to_end(job.perform(poll)))
        except KeyboardInterrupt:
            job.stop()
            raise
        except Exception as error:
            job.fail(error)
        finally:
            courier.busy_thread = before

    def _poll(self) -> None:
        if self.pump is not None:
            self.watch.run_foreign(self.pump.poll)

    def _tick(self) -> float:
        tick = _TICK_S if self.pump is None else POLL_S
        if self.deadline is not None:
            tick = min(tick, max(self.deadline - time.monotonic(), 0.0))
        return tick

    def _check(self) -> None:
        if self.task.done:
            return
        if self.watch.abandoned:
            raise KeyboardInterrupt
        now = time.monotonic()
        if self.deadline is not None and now >= self.deadline:
            raise TimeoutError("the run is still at work; wait() again, or stop() it")
        if self.task.lost:
            raise EngineError(
                "the engine thread of this run is gone (a fork?); `%agent resume` goes on with it",
                code="ENGINE_INTERRUPTED",
            )
        if not self.watch.stopping:
            return
        self.stopped_at = self.stopped_at or now
        if now - self.stopped_at > self.stop_limit_s:
            raise EngineError(
                f"the run has not ended {self.stop_limit_s:g} s after it was stopped and is left "
                "behind; look at its tools for one that never returns"
            )

    def _ring(self) -> None:
        self.bell.put(None)


async def await_here(
    task: RunTask[T], *, pump: Pump | None = None, execution: str | None = None
) -> T:
    """Wait on the running loop for a run, running its jobs on this loop's thread.

    Synchronous jobs run inline and block the loop. Cancelling this is a stop: it waits for the
    clean end and then raises CancelledError; cancelled again, it leaves at once. On the engine's
    own loop (an async tool that runs an agent) the outer run's waiting thread does the work.
    """
    outer = current_courier.get() if on_engine_thread() else None
    if outer is not None:
        task.courier.forward_to(outer)
    waiting = _Awaiting(task, pump, server=None if outer else task.courier)
    try:
        return await waiting.run()
    finally:
        if waiting.interrupted:
            _interrupted.execution = execution


class _Awaiting:
    """One call of `await_here`."""

    def __init__(self, task: RunTask[Any], pump: Pump | None, *, server: Courier | None) -> None:
        self.task = task
        self.pump = pump
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.courier = server
        self.server = Server(self._soon)
        self.jobs: set[asyncio.Task[None]] = set()
        self.abandoned = False
        self.interrupted = False

    async def run(self) -> Any:
        if self.courier is not None:
            self.courier.attach(self.server)
        self.task.add_done_callback(self._ended)
        cancelled = False
        try:
            with self.pump or nullcontext():
                while not self.done.done():
                    try:
                        await asyncio.wait([self.done], timeout=self._tick())
                    except asyncio.CancelledError:
                        if cancelled:
                            raise
                        cancelled = True
                        self.task.cancel.set()
                    self._check()
        finally:
            if self.courier is not None:
                self.courier.detach(self.server)
            if not self.task.done:
                self.task.cancel.set()  # nobody is left who would see its end
        if cancelled:
            raise asyncio.CancelledError
        return self.task.result()

    def _tick(self) -> float | None:
        return None if self.pump is None else POLL_S

    def _check(self) -> None:
        if self.abandoned:
            raise asyncio.CancelledError("interrupted twice")
        if self.pump is not None:
            self.pump.poll()

    def _ended(self) -> None:
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._finish)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _soon(self) -> None:
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._serve)

    def _serve(self) -> None:
        # One job a call, so that the loop breathes between two.
        job = self.task.courier.take(self.server)
        if job is None:
            return
        self._soon()
        if isinstance(job, AsyncJob):
            running = self.loop.create_task(job.perform())
            self.jobs.add(running)
            running.add_done_callback(self.jobs.discard)
            return
        try:
            watch = self.task.courier.run_here(job)
        except KeyboardInterrupt:
            # Never into the loop: it would end the kernel.
            job.stop()
            self._abandon()
        else:
            self.interrupted = self.interrupted or watch.interrupted
            if watch.abandoned:
                self._abandon()

    def _abandon(self) -> None:
        self.abandoned = True
        self._finish()


async def follow(
    channel: EventChannel, ending: Coroutine[Any, Any, object]
) -> AsyncGenerator[Event]:
    """The events of a run while `ending` (its `await_here`) is awaited beside.

    Closing this waits for the end; leaving early stops the run. What `ending`
    raises is raised after the last event.
    """
    waiter = asyncio.ensure_future(ending)
    waiter.add_done_callback(lambda _: channel.close())
    loop = waiter.get_loop()
    try:
        async for event in channel:
            yield event
    except (asyncio.CancelledError, GeneratorExit):
        if not loop.is_closed():
            waiter.cancel()
        raise
    finally:
        # A loop that an interrupt ended drops this generator afterwards: there is no more waiting.
        if loop.is_running():
            await asyncio.wait([waiter])
        failed = waiter.done() and not waiter.cancelled() and waiter.exception()
    if failed:
        raise failed


def _refuse_deadlock(courier: Courier) -> None:
    if on_engine_thread():
        raise UsageError(
            "a run cannot be waited for on the engine thread; in an async tool write "
            "`await agent.arun(...)`"
        )
    if courier.busy_thread == threading.get_ident():
        raise UsageError("a tool cannot wait for the run that it belongs to")
