"""Waiting for a run: in a thread (`wait`), on a loop (`wait_async`), event by event (`follow`).

The waiting thread executes the jobs of the run, so that tools run in the person's thread.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import Any, Protocol

from nbagent.contracts.errors import EngineError, ToolError, UsageError
from nbagent.contracts.events import Event
from nbagent.runtime.interrupt import InterruptGuard
from nbagent.runtime.jobs import Job
from nbagent.runtime.run_task import (
    RunTask,
    inside_a_tool,
    loop_is_running,
    run_on_current_loop,
    thread_queue,
)
from nbagent.runtime.threads import on_engine_thread

_POLL_S = 0.03
# On Windows a signal does not break a wait for a lock.
_TICK_S = 0.1 if sys.platform == "win32" else 0.5
NestedRunner = Callable[[Coroutine[Any, Any, Any]], Any]


class Pump(Protocol):
    """Delivers messages of the front end while the main thread waits. A context manager."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...

    def poll(self) -> None:
        """Deliver messages that arrived. Must be quick: called every 30 ms and between jobs."""
        ...


class _Process:
    interrupted_execution: str | None = None
    """Execution of a cell in which a wait was last interrupted."""
    run_nested: NestedRunner | None = None


def use_nested_runner(runner: NestedRunner | None) -> None:
    """Set the function that runs a coroutine to its end inside this thread's running loop."""
    _Process.run_nested = runner


def check_interrupted(execution: str | None) -> None:
    """Raise KeyboardInterrupt if a wait in this execution of a cell was interrupted before.

    ■ must end a cell that runs agents in a loop, not only the agent that was running.
    """
    if execution is not None and execution == _Process.interrupted_execution:
        raise KeyboardInterrupt("this cell was interrupted; no further run is started in it")


def wait(
    run: RunTask,
    *,
    pump: Pump | None = None,
    timeout: float | None = None,
    execution: str | None = None,
) -> Any:
    """Wait in this thread for a run; its synchronous jobs run here, in order.

    Jobs of other runs that were started here run too, if nobody else waits for them. The first
    KeyboardInterrupt (in the main thread) stops the run, whose result is then returned. A second
    one is raised; the run finishes its stop in the background. `execution` identifies the cell's
    execution for `check_interrupted`.

    Raises:
        TimeoutError: `timeout` seconds passed; the run continues.
    """
    if on_engine_thread():
        raise UsageError(
            "a run cannot be waited for on the engine thread; in an async tool write "
            "`await agent.arun(...)`"
        )
    run.check_deadlock()
    waiting = _ThreadWait(run, pump, timeout)
    wake = waiting.wake
    try:
        with waiting.guard, thread_queue.current.consumed_by(wake), run.queue.consumed_by(wake):
            run.future.add_done_callback(lambda _: wake())
            with pump or nullcontext():
                waiting.run()
    finally:
        if waiting.guard.interrupted:
            _Process.interrupted_execution = execution
    return run.future.result(timeout=0)


class _ThreadWait:
    """One call of `wait`."""

    def __init__(self, run: RunTask, pump: Pump | None, timeout: float | None) -> None:
        self.run_task = run
        self.pump = pump
        # SimpleQueue.put may be called in a signal handler, even one that interrupts its get.
        self.wakeups: queue.SimpleQueue[RunTask | None] = queue.SimpleQueue()
        self.guard = InterruptGuard.for_thread(run.cancel)
        self.guard.handled, self.guard.wake = True, self.wake
        self.tick_s = _TICK_S if pump is None else _POLL_S
        self.deadline = float("inf") if timeout is None else time.monotonic() + timeout

    def wake(self, run_task: RunTask | None = None) -> None:
        """Wake this thread; any thread, and a signal handler."""
        self.wakeups.put(run_task)

    def run(self) -> None:
        while not self.run_task.future.done():
            try:
                self._serve_next()
            except KeyboardInterrupt:
                if not self.guard.force_exit:
                    # Another handler raised it (a tool replaced ours); the same rules apply.
                    self.guard.on_foreign_interrupt()
            if not self.run_task.future.done():
                self._check_end()

    def _serve_next(self) -> None:
        run_task = None
        with suppress(queue.Empty):
            wait_s = max(self.deadline - time.monotonic(), 0.0)
            run_task = self.wakeups.get(timeout=min(self.tick_s, wait_s))
        job = run_task and run_task.take_job(self.wake)
        if run_task is not None and job is not None:
            if job.where == "notebook loop" and loop_is_running():
                self._run_nested(job)
            else:
                run_task.run_job(job, self.guard if run_task is self.run_task else None)
            run_task.wake()
        if self.pump is not None:
            self.guard.run_guarded(self.pump.poll)

    def _run_nested(self, job: Job) -> None:
        async def run_and_poll() -> None:
            task = run_on_current_loop(job)
            while not task.done():
                await asyncio.wait([task], timeout=_POLL_S if self.pump else None)
                if self.pump is not None:
                    self.pump.poll()

        def run_nested() -> None:
            if _Process.run_nested is None:
                raise ToolError(
                    "this thread's event loop is running and cannot be entered again: start the "
                    "run with `await agent.arun(...)`"
                )
            _Process.run_nested(run_and_poll())

        try:
            self.guard.run_guarded(run_nested)
        except Exception as error:
            job.end(error=error)
        except KeyboardInterrupt:
            job.stop()
            raise

    def _check_end(self) -> None:
        if self.guard.force_exit:
            raise KeyboardInterrupt
        if time.monotonic() >= self.deadline:
            raise TimeoutError("the run still works; wait() again, or stop() it")
        if self.run_task.is_lost:
            raise EngineError(
                "the engine thread of this run is gone (a fork?); `%agent resume` continues it",
                code="ENGINE_INTERRUPTED",
            )


