"""Rows about the lab: what a run of a batch costs, and scores joined to runs.

As a child, a batch of so many rows in one process, with a loop beside it that wants to be on time:

    python batches.py BASE_URL ROWS
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from measure import Row, child, least, timed
from sides import BareLoop, forget_peak, status_mb
from stories import Story

from nbagent import Agent
from nbagent.contracts.canonical import new_id, utc_now
from nbagent.contracts.records import Case, RunRecord, ScoreRecord
from nbagent.store import dataframes
from nbagent.store.batches import save_scores
from nbagent.store.writer import Store

_SCORES_A_RUN = 5
_TICK_S = 0.005
_AT_ONCE = 16


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    n = 50 if quick else 1_000
    found = child("batches.py", f"{server}/turns-1/v1", str(n))
    what = f"a batch of {n:,} rows, concurrency 16"
    note = f"{found['wall_s']:.1f} s in all"
    yield Row(f"{what}: a run of one turn, CPU", found["cpu_ms"], "ms", 5.0, note)
    note = f"bare {found['bare_ms']:.2f} ms"
    ratio = found["cpu_ms"] / found["bare_ms"]
    yield Row(f"{what}: a run of one turn, CPU against a bare loop", ratio, "×", 1.6, note)
    note = f"on {found['idle_mb']:.0f} MB idle"
    yield Row(f"{what}: added memory", found["added_mb"], "MB", 150.0, note)
    note = (
        f"{found['uncollected_ms']:.0f} without Python's garbage collections, of which one takes "
        f"{found['collection_ms']:.0f} here; beside a busy Python thread {found['control_ms']:.0f}"
    )
    yield Row(f"{what}: the caller's loop is late by at most", found["late_ms"], "ms", 25.0, note)
    yield _joined(2_000 if quick else 100_000, times=2 if quick else 5)


def _joined(n: int, times: int) -> Row:
    """All scores of a batch beside the columns of their runs."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        story = Story("openai:gpt-5.4")
        story.turn("It is 42.", ttft_ms=120.0)
        story.end()
        ids = [new_id() for _ in range(n // _SCORES_A_RUN)]
        store.add(*(_run(story.run, run, place) for place, run in enumerate(ids)))
        save_scores(store, [_score(run, i) for run in ids for i in range(_SCORES_A_RUN)])

        parts = {"scores": 0.0, "runs": 0.0, "merge": 0.0}

        def read(frame: str) -> Any:
            return dataframes.read_frame([store], frame, {"batch": "b"})

        def join() -> Any:
            clock = [time.process_time()]
            tables: list[Any] = []
            for frame in ("scores", "runs"):
                tables.append(read(frame))
                clock.append(time.process_time())
            made = tables[0].merge(tables[1], on="run_id", suffixes=("", "_of_run"))
            clock.append(time.process_time())
            for part, began, ended in zip(parts, clock, clock[1:], strict=False):
                parts[part] = (ended - began) * 1000
            return made

        found = join()
        assert len(found) == n, len(found)
        took = timed(join, times, time.process_time)
        store.close()
    name = f"{n:,} scores joined to {n // _SCORES_A_RUN:,} runs, CPU"
    note = f"{', '.join(f'{part} {ms:.0f}' for part, ms in parts.items())} at last"
    return least(name, took, "ms", 300.0, f"{found.shape[1]} columns; {note}")


def _run(run: RunRecord, run_id: str, place: int) -> RunRecord:
    labels = {"system": f"v{place % 3}", "model": f"openai:gpt-5.{place % 2}"}
    case = Case(batch="b", row_key=f"row-{place // 6}", variant=labels, attempt=1, sha=run_id)
    turns = tuple(turn.model_copy(update={"run_id": run_id}) for turn in run.turns)
    return run.model_copy(update={"id": run_id, "turns": turns, "case": case})


def _score(run_id: str, place: int) -> ScoreRecord:
    return ScoreRecord(
        run_id=run_id,
        scorer=f"scorer_{place}",
        version=1,
        value=place % 2 == 0,
        reason="The amount is the one that was expected.",
        by="function",
        at=utc_now(),
    )


# The child


async def _lateness(work: Callable[[], Awaitable[object]]) -> list[float]:
    """By how much a sleep beside some work was too long, in milliseconds."""
    found: list[float] = []

    async def tick() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_TICK_S)
            found.append((time.perf_counter() - began - _TICK_S) * 1000)

    ticking = asyncio.ensure_future(tick())
    await work()
    ticking.cancel()
    return found


async def _busy(seconds: float) -> None:
    """Keep a Python thread busy, to see how late that alone makes a loop."""
    end = time.perf_counter() + seconds

    def work() -> None:
        while time.perf_counter() < end:
            sum(range(1_000))

    await asyncio.to_thread(work)


async def _bare_ms(base_url: str, n: int) -> float:
    """CPU of a run of one turn, of as many at once, in a loop written by hand."""
    loop, waiting = BareLoop(base_url), iter(range(n))

    async def work() -> None:
        for _ in waiting:
            await loop.turns()

    await loop.turns()
    cpu_s = time.process_time()
    await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
    cpu_s = time.process_time() - cpu_s
    await loop.client.aclose()
    return cpu_s * 1000 / n


async def _measured(base_url: str, n: int) -> dict[str, float]:
    import pandas as pd

    agent = Agent("openai:gpt-5.4", base_url=base_url, tools="none")

    async def ask(name: str, count: int) -> None:
        table = pd.DataFrame({"n": range(count)})
        batch = await agent.amap(table, "Take step {{ n }}.", name=name, concurrency=_AT_ONCE)
        assert batch.progress.ok == count, batch

    await ask("warm", 32)
    gc.collect()
    idle_mb = status_mb("VmRSS")
    forget_peak()
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    late = await _lateness(lambda: ask("all", n))
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    added_mb = status_mb("VmHWM") - idle_mb
    bare_ms = await _bare_ms(base_url, n)
    collection_ms = timed(gc.collect, 3)
    gc.disable()
    uncollected = await _lateness(lambda: ask("again", n))
    control = await _lateness(lambda: _busy(wall_s))
    return {
        "cpu_ms": cpu_s * 1000 / n,
        "bare_ms": bare_ms,
        "wall_s": wall_s,
        "idle_mb": idle_mb,
        "added_mb": added_mb,
        "late_ms": max(late),
        "uncollected_ms": max(uncollected),
        "collection_ms": min(collection_ms),
        "control_ms": max(control),
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measured(sys.argv[1], int(sys.argv[2])))))
