"""Spans and diffs: what fits is applied to the byte, what does not is refused with a reason."""

from __future__ import annotations

import difflib
import random
import time

import pytest

from nbagent.contracts.errors import ToolError
from nbagent.files.patching import apply_diff, diff_of, replace_once

TEXT = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"
STATE, ARGUMENTS = "E_PRECONDITION_FAILED", "E_INVALID_ARGUMENTS"


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        ("a b c", "b", "x", "a x c"),
        ("a\r\nb\r\nc", "a\nb", "x\ny", "x\r\ny\r\nc"),
        ("a\nb", "a\nb", "x\r\ny", "x\r\ny"),
    ],
    ids=["replaced", "crlf in the file", "crlf in the new text"],
)
def test_a_span_is_replaced(text: str, old: str, new: str, result: str) -> None:
    assert replace_once(text, old, new) == result


@pytest.mark.parametrize(
    ("text", "old", "code", "words"),
    [
        ("a\nb\na\n", "a", STATE, "lines 1, 3"),
        (TEXT, "nine", STATE, "does not stand there"),
        (TEXT, "", ARGUMENTS, "empty"),
    ],
    ids=["twice", "nowhere", "empty"],
)
def test_a_span_that_is_not_there_once_is_refused(
    text: str, old: str, code: str, words: str
) -> None:
    with pytest.raises(ToolError, match=words) as refusal:
        replace_once(text, old, "new")
    assert refusal.value.code == code


DIFF = """\
--- a/f.txt
+++ b/f.txt
@@ -1,3 +1,3 @@
 one
-two
+TWO
 three
@@ -6,3 +6,4 @@ def context():
 six
+six and a half
 seven
 eight
"""
PATCHED = TEXT.replace("two", "TWO").replace("six\n", "six\nsix and a half\n")


@pytest.mark.parametrize(
    "diff",
    [
        DIFF,
        DIFF.replace("-1,3 +1,3", "-101,9 +201,1"),
        DIFF.replace("@@ -1,3 +1,3 @@", "@@ @@").replace("@@ -6,3 +6,4 @@ def context():", "@@"),
        DIFF.replace("--- a/f.txt\n+++ b/f.txt\n", ""),
        "diff --git a/f.txt b/f.txt\nindex 1..2 100644\n" + DIFF,
        DIFF.replace("\n", "\r\n"),
    ],
    ids=["plain", "wrong numbers", "no numbers", "no names", "git", "crlf"],
)
def test_a_diff_is_applied_and_keeps_line_ends(diff: str) -> None:
    assert apply_diff(TEXT, diff) == PATCHED
    assert apply_diff(TEXT.replace("\n", "\r\n"), diff) == PATCHED.replace("\n", "\r\n")


ENDS: dict[str, tuple[str | None, str, str]] = {
    "adds end": ("a\nb", "@@ -2 +2 @@\n-b\n\\ No newline at end of file\n+c\n", "a\nc\n"),
    "drops end": ("a\nb\n", "@@ -2 +2 @@\n-b\n+c\n\\ No newline at end of file\n", "a\nc"),
    "blank": ("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nc\n"),
    "only adds": ("a\n", "@@ -1,0 +2 @@\n+b\n", "a\nb\n"),
    "empty": ("", "@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n"),
    "no file": (None, "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n", "a\n"),
    "dashes": ("-- a\n", "@@ -1 +1 @@\n--- a\n+-- b\n", "-- b\n"),
    "nearest place": ("x\na\nx\nb\nx\n", "@@ -3 +3 @@\n-x\n+y\n", "x\na\ny\nb\nx\n"),
}


@pytest.mark.parametrize(("text", "diff", "new"), ENDS.values(), ids=ENDS)
def test_ends_of_files_and_odd_lines_are_kept(text: str | None, diff: str, new: str) -> None:
    assert apply_diff(text, diff) == new


UNFIT: dict[str, tuple[str | None, str, str, str]] = {
    "missing line": (TEXT, DIFF.replace("-two", "-twice"), STATE, "no line 'twice'"),
    "several places": ("x\nx\n", "@@ @@\n-x\n+y\n", STATE, r"several places \(lines 1, 2\)"),
    "only adds": (TEXT, "@@ @@\n+y\n", STATE, "only adds lines"),
    "wrong order": (TEXT, "@@ @@\n-four\n+4\n@@ @@\n-two\n+2\n", STATE, "another order"),
    "no file": (None, DIFF, "ENOENT", "no such file"),
    "two files": (TEXT, DIFF + DIFF, ARGUMENTS, "several files"),
    "deletes": (TEXT, DIFF.replace("b/f.txt", "/dev/null"), ARGUMENTS, "deletes"),
    "no diff": (TEXT, "nothing of a diff", ARGUMENTS, "no hunk"),
    "odd line": (TEXT, "@@ -1 +1 @@\n one\nodd\n+x\n", ARGUMENTS, "begins with none of"),
}


@pytest.mark.parametrize(("text", "diff", "code", "words"), UNFIT.values(), ids=UNFIT)
def test_a_diff_that_does_not_fit_says_why(
    text: str | None, diff: str, code: str, words: str
) -> None:
    with pytest.raises(ToolError, match=words) as refusal:
        apply_diff(text, diff)
    assert refusal.value.code == code


def test_any_diff_of_difflib_leads_from_the_old_text_to_the_new() -> None:
    chance = random.Random(7)
    for _ in range(300):
        old = [chance.choice("abcdef\u2028\f") + "\n" for _ in range(chance.randrange(0, 30))]
        new = [line for line in old if chance.random() > 0.2]
        for _ in range(chance.randrange(4)):
            new.insert(chance.randrange(len(new) + 1), chance.choice("xyz-+ @") + "\n")
        diff = "".join(difflib.unified_diff(old, new, "a", "b"))
        if diff:
            assert apply_diff("".join(old), diff) == "".join(new)


def test_the_diff_for_a_person_can_be_applied_and_is_whole_also_of_large_texts() -> None:
    old, new = "a\nb\nc", "a\nx\nc\n"
    assert apply_diff(old, diff_of(old, new, "f")) == new
    assert diff_of(old, old, "f") == ""
    old = "".join(f"{n}\n" for n in range(60_000))
    new = "".join(f"{n * 7}\n" for n in range(60_000))
    assert apply_diff(old, diff_of(old, new, "f")) == new
    middle = diff_of(old, old.replace("30000\n", "changed\n"), "f")
    assert "+changed" in middle
    assert len(middle.splitlines()) < 20


@pytest.mark.parametrize(
    "diff",
    [
        "@@ @@\n" + "-same\n" * 5_000 + "+q\n",
        ("@@ -1 +1 @@\n" + "-same\n" * 500 + "+q\n") * 400 + "-x",
        ("@@ -9 +9 @@\n" + "-same\n" * 200 + "-x\n") * 400,
    ],
    ids=["no line number", "many hunks", "wrong end"],
)
def test_a_diff_that_takes_long_to_place_is_refused_in_time(diff: str) -> None:
    began = time.process_time()
    with pytest.raises(ToolError) as refusal:
        apply_diff("same\n" * 200_000, diff)
    assert refusal.value.code == STATE
    assert time.process_time() - began < 6
