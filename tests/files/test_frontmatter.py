"""Front matter: read as others write it, changed by the key."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nbagent.contracts.errors import ToolError
from nbagent.files.frontmatter import (
    edit_frontmatter,
    read_frontmatter,
    read_yaml,
    settable,
    update_frontmatter,
)

TEXT = """\
---
# about the whole
name: plain # a comment
list:
- a
- b # odd
nested: {a: 1, b: 2}
status: "open" # now
quoted: 'it''s'
folded: >
  some long
  text
when: 2026-01-02
---

# Title: not front matter
"""


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
    assert read_frontmatter(text)[:3] == (mapping, "" if mapping else text, ())


@pytest.mark.parametrize("eol", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize(
    ("changes", "gone", "there"),
    [
        ({"status": "done"}, 'status: "open" # now\n', 'status: "done" # now\n'),
        ({"status": None, "none": None}, 'status: "open" # now\n', ""),
        ({"folded": "x"}, "folded: >\n  some long\n  text\n", "folded: >-\n  x\n"),
        ({"list": {"set": ["x"]}}, "- a\n- b # odd\n", "- x\n"),
        ({"when": "yes"}, "when: 2026-01-02\n", 'when: "yes"\n'),
        ({"new": [1, {"a": None}]}, "---\n\n#", "new:\n- 1\n- a:\n---\n\n#"),
    ],
    ids=["set", "delete", "block", "list", "no boolean", "add"],
)
def test_comments_order_and_quotes_of_the_other_keys_stay(
    changes: dict[str, Any], gone: str, there: str, eol: str
) -> None:
    new = update_frontmatter(TEXT.replace("\n", eol), changes)
    assert new == TEXT.replace(gone, there).replace("\n", eol)
    plain: dict[str, Any] = {**changes, **({"list": ["x"]} if "list" in changes else {})}
    wanted = {**read_frontmatter(TEXT).mapping, **plain}
    assert read_frontmatter(new).mapping == {k: v for k, v in wanted.items() if v is not None}


def test_a_change_that_the_text_cannot_take_is_refused() -> None:
    with pytest.raises(ToolError, match="write its lines") as raised:
        update_frontmatter("---\n1: a\n---\n", {"1": None})
    assert raised.value.code == "E_INVALID_FRONTMATTER"


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("body\n", "---\na: 1\n---\nbody\n"),
        ("---\n---\nbody", "---\na: 1\n---\nbody"),
        ("\ufeffbody", "\ufeff---\na: 1\n---\nbody"),
    ],
    ids=["none", "empty", "mark"],
)
def test_a_text_without_front_matter_gets_one(text: str, new: str) -> None:
    assert update_frontmatter(text, {"a": 1, "b": None}) == new


BROKEN = {
    "colon": "---\ndescription: Use it: now\n---\n",
    "no end": "---\na: 1\nbody",
    "list": "---\n- a\n---\n",
    "twice": "---\na: 1\na: 2\n---\n",
    "deep": "---\n" + "- " * 5_000 + "\n---\n",
    "python tag": "---\na: !!python/object/apply:os.getcwd []\n---\n",
    "bomb": "---\na: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n"
        for a, b in zip("abcdefg", "bcdefgh", strict=True)
    )
    + "---\n",
    "recursive": "---\na: &a\n  b: *a\n---\n",
    "long list": "---\na: [" + ",".join("1" * 45_000) + "]\n---\nbody\n",
    "never ends": "---\na: b\n" + "\n" * 5_000_000,
    "spaces": "---\na: @x" + " " * 60_000 + "y\n---\n",
    "brackets": "---\na: " + "[" * 3_000 + "\n---\n",
    "closed brackets": "---\na: [" + "[[]," * 1_000 + "\n---\n",
}
READ_AS_TEXT = {
    "colon": "Use it: now",
    "bracket": "[1",
    "python tag": "!!python/object/apply:os.getcwd []",
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_read_or_would_take_long_is_a_typed_error(name: str) -> None:
    began = time.process_time()
    if name != "colon":
        with pytest.raises(ToolError):
            read_frontmatter(BROKEN[name], strict=True)
    if name in READ_AS_TEXT:
        assert [*read_frontmatter(BROKEN[name]).mapping.values()] == [READ_AS_TEXT[name]]
    else:
        with pytest.raises(ToolError) as reading:
            read_frontmatter(BROKEN[name])
        assert reading.value.code == "E_INVALID_FRONTMATTER"
    with pytest.raises(ToolError) as updating:
        update_frontmatter(BROKEN[name], {"z": 1})
    assert updating.value.code == "E_INVALID_FRONTMATTER"
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "value",
    [
        *("Use it: when needed", "ends with a colon:", 'Say: it\'s "so" # all', "@name is one"),
        *("`code` first", "100% true: yes", "*bold* text", "[a] and more"),
    ],
)
def test_unquoted_texts_are_read_as_they_are_meant(value: str) -> None:
    text = f"---\nname: x\ndescription: {value}\nuse: |\n  Usage: x: y\n  more\n---\nbody"
    found = read_frontmatter(text)
    assert found.mapping == {"name": "x", "description": value, "use": "Usage: x: y\nmore\n"}
    assert "line" in found.warnings[0]


@pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
@pytest.mark.parametrize(
    ("yaml", "value"),
    [
        ("a:\n  - load: @pkg/x.md\n", [{"load": "@pkg/x.md"}]),
        ("a:\n- load: {project-root}/x.md\n", [{"load": "{project-root}/x.md"}]),
        ("a:\n  -   {project-root}/x.md\n", ["{project-root}/x.md"]),
        ("a:\n  b:\n    load: @pkg/x.md\n", {"b": {"load": "@pkg/x.md"}}),
        ("a:\n  - *Never* delete\n  - plain\n", ["*Never* delete", "plain"]),
        ("a:\n  - |\n    load: @x: y\n  - @z\n", ["load: @x: y\n", "@z"]),
        ("a: >-\n  - @x: y\nb: @z\n", "- @x: y"),
    ],
    ids=["load", "mark", "entry", "nested", "emphasis", "text in a list", "folded text"],
)
def test_paths_and_marks_need_no_quotes_at_any_depth(yaml: str, value: Any, strict: bool) -> None:
    found = read_frontmatter(f"---\n{yaml}---\n", strict=strict)
    assert found.mapping["a"] == value
    assert found.warnings


def test_emphasis_of_markdown_is_no_alias() -> None:
    text = "---\na: |\n" + "  some *words* that *matter*\n" * 50 + "---\n"
    assert read_frontmatter(text).mapping["a"].count("*matter*") == 50


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("---\na: &x 1\nb: *x\n---\n", [2, 3]),
        ("---\na: &x 1\nb: @c\n---\n", [2]),
        ("---\nb: *x\n---\n", [2]),
        ("---\na: 1\nb: 2\na: 3\nb: 4\n---\n", [4, 5]),
        ("\n---\r\na:\r\n  b: 1\r\n  b: 2\r\n---\r\n", [5]),
        ("---\na: 1\n  b: 2\n---\n", [3]),
        ("---\na: !!python/name:os.getcwd\n---\n", [2]),
        ("---\n- a\n---\n", [None]),
        ("---\na: 1\n", [None]),
        ('---\nname: "Bake a loaf\nid: x\n---\n', [2]),
        ("---\na: @x\nb:\n  - 'it: is\n---\n", [4]),
        ("---\nid: x\nagents: [mia, otto\nname: x\n---\n", [3]),
        ("---\na: {b: 1\nc: 2\n---\n", [2]),
        ("---\na: [b] and more\nc: 2\n---\n", [2]),
        ("---\na: @" + "x " * 1_000 + "\n---\n", [2]),
    ],
    ids=[
        *("alias", "anchor", "no such alias", "twice", "twice below", "broken"),
        *("tag", "list", "no end", "quote", "quote below", "bracket", "brace"),
        *("more than a list", "long line"),
    ],
)
def test_strict_reading_names_the_line_of_each_problem(text: str, lines: list[int]) -> None:
    with pytest.raises(ToolError) as raised:
        read_frontmatter(text, strict=True)
    assert raised.value.code == "E_INVALID_FRONTMATTER"
    problems = raised.value.details["problems"]
    assert [line for line, _ in problems] == lines
    assert all(why in raised.value.message for _, why in problems)


def test_strict_reading_says_where_keys_and_entries_stand() -> None:
    text = "a: 1\nlist:\n  - x\n  - load: y\n    more: z\n"
    lines = {"a": 1, "list": 2, "list.0": 3, "list.1": 4, "list.1.load": 4, "list.1.more": 5}
    assert read_yaml(text).lines == lines
    assert read_yaml("\ufeff" + text).mapping == {"a": 1, "list": ["x", {"load": "y", "more": "z"}]}
    below = read_frontmatter(f"---\n{text}---\nbody", strict=True)
    assert below.lines == {path: line + 1 for path, line in lines.items()}


def test_an_edit_keeps_the_comments_within_a_list() -> None:
    def edit(there: Any) -> None:
        there["list"].append("c")
        there["nested"]["a"] = settable("no")

    new = edit_frontmatter(TEXT, edit)
    assert new == TEXT.replace("- b # odd\n", "- b # odd\n- c\n").replace("a: 1", 'a: "no"')


BELOW = """\
---
list:
- a # one

# of the next
more: 0
nested:
  x: 1

# of the end
end: 1
---
"""


@pytest.mark.parametrize("eol", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_comment_lines_below_a_list_or_an_object_stay_with_what_follows(eol: str) -> None:
    update = {"list": {"append": ["b", "c"]}, "nested": {"set": {"y": 2}}}
    wanted = BELOW.replace("# one\n", "# one\n- b\n- c\n").replace("x: 1\n", "x: 1\n  y: 2\n")
    assert update_frontmatter(BELOW.replace("\n", eol), update) == wanted.replace("\n", eol)


@pytest.mark.parametrize("value", [float("nan"), ["x"] * 9_000], ids=["nan", "too many"])
def test_an_edit_that_would_not_read_back_is_refused(value: object) -> None:
    def edit(there: Any) -> None:
        there["name"] = value

    with pytest.raises(ToolError) as raised:
        edit_frontmatter(TEXT, edit)
    assert raised.value.code == "E_INVALID_FRONTMATTER"


def test_what_an_edit_itself_raises_is_not_changed() -> None:
    def edit(there: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        edit_frontmatter(TEXT, edit)