async def wait_async(
    run: RunTask, *, pump: Pump | None = None, execution: str | None = None
) -> Any:
    """Wait for a run on the running loop; its jobs run in this loop's thread.

    Synchronous jobs run inline and block the loop. Cancelling this stops the run: it waits for the
    end of the run, then raises CancelledError; a second cancellation raises at once. On nbagent's
    own loops (an async tool that runs an agent) the outer run's waiting thread executes the jobs.
    """
    run.check_deadlock()
    waiting = _LoopWait()
    serves_jobs = not (on_engine_thread() and inside_a_tool())
    serving = run.queue.consumed_by(waiting.wake) if serves_jobs else nullcontext()
    run.future.add_done_callback(lambda _: waiting.call_soon(waiting.ended.set))
    cancelled = False
    try:
        with serving, pump or nullcontext():
            while not waiting.ended.is_set():
                try:
                    await waiting.wait(pump)
                except asyncio.CancelledError:
                    if cancelled:
                        raise
                    cancelled = True
                    run.cancel.set()
                if waiting.force_exit:
                    raise asyncio.CancelledError("interrupted twice")
    finally:
        if not run.future.done():
            run.cancel.set()  # nobody waits for it any more
        if waiting.interrupted:
            _Process.interrupted_execution = execution
    if cancelled:
        raise asyncio.CancelledError
    return run.future.result(timeout=0)


class _LoopWait:
    """One call of `wait_async`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self.force_exit = False
        self.interrupted = False

    async def wait(self, pump: Pump | None) -> None:
        """Wait for the end, or until it is time to poll."""
        if pump is None:
            await self.ended.wait()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), _POLL_S)
        pump.poll()

    def wake(self, run_task: RunTask) -> None:
        """Execute a job of this run soon. Any thread."""
        self.call_soon(lambda: self._serve_next(run_task))

    def call_soon(self, call: Callable[[], object]) -> None:
        """Call on the loop. Any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(call)

    def _serve_next(self, run_task: RunTask) -> None:
        # One job per call: the loop can do other work between two jobs.
        job = run_task.take_job(self.wake)
        if job is None:
            return
        try:
            guard = run_task.run_job(job)
        except KeyboardInterrupt:
            # Not raised into the loop: it would end the kernel.
            job.stop()
            self.force_exit = True
        else:
            self.interrupted |= guard is not None and guard.interrupted
            self.force_exit |= guard is not None and guard.force_exit
        if self.force_exit:
            self.ended.set()
        run_task.wake()


class EventChannel:
    """Queue of events from any thread to the loop it was created on, which is woken per batch."""

    def __init__(self) -> None:
        self._events: deque[Event | None] = deque()
        self._loop = asyncio.get_running_loop()
        self._wakeup = asyncio.Event()
        self._notified = False

    def put(self, event: Event | None) -> None:
        """Add an event; None is the end."""
        self._events.append(event)
        if not self._notified:
            self._notified = True
            with suppress(RuntimeError):  # the consumer's loop is closed
                self._loop.call_soon_threadsafe(self._wakeup.set)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            self._notified = False  # before reading: a later `put` must wake this loop again
            while self._events:
                event = self._events.popleft()
                if event is None:
                    return
                yield event


async def follow(
    channel: EventChannel, wait_for_end: Callable[[], Coroutine[object, object, object]]
) -> AsyncGenerator[Event]:
    """Yield the events of a run while `wait_for_end()` (its `wait_async`) runs beside.

    Closing the generator early stops the run and waits for its end. An error of `wait_for_end` is
    raised after the last event.
    """
    waiting: Coroutine[object, object, object] | None = None
    try:
        waiting = wait_for_end()
        waiter = asyncio.ensure_future(waiting)
    except BaseException:  # an interrupt between the two
        if waiting and all(task.get_coro() is not waiting for task in asyncio.all_tasks()):
            waiting.close()
        raise
    waiter.add_done_callback(lambda _: channel.put(None))
    loop, failed = waiter.get_loop(), None
    try:
        async for event in channel:
            yield event
    finally:
        # If an interrupt ended the loop, this generator is dropped afterwards and cannot wait.
        if loop.is_running():
            waiter.cancel()
            await asyncio.wait([waiter])
            failed = None if waiter.cancelled() else waiter.exception()
    if failed is not None:
        raise failed
