"""Where a run's work happens, and how it comes back. Interrupts have their own file in faults/."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import ToolError, UsageError
from nbagent.contracts.events import Notice
from nbagent.contracts.ports import Interrupted, Where
from nbagent.runtime import (
    Courier,
    EventChannel,
    RunTask,
    await_here,
    engine_loop,
    follow,
    use_nested_runner,
    wait,
)


class Bench:
    """One run under test: a courier, a token, and a body that runs on the engine thread."""

    def __init__(self) -> None:
        self.courier = Courier()
        self.cancel = CancelToken()

    def start(self, body: Callable[[Bench], Awaitable[Any]]) -> RunTask[Any]:
        async def run() -> Any:
            return await body(self)

        return RunTask[Any].start(run, self.courier, self.cancel)

    async def call(
        self, work: Callable[[], Any], where: Where = "waiting", interruptible: bool = True
    ) -> tuple[Any, str]:
        return await self.courier.run_sync(
            work, where=where, interruptible=interruptible, cancel=self.cancel, label="work"
        )

    async def call_async(self, work: Callable[[], Awaitable[Any]]) -> tuple[Any, str]:
        return await self.courier.run_async(work, cancel=self.cancel)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_task_runs_on_the_engine_thread_and_returns_its_result(bench: Bench) -> None:
    async def body(_: Bench) -> str:
        assert asyncio.get_running_loop() is engine_loop()
        return threading.current_thread().name

    assert wait(bench.start(body)) == "nbagent-engine"


def test_synchronous_jobs_run_in_the_waiting_thread_in_order(bench: Bench) -> None:
    seen: list[int] = []

    async def body(bench: Bench) -> list[Any]:
        calls = [bench.call(lambda n=n: (seen.append(n), threading.get_ident())) for n in range(5)]
        return await asyncio.gather(*calls)

    results = wait(bench.start(body))
    assert seen == [0, 1, 2, 3, 4]
    assert {value[1] for value, _ in results} == {threading.get_ident()}
    assert {place for _, place in results} == {"main thread"}


def test_place_says_waiting_thread_when_another_thread_waits(bench: Bench) -> None:
    places: list[Any] = []
    task = bench.start(lambda b: b.call(threading.get_ident))
    thread = threading.Thread(target=lambda: places.append((wait(task), threading.get_ident())))
    thread.start()
    thread.join(10)
    (ident, place), waiter = places[0]
    assert (ident, place) == (waiter, "waiting thread")


def test_worker_runs_beside_the_waiting_thread(bench: Bench) -> None:
    meeting = threading.Barrier(2, timeout=10)

    async def body(bench: Bench) -> list[Any]:
        calls = [bench.call(meeting.wait, where) for where in ("worker", "waiting")]
        return await asyncio.gather(*calls)

    places = [place for _, place in wait(bench.start(body))]
    assert places == ["worker thread", "main thread"]


@pytest.mark.parametrize("where", ["waiting", "worker"])
@pytest.mark.parametrize(
    "error", [ZeroDivisionError("x"), SystemExit(3), StopIteration(1)], ids=repr
)
def test_what_a_job_raises_reaches_the_run_and_nobody_else(
    bench: Bench, where: Where, error: BaseException
) -> None:
    def work() -> None:
        raise error

    async def body(bench: Bench) -> BaseException:
        with pytest.raises(Exception) as caught:
            await bench.call(work, where)
        return caught.value

    caught = wait(bench.start(body))
    assert caught is error or caught.__cause__ is error
    assert wait(Bench().start(lambda b: b.call(lambda: 1)))[0] == 1


def test_wait_raises_what_the_task_raised_and_the_engine_lives_on(bench: Bench) -> None:
    async def leave(_: Bench) -> None:
        sys.exit(4)

    loop = engine_loop()
    with pytest.raises(SystemExit):
        wait(bench.start(leave))
    assert engine_loop() is loop


def test_a_task_that_exits_on_the_engine_does_not_end_the_thread() -> None:
    async def leave() -> None:
        sys.exit(4)

    loop = engine_loop()
    failing = asyncio.run_coroutine_threadsafe(leave(), loop)
    with pytest.raises(SystemExit):
        failing.result(10)
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, "alive"), loop).result(10) == "alive"


def test_jobs_and_tasks_see_the_context_of_the_cell_that_started_the_run(bench: Bench) -> None:
    cell = contextvars.ContextVar("cell", default="none")
    cell.set("first")

    async def body(bench: Bench) -> list[str]:
        places = ["waiting", "worker"]
        jobs = [(await bench.call(cell.get, where))[0] for where in places]  # pyright: ignore[reportArgumentType]
        return [cell.get(), *jobs]

    task = bench.start(body)
    cell.set("second")
    assert wait(task) == ["first"] * 3


def test_wait_with_timeout_leaves_the_run_at_work(bench: Bench) -> None:
    go = asyncio.Event()
    task = bench.start(lambda b: go.wait())
    with pytest.raises(TimeoutError):
        wait(task, timeout=0.05)
    engine_loop().call_soon_threadsafe(go.set)
    assert wait(task) is True


def test_pump_is_polled_while_waiting_and_between_jobs(bench: Bench) -> None:
    class Pump:
        polls = 0

        def __enter__(self) -> None:
            self.entered = True

        def __exit__(self, *exc: object) -> None:
            self.entered = False

        def poll(self) -> None:
            self.polls += 1

    async def body(bench: Bench) -> int:
        before = (await bench.call(lambda: pump.polls))[0]
        return (await bench.call(lambda: pump.polls))[0] - before

    pump = Pump()
    assert wait(bench.start(body), pump=pump) >= 1
    assert not pump.entered
    polls = pump.polls
    wait(Bench().start(lambda b: asyncio.sleep(0.3)), pump=pump)
    assert pump.polls - polls >= 3


def test_tool_may_run_an_agent_of_its_own(bench: Bench) -> None:
    def tool() -> str:
        return wait(Bench().start(lambda b: b.call(lambda: "inner")))[0]

    assert wait(bench.start(lambda b: b.call(tool)))[0] == "inner"


def test_waiting_for_the_own_run_is_refused(bench: Bench) -> None:
    def tool() -> None:
        with pytest.raises(UsageError, match="belongs to"):
            wait(task)

    task = bench.start(lambda b: b.call(tool))
    wait(task)


def test_waiting_on_the_engine_thread_is_refused(bench: Bench) -> None:
    async def body(_: Bench) -> None:
        with pytest.raises(UsageError, match="arun"):
            wait(Bench().start(lambda b: asyncio.sleep(0)))

    wait(bench.start(body))


def test_async_job_runs_on_a_loop_that_the_thread_keeps(bench: Bench) -> None:
    async def loop_here() -> tuple[asyncio.AbstractEventLoop, int]:
        await asyncio.sleep(0)
        return asyncio.get_running_loop(), threading.get_ident()

    async def body(bench: Bench) -> list[Any]:
        return [await bench.call_async(loop_here) for _ in range(2)]

    first, second = wait(bench.start(body))
    assert first == second
    assert first[0][0] is not engine_loop()
    assert (first[0][1], first[1]) == (threading.get_ident(), "notebook loop")


def test_async_job_under_a_running_loop_needs_the_nested_runner(bench: Bench) -> None:
    async def cell(task: RunTask[Any]) -> Any:
        return wait(task)

    def job() -> RunTask[Any]:
        bench = Bench()
        return bench.start(lambda b: b.call_async(lambda: asyncio.sleep(0, "nested")))

    with pytest.raises(ToolError, match="arun"):
        asyncio.run(cell(job()))

    def in_a_thread(work: Any) -> Any:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(asyncio.run(work)))
        thread.start()
        thread.join(10)
        return results[0]

    use_nested_runner(in_a_thread)
    try:
        assert asyncio.run(cell(job())) == ("nested", "notebook loop")
    finally:
        use_nested_runner(None)


def test_await_here_runs_jobs_on_the_callers_loop(bench: Bench) -> None:
    async def whose() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def body(bench: Bench) -> list[Any]:
        return [await bench.call(threading.get_ident), await bench.call_async(whose)]

    async def cell() -> None:
        (ident, place), (loop, where) = await await_here(bench.start(body))
        assert (ident, place) == (threading.get_ident(), "main thread")
        assert loop is asyncio.get_running_loop()
        assert where == "notebook loop"

    asyncio.run(cell())


def test_cancelled_await_stops_the_run_and_waits_for_its_end(bench: Bench) -> None:
    ended: list[str] = []

    async def body(bench: Bench) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        bench.cancel.on_set(lambda: loop.call_soon_threadsafe(stopped.set))
        await stopped.wait()
        await asyncio.sleep(0.05)
        ended.append("clean")

    async def cell() -> None:
        waiting = asyncio.ensure_future(await_here(bench.start(body)))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cell())
    assert ended == ["clean"]


def test_agent_awaited_in_an_async_tool_leaves_jobs_to_the_outer_thread(bench: Bench) -> None:
    async def body(_: Bench) -> Any:
        return await await_here(Bench().start(lambda b: b.call(threading.get_ident)))

    assert wait(bench.start(body)) == (threading.get_ident(), "main thread")


def test_idle_job_is_told_of_and_drained_by_whoever_comes(bench: Bench) -> None:
    told, stranded = threading.Event(), threading.Event()
    labels: list[str] = []
    bench.courier.on_idle_job = told.set
    bench.courier.on_stranded = lambda label: (labels.append(label), stranded.set())[0]
    task = bench.start(lambda b: b.call(threading.get_ident))
    assert told.wait(10)
    assert stranded.wait(10)
    assert not task.done
    bench.courier.drain()
    assert wait(task) == (threading.get_ident(), "main thread")
    assert labels == ["work"]


def test_a_job_that_holds_an_idle_thread_up_is_told_of_once_and_those_behind_it_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbagent.runtime.courier.STRANDED_S", 0.1)
    slow, over, posted = threading.Event(), threading.Event(), threading.Semaphore(0)
    stranded: list[str] = []
    held: list[str] = []
    bench.courier.on_stranded = stranded.append
    bench.courier.on_idle_job = posted.release
    bench.courier.on_slow = lambda label: (held.append(label), slow.set())[0]
    first = bench.start(lambda b: b.call(lambda: over.wait(20)))
    assert posted.acquire(timeout=10)
    drain = threading.Thread(target=bench.courier.drain)
    drain.start()
    second = bench.start(lambda b: b.call(lambda: drain is threading.current_thread()))
    assert slow.wait(10)
    time.sleep(0.5)
    over.set()
    drain.join(10)
    assert [wait(first)[0], wait(second)[0]] == [True, True]
    assert (held, stranded) == (["work"], [])


def test_second_waiter_takes_over_when_the_first_leaves(bench: Bench) -> None:
    go = asyncio.Event()

    async def body(bench: Bench) -> Any:
        await go.wait()
        return await bench.call(threading.get_ident)

    task = bench.start(body)
    results: list[Any] = []

    def leave_early() -> None:
        with pytest.raises(TimeoutError):
            wait(task, timeout=0.2)

    first = threading.Thread(target=leave_early)
    second = threading.Thread(target=lambda: results.append((threading.get_ident(), wait(task))))
    first.start()
    time.sleep(0.05)
    second.start()
    first.join(10)
    engine_loop().call_soon_threadsafe(go.set)
    second.join(10)
    assert results[0][0] == results[0][1][0]


def test_stopped_run_starts_no_job(bench: Bench) -> None:
    async def body(bench: Bench) -> list[str]:
        queued = asyncio.ensure_future(bench.call(lambda: "never"))
        await asyncio.sleep(0)
        bench.cancel.set()
        after = await asyncio.gather(
            queued, bench.call(lambda: "never", "worker"), return_exceptions=True
        )
        return [type(error).__name__ for error in after]

    task = bench.start(body)
    while not task.done:
        time.sleep(0.01)
    assert wait(task) == [Interrupted.__name__] * 2


def test_channel_wakes_its_consumer_once_for_many_events() -> None:
    channel = EventChannel()
    events = [Notice("info", str(n)) for n in range(1000)]

    def feed() -> None:
        for event in events:
            channel.put(event)
        channel.close()

    async def consume() -> list[list[Any]]:
        engine_loop().call_soon_threadsafe(feed)
        batches: list[list[Any]] = []
        while batch := await channel.next_batch():
            batches.append(batch)
        return batches

    batches = asyncio.run(consume())
    assert [event for batch in batches for event in batch] == events
    assert len(batches) < 200


def test_channel_can_be_read_without_a_loop() -> None:
    channel = EventChannel()
    events = [Notice("info", str(n)) for n in range(10)]

    async def feed() -> None:
        for event in events:
            channel.put(event)
            await asyncio.sleep(0.001)
        channel.close()

    asyncio.run_coroutine_threadsafe(feed(), engine_loop())
    assert list(channel) == events


def streaming(bench: Bench, channel: EventChannel) -> RunTask[Any]:
    async def body(bench: Bench) -> str:
        try:
            for n in range(10_000):
                channel.put(Notice("info", str(n)))
                await bench.call(lambda: None)
                if bench.cancel.is_set:
                    return "stopped"
            return "ran out"
        except Interrupted:
            return "stopped"
        finally:
            channel.close()

    return bench.start(body)


def test_leaving_the_events_stops_the_run(bench: Bench) -> None:
    channel = EventChannel()

    async def cell() -> RunTask[Any]:
        task = streaming(bench, channel)
        events = follow(channel, await_here(task))
        async for event in events:
            if isinstance(event, Notice) and event.text == "3":
                break
        await events.aclose()
        assert task.done
        return task

    assert asyncio.run(cell()).result() == "stopped"


def test_fork_gets_an_engine_of_its_own(bench: Bench) -> None:
    code = """
