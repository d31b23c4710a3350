"""Rows about the loop: turns with and without the store, long runs, tools side by side."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial

from bare import BareLoop, ThreadedBareLoop
from measure import Row, child, compare, log_of
from ours import PROMPT, KeepsNothing, agent, run_unkept, step

from nbagent import Agent, tool


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    turns, runs, pairs = (6, 1, 1) if quick else (20, 3, 15)
    for stream in (False, True):
        yield from _turns(server, turns, runs, pairs, stream=stream)
    yield _long_runs(server, quick=quick)
    yield _threaded(server, 2 if quick else 7)
    yield _many(server, 20 if quick else 200)


def _turns(server: str, turns: int, runs: int, pairs: int, *, stream: bool) -> Iterator[Row]:
    url = f"{server}/turns-{turns}/v1"
    what = f"{turns}-turn loop, {'streamed' if stream else 'whole'} answers"
    store = KeepsNothing.memory()
    kept = agent(url, stream=stream)
    with asyncio.Runner() as runner:
        loop = BareLoop(url, step)

        def bare() -> None:
            for _ in range(runs):
                runner.run(loop.turns(stream=stream))

        def unkept() -> None:
            for _ in range(runs):
                run_unkept(url, store, stream=stream)

        def through_agent() -> None:
            for _ in range(runs):
                kept.run(PROMPT)

        for name, ours, limit in (
            ("without the store", unkept, 1.0),
            ("with the store", through_agent, 1.5),
        ):
            found = compare(bare, ours, pairs=pairs)
            each = runs * turns / 1e6
            yield Row(
                f"{what}, {name}",
                f"≤ {limit} × bare",
                f"{found.ours_s / each:.0f} µs a turn (bare {found.bare_s / each:.0f})",
                found.ratio,
                limit,
                found.ratio,
                f"half of the ratios in {found.spread}",
            )
        runner.run(loop.client.aclose())


def _long_runs(server: str, *, quick: bool) -> Row:
    short, long, pairs = (4, 8, 1) if quick else (20, 50, 12)
    times = 100 // long if not quick else 1

    def work(turns: int) -> None:
        made = agent(f"{server}/turns-{turns}/v1", stream=False, max_turns=turns)
        for _ in range(times * long // turns):
            run = made.run(PROMPT)
            assert len(run.turns) == turns, run.error

    found = compare(partial(work, short), partial(work, long), pairs=pairs)
    ratio = found.ratio
    return Row(
        f"{long}-turn loop, a turn, against a {short}-turn one",
        "≤ 1.05 ×",
        f"{found.ours_s / (times * long) * 1e6:.0f} µs a turn",
        ratio,
        1.05,
        ratio,
        f"with the store; half of the ratios in {found.spread}",
    )


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

    def gaps() -> Iterator[float]:
        log = log_of(server)
        came, answered = log["came"], log["answered"]
        for i in range(1, len(came), 2):
            yield (came[i] - answered[i - 1]) * 1000

    log_of(server)
    for _ in range(times + 1):
        napping.run(PROMPT)
    ours = list(gaps())[1:]
    with asyncio.Runner() as runner:
        loop = ThreadedBareLoop(url, nap)
        for _ in range(times + 1):
            runner.run(loop.turns())
        bare = list(gaps())[1:]
        runner.run(loop.client.aclose())
    ours_ms, bare_ms = min(ours), min(bare)
    return Row(
        "three threaded 50 ms tools at once",
        "≤ 55 ms",
        f"{ours_ms:.1f} ms (bare {bare_ms:.1f}), median {statistics.median(ours):.1f}",
        ours_ms,
        55.0,
        ours_ms / bare_ms,
        f"from the calls to the next request, by the server's clock; {_sync_words()}",
    )


def _sync_words() -> str:
    """How long this disk takes to keep something: two or three times that is in the figure."""
    with tempfile.TemporaryFile() as file:
        found: list[float] = []
        for _ in range(9):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            found.append((time.perf_counter() - began) * 1000)
    return f"one fsync takes {statistics.median(found):.1f} ms here"


def _many(server: str, runs: int) -> Row:
    ours = child("many.py", "ours", f"{server}/turns-3/v1", str(runs))
    bare = child("many.py", "bare", f"{server}/turns-3/v1", str(runs))
    added = ours["added_mb"]
    return Row(
        f"{runs} runs of 3 turns at once, added memory",
        "≤ 25 MB",
        f"{added:.1f} MB (bare {bare['added_mb']:.1f})",
        added,
        25.0,
        added / max(bare["added_mb"], 0.1),
        f"on {ours['idle_mb']:.0f} MB idle; {ours['s']:.2f} s, bare {bare['s']:.2f} s",
    )
