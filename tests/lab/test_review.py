"""A person labels answers one by one, blind to what made them: order, labels, the terminal."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from frontends import StandIn

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import PersonAnswer
from nbagent.contracts.secrets import register
from nbagent.lab.review import Review
from nbagent.providers.offline import call, script
from nbagent.session.frontend import Frontend, PersonReview, use_frontend
from nbagent.session.stores import current_store

ANSWERS = ("Two.", "Four.", "Six.", "Eight.", "Ten.", "Twelve.")


def cases(answers: tuple[str, ...] = ANSWERS) -> list[tuple[dict[str, Any], str]]:
    """Rows, each with a run of another model that answers it."""
    agents = [nbagent.Agent(model=script([it]), tools=[], quiet=True) for it in answers]
    return [
        ({"n": n, "style": "short"}, agent.run(f"Double {n}.").id) for n, agent in enumerate(agents)
    ]


def review(given: Any, **options: Any) -> Review:
    return Review(given, current_store(), **options)


def answers_in_order(one: Review) -> list[str]:
    """What is shown, case by case, without a label."""
    said: list[str] = []
    while shown := one.shown():
        said.append(shown[-1][1])
        one.skip()
    return said


def labels() -> dict[str, float]:
    frame = nbagent.scores(scorer="review")
    return dict(zip(frame["run_id"].tolist(), frame["value"].tolist(), strict=True))


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | type[BaseException]]]:
    """What a person types, line by line; when nothing is left, the end of the input."""
    lines: list[str | type[BaseException]] = []

    def type_next(prompt: str = "") -> str:
        line = lines.pop(0) if lines else EOFError
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", type_next)
    use_frontend(StandIn(ask=lambda question: PersonAnswer(choice="deny")))
    yield lines
    assert not lines, "it ended before everything was typed"


def test_a_review_shows_the_row_and_the_answer_and_nothing_of_what_made_them() -> None:
    given = cases()
    one = review(given)
    assert (one.place, one.total) == (1, 6)
    by_answer = {nbagent.open_run(run_id).text: (row, run_id) for row, run_id in given}
    for place in range(1, 7):
        shown = one.shown()
        row, run_id = by_answer[shown[-1][1]]
        assert [*shown[:-1]] == [("n", str(row["n"])), ("style", "short")]
        assert shown[-1][0] == "answer"
        run, text = nbagent.open_run(run_id), repr((one.title, shown))
        assert not [it for it in (run.model, run_id[:8], "script") if it in text]
        assert one.place == place
        one.skip()
    assert (one.shown(), one.place) == ((), 7)
    one.label(3)
    assert labels() == {}, "at the end nothing waits for a label"


def test_the_order_is_the_seeds_and_not_the_tables() -> None:
    given = cases()
    first = answers_in_order(review(given))
    assert sorted(first) == sorted(ANSWERS)
    assert answers_in_order(review(given[::-1])) == first
    orders = {tuple(answers_in_order(review(given, seed=seed))) for seed in range(8)}
    assert len(orders) > 4
    assert any(order != ANSWERS for order in orders)


def test_labels_are_kept_at_once_and_what_has_one_is_left_out_the_next_time() -> None:
    given = cases()
    one = review(given)
    order = answers_in_order(review(given))
    one.label(5)
    assert sorted(labels().values()) == [5.0]
    one.skip()
    one.label(1)
    frame = nbagent.scores(scorer="review")
    assert set(zip(frame["by"], frame["kind"], frame["version"], strict=True)) == {
        ("person", "number", 1)
    }
    again = review(given)
    assert again.total == 4
    assert answers_in_order(again) == [order[1], *order[3:]], "skipped ones come again"
    assert review(given, name="second").total == 6


def test_back_lets_a_label_be_changed() -> None:
    given = cases(ANSWERS[:2])
    one = review(given)
    one.back()
    assert one.place == 1
    one.label(2)
    second = one.shown()
    one.label(3)
    assert sorted(labels().values()) == [2.0, 3.0]
    one.back()
    assert one.shown() == second
    one.back()
    one.label(4)
    assert (sorted(labels().values()), one.place) == ([3.0, 4.0], 2)


def test_an_answer_of_a_type_is_shown_as_it_was_given() -> None:
    model = script([call("final_answer", answer=[6])])
    run = nbagent.Agent(model=model, tools=[], quiet=True, output=list[int]).run("Double 3.")
    assert review([({}, run.id)]).shown() == (("answer", '{"answer":[6]}'),)


def test_text_of_a_model_is_text_and_a_secret_is_hidden() -> None:
    given = cases(("\x1b[31mSix.\x07\u202e",))
    register("sk-verysecret-123456")
    given = [({"a\x1b[2Jb": "sk-verysecret-123456", "long": "x" * 90_000}, given[0][1])]
    shown = review(given).shown()
    assert [name for name, _ in shown] == ["ab", "long", "answer"]
    assert shown[0][1] == "[redacted]"
    assert len(shown[1][1]) < 20_000
    assert shown[2][1] == "Six.\ufffd⟦U+202E⟧"


def test_what_cannot_be_a_review_or_a_label_is_refused() -> None:
    given = cases(ANSWERS[:1])
    run_id = given[0][1]
    nbagent.score(run_id, "theirs", 3, by="anna")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"scale": 9}, "scale=9: give a whole number from 2 to 5"),
        ({"scale": True}, "scale=True: give a whole number"),
        ({"name": "how good?"}, "cannot name a score"),
        ({"name": "theirs"}, "is by 'anna' and would be lost"),
    ]
    for options, words in refused:
        with pytest.raises(UsageError, match=words):
            review(given, **options)
    one: Any = review(given, scale=3)
    for value in (0, 4, True, 2.0, "2"):
        with pytest.raises(UsageError, match="is no label; give 1 to 3"):
            one.label(value)
    assert labels() == {}


def test_in_a_terminal_it_asks_until_every_case_has_a_label(
    typed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    given = cases(ANSWERS[:3])
    typed += ["6", "good", "", "4", "b", "5", "s", " 1 "]
    review(given).run()
    assert sorted(labels().values()) == [1.0, 5.0]
    said = capsys.readouterr().out
    assert said.count("Type 1 to 5, s, b or q.") == 3
    assert "how good is this answer, from 1 (bad) to 5 (good)?" in said
    assert "labelled 4" in said
    assert "3 of 3" in said
    assert said.endswith("2 labels kept, 1 left\n")
    typed += ["3"]
    review(given).run()
    assert sorted(labels().values()) == [1.0, 3.0, 5.0]
    review(given).run()
    assert capsys.readouterr().out.endswith("0 labels kept, 0 left\n")


@pytest.mark.parametrize("end", ["q", EOFError, KeyboardInterrupt], ids=str)
def test_what_was_labelled_stays_when_a_person_leaves(
    typed: list[Any], capsys: pytest.CaptureFixture[str], end: Any
) -> None:
    typed += ["2", end]
    review(cases(ANSWERS[:3])).run()
    assert [*labels().values()] == [2.0]
    assert capsys.readouterr().out.endswith("1 label kept, 2 left\n")


class Buttons(StandIn):
    def review(self, review: PersonReview) -> bool:
        self.seen = (review.total, review.shown())
        return True


def test_a_front_end_with_buttons_takes_it_and_without_anybody_it_is_refused() -> None:
    one = review(cases(ANSWERS[:1]))
    buttons = Buttons()
    use_frontend(buttons)
    one.run()
    assert buttons.seen == (1, one.shown())
    use_frontend(Frontend())
    with pytest.raises(UsageError, match="nobody can be asked here; review in a notebook"):
        one.run()
