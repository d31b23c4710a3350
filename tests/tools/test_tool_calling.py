"""Where a tool runs, how long, and what a stop does to it: real loops, real threads."""

from __future__ import annotations

import asyncio
import functools
import signal
import sqlite3
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.ports import Interrupted
from nbagent.tools.functions import tool

LOOP = '@nbagent.tool(loop="notebook")'


def spin(seconds: float) -> str:
    """Python-level work that an interrupt can end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.005)
    return "done"


@tool
def plain() -> str:
    return threading.current_thread().name


@tool(threaded=True)
def threaded() -> str:
    return threading.current_thread().name


@tool
async def asynchronous() -> str:
    return threading.current_thread().name


@tool(loop="notebook")
async def on_notebook() -> str:
    return threading.current_thread().name


@pytest.mark.parametrize(
    ("function", "place", "calls"),
    [
        pytest.param(plain, "waiting thread", [("waiting", "plain")], id="def"),
        pytest.param(threaded, "worker thread", [("worker", "threaded")], id="threaded"),
        pytest.param(asynchronous, "engine loop", [], id="async def"),
        pytest.param(on_notebook, "notebook loop", [("notebook", "on_notebook")], id="notebook"),
    ],
)
def test_tool_runs_in_its_place(bench: Any, function: Any, place: str, calls: Any) -> None:
    before = time.perf_counter_ns() / 1e6
    outcome = bench.run(function)
    assert outcome.result.ok
    assert (outcome.ran_in, bench.runner.calls) == (place, calls)
    assert before <= outcome.started_at_ms <= time.perf_counter_ns() / 1e6
    here = outcome.result.data == threading.current_thread().name
    assert here == (place == "engine loop")


def test_wrapper_that_gives_a_coroutine_is_awaited(bench: Any) -> None:
    async def work(a: int) -> int:
        await asyncio.sleep(0)
        return a + 1

    @functools.wraps(work)
    def wrapper(a: int) -> Awaitable[int]:
        return work(a)

    outcome = bench.run(wrapper, a=1)
    assert (outcome.result.data, outcome.ran_in) == (2, "engine loop")


# -- generators ------------------------------------------------------------------------------


def steps() -> Generator[Any]:
    yield "one"
    yield {"two": 2}
    yield 3


async def async_steps() -> AsyncGenerator[Any]:
    yield "one"
    yield {"two": 2}
    yield 3


def returning() -> Generator[str, None, int]:
    yield "one"
    return 7


def empty() -> Generator[str]:
    yield from ()


async def async_empty() -> AsyncGenerator[str]:
    for item in ():
        yield item


@pytest.mark.parametrize(
    ("function", "place", "data", "progress"),
    [
        pytest.param(steps, "waiting thread", 3, ["one", '{"two":2}'], id="last item"),
        pytest.param(async_steps, "engine loop", 3, ["one", '{"two":2}'], id="async"),
        pytest.param(returning, "waiting thread", 7, ["one"], id="returned value"),
        pytest.param(empty, "waiting thread", None, [], id="no items"),
        pytest.param(async_empty, "engine loop", None, [], id="async without items"),
    ],
)
def test_generator_tells_progress_and_gives_its_result(
    bench: Any, function: Any, place: str, data: Any, progress: list[str]
) -> None:
    outcome = bench.run(function)
    assert (outcome.result.data, outcome.ran_in) == (data, place)
    assert bench.progress == progress


def test_error_in_a_generator_comes_after_its_progress(bench: Any) -> None:
    def broken() -> Generator[str]:
        yield "one"
        yield "two"
        raise ValueError("three")

    assert bench.run(broken).result.error.message == "ValueError: three"
    assert bench.progress == ["one"]


# -- timeouts --------------------------------------------------------------------------------


def test_tool_is_cancelled_at_its_timeout(bench: Any) -> None:
    seen: list[str] = []

    @tool(timeout=0.1, loop="notebook")
    async def slow() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    error = bench.run(slow).result.error
    assert (error.code, error.message) == ("E_TIMEOUT", "slow took longer than 0.1 s")
    assert seen == ["cancelled"]
    assert not bench.cancel.is_set


def test_worker_that_ignores_its_timeout_is_abandoned(bench: Any) -> None:
    release = threading.Event()

    @tool(timeout=0.1, threaded=True)
    def stubborn() -> None:
        while not release.is_set():
            try:
                time.sleep(0.02)
            except KeyboardInterrupt:
                continue

    start = time.monotonic()
    outcome = bench.run(stubborn)
    release.set()
    assert outcome.result.error.code == "E_TIMEOUT"
    assert "may still be running" in outcome.result.error.message
    assert time.monotonic() - start < 10


def test_coroutine_that_ignores_its_timeout_is_abandoned(bench: Any) -> None:
    release = asyncio.Event()

    @tool(timeout=0.05)
    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.5)
            except asyncio.CancelledError:
                continue

    async def call() -> Any:
        outcome = await bench.arun(stubborn)
        release.set()
        await asyncio.sleep(0.6)
        return outcome

    outcome = asyncio.run(call())
    assert outcome.result.error.code == "E_TIMEOUT"
    assert "may still be running" in outcome.result.error.message


def test_time_in_the_queue_does_not_count(bench: Any) -> None:
    @tool(timeout=0.5)
    def quick() -> str:
        return "quick"

    async def both() -> list[Any]:
        slow = tool(name="slow")(lambda: spin(1.0))
        first: asyncio.Task[Any] = asyncio.create_task(bench.arun(slow))
        return [await bench.arun(quick), await first]

    assert [outcome.result.data for outcome in asyncio.run(both())] == ["quick", "done"]


def test_tool_that_may_not_be_interrupted_keeps_its_result_after_its_timeout(bench: Any) -> None:
    @tool(timeout=0.05, interruptible=False)
    def write() -> str:
        return spin(0.3)

    outcome = bench.run(write)
    assert outcome.result.data == "done"
    assert outcome.notes == ("write finished although its time was up",)


# -- stop ------------------------------------------------------------------------------------


@tool
async def wait_async() -> str:
    await asyncio.sleep(30)
    return "done"


@tool
def wait_here() -> str:
    return spin(30)


@tool(threaded=True)
def wait_beside() -> str:
    return spin(30)


@tool(loop="notebook")
async def wait_there() -> str:
    await asyncio.sleep(30)
    return "done"


@pytest.mark.parametrize("function", [wait_async, wait_here, wait_beside, wait_there])
def test_stop_interrupts_a_running_tool(bench: Any, function: Any) -> None:
    bench.stop_after(0.2)
    start = time.monotonic()
    outcome = bench.run(function)
    assert outcome.result.error.code == "E_INTERRUPTED"
    assert "what it did so far is unknown" in outcome.result.error.message
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("kind", ["async", "waiting", "worker"])
def test_stop_waits_for_a_tool_that_may_not_be_interrupted(bench: Any, kind: str) -> None:
    async def write_async() -> str:
        await asyncio.sleep(0.4)
        return "done"

    def write() -> str:
        return spin(0.4)

    function: Any = write_async if kind == "async" else write
    bench.stop_after(0.1)
    outcome = bench.run(tool(interruptible=False, threaded=kind == "worker")(function))
    assert outcome.result.data == "done"
    assert bench.cancel.is_set


@pytest.mark.parametrize("interruptible", [True, False])
def test_stopped_run_starts_no_tool(bench: Any, interruptible: bool) -> None:
    began: list[str] = []

    async def write_async() -> None:
        began.append("async")

    def write() -> None:
        began.append("sync")

    bench.cancel.set()
    for function in (write, write_async):
        outcome = bench.run(tool(interruptible=interruptible)(function))
        assert outcome.result.error.code == "E_INTERRUPTED"
        assert "was not started" in outcome.result.error.message
        assert outcome.started_at_ms is None
    assert began == []


def test_cancel_hook_ends_a_query_that_no_interrupt_reaches(bench: Any) -> None:
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    hooked: list[str] = []

    def interrupt() -> None:
        hooked.append(threading.current_thread().name)
        connection.interrupt()

    @tool(on_cancel=interrupt)
    def count() -> int:
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n)"
        return connection.execute(f"{endless} SELECT sum(x) FROM n").fetchone()[0]

    bench.stop_after(0.2)
    outcome = bench.run(count)
    connection.close()
    assert outcome.result.error.code == "E_INTERRUPTED"
    assert len(hooked) == 1
    assert hooked[0].startswith("Thread-")


def test_cancel_hook_runs_once_at_a_timeout_and_may_fail(bench: Any) -> None:
    hooked: list[int] = []

    def hook() -> None:
        hooked.append(1)
        bench.cancel.set()
        raise ValueError

    @tool(timeout=0.05, on_cancel=hook)
    async def slow() -> None:
        await asyncio.sleep(30)

    assert bench.run(slow).result.error.code == "E_TIMEOUT"
    assert hooked == [1]


def test_cancel_hook_does_not_run_for_a_tool_that_finished(bench: Any) -> None:
    hooked: list[int] = []

    @tool(on_cancel=lambda: hooked.append(1), timeout=0.1)
    async def quick() -> int:
        return 1

    async def call() -> Any:
        outcome = await bench.arun(quick)
        bench.cancel.set()
        await asyncio.sleep(0.2)
        return outcome

    assert asyncio.run(call()).result.data == 1
    assert hooked == []


@pytest.mark.parametrize("function", [wait_async, wait_here, wait_beside])
def test_cancelled_caller_takes_the_tool_with_it(bench: Any, function: Any) -> None:
    hooked: list[int] = []
    tool(on_cancel=lambda: hooked.append(1), threaded=function is wait_beside, name="victim")(
        function
    )

    async def call() -> None:
        task = asyncio.create_task(bench.arun(function))
        await asyncio.sleep(0.15)
        task.cancel()
        await task

    try:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(call())
        assert hooked == [1]
    finally:
        tool(threaded=function is wait_beside)(function)


def test_error_that_a_stop_provoked_is_told_with_it(bench: Any) -> None:
    async def fetch() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise OSError("connection lost") from None

    bench.stop_after(0.1)
    error = bench.run(fetch).result.error
    assert error.code == "E_INTERRUPTED"
    assert error.message.endswith("(OSError: connection lost)")


def test_tool_that_cancels_itself_has_failed(bench: Any) -> None:
    async def selfish() -> None:
        raise asyncio.CancelledError

    @tool(loop="notebook")
    async def selfish_there() -> None:
        raise asyncio.CancelledError

    for function in (selfish, selfish_there):
        error = bench.run(function).result.error
        assert error.code == "E_TOOL_FAILED"
        assert "CancelledError" in error.message


class MainThreadRunner:
    """Runs waiting work in the main thread and takes an interrupt for a stop, as a cell does."""

    def __init__(self) -> None:
        self.interrupts = 0

    async def run_sync(
        self, work: Callable[[], Any], *, cancel: CancelToken, **how: Any
    ) -> tuple[Any, Any]:
        try:
            return work(), "main thread"
        except KeyboardInterrupt:
            self.interrupts += 1
            raise Interrupted from None


def _without_signal_handling(coroutine: Coroutine[Any, Any, Any]) -> Any:
    # asyncio.run would take SIGINT for itself.
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


def test_interrupt_in_the_main_thread_reaches_the_runner(bench: Any) -> None:
    threads, bench.runner = bench.runner, MainThreadRunner()

    def pressed() -> None:
        signal.raise_signal(signal.SIGINT)
        spin(30)

    outcome = _without_signal_handling(bench.arun(pressed))
    assert bench.runner.interrupts == 1
    bench.runner = threads
    assert outcome.result.error.code == "E_INTERRUPTED"
    assert outcome.ran_in == "main thread"


def test_stop_of_one_call_in_the_main_thread_is_not_taken_for_the_persons(bench: Any) -> None:
    threads, bench.runner = bench.runner, MainThreadRunner()

    @tool(timeout=30)
    def stopped() -> None:
        bench.cancel.set()
        raise KeyboardInterrupt  # As a runner makes it, when the token is set.

    outcome = _without_signal_handling(bench.arun(stopped))
    assert bench.runner.interrupts == 0
    bench.runner = threads
    assert outcome.result.error.code == "E_INTERRUPTED"


def test_exit_in_a_coroutine_leaves_the_loop_alive(bench: Any) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    async def twice() -> list[str]:
        return [(await bench.arun(leave)).result.error.message for _ in range(2)]

    assert asyncio.run(twice()) == ["SystemExit: 1"] * 2


# -- other loops -----------------------------------------------------------------------------


def test_object_of_another_loop_says_what_to_do(bench: Any) -> None:
    lock = asyncio.Lock()

    async def hold() -> None:
        async with lock:
            await asyncio.sleep(0.2)

    async def use() -> str:
        async with lock:
            return "used"

    async def in_two_loops() -> Any:
        # The notebook's loop holds the lock; the engine's loop must not wait for it.
        holding = asyncio.run_coroutine_threadsafe(hold(), bench.runner.notebook_loop)
        await asyncio.sleep(0.05)
        contender = asyncio.run_coroutine_threadsafe(hold(), bench.runner.notebook_loop)
        await asyncio.sleep(0.02)
        outcome = await bench.arun(use)
        await asyncio.gather(asyncio.wrap_future(holding), asyncio.wrap_future(contender))
        there = await bench.arun(tool(loop="notebook")(use))
        return outcome, there

    here, there = asyncio.run(in_two_loops())
    assert "is bound to a different event loop" in here.result.error.message
    assert LOOP in here.result.error.message
    assert LOOP in here.error_detail
    assert there.result.data == "used"


@pytest.mark.parametrize(
    ("error", "hinted"),
    [
        (RuntimeError("Task <x> got Future <y> attached to a different loop"), True),
        (RuntimeError("Event loop is closed"), True),
        (RuntimeError("out of coffee"), False),
        (ValueError("Event loop is closed"), False),
    ],
)
def test_hint_is_for_errors_of_loops_only(bench: Any, error: Exception, hinted: bool) -> None:
    async def direct() -> None:
        raise error

    async def wrapped() -> None:
        raise OSError("request failed") from error

    for function in (direct, wrapped):
        assert (LOOP in bench.run(function).result.error.message) is hinted
