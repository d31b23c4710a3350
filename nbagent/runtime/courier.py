"""The courier of one run: carries its jobs to the thread that waits for it.

Owns the queue and who may take from it. Waiting itself is in `waiting`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import ToolError
from nbagent.contracts.ports import Interrupted, Where
from nbagent.contracts.records import RanIn
from nbagent.runtime.jobs import GRACE_S, AsyncJob, SyncJob
from nbagent.runtime.watch import Watch

T = TypeVar("T")
AnyJob = SyncJob[Any] | AsyncJob[Any]
NestedRunner = Callable[[Coroutine[Any, Any, Any]], Any]

STRANDED_S = 1.0
"""A job that nobody came for after this long is told of."""

current_courier: contextvars.ContextVar[Courier | None] = contextvars.ContextVar(
    "nbagent_courier", default=None
)


def inside_a_tool() -> bool:
    """Whether this code runs in a tool (or another part) of a run."""
    return current_courier.get() is not None


class Server:
    """A thread or a loop that takes jobs. `wake`, called in any thread, says that there is one."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake


class Courier:
    """Runs the calls of one run where they belong: a `CallRunner`.

    Of those who wait for the run, the first one serves; when it leaves, the next one does.
    """

    def __init__(self) -> None:
        self.on_idle_job: Callable[[], None] | None = None
        """Called, in any thread, when a job is queued and nobody waits: schedule `drain`."""
        self.on_stranded: Callable[[str], None] | None = None
        """Called on the engine thread with a job's label when nobody took it for a second."""
        self.on_slow: Callable[[str], None] | None = None
        """Called on the engine thread with a job's label when it holds an idle kernel up."""
        self.cancel: CancelToken | None = None
        """Stops the run: a person's interrupt ends more than the call that it falls into."""
        self.busy_thread: int | None = None
        """The thread that runs a job of this run right now."""
        self._lock = threading.Lock()
        self._jobs: deque[AnyJob] = deque()
        self._servers: list[Server] = []
        self._forward: Courier | None = None
        self._at_work: set[SyncJob[Any]] = set()
        self._drained: set[asyncio.Task[None]] = set()

    async def run_sync(
        self,
        work: Callable[[], T],
        *,
        where: Where,
        interruptible: bool,
        cancel: CancelToken,
        label: str = "",
    ) -> tuple[T, RanIn]:
        """Run a function in the thread that waits (in order), or in a worker thread.

        Raises:
            Interrupted: a stop came first.
        """
        if cancel.is_set:
            raise Interrupted("stopped before it began")
        job = SyncJob(work, interruptible=interruptible, cancel=cancel, label=label)
        if where == "worker":
            job.place = "worker thread"
            name = f"nbagent-tool-{label}"
            threading.Thread(target=self._work_off, args=(job,), name=name, daemon=True).start()
            return await job.outcome()
        return await self._outcome(job)

    async def run_async(
        self, work: Callable[[], Awaitable[T]], *, cancel: CancelToken, label: str = ""
    ) -> tuple[T, RanIn]:
        """Run a coroutine function on the loop of the thread that waits.

        Raises:
            Interrupted: a stop came first.
        """
        if cancel.is_set:
            raise Interrupted("stopped before it began")
        return await self._outcome(AsyncJob(work, cancel=cancel, label=label))

    def drain(self) -> None:
        """Run what is queued, in this thread, when nobody waits. For an idle kernel's loop.

        Interrupts stay inside the jobs: nothing of this is raised into the loop.
        """
        while (job := self.take(None)) is not None:
            try:
                if isinstance(job, SyncJob):
                    self.run_here(job)
                elif running_loop() is None:
                    run_to_end(job.perform())
                else:
                    task = asyncio.ensure_future(job.perform())
                    self._drained.add(task)
                    task.add_done_callback(self._drained.discard)
            except KeyboardInterrupt:
                job.stop()

    def run_here(self, job: SyncJob[Any], watch: Watch | None = None) -> Watch:
        """Run a job in this thread, under a watch of its own if none is given."""
        if watch is None:
            with Watch(self.cancel or job.cancel) as watch:
                return self.run_here(job, watch)
        before, self.busy_thread = self.busy_thread, threading.get_ident()
        self._at_work.add(job)
        try:
            job.run_in(watch)
        finally:
            self._at_work.discard(job)
            self.busy_thread = before
        return watch

    def insist(self) -> None:
        """Interrupt once more what is at work and swallowed the first interrupt. Any thread."""
        for job in tuple(self._at_work):
            job.stop(again=True)

    def attach(self, server: Server) -> None:
        """Take part in serving this run; `server.wake` is called for what is queued already."""
        with self._lock:
            self._servers.append(server)
            waiting = bool(self._jobs)
        if waiting:
            server.wake()

    def detach(self, server: Server) -> None:
        """Leave; what is still queued goes to the next one."""
        with self._lock:
            self._servers.remove(server)
            waiting = any(job.state == "queued" for job in self._jobs)
        if waiting:
            self._tell()

    def take(self, server: Server | None) -> AnyJob | None:
        """The next job for this server (None: for nobody's thread), or None."""
        with self._lock:
            first = self._servers[0] if self._servers else None
            if first is not server:
                return None
            while self._jobs:
                job = self._jobs.popleft()
                if job.state == "queued":
                    return job
            return None

    def forward_to(self, other: Courier) -> None:
        """From now on another run's waiting thread does this run's work."""
        with self._lock:
            self._forward = other
            jobs, self._jobs = list(self._jobs), deque()
        for job in jobs:
            other.post(job)

    def post(self, job: AnyJob) -> None:
        """Queue a job. Any thread."""
        with self._lock:
            other = self._forward
            if other is None:
                self._jobs.append(job)
        if other is None:
            self._tell()
        else:
            other.post(job)

    async def _outcome(self, job: SyncJob[T] | AsyncJob[T]) -> tuple[T, RanIn]:
        self.post(job)
        loop, told = asyncio.get_running_loop(), set[str]()

        def look() -> None:
            nonlocal timer
            timer = loop.call_later(STRANDED_S, look)
            self._look_at(job, told)

        timer = loop.call_later(STRANDED_S, look)
        try:
            return await job.outcome()
        finally:
            timer.cancel()

    def _look_at(self, job: AnyJob, told: set[str]) -> None:
        """Tell, once each, of a job that nobody takes, and of one that holds an idle kernel up."""
        courier = self._forward or self
        # Behind another call of its own run it waits its turn: nothing is in the way.
        stuck = job.state == "queued" and courier.busy_thread is None
        held = job.state == "running" and isinstance(job, SyncJob)
        tell = self.on_stranded if stuck else self.on_slow if held else None
        if tell is not None and not courier._servers and job.state not in told:
            told.add(job.state)
            tell(job.label)

    def _work_off(self, job: SyncJob[Any]) -> None:
        self._at_work.add(job)
        try:
            with Watch(job.cancel) as watch:
                job.run_in(watch)
        finally:
            self._at_work.discard(job)

    def _tell(self) -> None:
        with self._lock:
            server = self._servers[0] if self._servers else None
        if server is not None:
            server.wake()
        elif self.on_idle_job is not None:
            self.on_idle_job()


