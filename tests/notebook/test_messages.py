"""Messages of pages at their one border: wrong types, sizes and kinds are no message."""

from __future__ import annotations

from typing import Any

import pytest

from nbagent.notebook.messages import KINDS, Message, read_message

LONG_ID, LONG_TEXT = "x" * 201, "x" * 4_000_001
INVALID: dict[str, Any] = {
    "nothing": None,
    "a list": [{"kind": "stop"}],
    "a text": "stop",
    "a number": 5,
    "no kind": {"run": "a"},
    "an unknown kind": {"kind": "approve"},
    "a kind that is no text": {"kind": ["stop"]},
    "a kind that is an object": {"kind": {"stop": 1}},
    "a run that is no text": {"kind": "stop", "run": 5},
    "an endless run": {"kind": "stop", "run": LONG_ID},
    "a page that is an object": {"kind": "ready", "page": {"a": 1}},
    "a page that is a flag": {"kind": "ready", "page": True},
    "a page that is a fraction": {"kind": "ready", "page": 1.5},
    "an endless page": {"kind": "ready", "page": LONG_ID},
    "a huge number": {"kind": "ready", "page": 10**400},
    "a tab that is a list": {"kind": "ready", "tab": ["a"]},
    "a key that is no text": {"kind": "fold", "key": 1, "open": True},
    "an open that is no flag": {"kind": "fold", "key": "C01", "open": "yes"},
    "a question that is no text": {"kind": "answer", "question": 5, "choice": "once"},
    "a choice in a list": {"kind": "answer", "question": "q", "choice": ["once"]},
    "a reason that is no text": {"kind": "answer", "question": "q", "reason": 5},
    "an endless reason": {"kind": "answer", "question": "q", "reason": LONG_TEXT},
    "questions that are a text": {"kind": "answer_all", "questions": "all"},
    "questions that are numbers": {"kind": "answer_all", "questions": [1]},
    "too many questions": {"kind": "answer_all", "questions": ["q"] * 1_001},
    "fields that are a list": {"kind": "act", "do": "retry", "fields": ["n"]},
    "a field that is an object": {"kind": "act", "do": "retry", "fields": {"n": {"a": 1}}},
    "a field without a limit": {"kind": "act", "do": "fork", "fields": {"prompt": "x" * 100_001}},
    "an endless name of a field": {"kind": "act", "do": "fork", "fields": {LONG_ID: "x"}},
    "too many fields": {"kind": "act", "fields": {str(n): "" for n in range(1_001)}},
    "an edited argument without a limit": {"kind": "preview", "fields": {"a": LONG_TEXT}},
    "fields that are null": {"kind": "answer", "question": "q", "fields": None},
    "a prompt without a limit": {"kind": "send", "id": "1", "prompt": LONG_TEXT},
    "a file that is no text": {"kind": "attach", "name": "a.png", "data": [1, 2]},
}


@pytest.mark.parametrize("content", INVALID.values(), ids=INVALID)
def test_what_is_not_whole_is_no_message(content: object) -> None:
    assert read_message(content) is None


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_is_read_and_what_nobody_knows_is_left_out(kind: str) -> None:
    content = {"kind": kind, "run": "a", "__proto__": {}, "extra": "x" * 10_000, "also": None}
    assert read_message(content) == Message(kind=kind, run="a")


def test_a_prompt_of_a_megabyte_and_an_edited_file_are_messages() -> None:
    text = "x" * 1_000_000
    assert read_message({"kind": "send", "id": "1", "prompt": text}) == Message(
        kind="send", id="1", prompt=text
    )
    edited = read_message({"kind": "preview", "question": "q", "fields": {"content": text}})
    assert edited is not None
    assert (edited.fields, edited.has_form) == ({"content": text}, True)
