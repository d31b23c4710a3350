"""Cell without an engine: a body of jobs and waits under the runtime alone.

For the children and the kernels of tests that stop and interrupt it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.records import RanIn
from nbagent.runtime import RunTask, wait


class Cell:
    """One run; its result says what came of each job, and how it ended."""

    def __init__(self) -> None:
        self.cancel = CancelToken()
        self.courier = RunTask(self.cancel)
        self.log: list[Any] = []

    async def call(
        self,
        work: Callable[[], Any],
        where: RanIn = "waiting thread",
        interruptible: bool = True,
        timeout_s: float | None = None,
    ) -> None:
        """Do a job and note its outcome, as the engine does: a stop cancels what it may."""
        job = self.courier.run(work, where=where, interruptible=interruptible, timeout_s=timeout_s)
        task, loop = asyncio.ensure_future(job), asyncio.get_running_loop()
        self.cancel.on_set(
            lambda: loop.call_soon_threadsafe(task.cancel) if interruptible else None
        )
        try:
            self.log.append((await task)[0])
        except asyncio.CancelledError:
            self.log.append("E_INTERRUPTED")
        except TimeoutError:
            self.log.append("E_TIMEOUT")

    async def call_async(self, work: Callable[[], Any]) -> None:
        """Do an asynchronous job on the notebook's loop."""
        await self.call(work, "notebook loop")

    async def think(self, seconds: float) -> None:
        """Wait as for a model; a stop ends it."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.cancel.on_set(lambda: loop.call_soon_threadsafe(stopped.set))
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), seconds)

    def start(self, body: Callable[[Any], Awaitable[Any]]) -> RunTask:
        """Let a body run, which is given this."""

        async def run() -> list[Any]:
            await body(self)
            await asyncio.sleep(0.01)
            return [*self.log, "stopped" if self.cancel.is_set else "answered"]

        return self.courier.start(run)

    def run(self, body: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        """Wait for it in this thread."""
        return wait(self.start(body))