import asyncio, os, sys
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.errors import EngineError
from nbagent.runtime import Courier, RunTask, wait
def run(body):
    return RunTask.start(body, Courier(), CancelToken())
async def hello(): return os.getpid()
async def long(): await asyncio.sleep(0.5); return "parent"
left = run(long)
assert wait(run(hello)) == os.getpid()
child = os.fork()
if child == 0:
    try:
        wait(left)
    except EngineError as error:
        assert error.code == "ENGINE_INTERRUPTED"
        sys.exit(7 if wait(run(hello)) == os.getpid() else 8)
    sys.exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(wait(left))
"""
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("parent\n", "", 0)


def test_process_ends_quietly_and_stops_what_is_at_work() -> None:
    code = """
import asyncio
from nbagent.contracts.cancel import CancelToken
from nbagent.runtime import Courier, RunTask, wait
cancel, courier = CancelToken(), Courier()
async def obedient():
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    cancel.on_set(lambda: loop.call_soon_threadsafe(stopped.set))
    await stopped.wait()
    print("stopped cleanly", flush=True)
async def stubborn():
    while True:
        try: await asyncio.sleep(60)
        finally: pass
async def broken():
    asyncio.ensure_future(crash())
    return (await courier.run_async(lambda: asyncio.sleep(0, "kept"), cancel=CancelToken()))[0]
async def crash(): raise ValueError("nobody looks")
print(wait(RunTask.start(broken, courier, CancelToken())))
RunTask.start(obedient, Courier(), cancel)
RunTask.start(stubborn, Courier(), CancelToken())
import time; time.sleep(0.1)
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("kept\nstopped cleanly\n", "", 0)
    assert time.monotonic() - started < 20
