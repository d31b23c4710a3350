"""Stops and interrupts at any moment: the run ends cleanly and the next cell works.

Each test runs cells in a child process, because SIGINT belongs to a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends POSIX signals")

CELLS = f"""
import asyncio, os, random, signal, sys, threading, time
sys.path.append({str(Path(__file__).parents[1])!r})
from cells import Cell
from nbagent.runtime import wait_async, wait

def press(*delays, later=False):
    "SIGINT from outside the main thread, each so many seconds after the one before."
    begun = threading.Event()
    def presses():
        begun.wait()
        for delay in delays:
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=presses)
    thread.start()
    thread.begin = begun.set
    if not later:
        begun.set()  # not before start() has returned: an interrupt in there is nobody's defect
    pressers.append(thread)
    return thread

pressers = []

def spin(seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return "spun"

def nap(seconds=10):
    time.sleep(seconds)
    return "slept"

async def spins():
    spin(30)

def swallow():
    try:
        nap(30)
    except KeyboardInterrupt:
        nap(30)

def next_cell():
    for thread in pressers:
        thread.join()
    pressers.clear()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert Cell().run(lambda c: c.call(lambda: "next")) == ["next", "answered"]

class quickly:
    def __enter__(self):
        self.start = time.monotonic()
    def __exit__(self, *exc):
        took = time.monotonic() - self.start
        assert took < 8, took  # the sleeps are of ten seconds and more
"""


def run_cells(code: str, *, timeout: float = 60) -> str:
    """Run cells in a child, and one more, which has to work; what the first ones printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{CELLS}{code}\nnext_cell()"],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


INTERRUPTED = "['E_INTERRUPTED', 'stopped']"
NESTED = """
def tool():
    Cell().run(lambda c: c.call(nap))
    print("the tool went on")
outer = Cell()
{stop}
with quickly():
    print(outer.run(lambda c: c.call(tool)))
"""
ONE = """
press(0.2)
with quickly():
    print(Cell().run(lambda c: {body}))
"""
# body of a run: what an interrupt makes of its job.
ENDED = {
    "c.think(10)": [],
    "c.call(spin)": ["E_INTERRUPTED"],
    "c.call(nap)": ["E_INTERRUPTED"],
    "c.call(nap, 'worker thread')": ["E_INTERRUPTED"],
    "c.call(spin, 'worker thread')": ["E_INTERRUPTED"],
    "c.call_async(lambda: asyncio.sleep(10))": ["E_INTERRUPTED"],
    "c.call(spins, 'tool loop')": ["E_INTERRUPTED"],
    "c.call(lambda: nap(0.6), interruptible=False)": ["slept"],
}
TWO = """
def nested():
    Cell().run(lambda c: c.call(lambda: nap(30), interruptible=False))
    print("the tool went on")
press(0.2, 0.3)
with quickly():
    try:
        Cell().run(lambda c: {body})
    except KeyboardInterrupt:
        print("out")
"""
LEFT = (
    "c.call(lambda: nap(30), interruptible=False)",
    "asyncio.sleep(30)",
    "c.call(nested, interruptible=False)",
)
STOPS: dict[str, tuple[str, list[str]]] = {
    **{body: (ONE.format(body=body), [f"{[*log, 'stopped']}"]) for body, log in ENDED.items()},
    **{f"the second one gets out of {body}": (TWO.format(body=body), ["out"]) for body in LEFT},
    "a run that another thread waits for": (
        """
def cell(work):
    c = Cell()
    threading.Timer(0.2, c.cancel.set).start()
    print(c.run(lambda c: c.call(work)))
    try:
        spin(0.2)
    except KeyboardInterrupt:
        print("stray")
def sleeps_in_steps():
    while True:
        time.sleep(0.01)
for work in (spin, sleeps_in_steps):
    with quickly():
        thread = threading.Thread(target=cell, args=(work,))
        thread.start()
        thread.join()
""",
        [INTERRUPTED] * 2,
    ),
    # By then the run has given the job up and has ended, so its result can be returned.
    "a second interrupt of what withstood the first": (
        """
press(0.2, 0.5)
with quickly():
    print(Cell().run(lambda c: c.call(swallow)))
""",
        [INTERRUPTED],
    ),
    "a second stop of a job that swallowed the first": (
        """
for where in ("waiting thread", "worker thread"):
    c = Cell()
    task = c.start(lambda c: c.call(swallow if "waiting" in where else spin, where))
    threading.Timer(0.2, task.stop).start()
    threading.Timer(0.5, task.stop).start()
    with quickly():
        print(wait(task))
time.sleep(0.5)
""",
        [INTERRUPTED] * 2,
    ),
    "a job may clean up undisturbed": (
        """
done = []
def tidy():
    try:
        nap(30)
    finally:
        time.sleep(0.5)
        done.append("tidied")
press(0.2)
with quickly():
    print(Cell().run(lambda c: c.call(tidy)), done)
""",
        [f"{INTERRUPTED} ['tidied']"],
    ),
    "the agent within a tool, then the tool": (NESTED.format(stop="press(0.3)"), [INTERRUPTED]),
    "the same by a button": (
        NESTED.format(stop="threading.Timer(0.3, outer.cancel.set).start()"),
        [INTERRUPTED],
    ),
    "an interrupted cell starts no further run": (
        """
from nbagent.runtime import check_interrupted
press(0.2)
print(wait(Cell().start(lambda c: c.think(10)), execution="cell-1"))
check_interrupted("cell-2")
check_interrupted(None)
try:
    check_interrupted("cell-1")
except KeyboardInterrupt:
    print("refused")
""",
        ["['stopped']", "refused"],
    ),
}


@pytest.mark.parametrize(("cells", "printed"), STOPS.values(), ids=STOPS)
def test_stops_end_what_they_should_and_nothing_else(cells: str, printed: list[str]) -> None:
    assert run_cells(cells).splitlines() == printed
