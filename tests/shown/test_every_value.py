"""Every value in a prompt and as a tool's result: never an error, never too much."""

# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from shown.many_values import VALUES, failing

import nbagent
from nbagent.contracts.canonical import dump_json
from nbagent.contracts.messages import ImagePart, Part, TextPart, is_storable_json
from nbagent.contracts.secrets import redact_truncated, register_secret
from nbagent.contracts.tools import ToolOutcome
from nbagent.providers.offline import call, calls, script
from nbagent.shown.images import IMAGE_BYTES
from nbagent.shown.texts import BUDGET_CHARS, cut_middle, readable, visible
from nbagent.shown.values import to_json_within, to_parts, to_prompt_parts, to_text
from nbagent.tools.functions.outcome import MAX_RESULT_CHARS, value_outcome

LIMIT_S = 16.0
"""Of this process, far above what any value takes: pictures of 144 megapixels."""
RAISING = {"generator that raises"}


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_shown_within_its_budget_and_is_a_result_of_valid_json(name: str) -> None:
    make, words = VALUES[name]
    value = make()
    began = time.process_time()
    check_parts(to_parts(value))
    if name not in RAISING:
        check_result(value_outcome(make()))
    assert time.process_time() - began < LIMIT_S
    assert words in to_text(make())
    for budget in (0, 20):
        (short,) = to_parts(make(), budget)[:1]
        assert isinstance(short, ImagePart) or len(short.text) <= budget  # type: ignore[union-attr]


def check_parts(parts: tuple[Part, ...]) -> None:
    for part in parts:
        part.model_dump_json().encode()
        if isinstance(part, TextPart):
            assert len(part.text) <= BUDGET_CHARS
        else:
            assert len(part.data or "") * 3 // 4 <= IMAGE_BYTES


def check_result(settled: ToolOutcome) -> None:
    result, truncated = settled.result, settled.truncated
    assert result.ok
    assert is_storable_json(result.data)
    encoded = result.to_json()
    assert json.loads(encoded, parse_constant=no_constant)["ok"] is True
    text = result.data if isinstance(result.data, str) else dump_json(result.data).decode()
    assert len(text) <= MAX_RESULT_CHARS
    assert truncated or "left out; ask for a smaller part" not in text
    named = sum(f"[{part.type} " in text for part in result.attachments)
    assert named == len(result.attachments)


SOME = [
    *("not finite", "circular", "deep", "bad attributes", "false class", "odd keys", "bundle"),
    *("endless generator", "cursor", "million rows", "pictures in a list", "figure", "huge int"),
    *("bytes of a WebP", "missing values", "none", "generator that raises", "file", "exception"),
    *("array of objects", "100 MB of text", "binary bytes", "bad repr", "lone surrogate inside"),
]


def test_values_go_through_a_whole_run_and_its_record() -> None:
    @nbagent.tool
    def give(name: str) -> Any:
        """Give a value."""
        return VALUES[name][0]()

    @nbagent.tool
    async def give_later(name: str) -> Any:
        """Give a value."""
        return VALUES[name][0]()

    asked = [call(tool, name=name) for name in SOME for tool in ("give", "give_later")]
    agent = nbagent.Agent(model=script([calls(asked), "Done."]), tools=[give, give_later])
    run = agent.run("Go.")
    assert run.text == "Done."
    assert nbagent.open_run(run.id).record == run.record
    failed = {
        str((it.args or {})["name"])
        for it in run.turns[0].tool_runs
        if it.result is None or not it.result.ok
    }
    assert failed == RAISING
    images = [m for m in run.messages if m.role == "tool" and len(m.content) > 1]
    assert {type(part) for m in images for part in m.content[1:]} == {ImagePart}
    assert len(images) == 2 * 3


def test_what_is_cut_says_how_much_and_leaves_room_for_what_comes_after_it() -> None:
    *data, mark = to_json_within(list(range(100_000)), 1_000).data
    assert data == list(range(len(data)))
    assert mark == f"… [{100_000 - len(data):,} of 100,000 items left out; ask for a smaller part]"
    page = to_json_within({"page": "x" * 1_000_000, "status": 200}, 2_000).data
    assert page["status"] == 200
    assert "of 1,000,000 characters left out" in page["page"]
    text = cut_middle("a" * 6_000 + "b" * 6_345, 4_000)
    assert len(text) <= 4_000
    head, _, tail = text.partition("… [")
    assert " of 12,345 characters left out; ask for a smaller part] …" in tail
    count = int(tail.split(" ")[0].replace(",", ""))
    assert count + head.count("a") + tail.partition("] …")[2].count("b") == 12_345


