"""What runs in a cell without an engine: a body of jobs and waits under the runtime alone.

For the children and the kernels of tests that stop and interrupt it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.ports import Interrupted, Where
from nbagent.runtime import Courier, RunTask, wait


class Cell:
    """One run; its result says what came of each job, and how it ended."""

    def __init__(self) -> None:
        self.courier, self.cancel = Courier(), CancelToken()
        self.log: list[Any] = []

    async def call(
        self, work: Callable[[], Any], where: Where = "waiting", interruptible: bool = True
    ) -> None:
        """Do a synchronous job."""
        job = self.courier.run_sync(
            work, where=where, interruptible=interruptible, cancel=self.cancel
        )
        await self._note(job)

    async def call_async(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Do an asynchronous job."""
        await self._note(self.courier.run_async(work, cancel=self.cancel))

    async def _note(self, job: Awaitable[tuple[Any, str]]) -> None:
        try:
            self.log.append((await job)[0])
        except Interrupted:
            self.log.append("E_INTERRUPTED")

    async def think(self, seconds: float) -> None:
        """Wait as for a model; a stop ends it."""
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        forget = self.cancel.on_set(lambda: loop.call_soon_threadsafe(stopped.set))
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), seconds)
        forget()

    def start(self, body: Callable[[Any], Awaitable[Any]]) -> RunTask[list[Any]]:
        """Let a body run, which is given this."""

        async def run() -> list[Any]:
            await body(self)
            await asyncio.sleep(0.01)
            return [*self.log, "stopped" if self.cancel.is_set else "answered"]

        self.task = RunTask[list[Any]].start(run, self.courier, self.cancel)
        return self.task

    def run(self, body: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        """Wait for it in this thread."""
        return wait(self.start(body))
