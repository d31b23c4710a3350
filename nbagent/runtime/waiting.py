"""Waiting for a run: in a thread (`wait`), on a loop (`await_here`), event by event (`follow`).

Whoever waits runs the jobs of the run, so that they happen in its thread.
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
from nbagent.runtime.interrupt import Watch
from nbagent.runtime.jobs import Job
from nbagent.runtime.run_task import Courier, here, inside_a_tool, loop_is_running, perform_soon
from nbagent.runtime.threads import on_engine_thread

_POLL_S = 0.03
# On Windows a signal does not break a wait for a lock.
_TICK_S = 0.1 if sys.platform == "win32" else 0.5

NestedRunner = Callable[[Coroutine[Any, Any, Any]], Any]


class Pump(Protocol):
    """Delivers what the front end sends while the main thread waits. A context manager."""

    def __enter__(self) -> object: ...

    def __exit__(self, *exc: object) -> None: ...

    def poll(self) -> None:
        """Deliver what has come. Quick; called every 30 ms and between jobs."""
        ...


class _Process:
    interrupted: str | None = None
    """The execution of a cell in which a wait was interrupted last."""
    run_nested: NestedRunner | None = None


def use_nested_runner(runner: NestedRunner | None) -> None:
    """Say how to run a coroutine to its end inside a loop that is running in this thread."""
    _Process.run_nested = runner


def check_interrupted(execution: str | None) -> None:
    """Raise KeyboardInterrupt if a wait in this execution of a cell was interrupted before.

    So ■ ends a cell that runs agents in a loop, not only the agent that was running.
    """
    if execution is not None and execution == _Process.interrupted:
        raise KeyboardInterrupt("this cell was interrupted; no further run is started in it")


def wait(
    run: Courier,
    *,
    pump: Pump | None = None,
    timeout: float | None = None,
    execution: str | None = None,
) -> Any:
    """Wait in this thread for a run; its synchronous jobs run here, in order.

    So do those of the other runs that were started here and that nobody else waits for. The first
    KeyboardInterrupt (in the main thread) is a stop: the run ends in its own way and
    its result is returned. A second one gets out; the run finishes its stop in the background.
    `execution` is the cell's, for `check_interrupted`.

    Raises:
        TimeoutError: `timeout` seconds are over; the run goes on.
    """
    if on_engine_thread():
        raise UsageError(
            "a run cannot be waited for on the engine thread; in an async tool write "
            "`await agent.arun(...)`"
        )
    run.refuse_deadlock()
    waiting = _Waiting(run, pump, timeout)
    ring = waiting.ring
    try:
        with waiting.watch, here.desk.served_by(ring), run.desk.served_by(ring):
            run.future.add_done_callback(lambda _: ring())
            with pump or nullcontext():
                waiting.run()
    finally:
        if waiting.watch.interrupted:
            _Process.interrupted = execution
    return run.future.result(timeout=0)


class _Waiting:
    """One call of `wait`."""

    def __init__(self, run: Courier, pump: Pump | None, timeout: float | None) -> None:
        self.courier = run
        self.pump = pump
        # SimpleQueue.put may be called in a signal handler, even one that interrupts its get.
        self.bell: queue.SimpleQueue[Courier | None] = queue.SimpleQueue()
        self.watch = Watch.of(run.cancel)
        self.watch.heeded, self.watch.ring = True, self.ring
        self.tick_s = _TICK_S if pump is None else _POLL_S
        self.deadline = float("inf") if timeout is None else time.monotonic() + timeout

    def ring(self, courier: Courier | None = None) -> None:
        """Wake this thread; any thread, and a signal handler."""
        self.bell.put(courier)

    def run(self) -> None:
        while not self.courier.future.done():
            try:
                self._turn()
            except KeyboardInterrupt:
                if not self.watch.abandoned:
                    # The handler was not ours (a tool replaced it): the same rules.
                    self.watch.noted()
            if not self.courier.future.done():
                self._check()

    def _turn(self) -> None:
        courier = None
        with suppress(queue.Empty):
            left_s = max(self.deadline - time.monotonic(), 0.0)
            courier = self.bell.get(timeout=min(self.tick_s, left_s))
        job = courier and courier.take(self.ring)
        if courier is not None and job is not None:
            if job.place == "notebook loop" and loop_is_running():
                self._perform_nested(job)
            else:
                courier.serve(job, self.watch if courier is self.courier else None)
            courier.wake()
        if self.pump is not None:
            self.watch.run_foreign(self.pump.poll)

    def _perform_nested(self, job: Job) -> None:
        async def polled() -> None:
            task = perform_soon(job)
            while not task.done():
                await asyncio.wait([task], timeout=_POLL_S if self.pump else None)
                if self.pump is not None:
                    self.pump.poll()

        def perform() -> None:
            if _Process.run_nested is None:
                raise ToolError(
                    "this thread's event loop is running and cannot be entered again: start the "
                    "run with `await agent.arun(...)`"
                )
            _Process.run_nested(polled())

        try:
            self.watch.run_foreign(perform)
        except Exception as error:
            job.end(error=error)
        except KeyboardInterrupt:
            job.stop()
            raise

    def _check(self) -> None:
        if self.watch.abandoned:
            raise KeyboardInterrupt
        if time.monotonic() >= self.deadline:
            raise TimeoutError("the run is still at work; wait() again, or stop() it")
        if self.courier.lost:
            raise EngineError(
                "the engine thread of this run is gone (a fork?); `%agent resume` goes on with it",
                code="ENGINE_INTERRUPTED",
            )


async def await_here(
    run: Courier, *, pump: Pump | None = None, execution: str | None = None
) -> Any:
    """Wait on the running loop for a run, running its jobs on this loop's thread.

    Synchronous jobs run inline and block the loop. Cancelling this is a stop: it waits for the
    clean end and then raises CancelledError; cancelled again, it leaves at once. On a loop of
    ours (an async tool that runs an agent) the outer run's waiting thread does the work.
    """
    run.refuse_deadlock()
    waiting = _Awaiting()
    nobody_else = not (on_engine_thread() and inside_a_tool())
    serving = run.desk.served_by(waiting.ring) if nobody_else else nullcontext()
    run.future.add_done_callback(lambda _: waiting.soon(waiting.over.set))
    cancelled = False
    try:
        with serving, pump or nullcontext():
            while not waiting.over.is_set():
                try:
                    await waiting.wait(pump)
                except asyncio.CancelledError:
                    if cancelled:
                        raise
                    cancelled = True
                    run.cancel.set()
                if waiting.abandoned:
                    raise asyncio.CancelledError("interrupted twice")
    finally:
        if not run.future.done():
            run.cancel.set()  # nobody is left who would see its end
        if waiting.interrupted:
            _Process.interrupted = execution
    if cancelled:
        raise asyncio.CancelledError
    return run.future.result(timeout=0)


class _Awaiting:
    """One call of `await_here`."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        self.abandoned = False
        self.interrupted = False

    async def wait(self, pump: Pump | None) -> None:
        """Wait for the end, or until it is time to poll."""
        if pump is None:
            await self.over.wait()
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self.over.wait(), _POLL_S)
        pump.poll()

    def ring(self, courier: Courier) -> None:
        """Serve a run soon. Any thread."""
        self.soon(lambda: self._serve(courier))

    def soon(self, call: Callable[[], object]) -> None:
        """Call on the loop. Any thread."""
        with suppress(RuntimeError):  # the loop has gone
            self.loop.call_soon_threadsafe(call)

    def _serve(self, courier: Courier) -> None:
        # One job a call, so that the loop breathes between two.
        job = courier.take(self.ring)
        if job is None:
            return
        try:
            watch = courier.serve(job)
        except KeyboardInterrupt:
            # Never into the loop: it would end the kernel.
            job.stop()
            self.abandoned = True
        else:
            self.interrupted |= watch is not None and watch.interrupted
            self.abandoned |= watch is not None and watch.abandoned
        if self.abandoned:
            self.over.set()
        courier.wake()


