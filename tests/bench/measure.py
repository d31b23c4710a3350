"""How the bench measures, and a row of its table.

Ratios: CPU time of this process, A B A B, the median of the ratios of neighbours. Figures without
a partner: the best of a few, because what else a machine does only adds to them.
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    value: float
    unit: str
    """`×`: a ratio, to the bare loop or to what the row names."""
    limit: float | None = None
    """The largest value that is good; None: told, without a goal."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """`met`, `MISSED`, or nothing where there is no goal."""
        if self.limit is None:
            return ""
        return "met" if self.value <= self.limit else "MISSED"

    def __str__(self) -> str:
        goal = "" if self.limit is None else f"≤ {self.limit:g} {self.unit}"
        figure = f"{self.value:.{2 if self.value < 100 else 0}f} {self.unit}"
        return f"{self.verdict:6} {self.name:70} {goal:>9} {figure:>10}  {self.note}"


def least(
    name: str, found: list[float], unit: str, limit: float | None = None, note: str = ""
) -> Row:
    """The row of a figure that was measured a few times."""
    median = f"median {statistics.median(found):.2f}"
    return Row(name, min(found), unit, limit, f"{median}; {note}" if note else median)


def timed(
    work: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """How many milliseconds the work took, each time; `clock` says of which time."""
    found: list[float] = []
    for _ in range(times):
        gc.collect()
        began = clock()
        work()
        found.append((clock() - began) * 1000)
    return found


def compared(
    name: str,
    bare: Callable[[], object],
    ours: Callable[[], object],
    *,
    pairs: int,
    limit: float,
    each: tuple[int, str],
) -> Row:
    """The row of a ratio; both are measured in turns, so that a slow minute hits both.

    Args:
        each: how many turns (or what it names) one piece of work has, on either side.
    """
    bare()
    ours()
    left: list[float] = []
    right: list[float] = []
    for _ in range(pairs):
        left += timed(bare, 1, time.process_time)
        right += timed(ours, 1, time.process_time)
    ratios = sorted(b / a for a, b in zip(left, right, strict=True))
    count, what = each
    mine, other = (statistics.median(it) * 1000 / count for it in (right, left))
    half = f"{ratios[len(ratios) // 4]:.2f}–{ratios[-1 - len(ratios) // 4]:.2f}"
    note = f"{mine:.1f} µs a {what}, bare {other:.1f}; half of the ratios in {half}"
    return Row(name, statistics.median(ratios), "×", limit, note)


def child(*arguments: str, timeout_s: float | None = None) -> Any:
    """Run Python in a fresh process; what it prints last is its result, in JSON.

    Raises:
        TimeoutError: it lasted too long, and was ended.
    """
    try:
        found = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"{arguments[0]} lasted longer than {timeout_s:.0f} s") from None
    if found.returncode:
        raise RuntimeError(f"{arguments[0]} failed:\n{found.stderr[-2000:]}")
    return json.loads(found.stdout.splitlines()[-1])


def log_of(server: str) -> dict[str, list[float]]:
    """When requests came to the server and answers left, since this was asked last."""
    with urllib.request.urlopen(f"{server}/log") as answer:
        return json.load(answer)
