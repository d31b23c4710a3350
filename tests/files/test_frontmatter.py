"""Front matter: read as others write it, changed by the line."""

from __future__ import annotations

import difflib
import time
from typing import Any

import pytest

from nbagent.contracts.errors import ToolError
from nbagent.files.frontmatter import read_frontmatter, update_frontmatter

TEXT = """\
---
# about the whole
name:   spaced   # a comment
list:
- a
-   b   # odd
nested: {a: 1,   b: 2}
# about the status
status: "open"  # now

quoted: 'it''s'
folded: >
  some long
  text
when: 2026-01-02
---

# Title: not front matter
"""


def changed(old: str, new: str) -> list[str]:
    rows = difflib.ndiff(old.splitlines(), new.splitlines())
    return [row for row in rows if row[0] in "+-"]


def test_front_matter_is_read() -> None:
    found = read_frontmatter(TEXT)
    assert found.mapping["list"] == ["a", "b"]
    assert found.mapping["when"] == "2026-01-02"
    assert found.mapping["quoted"] == "it's"
    assert found.body == "\n# Title: not front matter\n"
    assert found.warnings == ()


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        *((text, {}) for text in ("no front matter", "", "---\n\ntext after a rule\n")),
        *((text, {}) for text in ("text\n---\na: 1\n---\n", "----\na: 1\n")),
        *((text, {"a": 1}) for text in ("---\na: 1\n---", "---\r\na: 1\r\n---\r\n")),
        *((text, {"a": 1}) for text in ("\ufeff---\na: 1\n...\n", "\n--- \na: 1\n---  \n")),
    ],
)
def test_only_what_is_fenced_is_front_matter(text: str, mapping: dict[str, int]) -> None:
    assert read_frontmatter(text) == (mapping, "" if mapping else text, ())


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"status": "done"}, ['- status: "open"  # now', "+ status: done  # now"]),
        ({"status": None}, ['- status: "open"  # now']),
        ({"name": "x"}, ["- name:   spaced   # a comment", "+ name: x  # a comment"]),
        ({"folded": "x"}, ["- folded: >", "-   some long", "-   text", "+ folded: x"]),
        ({"new": [1, {"a": None}]}, ["+ new:", "+ - 1", "+ - a:"]),
        ({"list": ["x"]}, ["- - a", "- -   b   # odd", "+ - x"]),
        ({"new": "yes"}, ['+ new: "yes"']),
        ({"none": None}, []),
        ({"status": "open"}, ['- status: "open"  # now', "+ status: open  # now"]),
    ],
    ids=["set", "delete", "spacing", "block", "add", "list", "no boolean", "absent", "same"],
)
def test_only_the_lines_of_a_changed_key_change(changes: dict[str, Any], rows: list[str]) -> None:
    new = update_frontmatter(TEXT, changes)
    assert sorted(changed(TEXT, new)) == sorted(rows)
    wanted = {**read_frontmatter(TEXT).mapping, **changes}
    wanted = {k: v for k, v in wanted.items() if v is not None}
    assert read_frontmatter(new).mapping == wanted


def test_line_ends_are_kept() -> None:
    new = update_frontmatter(TEXT.replace("\n", "\r\n"), {"status": "done", "new": {"a": [1, 2]}})
    assert new.count("\n") == new.count("\r\n")
    assert read_frontmatter(new).mapping["new"] == {"a": [1, 2]}


@pytest.mark.parametrize("yaml", ["{a: 1, b: 2}", "a: &x [1]\nb: *x"], ids=["flow", "anchor"])
def test_odd_forms_are_not_changed_by_the_key(yaml: str) -> None:
    with pytest.raises(ToolError, match="write its lines") as raised:
        update_frontmatter(f"---\n{yaml}\n---\nx", {"a": None, "c": "d"})
    assert raised.value.code == "E_INVALID_FRONTMATTER"


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("body\n", "---\na: 1\n---\nbody\n"),
        ("body\r\n", "---\r\na: 1\r\n---\r\nbody\r\n"),
        ("---\n---\nbody", "---\na: 1\n---\nbody"),
        ("\ufeffbody", "\ufeff---\na: 1\n---\nbody"),
        ("", "---\na: 1\n---\n"),
    ],
    ids=["none", "none with crlf", "empty", "mark", "empty file"],
)
def test_a_text_without_front_matter_gets_one(text: str, new: str) -> None:
    assert update_frontmatter(text, {"a": 1, "b": None}) == new


BROKEN = {
    "colon": "---\ndescription: Use it: now\n---\n",
    "no end": "---\na: 1\nbody",
    "list": "---\n- a\n---\n",
    "twice": "---\na: 1\na: 2\n---\n",
    "bracket": "---\na: [1\n---\n",
    "deep": "---\n" + "- " * 5_000 + "\n---\n",
    "nested deep": "---\na: " + "[" * 60 + "]" * 60 + "\n---\n",
    "python tag": "---\na: !!python/object/apply:os.getcwd []\n---\n",
    "bomb": "---\na: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n"
        for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    + "---\n",
    "long": "---\na: " + "x" * 300_000 + "\n---\n",
    "recursive": "---\na: &a\n  b: *a\n---\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_is_a_typed_error(name: str) -> None:
    with pytest.raises(ToolError) as reading:
        read_frontmatter(BROKEN[name])
    with pytest.raises(ToolError) as updating:
        update_frontmatter(BROKEN[name], {"z": 1})
    assert reading.value.code == updating.value.code == "E_INVALID_FRONTMATTER"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("description: Use it: when needed", "Use it: when needed"),
        ("description: ends with a colon:", "ends with a colon:"),
        ('description: Say: it\'s "so" # all', 'Say: it\'s "so" # all'),
        ("description: @name is one", "@name is one"),
        ("description: `code` first", "`code` first"),
        ("description: 100% true: yes", "100% true: yes"),
        ("description: *bold* text", "*bold* text"),
        ("description: [a] and more", "[a] and more"),
    ],
)
def test_lenient_reading_takes_unquoted_texts_as_they_are_meant(line: str, value: str) -> None:
    found = read_frontmatter(f"---\nname: x\n{line}\n---\nbody", lenient=True)
    assert found.mapping == {"name": "x", "description": value}
    assert any("line 3" in warning for warning in found.warnings)


def test_lenient_reading_leaves_blocks_alone_and_takes_the_first_of_two() -> None:
    text = "---\nname: a: b\ndescription: |\n  Usage: x: y\n  more\n---\n"
    found = read_frontmatter(text, lenient=True)
    assert found.mapping == {"name": "a: b", "description": "Usage: x: y\nmore\n"}
    found = read_frontmatter("---\na: 1\na: 2\n---\n", lenient=True)
    assert found.mapping == {"a": 1}
    assert "duplicate" in found.warnings[0]


@pytest.mark.parametrize(
    "text",
    [
        "---\na: [" + ",".join("1" * 45_000) + "]\n---\nbody\n",
        "---\n" + "".join(f"k{i}: {{a: [1, 2, {{b: c}}]}}\n" for i in range(3_500)) + "---\n",
        "---\na: &a {b: c}\n" + "".join(f"k{i}: {{<<: *a}}\n" for i in range(60)) + "---\n",
        "---\na: b\n" + "\n" * 5_000_000,
    ],
    ids=["long list", "many objects", "many merges", "never ends"],
)
def test_front_matter_that_would_take_long_is_refused(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(ToolError) as raised:
        update_frontmatter(text, {"z": 1})
    assert raised.value.code == "E_INVALID_FRONTMATTER"
    assert time.monotonic() - began < 2
