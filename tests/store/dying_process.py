"""Processes that work on a store and die with SIGKILL before a chosen statement.

Run as a script it forks for each line of its stdin (a task as JSON), so that imports are paid once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from store.crowd_process import note, work
from store.made_records import plain_run
from store.older_stores import finish_upkeep, slice_by_steps, without_upkeep

from nbagent.contracts.errors import StoreError
from nbagent.contracts.events import (
    Event,
    ResponseReceived,
    RunFinished,
    RunStarted,
    ToolCallFinished,
    TurnFinished,
)
from nbagent.store import migrations
from nbagent.store.writer import Store


def die() -> None:
    """End at once, as the machine would."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10)


class Counted(sqlite3.Connection):
    """Calls `before` ahead of each statement, and between the pages of a backup."""

    before: ClassVar[Callable[[str], None]]

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        type(self).before(sql)
        return super().execute(sql, *parameters)

    def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        type(self).before(sql)
        return super().executemany(sql, *parameters)

    def backup(self, target: sqlite3.Connection, **options: Any) -> None:
        def progress(*_: int) -> None:
            type(self).before("backup")

        super().backup(target, pages=8, progress=progress)


@contextlib.contextmanager
def at_statement(number: int, act: Callable[[], None]) -> Generator[None]:
    """Call `act` before the statement with this number, counted from 1 (0: never)."""
    left = number

    def before(sql: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            act()

    connect = sqlite3.connect
    Counted.before = before

    def counting(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, **options, factory=Counted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", counting)
        yield
    Counted.before = lambda sql: None


# Tasks


def open_store(home: Path) -> None:
    """Open a store, and close it."""
    Store.open(home).close()


def do_upkeep(home: Path) -> None:
    """Do all upkeep of a store, one step in a slice."""
    store = Store.open(home)
    finish_upkeep(store)
    store.close()


def forget(home: Path, run_id: str) -> None:
    """Forget a run and all that continue it, one step in a slice; then do the rest of the work."""
    store = Store.open(home)
    store.forget(run_id, children=True)
    finish_upkeep(store)
    store.close()


def open_noted(home: Path) -> None:
    """Open a store; note in a file how, and whether this process migrated it."""
    migrated: list[int] = []
    apply = migrations._apply  # pyright: ignore[reportPrivateUsage]

    def noted(connection: sqlite3.Connection, version: int) -> None:
        migrated.append(version)
        apply(connection, version)

    migrations._apply = noted  # pyright: ignore[reportPrivateUsage]
    try:
        store = Store.open(home)
        line = f"{store.warning} {store.counts()['runs']} {migrated}"
        store.close()
    except StoreError as error:
        line = f"{error} {migrated}"
    note(home / "notes", line)


def open_limited(home: Path, limit: int) -> None:
    """Open a store where no file may become longer; note what is said and what is read."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    store = Store.open(home)
    line = f"{store.warning} {store.counts()['runs']} runs"
    store.close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    note(home.with_name("notes"), line)


def open_as_another(home: Path, out: str) -> None:
    """Open a store as a user who may only read it; note what is said and what is read."""
    os.setgid(65534)
    os.setuid(65534)
    store = Store.open(home)
    note(Path(out) / "notes", f"{store.warning} {store.counts()['runs']} runs")
    store.close()


def crowd(runs: int) -> dict[str, list[Event]]:
    """The events of runs of different lengths, by their ids."""
    made: dict[str, list[Event]] = {}
    for n in range(runs):
        run_id = f"{n:x}" * 16
        made[run_id] = plain_run(1 + n % 4, run_id=run_id, text=f"words of run {n} " * (n % 5 + 1))
    return made


async def commit_all(
    store: Store,
    runs: Mapping[str, Sequence[Event]],
    acknowledge: Callable[[str, int], None] = lambda run_id, index: None,
) -> None:
    """Commit the events of runs that are at work at once."""

    async def commit(run_id: str, events: Sequence[Event]) -> None:
        for index, event in enumerate(events):
            await store.commit(event)
            is_stored = isinstance(
                event, RunStarted | ResponseReceived | TurnFinished | RunFinished
            ) or (isinstance(event, ToolCallFinished) and event.pending)
            if is_stored:
                acknowledge(run_id, index)
            await asyncio.sleep(0)  # the other runs' turn, as when a model is asked

    await asyncio.gather(*(commit(run_id, events) for run_id, events in runs.items()))


def commit_crowd(home: Path) -> None:
    """Commit the events of runs; note each when it was acknowledged."""

    def acknowledge(run_id: str, index: int) -> None:
        note(home / "notes", f"{run_id} {index}")

    store = Store.open(home)
    asyncio.run(commit_all(store, crowd(12), acknowledge))
    store.close()


TASKS: dict[str, Callable[..., None]] = {
    "open": open_store,
    "upkeep": do_upkeep,
    "forget": forget,
    "open noted": open_noted,
    "open as another": open_as_another,
    "crowd": commit_crowd,
    "work": work,
    "open limited": open_limited,
}


# Notes


def notes(file: Path) -> list[str]:
    """The lines that were noted."""
    return file.read_text().splitlines() if file.exists() else []


# Processes


class Forker:
    """The process that forks others and tells how they ended."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[1])
        path = os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "store.dying_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
            env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
        )

    def run(self, task: str, home: Path, *, die_at: int = 0, times: int = 1, **more: Any) -> bool:
        """Do a task in processes that begin at once.

        Returns:
            True if it was done; False if its process died before statement `die_at`.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps(
            {"task": task, "die_at": die_at, "times": times, **more, "home": str(home)}
        )
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        ends: list[int] = json.loads(self._process.stdout.readline())
        assert set(ends) <= {0, -signal.SIGKILL}, "see what the process wrote on stderr"
        return not any(ends)

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=10)


def _do(task: str, die_at: int, options: Mapping[str, Any], begin: int) -> None:
    os.read(begin, 1)  # returns when all processes are there
    with pytest.MonkeyPatch.context() as patch, at_statement(die_at, die):
        if task != "work":
            without_upkeep(patch)
        if task in ("upkeep", "forget"):
            slice_by_steps(patch)
        TASKS[task](**options)


def _fork(task: str, die_at: int, times: int, options: Mapping[str, Any]) -> list[int]:
    begin, gate = os.pipe()
    pids: list[int] = []
    for _ in range(times):
        pid = os.fork()
        if pid == 0:
            os.close(gate)
            try:
                _do(task, die_at, options, begin)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        pids.append(pid)
    os.close(begin)
    os.close(gate)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def main() -> None:
    """Fork for each line; say how the processes ended."""
    for line in sys.stdin:
        options = json.loads(line)
        task, die_at, times = (options.pop(name) for name in ("task", "die_at", "times"))
        ends = _fork(task, die_at, times, {**options, "home": Path(options["home"])})
        print(json.dumps(ends), flush=True)


if __name__ == "__main__":
    main()
