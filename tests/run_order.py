"""Order of a run: tests that assert a time go first and alone; and its ten slowest files.

The first process takes all `timed` tests while the others wait. They go first, not last, because a
process that has opened a browser keeps playwright's event loop in its main thread to its end.
"""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest
from xdist.scheduler import LoadFileScheduling

_FOLDER = pytest.StashKey[Path]()
_TIMED = "timed"
_LISTED_FILES = 10


def _is_timed(item: pytest.Item) -> bool:
    # The browser's tests keep their place: they share pages and a server, file by file.
    return item.get_closest_marker(_TIMED) is not None and "browser" not in item.path.parts


class TimedFirst(LoadFileScheduling):
    """File by file, after one unit of all timed tests, which the first process runs alone."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._timed = frozenset[str]()
        self._left: set[str] = set()
        """The timed tests that have not ended."""

    def schedule(self) -> None:
        """Called by xdist when every process has collected."""
        if self.collection is None:
            # A process cannot send its marks, so the first one leaves them in a file.
            listed = self.config.stash[_FOLDER] / "timed.json"
            self._timed = frozenset(json.loads(listed.read_text("utf-8")))
            self._left = set(self._timed)
        super().schedule()

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Called by xdist; lets the other processes begin behind the last timed test."""
        self._left.discard(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        if not self._left:
            # Not a process that died, nor a new one that is still collecting.
            for other in self.assigned_work.keys() & self.registered_collections.keys():
                if not self.assigned_work[other]:
                    self._reschedule(other)

    def remove_node(self, node: Any) -> str | None:
        """Called by xdist when a process ends or dies; nobody waits for a dead one."""
        self._left.clear()
        return super().remove_node(node)

    def _assign_work_unit(self, node: Any) -> None:
        if self._left and node is not self.nodes[0]:
            return
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return _TIMED if nodeid in self._timed else super()._split_scope(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="nbagent-tests-"))


def pytest_unconfigure(config: pytest.Config) -> None:
    if folder := config.stash.get(_FOLDER, None):
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["timed_folder"] = str(node.config.stash[_FOLDER])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return TimedFirst(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not _is_timed(item))
    given = cast("dict[str, str]", getattr(config, "workerinput", {}))
    if given.get("workerid") == "gw0":
        listed = Path(given["timed_folder"]) / "timed.json"
        listed.write_text(json.dumps([it.nodeid for it in items if _is_timed(it)]), "utf-8")


def pytest_collection_finish() -> None:
    """Keep what collecting made out of the collections of garbage that tests ask for."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Keep what a file has imported out of them too: pandas and Dask take 0.3 s each time."""
    yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > _LISTED_FILES:
        terminalreporter.section(f"slowest {_LISTED_FILES} files")
        for name, lasted_s in sorted(seconds.items(), key=lambda row: -row[1])[:_LISTED_FILES]:
            terminalreporter.write_line(f"{lasted_s:7.1f} s  {name}")
