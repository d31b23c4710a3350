"""Rows about reading the history: many turns, tool runs and messages in a DataFrame."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from measure import Row, least, timed
from stories import Story, tool_run

from nbagent.contracts.canonical import new_id
from nbagent.store import dataframes
from nbagent.store.writer import Store

_TURNS_A_RUN = 50


def rows(server: str, *, quick: bool) -> Iterator[Row]:
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

        def one(what: str, frame: str, length: int, limit_ms: float, **filters: Any) -> Row:
            read = partial(dataframes.read_frame, [store], frame, filters)
            # Imported and warm: the goal is about reading, pandas' own import is not in it.
            found = read()
            assert len(found) == length, len(found)
            took = timed(read, 2 if quick else 5, time.process_time)
            name = f"{length:,} {what} in a frame, CPU"
            return least(name, took, "ms", limit_ms, f"{found.shape[1]} columns")

        # `limit`: as many messages as turns; there are twice as many.
        yield one("turns", "turns", n, 450.0)
        yield one("tool runs", "tool_runs", n, 450.0)
        yield one("messages", "messages", n, 450.0, limit=n)
        own = 2 * _TURNS_A_RUN + 2
        yield one(f"messages of one run among {2 * n:,}", "messages", own, 30.0, run=ids[0])
        store.close()
