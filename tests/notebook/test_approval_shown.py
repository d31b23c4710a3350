"""A question to the person: what is shown of it, which answers count, and what is kept of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stories import Story, asked, tool_run

from nbagent.contracts import events
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.policy import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.records import RunRecord, ToolRun
from nbagent.view.plain_lines import PlainPrinter
from nbagent.view.question import (
    Asked,
    Unclear,
    editable_json,
    question_text,
    question_view,
    read_answer,
    whole,
    whole_json,
)
from nbagent.view.static_html import bundle
from nbagent.view.view_state import view_of

ODD = {
    "path": "a\u202eb",
    "\u200b": ["\x1b[31mred", "\x1b]0;rm -rf\x07", "\ud800", "\U000e0041", "é"],
}


def question(**fields: Any) -> Question:
    return asked("c1", "fs.write", {"path": "a.md"}, **fields).question


# What is shown.


def test_arguments_are_shown_whole_and_edited_as_json_that_means_the_same() -> None:
    long = {"text": "x" * 300_000, "n": 2**70}
    assert json.loads(whole_json(long)) == json.loads(editable_json(long)) == long
    shown = whole_json(ODD)
    assert "a⟦U+202E⟧b" in shown
    assert "\\u001b]0;rm -rf\\u0007" in shown
    edited = editable_json(ODD)
    assert json.loads(edited) == ODD
    assert all(c >= " " or c == "\n" for c in edited)
    assert whole(edited) == edited
    # What `visible` drops with the escape is bytes of a file too.
    assert whole("\x1b]0;rm\x07 \x9b31m") == "⟦U+001B⟧]0;rm⟦U+0007⟧ ⟦U+009B⟧31m"
    assert json.loads(editable_json(ODD, one_line=True)) == ODD
    assert "\n" not in editable_json(ODD, one_line=True)


def test_colour_codes_are_seen_wherever_a_question_or_a_call_has_them() -> None:
    red, seen = "\x1b[31mred", "⟦U+001B⟧[31mred"
    piece = PreviewPiece("diff", f"+{red}", "diff")
    view = question_view(question(why=red, host=red, pieces=(piece,)), 1)
    assert all(seen in said for said in (view["why"], view["host"], view["pieces"][-1]["text"]))
    args: dict[str, Any] = {"text": red, "all": [{"\x1b[1m": 1}]}
    turn = view_of(Story().turn("", tool_run("c1", "keep", args, 1)).end().run)["turns"][0]
    assert seen in turn["summary"]["calls"][0]["arguments"]
    shown = turn["tools"][0]["arguments"]["text"]
    assert json.loads(shown) == {"text": seen, "all": [{"⟦U+001B⟧[1m": 1}]}


def test_a_question_in_plain_words_has_all_of_it() -> None:
    for lines, long in ((10, False), (99, True)):  # The buttons stand above what is long.
        pieces = (PreviewPiece("piece", "x\n" * lines, "code"),)
        assert question_view(question(pieces=pieces), 1)["long"] == long
    # A piece that says the arguments again is left out.
    again = PreviewPiece("again", '{"tool": "write", "arguments": {"path": "a.md"}}', "code")
    pieces = (again, PreviewPiece("diff of a.md", "-old\n+\u202enew", "diff"))
    assert question_text(question(pieces=pieces)).splitlines() == [
        "? fs.write (fs) waits for you",
        "  it writes",
        "  arguments:",
        '    {"path": "a.md"}',
        "  diff of a.md:",
        "    -old",
        "    +⟦U+202E⟧new",
        "  for the session: this very call",
    ]


# Which answers count.

OPEN = Asked(question(), 7)
ANSWER: dict[str, Any] = {"kind": "answer", "call": "c1", "nth": 7}


ALLOWED_A = PersonAnswer(choice="once", arguments={"a": 1})
READ: list[tuple[dict[str, Any], PersonAnswer]] = [
    ({"choice": "once"}, PersonAnswer(choice="once")),
    ({"choice": "session"}, PersonAnswer(choice="session")),
    ({"choice": "deny", "reason": "  no "}, PersonAnswer(choice="deny", reason="no")),
    ({"choice": "once", "arguments": '{"a": 1}'}, ALLOWED_A),
    # Other arguments are another call, which an answer for the session does not cover.
    ({"choice": "session", "arguments": '{"a": 1}'}, ALLOWED_A),
    ({"choice": "deny", "arguments": "not JSON"}, PersonAnswer(choice="deny")),
]


@pytest.mark.parametrize(("said", "answer"), READ, ids=str)
def test_an_answer_of_the_front_end_is_read(said: dict[str, Any], answer: PersonAnswer) -> None:
    assert read_answer({**ANSWER, **said}, OPEN) == answer


ODD_ANSWERS: list[dict[str, Any]] = [
    *({}, {"choice": "always"}, {"choice": ["once"]}, {"choice": "deny", "reason": 5}),
    *({"choice": "once", "nth": nth} for nth in (6, "7", 7.0, True)),
    {"choice": "once", "arguments": {"a": 1}},
]


@pytest.mark.parametrize("odd", ODD_ANSWERS, ids=str)
def test_an_odd_message_answers_nothing(odd: dict[str, Any]) -> None:
    assert read_answer({**ANSWER, **odd}, OPEN) is None
    assert read_answer({**ANSWER, "choice": "once"}, None) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": NaN}', "this is not JSON"),
        ('{"a": 1e999}', "too large"),
        ("[1]", "one JSON object"),
        ('{"a": ' + "[" * 200 + "]" * 200 + "}", "100 levels"),
        ("[" * 100_000, ""),
    ],
    ids=["NaN", "infinite", "list", "deep", "very deep"],
)
def test_arguments_that_cannot_be_taken_are_said_to_be_so(text: str, words: str) -> None:
    answer = read_answer({**ANSWER, "choice": "once", "arguments": text}, OPEN)
    assert isinstance(answer, Unclear)
    assert words in answer.words
    assert (answer.call, answer.nth) == ("c1", 7)


# What is kept.


def decided(**fields: Any) -> ToolRun:
    """A tool run that somebody was asked about."""
    value = ErrorInfo("E_DENIED", fields.pop("denied")) if "denied" in fields else 1
    run = tool_run("c1", "fs.write", {"path": "b.md"}, value)
    return run.model_copy(update={"error_detail": None, **fields})


DECISIONS: dict[str, tuple[ToolRun, str, str, str]] = {
    "allowed": (
        decided(approval="allowed", approved_by="person", waited_ms=4200.0),
        "allowed by the person after 4.2 s", "", "✓ allowed"),
    "session": (
        decided(approval="allowed", approved_by="session"),
        "allowed by an earlier answer for the session", "", ""),
    "policy": (
        decided(approval="denied", approved_by="policy", denied="the policy denies this call: x"),
        "denied by the policy", ": x", ""),
    "denied": (
        decided(approval="denied", approved_by="person", denied="not <b>this</b> file"),
        "denied by the person", ": not <b>this</b> file", "✕ denied"),
    "nobody": (
        decided(approval="denied", approved_by="nobody", denied="give on_approval=…"),
        "denied: nobody was there who could be asked", ": give on_approval=…", ""),
    "edited": (
        decided(approval="edited", approved_by="person", waited_ms=900.0),
        "arguments edited by the person after 0.9 s",
        '; the model had written {"path": "a.md"}', "✎ edited"),
}  # fmt: skip


@pytest.mark.parametrize("case", DECISIONS)
def test_every_form_says_what_was_decided_and_by_whom(case: str) -> None:
    run, words, rest, word = DECISIONS[case]
    line = f"fs.write: {words}{rest}"
    state = view_of(wrote({"path": "a.md"}, Story().turn("", run).end().run))
    card = state["turns"][0]["tools"][0]
    assert card["decision"] == words
    edited = run.approval == "edited"
    assert card["given"]["text"] == ('{"path": "a.md"}' if edited else "")
    forms = bundle(state)
    assert line in forms["text/plain"]
    # The row has a word for it where somebody was asked.
    end = "✕ E_DENIED" if run.approval == "denied" else "→"
    assert f'fs.write(path="b.md"){f" {word}" * bool(word)} {end}' in forms["text/plain"]
    assert (f'<span class="nba-res">{word}</span>' in forms["text/html"]) == bool(word)
    assert words in forms["text/html"]
    assert ("arguments that the model had written" in forms["text/html"]) == edited
    assert "<b>" not in forms["text/markdown"]
    shown = forms["text/markdown"].replace("\\", "").replace("&lt;", "<").replace("&gt;", ">")
    assert line.replace("…", "") in shown.replace("…", "")


def wrote(arguments: dict[str, Any], run: RunRecord) -> RunRecord:
    """The run, as if the model had written these arguments in its first call."""
    (turn,) = run.turns
    assert turn.response is not None
    call = turn.response.message.tool_calls[0].model_copy(update={"arguments": arguments})
    message = turn.response.message.model_copy(update={"tool_calls": (call,)})
    response = turn.response.model_copy(update={"message": message})
    return run.model_copy(update={"turns": (turn.model_copy(update={"response": response}),)})


def test_plain_lines_print_a_question_unless_it_is_asked_there() -> None:
    for asks in (True, False):
        lines: list[str] = []
        printer = PlainPrinter(lines.append, asked_by_input=asks)
        printer.handle(asked("c1", "fs.write", {"path": "a\u202eb"}))
        assert ("waits for you" in "".join(lines)) != asks
        printer.handle(events.ToolCallFinished("r", "C01", DECISIONS["allowed"][0], 0))
        assert lines[-1] == "     allowed by the person after 4.2 s\n"
