"""A process that works on a batch and dies by SIGKILL at a named moment: `POINT FOLDER`.

The agent, the table and the names serve the test as well.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import nbagent
from nbagent import offline
from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.model import ChatRequest
from nbagent.lab import batch as batches
from nbagent.lab import scoring
from nbagent.session.stores import current_store

NAME = "b"
ROWS = 8
POINTS = (
    *("claimed", "asked", "in a tool", "before an end is stored", "after an end is stored"),
    *("in a scorer", "in a judge", "before scores are stored", "after scores are stored"),
    "before it is released",
)
IN_THE_MIDDLE = 4
"""It dies at the so manieth time that it comes to the moment."""


class _Death:
    """Kills this process at the moment of its name."""

    def __init__(self, point: str) -> None:
        self._point, self._n = point, 0

    def __call__(self, point: str) -> None:
        self._n += point == self._point
        often = 1 if point in ("claimed", "before it is released") else IN_THE_MIDDLE
        if self._n == often:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(10)


def note(folder: Path, kind: str, text: str) -> None:
    """Append a line in one write."""
    descriptor = os.open(folder / kind, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


TABLE: Any = pd.DataFrame({"n": range(ROWS)})
TEMPLATE = "{{ n }} please"


def agent_and_scorers(
    folder: Path, die: Callable[[str], None] = lambda point: None
) -> tuple[Any, list[Any]]:
    """An agent that calls a tool and answers each row; a function and a judge score it."""

    @nbagent.tool
    def look(n: int) -> str:
        """Look it up."""
        note(folder, "looked", str(n))
        die("in a tool")
        return f"{n} is fine"

    def answer(request: ChatRequest) -> Any:
        (n, *_), is_first = request.messages[0].text.split(), len(request.messages) == 1
        note(folder, "asked", f"{n} {len(request.messages)}")
        die("asked")
        return offline.call("look", n=int(n)) if is_first else f"fine {n}"

    def judged(request: ChatRequest) -> str:
        note(folder, "judged", "once")
        die("in a judge")
        return '{"reason": "r", "ok": true}'

    @nbagent.scorer
    def exact(row: Any, run: Any) -> bool:
        note(folder, "scored", str(row.n))
        die("in a scorer")
        return run.text == f"fine {row.n}"

    judge = nbagent.judge("Is it fine?", model=offline.script([judged] * 100, name="judge"))
    agent = nbagent.Agent(offline.script([answer] * 100, name="m"), tools=[look], quiet=True)
    return agent, [exact, judge]


def _die_around(
    module: Any, name: str, before: str, after: str, die: Callable[[str], None]
) -> None:
    work = getattr(module, name)

    def around(*args: Any, **options: Any) -> Any:
        die(before)
        result = work(*args, **options)
        die(after)
        return result

    setattr(module, name, around)


def main() -> None:
    point, folder = sys.argv[1], Path(sys.argv[2])
    die = _Death(point)
    _die_around(batches, "claim_batch", "", "claimed", die)
    _die_around(batches, "release_batch", "before it is released", "", die)
    _die_around(scoring, "save_scores", "before scores are stored", "after scores are stored", die)
    store: Any = current_store()
    commit = store.commit

    async def dying_commit(event: Event, *rest: Any) -> None:
        is_end = isinstance(event, RunFinished) and event.run.case is not None
        die("before an end is stored" if is_end else "")
        await commit(event, *rest)
        die("after an end is stored" if is_end else "")

    store.commit = dying_commit
    agent, scorers = agent_and_scorers(folder, die)
    agent.map(TABLE, TEMPLATE, name=NAME, concurrency=2, score=scorers).wait()
