"""Row about reading the history: many turns in a DataFrame."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from measure import Row
from stories import Story

from nbagent.archive import frames
from nbagent.archive.store import Store
from nbagent.contracts.canonical import new_id
from nbagent.contracts.events import RunFinished, RunStarted

_TURNS_A_RUN = 50


def rows(*, quick: bool) -> Iterator[Row]:
    """The one row."""
    n = 2_000 if quick else 50_000
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        story = Story("openai:gpt-5.4")
        for i in range(_TURNS_A_RUN):
            story.turn(f"Step {i} is taken.", ttft_ms=120.0)
        story.end()
        for _ in range(n // _TURNS_A_RUN):
            _put_run(store, story)
        # Imported and warm: the goal is about reading, pandas' own import is not in it.
        frame: pd.DataFrame = frames.turns(store, limit=10)
        found: list[float] = []
        for _ in range(2 if quick else 5):
            began = time.process_time()
            frame = frames.turns(store)
            found.append((time.process_time() - began) * 1000)
            assert len(frame) == n
        store.close()
    took = min(found)
    yield Row(
        f"{n:,} turns in a frame, without texts, CPU",
        "≤ 300 ms",
        f"{took:.0f} ms, median {statistics.median(found):.0f}",
        took,
        None if quick else 300.0,
        note=f"{frame.shape[1]} columns",
    )


def _put_run(store: Store, story: Story) -> None:
    """Write one run of many turns; a record given whole is one transaction."""
    run = new_id()
    turns = tuple(turn.model_copy(update={"run_id": run}) for turn in story.run.turns)
    record = story.run.model_copy(update={"id": run, "turns": turns})
    store.write(RunStarted(record.model_copy(update={"turns": ()})))
    store.write(RunFinished(record))
