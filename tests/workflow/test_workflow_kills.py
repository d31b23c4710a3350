"""`kill -9` of a workflow with a branch and a loop, again and again, until it is complete.

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
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_answered, check_file, check_record, column
from workflow_victim import (
    AFTER_A_MOVE,
    ANEW,
    AT_RANDOM,
    BEFORE_A_MOVE,
    DOCUMENT,
    NEVER,
    PACKAGE,
    RESUME,
    document_in,
)

import nbagent
from nbagent.session.stores import close_stores, current_store
from nbagent.settings import begun_anew
from nbagent.workflow.package import load_package
from nbagent.workflow.state import State, read_state

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork there")

SOURCE = Path(__file__).parents[2] / "notebooks" / "packages" / PACKAGE
STATIONS = "station,day,temp\nOslo,2026-05-01,11\nOslo,2026-05-01,11\nBergen,2026-05-01,9\n"
Move = tuple[str, str]


class Executioner:
    """The process that forks victims and kills them."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("workflow_victim.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root), "PYTHONWARNINGS": "ignore"},
        )

    def run(self, *words: str) -> bool:
        """Let a victim begin or go on; whether it was killed, and not at its end before."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return code != 0

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def executioner() -> Iterator[Executioner]:
    made = Executioner()
    yield made
    made.close()


class Review:
    """One workflow, from its beginning over many deaths to its end."""

    def __init__(self, folder: Path) -> None:
        self.project, self.home = folder / "project", folder / "home"
        shutil.copytree(SOURCE, self.project / PACKAGE)
        (self.project / "data").mkdir()
        (self.project / "data" / "stations.csv").write_text(STATIONS)
        self.graph = load_package(self.project / PACKAGE).graph
        plain: Any = json.loads((SOURCE / "workflow.graph.json").read_text())
        self.nodes: dict[str, Any] = {node["id"]: node for node in plain["nodes"]}
        self.edges = {(edge["from"], edge["to"]) for edge in plain["edges"]}
        self.state: State | None = None
        self.runs: set[str] = set()
        """The runs that were looked at."""
        self.n_forgotten = 0
        """The moves that the document had when the store was last deleted."""

    @property
    def is_complete(self) -> bool:
        return self.state is not None and self.state.is_complete(self.graph)

    @property
    def moves(self) -> list[Move]:
        """Those of the document, in their order."""
        if self.state is None:
            return []
        here = () if self.state.ended() else (self.state.node,)
        return list(pairwise((*self.state.completed, *here)))

    def way(self) -> str:
        """How the next process goes on; it may have no store any more."""
        if self.state is None:
            return ANEW
        way = random.choice((RESUME, RESUME, DOCUMENT, "deleted"))
        if way == "deleted":
            for file in self.home.glob("runs.sqlite*"):
                file.unlink()
            self.runs.clear()
            self.n_forgotten = len(self.moves)
        return RESUME if way == RESUME and self.runs else DOCUMENT

    def look(self, way: str) -> None:
        """What the dead process left: the document, the store, the log."""
        before = self.state
        file = document_in(self.home)
        if file is not None:
            self.state = read_state(file.read_bytes(), self.graph)
        assert self.state is not None or before is None, "the document is gone"
        if self.state is not None:
            self._look_at_document(self.state, before)
            self._look_at_log()
        os.environ["NBAGENT_HOME"] = str(self.home)
        os.chdir(self.project)
        with begun_anew():
            self._look_at_store(way)
            close_stores()

    def _look_at_document(self, now: State, before: State | None) -> None:
        done = before.completed if before else ()
        assert now.completed[: len(done)] == done, "what was completed is taken back"
        entry = next(iter(self.nodes))
        assert (*now.completed, now.node)[0] == entry
        assert set(self.moves) <= self.edges
        for step in now.completed:
            for path in self.nodes[step].get("outputsMap", {}).values():
                assert (self.project / path.removeprefix("@project/")).stat().st_size

    def _look_at_log(self) -> None:
        log = self.home / "audit.jsonl"
        if not log.exists():
            assert not self.moves
            return
        assert nbagent.verify_audit(self.home)
        said = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        changes = [line for line in said if line["kind"] == "state"]
        after = [line["sha256_after"] for line in changes]
        assert len(set(after)) == len(after), "a change of the document stands in the log twice"
        check_order([(line["from"], line["to"]) for line in changes if "from" in line], self.moves)
        calls = Counter((line["run"], line["call"]) for line in said if line["kind"] == "call")
        assert set(calls.values()) <= {1}

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
            assert run.workflow is not None
            assert run.workflow.current_node == (self.state and self.state.node)
            visits = [turn.node for turn in run.turns]
            check_order([(a, b) for a, b in pairwise(visits) if a != b], self.moves)


def rows_of(frame: Any) -> list[Move]:
    """From where to where, as a frame says."""
    return list(zip(column(frame, "from_node"), column(frame, "to_node"), strict=True))


def check_order(some: Sequence[Any], whole: Sequence[Any]) -> None:
    """The first ones stand in the second ones, in the same order, each of them once."""
    rest = iter(whole)
    assert all(one in rest for one in some), (some, whole)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(5, id="short"),
        pytest.param(100, id="long", marks=[pytest.mark.proof, pytest.mark.timeout(1_800)]),
    ],
)
def test_a_workflow_killed_at_random_moments_goes_on_at_the_right_step_and_ends_complete(
    kills: int, executioner: Executioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path))  # Both are put back at the end.
    monkeypatch.chdir(tmp_path)
    folders = (tmp_path / str(n) for n in count())
    killed, review = 0, Review(next(folders))
    while killed < kills or not review.is_complete:
        if review.is_complete:
            review = Review(next(folders))
        way = review.way()
        moment = AT_RANDOM if killed < kills else NEVER
        is_dead = executioner.run(str(review.project), str(review.home), way, moment)
        review.look(way)
        assert is_dead or review.is_complete
        killed += is_dead


@pytest.mark.parametrize("moment", [BEFORE_A_MOVE, AFTER_A_MOVE])
def test_a_move_that_was_cut_off_is_a_row_and_the_next_run_says_what_became_of_it(
    moment: str, executioner: Executioner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path))  # Both are put back at the end.
    monkeypatch.chdir(tmp_path)
    review = Review(tmp_path / "review")
    assert executioner.run(str(review.project), str(review.home), ANEW, moment)
    review.look(ANEW)
    made = moment == AFTER_A_MOVE
    assert len(review.moves) == 1 + made
    move = ("step-02-profile", "step-03-clean")
    assert not executioner.run(str(review.project), str(review.home), RESUME, NEVER)
    review.look(RESUME)
    assert review.is_complete
    monkeypatch.setenv("NBAGENT_HOME", str(review.home))
    frame: Any = nbagent.transitions()
    cut = frame[frame["accepted"].isna()]
    assert rows_of(cut) == [move]
    assert column(cut, "error_code") == ["E_INTERRUPTED"]
    assert rows_of(frame[frame["accepted"].fillna(False)]).count(move) == 1 - made
    said = nbagent.open_run("last").record.notices
    word = "made" if made else "not made"
    assert f"{move[0]} → {move[1]} was cut off; as the document says, it was {word}" in said
