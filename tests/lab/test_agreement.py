"""Agreement of raters: published tables, another library, intervals, and refused comparisons."""

# pandas and statsmodels say little about the types of their values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.inter_rater import cohens_kappa, fleiss_kappa

import nbagent
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import ScoreRecord
from nbagent.lab.agreement import agreement
from nbagent.providers.offline import call, script

AT = datetime(2026, 1, 1, tzinfo=UTC)
# A row for each subject: how many of 14 raters chose each of 5 categories (Fleiss 1971, table 1, as
# it is given in most textbooks).
FLEISS = [
    *([0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1]),
    *([7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7]),
]
# Four observers of twelve units, 0: not observed (Krippendorff 2011, part D).
KRIPPENDORFF = [
    *([1, 1, 0, 1], [2, 2, 3, 2], [3, 3, 3, 3], [3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 4]),
    *([4, 4, 4, 4], [1, 1, 2, 1], [2, 2, 2, 2], [0, 5, 5, 5], [0, 0, 1, 1], [0, 0, 3, 0]),
]


def cases_of(rows: Sequence[Sequence[Any]], keys: Sequence[str] = ()) -> list[CaseResult]:
    """Cases that people labelled: a row for each case, a column for each person, None: no label."""
    return [
        CaseResult(
            row_key=keys[i] if keys else str(i),
            labels={"variant": ""},
            status="ok",
            run_id=f"{i:016x}",
            scores=tuple(
                ScoreRecord(run_id=f"{i:016x}", scorer="q", value=value, by=f"p{j}", at=AT)
                for j, value in enumerate(row)
                if value is not None
            ),
        )
        for i, row in enumerate(rows)
    ]


def pair(rows: Sequence[Sequence[Any]], keys: Sequence[str] = (), **options: Any) -> Any:
    return agreement(cases_of(rows, keys), **options).iloc[0]


def test_the_published_example_of_fleiss() -> None:
    rows = [[str(c) for c, n in enumerate(counts) for _ in range(n)] for counts in FLEISS]
    frame = agreement(cases_of(rows))
    assert len(frame) == 14 * 13 // 2 + 1
    of_all = frame.iloc[-1]
    assert (of_all["raters"], of_all["n"], of_all["method"]) == ("all", 10, "Fleiss' kappa")
    assert of_all["kappa"] == pytest.approx(0.210, abs=5e-4)
    assert of_all["lo"] < 0.21 < of_all["hi"]


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_the_published_example_of_krippendorff(level: Any, alpha: float) -> None:
    rows = [[float(value) or None for value in row] for row in KRIPPENDORFF]
    of_all = agreement(cases_of(rows), level=level).iloc[-1]
    assert (of_all["n"], of_all["level"]) == (11, level)
    assert of_all["alpha"] == pytest.approx(alpha, abs=5e-4)
    assert of_all["note"] == "kappa is of the 8 cases that all have scored"


@pytest.mark.parametrize("seed", range(5))
def test_kappas_are_those_of_another_library(seed: int) -> None:
    random = np.random.default_rng(seed)
    first = random.integers(1, 6, 40)
    second = np.clip(first + random.integers(-1, 2, 40), 1, 5)
    third = np.where(random.random(40) < 0.5, first, random.integers(1, 6, 40))
    table = np.zeros((5, 5))
    np.add.at(table, (first - 1, second - 1), 1)
    rows: Any = np.stack([first, second, third], axis=1).astype(float).tolist()
    ordinal, nominal = agreement(cases_of(rows)), agreement(cases_of(rows), level="nominal")
    quadratic: Any = cohens_kappa(table, wt="quadratic")
    plain: Any = cohens_kappa(table)
    assert ordinal["kappa"].iloc[0] == pytest.approx(quadratic.kappa)
    assert nominal["kappa"].iloc[0] == pytest.approx(plain.kappa)
    counts = [[row.count(value) for value in range(1, 6)] for row in rows]
    assert nominal["kappa"].iloc[-1] == pytest.approx(fleiss_kappa(np.array(counts)))
    # Theirs is the variance of large samples; ours is wider, and never narrower by more than a bit.
    width = ordinal["hi"].iloc[0] - ordinal["lo"].iloc[0]
    assert width > 0.8 * (quadratic.kappa_upp - quadratic.kappa_low)


@pytest.mark.parametrize(
    ("n", "lowest", "highest"), [(5, -0.2, 0.3), (10, 0.3, 0.6), (60, 0.8, 0.95)]
)
def test_perfect_agreement_of_few_cases_is_not_certain(
    n: int, lowest: float, highest: float
) -> None:
    row = pair([[i % 2 == 0] * 2 for i in range(n)])
    assert (row["agreement"], row["kappa"], row["alpha"]) == (1.0, 1.0, 1.0)
    assert lowest < row["lo"] < highest
    assert row["alpha_lo"] < highest
    assert 0.5 < row["agreement_lo"] < row["agreement_hi"] == 1.0


def test_answers_to_one_row_count_as_one_observation() -> None:
    random = np.random.default_rng(1)
    labels = [
        [bool(value), bool(value) ^ (i % 5 == 0)] for i, value in enumerate(random.random(12) < 0.5)
    ]
    alone = pair(labels)
    copied = pair(labels * 10, [str(i % 12) for i in range(120)])
    independent = pair(labels * 10)
    assert copied["n"] == independent["n"] == 120
    for name in ("lo", "hi", "agreement_lo", "agreement_hi"):
        assert copied[name] == pytest.approx(alone[name], abs=0.02)
    assert independent["hi"] - independent["lo"] < 0.5 * (copied["hi"] - copied["lo"])


