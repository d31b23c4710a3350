"""The version whose key of a score has its author keeps each score of the version before."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from store.dying_process import Forker
from store.older_stores import FILE, copy_store, dump, finish_upkeep, schema
from store.test_migrations import earlier_code, run_code

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.session.stores import current_store
from nbagent.store import upkeep
from nbagent.store.dataframes import read_frame
from nbagent.store.migrations import backup_path
from nbagent.store.writer import Store

COMMIT_OF_7 = "4c8a3afb"
LABEL = """
import nbagent
agent = nbagent.Agent(nbagent.offline.script(["Six.", "Four."]), tools="none")
for name, n in (("first", 6), ("second", 4)):
    run = agent.run(f"{n}?", name=name)
    nbagent.score(run, "quality", n, by="anna", reason="h\\u00f6flich")
    nbagent.score(run, "quality", n - 1, by="ben", version=2)
    nbagent.score(run, "tone", "dry")
"""
READ = """
import json
import nbagent
frame = nbagent.scores()
rows = frame[["scorer", "version", "by"]].astype(str).values.tolist()
print(json.dumps([rows, frame["value"].astype(float).fillna(-1).tolist()]))
"""


@pytest.fixture(scope="module")
def code_of_7(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return earlier_code(tmp_path_factory.mktemp("seven"), COMMIT_OF_7)


@pytest.fixture(scope="module")
def labelled(code_of_7: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of version 7 with six labels of two runs."""
    folder = tmp_path_factory.mktemp("labelled")
    run_code(folder, LABEL, folder / "home", code_of_7)
    assert schema(copy_store(folder / "home", folder / "copy") / FILE)[0] == 7
    return folder / "copy"


def scores(home: Path) -> Any:
    with closing(Store.open(home)) as store:
        assert store.warning is None
        frame: Any = read_frame([store], "scores", {})
    cells = ["scorer", "version", "by", "value", "label", "reason"]
    return frame[cells].astype(object).fillna("").to_numpy().tolist()


WANTED = [
    *(["quality", 1, "anna", 6.0, "", "höflich"], ["quality", 2, "ben", 5.0, "", ""]),
    *(["tone", 1, "person", "", "dry", ""], ["quality", 1, "anna", 4.0, "", "höflich"]),
    *(["quality", 2, "ben", 3.0, "", ""], ["tone", 1, "person", "", "dry", ""]),
]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork and no SIGKILL there")
@pytest.mark.parametrize(
    "step", [pytest.param(7, id="some"), pytest.param(1, id="all", marks=pytest.mark.proof)]
)
def test_a_store_killed_while_its_scores_get_another_key_keeps_all_of_them(
    step: int, labelled: Path, forker: Forker, tmp_path: Path
) -> None:
    rows = dict(dump(copy_store(labelled, tmp_path / "before") / FILE))["scores"][1]
    versions: set[int] = set()
    for n in count(1, step):
        home = copy_store(labelled, tmp_path / str(n))
        if forker.run("open", home, die_at=n):
            break
        copy = copy_store(home, tmp_path / f"{n} looked at")
        versions.add(schema(copy / FILE)[0])
        assert sorted(dict(dump(copy / FILE))["scores"][1]) == sorted(rows)
        assert "scores_before" not in dict(dump(copy / FILE))
        assert scores(home) == WANTED
    assert versions >= {7}
    whole = copy_store(labelled, tmp_path / "whole")
    assert scores(whole) == WANTED
    assert backup_path(whole / FILE, 7).exists()


def test_the_code_of_the_version_before_reads_scores_by_several_people_and_changes_nothing(
    labelled: Path, code_of_7: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copy_store(labelled, tmp_path / "home")
    monkeypatch.setenv("NBAGENT_HOME", str(home))
    nbagent.score("first", "quality", 2, by="ben")
    before = dump(copy_store(home, tmp_path / "copy") / FILE)
    rows, values = json.loads(run_code(tmp_path, READ, home, code_of_7))
    assert [row for row in rows if row[0] == "quality"][:3] == [
        ["quality", "1", "anna"],
        ["quality", "1", "ben"],
        ["quality", "2", "ben"],
    ]
    assert sorted(values) == [-1.0, -1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert dump(copy_store(home, tmp_path / "after") / FILE) == before


def test_a_score_without_an_author_in_an_earlier_store_is_read_with_none(
    labelled: Path, tmp_path: Path
) -> None:
    home = copy_store(labelled, tmp_path / "home")
    with closing(sqlite3.connect(home / FILE)) as c:
        c.execute("UPDATE scores SET scored_by = NULL WHERE scorer = 'tone'")
        c.commit()
    assert [row[2] for row in scores(home)] == [
        "" if row[0] == "tone" else row[2] for row in WANTED
    ]


def test_all_scores_of_a_deleted_run_are_deleted_whatever_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = nbagent.Agent(nbagent.offline.script(["Six."]), tools="none").run("3?")
    for name in ("quality", "tone"):
        for by in ("anna", "ben", "cem"):
            nbagent.score(run, name, 3, by=by)
    monkeypatch.setattr(upkeep, "_ROWS_A_STEP", 1)
    nbagent.forget(run)
    store = current_store()
    finish_upkeep(store)
    with store.reading() as c:
        assert c.execute("SELECT count(*) FROM scores").fetchone() == (0,)
    with pytest.raises(UsageError, match="no run is called"):
        nbagent.score(run.id, "quality", 3)
