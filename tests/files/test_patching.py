"""Spans and diffs: what fits is applied to the byte, what does not is said with a hint."""

from __future__ import annotations

import difflib
import random
import time
from collections.abc import Callable

import pytest

from nbagent.contracts.errors import ToolError
from nbagent.files.patching import apply_diff, diff_of, replace_once, to_bytes, to_text

TEXT = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\n"


def code_and_words(call: object) -> tuple[str, str]:
    assert callable(call)
    with pytest.raises(ToolError) as caught:
        call()
    return caught.value.code, caught.value.message


def test_a_span_is_replaced() -> None:
    assert replace_once("a b c", "b", "x") == "a x c"
    assert replace_once("a b c", " b", "") == "a c"


def test_a_span_with_other_line_ends_is_found() -> None:
    assert replace_once("a\r\nb\r\nc", "a\nb", "x\ny") == "x\r\ny\r\nc"
    assert replace_once("a\nb", "a\nb", "x\r\ny") == "x\r\ny"


@pytest.mark.parametrize(
    ("text", "old", "words"),
    [
        ("a\nb\na\n", "a", "lines 1, 3"),
        ("aaa", "aa", "more than once"),
        (TEXT, "nine", "does not stand there"),
        ("def f(x):\n    return x\n", "def f(x):\n  return x\n", "other white space at line 1"),
        ("x = compute(1)\ny = 2\n", "x = compute(3)", "most like it is line 1"),
    ],
    ids=["twice", "overlapping", "nowhere", "white space", "nearly"],
)
def test_a_span_that_is_not_there_once_is_refused_with_a_hint(
    text: str, old: str, words: str
) -> None:
    code, message = code_and_words(lambda: replace_once(text, old, "new"))
    assert code == "E_PRECONDITION_FAILED"
    assert words in message


def test_an_empty_span_is_refused() -> None:
    assert code_and_words(lambda: replace_once("a", "", "x"))[0] == "E_INVALID_ARGUMENTS"


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
        DIFF.rstrip("\n"),
        DIFF.replace("-1,3 +1,3", "-101,9 +201,1"),
        DIFF.replace("@@ -1,3 +1,3 @@", "@@ @@").replace("@@ -6,3 +6,4 @@ def context():", "@@"),
        DIFF.replace("--- a/f.txt\n+++ b/f.txt\n", ""),
        "diff --git a/f.txt b/f.txt\nindex 1..2 100644\n" + DIFF,
        DIFF.replace("\n", "\r\n"),
        DIFF + "\n",
    ],
    ids=["plain", "no end", "wrong numbers", "no numbers", "no names", "git", "crlf", "blank end"],
)
def test_a_diff_is_applied(diff: str) -> None:
    assert apply_diff(TEXT, diff) == PATCHED


def test_a_diff_keeps_line_ends() -> None:
    assert apply_diff(TEXT.replace("\n", "\r\n"), DIFF) == PATCHED.replace("\n", "\r\n")


def test_a_diff_takes_the_nearest_of_several_places() -> None:
    text = "x\na\nx\nb\nx\n"
    assert apply_diff(text, "@@ -3 +3 @@\n-x\n+y\n") == "x\na\ny\nb\nx\n"


@pytest.mark.parametrize(
    ("text", "diff", "new"),
    [
        ("a\nb", "@@ -2 +2 @@\n-b\n\\ No newline at end of file\n+c\n", "a\nc\n"),
        ("a\nb\n", "@@ -2 +2 @@\n-b\n+c\n\\ No newline at end of file\n", "a\nc"),
        ("a\nb", "@@ -1,2 +1,3 @@\n a\n b\n+c\n", "a\nb\nc\n"),
        ("a\nb", "@@ -1,2 +1,2 @@\n-a\n+x\n b\n", "x\nb"),
        ("a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nc\n"),
        ("a\n", "@@ -1,0 +2 @@\n+b\n", "a\nb\n"),
        ("", "@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n"),
        ("-- a\n", "@@ -1 +1 @@\n--- a\n+-- b\n", "-- b\n"),
    ],
    ids=["adds end", "drops end", "behind", "before", "blank", "only adds", "empty", "dashes"],
)
def test_ends_of_files_and_odd_lines_are_kept(text: str, diff: str, new: str) -> None:
    assert apply_diff(text, diff) == new


