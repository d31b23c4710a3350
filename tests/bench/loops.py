"""Rows about the loop: turns with and without the store, long runs, tools and runs side by side."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial

from measure import Row, child, compared, least, log_of, timed
from sides import PROMPT, BareLoop, KeepsNothing, ThreadedBareLoop, agent, run_unkept

from nbagent import Agent, tool


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    turns, runs, pairs = (6, 1, 1) if quick else (20, 3, 15)
    yield from _turns(server, turns, runs, pairs, stream=False, limits=(1.2, 1.8))
    yield from _turns(server, turns, runs, pairs, stream=True, limits=(1.0, 1.4))
    yield _long_runs(server, quick=quick)
    yield _threaded(server, 2 if quick else 7)
    yield from _many(server, quick=quick)


def _turns(
    server: str, turns: int, runs: int, pairs: int, *, stream: bool, limits: tuple[float, float]
) -> Iterator[Row]:
    url = f"{server}/turns-{turns}/v1"
    store = KeepsNothing.memory()
    kept = agent(url, stream=stream)
    with asyncio.Runner() as runner:
        loop = BareLoop(url)

        def bare() -> None:
            for _ in range(runs):
                runner.run(loop.turns(stream=stream))

        def unkept() -> None:
            for _ in range(runs):
                run_unkept(url, store, stream=stream)

        def through_agent() -> None:
            for _ in range(runs):
                kept.run(PROMPT)

        what = f"{turns}-turn loop, {'streamed' if stream else 'whole'} answers"
        each = runs * turns, "turn"
        for name, ours, limit in zip(
            ("without the store", "with the store"), (unkept, through_agent), limits, strict=True
        ):
            yield compared(f"{what}, {name}", bare, ours, pairs=pairs, limit=limit, each=each)
        runner.run(loop.client.aclose())


def _long_runs(server: str, *, quick: bool) -> Row:
    short, long, pairs = (4, 8, 1) if quick else (20, 50, 12)
    turns = long if quick else 100

    def work(length: int) -> None:
        made = agent(f"{server}/turns-{length}/v1", stream=False, max_turns=length)
        for _ in range(turns // length):
            run = made.run(PROMPT)
            assert len(run.turns) == length, run.error

    name = f"{long}-turn loop with the store, a turn, against a {short}-turn one"
    both = partial(work, short), partial(work, long)
    return compared(name, *both, pairs=pairs, limit=1.05, each=(turns, "turn"))


def nap(n: int) -> int:
    """Sleep 50 ms.

    Args:
        n: Its number.
    """
    time.sleep(0.05)
    return n


def _threaded(server: str, times: int) -> Row:
    url = f"{server}/calls-3/v1"
    napping = Agent(
        "openai:gpt-5.4",
        base_url=url,
        tools=[tool(threaded=True, name="step")(nap)],
        stream=False,
    )

    def gaps() -> list[float]:
        log = log_of(server)
        pairs = zip(log["came"][3::2], log["answered"][2::2], strict=True)  # the first warms up
        return [(came - answered) * 1000 for came, answered in pairs]

    log_of(server)
    for _ in range(times + 1):
        napping.run(PROMPT)
    ours = gaps()
    with asyncio.Runner() as runner:
        loop = ThreadedBareLoop(url, nap)
        for _ in range(times + 1):
            runner.run(loop.turns())
        runner.run(loop.client.aclose())
    how = f"from the calls to the next request, by the server's clock; bare {min(gaps()):.1f}"
    note = f"{how}; one fsync takes {_sync_ms():.1f} ms here"
    return least("three threaded 50 ms tools at once", ours, "ms", 55.0, note)


def _sync_ms() -> float:
    """How long this disk takes to keep something: two or three times that is in the figure."""
    with tempfile.TemporaryFile() as file:

        def keep() -> None:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())

        return sorted(timed(keep, 9))[4]


def _side_by_side(server: str, runs: int, pairs: int) -> Row:
    """Many runs of three turns in one loop; ours share transactions."""
    url = f"{server}/turns-3/v1"
    made = agent(url, stream=False)
    with asyncio.Runner() as runner:
        loop = BareLoop(url)

        async def all_bare() -> None:
            await asyncio.gather(*(loop.turns() for _ in range(runs)))

        async def all_ours() -> None:
            for run in await asyncio.gather(*(made.arun(PROMPT) for _ in range(runs))):
                assert run.ok, run.error

        return compared(
            f"{runs} runs of 3 turns at once, with the store",
            lambda: runner.run(all_bare()),
            lambda: runner.run(all_ours()),
            pairs=pairs,
            limit=1.6,
            each=(runs * 3, "turn"),
        )


def _many(server: str, *, quick: bool) -> Iterator[Row]:
    runs = 20 if quick else 200
    yield _side_by_side(server, runs, 1 if quick else 7)
    found = child("sides.py", f"{server}/turns-3/v1", str(runs))
    note = f"on {found['idle_mb']:.0f} MB idle"
    yield Row(f"{runs} runs of 3 turns at once, added memory", found["added_mb"], "MB", 25.0, note)
