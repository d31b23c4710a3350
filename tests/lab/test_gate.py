"""Checks of a batch: requirements, a baseline, and what the data cannot show."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from stage_of_batches import TABLE, agent, ask

import nbagent
from nbagent import UsageError
from nbagent.contracts.case_results import CaseResult, CaseStatus, ToolUse
from nbagent.contracts.records import ScoreRecord
from nbagent.lab.check_result import CheckFailed
from nbagent.lab.results import CaseResults

AT = datetime(2026, 11, 29, tzinfo=UTC)
HOSTILE = "a]]>\x00\x1b[31m <b>&\u202e|`![x](http://evil.example/x.png) \ud800\n# head"


def case(row: Any, value: Any = True, **more: Any) -> CaseResult:
    """One case; `value` is its score `exact`."""
    score = ScoreRecord(
        run_id=f"run {row}", scorer="exact", value=value, by="function", at=AT, row={}
    )
    fields: dict[str, Any] = {
        "row_key": str(row),
        "labels": {},
        "cells": {"n": row},
        "status": "ok",
        "run_id": f"run {row}",
        "text": f"says {row}",
        "cost_usd": 0.5,
        "duration_ms": 12.5,
        "scores": (score,),
    }
    return CaseResult(**{**fields, **more})


def batch(*cases: CaseResult, name: str = "b") -> CaseResults:
    return CaseResults(name, cases)


def rows(n: int, wrong: int = 0, name: str = "b", **more: Any) -> CaseResults:
    """A batch of n rows, the first of which are wrong."""
    return batch(*(case(row, row >= wrong, **more) for row in range(n)), name=name)


def without(status: CaseStatus, row: Any) -> CaseResult:
    return case(row, status=status, scores=(), why="LLM_TIMEOUT: too slow", text="")


FAILING: dict[str, tuple[CaseResults, dict[str, Any], str, list[str]]] = {
    "mean": (rows(20, 5), {"min": {"exact": 0.9}}, "exact ≥ 0.9", ["0", "1", "2", "3", "4"]),
    "mean-above": (rows(4, 0), {"max": {"exact": 0.5}}, "exact ≤ 0.5", ["0", "1", "2", "3"]),
    "failed": (batch(case(0), without("failed", 1)), {}, "cases without an answer ≤ 0", ["1"]),
    "ended": (batch(case(0), without("ended", 1)), {}, "cases without an answer ≤ 0", ["1"]),
    "unfinished": (batch(case(0), without("unfinished", 1)), {}, "all cases are asked", ["1"]),
    "missing": (batch(case(0), without("missing", 1)), {}, "all cases are asked", ["1"]),
    "no-case": (batch(), {}, "all cases are asked", []),
    "unscored": (
        batch(case(0), case(1, scores=())),
        {"min": {"exact": 0.1}},
        "all answers have the score exact",
        ["1"],
    ),
    "scored-by-no-number": (
        batch(case(0), case(1, float("nan")), case(2, float("-inf"))),
        {"min": {"exact": 0.1}},
        "all answers have the score exact",
        ["1", "2"],
    ),
    "a-failure-is-0": (
        batch(*(case(row) for row in range(8)), without("failed", 8), without("failed", 9)),
        {"min": {"exact": 0.9}, "max_failed": 0.2},
        "exact ≥ 0.9",
        ["8", "9"],
    ),
    "cost": (rows(3), {"max_cost_usd": 1.0}, "cost ≤ $1.0000", []),
    "a-measure": (rows(2), {"max": {"duration_ms": 10}}, "duration_ms ≤ 10", ["0", "1"]),
    "baseline": (
        rows(40, 20),
        {"not_worse_than": rows(40)},
        "exact not worse than the baseline",
        [str(row) for row in range(10)],
    ),
    "one-row": (
        rows(40, 1),
        {"baseline": rows(40), "max_worse": 0},
        "rows with a worse exact than in the baseline ≤ 0",
        ["0"],
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_check_that_fails_names_its_rows(name: str) -> None:
    results, options, title, keys = FAILING[name]
    checked = results.check(**options)
    assert not checked
    assert [check.title for check in checked.failures] == [title]
    assert [row.row_key for row in checked.failures[0].rows] == keys
    with pytest.raises(CheckFailed) as failure:
        checked.raise_for_failure()
    assert title in str(failure.value)


PASSING: dict[str, tuple[CaseResults, dict[str, Any]]] = {
    "nothing-asked": (rows(3, 2), {}),
    "mean": (rows(20, 2), {"min": {"exact": 0.9}}),
    "failures-allowed": (batch(case(0), without("failed", 1)), {"max_failed": 1}),
    "a-share-of-failures": (
        batch(*(case(row) for row in range(9)), without("failed", 9)),
        {"max_failed": 0.1},
    ),
    "cost": (rows(2), {"max_cost_usd": 1}),
    "measures": (rows(9), {"max": {"duration_ms": 13, "cost_usd": 0.5}, "baseline": rows(9)}),
    "better": (rows(40), {"not_worse_than": rows(40, 20), "max_worse": 0}),
    "a-scorer-may-say-nothing": (rows(4), {"min": {"exact": 1}}),
}


@pytest.mark.parametrize("name", PASSING)
def test_a_check_that_passes_is_true(name: str) -> None:
    results, options = PASSING[name]
    checked = results.check(**options)
    assert checked
    assert checked.raise_for_failure() is checked
    frame: Any = checked.frame()
    assert frame["ok"].all()
    requires_score = not options.keys().isdisjoint({"min", "max", "not_worse_than", "baseline"})
    for text in (str(checked), repr(checked), checked.markdown().replace("\\", "")):
        assert ("no score was checked" in text) is not requires_score


def test_a_mean_says_what_a_case_without_an_answer_counts() -> None:
    some = batch(*(case(row) for row in range(8)), without("failed", 8), without("failed", 9))
    as_zero = some.check(min={"exact": 0.5}, max_failed=2)
    assert "10 cases, 2 without an answer counted as 0)" in str(as_zero)
    compared = some.check(baseline=rows(10), max_failed=2)
    assert "10 pairs, 2 without an answer counted as 0, adjusted p 0.5)" in str(compared)
    left_out = some.check(max={"exact": 1}, max_failed=2)
    assert "8 cases, 2 without an answer left out)" in str(left_out)
    assert "without an answer counted" not in str(rows(8).check(min={"exact": 0.5}))


def test_a_gate_of_few_rows_says_what_it_cannot_show() -> None:
    """Two of ten rows worse is no proof; the result says so, and the rows can be counted."""
    now, before = rows(10, 2), rows(10)
    checked = now.check(not_worse_than=before)
    assert checked
    assert "no difference shown; 10 pairs can show a change of 0." in str(checked)
    assert not now.check(not_worse_than=before, max_worse=1)


def test_a_score_that_is_better_lower_got_worse_when_it_grew() -> None:
    scores = {
        label: [
            case(row, tokens + row % 3, labels={}).scores[0].model_copy(update={"better": "lower"})
            for row in range(20)
        ]
        for label, tokens in (("short", 100.0), ("long", 200.0))
    }
    short, long = (
        batch(*(case(row, scores=(score,)) for row, score in enumerate(scores[label])))
        for label in scores
    )
    assert short.check(not_worse_than=long, max_worse=0)
    checked = long.check(not_worse_than=short, max_worse=0)
    assert [check.n_rows for check in checked.failures] == [20, 20]
    assert checked.failures[0].rows[0].why == "exact 100 → 200"


def test_every_variant_must_meet_the_limits() -> None:
    cases = [
        case(row, row >= wrong, labels={"prompt": label})
        for row in range(20)
        for label, wrong in (("v1", 0), ("v2", 10))
    ]
    checked = batch(*cases).check(min={"exact": 0.9})
    assert [check.title for check in checked.failures] == ["exact ≥ 0.9 [v2]"]
    assert batch(*cases).only(prompt="v1").check(min={"exact": 0.9})
    assert not batch(*cases).only(prompt="v2").check(baseline=batch(*cases).only(prompt="v1"))


def test_a_variant_is_compared_with_itself_in_a_baseline_of_several() -> None:
    def of(wrong: int) -> CaseResults:
        cases = (
            case(row, label == "v1" or row >= wrong, labels={"prompt": label})
            for row in range(40)
            for label in ("v1", "v2")
        )
        return batch(*cases)

    checked = of(20).only(prompt="v2").check(baseline=of(0))
    assert [check.title for check in checked.failures] == ["exact not worse than the baseline"]
    assert of(20).only(prompt="v1").check(baseline=of(0))
    with pytest.raises(UsageError, match="the baseline 'b': 'prompt' has no label 'v2'"):
        labelled = batch(*(case(row, labels={"prompt": "v1"}) for row in range(4)))
        of(0).only(prompt="v2").check(baseline=labelled)


INVALID: dict[str, tuple[dict[str, Any], str]] = {
    "score": ({"min": {"exakt": 0.9}}, "did you mean 'exact'"),
    "limit": ({"min": {"exact": "high"}}, "give a number"),
    "nan": ({"min": {"exact": float("nan")}}, "give a number"),
    "true": ({"max": {"exact": True}}, "give a number"),
    "no-dict": ({"min": 0.9}, "write min="),
    "percent": ({"min": {"exact": 90}}, "a share from 0 to 1.*; write 0.9 for 90 %"),
    "percent-at-most": ({"max": {"exact": 5}}, "write 0.05 for 5 %"),
    "below-0": ({"min": {"exact": -0.1}}, "-0.1 is no limit"),
    "failed": ({"max_failed": -1}, "max_failed=-1"),
    "worse": ({"max_worse": 1.5, "baseline": rows(3)}, "whole number"),
    "worse-alone": ({"max_worse": 1}, "needs a baseline"),
    "cost": ({"max_cost_usd": float("inf")}, "expected USD"),
    "two-baselines": ({"baseline": rows(3), "not_worse_than": rows(3)}, "two names of one"),
    "no-baseline": ({"baseline": 7}, "is no baseline"),
    "no-file": ({"baseline": "no-such.json"}, "cannot be read"),
}


@pytest.mark.parametrize("values", [("good", "bad"), (True, "True")], ids=["labels", "mixed"])
def test_labels_have_no_mean_to_check(values: tuple[Any, Any]) -> None:
    labelled = batch(*(case(row, value) for row, value in enumerate(values)))
    with pytest.raises(UsageError, match="labels"):
        labelled.check(min={"exact": 0.5})
    with pytest.raises(UsageError, match=r"labels|numbers in common"):
        labelled.check(baseline=labelled)


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_requirement_is_refused(name: str) -> None:
    options, message = INVALID[name]
    with pytest.raises(UsageError, match=message):
        rows(3).check(**options)


OTHER_BASELINES: dict[str, tuple[CaseResults, str]] = {
    "other-rows": (batch(*(case(row) for row in range(50, 60))), "no row in common"),
    "other-cells": (rows(10, cells={"n": "another"}), "no row in common"),
    "other-scorer": (
        batch(*(case(row, scores=()) for row in range(10))),
        "the baseline has no score 'exact'",
    ),
    "other-version": (
        batch(
            *(
                replace(one, scores=(one.scores[0].model_copy(update={"version": 2}),))
                for one in rows(10).results()
            )
        ),
        "version 1 here and 2 in the baseline",
    ),
    "other-axes": (rows(10, labels={"prompt": "v1"}), r"batch\.only"),
    "empty": (batch(), "no row in common"),
}


@pytest.mark.parametrize("name", OTHER_BASELINES)
def test_a_baseline_of_something_else_is_refused(name: str) -> None:
    baseline, message = OTHER_BASELINES[name]
    with pytest.raises(UsageError, match=message):
        rows(10).check(min={"exact": 0.5}, baseline=baseline)


def test_two_batches_are_compared_row_by_row() -> None:
    before = batch(*(case(row, row >= 10) for row in range(20)), case("gone"), name="before")
    now = [case(row) for row in range(20)]
    # The same key, but another question: no pair.
    now[3] = replace(now[3], cells={"n": "another question"})
    after = batch(*now, case("new"), case("newer"), name="after")
    with pytest.warns(UserWarning, match="only in 'before'") as warned:
        compared: Any = before.compare(after, score="exact").set_index("batch")
    assert compared.index.tolist() == ["before", "after"]
    assert compared.loc["after", "pairs"] == 19
    assert compared.loc["after", "verdict"] == "better"
    warning = str(warned[0].message)
    assert "1 row is only in 'before' (first: 'gone')" in warning
    assert "2 rows are only in 'after' (first: 'new')" in warning
    assert "(first: '3')" in warning
    with pytest.warns(UserWarning, match="only in 'before'"):
        changed: Any = before.diff(after, only="better")
    assert changed["row_key"].tolist() == ["0", "1", "2", "4", "5", "6", "7", "8", "9"]
    assert changed["value_after"].tolist() == [1.0] * 9


def test_batches_with_variants_are_compared_variant_by_variant() -> None:
    def of(name: str, wrong: int) -> CaseResults:
        cases = [
            case(row, row >= n_wrong, labels={"prompt": label})
            for row in range(40)
            for label, n_wrong in (("v1", 0), ("v2", wrong))
        ]
        return batch(*cases, name=name)

    compared: Any = of("a", 0).compare(of("b", 20)).set_index(["prompt", "batch"])
    assert compared.loc[("v1", "b"), "verdict"] == "no difference shown"
    assert compared.loc[("v2", "b"), "verdict"] == "worse"
    checked = of("b", 20).check(not_worse_than=of("a", 0))
    assert [check.title for check in checked.failures] == ["exact not worse than the baseline [v2]"]
    assert {row.why for row in checked.failures[0].rows} == {"exact 1 → 0"}


def test_batches_of_one_name_are_told_apart() -> None:
    compared: Any = rows(10).compare(rows(10, 5))
    assert compared["batch"].tolist() == ["b", "b (2)"]


def test_reports_show_hostile_texts_as_text() -> None:
    bad = case(HOSTILE, False, text=HOSTILE)
    checked = batch(bad, *(case(row, False) for row in range(12)), name=HOSTILE).check(
        min={"exact": 0.9}
    )
    suite = ET.fromstring(checked.junit().encode())
    assert suite.get("failures") == "1"
    (failure,) = suite.iter("failure")
    assert "<b>&" in (failure.text or "")
    markdown = checked.markdown()
    assert "\n# head" not in markdown
    assert "![x]" not in markdown.replace("\\", "\\\\") or "\\!\\[x" in markdown
    assert "<b>" not in markdown
    table_rows = [line for line in markdown.splitlines() if line.startswith("|")]
    assert all(line.replace("\\|", "").count("|") == 4 for line in table_rows)
    assert "\x1b" not in str(checked)


def test_a_check_shows_itself_and_is_one_line_in_a_test() -> None:
    checked = rows(20, 15).check(min={"exact": 0.9})
    assert repr(checked).startswith("<CheckResult b failed: exact ≥ 0.9: 0.25")
    shown = checked._repr_mimebundle_()  # pyright: ignore[reportPrivateUsage]
    assert "FAILED" in shown["text/html"]
    assert "FAILED" in shown["text/plain"]


# The file of a baseline


def full() -> CaseResult:
    return case(
        1,
        labels={"prompt": "v1"},
        attempt=2,
        prompt="Ask 1",
        cells={"n": 1, "at": pd.Timestamp("2026-01-01"), "share": 0.5, "none": pd.NA},
        stop_reason="answered",
        turns=2,
        total_tokens=30,
        recorded_usd=0.25,
        output={"output_city": "Oslo"},
        tools=(ToolUse(name="look", calls=2, failed=1),),
        scores=(
            *case(1).scores,
            ScoreRecord(
                run_id="run 1", scorer="mood", value="good", by="anna", reason="friendly", at=AT
            ),
        ),
    )


def score_named(result: CaseResult, name: str) -> ScoreRecord:
    return next(score for score in result.scores if score.scorer == name)


def test_a_saved_batch_is_read_as_it_was(tmp_path: Path) -> None:
    file = batch(full()).save(tmp_path / "baseline.json")
    read = nbagent.read_batch(file)
    plain = {"n": 1, "at": "2026-01-01T00:00:00", "share": 0.5, "none": None}
    assert read.results() == (replace(full(), cells=plain),)
    by_hand = score_named(read.results()[0], "mood")
    assert (by_hand.row, by_hand.reason) == (None, "friendly")
    assert read.axes == {"prompt": ["v1"]}
    assert repr(read) == "<SavedResults b, 1 case>"
    before = file.read_bytes()
    read.save(file)
    assert file.read_bytes() == before, "a file that is saved again is the same"


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=str)
def test_a_score_that_is_no_number_is_saved_as_an_error(value: float, tmp_path: Path) -> None:
    odd = batch(case(1, value), case(2, 0.5))
    read = nbagent.read_batch(odd.save(tmp_path / "baseline.json"))
    first = score_named(read.results()[0], "exact")
    assert (first.value, first.error) == (None, f"the scorer returned {value}")
    assert not read.check(min={"exact": 0.1})


def test_a_changed_answer_is_a_diff_of_one_case_and_of_the_last_line(tmp_path: Path) -> None:
    first = rows(10).save(tmp_path / "a.json").read_text("utf-8").splitlines()
    other = [replace(one, run_id=f"other {one.row_key}") for one in rows(10).results()]
    other[4] = replace(other[4], text="another answer")
    second = batch(*other).save(tmp_path / "b.json").read_text("utf-8").splitlines()
    changed = [number for number, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    assert changed == [6, 12]


def test_a_baseline_is_bounded_and_says_what_was_cut(tmp_path: Path) -> None:
    long = batch(*(case(row, text="x" * 30_000) for row in range(1_000)))
    file = long.save(tmp_path / "baseline.json")
    assert file.stat().st_size < 16_000_000
    read = nbagent.read_batch(file)
    assert len(read) == 1_000
    assert "texts are cut at 8,000 characters" in read.notes[0]
    assert rows(1_000).check(min={"exact": 1}, baseline=file)


def test_a_secret_is_not_in_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-baseline-0123456789abcdef"
    monkeypatch.setenv("SOME_API_KEY", secret)
    score = case(1).scores[0].model_copy(update={"reason": secret})
    leaking = case(
        secret,
        labels={secret: secret},
        cells={secret: secret, "long": "x" * 110 + secret * 9},
        text="x" * 7_990 + secret,
        prompt=secret,
        why=secret,
        scores=(score,),
        tools=(ToolUse(name=secret, calls=1),),
    )
    text = batch(leaking, name=secret).save(tmp_path / "baseline.json").read_text("utf-8")
    assert secret[:12] not in text


def lines_of(results: CaseResults, folder: Path) -> list[Any]:
    return json.loads(results.save(folder / "good.json").read_text("utf-8"))


def edited(change: Callable[[list[Any]], object]) -> Callable[[list[Any]], str]:
    def edit(lines: list[Any]) -> str:
        change(lines)
        return json.dumps(lines)

    return edit


BAD_FILES: dict[str, tuple[Callable[[list[Any]], str], str]] = {
    "empty": (lambda lines: "", "it is not whole"),
    "half": (lambda lines: json.dumps(lines)[:-30], "it is not whole"),
    "no-list": (lambda lines: '{"a": 1}', "it is no saved batch"),
    "other-json": (lambda lines: "[1, 2]", "it is no saved batch"),
    "a-notebook": (lambda lines: '{"cells": [], "nbformat": 4}', "it is no saved batch"),
    "deep": (lambda lines: "[" * 100_000, "it is not whole"),
    "nan": (lambda lines: json.dumps(lines).replace("0.5", "NaN", 1), "it is not whole"),
    "infinity": (lambda lines: json.dumps(lines).replace("0.5", "1e999", 1), "infinite number"),
    "a-newer-form": (
        edited(lambda lines: lines[0].update(schema=9, oldest_reader=9)),
        "a newer nbagent .schema 9; this one reads 1.; upgrade",
    ),
    "no-schema": (edited(lambda lines: lines[0].pop("schema")), "schema is not a number"),
    "a-case-is-gone": (edited(lambda lines: lines.pop(1)), "2 of its 3 cases"),
    "a-case-is-twice": (edited(lambda lines: lines.__setitem__(1, lines[2])), "is there twice"),
    "another-axis": (
        edited(lambda lines: lines[1].update(labels={"model": "x"})),
        "unknown labels",
    ),
    "a-wrong-type": (edited(lambda lines: lines[1].update(status="great")), "case 0.status"),
    "a-score-of-nothing": (edited(lambda lines: lines[1].update(scores=[{}])), "case 0.scores"),
    "no-ids": (edited(lambda lines: lines[-1].update(run_id=[])), "it is damaged"),
    "no-zone": (edited(lambda lines: lines[-1].update(scored_at="2020-01-01")), "it is damaged"),
    "no-time": (edited(lambda lines: lines[-1].update(scored_at="noon")), "it is damaged"),
    "attempt-0": (edited(lambda lines: lines[1].update(attempt=0)), "attempt 0"),
    **{
        f"{field}-of-{number:.0e}": (
            edited(lambda lines, field=field, number=number: lines[1].update({field: number})),
            "infinite number, or one that no batch has",
        )
        for fields, number in (
            (("total_tokens", "turns", "attempt"), 10**30),
            (("cost_usd", "recorded_usd"), 1e307),
        )
        for field in fields
    },
    "tokens-of-400-digits": (
        edited(lambda lines: lines[1].update(total_tokens=10**400)),
        "infinite number, or one that no batch has",
    ),
    "usd-of-400-digits": (
        edited(lambda lines: lines[1].update(cost_usd=10**400)),
        "it is damaged: case 0.cost_usd",
    ),
    "a-mean-that-overflows": (
        edited(lambda lines: lines[1]["scores"][0].update(value=1e308)),
        "infinite number, or one that no batch has",
    ),
    "calls-of-a-tool": (
        edited(lambda lines: lines[1].update(tools=[{"name": "x", "calls": 10**400}])),
        "infinite number, or one that no batch has",
    ),
    "too-large": (lambda lines: " " * 65_000_000, "it is larger than 64 MB"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_damaged_or_foreign_baseline_is_one_clear_line(name: str, tmp_path: Path) -> None:
    change, message = BAD_FILES[name]
    file = tmp_path / "baseline.json"
    file.write_text(change(lines_of(rows(3), tmp_path)), "utf-8")
    with pytest.raises(UsageError, match=message) as refused:
        nbagent.read_batch(file)
    assert "\n" not in str(refused.value)


def test_a_column_of_the_frames_is_no_axis_of_a_file(tmp_path: Path) -> None:
    lines, saved = lines_of(rows(3), tmp_path), rows(3)
    file = tmp_path / "axis.json"
    columns = {*saved.frame().columns, *saved.cells("exact").columns} - {"n"}
    for axis in columns - saved.axes.keys():
        edit = json.loads(json.dumps(lines))
        edit[0]["axes"] = {axis: ["v1"]}
        for case in edit[1:-1]:
            case["labels"] = {axis: "v1"}
        file.write_text(json.dumps(edit), "utf-8")
        with pytest.raises(UsageError, match=f"{axis}.* is a column, and no axis"):
            nbagent.read_batch(file)


def test_a_field_of_a_newer_version_is_ignored(tmp_path: Path) -> None:
    lines = lines_of(rows(3), tmp_path)
    lines[0]["schema"] = 2
    lines[1]["mood"] = "fine"
    file = tmp_path / "newer.json"
    file.write_text(json.dumps(lines), "utf-8")
    assert nbagent.read_batch(file).results() == rows(3).results()


def test_what_is_no_baseline_is_told_where_to_go(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it is no file"):
        nbagent.read_batch(tmp_path)
    with pytest.raises(UsageError, match=r"read_notebook\('x.ipynb'\)\.batch"):
        nbagent.read_batch("x.ipynb")
    with pytest.raises(UsageError, match=r"read_batch\('x.json'\) reads a file"):
        nbagent.batch("x.json")


# From the store


def parity(row: Any, run: Any) -> bool:
    return run.text == f"a:{row.n}"


def test_a_live_batch_is_checked_against_its_file_and_others_of_the_store(tmp_path: Path) -> None:
    first = ask(score=parity)
    file = first.save(tmp_path / "baseline.json")
    worse = agent(lambda request: "no idea").map(
        pd.DataFrame({"n": range(3)}), "{{ n }}", name="worse", score=parity
    )
    assert not worse.check(min={"parity": 1}), "it is waited for"
    limits: dict[str, Any] = {"min": {"parity": 1}}
    assert first.check(**limits, not_worse_than=file)
    opened: Any = nbagent.batch("b")
    assert opened.check(**limits, not_worse_than=str(file))
    for baseline in ("b", "last", first, file):
        checked = worse.check(**limits, not_worse_than=baseline, max_worse=0)
        titles = [check.name for check in checked.failures]
        assert titles[0] == "parity ≥ 1"
        assert titles[-1] == "rows with a worse parity than in the baseline ≤ 0"
    with pytest.raises(UsageError, match="did you mean 'worse'"):
        first.check(not_worse_than="wors")


def test_last_without_another_batch_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"batch\.save\('baseline\.json'\)"):
        ask(score=parity).wait().check(not_worse_than="last")


# Labels of people, and tables that shrink


def is_answered(row: Any, run: Any) -> bool:
    return bool(run.text)


def test_people_who_disagree_turn_no_gate_green() -> None:
    batch = ask(name="b").wait()
    for result in batch.results():
        nbagent.score(result.run_id, "ok", True, by="anna")
        nbagent.score(result.run_id, "ok", result.row_key == "0", by="ben")
    checked = batch.check(min={"ok": 0.9})
    assert not checked
    assert "its labels differ" in str(checked)


def test_a_table_that_lost_most_rows_is_red(tmp_path: Path) -> None:
    ask(TABLE, name="whole", score=is_answered).wait().save(tmp_path / "whole.json")
    few = ask(TABLE.head(5), name="few", score=is_answered).wait()
    checked = few.check(not_worse_than=tmp_path / "whole.json")
    assert not checked
    assert "5 of 12 rows" in str(checked)
    half = ask(TABLE.head(6), name="half", score=is_answered).wait()
    assert half.check(not_worse_than=tmp_path / "whole.json")


def test_long_keys_and_labels_fit_their_own_baseline(tmp_path: Path) -> None:
    table = pd.DataFrame({"k": ["a" * 1_000 + end for end in "12"], "n": [1, 2]})
    vary = {"prompt": {"p" * 5_000: "{{ n }}?", "q": "{{ n }}!"}}
    batch = ask(table, key="k", vary=vary, template="", score=is_answered).wait()
    batch.save(tmp_path / "long.json")
    assert batch.check(not_worse_than=tmp_path / "long.json")
    assert len(batch.compare(nbagent.read_batch(tmp_path / "long.json"))) == 4


def test_a_share_of_failed_cases_means_the_same_as_in_map() -> None:
    batch = ask(says=nbagent.offline.error("LLM_TIMEOUT", "late")).wait()
    assert batch.check(max_failed=1.0)
    assert not batch.check(max_failed=1)
