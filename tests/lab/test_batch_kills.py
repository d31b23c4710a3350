"""`kill -9` in a batch at named moments: the same call continues, nothing is lost or paid twice."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from lab.batch_victim import NAME, POINTS, ROWS, TABLE, TEMPLATE, agent_and_scorers

import nbagent

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
SHORT = ("in a tool", "before scores are stored")
"""The moments that are tried without `-m proof`."""
MAIN = "from lab.batch_victim import main; main()"
# A kill comes in the midst of this many cases: the concurrency.
AT_WORK = 2


def kill(point: str, folder: Path) -> None:
    """Let a process work on the batch until it dies."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]),
    }
    died = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MAIN, point, str(folder)], env=environ, check=False
    )
    assert died.returncode == -signal.SIGKILL


def go_on(folder: Path, *, by_name: bool) -> Any:
    """Continue the batch in this process: by its name, or by the same call."""
    agent, scorers = agent_and_scorers(folder)
    how: dict[str, Any] = {"score": scorers, "concurrency": AT_WORK}
    if by_name:
        return nbagent.batch(NAME, data=TABLE, agent=agent, **how).resume()
    return agent.map(TABLE, TEMPLATE, name=NAME, **how).wait()


def lines(folder: Path, kind: str) -> Counter[str]:
    file = folder / kind
    return Counter(file.read_text().splitlines() if file.exists() else [])


def stored() -> tuple[set[str], dict[tuple[str, str], Any]]:
    """The ids of answered runs, and all scores by run and name."""
    runs: Any = nbagent.runs(batch=NAME)
    scores: Any = nbagent.scores(batch=NAME)
    keys = [*zip(scores["run_id"], scores["scorer"], strict=True)]
    assert len({*keys}) == len(keys), "each scorer scored a run once"
    by_key = dict(zip(keys, scores["value"].tolist(), strict=True))
    return {*runs.loc[runs["ok"].fillna(False), "run_id"]}, by_key


@pytest.mark.parametrize(
    "point",
    [point if point in SHORT else pytest.param(point, marks=pytest.mark.proof) for point in POINTS],
)
def test_a_batch_killed_at_a_moment_continues_and_pays_nothing_twice(
    point: str, tmp_path: Path
) -> None:
    kill(point, tmp_path)
    answered, scored = stored()
    asked_before = lines(tmp_path, "asked")
    done = go_on(tmp_path, by_name=POINTS.index(point) % 2 == 1)

    frame: Any = done.frame()
    assert (done.progress.state, done.progress.ok) == ("Finished", ROWS)
    assert frame["text"].tolist() == [f"fine {n}" for n in range(ROWS)]
    assert frame["score_exact"].tolist() == frame["score_judge"].tolist() == [True] * ROWS
    runs, scores = stored()
    assert answered <= runs, "no answer is lost"
    assert len(runs) == ROWS, "no row is answered twice"
    assert scored.items() <= scores.items(), "no score is lost or changed"
    assert len(scores) == ROWS * 2

    # Only what was on its way when the process died is done again.
    twice = {kind: sum((lines(tmp_path, kind) - n).values()) for kind, n in _once().items()}
    assert all(n <= AT_WORK for n in twice.values()), twice
    rows_of = dict(zip(frame["run_id"], frame["n"], strict=True))
    again = lines(tmp_path, "asked") - asked_before
    assert not [n for run_id, n in rows_of.items() if run_id in answered and again[f"{n} 1"]]
    assert sum(lines(tmp_path, "asked").values()) >= 2 * ROWS, "the model was asked here"


def _once() -> dict[str, Counter[str]]:
    """What each row needs once: two requests, a call, a scorer; and all rows together a judge."""
    rows = [str(n) for n in range(ROWS)]
    return {
        "asked": Counter([f"{n} {length}" for n in rows for length in (1, 3)]),
        "looked": Counter(rows),
        "scored": Counter(rows),
        "judged": Counter({"once": ROWS}),
    }
