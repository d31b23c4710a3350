"""What a value looks like in a prompt or a tool result."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter, deque
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic import RootModel

from nbagent.contracts.chat import TextPart
from nbagent.contracts.secrets import redact_cut, register
from nbagent.shown import cut_middle, shown, shown_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("as it is {x} $y", "as it is {x} $y", id="text"),
        pytest.param(True, "true", id="bool"),
        pytest.param(3, "3", id="int"),
        pytest.param(0.5, "0.5", id="float"),
        pytest.param(float("nan"), "NaN", id="nan"),
        pytest.param(float("-inf"), "-Infinity", id="infinity"),
        pytest.param({"b": [1, (2, 3)], 4: None}, '{"b":[1,[2,3]],"4":null}', id="containers"),
        pytest.param(range(3), "[0,1,2]", id="range"),
        pytest.param(Counter("aab"), '{"a":2,"b":1}', id="counter"),
        pytest.param(RootModel[list[int]]([]), "[]", id="pydantic root model"),
        pytest.param(timedelta(days=1, seconds=2.5), "P1DT2.5S", id="timedelta"),
        pytest.param(b"\x89PNG", "bytes, 4: 89504e47", id="bytes"),
        pytest.param([np.int64(7)], "[7]", id="numpy scalar inside"),
        pytest.param(object(), "<object object>", id="no address"),
        pytest.param([object()], '["<object object>"]', id="no address inside"),
        pytest.param(2**200, str(2**200), id="big int"),
        pytest.param("\ud83d\ude00", "😀", id="surrogate pair"),
        pytest.param({"k": "\udc00"}, '{"k":"�"}', id="lone surrogate inside"),
    ],
)
def test_value_is_shown_as(value: object, text: str) -> None:
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


def test_long_list_keeps_its_ends() -> None:
    text = shown_text(list(range(100_000)), 1_000)
    assert text.startswith("[0,1,2")
    assert text.endswith("99998,99999]")
    assert re.search(r"… \[9[\d,]+ of 100,000 items left out; ask for a smaller part\] …", text)


def test_same_object_twice_is_not_circular() -> None:
    part = {"a": 1}
    assert json.loads(shown_text([part, part])) == [part, part]


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


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("x" * 1_970 + CUT_KEY + "z" * 9_000, id="text"),
        pytest.param({"a": "x" * 1_960 + CUT_KEY + "z" * 9_000}, id="json"),
        pytest.param(pd.DataFrame({"a": ["x" * 60 + CUT_KEY + "z" * 100], "b": [1]}), id="frame"),
        pytest.param(pd.DataFrame([[1, ["x" * 60 + CUT_KEY]]], columns=["a", "a"]), id="list"),
        pytest.param(pd.Series(["x" * 60 + CUT_KEY + "z" * 100]), id="series"),
        pytest.param(pd.Series(["x" * 60 + CUT_KEY] * 3, dtype="category"), id="category"),
        pytest.param(CUT_KEY.encode() * 2, id="bytes"),
    ],
)
def test_no_part_of_a_key_is_left_where_a_value_is_cut(value: Any) -> None:
    register(CUT_KEY)
    text = shown_text(value)
    assert CUT_KEY[:8] not in text
    assert CUT_KEY[:8].encode().hex() not in text


def test_frame_without_a_key_looks_the_same_when_keys_are_known() -> None:
    frame: Any = pd.DataFrame({"a": ["x", None], "b": [1.5, 2.0], "c": [[1], {"k": 2}]})
    register(CUT_KEY)
    assert shown_text(frame).endswith("\n| x | 1.5 | [1] |\n|  | 2 | {'k': 2} |")
    with_key: Any = pd.DataFrame({"a": ["x", CUT_KEY], "b": [1.5, 2.0]})
    assert shown_text(with_key).endswith(
        "| a | b |\n| --- | --- |\n| x | 1.5 |\n| [redacted] | 2 |"
    )
    assert with_key["a"][1] == CUT_KEY, "the person's own table is not touched"


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


def huge(kind: str) -> Any:
    """A cell that takes longer to write out than anybody waits."""
    if kind == "lists":
        return list(range(1_000_000))
    if kind == "mappings":
        return {f"k{i}": "v" * 10 for i in range(200_000)}
    if kind == "lists in lists":
        return [list(range(1_000))] * 1_000
    return {"text": "é" * 5_000_000}


@pytest.mark.parametrize("kind", ["lists", "mappings", "lists in lists", "texts"])
def test_huge_cells_of_many_rows_are_not_written_out(kind: str) -> None:
    cell = huge(kind)
    frame: Any = pd.DataFrame({"a": [cell] * 20_000, "b": range(20_000)})
    began = time.monotonic()
    text = shown_text(frame, 50_000)
    # Written out each one takes 20 ms and more, and some hundred rows are shown.
    assert time.monotonic() - began < 2.0
    assert len(text) <= 50_000
    assert text.splitlines()[-1].endswith("| 19999 |")
    assert text.count(" left out; ask for a smaller part]") > 100
    assert shown_text(pd.Series([cell] * 3)).count("left out") == 3


def test_huge_cell_says_what_it_is_and_keeps_its_start() -> None:
    row: list[Any] = [1, {"k": None}, ("a",), {2}]
    others: list[Any] = [deque(row * 500), dict.fromkeys(range(5_000)), b"ab" * 50_000]
    cells: list[Any] = [row * 1_000, *others]
    lines = shown_text(pd.DataFrame({"a": cells})).splitlines()[-4:]
    assert lines[0].startswith("| [1, {'k': None}, ('a',), {2}, 1, {'k': None}")
    assert lines[0].endswith("… [list, 4,000 items, the rest left out; ask for a smaller part] |")
    assert lines[1].startswith("| deque([1, {'k': None}")
    assert lines[2].startswith("| {0: None, 1: None, ")
    assert lines[3].endswith("… [bytes, 100,000 long, the rest left out; ask for a smaller part] |")
    assert max(map(len, lines)) <= 204 + 4


def test_cell_that_holds_itself_or_a_key_is_shown_without_it() -> None:
    register(CUT_KEY)
    itself: list[Any] = list(range(3))
    itself.append(itself)
    large: list[Any] = [["x" * 90 + CUT_KEY], *range(5_000)]
    raw = b"x" * 190 + CUT_KEY.encode() + b"z" * 90_000
    frame: Any = pd.DataFrame({"a": [itself, [*itself, *range(5_000)], large, raw]})
    text = shown_text(frame)
    assert "| [0, 1, 2, [...]] |" in text
    assert "[0, 1, 2, [0, 1, 2, [...]], 0, 1" in text
    assert CUT_KEY[:8] not in text
