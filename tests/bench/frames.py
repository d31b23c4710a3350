"""Rows about reading the history: many turns, tool runs and messages in a DataFrame."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measure import Row
from stories import Story, tool_run

from nbagent.archive import frames
from nbagent.archive.store import Store
from nbagent.contracts.canonical import new_id

_TURNS_A_RUN = 50


def rows(*, quick: bool) -> Iterator[Row]:
    """One row for each frame, with all of its columns, and one for the messages of one run."""
    n = 2_000 if quick else 50_000
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        story = Story("openai:gpt-5.4")
        for i in range(_TURNS_A_RUN):
            call = tool_run(f"call_{i}", "population", {"city": f"City {i}"}, "x" * 300)
            story.turn(f"Step {i} is taken.", call, ttft_ms=120.0)
        story.end()
        ids = [new_id() for _ in range(n // _TURNS_A_RUN)]
        for run in ids:
            turns = tuple(turn.model_copy(update={"run_id": run}) for turn in story.run.turns)
            store.add(story.run.model_copy(update={"id": run, "turns": turns}))

        def read(name: str, **filters: Any) -> Callable[[], Any]:
            return lambda: frames.read([store], name, filters)

        # `limit`: as many messages as turns; there are twice as many.
        yield _row("turns", n, read("turns"), 500.0, quick=quick)
        yield _row("tool runs", n, read("tool_runs"), 700.0, quick=quick)
        yield _row("messages", n, read("messages", limit=n), 900.0, quick=quick)
        own = 2 * _TURNS_A_RUN + 2
        name = f"messages of one run among {2 * n:,}"
        yield _row(name, own, read("messages", run=ids[0]), 30.0, quick=quick)
        store.close()


def _row(name: str, n: int, read: Callable[[], Any], goal_ms: float, *, quick: bool) -> Row:
    # Imported and warm: the goal is about reading, pandas' own import is not in it.
    frame = read()
    assert len(frame) == n, len(frame)
    found: list[float] = []
    for _ in range(2 if quick else 5):
        began = time.process_time()
        read()
        found.append((time.process_time() - began) * 1000)
    took = min(found)
    return Row(
        f"{n:,} {name} in a frame, CPU",
        f"≤ {goal_ms:.0f} ms",
        f"{took:.0f} ms, median {statistics.median(found):.0f}",
        took,
        None if quick else goal_ms,
        note=f"{frame.shape[1]} columns",
    )
