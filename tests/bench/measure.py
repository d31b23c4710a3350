"""How the bench measures, and a row of its table.

Ratios: CPU time of this process, A B A B, the median of the ratios of neighbours. Figures without
a partner: the best of a few, because what else a machine does only adds to them.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    goal: str
    figure: str
    value: float
    """What is compared with `limit`."""
    limit: float | None = None
    """None: told, without a goal."""
    ratio: float | None = None
    """To the bare loop, or to what the row names."""
    note: str = ""

    @property
    def verdict(self) -> str:
        """`met`, `MISSED`, or nothing where there is no goal."""
        if self.limit is None:
            return ""
        return "met" if self.value <= self.limit else "MISSED"


@dataclass(frozen=True, slots=True)
class Pairs:
    """What a comparison of two pieces of work gave."""

    bare_s: float
    ours_s: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of the ratios of neighbours."""
        return statistics.median(self.ratios)

    @property
    def spread(self) -> str:
        """Where half of the ratios lie."""
        if len(self.ratios) < 4:
            return f"{min(self.ratios):.2f}–{max(self.ratios):.2f}"
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return f"{low:.2f}–{high:.2f}"


def cpu_of(work: Callable[[], object]) -> float:
    """CPU seconds of all threads of this process while the work is done."""
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(bare: Callable[[], object], ours: Callable[[], object], *, pairs: int) -> Pairs:
    """Measure both in turns, so that a slow minute of the machine hits both."""
    bare()
    ours()
    left: list[float] = []
    right: list[float] = []
    for _ in range(pairs):
        left.append(cpu_of(bare))
        right.append(cpu_of(ours))
    ratios = tuple(b / a for a, b in zip(left, right, strict=True))
    return Pairs(statistics.median(left), statistics.median(right), ratios)


def child(*arguments: str) -> Any:
    """Run a file of the bench in a fresh process; what it prints last is its result, in JSON."""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=HERE,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise RuntimeError(f"{arguments[0]} failed:\n{found.stderr[-2000:]}")
    return json.loads(found.stdout.splitlines()[-1])


def log_of(server: str) -> dict[str, list[float]]:
    """When requests came to the server and answers left, since this was asked last."""
    with urllib.request.urlopen(f"{server}/log") as answer:
        return json.load(answer)
