"""Several people label the answers of one batch: each label stays, and a case has one value."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frontends import StandIn
from stage_of_reviews import review

import nbagent
from nbagent.contracts.approval import PersonAnswer
from nbagent.contracts.errors import UsageError
from nbagent.providers.offline import script
from nbagent.session.frontend import Frontend, use_frontend


def answered(n: int = 2, **options: Any) -> Any:
    answers = script([f"Answer {i}." for i in range(n)])
    agent = nbagent.Agent(answers, tools="none")
    table = pd.DataFrame({"n": range(n)})
    return agent.map(table, "{{ n }}?", name="b", concurrency=1, **options).wait()


def labels(name: str = "review") -> set[tuple[Any, ...]]:
    frame = nbagent.scores(scorer=name)
    return set(frame[["row_key", "by", "value"]].itertuples(index=False, name=None))


def test_each_person_labels_all_answers_and_sees_no_label_of_another() -> None:
    batch = answered()
    annas = review(batch, by="anna")
    assert annas.title.startswith("review, by anna: how good is this answer")
    first = annas.shown()
    annas.label(5)
    annas.label(1, "Too short.")
    bens = review(batch, by=" ben ")
    assert (bens.total, bens.shown()) == (2, first)
    bens.label(2)
    assert review(batch, by="ben").total == 1, "one is labelled already"
    assert review(batch, by="anna").total == 0
    assert review(batch).total == 2, "nobody of this name has labelled them"
    assert {by for _, by, _ in labels()} == {"anna", "ben"}
    assert len(labels()) == 3
    assert sorted(nbagent.scores(scorer="review", by="anna")["value"]) == [1.0, 5.0]


JOINT: dict[str, tuple[list[Any], Any]] = {
    "numbers": ([5, 2, 2], 3.0),
    "two numbers": ([1, 4], 2.5),
    "labels": (["dry", "warm", "dry"], "dry"),
    "a tie of labels": (["dry", "warm"], None),
    "verdicts": ([True, True, False], True),
    "a tie of verdicts": ([True, False], None),
    "a tie for the second place": (["a", "a", "b", "c"], "a"),
    "a number and a verdict": ([4, True], None),
    "a label and a number": (["good", 4], None),
    "one person": ([3], 3.0),
}


def test_the_value_of_a_case_is_one_of_all_its_labels() -> None:
    batch = answered(1)
    run = batch.open_run(0)
    for version, (case, (values, wanted)) in enumerate(JOINT.items(), 1):
        for i, value in enumerate(values):
            nbagent.score(run, "quality", value, by=f"person {i}", version=version)
        value, cell = batch.frame()["score_quality"][0], batch.cells("quality").iloc[0]
        assert (None if pd.isna(value) else value) == wanted, case
        assert (None if pd.isna(cell["value"]) else cell["value"]) == wanted, case
        assert cell["state"] == ("missing" if wanted is None else "scored"), case
    assert len(nbagent.scores(scorer="quality")) == sum(len(values) for values, _ in JOINT.values())
    stored: Any = nbagent.batch("b")
    assert stored.progress.variants[0].scores == {"quality": 3.0}


def test_a_tie_of_two_people_is_named_in_a_comparison() -> None:
    batch = answered(3)
    for n, verdicts in enumerate([(True, True), (True, False)]):
        for by, value in zip(("anna", "ben"), verdicts, strict=True):
            nbagent.score(batch.open_run(n), "mine", value, by=by)
    row: Any = batch.compare("mine").iloc[0]
    assert row[["n", "missing"]].tolist() == [1, 2]
    assert "1 tie between people, counted as missing" in row["note"]


def test_the_last_label_of_a_person_counts_and_a_higher_version_replaces_all() -> None:
    batch = answered(1)
    run = batch.open_run(0)
    for value, by in ((1, "anna"), (4, "ben"), (2, "anna"), (2, " anna ")):
        nbagent.score(run, "quality", value, by=by)
    assert batch.cells("quality")["value"].tolist() == [3.0]
    # The same name in two spellings of Unicode.
    nbagent.score(run, "quality", 1, by="Zo\u00eb")
    nbagent.score(run, "quality", 3, by="Zoe\u0308")
    assert len(nbagent.scores(scorer="quality")) == 3
    nbagent.score(run, "quality", 5, by="cem", version=2)
    assert batch.cells("quality")["value"].tolist() == [5.0]


def test_a_person_cannot_take_the_name_of_a_scorer_nor_a_scorer_theirs() -> None:
    batch = answered(1, score=nbagent.scorer(name="exact")(lambda row, run: True))  # pyright: ignore
    run = batch.open_run(0)
    for version in (1, 2):  # a label of a higher version would hide the scorer's score
        with pytest.raises(UsageError, match=r"is by the scorer 'function', and would be mixed"):
            nbagent.score(run, "exact", False, by="anna", version=version)
    rows = nbagent.scores()[["version", "by", "value"]].to_numpy().tolist()
    assert rows == [[1, "function", 1.0]]


def test_a_reason_of_a_megabyte_is_cut_and_says_so() -> None:
    run = answered(1).open_run(0)
    made = nbagent.score(run, "quality", 3, by="anna", reason="long " * 200_000)
    assert made.reason is not None
    assert len(made.reason) <= 2_000
    assert "left out" in made.reason
    assert nbagent.scores(scorer="quality")["reason"].tolist() == [made.reason]


def test_a_review_that_asks_for_reasons_takes_no_label_without_one() -> None:
    one = review(answered(1), by="anna", reason=True)
    assert one.title.endswith("Say why.")
    for reason in (None, "", "  "):
        with pytest.raises(UsageError, match="write the reason first"):
            one.label(4, reason)
    assert labels() == set()
    one.label(4, "It has the number.")
    assert labels() == {("0", "anna", 4.0)}


def test_in_a_terminal_the_reason_is_asked_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, prompts = ["4", " ", "It is short."], list[str]()

    def type_next(prompt: str = "") -> str:
        prompts.append(prompt)
        return lines.pop(0)

    batch = answered(1)
    monkeypatch.setattr("builtins.input", type_next)
    use_frontend(StandIn(ask=lambda question: PersonAnswer(choice="deny")))
    batch.review(by="anna", reason=True)
    assert prompts[1:] == ["reason: ", "reason: "]
    assert nbagent.scores(scorer="review")["reason"].tolist() == ["It is short."]
    assert capsys.readouterr().out.endswith("1 label kept, 0 left\n")


def test_without_anybody_to_ask_the_line_to_write_has_the_name() -> None:
    use_frontend(Frontend())
    with pytest.raises(UsageError, match=r"nbagent\.score\(run, 'review', 4, by='anna'\)"):
        answered(1).review(by="anna")


def test_a_run_that_is_deleted_during_a_review_can_be_skipped_but_not_labelled() -> None:
    batch = answered()
    one = review(batch, by="anna")
    deleted = next(
        run
        for run in (batch.open_run(n) for n in range(2))
        if run.text == dict(one.shown())["answer"]
    )
    nbagent.forget(deleted)
    assert one.shown() == (("answer", "(This run was deleted; skip it.)"),)
    with pytest.raises(UsageError, match="was deleted, so it cannot be labelled"):
        one.label(3)
    one.skip()
    one.label(3)
    assert len(labels()) == 1
    with pytest.raises(UsageError, match="no run is called"):
        nbagent.score(deleted, "review", 3, by="ben")


LABEL = """
import sys, nbagent
for i in range(10):
    nbagent.score(sys.argv[1], "quality", i % 5, by=sys.argv[2])
    nbagent.score(sys.argv[1], "shared", i, by="everybody")
nbagent.score(sys.argv[1], "quality", int(sys.argv[3]), by=sys.argv[2])
"""


def test_two_kernels_that_label_one_run_at_once_keep_the_labels_of_both(tmp_path: Path) -> None:
    batch = answered(1)
    run_id, code = batch.open_run(0).id, str(Path(nbagent.__file__).parents[1])
    # With the store of this test, and the entry that makes it the person's own.
    environment = {**os.environ, "PYTHONPATH": code}
    kernels = [
        subprocess.Popen(
            [sys.executable, "-c", LABEL, run_id, by, value], env=environment, cwd=tmp_path
        )
        for by, value in (("anna", "2"), ("ben", "5"))
    ]
    assert [kernel.wait(timeout=60) for kernel in kernels] == [0, 0]
    assert labels("quality") == {("0", "anna", 2.0), ("0", "ben", 5.0)}
    assert labels("shared") == {("0", "everybody", 9.0)}
    assert batch.cells("quality")["value"].tolist() == [3.5]
