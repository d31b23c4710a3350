"""Rows about a store of a million runs: every call that a person waits for. Wall time, warm.

As a child, one call on the store in a folder:

    python scale.py FOLDER CALL
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from big_store import BATCH_OF_500, LAST_START, cached_store, session_name
from measure import Row, child, least
from run_patterns import FREQUENT_WORD, RARE_WORD
from stories import Story, tool_run

import nbagent
from nbagent.contracts.canonical import new_id
from nbagent.contracts.events import TurnFinished
from nbagent.contracts.records import RunRecord
from nbagent.session.stores import current_store, find_run
from nbagent.store.connections import Connection
from nbagent.store.database import Database, Work
from nbagent.store.migrations import upgrade
from nbagent.store.writer import Store

_LIMIT_MS, _SEARCH_LIMIT_MS = 50.0, 100.0
_TIMES = 5
_LONGEST_S = 60.0
"""A call that lasts longer is cut off; one that is not repeated five times in it is measured less
often."""
_STARTING_S = 20.0
"""For the imports of a child, and for finding the runs that its call is about."""
_OLD, _SMALL = session_name(60), session_name(57)
"""A session that ended more than a year ago, and one with some 150 runs."""

Call = Callable[[], object]


def rows(server: str, *, quick: bool, folder: Path | None = None) -> Iterator[Row]:
    """One row for each call, on the store in the folder, else on one that is made once."""
    folder = folder or cached_store(20_000 if quick else 1_000_000)
    for name in (*_CALLS, *_MEASURED):
        limit_ms = _SEARCH_LIMIT_MS if name in _SEARCHES else _LIMIT_MS
        try:
            found = child("scale.py", str(folder), name, timeout_s=_STARTING_S + _LONGEST_S)
        except TimeoutError:
            yield Row(name, _LONGEST_S * 1000, "ms", limit_ms, "cut off")
        else:
            times = "" if len(found) >= _TIMES else f"{len(found)} times"
            yield least(name, found, "ms", limit_ms, times)


# Calls that change nothing


def _since() -> object:
    return nbagent.runs(since=LAST_START - timedelta(days=1), limit=50)


def _id(
    store: Store, condition: str = "n > (SELECT max(n) / 2 FROM runs) AND batch IS NULL"
) -> str:
    """Id of the first run that meets a condition."""
    with store.reading() as c:
        sql = f"SELECT run_id FROM runs WHERE {condition} ORDER BY n LIMIT 1"
        return c.execute(sql).fetchone()[0]


def _end_of_chain(store: Store) -> str:
    """Id of a run that continues another one, which continues a third one, and so on."""
    parent = "runs.parent_id"
    for i in range(3):
        parent = f"(SELECT r{i}.parent_id FROM runs r{i} WHERE r{i}.run_id = {parent})"
    return _id(store, f"kind = 'continue' AND {parent} IS NOT NULL")


def _name(store: Store) -> str:
    with store.reading() as c:
        sql = "SELECT name FROM runs WHERE name IS NOT NULL ORDER BY n LIMIT 1"
        return c.execute(sql).fetchone()[0]


def _call(call: Callable[..., object], *arguments: Any, **options: Any) -> Callable[[Store], Call]:
    """A call that needs nothing of the store beforehand."""
    return lambda store: partial(call, *arguments, **options)


def _with_id(call: Callable[[Store, str], object], **options: Any) -> Callable[[Store], Call]:
    """A call about a run in the middle of the store."""
    return lambda store: partial(call, store, _id(store), **options)


_SEARCHES: dict[str, Callable[[Store], Call]] = {
    "history(a rare word)": _call(nbagent.history, RARE_WORD),
    "history(a frequent word)": _call(nbagent.history, FREQUENT_WORD),
    "history(a word that is nowhere)": _call(nbagent.history, "zzyzx road"),
    "history('ab')": _call(nbagent.history, "ab"),
    "history(a rare word, batch=…)": _call(nbagent.history, RARE_WORD, batch="batch-20"),
}
_CALLS: dict[str, Callable[[Store], Call]] = {
    "runs(limit=50)": _call(nbagent.runs, limit=50),
    "runs(session=…, limit=50)": _call(nbagent.runs, session="default", limit=50),
    "runs(session=an old one, limit=50)": _call(nbagent.runs, session=_OLD, limit=50),
    "runs(model=…, limit=50)": _call(nbagent.runs, model="openai:o4", limit=50),
    "runs(phase='Failed', limit=50)": _call(nbagent.runs, phase="Failed", limit=50),
    "runs(batch=…), 500 runs": _call(nbagent.runs, batch=BATCH_OF_500),
    "runs(since=a day ago, limit=50)": lambda store: _since,
    "turns(limit=50)": _call(nbagent.turns, limit=50),
    "turns(session=an old one, limit=50)": _call(nbagent.turns, session=_OLD, limit=50),
    "tool_runs(limit=50)": _call(nbagent.tool_runs, limit=50),
    "messages(limit=50)": _call(nbagent.messages, limit=50),
    "messages(run=…)": _with_id(lambda store, run: nbagent.messages(run=run)),
    "messages(run=…, whole=True), a chain": lambda store: partial(
        nbagent.messages, run=_end_of_chain(store), whole=True
    ),
    "transitions(limit=50)": _call(nbagent.transitions, limit=50),
    "scores(batch=…)": _call(nbagent.scores, batch=BATCH_OF_500),
    "prompts(limit=5)": _call(nbagent.prompts, limit=5),
    "prompts(limit=50)": _call(nbagent.prompts, limit=50),
    "history(limit=50)": _call(nbagent.history, limit=50),
    "history(session=an old one)": _call(nbagent.history, session=_OLD),
    "history(sort='cost_usd')": _call(nbagent.history, sort="cost_usd"),
    "history(sort='total_tokens')": _call(nbagent.history, sort="total_tokens"),
    "history(sort='duration_ms')": _call(nbagent.history, sort="duration_ms"),
    **_SEARCHES,
    "open_run('last')": _call(nbagent.open_run, "last"),
    "open_run(a name)": lambda store: partial(nbagent.open_run, _name(store)),
    "open_run(the start of an id)": _with_id(lambda store, run: nbagent.open_run(run[:7])),
    "the last run of an old session": _call(find_run, "last", session=_OLD),
    "the last run of a notebook": lambda store: partial(
        store.run_origins, notebook="notebook-49.ipynb"
    ),
    "store.load": _with_id(Store.load),
    "store.tree(a session of 150 runs)": lambda store: partial(store.tree, _SMALL),
    "conversation of a chain": lambda store: partial(store.conversation, _end_of_chain(store)),
    "request_of": _with_id(lambda store, run: store.request_of(run, "C01")),
}


# Calls that write: about runs made for them, which are then forgotten


class _TimedDatabase(Database):
    """Knows the longest time for which a transaction held the write lock."""

    held_ms = 0.0

    def transact(self, work: Work[Any], **options: Any) -> Any:
        """As usual, timed from the first statement to the end of the commit."""
        began = 0.0

        def timed(c: Connection) -> Any:
            nonlocal began
            began = time.perf_counter()
            return work(c)

        result = super().transact(timed, **options)
        self.held_ms = max(self.held_ms, (time.perf_counter() - began) * 1000)
        return result


def _new_run(turns: int) -> Story:
    story = Story("openai:gpt-5.4", id=new_id())
    for i in range(turns):
        call = tool_run(f"call_{i}", "population", {"city": f"City {i}"}, "x" * 300)
        story.turn(f"Step {i} is taken.", *([call] if i < turns - 1 else ()))
    return story.end()


def _added(store: Store) -> list[RunRecord]:
    records = [_new_run(3).run for _ in range(_TIMES + 1)]
    store.add(*records)
    return records


def _forget(store: Store) -> list[float]:
    return [_milliseconds(store.forget, record.id) for record in _added(store)][1:]


def _old_runs(store: Store) -> list[str]:
    """Runs far apart in the middle of the store that no run continues: their texts are indexed."""
    sql = (
        "SELECT run_id FROM runs r WHERE n > ? AND batch IS NULL AND name IS NULL "
        "AND NOT EXISTS (SELECT 1 FROM runs c WHERE c.parent_id = r.run_id) ORDER BY n LIMIT 1"
    )
    with store.reading() as c:
        middle = c.execute("SELECT max(n) FROM runs").fetchone()[0] // 2
        numbers = range(middle, middle - 5_000 * (_TIMES + 1), -5_000)
        return [c.execute(sql, (n,)).fetchone()[0] for n in numbers]


def _forget_old(store: Store) -> list[float]:
    return [_milliseconds(store.forget, run) for run in _old_runs(store)][1:]


def _lock_of_forget(store: Store) -> list[float]:
    path = store.path
    assert path is not None
    database = _TimedDatabase.open(path.parent, upgrade)
    assert isinstance(database, _TimedDatabase)
    own = Store(database)
    found: list[float] = []
    for run in _old_runs(own):
        database.held_ms = 0.0
        own.forget(run)
        found.append(database.held_ms)
    own.close()
    return found[1:]


def _commits(store: Store) -> list[float]:
    story = _new_run(40)

    async def commit() -> list[float]:
        found: list[float] = []
        for event in story.events:
            began = time.perf_counter()
            await store.commit(event)
            if isinstance(event, TurnFinished):
                found.append((time.perf_counter() - began) * 1000)
        return found

    found = asyncio.run(commit())
    store.forget(story.run.id)
    return found


def _openings(store: Store) -> list[float]:
    path = store.path
    assert path is not None
    found: list[float] = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        opened = Store.open(path.parent)
        found.append((time.perf_counter() - began) * 1000)
        opened.close()
    return found


def _milliseconds(call: Callable[..., object], *arguments: Any) -> float:
    gc.collect()
    began = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - began) * 1000


_MEASURED: dict[str, Callable[[Store], list[float]]] = {
    "forget(id)": _forget,
    "forget(an old id)": _forget_old,
    "forget(an old id), the write lock": _lock_of_forget,
    "commit of a turn": _commits,
    "opening the store": _openings,
}


# The child


def _measured(folder: Path, name: str) -> list[float]:
    os.environ["NBAGENT_HOME"] = str(folder)
    store = current_store()
    if name in _MEASURED:
        return _MEASURED[name](store)
    call = _CALLS[name](store)
    began = time.perf_counter()
    first = _milliseconds(call)
    found: list[float] = []
    while len(found) < _TIMES and time.perf_counter() - began < _LONGEST_S / 2:
        found.append(_milliseconds(call))
    return found or [first]


if __name__ == "__main__":
    print(json.dumps(_measured(Path(sys.argv[1]), sys.argv[2])))
