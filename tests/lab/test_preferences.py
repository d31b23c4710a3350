"""A judge compares the answers of two variants, in both orders."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import pytest

import nbagent
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.errors import UsageError
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.records import ScoreRecord
from nbagent.lab.preferences import Pairs, preference_frame
from nbagent.providers.offline import Script, call, error, script

RUBRIC = "The answer names the capital that `expected` names."


def answers_of(request: ChatRequest) -> tuple[str, str]:
    """The two answers in the prompt of a judge, in their order."""
    text = request.messages[-1].text
    mark = text.partition("\n")[0].split()[-1]
    first, second = re.findall(rf"<<< \w+ answer {mark}\n(.*?)\n{mark} >>>", text, re.DOTALL)
    return first, second


def better(choose: Callable[[str, str], str], *first: Any) -> Script:
    """A judge that chooses by the two answers."""

    def verdict(request: ChatRequest) -> Any:
        return call("final_answer", reason="So it is.", better=choose(*answers_of(request)))

    return script([*first, *[verdict] * 200], name="judge")


def prefers_best(first: str, second: str) -> str:
    if ("best" in first) == ("best" in second):
        return "tie"
    return "first" if "best" in first else "second"


def always_first(first: str, second: str) -> str:
    return "first"


def asked(
    n: int = 7, *, equal: bool = False, prompts: dict[str, str] | None = None, name: str = "b"
) -> Any:
    """A batch of two variants: v2 has the best answer to each row but the first."""
    table = pd.DataFrame({"n": range(n), "expected": "Oslo", "note": "never sent"})
    says = {
        "v1": [f"v1 {i}" for i in range(n)],
        "v2": [f"v2 {i} {'best' if i and not equal else ''}" for i in range(n)],
    }
    models = {name: script(says[name], name=name) for name in says}
    agent = nbagent.Agent(tools="none")
    if prompts:
        steps = [text for name in says for text in says[name]]
        agent = nbagent.Agent(script(steps), tools="none")
        return agent.map(table, vary={"prompt": prompts}, name=name, concurrency=1).wait()
    return agent.map(table, "{{ n }}?", vary={"model": models}, name=name, concurrency=1).wait()


def test_a_verdict_counts_if_it_is_the_same_in_both_orders() -> None:
    batch, judge = asked(), better(prefers_best)
    row = batch.prefer("v1", "v2", RUBRIC, model=judge).iloc[0]
    assert row[["a", "b", "n", "failed"]].tolist() == ["v1", "v2", 7, 0]
    assert row[["prefers_a", "prefers_b", "ties", "order_changed"]].tolist() == [0, 6, 1, 0]
    assert row["share_b"] == pytest.approx(6.5 / 7)
    assert 0.5 < row["lo"] < row["share_b"] < row["hi"] <= 1
    assert row["verdict"] == "v2 is preferred"
    assert pd.isna(row["note"])
    assert len(judge.requests) == 14
    scores = batch.frame().set_index("model")["score_prefer_v1"]
    assert scores["v1"].isna().all()
    assert sorted(scores["v2"].tolist()) == [0.5, *[1.0] * 6]
    assert set(nbagent.runs()["batch"]) == {"b", "b/judge"}
    again = batch.prefer("v1", "v2", RUBRIC, model=judge)
    assert again.iloc[0].to_dict() == pytest.approx(row.to_dict(), nan_ok=True)
    assert len(judge.requests) == 14, "nothing is asked again"


def test_a_judge_that_always_prefers_the_first_place_finds_ties_and_is_noted() -> None:
    row = asked(6).prefer("v1", "v2", RUBRIC, model=better(always_first)).iloc[0]
    assert row[["prefers_a", "prefers_b", "ties", "order_changed"]].tolist() == [0, 0, 6, 6]
    assert row["verdict"] == "no preference shown"
    assert row["note"].startswith("the judge's verdict changed with the order of the answers in 6")
    assert row["lo"] < 0.5 < row["hi"]
    reasons = nbagent.scores(scorer="prefer_v1")["reason"].tolist()
    assert all(text.startswith("tie: the verdict changed with the order.") for text in reasons)


def test_a_few_pairs_or_equal_answers_show_no_preference() -> None:
    row = asked(2).prefer("v1", "v2", RUBRIC, model=better(prefers_best)).iloc[0]
    assert (row["n"], row["verdict"]) == (2, "too few rows for a verdict")
    assert pd.isna([row["lo"], row["hi"]]).all()
    batch = asked(6, equal=True, name="equal")
    row = batch.prefer("v1", "v2", RUBRIC, model=better(prefers_best)).iloc[0]
    assert (row["ties"], row["verdict"]) == (6, "no preference shown")
    assert row["lo"] < 0.5 < row["hi"]


def test_the_judge_is_sent_what_the_rubric_names_and_the_prompt_if_both_had_it() -> None:
    judge = better(prefers_best)
    asked(1).prefer("v1", "v2", RUBRIC, model=judge)
    text = judge.requests[0].messages[-1].text
    names = [head.rsplit(" ", 1)[0] for head in re.findall(r"^<<< (.*)$", text, re.MULTILINE)]
    assert names == ["column n", "column expected", "prompt", "first answer", "second answer"]
    assert "never sent" not in text
    first, second = map(answers_of, judge.requests)
    assert first == second[::-1]
    assert f"The rubric:\n{RUBRIC}" in judge.requests[0].system_prompt
    judge = better(prefers_best)
    batch = asked(1, prompts={"v1": "Kindly: {{ n }}", "v2": "Rudely: {{ n }}"})
    batch.prefer("v1", "v2", RUBRIC, model=judge)
    assert "Kindly" not in judge.requests[0].messages[-1].text


def test_a_failed_comparison_is_counted_and_asked_again() -> None:
    quota = error("LLM_QUOTA_EXCEEDED", "Nothing is left.")
    batch, judge = asked(2), better(prefers_best, quota)
    row = batch.prefer("v1", "v2", RUBRIC, model=judge).iloc[0]
    assert (row["n"], row["failed"]) == (1, 1)
    assert row["note"].startswith("the judge failed on 1 of 2 pairs: ")
    assert "Nothing is left." in row["note"]
    row = batch.prefer("v1", "v2", RUBRIC, model=judge).iloc[0]
    assert (row["n"], row["failed"]) == (2, 0)
    assert pd.isna(row["note"])


def test_the_judges_cost_from_the_budget_of_the_batch_and_other_scorers_stay() -> None:
    batch = asked(2)
    batch.score(lengthy)
    batch.prefer("v1", "v2", RUBRIC, model=better(prefers_best))
    batch.prefer("v2", "v1", RUBRIC, model=better(prefers_best), name="reverse")
    assert [*batch.frame().filter(like="score_")] == [
        *("score_lengthy", "score_prefer_v1", "score_prefer_v1.a_first"),
        *("score_prefer_v1.b_first", "score_reverse", "score_reverse.a_first"),
        "score_reverse.b_first",
    ]
    runs = len(nbagent.runs())
    batch.resume()
    assert len(nbagent.runs()) == runs


def lengthy(row: Any, run: Any) -> int:
    return len(run.text)


def test_forgetting_either_answer_forgets_the_judges_that_quote_it() -> None:
    batch = asked(4)
    batch.prefer("v1", "v2", RUBRIC, model=better(prefers_best))
    judges = nbagent.runs(batch="b/judge")
    for i, model in enumerate(("offline:v1", "offline:v2")):
        run = batch.open_run(i + 1, model=model.partition(":")[2])
        own = set(judges[judges["row_key"] == str(i + 1)]["run_id"])
        assert set(nbagent.forget(run)) == {run.id, *own}
        assert len(own) == 2
    scores = nbagent.scores(scorer="prefer_v1")
    assert sorted(scores["row_key"]) == ["0", "3"]


REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    (("v1", "v1", RUBRIC), {}, "'v1' and 'v1' are one variant"),
    (("v1", "v3", RUBRIC), {}, "'v3' is no variant here; there are v1, v2"),
    (("v1", "v2", RUBRIC), {"over": "prompt"}, "over='prompt' is no axis.*model"),
    (("v1", "v2", " "), {}, "is no rubric"),
    (("v1", "v2", RUBRIC), {"output": int}, "leave out output="),
    (("v1", "v2", RUBRIC), {"name": "which is better?"}, "cannot name a score"),
]


def test_a_comparison_that_cannot_be_made_is_refused_before_anything_is_asked() -> None:
    batch = asked(1)
    for given, options, text in REFUSED:
        with pytest.raises(UsageError, match=text):
            batch.prefer(*given, model=better(prefers_best), **options)
    assert len(nbagent.runs()) == 2
    table = pd.DataFrame({"n": [1]})
    agent, vary = nbagent.Agent(tools="none"), {"model": {"v1": script([]), "v2": script([])}}
    unanswered = agent.map(table, "{{ n }}?", vary=vary, name="c").wait()
    with pytest.raises(UsageError, match="no row has an answer of both 'v1' and 'v2'"):
        unanswered.prefer("v1", "v2", RUBRIC)


@pytest.mark.parametrize(
    ("wins", "losses", "verdict"),
    [
        (6, 0, "v2 is preferred"),
        (5, 0, "too few rows for a verdict"),
        (7, 1, "no preference shown"),  # by chance in 7 of 100
        (8, 1, "v2 is preferred"),
        (1, 8, "v1 is preferred"),
    ],
)
def test_a_preference_is_said_only_where_chance_is_unlikely(
    wins: int, losses: int, verdict: str
) -> None:
    results = [
        CaseResult(row_key=str(i), labels={}, run_id=str(i), scores=(scored(i, share),))
        for i, share in enumerate([1.0] * wins + [0.0] * losses)
    ]
    pairs = Pairs("v1", "v2", {result.run_id: "other" for result in results})
    assert preference_frame(results, "p", 1, pairs)["verdict"].tolist() == [verdict]


def scored(i: int, share: float) -> ScoreRecord:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return ScoreRecord(run_id=str(i), scorer="p", value=share, by="judge", at=at, row={})
