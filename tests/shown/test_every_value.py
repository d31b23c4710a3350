"""The bank of values, each in a prompt and as a tool's result: never an error, never too much."""

from __future__ import annotations

import base64
import io
import itertools
import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from shown.many_values import VALUES

import nbagent
from nbagent.contracts.canonical import dump_json
from nbagent.contracts.chat import ImagePart, Part, TextPart, is_keepable
from nbagent.contracts.ports import ToolOutcome
from nbagent.providers.offline import call, calls, script
from nbagent.shown import BUDGET_CHARS, IMAGE_BYTES, fitted, shown, shown_text
from nbagent.tools.results import MAX_RESULT_CHARS, result_of

LIMIT_S = 8.0
"""Far above what any value takes: two busy cores, and pictures of 144 megapixels."""
RAISING = {"generator that raises"}


def no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_shown_within_its_budget_and_is_a_result_of_valid_json(name: str) -> None:
    make, words = VALUES[name]
    value = make()
    began = time.monotonic()
    parts = shown(value)
    assert time.monotonic() - began < LIMIT_S
    check_parts(parts)
    first = parts[0]
    text = first.text if isinstance(first, TextPart) else f"[image: {getattr(first, 'alt', '')}]"
    assert words in text
    for budget in (0, 20):
        (short,) = shown(make(), budget)[:1]
        assert isinstance(short, ImagePart) or len(short.text) <= budget  # type: ignore[union-attr]
    if name in RAISING:
        return
    value = make()
    began = time.monotonic()
    settled = result_of(value)
    assert time.monotonic() - began < LIMIT_S
    check_result(settled)


def check_parts(parts: tuple[Part, ...]) -> None:
    for part in parts:
        assert isinstance(part, TextPart | ImagePart)
        part.model_dump_json().encode()
        if isinstance(part, TextPart):
            assert len(part.text) <= BUDGET_CHARS
        else:
            assert part.data is not None
            assert len(part.data) * 3 // 4 <= IMAGE_BYTES


def check_result(settled: ToolOutcome) -> None:
    result, truncated = settled.result, settled.truncated
    assert result.ok
    assert is_keepable(result.data)
    encoded = result.to_json()
    assert json.loads(encoded, parse_constant=no_constant)["ok"] is True
    text = result.data if isinstance(result.data, str) else dump_json(result.data).decode()
    assert len(text) <= MAX_RESULT_CHARS
    assert truncated or "left out; ask for a smaller part" not in text
    named = sum(f"[{part.type} " in text for part in result.attachments)
    assert named == len(result.attachments)


SOME = [
    *("NUL", "not finite", "circular", "deep", "bad attributes", "false class", "odd keys"),
    *("endless generator", "cursor", "million rows", "keys that meet", "pictures in a list"),
    *("figure", "bytes of a WebP", "own HTML", "huge int", "missing values", "none", "mock"),
    *("generator that raises", "file", "exception", "array of objects", "100 MB of text"),
    *("binary bytes", "bad repr", "class"),
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


def test_list_that_is_cut_stays_a_list() -> None:
    data = fitted(list(range(100_000)), 1_000).data
    assert data[:3] == [0, 1, 2]
    assert data[-1] == 99_999
    (mark,) = [item for item in data if isinstance(item, str)]
    assert mark.endswith("of 100,000 items left out; ask for a smaller part] …")
    assert int(mark.split("[")[1].split(" ")[0].replace(",", "")) + len(data) - 1 == 100_000


def test_long_text_leaves_room_for_what_comes_after_it() -> None:
    data = fitted({"page": "x" * 1_000_000, "status": 200}, 2_000).data
    assert data["status"] == 200
    assert "of 1,000,000 characters left out" in data["page"]


def test_table_has_as_many_rows_as_the_budget_holds() -> None:
    table = fitted(pd.DataFrame({"n": range(500)}), 50_000)
    assert not table.cut
    assert table.data.endswith("".join(f"\n| {i} |" for i in range(500)))


def test_text_that_is_known_as_a_home_is_shortened_only_as_a_folder() -> None:
    home = str(Path.home())
    assert shown_text(Path.home() / "a") == "~/a"
    assert shown_text(Path(f"/data{home}/a")) == f"/data{home}/a"
    assert "a/b" in shown_text(OSError(2, "No such file", f"{home}/a/b"))
    assert f"{home}/a" not in shown_text(OSError(2, "No such file", f"{home}/a/b"))


def test_grey_values_of_any_range_keep_their_contrast() -> None:
    for values in (np.linspace(0, 1, 256, dtype="f4"), np.arange(256).astype("u2") * 200):
        (part,) = shown(Image.fromarray(values.reshape(16, 16)))
        assert isinstance(part, ImagePart)
        seen = Image.open(io.BytesIO(base64.b64decode(part.data or "")))
        assert seen.getextrema() in [(0, 255), (0, 254)]


def test_noisy_picture_keeps_its_size_and_its_budget() -> None:
    noise = random.Random(1).randbytes(900 * 900 * 3)
    (part,) = shown(Image.frombytes("RGB", (900, 900), noise))
    assert isinstance(part, ImagePart)
    assert (part.media_type, part.alt) == ("image/jpeg", "picture, 900×900 px")
    assert len(part.data or "") * 3 // 4 <= IMAGE_BYTES


class Dawdler:
    """Takes its time to describe itself."""

    described = 0

    def __repr__(self) -> str:
        type(self).described += 1
        time.sleep(0.02)
        return "dawdler"


def test_many_slow_items_are_left_out_after_a_while() -> None:
    data = fitted([Dawdler() for _ in range(300)], 50_000, patience_s=0.1).data
    assert data[0] == "dawdler"
    assert any("of 300 items left out" in item for item in data)
    assert Dawdler.described < 50


def test_stop_ends_a_result_that_would_never_be_read() -> None:
    @nbagent.tool(timeout=0.3)
    def drip() -> Any:
        """Give items for ever, slowly."""
        return (time.sleep(0.01) for _ in itertools.count())

    model = script([calls([call("drip")]), "Done."])
    run = nbagent.Agent(model=model, tools=[drip]).run("Go.")
    (drop,) = run.turns[0].tool_runs
    assert drop.result is not None
    assert drop.result.error is not None
    assert drop.result.error.code == "E_TIMEOUT"
    assert run.text == "Done."