class EventChannel:
    """Any thread puts; the loop that it is made on iterates, woken once for all that came."""

    def __init__(self) -> None:
        self._events: deque[Event | None] = deque()
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        self._rung = False

    def put(self, event: Event | None) -> None:
        """Add an event; None is the end."""
        self._events.append(event)
        if not self._rung:
            self._rung = True
            with suppress(RuntimeError):  # the consumer's loop has gone
                self._loop.call_soon_threadsafe(self._bell.set)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._rung = False  # before looking: who adds from here on rings again
            while self._events:
                event = self._events.popleft()
                if event is None:
                    return
                yield event


async def follow(
    channel: EventChannel, ending: Callable[[], Coroutine[object, object, object]]
) -> AsyncGenerator[Event]:
    """The events of a run while what `ending` gives (its `await_here`) is awaited beside.

    Closing this waits for the end; leaving early stops the run. What `ending`
    raises is raised after the last event.
    """
    waiting: Coroutine[object, object, object] | None = None
    try:
        waiting = ending()
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
        # A loop that an interrupt ended drops this generator afterwards: there is no more waiting.
        if loop.is_running():
            waiter.cancel()
            await asyncio.wait([waiter])
            failed = None if waiter.cancelled() else waiter.exception()
    if failed is not None:
        raise failed
