"""An update of front matter keeps every byte that it was not asked to change."""

from __future__ import annotations

from typing import Any

import pytest

from nbagent.contracts.errors import ToolError
from nbagent.files.frontmatter import read_frontmatter, update_frontmatter

ODD = (
    *("commit: 1234e567\n", "pi: 3.14159265358979323846\n", "small: 1.0e-400\n"),
    *("sum: 1_000.50\n", "low: -0x1\n", "oct: 0o17\n", "zeros: 00012\n", "nan: .nan\n"),
    *("when: 2026-01-02 03:04:05.123456789Z\n", "day: 2026-01-02\n", "clock: 1:30\n"),
    *("fold: >\n  one\n  two\n\n  three   # text\n\n", "kept: |+\n  one\n\n", "odd: 'it''s'\n"),
    *("line: 'a\u2028b'\n", "next: a\u0085b\n", 'wrap: "x\\\n  y"\n', "plain: one\n  two\n"),
    *(
        "base: &x\n  k: 1.0\nalias: *x\n",
        "base: &x {k: 1}\nmore:\n  <<: *x\n",
        "!!str tag: !!str 1\n",
    ),
    *("list: [x, # one\n  z] # two\n", "object: {x: 1, # one\n  z: 2}\n", "none:   # why\n"),
    *("set: !!set {x, z}\n", "data: !!binary aGk=\n", "1: x\n", "? asked\n: told\n", "# why\n"),
)
CHANGES: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({}, "key: 1\n", "key: 1\n"),
    ({"key": 2}, "key: 1 # c\n", "key: 2 # c\n"),
    ({"key": None}, "key: 1 # c\n", ""),
    ({"key": "new"}, "", "key: new\n"),
    ({"key": "new"}, "key: >-  # c\n  a b\n", "key: >-  # c\n  new\n"),
    ({"key": {"set": [1]}}, "key: # c\n- a # d\n", "key: # c\n- 1\n"),
    ({"key": {"append": ["new"]}}, "key:\n- 1.0e-400 # c\n", "key:\n- 1.0e-400 # c\n- new\n"),
    ({"key.append": {"a": 1}}, "key: [1.0e-400, ] # c\n", "key: [1.0e-400, {a: 1}, ] # c\n"),
    ({"key": {"set": {"a": 2}}}, "key:\n  b: 1_0.50\n\n", "key:\n  b: 1_0.50\n  a: 2\n\n"),
    ({"key": {"set": {"a": 2}}}, "key: {b: 1_0.50, a: 1}\n", "key: {b: 1_0.50, a: 2}\n"),
    ({"key": {"set": {"a": None}}}, "key: {b: 1_0.50, a: 1}\n", "key: {b: 1_0.50}\n"),
)


