"""The task of one run on the engine thread, and its calls in other threads.

Owns where each call runs, the queue of calls for the waiting thread, and who takes from it. Waiting
itself is in `waiting`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RanIn
from nbagent.runtime.interrupt import InterruptGuard
from nbagent.runtime.jobs import Job
from nbagent.runtime.threads import engine_thread, on_engine_thread, tool_thread

_UNSERVED_AFTER_S = 1.0
"""A job that no thread took for this long is reported."""
_TOOL_LOOP_TIMEOUT_S = 5.0
"""An async tool that could not start for this long is started in a new thread."""
current_run_task: contextvars.ContextVar[RunTask | None] = contextvars.ContextVar(
    "nbagent_run_task", default=None
)


def inside_a_tool() -> bool:
    """True if this code runs in a tool (or another part) of a run."""
    return current_run_task.get() is not None


Consumer = Callable[["RunTask"], None]
"""Wakes a waiting thread to take a job. Called, in any thread, with the run that has one."""


class CallQueue:
    """Queue of synchronous calls for one thread, or of one run.

    Each thread has a queue for all runs that it started, so that a wait for one serves them all. A
    job has a queue of its own, so that a run started inside a tool does not execute calls of the
    run around it.
    """

    def __init__(self, parent: CallQueue | None = None) -> None:
        self.parent = parent
        """Queue whose consumers take the calls if this one has none."""
        self.run_tasks: set[RunTask] = set()
        self._consumers: list[Consumer] = []

    def current_consumer(self) -> Consumer | None:
        """Return the first consumer that waits; if there is none, the parent's."""
        if self._consumers:
            return self._consumers[0]
        return self.parent and self.parent.current_consumer()

    @contextmanager
    def consumed_by(self, consumer: Consumer) -> Generator[None]:
        """Add a consumer for the time of the context; queued calls then go to the next one."""
        self._consumers.append(consumer)
        self._wake()
        try:
            yield
        finally:
            self._consumers.remove(consumer)
            self._wake()

    def _wake(self) -> None:
        for run_task in tuple(self.run_tasks):
            run_task.wake()


class _ThreadQueue(threading.local):
    def __init__(self) -> None:
        self.current = CallQueue()


thread_queue = _ThreadQueue()


