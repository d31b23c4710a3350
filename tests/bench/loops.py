"""Rows about the loop: turns with and without the store, long runs, many runs at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

from measure import Row, child, compared, least, timed
from sides import PROMPT, BareLoop, KeepsNothing, agent, run_unkept


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    turns, runs, pairs = (6, 1, 1) if quick else (20, 3, 15)
    yield from _turns(server, turns, runs, pairs, stream=False, limits=(1.2, 1.8))
    yield from _turns(server, turns, runs, pairs, stream=True, limits=(1.0, 1.4))
    yield _long_runs(server, quick=quick)
    yield _one_turn(server, 3 if quick else 30)
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


def _one_turn(server: str, times: int) -> Row:
    made = agent(f"{server}/turns-1/v1")
    made.run(PROMPT)
    found = timed(lambda: made.run(PROMPT), times, time.process_time)
    return least("a run of one turn, CPU", found, "ms", 1.5)


def _many(server: str, *, quick: bool) -> Iterator[Row]:
    runs, more = (20, 20) if quick else (200, 360)
    ours, bare = (
        child("sides.py", side, f"{server}/turns-3/v1", str(runs)) for side in ("ours", "bare")
    )
    note = f"{ours['s']:.2f} s, bare {bare['s']:.2f}"
    name = f"{runs} runs of 3 turns at once, wall time"
    yield Row(name, ours["s"] / bare["s"], "×", 1.5, note)
    once = child("sides.py", "ours", f"{server}/turns-1/v1", str(more))
    yield Row(f"{more} runs of one turn at once, CPU of each", once["cpu_ms"], "ms", 5.0)
