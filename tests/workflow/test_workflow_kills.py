"""`kill -9` of a workflow with a branch and a loop: at writes of its document, and at random.

After each kill: the document can be read and has lost nothing, and the next process goes on where
it says, from the store or from the document alone; no move is counted twice.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_answered, check_file, check_record, column
from workflow_victim import ANEW, AT_RANDOM, DOCUMENT, NEVER, PACKAGE, RESUME, document_in

import nbagent
from nbagent.session.stores import close_stores, current_store
from nbagent.settings.sources import fresh_settings
from nbagent.workflow.package import load_package
from nbagent.workflow.state import State, read_state

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork there")

SOURCE = Path(__file__).parents[2] / "notebooks" / "packages" / PACKAGE
STATIONS = "station,day,temp\nOslo,2026-05-01,11\nOslo,2026-05-01,11\nBergen,2026-05-01,9\n"
Move = tuple[str, str]
Process = subprocess.Popen[str]


@pytest.fixture(scope="module")
def executioner() -> Iterator[Process]:
    """The process that forks victims."""
    pipe, root = subprocess.PIPE, Path(__file__).parents[2]
    command = [sys.executable, str(Path(__file__).with_name("workflow_victim.py"))]
    env = {**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as made:
        yield made
        made.communicate(timeout=10)


class Review:
    """One workflow, from its beginning over its deaths to its end."""

    def __init__(self, folder: Path, executioner: Any) -> None:
        self.project, self.home = folder / "project", folder / "nbagent-home"
        self.executioner = executioner
        shutil.copytree(SOURCE, self.project / PACKAGE)
        (self.project / "data").mkdir()
        (self.project / "data" / "stations.csv").write_text(STATIONS)
        self.graph = load_package(self.project / PACKAGE).graph
        self.state: State | None = None
        self.runs: set[str] = set()
        """The runs that were looked at."""
        self.n_forgotten = 0
        """The moves that the document had when the store was deleted."""

    @property
    def moves(self) -> list[Move]:
        """Those of the document, in their order."""
        if self.state is None:
            return []
        here = () if self.state.is_step_done() else (self.state.node,)
        return list(pairwise((*self.state.completed, *here)))

    def forget(self) -> None:
        """Delete the store: the document has to be enough."""
        for file in self.home.glob("runs.sqlite*"):
            file.unlink()
        self.runs.clear()
        self.n_forgotten = len(self.moves)

    def walk(self, way: str, kill: str = NEVER) -> bool:
        """Let a process begin or go on, and look at what it left; whether it was killed."""
        words = (str(self.project), str(self.home), way, kill)
        self.executioner.stdin.write("\t".join(words) + "\n")
        self.executioner.stdin.flush()
        code = int(self.executioner.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        before, file = self.state, document_in(self.home)
        assert file is not None or before is None, "the document is gone"
        if file is not None:
            self.state = read_state(file.read_bytes(), self.graph)
            self._look_at_document(self.state, before)
        with fresh_settings():
            self._look_at_store(way)
            close_stores()
        return code != 0

    def _look_at_document(self, now: State, before: State | None) -> None:
        done = before.completed if before else ()
        assert now.completed[: len(done)] == done, "what was completed is taken back"
        assert set(self.moves) <= {(edge.source, edge.target) for edge in self.graph.edges}
        for _, path in (it for step in now.completed for it in self.graph.nodes[step].outputs):
            assert (self.project / path.removeprefix("@project/")).stat().st_size
        log = self.home / "audit.jsonl"
        assert log.exists() or not self.moves
        if log.exists():
            assert nbagent.verify_audit(self.home)
            said = [json.loads(line) for line in log.read_text().splitlines() if line[-1] == "}"]
            changes = [line for line in said if line["kind"] == "state"]
            after = [line["sha256_after"] for line in changes]
            assert len(set(after)) == len(after), "a change of the document stands there twice"
            moved = [(line["from"], line["to"]) for line in changes if "from" in line]
            check_order(moved, self.moves)

    def _look_at_store(self, way: str) -> None:
        if not (self.home / "runs.sqlite").exists():
            return
        check_file(current_store())
        frame: Any = nbagent.transitions()
        since = self.moves[self.n_forgotten :]
        check_order(rows_of(frame[frame["accepted"].fillna(False)]), since)
        # Of a move whose process died before it was kept, nothing is said but that it was tried.
        check_order(since, rows_of(frame[frame["accepted"].fillna(True)]))
        for run_id in {*column(nbagent.runs(), "run_id")} - self.runs:
            self.runs.add(run_id)
            run = nbagent.open_run(run_id)
            check_record(run.record)
            check_answered(run.messages)
            assert run.record.kind == (RESUME if way == RESUME else "start")
            visits = [turn.node for turn in run.turns]
            check_order([(a, b) for a, b in pairwise(visits) if a != b], self.moves)


def rows_of(frame: Any) -> list[Move]:
    """From where to where, as a frame says."""
    return list(zip(column(frame, "from_node"), column(frame, "to_node"), strict=True))


def check_order(some: Sequence[Any], whole: Sequence[Any]) -> None:
    """The first ones stand in the second ones, in the same order, each of them once."""
    rest = iter(whole)
    assert all(one in rest for one in some), (some, whole)


@pytest.fixture
def review(executioner: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Review:
    made = Review(tmp_path, executioner)
    monkeypatch.chdir(made.project)
    return made


@pytest.mark.parametrize(
    "n", [0, *(pytest.param(n, marks=pytest.mark.proof) for n in range(1, 21))]
)
def test_a_workflow_killed_at_random_goes_on_at_the_right_step(n: int, review: Review) -> None:
    way, killed = ANEW, 0
    while review.walk(way, AT_RANDOM if killed < 6 else NEVER):
        killed += 1
        if review.state and review.state.is_complete(review.graph):
            break
        way = random.choice((RESUME, DOCUMENT)) if review.state else ANEW
        if not review.runs or random.random() < 0.2:
            review.forget()
            way = DOCUMENT if review.state else ANEW
    assert review.state is not None
    assert review.state.is_complete(review.graph)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_move_that_was_cut_off_is_a_row_and_the_next_run_says_what_became_of_it(
    moment: str, review: Review
) -> None:
    assert review.walk(ANEW, f"{moment} 3")
    made = moment == "after"
    assert len(review.moves) == 1 + made
    move = ("step-02-profile", "step-03-clean")
    assert not review.walk(RESUME)
    frame: Any = nbagent.transitions()
    cut = frame[frame["accepted"].isna()]
    assert rows_of(cut) == [move]
    assert column(cut, "error_code") == ["E_INTERRUPTED"]
    assert rows_of(frame[frame["accepted"].fillna(False)]).count(move) == 1 - made
    said = nbagent.open_run("last").record.notices
    word = "made" if made else "not made"
    assert f"{move[0]} → {move[1]} was cut off; as the document says, it was {word}" in said
