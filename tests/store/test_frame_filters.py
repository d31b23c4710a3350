"""Ranges, contained texts and names as filters of frames, and what they refuse."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_records import START, plain_run, write
from stories import Story, tool_run

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import Case, ScoreRecord
from nbagent.session.stores import current_store
from nbagent.store.batches import save_scores

frames: Any = nbagent

PROMPTS = ("A refund, please.", "REFUND\0 it, 100%", "Straße_und ÄRGER", "")
COSTS = (0.005, 0.01, 0.02, None)


@pytest.fixture(autouse=True)
def stored_runs() -> None:
    """Four runs a day apart; each answers with its prompt and calls a tool with it."""
    for i, (prompt, cost) in enumerate(zip(PROMPTS, COSTS, strict=True)):
        story = Story(
            id=str(i) * 16,
            name=f"run-{i}",
            prompt=prompt,
            started_at=START + timedelta(days=i),
        )
        call = tool_run("c1", "look", {"word": prompt}, {"n": i}, 100.0 * i)
        story.turn("", call, ttft_ms=float(i) if i else None)
        story.turn(prompt)
        current_store().add(story.end(cost_usd=cost, duration_ms=250.0 * i).run)


def letters(frame: Any) -> str:
    """The first digits of the ids of runs in a frame."""
    return "".join(dict.fromkeys(run_id[0] for run_id in frame["run_id"]))


RANGES: dict[str, tuple[str, Any, str]] = {
    "from": ("cost_usd", (0.01, None), "12"),
    "up to": ("cost_usd", (None, 0.01), "01"),
    "both ends included": ("cost_usd", (0.005, 0.02), "012"),
    "one value": ("cost", (0.01, 0.01), "1"),
    "short name": ("duration", (250, 500), "12"),
    "a whole number among floats": ("duration_ms", (np.int64(250), np.float32(600)), "12"),
    "a fraction among whole numbers": ("turns", (1.5, 2.5), "0123"),
    "nothing between": ("turns", (2.1, 2.9), ""),
    "infinite": ("cost_usd", (0.01, float("inf")), "12"),
    "open by NaN": ("cost_usd", (float("nan"), 0.01), "01"),
    "open by NA": ("cost_usd", (pd.NA, 0.01), "01"),
    "beyond 2**63": ("turns", (0, 10**30), "0123"),
    "times": ("started_at", ("2026-03-05", "2026-03-07"), "12"),
    "a time and a datetime": ("started", (START + timedelta(days=2), None), "23"),
    "an age": ("started_at", (None, "0m"), "0123"),
    "derived": ("depth", (0, 0), "0123"),
    "a list of two is two values": ("duration_ms", [0, 750], "03"),
    "a tuple of three is three values": ("duration_ms", (0, 250, 750), "013"),
    "a range of Python is its values": ("turns", range(2, 4), "0123"),
    "a tuple of two texts is two texts": ("name", ("run-1", "run-3"), "13"),
}


@pytest.mark.parametrize(("name", "value", "found"), RANGES.values(), ids=list(RANGES))
def test_numbers_and_times_take_a_range(name: str, value: Any, found: str) -> None:
    assert letters(frames.runs(**{name: value})) == found


TEXTS: dict[str, tuple[str, Any, str]] = {
    "a part": ("runs", "refund", "01"),
    "a part behind a NUL": ("runs", "it, 100", "1"),
    "with a NUL": ("runs", "fund\0 IT", "1"),
    "no wildcards": ("runs", "1_0%", ""),
    "a percent sign": ("runs", "0%", "1"),
    "an underscore": ("runs", "e_u", "2"),
    "only ASCII letters have a case": ("runs", "ärger", ""),
    "other letters in their case": ("runs", "Är".upper().replace("R", "r"), "2"),
    "several": ("runs", ["please", "straße"], "02"),
    "missing": ("runs", None, "3"),
    "missing or a part": ("runs", [None, "please"], "03"),
    "none": ("runs", [], ""),
    "the whole text": ("runs", PROMPTS[1], "1"),
    "longer than LIKE takes": ("runs", "x" * 60_000, ""),
    "an empty text is an empty text": ("turns", "", "0123"),
    "turns": ("turns", "refund", "01"),
    "messages": ("messages", "be brief", "0123"),
    "arguments of tools": ("tool_runs", "REFUND", "01"),
    "results of tools": ("tool_runs", '"n":2', "2"),
}


@pytest.mark.parametrize(("frame", "value", "found"), TEXTS.values(), ids=list(TEXTS))
def test_text_finds_what_contains_it(frame: str, value: Any, found: str) -> None:
    assert letters(getattr(frames, frame)(text=value)) == found


def test_filters_of_all_kinds_hold_together_and_with_a_limit() -> None:
    found = frames.runs(text="refund", cost_usd=(0.001, None), since="2026-03-05")
    assert letters(found) == "1"
    assert letters(frames.messages(text="refund", limit=1)) == "1"
    assert letters(frames.messages(role="assistant", chars=(16, None), session="main")) == "012"
    assert letters(frames.turns(ttft_ms=(1, 2), text="")) == "12"
    assert frames.prompts(kind="system", runs=(4, None))["text"].tolist() == ["Be brief."]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "reversed": ({"cost_usd": (2, 1)}, r"cost_usd=\(2, 1\) ends before it begins: .*write a list"),
    "reversed times": ({"started_at": ("2026-03-05", "2026-03-04")}, "ends before it begins"),
    "a reversed period": ({"since": "2026-03-05", "until": "2026-03-04"}, "is after until="),
    "no ends": ({"turns": (None, None)}, r"turns=\(None, None\) has no bound"),
    "a text": ({"turns": ("1", 2)}, "give a whole number, .* or a range: .low, high.$"),
    "a flag": ({"cost_usd": (True, None)}, "give a number, .* or a range"),
    "a number as a time": ({"started_at": (0, None)}, "give a datetime .* or a range"),
    "no time": ({"started_at": ("soon", None)}, "give a datetime"),
    "a list as an end": ({"cost_usd": ([1], 2)}, "is not a valid filter"),
    "a huge number": ({"cost_usd": (10**400, None)}, "is not a valid filter"),
    "a complex number": ({"cost_usd": (1j, None)}, "is not a valid filter"),
    "a range of flags": ({"ok": (0.5, None)}, "give True or False, or up to [0-9,]+ of them in a"),
    "a range as a limit": ({"limit": (1, 2)}, "limit=.* give a whole number$"),
    "a range since": ({"since": ("1d", "2d")}, "since=.* give a datetime"),
    "a number as a text": ({"text": 5}, "text=5 is not a valid filter; give text"),
    "half a character": ({"text": "\ud83d"}, "is not a valid filter; give text"),
    "too many texts": ({"text": [*map(str, range(501))]}, "give text, or up to 500 of them"),
    "a slip in a name": ({"name": "run-l"}, "no row has name='run-l'; did you mean 'run-"),
    "a slip in a filter": ({"cost_us": (1, 2)}, r"did you mean 'cost_usd'\?"),
    "a slip in a session": ({"session": "mian"}, "did you mean 'main'"),
    "set twice": ({"cost": (1, 2), "cost_usd": 1}, "'cost_usd' is set twice"),
}


@pytest.mark.parametrize(("filters", "reason"), REFUSED.values(), ids=list(REFUSED))
def test_a_wrong_filter_is_one_line_that_says_what_to_write(
    filters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        frames.runs(**filters)
    assert "\n" not in str(caught.value)


def test_a_misspelt_batch_is_one_line_with_the_right_one() -> None:
    agent = nbagent.Agent("offline:demo", tools="none")
    agent.map(pd.DataFrame({"city": ["Oslo"]}), "Say {{ city }}.", name="refunds").wait()
    with pytest.raises(UsageError, match=r"no row has batch='refnds'; did you mean 'refunds'\?"):
        frames.scores(batch="refnds")
    assert frames.runs(batch="refunds")["prompt"].tolist() == ["Say Oslo."]


VARIANTS: dict[str, tuple[Any, str]] = {
    "one label": ({"prompt": "v1"}, "56"),
    "all of several": ({"prompt": "v1", "t": "0.5"}, "5"),
    "a number": ({"t": 0.5}, "579"),
    "labels of one axis": ({"prompt": ["v1", "v2"], "t": "1"}, "68"),
    "several variants": ([{"prompt": "v1", "t": 1}, {"prompt": "v2", "t": 0.5}], "67"),
    "labels that no run has together": ({"prompt": "v3", "t": 1}, ""),
    "the JSON of all": ('{"prompt":"v1","t":"0.5"}', "5"),
}
UNKNOWN_VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "an axis": ({"variant": {"promt": "v1"}}, "axis 'promt'.*did you mean 'prompt'"),
    "a label": ({"variant": {"t": 7}}, r"no run has variant=\{'t': '7'\}; there are 0.5, 1"),
    "one of several": ({"variant": {"prompt": ["v1", "v9"]}}, "'v9'"),
    "no label": ({"variant": {}}, "names no label"),
    "None": ({"variant": {"t": None}}, "None is no label"),
    "half a character": ({"variant": {"t": "\ud83d"}}, "is not a valid filter"),
    "the axis as a filter": ({"t": 0.5}, r"no filter 't'; .* write variant=\{'t': '0.5'\}$"),
    "a dict of another column": ({"model": {"t": "1"}}, "model=.* is not a valid filter"),
}


@pytest.fixture
def variants() -> None:
    pairs = [("v1", "0.5"), ("v1", "1"), ("v2", "0.5"), ("v2", "1"), ("v3", "0.5")]
    for digit, (prompt, t) in enumerate(pairs, start=5):
        case = Case(batch="b", row_key="r", variant={"prompt": prompt, "t": t}, sha=str(digit))
        story = Story(id=str(digit) * 16, prompt=f"{prompt} {t}", case=case)
        story.turn("An answer.")
        run = story.end().run
        current_store().add(run)
        save_scores(
            current_store(),
            [ScoreRecord(run_id=run.id, scorer="s", value=True, by="function", at=START)],
        )


def test_a_variant_is_found_by_its_labels(variants: None) -> None:
    for name, (value, found) in VARIANTS.items():
        assert letters(frames.runs(variant=value)) == found, name
        assert letters(frames.scores(variant=value)) == found, name


def test_a_variant_that_no_run_has_is_refused(variants: None) -> None:
    for filters, reason in UNKNOWN_VARIANTS.values():
        with pytest.raises(UsageError, match=reason):
            frames.runs(**filters)
    with pytest.raises(UsageError, match=r"run_id=nbagent\.runs\(variant="):
        frames.turns(prompt="v1")


def test_a_range_of_a_large_number_is_exact() -> None:
    write(current_store(), plain_run(1, run_id="a" * 16))
    exact = START + timedelta(microseconds=1)
    assert frames.runs(run_id="a" * 16, started_at=(START, START)).shape[0] == 1
    assert frames.runs(run_id="a" * 16, started_at=(exact, None)).empty
