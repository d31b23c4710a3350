"""Rows about scripts: what isolation adds to a start of Python, how soon a deadline ends one."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import Row

from nbagent.sandbox import LevelName, ScriptLimits, ScriptOrder, isolation_level, run_script

_LEVELS: tuple[LevelName, ...] = ("process", "landlock")
_TIMEOUT_S = 0.4


def rows(*, quick: bool) -> Iterator[Row]:
    """All of them; a level that does not work here has no figure to miss."""
    times = 3 if quick else 41
    with tempfile.TemporaryDirectory() as folder:
        for level in _LEVELS:
            name = f"a script at the level {level}, over plain python -I"
            if level == "landlock" and not isolation_level().is_isolated:
                yield Row(name, "≤ 30 ms", "not here", 1.0, note=f"{level} does not work here")
                continue
            plain, ours = _pairs(lambda level=level: _run(level, folder), times)
            added = statistics.median(ours) - statistics.median(plain)
            figure = (
                f"{added:.1f} ms: {statistics.median(ours):.1f} − {statistics.median(plain):.1f}"
            )
            yield Row(name, "≤ 30 ms", figure, added, 30.0)
        late = [_late(folder) for _ in range(1 if quick else 9)]
        yield Row(
            "a script that sleeps, return after its deadline",
            "≤ 500 ms",
            f"{statistics.median(late):.0f} ms, worst {max(late):.0f}",
            max(late),
            500.0,
        )


def _pairs(work: Callable[[], object], times: int) -> tuple[list[float], list[float]]:
    plain: list[float] = []
    ours: list[float] = []
    for _ in range(times):
        plain.append(_timed(_bare))
        ours.append(_timed(work))
    return plain, ours


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def _bare() -> None:
    subprocess.run([sys.executable, "-I", "-c", "pass"], check=True, capture_output=True)


def _run(level: LevelName, folder: str) -> None:
    result = run_script(ScriptOrder(text="pass", cwd=Path(folder), isolation=level))
    if result.returncode:
        raise RuntimeError(f"the script failed: {result.stderr}")


def _late(folder: str) -> float:
    limits = ScriptLimits(timeout_s=_TIMEOUT_S)
    order = ScriptOrder(text="import time; time.sleep(30)", cwd=Path(folder), limits=limits)
    return _timed(lambda: run_script(order)) - _TIMEOUT_S * 1000
