"""Identity of a batch: its table, options and store, here and in other processes."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from stage_of_batches import (
    FEW,
    JUDGED,
    TABLE,
    agent,
    answer,
    ask,
    asked,
    note,
    runs,
    scorer,
    script,
    slow,
)

import nbagent
from nbagent import UsageError, offline
from nbagent.contracts.model import ChatRequest
from nbagent.lab.batch import active_batches
from nbagent.providers.offline import StepLike
from nbagent.session.stores import current_store

SECRET = "hunter2-secret-cookie"


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    asked.clear()


# The table, and what is the same


CHANGES: dict[str, Callable[[Any], object]] = {
    "sorted": lambda table: table.sort_values("n", inplace=True),
    "dropped": lambda table: table.drop(index=[0, 1], inplace=True),
    "changed": lambda table: table.__setitem__("n", "?"),
}


@pytest.mark.filterwarnings("ignore:The inplace keyword")
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_done_to_the_table_afterwards_changes_nothing(change: str) -> None:
    table = pd.DataFrame({"n": ["c", "a", "b"]})
    batch = ask(table).wait()
    CHANGES[change](table)
    assert batch.frame()[["n", "text"]].to_numpy().tolist() == [[it, f"a:{it}"] for it in "cab"]


@pytest.mark.parametrize("option", ["headers", "extra_body"])
def test_no_part_of_a_value_that_may_be_secret_is_a_label(
    option: str, closed_world: None, tmp_path: Path
) -> None:
    values = [{"X-Cookie": SECRET}, {"X-Cookie": f"{SECRET}2"}]
    planned = ask(vary={option: values}, start=False)
    said = [str(planned.dry_run())]
    batch = planned.wait().score(scorer(lambda row, run: True))
    assert batch.axes == {option: ["1", "2"]}
    frames = [batch.frame(), runs(), nbagent.scores(batch="b"), batch.compare()]
    assert set(frames[0][option]) == {"1", "2"}
    said += [frame.to_csv() for frame in frames]
    said += [str(batch), repr(batch), str(batch.progress)]
    wrong: list[Any] = [values[0], {option: [SECRET]}, SECRET, [SECRET, 5], [values[0], SECRET]]
    for given in [*({option: one} for one in wrong), [{option: values}], {"nope": values}]:
        with pytest.raises(UsageError) as error:
            ask(vary=given)
        said.append(f"{error.value} {error.value.details}")
    said += [it.read_bytes().decode("latin1") for it in tmp_path.rglob("*") if it.is_file()]
    assert not [text for text in said if SECRET in text]


IDENTITY: dict[str, tuple[Any, Any]] = {
    "extra_body": ({"seed": 1}, {"seed": 2}),
    "headers": ({"X-Way": "1"}, {"X-Way": "2"}),
    "tool_choice": ("none", "auto"),
    "policy": (nbagent.ToolPolicy(), nbagent.ToolPolicy(ask=["note"])),
    "variables": (["city=Oslo"], ["city=Rome"]),
    "mounts": (["desk=one"], ["desk=two"]),
    "trim": ("none", "tool-results"),
}


WAYS = [(option, by) for option in IDENTITY for by in ("the call", "configure")]
WAYS.remove(("tool_choice", "configure"))  # it is said at a call only


@pytest.mark.parametrize(("option", "by"), WAYS)
def test_another_option_asks_anew_and_the_same_one_does_not(
    option: str, by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        Path(folder).mkdir()
    first, second = IDENTITY[option]
    requests: list[int] = []
    for value in (first, first, second, second, first):
        if by == "configure":
            given = {"ask": value.ask} if option == "policy" else {option: value}
            nbagent.configure(**given)
        options = {} if by == "configure" else {option: value}
        batch = agent(tools=[note]).map(FEW, "{{ n }}", name="b", **options).wait()
        assert batch.progress.ok == 3
        requests.append(len(asked))
    assert requests == [3, 3, 6, 6, 6]


@pytest.mark.parametrize("option", ["extra_body", "headers", "tool_choice"])
def test_a_variant_in_front_changes_nothing_for_the_others(option: str) -> None:
    front, old = IDENTITY[option]
    before = ask(vary={option: {"old": old}}).wait().frame()["run_id"].tolist()
    frame = ask(vary={option: {"front": front, "old": old}}).wait().frame()
    assert frame[frame[option] == "old"]["run_id"].tolist() == before
    assert len(asked) == 6
    labels = runs().set_index("run_id")["variant"]
    assert all(f'"{it[option]}"' in labels[it["run_id"]] for it in frame.to_dict("records"))


def test_a_column_that_the_prompt_does_not_use_is_scored_anew_where_it_changed() -> None:
    seen: list[Any] = []

    def exact(row: Any, run: Any) -> bool:
        seen.append(row.n)
        return run.text == row.expected

    judging = script(JUDGED, "jj")
    score = [exact, nbagent.judge("Is it right?", model=judging)]
    table = FEW.assign(expected=["a:0", "?", "a:2"])
    first: Any = ask(table, score=score).wait().frame()
    table = table.assign(expected=["a:0", "a:1", "a:2"])
    second: Any = ask(table, score=score).wait().frame()
    assert second["run_id"].tolist() == first["run_id"].tolist()
    assert second["score_exact"].tolist() == [True] * 3
    assert (len(asked), seen[3:], len(judging.requests)) == (3, [1], 4)
    ask(table.assign(remark="new"), score=score).wait()
    assert (len(asked), len(seen), len(judging.requests)) == (3, 4, 4)


IMAGES = """
import pandas as pd, PIL.Image, nbagent
scored = []
def exact(row, run):
    scored.append(1)
    return True
