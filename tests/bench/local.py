"""Rows about this machine: opening below a mount, searching a tree of 5,000 files, scripts."""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import Row, timed

from nbagent.files.mounts import Mounts
from nbagent.files.searching import Order, search
from nbagent.sandbox.running import LevelName, ScriptLimits, ScriptOrder
from nbagent.sandbox.script import isolation_level, run_script

_QUERIES = {
    "words": ("needle_here", False),
    "expression": (r"needle_\w+\(\d+\)", True),
    "hard expression": (r"^\s*needle\b|[a-z]+_here\(", True),
}
_WORDS = tuple(
    "def return import class self value for in if not None True path name data".split()  # noqa: SIM905
)
_LEVELS: tuple[LevelName, ...] = ("process", "landlock")
_TIMEOUT_S = 0.4


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All rows; what does not work here or is not installed has none."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(os.path.realpath(folder)) / "tree"
        yield _opens(tree, 500 if quick else 20_000)
        files = 300 if quick else 5_000
        _lay(tree, files)
        for name in _QUERIES:
            yield from _searches(tree, name, files, 2 if quick else 7)
    yield from _scripts(3 if quick else 41)


def _opens(tree: Path, times: int) -> Row:
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file.txt").write_text("x")
    mounts = Mounts.of(tree)

    def hundred() -> None:
        for _ in range(100):
            place = mounts.place("@project/a/b/file.txt")
            os.close(place.root.open_file(place.parts))

    median = statistics.median(timed(hundred, times // 100)) * 10
    return Row("open below a mount, depth 3, and close, median", median, "µs", 15.0)


def _lay(tree: Path, files: int) -> None:
    chance = random.Random(1)
    for number in range(files):
        folder = tree / f"d{number % 20}" / f"s{number % 200}"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(chance.choices(_WORDS, k=9)) for _ in range(chance.randint(20, 300))]
        if number % 50 == 0:
            lines[len(lines) // 2] += " needle_here(42)"
        (folder / f"f{number}.py").write_text("\n".join(lines))
    (tree / ".gitignore").write_text("__pycache__/\n*.log\n/build/\n!keep.log\n")


def _searches(tree: Path, name: str, files: int, times: int) -> Iterator[Row]:
    query, regex = _QUERIES[name]
    pattern = re.compile(query if regex else re.escape(query))
    place = Mounts.of(tree).place("@project")
    order = Order(query=query, regex=regex, max_matches=100_000, timeout_s=60)
    assert len(search(place, order).matches) == _plain(tree, pattern)
    ours = min(timed(lambda: search(place, order), times))
    plain = min(timed(lambda: _plain(tree, pattern), 3))
    title = f"search {files:,} files, {name}, against"
    note = f"{ours:.0f} ms against"
    yield Row(f"{title} a loop over re", ours / plain, "×", 1.0, f"{note} {plain:.0f}")
    ripgrep = shutil.which("rg")
    if ripgrep is not None:
        command = [ripgrep, "--count-matches", *([] if regex else ["-F"]), "-e", query, str(tree)]
        other = min(timed(lambda: subprocess.run(command, capture_output=True), times))
        yield Row(f"{title} ripgrep", ours / other, "×", 5.0, f"{note} {other:.0f}")


def _plain(tree: Path, pattern: re.Pattern[str]) -> int:
    found = 0
    for folder, _, names in os.walk(tree):
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    found += pattern.search(line) is not None
    return found


def _scripts(times: int) -> Iterator[Row]:
    """What isolation adds to a start of Python, and how soon a deadline ends a script."""
    plain = [sys.executable, "-I", "-c", "pass"]
    with tempfile.TemporaryDirectory() as folder:
        for level in _LEVELS:
            if level == "landlock" and not isolation_level().is_isolated:
                continue
            empty = ScriptOrder(text="pass", cwd=Path(folder), isolation=level)
            bare: list[float] = []
            ours: list[float] = []
            for _ in range(times):
                bare += timed(lambda: subprocess.run(plain, check=True), 1)
                ours += timed(lambda empty=empty: _run(empty), 1)
            both = statistics.median(ours), statistics.median(bare)
            name = f"a script at the level {level}, over plain python -I"
            yield Row(name, both[0] - both[1], "ms", 30.0, f"{both[0]:.1f} − {both[1]:.1f}")
        limits = ScriptLimits(timeout_s=_TIMEOUT_S)
        sleeps = ScriptOrder(text="import time; time.sleep(30)", cwd=Path(folder), limits=limits)
        took = timed(lambda: run_script(sleeps), 1 + times // 5)
        late = [milliseconds - _TIMEOUT_S * 1000 for milliseconds in took]
        note = f"the worst; median {statistics.median(late):.0f}"
        yield Row("a script that sleeps, return after its deadline", max(late), "ms", 500.0, note)


def _run(order: ScriptOrder) -> None:
    result = run_script(order)
    if result.returncode:
        raise RuntimeError(f"the script failed: {result.stderr}")
