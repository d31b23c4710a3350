"""`updateFrontmatter`: every operation, in both forms, on the document and on another file.

The bytes before and after are given: comments, quotes, order, line ends and byte order mark stay.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_state_updates import Room
from workflow_stage import LOOP, STATE

from nbagent.contracts.errors import ErrorInfo

Update = dict[str, Any]
Changes = list[tuple[str, str]]
COMMENTS = {
    "decisionLog: []\n": 'decisionLog: # why\n- "first" # quoted\n',
    "artifacts: []\n": "artifacts:\n- '@project/a.md' # one\n",
    "variables: {}\n": 'variables:\n  topic: "birds" # what\n  old: 1\n',
}
TIME = "2026-03-04T05:06:07Z"
STEP = ("stepsCompleted: []", "stepsCompleted:\n- draft")
NODE = ("currentNodeId: draft", "currentNodeId: check")
TOPIC = ('topic: "birds" # what', 'topic: "gulls" # what')
FIRST = ('- "first" # quoted\n', '- "first" # quoted\n- why not\n')
FILE_A = ("- '@project/a.md' # one\n", "- '@project/a.md' # one\n- '@project/b.md'\n")
OPERATIONS: dict[str, tuple[Update, Update, Changes]] = {
    "complete a step": (
        {"stepsCompleted": {"append": ["draft"]}},
        {"stepsCompleted.append": "draft"},
        [STEP],
    ),
    "complete a step, the other way round": (
        {"stepsCompleted": {"append": "draft"}},
        {"stepsCompleted.append": ["draft"]},
        [STEP],
    ),
    "move": (
        {"stepsCompleted": {"append": ["draft"]}, "currentNodeId": {"set": "check"}},
        {"stepsCompleted.append": "draft", "currentNodeId.set": "check"},
        [STEP, NODE],
    ),
    "set a variable": (
        {"variables": {"set": {"topic": "gulls"}}},
        {"variables.set": {"topic": "gulls"}},
        [TOPIC],
    ),
    "add a variable": (
        {"variables": {"set": {"n": {"set": 1}}}},
        {"variables.set": {"n": {"set": 1}}},
        [("  old: 1\n", "  old: 1\n  n:\n    set: 1\n")],
    ),
    "delete a variable": (
        {"variables": {"set": {"old": None, "none": None}}},
        {"variables.set": {"old": None, "none": None}},
        [("  old: 1\n", "")],
    ),
    "log a decision": (
        {"decisionLog": {"append": ["why not"]}},
        {"decisionLog.append": "why not"},
        [FIRST],
    ),
    "log an object": (
        {"decisionLog": {"append": [{"why": "yes", "append": 1}]}},
        {"decisionLog.append": {"why": "yes", "append": 1}},
        [('- "first" # quoted\n', '- "first" # quoted\n- why: "yes"\n  append: 1\n')],
    ),
    "log several": (
        {"decisionLog": {"append": ["a", {"b": 1}]}},
        {"decisionLog.append": ["a", {"b": 1}]},
        [('- "first" # quoted\n', '- "first" # quoted\n- a\n- b: 1\n')],
    ),
    "note an artifact": (
        {"artifacts": {"append": ["@project/b.md"]}},
        {"artifacts.append": "@project/b.md"},
        [FILE_A],
    ),
    "note several artifacts": (
        {"artifacts": {"append": ["@project/b.md", "@project/a.md"]}},
        {"artifacts.append": ["@project/b.md", "@project/a.md"]},
        [(FILE_A[0], f"{FILE_A[1]}- '@project/a.md'\n")],
    ),
    "everything, as a model fills it in": (
        {
            "stepsCompleted": {"append": ["draft"]},
            "variables": {"set": {"topic": "gulls"}},
            "decisionLog": {"append": ["why not"]},
            "artifacts": {"append": []},
            "currentNodeId": {"set": "check"},
            "updatedAt": {"set": TIME},
        },
        {
            "stepsCompleted.append": "draft",
            "variables.set": {"topic": "gulls"},
            "decisionLog.append": "why not",
            "artifacts.append": [],
            "currentNodeId.set": "check",
            "updatedAt.set": TIME,
        },
        [STEP, TOPIC, FIRST, NODE],
    ),
}
ENDS = {"lf": ("\n", ""), "crlf": ("\r\n", ""), "mark": ("\n", "\ufeff")}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("place", ["document", "other file"])
@pytest.mark.parametrize("form", ["protocol", "dotted"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_means_the_same_in_both_forms_and_in_every_file(
    tmp_path: Path, name: str, form: str, place: str, ends: str
) -> None:
    room = Room(tmp_path, LOOP)
    for file in "ab":
        (room.project / f"{file}.md").write_text("x")
    protocol, dotted, changes = OPERATIONS[name]
    update: Update = {"updatedAt": {"set": TIME}, **protocol}
    if form == "dotted":
        update = {"updatedAt.set": TIME, **dotted}
    before = room.new_text
    (old_time,) = [it for it in before.split("\n") if it.startswith("updatedAt: ")]
    for old, new in COMMENTS.items():
        assert old in before
        before = before.replace(old, new)
    after = before.replace(old_time, f"updatedAt: '{TIME}'")
    for old, new in changes:
        assert old in after
        after = after.replace(old, new)
    eol, mark = ENDS[ends]
    file, path = room.file, STATE
    if place == "other file":
        file, path = room.project / "copy.md", "@project/copy.md"
    file.write_bytes(f"{mark}{before}".replace("\n", eol).encode())
    result = room.call(path=path, operation="updateFrontmatter", update=update)
    assert isinstance(result, dict), result
    assert file.read_bytes() == f"{mark}{after}".replace("\n", eol).encode()


ODD = (
    *("commit: 1234e567", "pi: 3.14159265358979323846", "small: 1.0e-400", "sum: 1_000.50"),
    *("low: -0x1", "when: 2026-01-02 03:04:05.123456789Z", "fold: >\n  one\n  two   # text\n"),
    *("cr: 1\r", "line: 'a\u2028b'", "next: a\u0085b", "clock: 1:30", "none:   # why"),
    *(
        "items: [x, # one\n  z] # two",
        "object: {x: 1, # one\n  z: 2}",
        "kept: |+\n  one\n\n",
        "# why",
    ),
)


@pytest.mark.parametrize("place", ["document", "other file"])
@pytest.mark.parametrize("form", ["protocol", "dotted"])
@pytest.mark.parametrize("odd", ODD)
def test_an_update_changes_no_other_byte(tmp_path: Path, odd: str, form: str, place: str) -> None:
    room = Room(tmp_path, LOOP)
    update: Update = {"decisionLog": {"append": ["why not"]}, "updatedAt": {"set": TIME}}
    if form == "dotted":
        update = {"decisionLog.append": "why not", "updatedAt.set": TIME}
    (old_time,) = [it for it in room.new_text.split("\n") if it.startswith("updatedAt: ")]
    log = "decisionLog: []\n"
    before = room.new_text.replace(log, f"# above\n{log}# below\n{odd}\n")
    assert log in before
    file, path = room.file, STATE
    if place == "other file":
        file, path = room.project / "copy.md", "@project/copy.md"
    file.write_bytes(before.encode())
    after = before.replace(old_time, f"updatedAt: '{TIME}'")
    after = after.replace(log, "decisionLog:\n  - why not\n")
    result = room.call(path=path, operation="updateFrontmatter", update=update)
    assert isinstance(result, dict), result
    assert file.read_bytes() == after.encode()


BEFORE = """\
---
title: x
steps: [a]
set: {append: 1}
stepsCompleted: [a]
variables: {topic: gulls}
---
body
"""
REFUSED: dict[str, tuple[Update, str]] = {
    "a path to a variable": ({"variables.x": 1}, '"variables": {"set": {"x"'),
    "a path with an operation": ({"variables.x.set": 1}, '"variables": {"set": {"x"'),
    "a path and an operation": ({"variables.x": {"set": 1}}, '"variables": {"set": {"x"'),
    "two operations": ({"steps": {"set": [], "append": ["b"]}}, "one operation"),
    "an operation twice": ({"steps.append": {"append": ["b"]}}, '"steps": {"append"'),
    "both forms": ({"steps.append": ["b"], "steps": {"append": ["c"]}}, "2 times"),
    "set beside other names": ({"variables": {"set": {"n": 1}, "x": 2}}, '"variables": {"set": {'),
    "append beside other names": ({"steps": {"append": ["b"], "why": 1}}, '{"append"'),
    "a bare list": ({"stepsCompleted": ["b"]}, '{"append"'),
    "a bare text for a list": ({"stepsCompleted": "b"}, '{"append"'),
    "a bare object": ({"variables": {"n": 2}}, '{"set"'),
    "a number for an object": ({"variables": {"set": 5}}, '{"set"'),
    "a bare number for an object": ({"variables": 5}, '{"set"'),
    "no key": ({"": {"set": 1}}, "empty"),
    "no key before the dot": ({".set": 1}, "empty"),
}
REFUSED_ELSEWHERE: dict[str, tuple[Update, str]] = {
    "append to a text": ({"title": {"append": ["y"]}}, '{"set"'),
    "append to an object": ({"set": {"append": ["y"]}}, '{"set"'),
    "a misspelt operation": ({"steps": {"push": ["b"]}}, '{"append"'),
}


@pytest.mark.parametrize("path", [STATE, "@project/a.md"], ids=["document", "other file"])
@pytest.mark.parametrize(("update", "word"), REFUSED.values(), ids=REFUSED)
def test_an_unclear_update_changes_nothing_and_says_what_to_write(
    tmp_path: Path, update: Update, word: str, path: str
) -> None:
    room = Room(tmp_path, LOOP)
    (room.project / "a.md").write_text(BEFORE)
    error = room.refused(path=path, operation="updateFrontmatter", update=update)
    assert (error.code, word in error.message) == ("E_SCHEMA_VALIDATION", True), error
    assert (room.project / "a.md").read_text() == BEFORE


@pytest.mark.parametrize(("update", "word"), REFUSED_ELSEWHERE.values(), ids=REFUSED_ELSEWHERE)
def test_no_list_is_lost_to_an_update_that_is_nearly_right(
    tmp_path: Path, update: Update, word: str
) -> None:
    room = Room(tmp_path, LOOP)
    (room.project / "a.md").write_text(BEFORE)
    error = room.refused(path="@project/a.md", operation="updateFrontmatter", update=update)
    assert (error.code, word in error.message) == ("E_SCHEMA_VALIDATION", True), error
    assert (room.project / "a.md").read_text() == BEFORE


BARE: dict[str, tuple[Update, tuple[str, str]]] = {
    "a bare text": ({"title": "z"}, (" x", " z")),
    "a bare list for a text": ({"title": ["b"]}, (" x", "\n  - b")),
    "a bare object for a text": ({"title": {"min": 1}}, (" x", "\n  min: 1")),
    "a bare list for a new key": ({"new": ["b"]}, ("---\nbody", "new:\n  - b\n---\nbody")),
    "null deletes a list": ({"steps": None}, ("steps: [a]\n", "")),
    "set replaces a list whole": ({"steps": {"set": ["b"]}}, (" [a]", "\n  - b")),
    "null deletes": ({"title": None}, ("title: x\n", "")),
    "set null deletes": ({"title": {"set": None}}, ("title: x\n", "")),
    "set replaces a list": ({"steps": {"set": {"b": 1}}}, (" [a]", "\n  b: 1")),
    "an object of data named set": ({"set": {"set": {"append": 2}}}, ("append: 1", "append: 2")),
}


@pytest.mark.parametrize(("update", "change"), BARE.values(), ids=BARE)
def test_a_bare_value_on_another_file_is_set_whole(
    tmp_path: Path, update: Update, change: tuple[str, str]
) -> None:
    room = Room(tmp_path, LOOP)
    (room.project / "a.md").write_text(BEFORE)
    result = room.call(path="@project/a.md", operation="updateFrontmatter", update=update)
    assert isinstance(result, dict), result
    assert (room.project / "a.md").read_text() == BEFORE.replace(*change, 1)


NEW = "---\nsteps:\n  - b\n---\n"
SHAPES: dict[str, tuple[bytes, bytes | str]] = {
    "none": (b"body\n", NEW.encode() + b"body\n"),
    "no bytes": (b"", NEW.encode()),
    "windows, none": (b"body\r\n", (NEW + "body\n").replace("\n", "\r\n").encode()),
    "empty": (b"---\n---\nbody\n", NEW.encode() + b"body\n"),
    "a rule": (b"---\n", NEW.encode() + b"---\n"),
    "null": (b"---\nsteps: # x\n---\n", b"---\nsteps: # x\n  - b\n---\n"),
    "list": (b"---\nsteps: [a]\n---\n", b"---\nsteps: [a, b]\n---\n"),
    "no utf-8 in the body": (
        b"---\nsteps: [a]\n---\n\xff\xfe",
        b"---\nsteps: [a, b]\n---\n\xff\xfe",
    ),
    "windows": (b"---\r\nsteps: [a]\r\n---\r\nx", b"---\r\nsteps: [a, b]\r\n---\r\nx"),
    "no end of line": (b"---\nsteps: [a]\n---", b"---\nsteps: [a, b]\n---"),
    "list at the top": (b"---\n- a\n---\n", "E_INVALID_FRONTMATTER"),
    "text at the top": (b"---\njust text\n---\n", "E_INVALID_FRONTMATTER"),
    "a key twice": (b"---\nsteps: [a]\nsteps: [b]\n---\n", "E_INVALID_FRONTMATTER"),
    "shared list": (b"---\nsteps: &s [a]\nmore: *s\n---\n", "E_INVALID_FRONTMATTER"),
    "tabs": (b"---\nsteps:\n\t- a\n---\n", "E_INVALID_FRONTMATTER"),
    "no utf-8": (b"---\nsteps: [\xff]\n---\n", "E_INVALID_FRONTMATTER"),
    "no end": (b"---\nsteps: [a]\nbody\n", "E_INVALID_FRONTMATTER"),
    "huge": (b"---\nsteps: [" + b"1," * 45_000 + b"]\n---\n", "E_INVALID_FRONTMATTER"),
    "text": (b"---\nsteps: a\n---\n", "E_SCHEMA_VALIDATION"),
    "object": (b"---\nsteps: {a: 1}\n---\n", "E_SCHEMA_VALIDATION"),
}


@pytest.mark.parametrize(
    "update",
    [{"steps": {"append": ["b"]}}, {"steps.append": "b"}],
    ids=["protocol", "dotted"],
)
@pytest.mark.parametrize(("before", "after"), SHAPES.values(), ids=SHAPES)
def test_front_matter_of_any_shape_is_changed_rightly_or_refused(
    tmp_path: Path, before: bytes, after: bytes | str, update: Update
) -> None:
    room = Room(tmp_path, LOOP)
    file = room.project / "a.md"
    file.write_bytes(before)
    result = room.call(path="@project/a.md", operation="updateFrontmatter", update=update)
    if isinstance(after, str):
        assert isinstance(result, ErrorInfo)
        assert (result.code, file.read_bytes()) == (after, before)
    else:
        assert isinstance(result, dict), result
        assert file.read_bytes() == after


ON_DOCUMENT: dict[str, tuple[Update, str]] = {
    "two steps at once": ({"stepsCompleted": {"append": ["draft", "check"]}}, "one step"),
    "bare": ({"currentNodeId": "check"}, '"currentNodeId": {"set"'),
    "the wrong operation": ({"currentNodeId": {"append": ["check"]}}, '"currentNodeId": {"set"'),
    "a list that is set": ({"stepsCompleted": {"set": []}}, '"stepsCompleted": {"append"'),
    "nothing to append": ({"artifacts": {"append": []}}, "changes nothing"),
    "another key": ({"title": {"set": "x"}}, '"variables": {"set"'),
    "an empty entry": ({"decisionLog": {"append": ["ok", ""]}}, "a text or an object"),
}


@pytest.mark.parametrize(("update", "word"), ON_DOCUMENT.values(), ids=ON_DOCUMENT)
def test_the_document_takes_the_operations_of_the_protocol_only(
    tmp_path: Path, update: Update, word: str
) -> None:
    room = Room(tmp_path, LOOP)
    error = room.refused(path=STATE, operation="updateFrontmatter", update=update)
    assert (error.code, word in error.message) == ("E_SCHEMA_VALIDATION", True), error
