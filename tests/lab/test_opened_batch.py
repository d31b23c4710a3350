"""A batch opened by its name: its results as they were, and how it is continued."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from stage_of_batches import agent, ask, asked, note, scorer, script

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ChatRequest
from nbagent.providers.offline import StepLike

PROMPTS = {"v1": "{{ n }}?", "v2": "{{ n }}!"}
TABLES: dict[str, Any] = {
    "numbers": pd.DataFrame({"n": [1, 2, 3]}),
    "missing cells": pd.DataFrame({"n": [1.5, None, 3.0], "w": ["a", None, "c"]}),
    "times": pd.DataFrame({"n": pd.to_datetime(["2026-01-01", None])}),
    "times with a zone": pd.DataFrame({"n": [datetime(2026, 1, 1, tzinfo=UTC)]}),
    "nullable": pd.DataFrame({"n": pd.array([1, None], dtype="Int64")}),
    "categories": pd.DataFrame({"n": pd.Categorical(["a", "b"])}),
    "an index of texts": pd.DataFrame({"n": [1, 2]}, index=["first", "second"]),
    "names of the frame": pd.DataFrame({"n": [1], "text": ["mine"], "run_id": [3]}),
}


def is_long(row: Any, run: Any) -> bool:
    return len(run.text) > 3


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_batch_opened_by_its_name_has_the_same_results(table: Any) -> None:
    batch = ask(table, vary={"prompt": PROMPTS}, repeat=2, score=is_long, template="")
    batch.wait()
    opened = nbagent.batch("b")
    assert_frame_equal(opened.frame(), batch.frame())
    assert_frame_equal(opened.cells(), batch.cells())
    assert_frame_equal(opened.compare(), batch.compare())
    assert opened.axes == batch.axes
    assert len(opened) == len(batch)
    # The times differ: of the process that asked, and of the runs.
    assert str(opened).splitlines()[1:] == str(batch).splitlines()[1:]


def test_lists_and_other_values_of_a_table_come_back_as_text() -> None:
    ask(pd.DataFrame({"n": [[1, 2], {"a": 1}]})).wait()
    assert nbagent.batch("b").frame()["n"].tolist() == ["[1,2]", '{"a":1}']


def test_the_frame_of_a_batch_can_be_the_table_of_the_next() -> None:
    first = ask(name="first").wait().frame()
    batch = ask(first, template="again {{ text }}").wait()
    for same in (batch, nbagent.batch("b")):
        frame = same.frame()
        assert frame["row_key"].tolist() == ["0", "1", "2"]
        assert frame["row_row_key"].tolist() == first["row_key"].tolist()
        assert frame["row_text"].tolist() == first["text"].tolist()


@pytest.mark.parametrize("key", ["row_key", "ticket"])
def test_a_key_column_is_there_once_whatever_its_name(key: str) -> None:
    batch = ask(pd.DataFrame({key: ["a", "b"], "n": [1, 2]}), key=key).wait()
    assert batch.frame().columns.tolist()[:3] == [key, "n", "attempt"]
    assert_frame_equal(nbagent.batch("b").frame(), batch.frame())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refunds-2", "did you mean 'refunds-2026'"),
        ("refund-2026", "did you mean 'refunds-2026'"),
        ("b", "the batches are"),
        ("", "the batches are"),
        ("refunds-2026\x00", "there is no batch"),
        (None, "there is no batch 'None'"),
    ],
)
def test_a_half_name_opens_nothing(name: Any, words: str) -> None:
    ask(name="refunds-2026").wait()
    with pytest.raises(UsageError, match=words):
        nbagent.batch(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("comapre", "did you mean 'compare'"),
        ("frames", "did you mean 'frame'"),
        ("Plot", "did you mean 'plot'"),
        ("columns", "batch.frame() returns the DataFrame"),
        ("groupby", "batch.frame() returns the DataFrame"),
    ],
)
def test_a_slip_in_a_name_is_answered_with_the_nearest(name: str, words: str) -> None:
    live = ask().wait()
    for batch in (live, nbagent.batch("b")):
        with pytest.raises(AttributeError, match=re.escape(words)):
            getattr(batch, name)
        assert not hasattr(batch, f"_repr_{name}_")


def test_the_last_call_decides_which_cases_count() -> None:
    ask(vary={"prompt": PROMPTS}, template="").wait()
    ask(vary={"prompt": {"v1": "another {{ n }}"}}, template="", stale="run").wait()
    assert nbagent.batch("b").frame()["text"].tolist() == [f"a:another {n}" for n in range(3)]


def test_a_batch_that_was_stopped_names_its_open_cases() -> None:
    batch = ask(says=nbagent.offline.step(text="late", wait_ms=20_000))
    batch.stop()
    batch.wait()
    opened = nbagent.batch("b")
    assert not any(result.status == "ok" for result in opened.results())
    assert len(opened) == 3
    for name, given in {"resume": (), "dry_run": (), "score": (is_long,)}.items():
        with pytest.raises(UsageError, match=rf"data=TABLE, agent=AGENT\)\.{name}"):
            getattr(opened, name)(*given)


def test_an_opened_batch_is_continued_with_its_table_and_an_agent() -> None:
    table = pd.DataFrame({"n": range(3)})
    model = script()
    agent(model).map(table, vary={"prompt": PROMPTS}, name="b", max_failed=1).wait()
    n_asked = len(asked)
    more = nbagent.batch("b", data=pd.DataFrame({"n": range(4)}), agent=agent(model))
    more.resume()
    assert len(asked) == n_asked + 2
    assert len(nbagent.batch("b")) == 8


@pytest.mark.parametrize("given", [{"data": 1}, {"agent": 1}])
def test_a_table_or_an_agent_alone_continues_nothing(given: dict[str, Any]) -> None:
    ask().wait()
    with pytest.raises(UsageError, match="give both"):
        nbagent.batch("b", **given)


def test_values_that_may_hold_keys_are_not_stored() -> None:
    table = pd.DataFrame({"n": [1]})
    headers = [{"x-key": "sesame-open-1"}, {"x-key": "sesame-open-2"}]
    agent().map(table, "{{ n }}", name="b", vary={"headers": headers}).wait()
    with pytest.raises(UsageError, match="varies headers"):
        nbagent.batch("b", data=table, agent=agent())
    assert b"sesame-open" not in _database().read_bytes()


@pytest.mark.parametrize(
    "doc",
    [
        pytest.param({"columns": ["n"], "rows": {}}, id="of an earlier version"),
        pytest.param({"keys": ["0"], "table": {"columns": 3}}, id="damaged table"),
        pytest.param({"keys": ["0"], "variants": [3], "repeat": 1}, id="damaged variants"),
        pytest.param({"keys": ["0"], "variants": [{}], "repeat": "many"}, id="damaged repeat"),
        pytest.param({"keys": ["0"], "variants": [{}], "repeat": 10**9}, id="too many cases"),
        pytest.param({"columns": ["n"], "rows": {}, "map": 5}, id="damaged arguments"),
        pytest.param({"columns": ["n"], "rows": 5}, id="damaged hashes"),
        pytest.param(None, id="nothing"),
        pytest.param([], id="a list"),
    ],
)
def test_a_batch_without_a_plan_is_opened_by_its_runs(doc: Any) -> None:
    batch = ask(vary={"prompt": PROMPTS}, template="", score=is_long).wait()
    with closing(sqlite3.connect(_database())) as connection, connection:
        connection.execute("UPDATE batches SET doc = ?", (json.dumps(doc),))
    opened = nbagent.batch("b")
    assert_frame_equal(opened.compare(), batch.compare())
    assert opened.frame()["text"].tolist() == batch.frame()["text"].tolist()
    with pytest.raises(UsageError, match="repeat the call"):
        nbagent.batch("b", data=pd.DataFrame({"n": range(3)}), agent=agent())
    n_asked = len(asked)
    ask(vary={"prompt": PROMPTS}, template="").wait()
    assert len(asked) == n_asked
    assert_frame_equal(nbagent.batch("b").frame(), batch.frame())


def test_a_deleted_run_leaves_its_case_open() -> None:
    batch = ask(score=scorer(is_long)).wait()
    nbagent.forget(batch.open_run(1).id)
    for same in (batch, nbagent.batch("b")):
        assert same.frame()["run_id"].isna().tolist() == [False, True, False]
        assert not same.check()


def _database() -> Path:
    store = nbagent.open_run(nbagent.runs()["run_id"].iloc[0])._store  # pyright: ignore
    assert store.path is not None
    return Path(store.path)


def test_an_axis_of_tools_is_a_column_beside_the_tools_that_were_used() -> None:
    vary = {"tools": {"none": "none", "note": [note]}}
    batch = agent(note_or_answer).map(pd.DataFrame({"n": [1]}), "{{ n }}", name="b", vary=vary)
    batch.wait()
    for same in (batch, nbagent.batch("b")):
        assert same.frame()["tools"].tolist() == ["none", "note"]
        assert same.frame()["tools_used"].fillna("").tolist() == ["", "note"]
        assert same.compare("turns")["tools"].tolist() == ["none", "note"]


def note_or_answer(request: ChatRequest) -> StepLike:
    is_called = not request.tools or request.messages[-1].role == "tool"
    return "done" if is_called else nbagent.offline.call("note", text="x")