class _Kept:
    """A loop that a thread runs coroutines on when none is running there."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: None)
        self._pid = os.getpid()

    def __del__(self) -> None:
        # Closing a forked copy would unregister the parent's sockets.
        if self._pid == os.getpid() and not self.loop.is_running():
            self.loop.close()


class _Threads(threading.local):
    kept: _Kept | None = None


_threads = _Threads()


@atexit.register
def _drop_loop() -> None:
    _threads.kept = None


def _private_loop() -> asyncio.AbstractEventLoop:
    kept = _threads.kept
    if kept is None or kept.loop.is_closed():
        kept = _threads.kept = _Kept()
    return kept.loop


class _Nesting:
    runner: NestedRunner | None = None


_nesting = _Nesting()


def use_nested_runner(runner: NestedRunner | None) -> None:
    """Say how to run a coroutine to its end inside a loop that is running in this thread."""
    _nesting.runner = runner


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that is running in this thread."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this thread, on its running loop or on one that is kept for it."""
    if running_loop() is None:
        return _run_privately(work)
    if _nesting.runner is None:
        work.close()
        raise ToolError(
            "this thread's event loop is running and cannot be entered again: "
            "start the run with `await agent.arun(...)`"
        )
    return _nesting.runner(work)


def _run_privately(work: Coroutine[Any, Any, T]) -> T:
    loop = _private_loop()
    try:
        return loop.run_until_complete(work)
    except KeyboardInterrupt:
        # What was interrupted must not go on when the loop is used the next time.
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            with suppress(KeyboardInterrupt):
                loop.run_until_complete(asyncio.wait(tasks, timeout=GRACE_S))
        raise


def _after_fork() -> None:
    _inherited.append(_threads.kept)
    _threads.kept = None


_inherited: list[_Kept | None] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
