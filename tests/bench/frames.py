"""Row about reading the history: many turns in a DataFrame."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pandas as pd
from measure import Row

from nbagent.archive import frames
from nbagent.archive.store import Store
from nbagent.contracts.canonical import new_id, utc_now
from nbagent.contracts.chat import ChatResponse, Message, Usage
from nbagent.contracts.events import RunFinished, RunStarted
from nbagent.contracts.records import EngineTurn, RunRecord, TurnRequest, turn_id

_TURNS_A_RUN = 50
_USAGE = Usage(prompt_tokens=420, completion_tokens=24, total_tokens=444)


def rows(*, quick: bool) -> Iterator[Row]:
    """The one row."""
    n = 2_000 if quick else 50_000
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder))
        for _ in range(n // _TURNS_A_RUN):
            _put_run(store)
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


def _put_run(store: Store) -> None:
    """Write one run of many turns; a record given whole is one transaction."""
    run = new_id()
    now = utc_now()
    words = Message.of("user", "Take all steps.")
    answers = tuple(Message.of("assistant", f"Step {i} is taken.") for i in range(_TURNS_A_RUN))
    begun = RunRecord(id=run, session="bench", model="openai:gpt-5.4", started_at=now)
    begun = begun.model_copy(update={"messages": (words,)})
    turns = tuple(
        EngineTurn(
            id=turn_id(i + 1),
            run_id=run,
            index=i + 1,
            request=TurnRequest(n_messages=i + 1, n_new=1, model="gpt-5.4"),
            response=ChatResponse(message=answer, usage=_USAGE, model="gpt-5.4"),
            started_at=now + timedelta(seconds=i),
            duration_ms=812.5,
            model_ms=790.25,
            ttft_ms=120.0,
            cost_usd=0.0004,
        )
        for i, answer in enumerate(answers)
    )
    store.write(RunStarted(begun))
    ended = {"messages": (words, *answers), "turns": turns, "usage": _USAGE, "ended_at": now}
    over = {"phase": "WaitingUser", "stop_reason": "answered"}
    store.write(RunFinished(begun.model_copy(update={**ended, **over})))
