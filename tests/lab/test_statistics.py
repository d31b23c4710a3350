"""Statistics of scores: hand-made tables with known means, pairs and verdicts."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterable
from typing import Any, cast

import pandas as pd
import pytest

from nbagent import UsageError
from nbagent.lab.statistics import compare, flips

AXES = ["system", "model"]
DTYPES = {"value": "Float64", "cost_usd": "Float64"}


def case(row: int | str, system: str, value: Any, **more: Any) -> dict[str, Any]:
    """One case; `value` is its score, or the state of one that has none."""
    state = value if value in ("failed", "missing", "tied") else "scored"
    base = {"row_key": str(row), "system": system, "model": "small", "attempt": 1}
    run_id = None if state == "missing" else f"run {row} {system}"
    base |= {"run_id": run_id, "state": state, "value": None if state == value else value}
    cost = None if state == "missing" else 0.25
    return {**base, "cost_usd": cost, "text": f"{system} says {row}", **more}


def table(cases: Iterable[dict[str, Any]]) -> pd.DataFrame:
    columns = [*case(1, "v1", 1)]
    return pd.DataFrame(list(cases), columns=columns).astype(DTYPES)


def scored(system: str, *values: Any, **more: Any) -> list[dict[str, Any]]:
    """A case of each row."""
    return [case(row, system, value, **more) for row, value in enumerate(values)]


def compared(*cases: list[dict[str, Any]], **options: Any) -> Any:
    """The comparison of the systems, by label."""
    options = {"over": "system", "by": (), **options}
    found: Any = compare(table([it for some in cases for it in some]), AXES, **options)
    return found.set_index("system")


EIGHT = [1, 1, 1, 0, 0, 0, 0, 1]


def test_means_pairs_and_costs_of_two_prompts() -> None:
    found = compared(scored("v1", *EIGHT), scored("v2", 1, 1, 1, 1, 1, 1, "failed", "missing"))
    assert found["mean"].tolist() == [0.5, 1.0]
    # Six rows have both: 1 1 1 0 0 0 against 1 1 1 1 1 1.
    counts = ["pairs", "n", "missing", "failed"]
    assert found.loc["v2", ["diff", *counts]].tolist() == [0.5, 6, 6, 1, 1]
    assert found.loc["v1", ["verdict", *counts]].tolist() == ["baseline", 8, 8, 0, 0]
    assert found.loc["v1", ["diff", "diff_lo", "diff_hi"]].isna().all()
    # Two dollars for four right answers; the failed case of v2 cost something, too.
    assert found["cost_usd"].tolist() == [2.0, 1.75]
    assert found["cost_per_right"].tolist() == [0.5, 1.75 / 6]
    assert (found["lo"] <= found["mean"]).all()
    assert (found["mean"] <= found["hi"]).all()
    # Wilson's intervals of 4 of 8 and of 6 of 6.
    assert found.loc["v1", ["lo", "hi"]].tolist() == pytest.approx([0.2152, 0.7848], abs=1e-4)
    assert found.loc["v2", ["lo", "hi"]].tolist() == pytest.approx([0.6097, 1.0], abs=1e-4)


def test_a_failed_case_is_a_zero_only_where_that_is_asked() -> None:
    cases = [scored("v1", *[1] * 9), scored("v2", *[1] * 4, *["failed"] * 4, "missing")]
    kept, zero = compared(*cases), compared(*cases, failed="zero")
    assert kept.loc["v2", ["mean", "n", "failed", "pairs"]].tolist() == [1.0, 4, 4, 4]
    assert zero.loc["v2", ["mean", "n", "failed", "pairs"]].tolist() == [0.5, 8, 4, 8]
    # 4 rows down, none up: a fair coin does so in 1 of 8 tables.
    assert zero.loc["v2", ["diff", "adjusted"]].tolist() == [-0.5, pytest.approx(0.125)]
    assert zero.loc["v2", "verdict"] == "no difference shown"


def test_what_a_person_says_of_a_failed_run_is_no_score() -> None:
    cases = [*scored("v1", 0, 0), case(2, "v1", 1, state="failed"), *scored("v2", 0, 1, 0)]
    found = compared(cases)
    assert found.loc["v1", ["mean", "n", "failed", "cost_per_right"]].tolist() == [0, 2, 1, pd.NA]
    assert found.loc["v2", "pairs"] == 2
    assert flips(table(cases), AXES, "v1", "v2")["row_key"].tolist() == ["1"]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0] * 20, [1] * 12 + [0] * 8, "better"),
        ([1] * 20, [1] * 8 + [0] * 12, "worse"),
        (EIGHT, EIGHT, "no difference shown"),
        ([0, 1] * 10, [1, 0] * 10, "no difference shown"),
        ([0] * 20, [1] * 4 + [0] * 16, "no difference shown"),
        ([0] * 20, [1] * 6 + [0] * 14, "better"),
        ([3] * 20, [4] * 4 + [3] * 16, "no difference shown"),
        ([0.1 + 0.2] * 20, [0.3] * 20, "no difference shown"),
        ([0.3] * 20, [0.4] * 20, "better"),
        ([0] * 6, [1] * 6, "better"),
        ([0] * 5, [1] * 5, "too few pairs"),
        ([0], [1], "too few pairs"),
        ([0] * 10 + ["failed"] * 10, ["failed"] * 10 + [1] * 10, "too few pairs"),
        (["failed"] * 10, [1] * 10, "too few pairs"),
        ([2.5, 3, 4, 1, 2, 3, 4], [4.5, 5, 5, 4, 4.5, 5, 4.5], "better"),
    ],
    ids=[
        "better",
        "worse",
        "all ties",
        "as many better as worse",
        "four flips",
        "six flips",
        "four marks differ",
        "noise of floats",
        "all differ by the same",
        "six pairs",
        "five pairs",
        "one row",
        "no row in common",
        "nothing of the baseline",
        "marks from 1 to 5",
    ],
)
def test_the_verdict_says_which_is_better_and_when_none_is(
    before: list[Any], after: list[Any], verdict: str
) -> None:
    found = compared(scored("v1", *before), scored("v2", *after))
    assert found["verdict"].tolist() == ["baseline", verdict]
    lo, hi = found.loc["v2", ["diff_lo", "diff_hi"]].tolist()
    if lo is not pd.NA:
        assert lo < hi, "no interval without width"
        assert (lo > 0 or hi < 0) == (verdict in ("better", "worse"))


@pytest.mark.parametrize("name", ["attempt", "model"])
def test_what_is_asked_again_of_a_row_does_not_make_an_interval_narrower(name: str) -> None:
    cases = [scored("v1", *EIGHT), scored("v2", *reversed(EIGHT))]
    once = compared(*cases)
    again = [[{**it, name: str(n)} for it in some for n in range(25)] for some in cases]
    often = compared(*again)
    intervals = ["mean", "lo", "hi", "diff", "diff_lo", "diff_hi", "verdict", "pairs"]
    pd.testing.assert_frame_equal(once[intervals], often[intervals])
    assert often["n"].tolist() == [200, 200]


def test_a_row_counts_once_however_many_of_its_attempts_are_there() -> None:
    first = [case(0, "v1", value, attempt=n) for n, value in enumerate([1, 1, 0, 0])]
    found = compared([*first, case(1, "v1", 1), case(1, "v1", "failed", attempt=2)])
    assert found.loc["v1", ["mean", "n", "failed"]].tolist() == [0.75, 5, 1]


def test_differences_are_taken_within_the_same_labels_of_the_other_axes() -> None:
    # Each prompt is as good as the other, but v2 was never asked with the model that fails.
    small = {"model": "small"}
    large = {"model": "large"}
    found = compared(
        scored("v1", *[0] * 8, **small),
        scored("v1", *[1] * 8, **large),
        scored("v2", *["missing"] * 8, **small),
        scored("v2", *[1] * 8, **large),
    )
    assert found["mean"].tolist() == [0.5, 1.0]
    assert found.loc["v2", ["diff", "pairs", "verdict"]].tolist() == [0, 8, "no difference shown"]


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({}, [("small", "v1"), ("small", "v2"), ("large", "v1"), ("large", "v2")]),
        ({"by": "model"}, [("small", "v1"), ("small", "v2"), ("large", "v1"), ("large", "v2")]),
        ({"by": ["model"]}, [("small", "v1"), ("small", "v2"), ("large", "v1"), ("large", "v2")]),
        ({"by": ()}, [("v1",), ("v2",)]),
        ({"over": "model"}, [("v1", "small"), ("v1", "large"), ("v2", "small"), ("v2", "large")]),
        ({"over": "model", "by": []}, [("small",), ("large",)]),
    ],
    ids=["all", "a name", "a list", "averaged", "the other axis", "the other axis, averaged"],
)
def test_labels_stand_in_the_order_in_which_they_were_varied(
    options: dict[str, Any], labels: list[tuple[str, ...]]
) -> None:
    models = ("small", "large")
    cases = [it for m in models for s in ("v1", "v2") for it in scored(s, 1, 0, model=m)]
    found: Any = compare(table(cases), AXES, **options)
    assert list(found.iloc[:, : len(labels[0])].itertuples(index=False, name=None)) == labels
    assert found.columns[len(labels[0])] == "mean"


def test_the_baseline_is_the_first_label_or_the_one_that_is_named() -> None:
    cases = [scored("v1", *[0] * 8), scored("v2", *[1] * 8)]
    assert compared(*cases)["verdict"].to_dict() == {"v1": "baseline", "v2": "better"}
    found = compared(*cases, baseline="v2")
    assert found["verdict"].to_dict() == {"v1": "worse", "v2": "baseline"}
    assert found.loc["v1", "diff"] == -1


def test_a_batch_that_varies_nothing_has_one_mean_and_no_difference() -> None:
    cells: Any = table(scored("v1", *EIGHT)).drop(columns=AXES)
    frames: Any = [compare(cells, []), compare(table(scored("v1", *EIGHT)), AXES)]
    for frame in frames:
        assert frame[["mean", "n"]].values.tolist() == [[0.5, 8]]
        assert frame[["lo", "hi"]].values[0].tolist() == pytest.approx([0.2152, 0.7848], abs=1e-4)
        assert frame["verdict"].tolist() == ["baseline"]
        assert frame["diff"].isna().all()


def test_what_has_no_value_is_missing_and_the_dtypes_do_not_depend_on_the_rows() -> None:
    whole = compare(table(scored("v1", *EIGHT) + scored("v2", *EIGHT)), AXES)
    none = compare(table([]), AXES, over="system", baseline="v1")
    assert len(none) == 0
    nothing: Any = compare(table(scored("v1", "failed", "missing", "missing")), AXES)
    assert nothing[["mean", "lo", "hi", "cost_per_right"]].isna().all(axis=None)
    assert nothing[["n", "missing", "failed"]].values.tolist() == [[0, 2, 1]]
    one: Any = compare(table(scored("v1", 1)), AXES)
    assert one[["mean", "lo", "hi"]].values.tolist() == [[1, pd.NA, pd.NA]]
    for frame in (none, nothing, one):
        pd.testing.assert_series_equal(frame.dtypes, whole.dtypes)


@pytest.mark.parametrize(
    ("cases", "cost", "per_right"),
    [
        (scored("v1", 1, 0, 1), 0.75, 0.375),
        (scored("v1", 1, 0.5), 0.5, 0.5 / 1.5),
        (scored("v1", 0, 0), 0.5, None),
        (scored("v1", 1, 1, cost_usd=None), None, None),
        ([case(1, "v1", 1), case(2, "v1", 1, cost_usd=None)], None, None),
        ([case(1, "v1", 1), case(2, "v1", "failed", cost_usd=None)], 0.25, 0.25),
        ([case(1, "v1", 1), case(2, "v1", "missing")], 0.25, 0.25),
        ([case(1, "v1", 1), case(2, "v1", "missing", run_id="r", cost_usd=0.5)], 0.75, 0.75),
        (scored("v1", 1, 5), 0.5, None),
    ],
    ids=[
        "bools",
        "shares",
        "nothing right",
        "no price",
        "one without a price",
        "failed before it cost",
        "not asked",
        "not scored yet",
        "marks",
    ],
)
def test_a_cost_is_said_where_each_answer_has_a_price(
    cases: list[dict[str, Any]], cost: float | None, per_right: float | None
) -> None:
    found = compared(cases).loc["v1", ["cost_usd", "cost_per_right"]].tolist()
    assert found == [pd.NA if it is None else it for it in (cost, per_right)]


def test_the_same_scores_give_the_same_intervals_whatever_else_is_compared() -> None:
    values = random.Random(7)
    v1, v2, v3 = (scored(name, *(values.random() for _ in range(30))) for name in ("a", "b", "c"))
    found = compared(v1, v2)
    pd.testing.assert_frame_equal(found, compared(v1, v2))
    own = ["mean", "lo", "hi", "diff", "pairs"]
    pd.testing.assert_frame_equal(found[own], compared(v1, v2, v3)[own].iloc[:2])
    mixed = v1[1:] + v2[1:]
    values.shuffle(mixed)
    pd.testing.assert_frame_equal(found, compared(v1[:1], v2[:1], mixed))


def test_more_comparisons_need_more_to_show_a_difference() -> None:
    better = scored("v2", *[1] * 6, *[0] * 14)
    others = [scored(f"v{n}", *[0] * 20) for n in range(3, 6)]
    alone = compared(scored("v1", *[0] * 20), better)
    among = compared(scored("v1", *[0] * 20), better, *others)
    p = 2 * 0.5**6
    assert alone.loc["v2", ["adjusted", "verdict"]].tolist() == [pytest.approx(p), "better"]
    assert among.loc["v2", "adjusted"] == pytest.approx(4 * p)
    # The interval is of the comparison alone, and the note says why the verdict is another one.
    ends = ["diff_lo", "diff_hi"]
    assert among.loc["v2", ends].tolist() == alone.loc["v2", ends].tolist()
    assert alone.loc["v2", "diff_lo"] > 0
    assert among.loc["v2", "verdict"] == "no difference shown"
    assert "adjusted for all, it shows nothing" in among.loc["v2", "note"]
    assert alone["note"].isna().all()
    assert alone.loc["v2", "detectable"] < among.loc["v2", "detectable"]
    groups = compare(
        table(
            [
                *scored("v1", *[0] * 20),
                *better,
                *({**each, "model": "large"} for each in (*scored("v1", *[0] * 20), *better)),
            ]
        ),
        AXES,
    )
    assert groups["adjusted"].dropna().tolist() == pytest.approx([2 * p, 2 * p])


MARKS = [1, 2, 3, 4] * 5
NOTES: dict[str, tuple[list[Any], list[Any], str | None]] = {
    "nothing to say": ([0, 1] * 20, [0, 1] * 20, None),
    "equal differences": (MARKS, MARKS, "equal differences: no interval of diff"),
    "widened": ([0, 1] * 20, [1, 1] * 4 + [0, 1] * 16, "diff's interval is widened to 0"),
    "no partner": ([0, 1] * 20, ["failed"] * 2 + [0, 1] * 19, "2 rows without a partner"),
    "only a fall": ([1] * 19 + [0], [1] * 19 + [0], "no possible rise from 0.95 can be shown with"),
    "only a rise": ([0] * 19 + [1], [0] * 19 + [1], "no possible fall from 0.05 can be shown with"),
    "neither": ([0, 1] * 3, [0, 1] * 3, "no possible difference can be shown with 6 rows"),
    "one tie": ([0, 1] * 20, [0, 1] * 19 + [0, "tied"], "1 tie between people"),
}


@pytest.mark.parametrize("name", NOTES)
def test_a_note_says_what_the_columns_alone_would_hide(name: str) -> None:
    before, after, note = NOTES[name]
    found = compared(scored("v1", *before), scored("v2", *after)).loc["v2"]
    if note is None:
        assert found["note"] is pd.NA
    else:
        assert note in found["note"]
    assert (found["detectable"] is pd.NA) == (name in ("neither", "equal differences"))
    assert found["missing"] == (name == "one tie")


def test_rows_that_lack_some_labels_of_another_axis_are_named() -> None:
    small, large = {"model": "small"}, {"model": "large"}
    v1 = [*scored("v1", *EIGHT, **small), *scored("v1", *EIGHT, **large)]
    v2 = [*scored("v2", *["missing"] * 3, *EIGHT[3:], **small), *scored("v2", *EIGHT, **large)]
    assert "3 rows without a partner" in compared(v1, v2).loc["v2", "note"]


def test_equal_shares_could_have_shown_what_an_exact_power_says() -> None:
    # 60 rows without a change show 1 of 7: 6 rows up and none down, or more, in 4 of 5 tables.
    found = compared(scored("v1", *[0, 1] * 30), scored("v2", *[0, 1] * 30))
    assert found.loc["v2", "detectable"] == pytest.approx(0.144, abs=0.001)


def test_intervals_hold_the_truth_in_about_95_of_100_tables() -> None:
    normal = random.Random(13)
    cases = [
        case(row, system, normal.gauss(mean, 1) + hard, model=f"table {number}")
        for number in range(400)
        for row, hard in enumerate([normal.gauss(0, 2) for _ in range(12)])
        for system, mean in (("v1", 0.0), ("v2", 0.5))
    ]
    found: Any = compare(table(cases), AXES, over="system")
    first = found[found["system"] == "v1"]
    covered = first["lo"].le(0) & first["hi"].ge(0)
    assert 0.93 <= float(covered.mean()) <= 0.98


# Rows that flipped

BOTH = [*scored("v1", 1, 1, 0, 0, "failed", 1), *scored("v2", 1, 0, 1, 0, 1, "missing")]


@pytest.mark.parametrize(
    ("only", "rows"),
    [("changed", ["1", "2"]), ("better", ["2"]), ("worse", ["1"]), ("all", ["0", "1", "2", "3"])],
)
def test_rows_whose_score_flipped_stand_side_by_side(only: Any, rows: list[str]) -> None:
    found: Any = flips(table(BOTH), AXES, "v1", "v2", only=only)
    assert found["row_key"].tolist() == rows
    columns = ["row_key", "model", "attempt", "value_v1", "value_v2", "text_v1", "text_v2"]
    assert found.columns.tolist() == [*columns, "run_v1", "run_v2"]
    assert found.index.tolist() == list(range(len(rows)))
    row = found[found["row_key"] == rows[-1]].iloc[0]
    key = rows[-1]
    assert row["text_v2"] == f"v2 says {key}"
    assert row["run_v1"] == f"run {key} v1"


def test_cases_are_paired_by_the_other_axes_and_by_attempt() -> None:
    cases = [
        case(0, system, value, model=model, attempt=attempt)
        for model, attempt, a, b in (
            ("small", 1, 0, 1),
            ("small", 2, 1, 1),
            ("large", 1, 1, 1),
            ("large", 2, 1, 0),
        )
        for system, value in (("v1", a), ("v2", b))
    ]
    found: Any = flips(table(cases), AXES, "v1", "v2")
    assert found[["model", "attempt"]].values.tolist() == [["small", 1], ["large", 2]]
    found = flips(table(cases), AXES, "v2", "v1", only="better")
    assert found[["model", "attempt", "value_v1"]].values.tolist() == [["large", 2, 1]]


def test_words_can_flip_too() -> None:
    cells = pd.DataFrame([*scored("v1", "yes", "no"), *scored("v2", "yes", "yes")])
    assert flips(cells, AXES, "v1", "v2")["value_v2"].tolist() == ["yes"]


WORDS = pd.DataFrame([*scored("v1", "yes", "no"), *scored("v2", "yes", "yes")])
MANY = pd.DataFrame([case(n, "v1", f"a{n}") for n in range(21)])
CELLS = table(BOTH)
TWICE = CELLS.assign(model=CELLS["system"])


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: compare(CELLS, AXES, over="sytem"), "no axis 'sytem'; the axes are system, model"),
        (lambda: compare(CELLS, AXES, by="row"), "no axis 'row'; the axes are system, model"),
        (lambda: compare(CELLS, AXES, by=["model", "x"]), "no axis 'x'"),
        (
            lambda: compare(CELLS, AXES, over="model", by="model"),
            "'model' cannot be in both over= and by=",
        ),
        (lambda: compare(CELLS, [], over="system"), "no axis 'system'; the axes are variant"),
        (lambda: compare(CELLS, AXES, baseline="v9"), "'system' has no label 'v9'; it has v1, v2"),
        (lambda: compare(CELLS, AXES, failed="drop"), "'leave out' or 'zero'"),  # pyright: ignore
        (lambda: compare(MANY, AXES), "21 labels, like 'a0'; at most 20"),
        (lambda: flips(CELLS, AXES, "v1", "v9"), "no axis has both 'v1' and 'v9'; .*: v1, v2"),
        (lambda: flips(CELLS, AXES, "v1", "small"), "no axis has both .* model: small"),
        (lambda: flips(CELLS, AXES, "v1", "v1"), "'v1' is compared with itself"),
        (lambda: flips(CELLS, [], "v1", "v2"), "the labels are none"),
        (lambda: flips(TWICE, AXES, "v1", "v2"), "labels of system, model; choose one with over="),
        (lambda: flips(CELLS, AXES, "v1", "v2", over="x"), "no axis 'x'"),
        (lambda: flips(CELLS, AXES, "v1", "v2", only="flip"), "changed, better"),  # pyright: ignore
        (lambda: flips(WORDS, AXES, "v1", "v2", only="better"), "labels, like 'yes'"),
    ],
    ids=[
        *("over", "by", "one of by", "over is by", "nothing varied", "baseline", "failed", "words"),
        *("no such label", "labels of two axes", "one label", "no axes", "two axes", "flips over"),
        *("only", "better words"),
    ],
)
def test_what_cannot_be_compared_is_one_clear_line(ask: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ask()


def test_two_axes_with_the_same_labels_are_told_apart_by_name() -> None:
    cases = [
        case(0, system, system == model, model=model)
        for system in ("v1", "v2")
        for model in ("v1", "v2")
    ]
    found: Any = flips(table(cases), AXES, "v1", "v2", over="model")
    assert found[["system", "value_v1", "value_v2"]].values.tolist() == [["v1", 1, 0], ["v2", 0, 1]]


def test_a_table_of_differences_without_rows_is_a_sentence() -> None:
    same: Any = CELLS.assign(value=1.0)
    rows = flips(same, AXES, "v1", "v2")
    assert re.fullmatch(
        r"no score differs between 'v1' and 'v2', in \d+ rows with both", repr(rows)
    )
    html: str = cast("Any", rows)._repr_html_()
    assert "<table" not in html
    assert "no score differs" in html
    assert "no row is better with 'v2' than with 'v1'" in repr(
        flips(same, AXES, "v1", "v2", only="better")
    )
    assert rows.columns.tolist() == flips(same, AXES, "v1", "v2", only="all").columns.tolist()
    for derived in (rows.copy(), rows.head(), pickle.loads(pickle.dumps(rows))):
        assert type(derived) is pd.DataFrame
        assert "Columns: [row_key" in repr(derived)
