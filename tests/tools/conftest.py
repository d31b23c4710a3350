"""A CallRunner on plain threads, and one door through which the tests call tools."""

from __future__ import annotations

import asyncio
import concurrent.futures
import ctypes
import functools
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.ports import Interrupted, ToolContext, ToolOutcome, Where
from nbagent.contracts.records import Place
from nbagent.tools.functions import as_tool

T = TypeVar("T")


class ThreadRunner:
    """Runs waiting work one after the other, each in a thread; stops it by KeyboardInterrupt."""

    def __init__(self) -> None:
        self.in_order = asyncio.Lock()
        self.calls: list[tuple[str, str]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: self.notebook_loop.run_forever())

    @property
    def notebook_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread.start()
        return self._loop

    async def run_sync(
        self,
        work: Callable[[], T],
        *,
        where: Where,
        interruptible: bool,
        cancel: CancelToken,
        label: str = "",
    ) -> tuple[T, Place]:
        self.calls.append((where, label))
        token = cancel if interruptible else CancelToken()
        if where == "worker":
            return await self._in_thread(work, token), "worker thread"
        async with self.in_order:
            return await self._in_thread(work, token), "waiting thread"

    async def _in_thread(self, work: Callable[[], T], cancel: CancelToken) -> T:
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        lock, active = threading.Lock(), [True]

        def body() -> None:
            ident = ctypes.c_ulong(threading.get_ident())

            def interrupt() -> None:
                with lock:
                    if active[0]:
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(
                            ident, ctypes.py_object(KeyboardInterrupt)
                        )

            try:
                forget = cancel.on_set(interrupt)
                value = work()
                with lock:
                    active[0] = False
                forget()
                end = functools.partial(done.set_result, value)
            except KeyboardInterrupt:
                end = functools.partial(done.set_exception, Interrupted())
            except Exception as error:
                end = functools.partial(done.set_exception, error)
            with suppress(concurrent.futures.InvalidStateError):
                end()  # Nobody waits for a call that was given up.

        threading.Thread(target=body, daemon=True).start()
        return await asyncio.wrap_future(done)

    async def run_async(
        self, work: Callable[[], Awaitable[T]], *, cancel: CancelToken, label: str = ""
    ) -> tuple[T, Place]:
        self.calls.append(("notebook", label))

        async def body() -> T:
            task = asyncio.ensure_future(work())
            forget = cancel.on_set(lambda: self.notebook_loop.call_soon_threadsafe(task.cancel))
            try:
                return await task
            except asyncio.CancelledError:
                raise Interrupted from None
            finally:
                forget()

        future = asyncio.run_coroutine_threadsafe(body(), self.notebook_loop)
        return await asyncio.wrap_future(future), "notebook loop"

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Bench:
    """What a test sees of a call besides its outcome."""

    def __init__(self) -> None:
        self.runner = ThreadRunner()
        self.cancel = CancelToken()
        self.progress: list[str] = []
        self.namespace: dict[str, Any] = {}

    @property
    def context(self) -> ToolContext:
        return ToolContext(
            run_id="0123456789abcdef",
            session="test",
            turn_id="C01",
            tool_call_id="call_1",
            runner=self.runner,
            namespace=lambda: self.namespace,
            progress=lambda text, _: self.progress.append(text),
        )

    async def arun(self, obj: object, /, **arguments: Any) -> ToolOutcome:
        """Call one tool inside a loop that runs."""
        return await as_tool(obj).run(arguments, self.context, self.cancel)

    def run(self, obj: object, /, **arguments: Any) -> ToolOutcome:
        """Call one tool from outside."""
        return asyncio.run(self.arun(obj, **arguments))

    def stop_after(self, seconds: float) -> None:
        """Stop the run from another thread."""
        threading.Timer(seconds, self.cancel.set).start()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.runner.close()
