"""Rows about files: opening one below a mount, changing one, and searching a tree of 5,000."""

from __future__ import annotations

import os
import random
import re
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import Row

from nbagent.files.mounts import Mounts
from nbagent.files.searching import Order, search

_QUERIES = {
    "words": ("needle_here", False),
    "expression": (r"needle_\w+\(\d+\)", True),
    "hard expression": (r"^\s*needle\b|[a-z]+_here\(", True),
}
_ENOUGH = 1_000
"""Opens; of fewer the goal says nothing."""
_WORDS = tuple(
    "def return import class self value for in if not None True path name data".split()  # noqa: SIM905
)


def rows(*, quick: bool) -> Iterator[Row]:
    """All rows; ripgrep's say so where it is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(os.path.realpath(folder)) / "tree"
        yield from _opens(tree, 500 if quick else 20_000)
        _lay(tree, 300 if quick else 5_000)
        for name in _QUERIES:
            yield from _searches(tree, name, quick=quick)


def _opens(tree: Path, times: int) -> Iterator[Row]:
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file.txt").write_text("x")
    mounts = Mounts.of(tree)

    took: list[int] = []
    for _ in range(times):
        began = time.perf_counter_ns()
        place = mounts.place("@project/a/b/file.txt")
        descriptor = place.root.open_file(place.parts)
        took.append(time.perf_counter_ns() - began)
        os.close(descriptor)
    median = statistics.median(took) / 1000
    name, limit = "open below a mount, depth 3, median", 15.0 if times >= _ENOUGH else None
    yield Row(name, "≤ 15 µs", f"{median:.1f} µs", median, limit)


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


def _searches(tree: Path, name: str, *, quick: bool) -> Iterator[Row]:
    query, regex = _QUERIES[name]
    pattern = re.compile(query if regex else re.escape(query))
    mounts = Mounts.of(tree)
    place = mounts.place("@project")
    times = 2 if quick else 7
    order = Order(query=query, regex=regex, max_matches=100_000, timeout_s=60)
    ours, found = _best(lambda: len(search(place, order).matches), times)
    plain, theirs = _best(lambda: _plain(tree, pattern), 2 if quick else 3)
    assert found == theirs
    n = 300 if quick else 5_000
    title = f"search {n:,} files, {name}, against "
    yield _ratio(f"{title}a loop over re", ours, plain, None if quick else 1.0)
    ripgrep = shutil.which("rg")
    if ripgrep is None:
        yield Row(f"{title}ripgrep", "", "not installed here", ours)
        return
    flags = [] if regex else ["-F"]
    command = [ripgrep, "--count-matches", *flags, "-e", query, str(tree)]
    other, _ = _best(lambda: len(subprocess.run(command, capture_output=True).stdout), times)
    yield _ratio(f"{title}ripgrep", ours, other, None if quick else 5.0)


def _ratio(name: str, ours: float, other: float, limit: float | None) -> Row:
    goal = "" if limit is None else f"≤ {limit:.1f} ×"
    figure = f"{ours:.0f} ms against {other:.0f}"
    return Row(name, goal, figure, ours / other, limit, ratio=ours / other)


def _best(work: Callable[[], int], times: int) -> tuple[float, int]:
    took: list[float] = []
    found = 0
    for _ in range(times):
        began = time.perf_counter()
        found = work()
        took.append((time.perf_counter() - began) * 1000)
    return min(took), found


def _plain(tree: Path, pattern: re.Pattern[str]) -> int:
    found = 0
    for folder, _, names in os.walk(tree):
        for name in names:
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as file:
                for line in file:
                    found += pattern.search(line) is not None
    return found
