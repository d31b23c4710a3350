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
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RanIn
from nbagent.runtime.interrupt import Watch
from nbagent.runtime.jobs import Job
from nbagent.runtime.threads import engine_thread, on_engine_thread, tool_thread

_STRANDED_S = 1.0
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
    """Where jobs of some runs are taken: those of one run, or of all that one place has started.

    A place is a thread, or one job of it: so a wait serves all runs of its thread, and a job does
    not get calls of the run around it.
    """

    def __init__(self, parent: Desk | None = None) -> None:
        self.parent = parent
        """Where they are taken when nobody is here."""
        self.couriers: set[Courier] = set()
        self._waiters: list[Waiter] = []

    def waiter(self) -> Waiter | None:
        """The first one who waits; when it leaves, the next one."""
        if self._waiters:
            return self._waiters[0]
        return self.parent and self.parent.waiter()

    @contextmanager
    def served_by(self, waiter: Waiter) -> Generator[None]:
        """Within, this one takes part; what is queued when it leaves goes to the next one."""
        self._waiters.append(waiter)
        self._wake()
        try:
            yield
        finally:
            self._waiters.remove(waiter)
            self._wake()

    def _wake(self) -> None:
        for courier in tuple(self.couriers):
            courier.wake()


class _Here(threading.local):
    def __init__(self) -> None:
        self.desk = Desk()


here = _Here()


class Courier:
    """One run at work: its task, which nobody cancels, and its `CallRunner`."""

    def __init__(self, cancel: CancelToken | None = None) -> None:
        self.cancel = cancel or CancelToken()
        """Stops the run: a person's interrupt ends more than the call that it falls into."""
        self.on_idle_job: Callable[[], None] | None = None
        """Called, in any thread, when a job is queued and nobody waits: schedule `drain`."""
        self.on_stranded: Callable[[str], None] | None = None
        """Called on the engine thread with a job's label when nobody took it for a second."""
        self.outer = current_courier.get()
        """The run whose tool has started this one."""
        # What an async tool starts is served where the run of that tool is.
        self.place = self.outer.desk if self.outer and on_engine_thread() else here.desk
        self.desk = Desk(self.place)
        self._jobs: deque[Job] = deque()
        self._job: Job | None = None
        """What a thread runs right now."""
        self.future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        """How it ended."""
        self._thread: threading.Thread | None = None

    # The task

    def start(self, make_coro: Callable[[], Coroutine[Any, Any, Any]]) -> Courier:
        """Start it in a copy of the caller's context: what it prints lands in the caller's cell."""
        context = contextvars.copy_context()
        context.run(current_courier.set, self)
        self.desk.couriers.add(self)
        self.place.couriers.add(self)
        self.future.add_done_callback(lambda _: self.place.couriers.discard(self))

        async def main() -> None:
            try:
                self.future.set_result(await make_coro())
            except BaseException as error:
                # SystemExit and the like as well: they must reach who waits, not end the thread.
                self.future.set_exception(error)

        thread = self._thread = engine_thread()
        thread.spawn(main, context)
        return self

    @property
    def lost(self) -> bool:
        """Whether it can never end: its thread died, or this is a forked child."""
        return not self.future.done() and not (self._thread and self._thread.is_alive())

    def stop(self) -> None:
        """Ask for a stop; asked again, interrupt a job once more that swallowed the first."""
        job = self._job
        if job is not None and job.thread == threading.get_ident():
            job.interruptible = False  # It stops its own run: it may end by itself.
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
            give_to_tool_loop(job)
            held = asyncio.get_running_loop().call_later(_HELD_S, _begin_elsewhere, job)
            try:
                return await job.outcome()
            finally:
                held.cancel()
        if where != "worker thread":
            return await self._queued(job)
        name = f"nbagent-tool-{label}"
        threading.Thread(target=job.run_in, args=(None,), name=name, daemon=True).start()
        return await job.outcome()

    async def _queued(self, job: Job) -> tuple[Any, RanIn]:
        """Let the thread that waits take it; report, once, that nobody comes for it."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            nonlocal timer
            # Behind another call of its own run it waits its turn: nothing is in the way.
            stranded = self._job is None and self.desk.waiter() is None
            if job.state != "queued":
                return
            if stranded and self.on_stranded is not None:
                self.on_stranded(job.label)
            else:
                timer = loop.call_later(_STRANDED_S, look)

        timer = loop.call_later(_STRANDED_S, look)
        self._jobs.append(job)
        self.wake()
        try:
            return await job.outcome()
        finally:
            timer.cancel()

    # Whoever takes them

    def take(self, waiter: Waiter | None) -> Job | None:
        """The next job for this one (None: for nobody's thread), or None."""
        while self._jobs and self.desk.waiter() == waiter:
            with suppress(IndexError):  # another one was quicker
                job = self._jobs.popleft()
                if self.cancel.is_set:
                    job.stop()  # its task is not cancelled yet
                elif job.state == "queued":
                    return job
        return None

    def wake(self) -> None:
        """Wake who takes the next job, if there is one."""
        if self._jobs:
            waiter = self.desk.waiter()
            if waiter is not None:
                waiter(self)
            elif self.on_idle_job is not None:
                self.on_idle_job()

    def serve(self, job: Job, watch: Watch | None = None) -> Watch | None:
        """Run a job in this thread, under a watch of its own if none is given, or on its loop."""
        if job.place == "notebook loop":
            if loop_is_running():
                perform_soon(job)
            else:
                give_to_tool_loop(job)
        elif watch is None:
            with Watch(self.cancel) as watch:
                watch.heeded = True
                return self.serve(job, watch)
        else:
            before, self._job = self._job, job
            desk, here.desk = here.desk, Desk()
            in_main = threading.current_thread() is threading.main_thread()
            job.place = "main thread" if in_main else "waiting thread"
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
                self.serve(job)
            except KeyboardInterrupt:
                job.stop()

    def refuse_deadlock(self) -> None:
        """Raise UsageError where this code is a part of the run itself, which it would wait for."""
        courier = current_courier.get()
        while courier is not None:
            if courier is self:
                raise UsageError("a tool cannot wait for the run that it belongs to")
            courier = courier.outer


def give_to_tool_loop(job: Job) -> None:
    """Let a job run on the loop of async tools."""
    thread = tool_thread()
    job.place = "tool loop"
    job.on_left = lambda: thread.leave_behind(job.task)
    thread.spawn(job.perform, job.context)


def _begin_elsewhere(job: Job) -> None:
    if job.state == "queued":
        tool_thread().retired = True
        give_to_tool_loop(job)


def loop_is_running() -> bool:
    """Whether this thread runs a loop now."""
    try:
        return asyncio.get_running_loop().is_running()
    except RuntimeError:
        return False


_performed: set[asyncio.Task[None]] = set()


def perform_soon(job: Job) -> asyncio.Task[None]:
    """Let a job run on the running loop of this thread."""
    task = asyncio.get_running_loop().create_task(job.perform(), context=job.context)
    _performed.add(task)
    task.add_done_callback(_performed.discard)
    return task
