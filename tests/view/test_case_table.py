"""The table of all cases: verdicts, columns, and texts of one row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from nbagent.contracts.case_results import CaseResult, ToolUse
from nbagent.contracts.records import ScoreRecord
from nbagent.view.case_columns import columns_of_cases, verdict_of
from nbagent.view.case_names import short_texts
from nbagent.view.case_table import CaseChars, case_node, cases_text, page_node, row_node
from nbagent.view.node import text_of

AT = datetime(2026, 11, 29, tzinfo=UTC)


def score(value: Any, by: str = "function", name: str = "s", **more: Any) -> ScoreRecord:
    return ScoreRecord(run_id="r", scorer=name, value=value, by=by, at=AT, **more)


def case(*scores: ScoreRecord, **changes: Any) -> CaseResult:
    made: dict[str, Any] = {"row_key": "k", "labels": {"prompt": "a"}, "status": "ok"}
    made |= {"run_id": "r", "text": "t", "scores": scores, **changes}
    return CaseResult(**made)


@pytest.mark.parametrize(
    ("cases", "verdicts"),
    [
        ([case(score(True)), case(score(False))], ["right", "wrong"]),
        ([case(score(1.0)), case(score(0.0))], ["right", "wrong"]),
        ([case(score(1.0)), case(score(1.0))], ["right", "right"]),
        ([case(score(n, better="lower")) for n in (True, False)], ["wrong", "right"]),
        ([case(score(1.0)), case(score(0.5))], ["no score", "no score"]),
        ([case(score(1.0, "person")), case(score(4.0, "person"))], ["no score", "no score"]),
        ([case(score(1.0, "person"))], ["no score"]),
        ([case(score(1.0, "m:judge"))], ["no score"]),
        ([case(score(True, "anna"), score(False, "ben"))], ["no score"]),
        ([case(*(score(n > 0, f"p{n}") for n in range(3)))], ["right"]),
        ([case(score("good")), case(score(None))], ["no score", "no score"]),
        ([case(score(True), score(0.3, name="other"))], ["right"]),
        ([case(status="failed"), case(status="ended")], ["failed", "no answer"]),
        ([case(status="missing"), case(status="unfinished")], ["not run", "unfinished"]),
    ],
    ids=[
        "booleans",
        "zero and one",
        "a function gives ones only",
        "lower is better",
        "a share",
        "labels of 1 to 5",
        "one label 1 of 5",
        "a judge that always says 1",
        "two people differ",
        "most people agree",
        "words and none",
        "one of two decides",
        "without an answer",
        "not at its end",
    ],
)
def test_a_verdict_comes_from_the_status_and_the_scores_that_decide(
    cases: list[CaseResult], verdicts: list[str]
) -> None:
    deciding = columns_of_cases(cases, "b").deciding
    assert [verdict_of(result, deciding) for result in cases] == verdicts


def test_columns_are_those_that_the_cases_have() -> None:
    cases = [case(score(True, name="a.x")), case(score(0.5, name="b"), attempt=2)]
    columns = columns_of_cases(cases, "batch", ["a", "later"])
    assert columns.scores == ("review", "later", "a.x", "b")
    assert columns.axes == ("prompt",)
    assert columns.has_attempts


def test_a_blind_table_names_no_variant_and_no_score_of_others() -> None:
    cases = [
        case(score(True), score(4.0, "anna", "review"), score(2.0, "ben", "review"), prompt=text)
        for text in ("variant one", "variant two")
    ]
    columns = columns_of_cases(cases, "b", by="anna", is_blind=True)
    drawn = [
        row_node(columns, 0, cases[0]),
        case_node(columns, cases[0]),
        cases_text(columns, cases),
    ]
    text = " ".join(map(text_of, drawn))
    assert "4" in text
    assert [
        word for word in ("variant", "a", "right", "2 ", "function") if f" {word} " in text
    ] == []


def test_a_text_names_what_is_left_out() -> None:
    cases = [case(row_key=f"row {n}", tools=(ToolUse(name="t", calls=1),) * 9) for n in range(60)]
    columns = columns_of_cases(cases, "b")
    text = cases_text(columns, cases)
    assert "… 40 more cases; batch.frame() has all" in text
    assert "+3 more" in text


URL = f"https://example.com/{'tickets/' * 12}"


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["a", "b"], ["a", "b"]),
        ([f"{URL}1", f"{URL}2"], ["tickets/1", "tickets/2"]),
        (
            [f"Be careful with {'it ' * 60}{n} {'now ' * 60}" for n in "ab"],
            ["it a now", "it b now"],
        ),
        ([f"{n}{'x' * 200}{m}" for n in "ab" for m in "ab"], ["ax", "xxb", "bx", "xxb"]),
        (["a  b", "a b", "a\nb", "a b #2"], ["a b", "a b #2", "a b #3", "a b #2 #2"]),
        (["x" * 9_000 + n for n in "ab"], ["x", "#2"]),
    ],
    ids=["short", "one end", "in the middle", "two places", "spaces", "too far"],
)
def test_short_texts_of_different_texts_differ(texts: list[str], shown: list[str]) -> None:
    made = short_texts(texts, 40)
    assert len({*made}) == len(texts)
    assert all(part in text for part, text in zip(shown, made, strict=True))
    assert all(len(text) <= 50 for text in made)


def test_a_row_has_the_same_names_and_numbers_whatever_its_size() -> None:
    labels = {"temperature": "0.1", "top_p": "1", "max_turns": "3", "effort": "low"}
    cases = [
        case(row_key=f"{URL}{n}", labels={**labels, "system": f"{URL}{name}"}, attempt=attempt)
        for n in range(2)
        for name in ("brief", "kind")
        for attempt in (1, 2)
    ]
    columns = columns_of_cases(cases, "b")
    assert columns.axes == ("system", "temperature", "top_p", "max_turns")
    assert "Without a column: effort" in text_of(page_node(columns, cases))
    rows: list[Any] = [row_node(columns, n, one) for n, one in enumerate(cases)]
    numbers = [(row[1]["data-row"], row[1]["data-variant"]) for row in rows]
    assert numbers[:5] == [("0.1", "0"), ("0.2", "0"), ("0.1", "1"), ("0.2", "1"), ("1.1", "0")]
    small: list[Any] = [row_node(columns, 0, one, CaseChars(10, 4)) for one in cases]
    assert [row[2:4] for row in small] == [row[2:4] for row in rows]
    assert len({text_of(row[3]) for row in rows}) == 2
    assert len({text_of(row[2]) for row in rows}) == 4


def test_the_columns_beside_an_answer_say_more_than_its_key_and_prompt() -> None:
    cells = {"id": "k", "message": "How many?", "expected": "7", "country": "NO"}
    scored = score(True, row=dict.fromkeys(cells, "sha"))
    cases = [case(scored, cells=cells, prompt="How many?")]
    assert columns_of_cases(cases, "b").cells == ("expected", "country")
