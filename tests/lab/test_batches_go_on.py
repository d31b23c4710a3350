"""A batch whose process is killed, or whose answers are recorded: nothing is asked twice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from servers.model_server import ModelServer, Reply, Visit

import nbagent
from nbagent import UsageError

ROWS = 40
TABLE: Any = pd.DataFrame({"n": range(ROWS)})
PROCESS = """
import sys
import pandas as pd
import nbagent
agent = nbagent.Agent(model="openai-compatible:little", base_url=sys.argv[1], tools="none")
table = pd.DataFrame({"n": range(int(sys.argv[2]))})
print(agent.map(table, "Number {{ n }}", name="b", concurrency=4).wait().progress.ok)
"""


def slowly(visit: Visit) -> Reply:
    time.sleep(0.02)
    return Reply("fine")


_PROOFS = [pytest.param(n, marks=pytest.mark.proof) for n in (1, 2, 15, 23, 38)]


@pytest.mark.parametrize("after", [7, *_PROOFS])
def test_a_killed_process_loses_no_finished_row_and_none_is_asked_twice(
    after: int, tmp_path: Path
) -> None:
    with ModelServer([slowly] * 200) as server:
        command = [sys.executable, "-c", PROCESS, server.url, str(ROWS)]
        with subprocess.Popen(command) as process:
            while len(server.requests) < after:
                time.sleep(0.002)
            process.kill()
        before: Any = nbagent.runs(batch="b")
        finished = before["ok"].fillna(False).sum()
        done = subprocess.run(command, capture_output=True, check=True, text=True)
        assert done.stdout.strip() == str(ROWS)
        runs: Any = nbagent.runs(batch="b")
        kept = runs[runs["run_id"].isin(before["run_id"])]
        assert kept["ok"].sum() == finished, "what was finished stays, what was not goes on anew"
        assert runs["ok"].sum() == ROWS
        assert runs.loc[runs["ok"], "row_key"].is_unique
        # Only what was on its way when the process died is asked again.
        assert len(server.requests) <= ROWS + 4
        assert set(runs.loc[runs["kind"] == "resume", "parent_id"]) <= set(before["run_id"])


def test_a_batch_that_another_process_is_at_work_on_is_left_to_it() -> None:
    with ModelServer([slowly] * 200) as server:
        command = [sys.executable, "-c", PROCESS, server.url, str(ROWS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            while len(server.requests) < 3:
                time.sleep(0.002)
            how: dict[str, Any] = {"model": "openai-compatible:little", "base_url": server.url}
            agent = nbagent.Agent(**how, tools="none")
            with pytest.raises(UsageError, match="'b' is at work, here or in another process"):
                agent.map(TABLE, "Number {{ n }}", name="b")
            assert process.communicate()[0].decode().strip() == str(ROWS)
        assert len(server.requests) == ROWS


def test_of_two_processes_that_begin_together_one_is_at_work() -> None:
    with ModelServer([slowly] * 400) as server:
        command = [sys.executable, "-c", PROCESS, server.url, str(ROWS)]
        both = [subprocess.Popen(command, stdout=-1, stderr=-1) for _ in range(2)]
        said = [process.communicate()[0].decode().strip() for process in both]
        assert sorted(said) in (["", str(ROWS)], [str(ROWS)] * 2)
        assert len(server.requests) == ROWS
    runs: Any = nbagent.runs(batch="b")
    assert (len(runs), runs["row_key"].is_unique) == (ROWS, True)


def test_each_repeat_is_recorded_and_replayed_as_its_own(tmp_path: Path) -> None:
    answers = iter(range(100))
    cassette = str(tmp_path / "answers.jsonl")

    def answer(visit: Visit) -> str:
        return f"answer {next(answers)}"

    with ModelServer([answer] * 100) as server:
        how: dict[str, Any] = {"model": "openai-compatible:little", "base_url": server.url}
        agent = nbagent.Agent(**how, tools="none", cassette=cassette)
        first: Any = agent.map(TABLE.head(3), "Number {{ n }}", repeat=2, name="one").wait().frame()
        again: Any = agent.map(TABLE.head(3), "Number {{ n }}", repeat=2, name="two").wait().frame()
        assert len(server.requests) == 6
    assert first["text"].nunique() == 6
    assert first["text"].tolist() == again["text"].tolist()