def test_a_diff_may_make_a_file() -> None:
    assert apply_diff(None, "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n") == "a\n"
    assert code_and_words(lambda: apply_diff(None, DIFF))[0] == "ENOENT"


@pytest.mark.parametrize(
    ("text", "diff", "code", "words"),
    [
        (TEXT, DIFF.replace("-two", "-twice"), "E_PRECONDITION_FAILED", "there is no line 'twice'"),
        ("x\nx\n", "@@ @@\n-x\n+y\n", "E_PRECONDITION_FAILED", "fits at several lines (1, 2)"),
        (TEXT, "@@ @@\n+y\n", "E_PRECONDITION_FAILED", "only adds lines"),
        (TEXT, DIFF + DIFF, "E_INVALID_ARGUMENTS", "several files"),
        (TEXT, DIFF.replace("b/f.txt", "/dev/null"), "E_INVALID_ARGUMENTS", "deletes"),
        (TEXT, "nothing of a diff", "E_INVALID_ARGUMENTS", "no hunk"),
        (TEXT, "@@ -1 +1 @@\n one\n", "E_INVALID_ARGUMENTS", "no hunk that changes"),
        (TEXT, "@@ -1 +1 @@\n one\nodd\n+x\n", "E_INVALID_ARGUMENTS", "begins with none of"),
        (
            TEXT,
            "@@ -4 +4 @@\n-four\n+4\n@@ -2 +2 @@\n-two\n+2\n",
            "E_PRECONDITION_FAILED",
            "not in this order",
        ),
    ],
    ids=[
        *("missing line", "several places", "only adds", "two files", "deletes", "no diff"),
        *("no change", "odd line", "wrong order"),
    ],
)
def test_a_diff_that_does_not_fit_says_why(text: str, diff: str, code: str, words: str) -> None:
    told = code_and_words(lambda: apply_diff(text, diff))
    assert told[0] == code
    assert words in told[1]


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


def test_the_diff_for_a_person_can_be_applied_and_is_whole() -> None:
    old, new = "a\nb\nc", "a\nx\nc\n"
    assert apply_diff(old, diff_of(old, new, "f")) == new
    assert diff_of(old, old, "f") == ""


def test_the_diff_of_two_large_texts_is_made_in_time_and_whole() -> None:
    old = "".join(f"{n}\n" for n in range(60_000))
    new = "".join(f"{n * 7}\n" for n in range(60_000))
    diff = diff_of(old, new, "f")
    assert apply_diff(old, diff) == new
    middle = old.replace("30000\n", "changed\n")
    assert "+changed" in diff_of(old, middle, "f")
    assert len(diff_of(old, middle, "f").splitlines()) < 20


def test_bytes_that_are_no_text_come_back_as_they_were() -> None:
    data = bytes(range(256)) * 3
    assert to_bytes(to_text(data)) == data


SAME = "same\n" * 200_000


@pytest.mark.parametrize(
    "change",
    [
        lambda: apply_diff(SAME, "@@ @@\n" + "-same\n" * 5_000 + "+q\n"),
        lambda: apply_diff(SAME, ("@@ -1 +1 @@\n" + "-same\n" * 500 + "+q\n") * 400 + "-x"),
        lambda: apply_diff(SAME, ("@@ -9 +9 @@\n" + "-same\n" * 200 + "-x\n") * 400),
        lambda: replace_once("a b\n" * 49_000, "a  b\n" * 30_000 + "c", "x"),
        lambda: replace_once("\n".join("ab" * n for n in range(1, 1_900)), "ba" * 150, "x"),
    ],
    ids=["no line number", "many hunks", "wrong end", "long span", "like all lines"],
)
def test_no_patch_takes_for_ever(change: Callable[[], str]) -> None:
    began = time.monotonic()
    with pytest.raises(ToolError) as raised:
        change()
    assert raised.value.code == "E_PRECONDITION_FAILED"
    assert time.monotonic() - began < 6


def test_many_hunks_of_a_long_file_are_placed_by_their_lines() -> None:
    old = [f"line {n}\n" if n % 10 else "\n" for n in range(20_000)]
    new = [f"new {n}\n" if n % 100 == 55 else line for n, line in enumerate(old)]
    diff = diff_of("".join(old[:3_000]), "".join(new[:3_000]), "f")
    began = time.monotonic()
    assert apply_diff("".join(old), diff) == "".join(new[:3_000] + old[3_000:])
    assert time.monotonic() - began < 2