def test_a_table_has_as_many_rows_as_the_budget_holds_and_says_what_is_missing() -> None:
    whole = to_json_within(pd.DataFrame({"n": range(500)}), 50_000)
    assert not whole.cut
    assert whole.data.endswith("".join(f"\n| {i} |" for i in range(500)))
    frame = pd.DataFrame({"city": [f"c{i}" for i in range(1_000)], "n": range(1_000)})
    text = to_text(frame)
    assert text.startswith("DataFrame: 1,000 rows × 2 columns\ndtypes: city ")
    assert "n int64\n| city | n |\n| --- | --- |\n| c0 | 0 |\n" in text
    assert text.endswith("| c999 | 999 |")
    shown_rows = sum(line.startswith("| c") for line in text.splitlines()) - 1
    assert f"\n… {1_000 - shown_rows} of 1,000 rows left out; ask for a smaller part …\n" in text


def test_text_that_is_known_as_a_home_is_shortened_only_as_a_folder() -> None:
    home = str(Path.home())
    assert to_text(Path.home() / "a") == "~/a"
    assert to_text(Path(f"/data{home}/a")) == f"/data{home}/a"
    assert f"{home}/a" not in to_text(OSError(2, "No such file", f"{home}/a/b"))


def test_noisy_picture_keeps_its_size_and_its_budget() -> None:
    noise = random.Random(1).randbytes(900 * 900 * 3)
    (part,) = parts = to_parts(Image.frombytes("RGB", (900, 900), noise))
    check_parts(parts)
    assert isinstance(part, ImagePart)
    assert (part.media_type, part.alt) == ("image/jpeg", "picture, 900×900 px")


def test_many_slow_items_are_left_out_after_a_while_but_an_iterator_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nbagent.shown.values._DEADLINE_S", 0.1)
    slow = type("Slow", (), {"__repr__": lambda _: time.sleep(0.02) or "slow"})
    *data, mark = to_json_within([slow() for _ in range(300)], 50_000).data
    assert data == ["slow"] * len(data)
    assert "of 300 items left out" in mark
    assert 0 < len(data) < 50
    assert to_json_within((slow() for _ in range(20)), 50_000).data == ["slow"] * 20


def test_a_person_can_interrupt_a_slow_repr() -> None:
    with pytest.raises(KeyboardInterrupt):
        to_parts(failing("Slow", object, "__repr__", error=KeyboardInterrupt)())


def test_stop_ends_a_result_that_would_never_be_read() -> None:
    @nbagent.tool(timeout=0.3)
    def drip() -> Any:
        """Give items for ever, slowly."""
        return (time.sleep(0.01) for _ in itertools.count())

    model = script([calls([call("drip")]), "Done."])
    run = nbagent.Agent(model=model, tools=[drip]).run("Go.")
    result = run.turns[0].tool_runs[0].result
    assert result is not None
    assert (result.error and result.error.code, run.text) == ("E_TIMEOUT", "Done.")


