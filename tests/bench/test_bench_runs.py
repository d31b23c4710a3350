"""The bench can be run and gives all its rows. What their figures are is no test's matter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROWS = (
    "import nbagent, CPU",
    "%load_ext nbagent after IPython, CPU",
    "first request of a fresh kernel",
    "first delta of a fresh kernel",
    "loop, whole answers, without the store",
    "loop, whole answers, with the store",
    "loop, streamed answers, without the store",
    "loop, streamed answers, with the store",
    "loop, a turn, against a",
    "three threaded 50 ms tools",
    "at once, added memory",
    "in one burst, without a view",
    "in one burst, with a view",
    "one by one, 1,000 a second, without a view",
    "one by one, 1,000 a second, with a view",
    "iopub bytes",
    "iopub messages",
    "turns in a frame",
    "open below a mount",
    "by walking",
    "one patch",
    *(
        f"files, {name}, against {other}"
        for name in ("words", "expression", "hard expression")
        for other in ("a loop over re", "ripgrep")
    ),
    "a script at the level process",
    "a script at the level landlock",
    "a script at the level bubblewrap",
    "a script that sleeps",
)


def test_the_quick_bench_gives_every_row() -> None:
    bench = Path(__file__).parent
    found = subprocess.run(
        [sys.executable, str(bench), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    rows: list[dict[str, Any]] = [json.loads(line) for line in found.stdout.splitlines()]
    for name in _ROWS:
        (row,) = [row for row in rows if name in row["name"]]
        assert row["value"] > 0, row
    assert len(rows) == len(_ROWS)
