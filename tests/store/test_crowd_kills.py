"""`kill -9` of processes in which agents work together on a store that is being migrated."""

from __future__ import annotations

import random
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from engine.laws import check_answered, check_record, check_run
from store.crowd_process import ANSWER, options_of, random_end, word_of
from store.dying_process import Forker, notes
from store.older_stores import (
    FILE,
    blocks_of_eight_runs,
    check_index,
    copy_store,
    finish_upkeep,
    frames_of,
    ids_of,
    schema,
    version_6_store,
    without_upkeep,
)

import nbagent
from nbagent.contracts.records import RunRecord
from nbagent.session.stores import close_stores, current_store
from nbagent.store.columns import VERSION
from nbagent.store.writer import Store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL and no fork there")
TO_FORGET = ("circle", "decided", "strict", "trimmed")
"""Names of runs of version 6 that no other run continues."""


@dataclass(frozen=True)
class Older:
    """A store of version 6, and its records."""

    home: Path
    records: dict[str, RunRecord]
    to_forget: list[str]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Older:
    folder = tmp_path_factory.mktemp("older")
    home = version_6_store(folder / "six", in_log=True)
    with pytest.MonkeyPatch.context() as patch:
        without_upkeep(patch)
        with closing(Store.open(copy_store(home, folder / "seven"))) as store:
            records = {run_id: store.load(run_id) for run_id in ids_of(store)}
            return Older(home, records, [store.find(name) for name in TO_FORGET])


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    without_upkeep(monkeypatch)
    blocks_of_eight_runs(monkeypatch)
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    close_stores()


class Told:
    """What a process was told is on disk, by its notes."""

    def __init__(self, home: Path) -> None:
        lines = [line.split() for line in notes(home / "acknowledged")]
        self.opened = ["opened"] in lines
        self._by_kind = {kind: [words for k, *words in lines if k == kind] for kind, *_ in lines}

    def runs(self, kind: str) -> set[str]:
        """Ids of the runs of a kind of notes."""
        return {words[0] for words in self._by_kind.get(kind, ())}

    def of(self, kind: str, run_id: str) -> list[list[str]]:
        """Words of the notes of a kind on a run."""
        return [words for first, *words in self._by_kind.get(kind, ()) if first == run_id]


def check_own_run(record: RunRecord, told: Told) -> None:
    """A run that a process worked on when it died, or that had ended."""
    check_record(record)
    check_answered(record.messages)
    if told.of("end", record.id):
        assert record.ok
        assert record.text == ANSWER
    elif record.error is not None:
        assert record.error.code == "ENGINE_INTERRUPTED"
    turns = {turn.id: turn for turn in record.turns}
    for (turn_id,) in told.of("turn", record.id):
        assert turns[turn_id].response is not None
    for turn_id, call_id in told.of("result", record.id):
        (result,) = [it.result for it in turns[turn_id].tool_runs if it.tool_call_id == call_id]
        assert result is not None
        assert result.ok


def check_effects(records: list[RunRecord], home: Path) -> None:
    """No call ran twice, and each that has a result ran."""
    ran = Counter(notes(home / "effects"))
    assert set(ran.values()) <= {1}
    for record in records:
        for turn in record.turns:
            for it in turn.tool_runs:
                if it.result is not None and it.result.ok:
                    assert ran[f"{it.tool_name} {record.id}/{turn.id}/{it.tool_call_id}"] == 1


def check_killed(home: Path, older: Older) -> str:
    """Everything that is promised of a store whose process died; returns where it died."""
    version, _ = schema(copy_store(home, home.with_name("looked at")) / FILE)
    shutil.rmtree(home.with_name("looked at"))
    told, store = Told(home), current_store()
    assert version == VERSION or (version == 6 and not told.opened)
    assert store.warning is None
    ids = set(ids_of(store))
    forgetting, forgotten = told.runs("forgetting"), told.runs("forgotten")
    assert not ids & forgotten
    assert (set(older.records) | told.runs("run")) - ids <= forgetting
    for run_id, record in older.records.items():
        if run_id in ids:
            assert store.load(run_id) == record
    own = [store.load(run_id) for run_id in sorted(ids - set(older.records))]
    for record in own:
        check_own_run(record, told)
    check_effects(own, home)
    frames = frames_of(store)
    for run_id in forgetting - ids:
        assert not [name for name, cells in frames.items() if run_id in cells]
        assert store.search(word_of(run_id)).run_ids == []
    interrupted = [record.id for record in own if record.error is not None]
    if interrupted:
        child = nbagent.open_run(interrupted[0]).resume(**options_of(home / "effects"))
        check_run(child, whole_store=False)
        assert child.text == ANSWER
    finish_upkeep(store)
    store.database.checkpoint()
    check_index(store)
    data = (home / FILE).read_bytes()
    for run_id in forgetting - ids:
        assert word_of(run_id).encode() not in data
    for record in own:
        if any(word_of(record.id) in message.text for message in record.messages):
            assert record.id in store.search(word_of(record.id)).run_ids
    if not told.opened:
        return "before it was open"
    return "in a run" if interrupted else "between runs"


@pytest.mark.parametrize(
    "times", [12, pytest.param(400, marks=[pytest.mark.proof, pytest.mark.timeout(3600)])]
)
def test_agents_killed_together_lose_double_and_corrupt_nothing(
    times: int, older: Older, forker: Forker, home: Path
) -> None:
    chance, ends = random.Random(times), Counter[str]()
    for _ in range(times):
        copy_store(older.home, home)
        done = forker.run("work", home, to_forget=older.to_forget, **random_end(chance))
        where = check_killed(home, older)
        ends["at its end" if done else where] += 1
        close_stores()
        shutil.rmtree(home)
    print(f"{times} kills: {dict(sorted(ends.items()))}")
    assert times < 100 or min(ends.values()) > 5