def test_showing_values_imports_no_heavy_package() -> None:
    code = (
        "import sys\nfrom nbagent.shown.values import to_text\nto_text([object(), {1: 2}])\n"
        "print([m for m in ('pandas', 'numpy', 'matplotlib', 'PIL', 'narwhals', 'IPython') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


CUT_KEY = "sk-shown-0123456789abcdefghij"


CUT: dict[str, Any] = {
    "text": "x" * 1_970 + CUT_KEY + "z" * 9_000,
    "json": {"a": "x" * 1_960 + CUT_KEY + "z" * 9_000},
    "frame": pd.DataFrame({"a": ["x" * 60 + CUT_KEY + "z" * 200], "b": [1]}),
    "list": pd.DataFrame([[1, ["x" * 60 + CUT_KEY]]], columns=["a", "a"]),
    "category": pd.Series(["x" * 90 + CUT_KEY + "z" * 90] * 3, dtype="category"),
    "large cell": pd.Series([[["x" * 90 + CUT_KEY], *range(5_000)]]),
    "large bytes": pd.Series([b"x" * 190 + CUT_KEY.encode() + b"z" * 90_000]),
    "binary": b"\0" + CUT_KEY.encode() * 2,
    "cut by itself": type("Cut", (), {"__repr__": lambda _: f"<Cut {CUT_KEY[:12]}…>"})(),
}


@pytest.mark.parametrize("name", CUT)
def test_no_part_of_a_key_is_left_where_a_value_is_cut(name: str) -> None:
    register_secret(CUT_KEY)
    text = to_text(CUT[name])
    assert CUT_KEY[:8] not in text
    assert CUT_KEY[:8].encode().hex() not in text
    assert CUT_KEY[-8:] not in text


@pytest.mark.parametrize("rest", [9_000, 90_000])
def test_no_cut_leaves_a_part_of_a_key_wherever_it_falls(rest: int) -> None:
    register_secret(CUT_KEY)
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
    register_secret(CUT_KEY)
    assert redact_truncated(text) == hidden


HUGE: dict[str, Any] = {
    "lists": list(range(1_000_000)),
    "mappings": {f"k{i}": "v" * 10 for i in range(200_000)},
    "texts": {"text": "é" * 5_000_000},
}
"""Cells that take longer to write out than anybody waits."""


@pytest.mark.parametrize("kind", HUGE)
def test_huge_cells_of_many_rows_are_not_written_out(kind: str) -> None:
    frame: Any = pd.DataFrame({"a": [HUGE[kind]] * 20_000, "b": range(20_000)})
    began = time.process_time()
    text = to_text(frame, 50_000)
    # Written out each one takes 20 ms and more, and some hundred rows are shown.
    assert time.process_time() - began < 2.0
    assert len(text) <= 50_000
    assert text.splitlines()[-1].endswith("| 19999 |")
    assert text.count(" left out; ask for a smaller part]") > 100
    assert max(map(len, text.splitlines())) <= 204 + 10


@pytest.mark.parametrize(
    ("text", "seen", "read"),
    [
        ("a\x1b[31mb\x1b]0;title\x07c\r\n", "abc\n", "abc\n"),
        ("ab\u202ecd\u200be\x00", "ab⟦U+202E⟧cd⟦U+200B⟧e⟦U+0000⟧", "ab⟦U+202E⟧cd\u200be�"),
        ("tag\U000e0041 \u2066x", "tag⟦U+E0041⟧ ⟦U+2066⟧x", "tag⟦U+E0041⟧ ⟦U+2066⟧x"),
        ("ü 👍\ufe0f", "ü 👍\ufe0f", "ü 👍\ufe0f"),
        *((text, text, text) for text in ("👩\u200d👩", "❤\ufe0f\u200d🔥", "می\u200cخواهم")),
        ("क्\u200dष", "क्\u200dष", "क्\u200dष"),
        ("pay\u200dpal", "pay⟦U+200D⟧pal", "pay\u200dpal"),
        ("па\u200cр", "па⟦U+200C⟧р", "па\u200cр"),
        ("\u200d👩\u200d", "⟦U+200D⟧👩⟦U+200D⟧", "\u200d👩\u200d"),
        ("👩\u200d\u200d👩", "👩⟦U+200D⟧⟦U+200D⟧👩", "👩\u200d\u200d👩"),
    ],
)
def test_what_is_hidden_in_a_text_is_seen_by_a_person(text: str, seen: str, read: str) -> None:
    assert (visible(text), readable(text)) == (seen, read)


def test_a_run_in_a_prompt_is_its_whole_text_and_inside_other_values_too() -> None:
    run = nbagent.Agent(model=script(["word " * 10_000 + "end"])).run("Go.")
    (part,) = to_prompt_parts(run)
    assert isinstance(part, TextPart)
    assert part.text == run.text
    assert len(part.text) == 50_003
    short = nbagent.Agent(model=script(["Oslo."])).run("Go.")
    assert to_text({"first": short}) == '{"first":"Oslo."}'