agent = nbagent.Agent(model=nbagent.offline.script(["x"] * 9, name="m"), tools="none", quiet=True)
pictures = [PIL.Image.new("RGB", (4, 4), it) for it in ("red", "blue")]
tables = {
    "{{ n }}": pictures,
    "{{ sorted(n) }}": [{"red", "blue", "green", "grey", "pink"}, frozenset("abcdefgh")],
    "{{ sorted(n[0]) }} {{ n[1] }}": [({"red", "blue", "green"}, it) for it in pictures],
}
for template, cells in tables.items():
    table = pd.DataFrame({"n": cells})
    batch = agent.map(table, template, name=template.replace("{", ""), score=exact).wait()
    print(batch.progress.ok, batch.progress.reused, len(scored))
"""


def test_pictures_and_sets_are_the_same_in_another_process() -> None:
    said: list[tuple[str, str]] = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", IMAGES], env=env, capture_output=True)
        said.append((done.stdout.decode(), done.stderr.decode()))
    assert said == [("2 0 2\n2 0 4\n2 0 6\n", ""), ("2 2 0\n" * 3, "")]


# Other stores, other processes


@pytest.mark.parametrize("order", [("failed", "answered"), ("answered", "failed")], ids=str)
def test_of_two_runs_of_one_case_the_answered_one_counts(
    order: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, Any] = {}
    for kind, says in {
        "failed": offline.error("LLM_HTTP_ERROR", "down"),
        "answered": answer,
    }.items():
        monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / kind))
        made = agent(says, retries=0).map(TABLE.head(1), "{{ n }}", name="b").wait()
        found[kind] = made.open_run(0).record
    monkeypatch.setenv("NBAGENT_HOME", str(tmp_path / "both"))
    current_store().add(*(found[kind] for kind in order))
    batch = agent(retries=0).map(TABLE.head(1), "{{ n }}", name="b").wait()
    assert (len(asked), batch.frame()["text"].tolist()) == (1, ["a:0"])
    assert batch.frame()["run_id"].tolist() == [found["answered"].id]


def test_a_name_is_at_work_in_its_own_home_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ask(TABLE, slow, concurrency=1)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("NBAGENT_HOME", str(tmp_path / "other"))
        assert ask().wait().progress.ok == 3
        assert len(runs()) == 3
    assert here.wait().progress.ok == 12
    assert len(runs()) == 12


def test_a_forked_child_is_at_work_on_nothing() -> None:
    batch = ask(FEW, slow, concurrency=1)
    goes_on, ended = os.pipe()
    if (child := os.fork()) == 0:
        said = 99
        try:
            signal.alarm(20)
            os.close(ended)
            os.read(goes_on, 1)  # until the parent's batch has ended
            said = len(active_batches()) * 10 + ask(FEW, slow).wait(10).progress.reused
        finally:
            os._exit(said)
    os.close(goes_on)
    assert batch.wait().progress.ok == 3
    os.close(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_store_that_left_the_disk_takes_no_more_runs() -> None:
    def lose(request: ChatRequest) -> StepLike:
        path = current_store().path
        if len(asked) == 4 and path is not None:
            path.unlink()
        return answer(request)

    batch = ask(TABLE, lose, concurrency=1).wait()
    assert batch.progress.state == "Stopped"
    n = len(asked)
    with pytest.raises(UsageError, match=r"NOT SAVED ON DISK.*Restart"):
        batch.resume()
    assert len(asked) == n < 12


# What is given


GIVEN: dict[str, tuple[Callable[[], Any], str]] = {
    "pd.NA": (lambda: ask(FEW.assign(id=pd.array([1, None, 2], "Int64")), key="id"), "missing val"),
    "no text": (lambda: ask(FEW.assign(id=pd.array(["a", None, "b"], "string")), key="id"), "miss"),
    "None": (lambda: ask(FEW.assign(id=["a", None, "b"]), key="id"), "'id' has missing values"),
    "NaT": (lambda: ask(FEW.assign(id=pd.to_datetime([None, 1, 2])), key="id"), "missing values"),
    "an array": (lambda: ask(FEW.assign(id=[np.arange(it) for it in (1, 2, 3)]), key="id"), "'id'"),
    "a signaling NaN": (
        lambda: ask(FEW.assign(id=[Decimal("sNaN"), Decimal(1), Decimal(2)]), key="id"),
        "missing values",
    ),
    "a name of two lines": (lambda: ask(name="a\u2028b"), "in one line"),
    "a name with a control character": (lambda: ask(name="\x1b[31mred"), "in one line"),
    "a name that is no text for a store": (lambda: ask(name="\ud800"), "in one line"),
    "a name of blanks": (lambda: ask(name=" \u3000"), "in one line"),
    "a number as name": (lambda: ask(name=5), "name=5 is not valid"),
    "a switch": (lambda: ask(max_failed=True), "max_failed=True is not valid"),
    "more failures than cases": (lambda: ask(max_failed=10**30), "from 0 to 1,000,000"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_what_does_not_fit_is_one_error(case: str) -> None:
    make, said = GIVEN[case]
    with pytest.raises(UsageError, match=re.escape(said)):
        make()
    assert asked == []


def test_a_column_may_be_named_by_a_number_and_amap_takes_what_map_takes() -> None:
    table = FEW.rename(columns={"n": 0}).assign(n=["x", "y", "z"])
    assert ask(table, key=0).wait().frame()["text"].tolist() == ["a:x", "a:y", "a:z"]
    batch = asyncio.run(agent().amap(FEW, "{{ n }}", name="c", start=False))
    assert batch.progress.ok == 3


def test_no_two_columns_have_one_name() -> None:
    table = pd.DataFrame({"text": ["x"], "row_text": ["y"], "n": [1]})
    frame = ask(table).wait().frame()
    assert frame.columns.is_unique
    assert frame["text"].tolist() == ["a:1"]
    assert {"x", "y"} <= set(frame.iloc[0].tolist())


def test_whole_keys_are_the_same_as_floats_and_another_table_is_another_batch() -> None:
    ask(pd.DataFrame({"id": [1, 2], "n": ["a", "b"]}), key="id").wait()
    longer = pd.DataFrame({"id": [1, 2, 3.5], "n": ["a", "b", "c"]})
    assert ask(longer, key="id").wait().progress.ok == 3
    assert asked == ["a", "b", "c"]
    tables = [pd.DataFrame({"n": ["a", "b"]}), pd.DataFrame({"n": ["c", "d"]})]
    names = [agent().map(table, "{{ n }}").wait().name for table in [*tables, tables[0]]]
    assert names[0] == names[2] != names[1]
