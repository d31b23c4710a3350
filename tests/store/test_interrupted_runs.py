"""Runs whose kernel is gone: whoever reads them first writes their end, and they go on."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from made_records import START, crash, plain_run, write

from nbagent.store.leases import RUN_INTERRUPTED, Lease
from nbagent.store.writer import Store

RUN = "a" * 16


def test_a_damaged_lease_is_nobodys(home: Path, store: Store) -> None:
    crash(home, plain_run(1, run_id=RUN)[:4])
    with contextlib.closing(sqlite3.connect(home / "runs.sqlite")) as connection:
        connection.execute("UPDATE leases SET heartbeat = 'x'")
        connection.execute("INSERT INTO leases(pid) VALUES(1)")
        connection.commit()
    Store.open(home).close()
    assert store.load(RUN).error == RUN_INTERRUPTED


_BEGUN = """
import asyncio, os, sys; from datetime import timedelta; from pathlib import Path
from nbagent.store import writer as room
from nbagent.contracts.canonical import utc_now
from nbagent.contracts.events import RunStarted
from nbagent.contracts.records import RunRecord
clock = [utc_now()]
room.utc_now = lambda: clock[0]
store = room.Store.open(Path(sys.argv[1]))
record = RunRecord(id=sys.argv[2], session="s", model="a:b", started_at=clock[0])
asyncio.run(store.commit(RunStarted(record)))
"""


def test_run_of_a_living_process_is_at_work_until_it_dies(home: Path, store: Store) -> None:
    code = _BEGUN + "print('ready', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(home), RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert store.load(RUN).phase == "Running"
    finally:
        child.kill()
        # A process that nobody has waited for yet is as dead as one that is gone.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert store.load(RUN).phase == "Failed"
    child.communicate()


def test_run_at_work_in_this_kernel_is_closed_when_it_is_let_go(store: Store) -> None:
    write(store, plain_run(1, run_id=RUN)[:1])
    assert store.load(RUN).phase == "Running"
    store.abandon(RUN)
    assert store.load(RUN).phase == "Failed"


def test_interrupted_run_ended_when_its_kernel_last_gave_a_sign(home: Path, store: Store) -> None:
    """A child beats once and dies; the lease that it left behind tells the time."""
    code = _BEGUN + "clock[0] += timedelta(seconds=10); store.heartbeat(); os._exit(9)"
    done = subprocess.run([sys.executable, "-c", code, str(home), RUN], check=False)
    assert done.returncode == 9
    assert store.load(RUN).duration_ms == 10_000
    # Nothing needs the dead kernel's lease any more: the next store to open removes it.
    Store.open(home).close()
    with store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM leases").fetchone()[0] == 1


@pytest.mark.parametrize(
    ("change", "age_s", "alive"),
    [
        ({}, 0, True),
        ({}, 3600, True),
        ({"pid_started": "1"}, 0, False),
        ({"pid": 2**22 + 1}, 0, False),
        ({"boot_id": "another boot"}, 0, False),
        ({"host": "elsewhere/"}, 29, True),
        ({"host": "elsewhere/"}, 31, False),
        ({"pid_started": None}, 60, True),
        ({"pid_started": None}, 3600, False),
        ({"pid_started": None, "pid": 2**22 + 1}, 0, False),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_lease_lives_as_long_as_its_process(
    change: dict[str, object], age_s: int, alive: bool
) -> None:
    lease = replace(Lease.of_this_process(START), **change)  # pyright: ignore[reportArgumentType]
    assert lease.is_alive(START + timedelta(seconds=age_s)) is alive
