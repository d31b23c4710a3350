"""A question to the person: what is shown of it, which answers count, and what is kept of them."""

from __future__ import annotations

from typing import Any

import pytest
from stories import Story, asked, tool_run

from nbagent.contracts import events
from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import ToolRun
from nbagent.view.node import text_of
from nbagent.view.printers import html
from nbagent.view.question import (
    field_text,
    open_questions_node,
    question_node,
    question_text,
    read_answer,
    read_fields,
)
from nbagent.view.run_picture import page, picture
from nbagent.view.terminal import PlainPrinter, run_text
from nbagent.view.turn_picture import card_node

ODD = {
    "path": "a\u202eb",
    "\u200b": ["\x1b[31mred", "\x1b]0;rm -rf\x07", "\ud800", "\U000e0041", "é"],
}


def question(arguments: dict[str, Any] | None = None, **fields: Any) -> Question:
    args = {"path": "a.md"} if arguments is None else arguments
    return asked("c1", "fs.write", args, **fields).question


# What is shown.


def drawn(it: Question) -> tuple[str, str]:
    """The text of a question's card, and its HTML."""
    node = question_node(it, "C01/c1/1")
    return text_of(node), html(node)


def test_arguments_are_read_as_name_and_value_with_real_line_breaks() -> None:
    text, page = drawn(question({"to": "ada", "n": 2, "body": "Hello\n\tyou <b>"}, why="", host=""))
    assert '<th scope="row">to</th><td><code>ada</code></td>' in page
    assert "<td><code>2</code></td>" in page
    assert "<pre>Hello\n\tyou &lt;b&gt;</pre>" in page
    assert text.startswith("fs.write needs your approval")
    assert "\\n" not in text
    assert 'data-question="C01/c1/1"' in page


def test_a_piece_stands_in_the_place_of_the_arguments_that_it_holds() -> None:
    piece = PreviewPiece("change of a.md", "@@ -1 +1 @@\n-old\n+n\u202eew", "diff", ("content",))
    it = question(
        {"path": "a.md", "content": "n\u202eew"}, pieces=(piece,), summary="Write a file."
    )
    text, page = drawn(it)
    assert text.count("n⟦U+202E⟧ew") == 1, "the field has it as an escape"
    assert '<span class="nba-minus">-old' in page
    assert ">content</th>" not in page
    assert question_text(it).splitlines() == [
        "? fs.write needs your approval",
        "  Write a file.",
        "  it writes",
        "  path: a.md",
        "  change of a.md:",
        "    @@ -1 +1 @@",
        "    -old",
        "    +n⟦U+202E⟧ew",
        "  for the session: this exact call",
    ]


def test_nothing_of_a_call_is_hidden_or_cut() -> None:
    long = "x" * 300_000
    text, page = drawn(question({**ODD, "long": long, "big": 2**70}, why="\x1b[31mred"))
    assert long in text
    assert str(2**70) in text
    assert "a⟦U+202E⟧b" in text
    assert "⟦U+001B⟧[31mred" in text
    assert all(c >= " " or c in "\n\t" for c in page)
    for lines in (10, 99):  # The buttons stand above what is long.
        text, _ = drawn(question(pieces=(PreviewPiece("piece", "line\n" * lines, "code"),)))
        assert (text.index("Allow once") < text.index("line")) == (lines == 99)
        assert (f"all {lines} lines" in text) == (lines == 99)


def test_several_questions_are_one_list_that_is_allowed_at_once() -> None:
    assert text_of(open_questions_node([("1", question())])) == ""
    node = open_questions_node([("1", question()), ("2", question({"path": "b.md"}))])
    assert 'data-do="answer_all"' in html(node)
    assert "2 calls need your approval" in text_of(node)
    assert 'fs.write(path="b.md")' in text_of(node)


# Which answers count.

GIVEN = {"text": 'say "hi"\n', "n": 2, "odd": "a\u202e\r\n"}


def test_fields_hold_strings_as_they_are_and_what_is_not_touched_stays() -> None:
    it = question(GIVEN)
    fields = {name: field_text(value) for name, value in GIVEN.items()}
    assert fields == {"text": GIVEN["text"], "n": "2", "odd": '"a\\u202e\\r\\n"'}
    assert read_fields(fields, it) == GIVEN
    once = {"choice": "session", "fields": fields}
    assert read_answer(once, it) == PersonAnswer(choice="session"), "nothing was edited"


READ: list[tuple[dict[str, Any], PersonAnswer]] = [
    ({"choice": "once"}, PersonAnswer(choice="once")),
    ({"choice": "session"}, PersonAnswer(choice="session")),
    ({"choice": "deny", "reason": "  no "}, PersonAnswer(choice="deny", reason="no")),
    ({"choice": "deny", "fields": {"n": "not JSON"}}, PersonAnswer(choice="deny")),
    (
        # Other arguments are another call, which an answer for the session does not cover.
        {"choice": "session", "fields": {"text": "{}", "n": '{"a": [1]}'}},
        PersonAnswer(choice="once", arguments={**GIVEN, "text": "{}", "n": {"a": [1]}}),
    ),
]