class RunTask:
    """One running run: its task, which is never cancelled, and its `CallRunner`."""

    def __init__(self, cancel: CancelToken | None = None) -> None:
        self.cancel = cancel or CancelToken()
        """Stops the run. A person's interrupt sets it, so it ends the run and not only one call."""
        self.on_idle_job: Callable[[], None] | None = None
        """Called, in any thread, if a job is queued and nobody waits: call `run_queued_jobs`."""
        self.on_unserved: Callable[[str], None] | None = None
        """Called on the engine thread with a job's label if no thread took it for a second."""
        self.outer = current_run_task.get()
        """Run whose tool started this one."""
        # A run that an async tool starts is served where the run of that tool is served.
        self.parent_queue = (
            self.outer.queue if self.outer and on_engine_thread() else thread_queue.current
        )
        self.queue = CallQueue(self.parent_queue)
        self._jobs: deque[Job] = deque()
        self._job: Job | None = None
        """Job that a thread runs right now."""
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        """Outcome of the task."""
        self._thread: threading.Thread | None = None

    # The task

    def start(self, make_coro: Callable[[], Coroutine[Any, Any, Any]]) -> RunTask:
        """Start it in a copy of the caller's context, so that it prints into the caller's cell."""
        context = contextvars.copy_context()
        context.run(current_run_task.set, self)
        self.queue.run_tasks.add(self)
        self.parent_queue.run_tasks.add(self)

        async def main() -> None:
            try:
                self.future.set_result(await make_coro())
            except BaseException as error:
                # Also SystemExit and the like: they must reach the waiting thread, not this one.
                self.future.set_exception(error)
            finally:
                self._release()

        thread = self._thread = engine_thread()
        thread.spawn(main, context)
        return self

    def _release(self) -> None:
        """Drop what refers back to this task, so that it needs no garbage collection."""
        for queue in (self.queue, self.parent_queue):
            queue.run_tasks.discard(self)
        self.on_idle_job = self.on_unserved = None

    @property
    def is_lost(self) -> bool:
        """True if it can never end: its thread died, or this is a forked child."""
        return not self.future.done() and not (self._thread and self._thread.is_alive())

    def stop(self) -> None:
        """Request a stop. A second request interrupts a job once more that ignored the first."""
        job = self._job
        if job is not None and job.thread == threading.get_ident():
            job.interruptible = False  # It stops its own run, so it may end by itself.
        elif job is not None and self.cancel.is_set:
            job.stop(again=True)
        self.cancel.set()

    # Its calls

    async def run(
        self,
        work: Callable[[], Any],
        *,
        where: RanIn,
        interruptible: bool = True,
        timeout_s: float | None = None,
        label: str = "",
    ) -> tuple[Any, RanIn]:
        """Call a function in a thread, or await a coroutine function on a loop."""
        job = Job(work, where, interruptible, timeout_s, label)
        if where == "tool loop":
            run_on_tool_loop(job)
            timer = asyncio.get_running_loop().call_later(
                _TOOL_LOOP_TIMEOUT_S, _begin_in_new_thread, job
            )
            try:
                return await job.outcome()
            finally:
                timer.cancel()
        if where != "worker thread":
            return await self._run_queued(job)
        name = f"nbagent-tool-{label}"
        threading.Thread(target=job.run_sync, args=(None,), name=name, daemon=True).start()
        return await job.outcome()

    async def _run_queued(self, job: Job) -> tuple[Any, RanIn]:
        """Queue it for the waiting thread; report, once, if no thread takes it."""
        loop = asyncio.get_running_loop()

        def check_served() -> None:
            nonlocal timer
            # If another call of this run is executed, the job only waits for its turn.
            is_unserved = self._job is None and self.queue.current_consumer() is None
            if job.state != "queued":
                return
            if is_unserved and self.on_unserved is not None:
                self.on_unserved(job.label)
            else:
                timer = loop.call_later(_UNSERVED_AFTER_S, check_served)

        timer = loop.call_later(_UNSERVED_AFTER_S, check_served)
        self._jobs.append(job)
        self.wake()
        try:
            return await job.outcome()
        finally:
            timer.cancel()

    # Whoever takes them

    def take_job(self, consumer: Consumer | None) -> Job | None:
        """Take the next job for this consumer (None: for an idle thread), if there is one."""
        while self._jobs and self.queue.current_consumer() == consumer:
            with suppress(IndexError):  # another consumer was quicker
                job = self._jobs.popleft()
                if self.cancel.is_set:
                    job.stop()  # the run is stopped, and the task that awaits this is not yet
                elif job.state == "queued":
                    return job
        return None

    def wake(self) -> None:
        """Wake the consumer of the next job, if there is one."""
        if self._jobs:
            consumer, on_idle_job = self.queue.current_consumer(), self.on_idle_job
            if consumer is not None:
                consumer(self)
            elif on_idle_job is not None:
                on_idle_job()

    def run_job(self, job: Job, guard: InterruptGuard | None = None) -> InterruptGuard | None:
        """Run a job in this thread, under a new guard if none is given, or on its loop."""
        if job.where == "notebook loop":
            if loop_is_running():
                run_on_current_loop(job)
            else:
                run_on_tool_loop(job)
        elif guard is None:
            with InterruptGuard(self.cancel) as guard:
                guard.handled = True
                return self.run_job(job, guard)
        else:
            outer_job, self._job = self._job, job
            outer_queue, thread_queue.current = thread_queue.current, CallQueue()
            in_main = threading.current_thread() is threading.main_thread()
            job.where = "main thread" if in_main else "waiting thread"
            try:
                job.run_sync(guard)
            finally:
                thread_queue.current, self._job = outer_queue, outer_job
        return guard

    def run_queued_jobs(self) -> None:
        """Run the queued jobs in this thread if nobody waits. For an idle kernel's loop.

        Interrupts stay inside the jobs: raised into the loop, they would end the kernel.
        """
        while (job := self.take_job(None)) is not None:
            try:
                self.run_job(job)
            except KeyboardInterrupt:
                job.stop()

    def check_deadlock(self) -> None:
        """Raise UsageError if this code is part of the run itself, which would wait for itself."""
        run_task = current_run_task.get()
        while run_task is not None:
            if run_task is self:
                raise UsageError("a tool cannot wait for the run that it belongs to")
            run_task = run_task.outer


def run_on_tool_loop(job: Job) -> None:
    """Start a job on the loop of async tools."""
    thread = tool_thread()
    job.where = "tool loop"
    job.on_abandoned = lambda: thread.abandon_task(job.task)
    thread.spawn(job.run_async, job.context)


def _begin_in_new_thread(job: Job) -> None:
    if job.state == "queued":
        tool_thread().retired = True
        run_on_tool_loop(job)


def loop_is_running() -> bool:
    """True if this thread runs a loop now."""
    try:
        return asyncio.get_running_loop().is_running()
    except RuntimeError:
        return False


_loop_tasks: set[asyncio.Task[None]] = set()


def run_on_current_loop(job: Job) -> asyncio.Task[None]:
    """Start a job on the running loop of this thread."""
    task = asyncio.get_running_loop().create_task(job.run_async(), context=job.context)
    _loop_tasks.add(task)
    task.add_done_callback(_loop_tasks.discard)
    return task
