"""A person labels answers one by one, blind to what made them: order, labels, the terminal."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from frontends import StandIn
from stage_of_reviews import review

import nbagent
from nbagent.contracts.approval import PersonAnswer
from nbagent.contracts.errors import UsageError
from nbagent.contracts.secrets import register_secret
from nbagent.providers.offline import call, script
from nbagent.session.frontend import Frontend, PersonReview, use_frontend

NAMES = ("alpha", "beta")
ANSWERS = ("Two.", "Four.", "Six.")


def answered(*says: Any, **options: Any) -> Any:
    """A batch: a row for each answer, asked of two models."""
    vary = {"model": [script([f"{name} {it}" for it in says], name=name) for name in NAMES]}
    table = pd.DataFrame({"n": range(len(says)), "style": "short"})
    how: dict[str, Any] = {"name": "double", "concurrency": 1, "vary": vary, **options}
    return nbagent.Agent(tools="none").map(table, "Double {{ n }}.", **how).wait()


def answers_in_order(one: PersonReview) -> list[str]:
    """Shown answers, case by case, without labels."""
    said: list[str] = []
    while shown := one.shown():
        said.append(shown[-1][1])
        one.skip()
    return said


def labels() -> dict[str, float]:
    frame = nbagent.scores(scorer="review")
    return dict(zip(frame["run_id"].tolist(), frame["value"].tolist(), strict=True))


Terminal = StandIn(ask=lambda question: PersonAnswer(choice="deny"))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | type[BaseException]]]:
    """Lines that a person types; after the last one, the input ends."""
    lines: list[str | type[BaseException]] = []

    def type_next(prompt: str = "") -> str:
        line = lines.pop(0) if lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", type_next)
    yield lines
    assert not lines, "it ended before everything was typed"


def test_a_review_shows_the_row_and_the_answer_and_nothing_of_what_made_them() -> None:
    batch = answered("", "", vary={"model": {"best": script(["1.", "2."], name="gamma")}})
    one = review(batch)
    assert (one.position, one.total) == (1, 2)
    seen: list[Any] = []
    while shown := one.shown():
        seen.append(shown)
        assert one.position == len(seen)
        run = batch.open_run(dict(shown)["n"])
        hidden = [run.model, "gamma", "best", run.id[:8], batch.name]
        assert not [it for it in hidden if it in repr((one.title, shown))]
        one.skip()
    assert sorted(seen) == [
        (("prompt", "Double 0."), ("n", "0"), ("style", "short"), ("answer", "1.")),
        (("prompt", "Double 1."), ("n", "1"), ("style", "short"), ("answer", "2.")),
    ]
    assert one.position == 3
    one.label(3)
    assert labels() == {}, "at the end nothing waits for a label"


def test_the_order_is_the_seeds_and_tells_nothing_of_rows_and_variants() -> None:
    batch = answered(*map(str, range(8)))
    first = answers_in_order(review(batch))
    assert len(first) == len(set(first)) == 16
    assert answers_in_order(review(batch)) == first
    others = {tuple(answers_in_order(review(batch, seed=seed))) for seed in range(4)}
    assert len(others) == 4
    for order in others:
        names = [it.split()[0] for it in order]
        assert names not in (sorted(names), sorted(names, reverse=True), [*NAMES] * 8)


def test_labels_are_kept_at_once_and_what_has_one_is_left_out_the_next_time() -> None:
    batch = answered(*ANSWERS)
    order, one = answers_in_order(review(batch)), review(batch)
    one.label(5)
    assert [*labels().values()] == [5.0]
    one.skip()
    one.label(1)
    frame = nbagent.scores(scorer="review")
    said = set(zip(frame["by"], frame["kind"], frame["version"], strict=True))
    assert said == {("person", "number", 1)}
    texts = {nbagent.open_run(run_id).text: value for run_id, value in labels().items()}
    assert texts == {order[0]: 5.0, order[2]: 1.0}
    again = review(batch)
    assert again.total == 4
    assert answers_in_order(again) == [order[1], *order[3:]], "skipped ones come again"
    assert review(batch, name="second").total == 6
    frame = batch.frame()
    assert frame["score_review"].notna().sum() == 2


def test_prompts_that_differ_between_the_answers_to_a_row_are_not_shown() -> None:
    agent = nbagent.Agent(script(["One.", "Two."]), tools="none")
    vary = {"prompt": {"kind": "Be kind to {{ n }}.", "rude": "Be rude to {{ n }}."}}
    one = review(agent.map(pd.DataFrame({"n": [1]}), vary=vary).wait())
    assert one.total == 2
    assert [name for name, _ in one.shown()] == ["n", "answer"]


def test_a_label_keeps_the_reason_for_it() -> None:
    one = review(answered("Two."))
    one.label(2, "It is wrong.")
    reasons = nbagent.scores(scorer="review")["reason"].tolist()
    assert [text for text in reasons if isinstance(text, str)] == ["It is\x07 wrong."]


def test_back_lets_a_label_be_changed() -> None:
    one = review(answered("Two."))
    one.back()
    assert one.position == 1
    one.label(2)
    second = one.shown()
    one.label(3)
    assert sorted(labels().values()) == [2.0, 3.0]
    one.back()
    assert one.shown() == second
    one.back()
    one.label(4)
    assert (sorted(labels().values()), one.position) == ([3.0, 4.0], 2)


def test_an_answer_of_a_type_is_shown_as_it_was_given_and_a_failed_run_is_not() -> None:
    given = call("final_answer", answer=[6])
    vary = {"model": [script([given], name="gamma"), script([], name="delta")]}
    one = review(answered("", vary=vary, output=list[int]))
    assert (one.total, one.shown()[-1]) == (1, ("answer", '{"answer":[6]}'))


def test_text_of_a_model_is_text_and_a_secret_is_hidden() -> None:
    register_secret("sk-verysecret-123456")
    table = pd.DataFrame([{"a\x1b[2Jb": "sk-verysecret-123456", "long": "x" * 90_000}])
    agent = nbagent.Agent(script(["\x1b[31mSix.\x07\u202e"]), tools="none")
    shown = review(agent.map(table, "Double 3.").wait()).shown()
    assert [name for name, _ in shown] == ["prompt", "ab", "long", "answer"]
    assert shown[1][1] == "[redacted]"
    assert len(shown[2][1]) < 20_000
    assert shown[3][1] == "Six.\ufffd⟦U+202E⟧"


def test_what_cannot_be_a_review_or_a_label_is_refused() -> None:
    batch = answered("Two.")
    batch.score(nbagent.scorer(name="theirs")(lambda row, run: True))  # pyright: ignore
    refused: list[tuple[dict[str, Any], str]] = [
        ({"scale": 9}, "scale=9: give a whole number from 2 to 5"),
        ({"scale": True}, "scale=True: give a whole number"),
        ({"name": "how good?"}, "cannot name a score"),
        ({"name": "theirs"}, "is by the scorer 'function'"),
        ({"by": ""}, "give the name of the person"),
    ]
    for options, words in refused:
        with pytest.raises(UsageError, match=words):
            review(batch, **options)
    one: Any = review(batch, scale=3)
    for value in (0, 4, True, 2.0, "2"):
        with pytest.raises(UsageError, match="is no label; give 1 to 3"):
            one.label(value)
    assert labels() == {}


def test_in_a_terminal_it_asks_until_every_case_has_a_label(
    typed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    batch = answered("Two.")
    use_frontend(Terminal)
    typed += ["6", "good", "", "4", "b", "5", "s"]
    batch.review()
    assert [*labels().values()] == [5.0]
    said = capsys.readouterr().out
    assert said.count("Type 1 to 5, s, b or q.") == 3
    assert "how good is this answer, from 1 (bad) to 5 (good)?" in said
    assert "labelled 4" in said
    assert "2 of 2" in said
    assert said.endswith("1 label kept, 1 left\n")
    typed += [" 3 "]
    batch.review()
    assert sorted(labels().values()) == [3.0, 5.0]
    batch.review()
    assert capsys.readouterr().out.endswith("0 labels kept, 0 left\n")


@pytest.mark.parametrize("end", ["q", EOFError, KeyboardInterrupt], ids=str)
def test_what_was_labelled_stays_when_a_person_leaves(
    typed: list[Any], capsys: pytest.CaptureFixture[str], end: Any
) -> None:
    batch = answered("Two.", "Four.")
    use_frontend(Terminal)
    typed += ["2", end]
    batch.review()
    assert [*labels().values()] == [2.0]
    assert capsys.readouterr().out.endswith("1 label kept, 3 left\n")


def test_where_nobody_can_be_asked_it_is_refused() -> None:
    batch = answered("Two.")
    use_frontend(Frontend())
    with pytest.raises(UsageError, match="nobody can be asked here; review in a notebook"):
        batch.review()
