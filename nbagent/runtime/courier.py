"""The courier of one run: its task on the engine thread, and the way of its calls to others.

Owns where each call runs, the queue of those for the thread that waits, and who takes from it.
Waiting itself is in `waiting`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import UsageError
from nbagent.contracts.ports import Interrupted
from nbagent.contracts.records import RanIn
from nbagent.runtime.interrupt import Watch
from nbagent.runtime.jobs import Job
from nbagent.runtime.loop import LoopThread, engine_thread, running, tool_thread

T = TypeVar("T")
STRANDED_S = 1.0
"""A job that nobody came for after this long is reported."""
_HELD_S = 5.0
"""An async tool that could not begin for so long begins in a fresh thread."""

current_courier: contextvars.ContextVar[Courier | None] = contextvars.ContextVar(
    "nbagent_courier", default=None
)


def inside_a_tool() -> bool:
    """Whether this code runs in a tool (or another part) of a run."""
    return current_courier.get() is not None


Waiter = Callable[["Courier"], None]
"""Whoever takes jobs. Called, in any thread, with a run that has one."""


class Desk:
    """The runs that were started at one place: a thread, or one job of it.

    A wait at this place serves them all; a job does not get calls of the run around it.
    """

    def __init__(self) -> None:
        self.waiter: Waiter | None = None
        self.couriers: set[Courier] = set()

    def serve(self, waiter: Waiter | None) -> Waiter | None:
        """Set who waits here; returns who did before."""
        before, self.waiter = self.waiter, waiter
        for courier in tuple(self.couriers):
            courier.tell()
        return before


class _Here(threading.local):
    def __init__(self) -> None:
        self.desk = Desk()


here = _Here()


class Courier:
    """One run at work: its task, which nobody cancels, and its `CallRunner`.

    Of those who wait for the run, the first one takes its jobs; when it leaves, the next one does.
    """

    def __init__(self, cancel: CancelToken | None = None) -> None:
        self.cancel = cancel or CancelToken()
        """Stops the run: a person's interrupt ends more than the call that it falls into."""
        self.on_idle_job: Callable[[], None] | None = None
        """Called, in any thread, when a job is queued and nobody waits: schedule `drain`."""
        self.on_stranded: Callable[[str], None] | None = None
        """Called on the engine thread with a job's label when nobody took it for a second."""
        self.on_slow: Callable[[str], None] | None = None
        """Called on the engine thread with a job's label when it holds an idle kernel up."""
        self.outer = current_courier.get()
        """The run whose tool has started this one."""
        self._desk = here.desk
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._waiters: list[Waiter] = []
        self._job: Job | None = None
        """What a thread runs right now."""
        self._through_outer = False
        self._thread: LoopThread | None = None
        self._future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    # The task

    def start(self, make_coro: Callable[[], Coroutine[Any, Any, Any]]) -> Courier:
        """Start it in a copy of the caller's context: what it prints lands in the caller's cell."""
        context = contextvars.copy_context()
        context.run(current_courier.set, self)
        self._desk.couriers.add(self)
        running().add(self.cancel)

        async def main() -> None:
            try:
                value = await make_coro()
            except BaseException as error:
                # SystemExit and the like as well: they must reach who waits, not end the thread.
                self._ended()
                self._future.set_exception(error)
            else:
                self._ended()
                self._future.set_result(value)

        self._thread = engine_thread()
        self._thread.spawn(main, context)
        return self

    @property
    def started(self) -> bool:
        """Whether there is a task to wait for."""
        return self._thread is not None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._future.done()

    @property
    def lost(self) -> bool:
        """Whether it can never end: its thread died, or this is a forked child."""
        return not self.done and not (self._thread and self._thread.is_alive())

    def result(self) -> Any:
        """What it returned; raises what it raised. Only when `done`."""
        return self._future.result(timeout=0)

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call back on the engine thread when it ends, or at once when it has ended."""
        self._future.add_done_callback(lambda _: callback())

    def stop(self) -> None:
        """Ask for a stop; asked again, interrupt a job once more that swallowed the first."""
        job = self._job
        if job is not None and job.thread == threading.get_ident():
            job.interruptible = False  # It stops its own run: it may end by itself.
        elif job is not None and self.cancel.is_set:
            job.stop(again=True)
        self.cancel.set()

    def _ended(self) -> None:
        running().discard(self.cancel)
        self._desk.couriers.discard(self)

    # Its calls

    async def run_sync(
        self,
        work: Callable[[], T],
        *,
        where: Literal["waiting", "worker"],
        interruptible: bool = True,
        timeout_s: float | None = None,
        label: str = "",
        cancel: CancelToken | None = None,
    ) -> tuple[T, RanIn]:
        """Run a function in the thread that waits (in order), or in a worker thread."""
        job = Job(work, interruptible=interruptible, timeout_s=timeout_s, label=label)
        if where == "waiting":
            return await _until(cancel, job, self._carried(job))
        job.place = "worker thread"
        name = f"nbagent-tool-{label}"
        threading.Thread(target=job.run_alone, name=name, daemon=True).start()
        return await _until(cancel, job, job.outcome())

    async def run_async(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        where: Literal["tools", "notebook"] = "tools",
        interruptible: bool = True,
        timeout_s: float | None = None,
        label: str = "",
        cancel: CancelToken | None = None,
    ) -> tuple[T, RanIn]:
        """Await a coroutine function on the loop of async tools, or of the thread that waits."""
        job = Job(work, interruptible=interruptible, timeout_s=timeout_s, label=label)
        job.place = "tool loop" if where == "tools" else "notebook loop"
        carried = self._among_tools(job) if where == "tools" else self._carried(job)
        return await _until(cancel, job, carried)

    async def _among_tools(self, job: Job) -> tuple[Any, RanIn]:
        give_to_tool_loop(job)
        held = asyncio.get_running_loop().call_later(_HELD_S, self._begin_elsewhere, job)
        try:
            return await job.outcome()
        finally:
            held.cancel()

    def _begin_elsewhere(self, job: Job) -> None:
        if job.state == "queued":
            tool_thread().retired = True
            give_to_tool_loop(job)

    async def _carried(self, job: Job) -> tuple[Any, RanIn]:
        loop, reported = asyncio.get_running_loop(), set[str]()

        def look() -> None:
            nonlocal timer
            timer = loop.call_later(STRANDED_S, look)
            self._look_at(job, reported)

        timer = loop.call_later(STRANDED_S, look)
        self._post(job)
        try:
            return await job.outcome()
        finally:
            timer.cancel()

    def _look_at(self, job: Job, reported: set[str]) -> None:
        """Report, once each, a job that nobody takes, and one that holds an idle kernel up."""
        courier = self._end_of_the_way()
        # Behind another call of its own run it waits its turn: nothing is in the way.
        stuck = job.state == "queued" and courier._job is None
        held = job.state == "running" and job.task is None
        report = self.on_stranded if stuck else self.on_slow if held else None
        if report is not None and courier._waiter() is None and job.state not in reported:
            reported.add(job.state)
            report(job.label)

    # Whoever takes them

    def attach(self, waiter: Waiter) -> None:
        """Take part in serving this run."""
        with self._lock:
            self._waiters.append(waiter)
        self.tell()

    def detach(self, waiter: Waiter) -> None:
        """Leave; what is still queued goes to the next one."""
        with self._lock:
            self._waiters.remove(waiter)
        self.tell()

    def take(self, waiter: Waiter | None) -> Job | None:
        """The next job for this one (None: for nobody's thread), or None."""
        with self._lock:
            while self._jobs and self._waiter() == waiter:
                job = self._jobs.popleft()
                if job.state == "queued":
                    return job
            return None

    def tell(self) -> None:
        """Wake who takes the next job, if there is one."""
        with self._lock:
            waiter = self._waiter()
            if not any(job.state == "queued" for job in self._jobs):
                return
        if waiter is not None:
            waiter(self)
        elif self.on_idle_job is not None:
            self.on_idle_job()

    def run_here(self, job: Job, watch: Watch | None = None) -> Watch:
        """Run a job in this thread, under a watch of its own if none is given."""
        if watch is None:
            with Watch(self.cancel) as watch:
                watch.heeded = True
                return self.run_here(job, watch)
        before, self._job = self._job, job
        desk, here.desk = here.desk, Desk()
        job.place = "main thread" if _in_main_thread() else "waiting thread"
        try:
            job.run_in(watch)
        finally:
            here.desk, self._job = desk, before
        return watch

    def drain(self) -> None:
        """Run what is queued, in this thread, when nobody waits. For an idle kernel's loop.

        Interrupts stay inside the jobs: nothing of this is raised into the loop.
        """
        while (job := self.take(None)) is not None:
            try:
                if job.place != "notebook loop":
                    self.run_here(job)
                elif loop_is_running():
                    perform_soon(job)
                else:
                    give_to_tool_loop(job)
            except KeyboardInterrupt:
                job.stop()

    def through_outer(self) -> None:
        """From now on the thread that waits for the outer run does this run's work."""
        with self._lock:
            self._through_outer = self.outer is not None
            jobs, self._jobs = list(self._jobs), deque()
        for job in jobs:
            self._post(job)

    def refuse_deadlock(self) -> None:
        """Raise UsageError where this code is a part of the run itself, which it would wait for."""
        courier = current_courier.get()
        while courier is not None:
            if courier is self:
                raise UsageError("a tool cannot wait for the run that it belongs to")
            courier = courier.outer

    def _post(self, job: Job) -> None:
        courier = self._end_of_the_way()
        with courier._lock:
            courier._jobs.append(job)
        courier.tell()

    def _end_of_the_way(self) -> Courier:
        courier = self
        while courier._through_outer and courier.outer is not None:
            courier = courier.outer
        return courier

    def _waiter(self) -> Waiter | None:
        return self._waiters[0] if self._waiters else self._desk.waiter


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def give_to_tool_loop(job: Job) -> None:
    """Let a job run on the loop of async tools."""
    thread = tool_thread()
    job.place = "tool loop"
    job.on_left = lambda: thread.leave_behind(job.task)
    thread.spawn(job.perform, job.context)


_performed: set[asyncio.Task[None]] = set()


def loop_is_running() -> bool:
    """Whether this thread runs a loop now."""
    try:
        return asyncio.get_running_loop().is_running()
    except RuntimeError:
        return False


def perform_soon(job: Job) -> asyncio.Task[None]:
    """Let a job run on the running loop of this thread."""
    task = asyncio.get_running_loop().create_task(job.perform(), context=job.context)
    _performed.add(task)
    task.add_done_callback(_performed.discard)
    return task


async def _until(
    cancel: CancelToken | None, job: Job, outcome: Coroutine[Any, Any, tuple[Any, RanIn]]
) -> tuple[Any, RanIn]:
    """For callers that still give a token: its stop raises Interrupted."""
    if cancel is None:
        return await outcome
    if cancel.is_set:
        outcome.close()
        job.stop()
        raise Interrupted("stopped before it began")
    task, loop = asyncio.ensure_future(outcome), asyncio.get_running_loop()

    def stop() -> None:
        if job.interruptible or job.state == "queued":
            task.cancel()

    forget = cancel.on_set(lambda: loop.call_soon_threadsafe(stop))
    try:
        return await task
    except asyncio.CancelledError:
        me = asyncio.current_task()
        if me is not None and me.cancelling():
            raise
        if job.state == "over" and job.error is None:
            return job.value, job.place
        left = job.state == "running"
        raise Interrupted("left behind" if left else "a stop came before it ended") from None
    finally:
        forget()
