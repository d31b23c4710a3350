"""Comparisons of a batch: directions, measures, groups of rows, chances of repeats, odd scores."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pandas as pd
import pytest
from stage_of_batches import agent, asked, calls, note

import nbagent
from nbagent import UsageError
from nbagent.contracts.model import ChatRequest
from nbagent.lab.repeats import Repeats

ROWS: Any = pd.DataFrame(
    {
        "n": range(8),
        "language": pd.array(["de", "fr", None, "fr"] * 2, dtype="string"),
        "text": ["long", "short"] * 4,
        "expected": pd.array([0, 2, 4, 6, 8, 10, None, None], dtype="Int64"),
    }
)
VARY = {"system": {"v1": "Be brief.", "v2": "Be long."}}


@pytest.fixture(autouse=True)
def _nothing_was_asked() -> None:
    asked.clear()


def says(request: ChatRequest) -> str:
    """The prompt of the second variant doubles its number, that of the first repeats it."""
    n = int(request.messages[0].text)
    return str(2 * n if "long" in (request.system_prompt or "") else n)


def batch_of(score: Any, rows: Any = ROWS, says: Any = says, **options: Any) -> Any:
    how = {"vary": VARY, "name": "b", **options}
    return agent(says).map(rows, "{{ n }}", score=score, **how).wait()


def compared(batch: Any, *score: str, **options: Any) -> Any:
    return batch.compare(*score, **options).set_index("system")


# Directions and measures


def test_less_is_better_where_the_scorer_says_so_also_in_a_batch_opened_by_its_name() -> None:
    @nbagent.scorer(better="lower")
    def length(row: Any, run: nbagent.Run) -> float:
        return float(run.text)

    @nbagent.scorer
    def size(row: Any, run: nbagent.Run) -> float:
        return float(run.text)

    # Row 0 is the same; seven rows are twice as long with v2.
    batch = batch_of([length, size])
    for each in (batch, nbagent.batch("b")):
        assert compared(each, "length")["verdict"].tolist() == ["baseline", "worse"]
        assert compared(each, "size")["verdict"].tolist() == ["baseline", "better"]
        assert len(each.diff("v1", "v2", "length", only="worse")) == 7
        assert len(each.diff("v1", "v2", "length", only="better")) == 0
        with pytest.raises(UsageError, match="count a failed case as the best"):
            each.compare("length", failed="zero")
    assert compared(batch, "length")["cost_per_right"].isna().all()


def test_a_changed_direction_scores_again() -> None:
    def length(row: Any, run: nbagent.Run) -> float:
        return float(run.text)

    batch = batch_of(length)
    assert compared(batch)["verdict"].tolist() == ["baseline", "better"]
    batch.score(nbagent.scorer(better="lower")(length))
    assert compared(batch)["verdict"].tolist() == ["baseline", "worse"]
    assert compared(nbagent.batch("b"))["verdict"].tolist() == ["baseline", "worse"]
    with pytest.raises(UsageError, match="better='less' is unknown; it is 'higher' or 'lower'"):
        nbagent.scorer(better="less")(length)  # pyright: ignore


def test_measures_are_compared_without_a_scorer_and_less_is_better() -> None:
    def works(request: ChatRequest) -> Any:
        return calls(2)(request) if "long" in (request.system_prompt or "") else "done"

    batch = agent(works, tools=[note]).map(ROWS, "{{ n }}", vary=VARY, name="b").wait()
    turns = compared(batch, "turns")
    assert turns["mean"].tolist() == [1, 3]
    assert turns["verdict"].tolist() == ["baseline", "worse"]
    # Equal numbers of turns say nothing about how far others may be.
    assert turns[["lo", "hi", "diff_lo", "diff_hi", "cost_per_right"]].isna().all(axis=None)
    equal = "equal rows: no interval"
    assert turns["note"].tolist() == [equal, f"{equal}; equal differences: no interval of diff"]
    for name in ("tokens", "duration_ms"):
        frame = compared(batch, name)
        assert frame["n"].tolist() == [8, 8]
        assert (frame["lo"] < frame["hi"]).all()
    assert compared(batch, "tokens").loc["v2", "verdict"] == "worse"
    cost = compared(batch, "cost_usd")  # scripted models have no price
    assert cost[["n", "missing"]].values.tolist() in ([[0, 8]] * 2, [[8, 0]] * 2)
    with pytest.raises(UsageError, match="did you mean 'tokens'"):
        batch.compare("token")


def test_one_turn_for_each_case_is_no_share() -> None:
    turns = compared(batch_of(lambda_named(lambda row, run: True)), "turns")
    assert turns["mean"].tolist() == [1, 1]
    assert turns[["lo", "hi", "cost_per_right"]].isna().all(axis=None)


# Groups of rows


def test_means_are_grouped_by_a_column_of_the_table() -> None:
    batch = batch_of(lambda_named(lambda row, run: run.text == str(2 * row.n)))
    frame: Any = batch.compare(by="language")
    assert frame.columns[:2].tolist() == ["language", "system"]
    # Rows 0, 4 are German; 2 and 6 name no language.
    assert frame["language"].fillna("none").tolist() == ["de"] * 2 + ["fr"] * 2 + ["none"] * 2
    assert frame["n"].tolist() == [2, 2, 4, 4, 2, 2]
    assert frame["mean"].tolist() == [0.5, 1, 0, 1, 0, 1]
    assert frame["verdict"].tolist() == ["baseline", "too few pairs"] * 3
    # A column of a name that the cases have, too.
    frame = batch.compare(by=["row_text"])
    assert frame["row_text"].tolist() == ["long", "long", "short", "short"]
    figure: Any = nbagent.plot.compare(batch, by="language")
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["de", "fr", "none"]
    frame = nbagent.batch("b").compare(by=["language", "row_text"])
    assert frame["language"].isna().sum() == 2
    with pytest.raises(UsageError, match=r"axis or column 'langage'; .* did you mean 'language'"):
        batch.compare(by="langage")


def lambda_named(function: Any, name: str = "exact") -> Any:
    return nbagent.scorer(name=name)(function)


# Chances of repeats


@pytest.mark.parametrize(
    ("n", "right", "k"), [(1, 1, 1), (4, 1, 2), (5, 3, 2), (5, 3, 3), (6, 0, 2)]
)
def test_chances_of_k_attempts_are_shares_of_all_samples_of_k(n: int, right: int, k: int) -> None:
    samples = list(combinations([True] * right + [False] * (n - right), k))
    assert Repeats(k).estimate(right, n) == pytest.approx(sum(map(any, samples)) / len(samples))
    every = Repeats(k, all_of=True).estimate(right, n)
    assert every == pytest.approx(sum(map(all, samples)) / len(samples))


def test_the_chance_of_several_attempts_is_compared() -> None:
    # Row n is right in its first n attempts of 4; v2 is right once more.
    @nbagent.scorer
    def exact(row: Any, run: nbagent.Run) -> bool:
        case = run.record.case
        assert case is not None
        return case.attempt <= row.n + (case.variant["system"] == "v2")

    batch = batch_of(exact, ROWS.head(4), repeat=4)
    plain, any_of, all_of = (
        compared(batch, "exact", **options) for options in ({}, {"pass_at": 2}, {"pass_all": 2})
    )
    assert plain["mean"].tolist() == [6 / 16, 10 / 16]
    # Samples of 2 of 4 with at least one right: 0, 3, 5, 6 of 6; then 3, 5, 6, 6.
    assert any_of["mean"].tolist() == pytest.approx([14 / 24, 20 / 24])
    assert all_of["mean"].tolist() == pytest.approx([4 / 24, 10 / 24])
    for frame in (plain, any_of, all_of):
        assert frame["n"].tolist() == [16, 16]
        assert (frame["lo"] < frame["mean"]).all()
        assert (frame["mean"] < frame["hi"]).all()
    assert compared(batch, pass_at=1)["mean"].tolist() == plain["mean"].tolist()
    groups: Any = batch.compare(by="language", pass_all=4)
    assert groups["mean"].tolist() == [0, 0, 0, 0.5, 0, 0]
    wrong: dict[str, dict[str, Any]] = {
        "needs 5 scored attempts of a row; the most are 4": {"pass_at": 5},
        "give one of them": {"pass_at": 1, "pass_all": 1},
        "pass_all=0 is no number of attempts": {"pass_all": 0},
    }
    for message, options in wrong.items():
        with pytest.raises(UsageError, match=message):
            batch.compare("exact", **options)
    batch.score(lambda_named(lambda row, run: 0.5, "half"))
    with pytest.raises(UsageError, match="needs a scorer of True and False"):
        batch.compare("half", pass_at=2)


# Labels


def test_labels_are_compared_by_the_share_of_each() -> None:
    batch = batch_of(lambda_named(lambda row, run: "even" if int(run.text) % 2 == 0 else "odd"))
    frame: Any = batch.compare()
    assert frame.columns[:2].tolist() == ["label", "system"]
    assert frame["label"].tolist() == ["even", "even", "odd", "odd"]
    assert frame["mean"].tolist() == [0.5, 1, 0.5, 0]
    assert frame["verdict"].tolist() == ["baseline", "no difference shown"] * 2
    assert frame["cost_per_right"].isna().all()
    with pytest.raises(UsageError, match="labels, like 'even', and none is better"):
        batch.diff("v1", "v2", only="better")


# Odd scores

NOT_NUMBERS = {"not a number": math.nan, "infinite": math.inf, "no value of pandas": pd.NA}
ODD: dict[str, tuple[Callable[[int, str], Any], dict[str, Any]]] = {
    **{
        name: (lambda n, label, value=value: value if n < 4 else n % 2, {"n": 4, "missing": 4})
        for name, value in NOT_NUMBERS.items()
    },
    "always 1": (lambda n, label: 1, {"mean": 1, "hi": 1, "note": "every score is 1"}),
    "always false": (lambda n, label: False, {"mean": 0, "lo": 0, "note": "every score is 0"}),
    "always 0.3": (lambda n, label: 0.3, {"lo": pd.NA, "note": "equal rows: no interval"}),
    "always 3": (lambda n, label: 3, {"hi": pd.NA, "note": "every score is 3"}),
    "huge": (lambda n, label: 1e299 * (n - 4), {"mean": -0.5e299}),
    "the largest": (lambda n, label: 1e300 * (1 if n % 2 else -1), {"mean": 0}),
    "tiny": (lambda n, label: 1e-300 * n, {"mean": 3.5e-300}),
    "none at all": (lambda n, label: None, {"n": 0, "missing": 8, "mean": pd.NA, "lo": pd.NA}),
    "a single one": (
        lambda n, label: True if n == 3 else None,
        {"n": 1, "mean": 1, "lo": pd.NA, "note": "1 row: no interval"},
    ),
    "of one variant only": (
        lambda n, label: n if label == "v1" else None,
        {"n": 8, "mean": 3.5, "other verdict": "too few pairs"},
    ),
    "one pair": (
        lambda n, label: 1 if label == "v1" or n == 0 else None,
        {"n": 8, "other verdict": "too few pairs", "other pairs": 1},
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_scores_say_no_more_than_they_know(name: str) -> None:
    score, wanted = ODD[name]
    exact = lambda_named(lambda row, run: score(int(row.n), run.record.case.variant["system"]))
    frame = compared(batch_of(exact, says=lambda request: "a"), "exact")
    for column, value in wanted.items():
        label = "v2" if column.startswith("other ") else "v1"
        cell = frame.loc[label, column.removeprefix("other ")]
        if value is pd.NA:
            assert cell is pd.NA
        elif isinstance(value, str):
            assert value in cell
        else:
            assert cell == pytest.approx(value)
    for low, high in (("lo", "hi"), ("diff_lo", "diff_hi")):
        ends = frame[[low, high]].dropna()
        assert (ends[low] < ends[high]).all()
        assert not ends.isin([math.inf, -math.inf]).any(axis=None)


def test_a_missing_expected_value_is_no_wrong_answer() -> None:
    batch = batch_of(lambda_named(lambda row, run: row.expected == int(run.text)))
    frame = compared(batch, "exact")
    assert frame[["n", "missing"]].values.tolist() == [[6, 2], [6, 2]]
    assert frame["mean"].tolist() == [1 / 6, 1]


def test_words_and_bools_of_one_scorer_are_labels() -> None:
    frame: Any = batch_of(
        lambda_named(lambda row, run: True if row.n < 4 else "True" if row.n < 6 else "no")
    ).compare()
    assert frame["label"].tolist() == ["True", "True", "no", "no"]
    assert frame["mean"].tolist() == [0.75, 0.75, 0.25, 0.25]
