"""What a value looks like in a prompt or a tool result."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest
from pydantic import RootModel

from nbagent.contracts.chat import TextPart
from nbagent.contracts.secrets import redact_cut, register
from nbagent.shown import cut_middle, shown, shown_text
from nbagent.shown.texts import readable, visible


class Html:
    """Shows itself as HTML."""

    def __init__(self, html: str) -> None:
        self.html = html

    def _repr_html_(self) -> str:
        return self.html


PLAIN: dict[str, tuple[object, str]] = {
    "text": ("as it is {x} $y", "as it is {x} $y"),
    "bool": (True, "true"),
    "int": (3, "3"),
    "float": (0.5, "0.5"),
    "infinity": (float("-inf"), "-Infinity"),
    "containers": ({"b": [1, (2, 3)], 4: None}, '{"b":[1,[2,3]],"4":null}'),
    "range": (range(3), "[0,1,2]"),
    "counter": (Counter("aab"), '{"a":2,"b":1}'),
    "root model": (RootModel[list[int]]([]), "[]"),
    "timedelta": (timedelta(days=1), "1 day, 0:00:00"),
    "no address inside": ([object()], '["<object object>"]'),
    "big int": (2**200, str(2**200)),
    "surrogate pair": ("\ud83d\ude00", "😀"),
    "lone surrogate inside": ({"k": "\udc00"}, '{"k":"�"}'),
    "HTML of its own": (
        Html("<!-- no --><STYLE>a{b</STYLE ><p>Oslo &lt; <b>7</b><td>8<img src='data:x'><script>x"),
        "Oslo < 7 | 8[image: inline, not sent]",
    ),
    "one object twice": ([[1]] * 2, "[[1],[1]]"),
}


@pytest.mark.parametrize("name", PLAIN)
def test_value_is_shown_as(name: str) -> None:
    value, text = PLAIN[name]
    assert shown(value) == (TextPart(text=text),)
    assert shown_text(value) == text


def test_a_person_can_interrupt_a_slow_repr() -> None:
    class Slow:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        shown(Slow())


def test_long_text_is_cut_in_the_middle_and_says_how_much() -> None:
    text = cut_middle("a" * 6_000 + "b" * 6_345, 4_000)
    assert len(text) <= 4_000
    head, mark, tail = text.partition("… [")
    count = int(tail.split(" ")[0].replace(",", ""))
    assert " of 12,345 characters left out; ask for a smaller part] …" in tail
    assert mark
    assert head.startswith("aaa")
    assert tail.endswith("bbb")
    assert count + len(head) + tail.count("b") == 12_345


def test_frame_shows_shape_dtypes_and_head() -> None:
    frame = pd.DataFrame({"city": [f"c{i}" for i in range(1_000)], "n": range(1_000)})
    text = shown_text(frame)
    assert text.startswith("DataFrame: 1,000 rows × 2 columns\ndtypes: city ")
    assert "n int64" in text
    assert "| city | n |\n| --- | --- |\n| c0 | 0 |\n" in text
    assert text.endswith("| c999 | 999 |")
    assert re.search(r"\n… \d{3} of 1,000 rows left out; ask for a smaller part …\n", text)


def test_showing_values_imports_no_heavy_package() -> None:
    code = (
        "import sys\nfrom nbagent.shown import shown_text\nshown_text([object(), {1: 2}])\n"
        "print([m for m in ('pandas', 'numpy', 'matplotlib', 'PIL') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CUT_KEY = "sk-shown-0123456789abcdefghij"


class CutItself:
    """Shows the start of a key."""

    def __repr__(self) -> str:
        return f"<Cut {CUT_KEY[:12]}…>"


CUT: dict[str, Any] = {
    "text": "x" * 1_970 + CUT_KEY + "z" * 9_000,
    "json": {"a": "x" * 1_960 + CUT_KEY + "z" * 9_000},
    "frame": pd.DataFrame({"a": ["x" * 60 + CUT_KEY + "z" * 200], "b": [1]}),
    "list": pd.DataFrame([[1, ["x" * 60 + CUT_KEY]]], columns=["a", "a"]),
    "category": pd.Series(["x" * 90 + CUT_KEY + "z" * 90] * 3, dtype="category"),
    "large cell": pd.Series([[["x" * 90 + CUT_KEY], *range(5_000)]]),
    "large bytes": pd.Series([b"x" * 190 + CUT_KEY.encode() + b"z" * 90_000]),
    "binary": b"\0" + CUT_KEY.encode() * 2,
    "cut by itself": CutItself(),
}


@pytest.mark.parametrize("name", CUT)
def test_no_part_of_a_key_is_left_where_a_value_is_cut(name: str) -> None:
    register(CUT_KEY)
    text = shown_text(CUT[name])
    assert CUT_KEY[:8] not in text
    assert CUT_KEY[:8].encode().hex() not in text
    assert CUT_KEY[-8:] not in text


@pytest.mark.parametrize("rest", [9_000, 90_000])
def test_no_cut_leaves_a_part_of_a_key_wherever_it_falls(rest: int) -> None:
    register(CUT_KEY)
    for before in range(1_920, 1_980):
        for text in ("x" * before + CUT_KEY + "z" * rest, "x" * rest + CUT_KEY + "z" * before):
            cut = cut_middle(text, 4_000)
            assert CUT_KEY[:8] not in cut
            assert CUT_KEY[-8:] not in cut


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        (f"at {CUT_KEY[:12]}… and on", "at [redacted]… and on"),
        (f"at '{CUT_KEY[:12]}'...", "at '[redacted]'..."),
        (f"at {CUT_KEY[:12]}", "at [redacted]"),
        (f"…{CUT_KEY[-12:]} and on", "…[redacted] and on"),
        (f"{CUT_KEY[-12:]} and on", "[redacted] and on"),
        (f"{CUT_KEY[:9]}...{CUT_KEY[-9:]}", "[redacted]...[redacted]"),
        (f"is {CUT_KEY} there", "is [redacted] there"),
        (f"at {CUT_KEY[:12]} and on", f"at {CUT_KEY[:12]} and on"),
        (f"at {CUT_KEY[:7]}…", f"at {CUT_KEY[:7]}…"),
        ("nothing… of it...", "nothing… of it..."),
    ],
)
def test_what_a_cut_left_of_a_key_is_hidden(text: str, hidden: str) -> None:
    register(CUT_KEY)
    assert redact_cut(text) == hidden


HUGE: dict[str, Any] = {
    "lists": list(range(1_000_000)),
    "mappings": {f"k{i}": "v" * 10 for i in range(200_000)},
    "lists in lists": [list(range(1_000))] * 1_000,
    "texts": {"text": "é" * 5_000_000},
}
"""Cells that take longer to write out than anybody waits."""


@pytest.mark.parametrize("kind", HUGE)
def test_huge_cells_of_many_rows_are_not_written_out(kind: str) -> None:
    frame: Any = pd.DataFrame({"a": [HUGE[kind]] * 20_000, "b": range(20_000)})
    began = time.monotonic()
    text = shown_text(frame, 50_000)
    # Written out each one takes 20 ms and more, and some hundred rows are shown.
    assert time.monotonic() - began < 2.0
    assert len(text) <= 50_000
    assert text.splitlines()[-1].endswith("| 19999 |")
    assert text.count(" left out; ask for a smaller part]") > 100
    assert max(map(len, text.splitlines())) <= 204 + 10


def test_cell_that_holds_itself_is_shown() -> None:
    itself: list[Any] = [1, {"k": None}]
    itself.append(itself)
    assert shown_text(pd.Series([itself])).endswith('\n| [1,{"k":null},"[circular]"] |')


@pytest.mark.parametrize(
    ("text", "seen", "read"),
    [
        ("a\x1b[31mb\x1b]0;title\x07c\r\n", "abc\n", "abc\n"),
        ("ab\u202ecd\u200be\x00", "ab⟦U+202E⟧cd⟦U+200B⟧e⟦U+0000⟧", "ab⟦U+202E⟧cd\u200be�"),
        ("tag\U000e0041 \u2066x", "tag⟦U+E0041⟧ ⟦U+2066⟧x", "tag⟦U+E0041⟧ ⟦U+2066⟧x"),
        ("ü 👍\ufe0f", "ü 👍\ufe0f", "ü 👍\ufe0f"),
    ],
)
def test_what_is_hidden_in_a_text_is_seen_by_a_person(text: str, seen: str, read: str) -> None:
    assert (visible(text), readable(text)) == (seen, read)