NOTES: dict[str, tuple[list[list[Any]], str, bool]] = {
    "no common case": ([["a", None], [None, "b"]] * 4, "no answer was scored by both", False),
    "one value only": ([["a", "a"]] * 9, "all scores are equal", False),
    "always right": ([[True, i % 2 == 0] for i in range(9)], "p0 gave every answer the same", True),
    "few rows": ([["a", "a"], ["b", "b"], ["a", "b"]], "too few for an interval: 3 rows", True),
}


@pytest.mark.parametrize("case", NOTES)
def test_a_coefficient_that_says_nothing_says_why(case: str) -> None:
    rows, note, is_defined = NOTES[case]
    row = pair(rows)
    assert note in row["note"]
    assert pd.isna(row["kappa"]) != is_defined
    if len(rows) < 5:
        assert pd.isna([row["lo"], row["hi"], row["alpha_lo"], row["agreement_lo"]]).all()


def test_verdicts_of_a_judge_are_compared_with_labels_of_people() -> None:
    says = [i % 3 != 0 for i in range(12)]
    verdicts = [call("final_answer", reason="It is so.", ok=ok) for ok in says]
    judge = nbagent.judge("Is it right?", model=script(verdicts))
    table = pd.DataFrame({"n": range(12)})
    agent = nbagent.Agent(script([f"{n}." for n in range(12)]), tools="none")
    batch = agent.map(table, "{{ n }}?", name="b", score=[judge], concurrency=1).wait()
    for n, ok in enumerate(says):
        nbagent.score(batch.open_run(n), "review", 5 if ok else 2, by="anna")
        nbagent.score(batch.open_run(n), "review", 4 if ok and n else 1, by="ben")
    people = batch.agreement("review")
    assert people["raters"].tolist() == ["anna · ben"]
    assert (people["level"][0], people["method"][0]) == (
        "ordinal",
        "Cohen's kappa, quadratic weights",
    )
    everybody = batch.agreement(right_from=4)
    assert everybody["raters"].tolist() == [
        *("judge · anna", "judge · ben", "anna · ben", "all"),
    ]
    assert everybody["kappa"].tolist() == [1.0] * 4
    assert everybody["n"].tolist() == [12] * 4
    assert max(everybody["lo"]) < 0.75
    refused: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        ((), {}, r"cannot be compared \(judge: verdict; anna: number; .* give right_from=4"),
        (("judge",), {}, r"needs two raters of the same answers, and there is 1: .*by='ben'"),
        (("reviews",), {}, "'reviews' is no score of this batch; .*did you mean 'review'"),
        (("review",), {"level": "ratio"}, "level='ratio': give 'nominal', 'ordinal', 'interval'"),
        ((), {"right_from": 4, "level": "interval"}, "needs numbers; these scores are verdicts"),
    ]
    for names, options, words in refused:
        with pytest.raises(UsageError, match=words):
            batch.agreement(*names, **options)
    stored: Any = nbagent.batch("b")
    pd.testing.assert_frame_equal(stored.agreement("review"), people)


def test_verdicts_and_numbers_are_blocks_of_their_own_if_no_score_is_named() -> None:
    cases = cases_of([[True, i % 2 == 0, None] for i in range(6)])
    marks = cases_of([[1 + i % 3, 3 - i % 3, 2] for i in range(6)])
    both = [
        replace(
            case,
            scores=(
                *case.scores,
                *(score.model_copy(update={"scorer": "mark"}) for score in other.scores),
            ),
        )
        for case, other in zip(cases, marks, strict=True)
    ]
    frame: Any = agreement(both)
    # p2 gave marks only.
    assert frame["raters"].tolist() == [
        "p0 (q) · p1 (q)",
        *("p0 (mark) · p1 (mark)", "p0 (mark) · p2", "p1 (mark) · p2", "all"),
    ]
    assert frame["level"].tolist() == ["nominal", *["ordinal"] * 4]
    with pytest.raises(UsageError, match="cannot be compared"):
        agreement(both, ["q", "mark"])


def test_one_person_who_scored_twice_is_two_raters_by_name() -> None:
    cases = cases_of([["a", "b"], ["b", "b"], ["a", "a"]])
    twice = [
        CaseResult(
            row_key=case.row_key,
            labels=case.labels,
            scores=tuple(
                score.model_copy(update={"by": "anna", "scorer": f"q{score.by}"})
                for score in case.scores
            ),
        )
        for case in cases
    ]
    assert agreement(twice)["raters"].tolist() == ["anna (qp0) · anna (qp1)"]


@pytest.mark.proof
@pytest.mark.parametrize("n", [8, 20, 60])
@pytest.mark.parametrize("agree", [0.0, 0.4, 0.8, 0.95])
@pytest.mark.parametrize("share", [0.5, 0.85])
def test_intervals_of_kappa_hold_what_they_say(n: int, agree: float, share: float) -> None:
    random, hits, defined = np.random.default_rng(5), 0, 0
    for _ in range(400):
        first = random.random(n) < share
        second = np.where(random.random(n) < agree, first, random.random(n) < share)
        row = pair(np.stack([first, second], axis=1).tolist())
        if not pd.isna(row["kappa"]):
            defined += 1
            hits += row["lo"] <= agree <= row["hi"]
    assert hits / defined >= 0.93