@pytest.mark.parametrize(("said", "answer"), READ, ids=str)
def test_an_answer_of_the_page_is_read(said: dict[str, Any], answer: PersonAnswer) -> None:
    assert read_answer(said, question(GIVEN)) == answer


ODD_ANSWERS: list[dict[str, Any]] = [
    *({}, {"choice": "always"}, {"choice": ["once"]}, {"choice": "deny", "reason": 5}),
    *({"choice": "once", "fields": it} for it in ([], "x", None, {"n": 3}, {"other": "1"})),
]


@pytest.mark.parametrize("odd", ODD_ANSWERS, ids=str)
def test_an_odd_message_answers_nothing(odd: dict[str, Any]) -> None:
    assert read_answer(odd, question(GIVEN)) is None


def test_an_answer_for_the_session_counts_only_where_it_is_offered() -> None:
    assert read_answer({"choice": "session"}, question(scope="")) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("NaN", "not valid JSON"),
        ("two", "write a text in double quotes"),
        ("1e999", "too large"),
        ("[" * 200 + "]" * 200, "100 levels"),
        ("[" * 100_000, "n: "),
    ],
    ids=["NaN", "text", "infinite", "deep", "very deep"],
)
def test_arguments_that_cannot_be_taken_are_said_to_be_so(text: str, words: str) -> None:
    answer = read_answer({"choice": "once", "fields": {"n": text}}, question(GIVEN))
    assert isinstance(answer, str)
    assert answer.startswith("n: ")
    assert words in answer


# What is kept.


def decided(**fields: Any) -> ToolRun:
    """A tool run that somebody was asked about."""
    value = ErrorInfo("E_DENIED", fields.pop("denied")) if "denied" in fields else 1
    run = tool_run("c1", "fs.write", {"path": "b.md"}, value)
    return run.model_copy(update={"error_detail": None, **fields})


DECISIONS: dict[str, tuple[ToolRun, str, str]] = {
    "allowed": (
        decided(approval="allowed", approved_by="person", waited_ms=4200.0),
        "allowed by you after 4.2 s",
        "✓ allowed → 1",
    ),
    "for the session": (
        decided(approval="allowed", approved_by="person", reason="for the session (b.md)"),
        "allowed for the session (b.md) by you",
        "✓ allowed → 1",
    ),
    "session": (
        decided(approval="allowed", approved_by="session"),
        "allowed by your earlier answer for the session",
        "→ 1",
    ),
    "policy": (
        decided(approval="denied", approved_by="policy", denied="x", reason="deny=fs.write"),
        "denied by the policy: deny=fs.write",
        "✕ denied by the policy",
    ),
    "denied": (
        decided(approval="denied", approved_by="person", denied="x", reason="not <b>this</b>"),
        "denied by you: not <b>this</b>",
        "✕ denied by you",
    ),
    "nobody": (
        decided(approval="denied", approved_by="nobody", denied="give on_approval=…"),
        "denied: approval needed but nobody can answer",
        "✕ denied",
    ),
    "edited": (
        decided(
            approval="edited", approved_by="person", waited_ms=900.0, asked_args={"path": "a.md"}
        ),
        "arguments edited by you after 900 ms",
        "✎ edited → 1",
    ),
}


@pytest.mark.parametrize("case", DECISIONS)
def test_every_form_says_what_was_decided_and_by_whom(case: str) -> None:
    tool, words, outcome = DECISIONS[case]
    run = Story().turn("", tool).end().run
    text, html = run_text(run), page(picture(run))
    assert f"fs.write: {words}" in text
    assert f'fs.write(path="b.md") {outcome}' in text
    assert words.partition(":")[0] in html
    assert ('the model had written: {"path": "a.md"}' in text) == (tool.approval == "edited")
    assert ("arguments that the model had written" in html) == (tool.approval == "edited")
    assert "<b>this" not in html


def test_a_card_says_once_that_a_call_was_denied() -> None:
    error = "the person denied this call"
    tool = decided(approval="denied", approved_by="person", denied=error, waited_ms=900.0)
    card = text_of(card_node(tool, "run"))
    assert card.count("denied") == 1
    assert "denied by you after 900 ms" in card
    tool = decided(approval="denied", approved_by="person", denied="too long", reason="too long")
    assert text_of(card_node(tool, "run")).count("too long") == 1


def test_plain_lines_print_a_question_unless_it_is_asked_there() -> None:
    for asks in (True, False):
        lines: list[str] = []
        printer = PlainPrinter(lines.append, asked_by_input=asks)
        printer.handle(asked("c1", "fs.write", {"path": "a\u202eb"}))
        assert ("needs your approval" in "".join(lines)) != asks
        printer.handle(events.ToolCallFinished("r", "C01", DECISIONS["allowed"][0], 0))
        assert lines[-1] == "     allowed by you after 4.2 s\n"
