"""`kill -9` of real kernels while a cell is at work: what a fresh kernel finds, and going on there.

Each fresh kernel is the next one to be killed.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest
from kernels import LiveKernel

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")

SEATS = 5
SETUP = f"""
%load_ext nbagent
import os, time
import nbagent
from nbagent import offline

@nbagent.tool
def book(show: int, seat: int) -> str:
    "Book a seat. It cannot be undone."
    with open("booked", "a") as file:
        file.write(f"{{show}} {{seat}}\\n")
        file.flush()
    time.sleep(0.05)
    return f"seat {{seat}} is booked"

def next_seat(request):
    "Asks for one seat after the other, never for one again."
    asked = sum(len(message.tool_calls) for message in request.messages)
    show = int(request.messages[0].text)
    return offline.call("book", show=show, seat=asked + 1) if asked < {SEATS} else "All booked."

model = offline.script([next_seat] * 100, name="booker")
"""


def booked(folder: Path, show: int) -> list[int]:
    """The seats of one show, in the order in which they were booked."""
    file = folder / "booked"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [int(seat) for one, seat in lines if int(one) == show]


def kill_at_work(kernel: LiveKernel, folder: Path, show: int, moments: random.Random) -> int:
    """Let a cell book seats and kill its kernel meanwhile; how many were booked by then."""
    kernel.send(f"%%agent -m offline:booker\n{show}")
    wanted = moments.randrange(SEATS) + 1
    deadline = time.monotonic() + 30
    while len(booked(folder, show)) < wanted:
        assert time.monotonic() < deadline, "the cell books nothing"
        time.sleep(0.002)
    time.sleep(moments.uniform(0, 0.06))
    kernel.kill()
    kernel.close()
    return len(booked(folder, show))


def check_found(kernel: LiveKernel, n: int) -> bool:
    """What is kept of the killed run: every finished turn. Whether it was at work."""
    kernel.run("run = nbagent.open_run('last')\nrow = nbagent.runs().iloc[-1]")
    at_work = kernel.value("run.stop_reason") != "answered"
    if at_work:
        assert kernel.value("(row.phase, row.error_code)") == ("Failed", "ENGINE_INTERRUPTED")
    kept = kernel.value("[r.result.ok for t in run.turns for r in t.tool_runs]")
    # The tool of seat n ran only after the result of the one before was on disk.
    assert kept[: n - 1] == [True] * (n - 1)
    assert len(kept) >= n
    assert kernel.value("len(nbagent.turns(run_id=run.id))") == kernel.value("len(run.turns)")
    return at_work


def check_resumed(kernel: LiveKernel, folder: Path, show: int) -> None:
    """Going on ends the work, and nothing is done twice."""
    cell = kernel.run("%agent resume")
    assert "All booked." in cell.of("display_data")[0]["data"]["text/plain"]
    assert kernel.value("(_run.ok, _run.record.parent_id == run.id)") == (True, True)
    seats = booked(folder, show)
    assert len(seats) == len(set(seats))
    results = kernel.value("[m.text for m in _run.messages if m.role == 'tool']")
    assert len(results) == SEATS
    for seat, result in enumerate(results, 1):
        assert ("is booked" in result) or "E_INTERRUPTED" in result
        assert seat in seats or "E_INTERRUPTED" in result
    assert kernel.value("[t.id for t in _run.turns][-1]") == f"C{SEATS + 1:02d}"


@pytest.mark.parametrize(
    "times", [3, pytest.param(12, marks=[pytest.mark.proof, pytest.mark.timeout(300)])]
)
def test_killed_kernels_lose_no_finished_turn_and_repeat_no_side_effect(
    tmp_path: Path, times: int
) -> None:
    moments = random.Random(times)
    interrupted = 0
    kernel = LiveKernel(tmp_path)
    try:
        kernel.run(SETUP)
        for show in range(times):
            n = kill_at_work(kernel, tmp_path, show, moments)
            kernel = LiveKernel(tmp_path)
            kernel.run(SETUP)
            if check_found(kernel, n):
                interrupted += 1
                check_resumed(kernel, tmp_path, show)
        assert kernel.value("list(nbagent.runs().phase).count('Running')") == 0
    finally:
        kernel.close()
    assert interrupted, "every run was over before its kernel was killed"
