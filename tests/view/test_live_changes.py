"""Marks and texts of one message: what a later mark makes needless is not sent."""

from __future__ import annotations

import pytest

from nbagent.view.live_changes import Changes, Op
from nbagent.view.node import h

Mark = tuple[str, str] | tuple[str, str, str]
"""`(key, parent)` marks a part, `(key, "", text)` appends a text."""


@pytest.mark.parametrize(
    ("marks", "sent"),
    [
        ([("a", "", "x"), ("a", "", "y")], ["add a xy"]),
        ([("a", ""), ("b", ""), ("a", "")], ["put a", "put b"]),
        ([("a/1", "a"), ("a/1", "", "x"), ("a", "")], ["put a"]),
        ([("a", ""), ("a/1", "a"), ("a/1", "", "x")], ["put a"]),
        ([("a", ""), ("a", "", "x")], ["put a"]),
        ([("ab", ""), ("a", "")], ["put ab", "put a"]),
        ([("a", "", "x"), ("a", "")], ["put a"]),
    ],
    ids=["more text", "in its place", "its parts", "parts later", "text", "other keys", "before"],
)
def test_changes_that_a_later_one_makes_needless_are_not_sent(
    marks: list[Mark], sent: list[str]
) -> None:
    changes = Changes()
    for key, parent, *text in marks:
        if text:
            changes.append(key, text[0])
        else:
            changes.mark(key, lambda: h("p", ""), parent)
    assert [_short(op) for op in changes.take()] == sent
    assert changes.take() == []


def _short(op: Op) -> str:
    return f"add {op[1]} {op[2]}" if op[0] == "add" else f"{op[0]} {op[1]}"
