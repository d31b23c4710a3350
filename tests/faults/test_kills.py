"""`kill -9` at every named point and at random: nothing acknowledged lost, nothing done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.laws import check_answered, check_file, check_record, check_run, codes, column
from faults.victim import ANSWER, IN_STORE, IN_TOOL, POINTS, RANDOM, TURNS, lines, options_of

import nbagent
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import Usage
from nbagent.session.stores import close_stores, current_store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork there")


class Executioner:
    """The process that forks victims."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[1])
        environ = {**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        )

    def kill(self, point: str, folder: Path) -> None:
        """Run a victim to its death."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{point}\t{folder}\n")
        self._process.stdin.flush()
        assert int(self._process.stdout.readline()) == signal.SIGKILL

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def executioner() -> Iterator[Executioner]:
    made = Executioner()
    yield made
    made.close()


def check_dead(run: nbagent.Run, folder: Path) -> None:
    """Check the store after the kill: intact, whole, and with all that was acknowledged."""
    check_file(current_store())
    record = run.record
    check_record(record)
    check_answered(run.messages)
    told = [line.split() for line in lines(folder / "acknowledged")]
    ended = [words[1] for words in told if words[0] == "end"]
    if record.error is not None:
        assert (record.phase, record.error.code) == ("Failed", "ENGINE_INTERRUPTED")
        assert not ended
    else:
        assert record.stop_reason == "answered"
    counted = [turn.response.usage for turn in run.turns if turn.response]
    assert record.usage == sum((usage for usage in counted if usage), Usage())
    if "E_INTERRUPTED" in codes(run):
        last = run.turns[-1]
        assert (last.phase_after, last.stop_reason, last.error) == ("Failed", "error", record.error)
    turns = {turn.id: turn for turn in run.turns}
    for kind, *words in told:
        if kind == "turn":
            assert turns[words[0]].response is not None
        elif kind == "result":
            kept = {r.tool_call_id: r.result for r in turns[words[0]].tool_runs}[words[1]]
            assert kept is not None
            assert kept.ok
    row = nbagent.runs(run_id=run.id)
    assert column(row, "phase") == [record.phase]
    assert len(nbagent.turns(run_id=run.id)) == len(record.turns)
    assert len(nbagent.tool_runs(run_id=run.id)) == sum(len(t.tool_runs) for t in record.turns)
    roles = column(nbagent.messages(run_id=run.id), "role")
    assert len([role for role in roles if role != "system"]) == len(record.messages)


def check_effects(runs: list[nbagent.Run], folder: Path) -> None:
    """Nothing is done twice, and nothing is told as done that is not."""
    effects = [line.split() for line in lines(folder / "effects")]
    keys = {name: Counter(key for n, _, key in effects if n == name) for name in ("write", "put")}
    assert not [key for name in keys for key, times in keys[name].items() if times > 1]
    asked: dict[str, ToolCall] = {}
    for run in runs:
        for turn in run.turns:
            for call in turn.response.message.tool_calls if turn.response else ():
                asked[f"{run.id}/{turn.id}/{call.id}"] = call
            for done in turn.tool_runs:
                key = f"{run.id}/{turn.id}/{done.tool_call_id}"
                if done.result is not None and done.result.ok:
                    assert key in keys[done.tool_name], f"{key} is told as done and was not"
    assert set(keys["write"]) | set(keys["put"]) <= set(asked)


def kill_and_go_on(executioner: Executioner, point: str, folder: Path) -> nbagent.Run | None:
    """One kill; returns the run as it was found, None when it had not even begun."""
    folder.mkdir()
    os.environ["NBAGENT_HOME"] = str(folder / "home")
    executioner.kill(point, folder)
    try:
        begun = [line.split()[1] for line in lines(folder / "acknowledged") if "run " in line]
        if not begun and nbagent.runs().empty:
            return None
        found = nbagent.open_run("last")
        assert begun in ([], [found.id])
        check_dead(found, folder)
        child = found.resume("Again?" if found.ok else None, **options_of(folder))
        check_run(child)
        assert child.text == ANSWER
        assert child.turns[0].index == len(found.turns) + 1
        closed = nbagent.open_run(found.id)
        check_dead(closed, folder)
        assert closed.record == found.record, "an ended run never changes"
        check_effects([closed, child], folder)
        assert child.messages[: len(closed.messages)] == closed.messages
        return closed
    finally:
        close_stores()


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path))  # put back at the end
    return tmp_path


@pytest.mark.parametrize("point", [*POINTS, *IN_TOOL, *IN_STORE])
def test_a_run_killed_at_a_named_point_goes_on(
    point: str, executioner: Executioner, home: Path
) -> None:
    found = kill_and_go_on(executioner, point, home / "k")
    assert found is not None
    finished = {
        "turn finished": 2,
        "before the last request": TURNS,
        "last turn finished": TURNS + 1,
        "run finished": TURNS + 1,
    }
    if point in finished:
        assert len(found.turns) == finished[point]
    if point == "in the tool after":
        assert codes(found) == [None, None, "E_INTERRUPTED", None], "put had its result"
    if point == "in the async tool":
        assert codes(found) == [None, None, "E_INTERRUPTED", "E_INTERRUPTED"]


@pytest.mark.parametrize(
    "times", [6, pytest.param(200, marks=[pytest.mark.proof, pytest.mark.timeout(1800)])]
)
def test_killed_at_random_nothing_is_lost_and_nothing_done_twice(
    times: int, executioner: Executioner, home: Path
) -> None:
    ends: Counter[str] = Counter()
    named = [*POINTS, *IN_TOOL, *IN_STORE]
    for n in range(times):
        # The long form dies at the named points too: what comes after them is another moment.
        point = named[n // 2 % len(named)] if n % 2 and times > len(named) else RANDOM
        found = kill_and_go_on(executioner, point, home / str(n))
        if found is None:
            ends["before it began"] += 1
        elif found.ok:
            ends["after its end"] += 1
        else:
            ends[f"with {len(found.turns)} turns kept"] += 1
            ends["E_INTERRUPTED calls"] += codes(found).count("E_INTERRUPTED")
    print(f"{times} kills: {dict(sorted(ends.items()))}")


_EIGHT_RUNS = """
import nbagent
for _ in range(8):
    assert nbagent.Agent("offline:demo", tools="none").run("Go.").ok
"""


def test_two_processes_write_to_one_store_and_lose_nothing(home: Path) -> None:
    children = [subprocess.Popen([sys.executable, "-c", _EIGHT_RUNS]) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert len(nbagent.runs()) == len(nbagent.turns()) == 16
    check_file(current_store())
