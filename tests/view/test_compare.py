"""Runs held against each other, and the list of all runs, through their public doors."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any

import pytest
from browser.payloads import PAYLOADS

import nbagent
from nbagent.contracts.records import ForkedFrom
from nbagent.providers.offline import call, script
from nbagent.run import Run
from nbagent.store.writer import Store
from nbagent.view import run_facts
from nbagent.view.compare import compare_text, text_diff
from nbagent.view.node import text_of
from nbagent.view.printers import html as html_of
from nbagent.view.run_picture import picture


def look(place: str) -> str:
    """Look somewhere."""
    return f"seen {place}"


def run_of(*steps: Any, prompt: str = "Go.", **options: Any) -> Run:
    return nbagent.Agent(script(steps), tools=[look], quiet=True, **options).run(prompt)


A, B, END = call("look", place="a"), call("look", place="b"), "The end is near."


@pytest.mark.parametrize(
    ("other", "statuses"),
    [
        ([A, B, END], ["same", "same", "same"]),
        ([A, B, "The end is here."], ["same", "same", "changed"]),
        ([A, call("look", place="x"), B, END], ["same", "only in B", "same", "same"]),
        ([A, END], ["same", "only in A", "same"]),
        ([call("look", place="z"), B, END], ["changed", "same", "same"]),
    ],
    ids=["equal", "another answer", "one more in the middle", "one less", "other arguments"],
)
def test_turns_are_aligned_by_content(other: list[Any], statuses: list[str]) -> None:
    found: Any = nbagent.compare(run_of(A, B, END), run_of(*other)).frame()
    turns = found[(found["turn_A"] != "") | (found["turn_B"] != "")]
    seen: dict[tuple[str, str], set[str]] = {}
    for row in turns.to_dict("records"):
        seen.setdefault((row["turn_A"], row["turn_B"]), set()).add(row["status"])
    merged = [("changed" if s == {"same", "changed"} else s.pop()) for s in seen.values()]
    assert merged == statuses


def test_a_comparison_says_which_words_differ_and_adds_up() -> None:
    one = run_of(A, END, prompt="Be brief.", system="You are kind.")
    two = run_of(A, "The end is far.", prompt="Be very brief.", system="You are kind.")
    said = str(nbagent.compare(one.id[:8], two))
    assert "Be {+very +}brief." in said
    assert "The end is [-near-]{+far+}." in said
    assert "You are kind." not in said, "what is equal is not said"
    html = nbagent.compare(one, two).html()
    assert ">near</del>" in html
    assert ">far</ins>" in html
    assert f"{one.usage.total_tokens:,}" in html


def test_a_fork_is_compared_with_the_turns_that_it_shares() -> None:
    first = run_of(A, B, END, "Another end.")
    fork = first.fork("C03")
    frame: Any = nbagent.compare(first, fork).frame()
    found = frame.set_index("part")
    assert list(found.loc["look", "status"]) == ["same", "same"]
    assert found.loc["answer", "status"] == "changed"


@pytest.mark.parametrize(
    ("change", "statuses"),
    [
        ({"edits": {"C01": "Hm."}}, {"text": "changed", "look: result": "same"}),
        ({"edits": {"call_1_1": 99.0}}, {"look: result": "changed", "answer": "same"}),
        ({"edits": {"call_1_1": ValueError("no")}}, {"look: result": "changed", "answer": "same"}),
        ({"drop": ["C01"]}, {"look: result": "only in A", "answer": "same"}),
        (
            {"drop": ["call_1_1"], "edits": {"C01": "Hm."}},
            {"look": "only in A", "look: result": "only in A"},
        ),
    ],
    ids=["words", "a result", "a failure", "without a turn", "without a call"],
)
def test_a_comparison_sees_what_a_fork_changed(
    change: dict[str, Any], statuses: dict[str, str]
) -> None:
    first = run_of(A, B, END, END)
    frame: Any = nbagent.compare(first, first.fork("C03", **change)).frame()
    found = frame[(frame["turn_A"] != "C02") & (frame["turn_B"] != "C02")].set_index("part")
    assert {part: found.loc[part, "status"] for part in statuses} == statuses


def test_a_number_is_one_word() -> None:
    found = text_diff("It is 4.50 against 7.90, or 214,565.", "It is 7.90, or 291,940.")
    assert [piece for piece in found if piece[0] != "="] == [
        ("-", "4.50 against "),
        ("-", "214,565"),
        ("+", "291,940"),
    ]


@pytest.mark.parametrize("n", [0, 1, 9])
def test_a_comparison_takes_two_to_eight_runs(n: int) -> None:
    run = run_of(END)
    with pytest.raises(nbagent.UsageError, match="2 to 8 runs"):
        nbagent.compare(*[run] * n)


def test_long_texts_are_compared_by_word_and_in_bounded_time() -> None:
    words = " ".join(f"w{i % 7}" for i in range(40_000))
    began = time.process_time()
    text_diff(words, words[::-1])
    assert time.process_time() - began < 2
    lines = [f"The line {i} says that one and one are {i % 3}.\n" for i in range(1_200)]
    before, after = "".join(lines), "".join(lines).replace("line 700 says", "line 700 shouts")
    found = text_diff(before, after)
    assert [piece for piece in found if piece[0] != "="] == [("-", "says "), ("+", "shouts ")]
    assert "".join(text for op, text in found if op in "=-") == before
    assert "".join(text for op, text in found if op in "=+") == after


def test_runs_that_claim_to_continue_each_other_are_compared_all_the_same() -> None:
    one, two = run_of(A, END).record, run_of(A, "Never.").record
    fork = {"parent_id": two.id, "forked_from": ForkedFrom(turn_id="C9x")}
    one = one.model_copy(update={**fork, "turns": ()})
    two = two.model_copy(update={"parent_id": one.id})
    assert "answer" in compare_text((one, two))


def test_hostile_texts_stay_text_in_a_comparison_and_in_the_history() -> None:
    for text in PAYLOADS.values():
        run_of(text, prompt=text, system=text)
    ids: list[str] = [run.id for run in nbagent.history(limit=200).summaries]
    shown = [nbagent.compare(*ids[i : i + 2]).html() for i in range(0, len(ids) - 1, 2)]
    shown.append(nbagent.history(limit=200).html())
    shown.append(html_of(nbagent.history(limit=200).node("k-1")))
    for html in shown:
        body = html.partition("</style>")[2]
        for mark in ("<script", "<img", "<svg", "<iframe", "<style", 'onerror="', 'javascript:"'):
            assert mark not in body.replace('<img alt="', ""), mark


def test_history_has_buttons_only_for_a_kernel_that_answers_them() -> None:
    run = run_of("Nothing.", prompt="Look.")
    plain, alive = nbagent.history().html(), html_of(nbagent.history().node("k-1"))
    for mark in ("<button", "<input", "data-run", "data-kernel"):
        assert mark not in plain.partition("</style>")[2]
    assert 'data-kernel="k-1"' in alive
    assert alive.count('data-do="show"') == alive.count(f'data-run="{run.id}"') == 1
    assert len(nbagent.history().with_search("Look")) == 1
    assert len(nbagent.history().with_search("Nowhere")) == 0


def test_history_opens_as_many_connections_for_many_runs_as_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []
    reading = Store.reading

    def counted(store: Store) -> AbstractContextManager[object]:
        opened.append(1)
        return reading(store)

    monkeypatch.setattr(Store, "reading", counted)

    def connections() -> int:
        opened.clear()
        assert str(nbagent.history())
        return len(opened)

    run_of("Nothing.")
    for_one = connections()
    for _ in range(9):
        run_of(A, "Nothing.")
    assert connections() == for_one == 2, "one for the frame that is sorted, one for the rows"


def test_history_shows_the_numbers_of_a_run_as_its_own_picture_does() -> None:
    runs = [run_of("One."), run_of(A, B, END, name="named"), run_of()]
    lines = str(nbagent.history()).splitlines()
    assert len(lines) == 3
    for run, line in zip(reversed(runs), lines, strict=True):
        numbers = run_facts.facts_line(run.record.summary())
        assert run.id[:8] in line
        assert line.endswith(numbers)
        assert numbers in text_of(picture(run.record))
    assert "▂" in lines[1] or "▇" in lines[1] or "█" in lines[1]


def test_history_finds_a_text_in_prompts_answers_and_results() -> None:
    run_of("Nothing.", prompt="A needle in the prompt.", name="first")
    run_of(call("look", place="needle"), "Nothing.")
    run_of("The needle is 100% here.")
    run_of("Nothing.")
    assert len(nbagent.history()) == 4
    assert len(nbagent.history("NEEDLE")) == 3
    assert nbagent.history("100%")[0].text == "The needle is 100% here."
    assert len(nbagent.history("100_")) == 0
    assert len(nbagent.history("needle", name="first")) == 1
    assert nbagent.history("needle").frame().shape[0] == 3
    frame: Any = nbagent.runs()
    most = max(map(nbagent.open_run, frame["run_id"]), key=lambda run: run.usage.total_tokens)
    assert nbagent.history(sort="total_tokens", limit=1)[0].id == most.id
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"sort": "beauty"}, "is not a column"),
        ({"search": "a" * 100_000}, "at most 1,000 characters"),
        ({"search": "\ud800"}, "without half a character"),
        ({"limit": "5"}, "is not valid"),
        ({"limit": True}, "is not valid"),
    ]
    for options, said in wrong:
        with pytest.raises(nbagent.UsageError, match=said):
            nbagent.history(**options)