@pytest.mark.parametrize("eol", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(("update", "old", "new"), CHANGES)
def test_odd_lines_above_and_below_a_changed_key_stay(
    update: dict[str, Any], old: str, new: str, eol: str
) -> None:
    for odd in ODD:
        for lines in (f"# a\n{odd}\n# b\n@# c\n", f"# a\n@# b\n{odd}"):
            if not old:
                lines = f"{lines.replace('@', '')}@"  # a new key stands last
            before, after = (
                f"---\n{lines.replace('@', key)}---\nbody\n".replace("\n", eol)
                for key in (old, new)
            )
            assert update_frontmatter(before, update) == after


TABLE: dict[str, tuple[str, dict[str, Any], str]] = {
    "only comments": ("# a\n\n# b\n", {"k": 1}, "# a\n\n# b\nk: 1\n"),
    "the last key": ("# a\nk: 1\n# b\n", {"k": None}, "# a\n# b\n"),
    "mixed line ends": ("a: 1\r\nb: 2\nc: 3\r\n", {"b": 9}, "a: 1\r\nb: 9\nc: 3\r\n"),
    "mixed line ends in a list": (
        "a:\r\n- 1\r\nb: 2\n",
        {"a": {"append": [2]}, "c": 3},
        "a:\r\n- 1\r\n- 2\r\nb: 2\nc: 3\n",
    ),
    "an anchor": ("a: &x\n  b: 1\n", {"a": {"set": {"b": 2}}}, "a: &x\n  b: 2\n"),
    "indented items": (
        "a:\n    - b\n    # c\n",
        {"a.append": "d"},
        "a:\n    - b\n    - d\n    # c\n",
    ),
    "an item of lines": ("a:\n- b: |\n    x\n", {"a.append": "d"}, "a:\n- b: |\n    x\n- d\n"),
    "an absent item": ("a:\n-  # c\n# d\n", {"a.append": "d"}, "a:\n-  # c\n- d\n# d\n"),
    "an absent value": ("a:\n  b:  # c\n# d\n", {"a": {"set": {"b": 1}}}, "a:\n  b: 1  # c\n# d\n"),
    "brackets on lines": ("a: [\n  b, # c\n]\n", {"a.append": "d"}, "a: [\n  b, d, # c\n]\n"),
    "an empty name": ("a:\n  b: 1\n", {"a": {"set": {"b": None}}}, "a: {}\n"),
    "a merged name": (
        "a: &x {k: 1}\nb:\n  <<: *x\n",
        {"b": {"set": {"k": 2}}},
        "a: &x {k: 1}\nb:\n  <<: *x\n  k: 2\n",
    ),
    "all in brackets": ("{a: 1.0e-400, b: 1}\n", {"b": 2, "c": None}, "{a: 1.0e-400, b: 2}\n"),
    "an old number": ("a: 1\n", {"a": "1:30", "b": ["1:30:00"]}, 'a: "1:30"\nb:\n  - "1:30:00"\n'),
    "an old line end": ("a: 'x' # c\n", {"a": "\u2028"}, 'a: "\\L" # c\n'),
    "lines of text": ("a: 1 # c\n", {"a": "x\ny"}, 'a: "x\\ny" # c\n'),
    "lines of quoted text": ("a: 'b' # c\n", {"a": "x\ny"}, "a: 'x\n\n  y' # c\n"),
    "new names in brackets": (
        "a: {b: 1, c: 2, d: 3}\n",
        {"a": {"set": {"b": None, "c": None, "e": [1], "f": None, "g": "1, 2"}}},
        "a: {d: 3, e: [1], g: '1, 2'}\n",
    ),
    "no value in brackets": ("a: [1]\n", {"a.append": [[None]]}, "a: [1, [null]]\n"),
}


@pytest.mark.parametrize(("before", "update", "after"), TABLE.values(), ids=TABLE)
def test_only_the_asked_lines_change(before: str, update: dict[str, Any], after: str) -> None:
    new = update_frontmatter(f"---\n{before}---\nbody", update)
    assert new == f"---\n{after}---\nbody"
    assert read_frontmatter(new).body == "body"


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "a number as key": ("1: x\n", {"1": "y"}),
    "a hexadecimal number as key": ("0x1: x\n", {"1": "y"}),
    "a truth value as key": ("a:\n  true: x\n", {"a": {"set": {"true": "y"}}}),
    "a list of two keys": ("a: &x [1.0e-400]\nb: *x\n", {"a": {"append": [2]}}),
    "an object of two keys": ("a: &x {b: 1.0e-400}\nc: *x\n", {"c": {"set": {"b": 2}}}),
    "an anchor in use": ("a: &x 1\nb: *x\n", {"a": 2}),
    "a merged name that cannot go": ("a: &x {k: 1}\nb: {<<: *x}\n", {"b": {"set": {"k": None}}}),
    "a set": ("a: !!set {x, z}\n", {"a": {"append": ["y"]}}),
}


@pytest.mark.parametrize(("before", "update"), REFUSED.values(), ids=REFUSED)
def test_an_update_that_would_change_more_is_refused(before: str, update: dict[str, Any]) -> None:
    with pytest.raises(ToolError, match=r"oldText and newText|undefined alias") as raised:
        update_frontmatter(f"---\n{before}---\n", update)
    assert raised.value.code == "E_INVALID_FRONTMATTER"
