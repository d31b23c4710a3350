"""Frames: one row each, joinable, the same dtypes with and without rows, filters."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_records import START, Maker, crash, cut_after_a_result, plain_run, write

from nbagent.archive import frames
from nbagent.archive.store import Store
from nbagent.contracts.chat import ImagePart, Message, TextPart
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord

Frame = Callable[..., Any]
ALL: list[Frame] = [frames.runs, frames.turns, frames.tool_runs, frames.messages]
DTYPES = {"string", "Int64", "Float64", "boolean", "category", "datetime64[us, UTC]"}
each_frame = pytest.mark.parametrize("frame", ALL, ids=[frame.__name__ for frame in ALL])


def filled(store: Store, n: int = 30) -> list[RunRecord]:
    records: list[RunRecord] = []
    for seed in range(n):
        record, events = Maker(seed).run(session=f"s{seed % 3}")
        write(store, events)
        records.append(record)
    return records


def utf8(text: str | None) -> Any:
    return pd.NA if text is None else text.encode("utf-8", "replace").decode()


def same(values: Any, expected: list[Any]) -> bool:
    found: list[Any] = values.astype(object).tolist()
    return len(found) == len(expected) and all(
        (pd.isna(a) and (b is None or pd.isna(b))) or a == b
        for a, b in zip(found, expected, strict=True)
    )


@each_frame
def test_dtypes_are_the_same_with_no_rows(frame: Frame, tmp_path: Path, store: Store) -> None:
    empty = frame(store)
    assert len(empty) == 0
    filled(store)
    full = frame(store)
    assert len(full) > 0
    assert {name: str(dtype) for name, dtype in full.dtypes.items()} == {
        name: str(dtype) for name, dtype in empty.dtypes.items()
    }
    assert {str(dtype) for dtype in full.dtypes} <= DTYPES
    assert len(frame(store, session="nobody's")) == 0


def test_runs_say_what_the_records_say(store: Store) -> None:
    records = filled(store)
    df = frames.runs(store)
    assert list(df["run_id"]) == [r.id for r in records]
    assert same(df["text"], [utf8(r.text) for r in records])
    assert same(df["prompt"], [utf8(r.prompt) for r in records])
    assert same(df["cost_usd"], [r.cost_usd for r in records])
    assert same(df["error_code"], [r.error and r.error.code for r in records])
    assert same(df["error"], [r.error and utf8(r.error.message) for r in records])
    assert same(df["turns"], [len(r.turns) for r in records])
    assert same(df["tool_calls"], [sum(len(t.tool_runs) for t in r.turns) for r in records])
    assert same(df["total_tokens"], [r.usage.total_tokens for r in records])
    assert same(df["cache_write_tokens"], [r.usage.cache_write_tokens for r in records])
    assert same(df["started_at"], [pd.Timestamp(r.started_at) for r in records])
    assert same(df["duration_ms"], [r.duration_ms for r in records])
    assert same(df["tags"], [",".join(r.tags) for r in records])
    assert set(df["provider"]) == {"openai"}


def test_turns_say_what_the_records_say(store: Store) -> None:
    turns = [turn for record in filled(store) for turn in record.turns]
    df = frames.turns(store, texts=True)
    assert same(df["run_id"], [t.run_id for t in turns])
    assert same(df["turn_id"], [t.id for t in turns])
    assert same(df["ttft_ms"], [t.ttft_ms for t in turns])
    usages = [t.response.usage if t.response else None for t in turns]
    assert same(df["cached_tokens"], [u and u.cached_tokens for u in usages])
    assert same(df["finish_reason"], [t.response and t.response.finish_reason for t in turns])
    assert same(df["cache_write_tokens"], [u and u.cache_write_tokens for u in usages])
    assert same(df["attempts"], [t.attempts for t in turns])
    assert same(df["retries"], [t.attempts - 1 for t in turns])
    assert same(df["retry_wait_ms"], [t.retry_wait_ms for t in turns])
    assert same(df["source"], [t.response and t.response.meta.source for t in turns])
    dropped = [t.response.meta.dropped_params if t.response else () for t in turns]
    assert any(dropped)
    assert same(df["dropped_params"], [",".join(names) for names in dropped])
    assert same(df["system_sha"], [t.request.system_sha or None for t in turns])
    assert same(df["toolset_sha"], [t.request.toolset_sha or None for t in turns])
    assert same(df["text"], [utf8(t.text) for t in turns])
    reasoning = [t.response.reasoning if t.response else None for t in turns]
    assert same(df["reasoning"], [utf8(text) for text in reasoning])
    assert set(df["model"]) == {"openai:gpt-x"}
    assert "text" not in frames.turns(store)


def test_tool_runs_say_what_the_records_say(store: Store) -> None:
    runs = [run for record in filled(store) for t in record.turns for run in t.tool_runs]
    df = frames.tool_runs(store)
    assert same(df["tool_call_id"], [run.tool_call_id for run in runs])
    assert same(df["ok"], [run.result and run.result.ok for run in runs])
    texts = [run.result.to_json().decode() if run.result else None for run in runs]
    assert same(df["result"], texts)
    assert same(df["result_tokens_est"], [-(-len(text or "") // 4) for text in texts])
    assert same(df["truncated"], [run.truncated for run in runs])
    assert same(df["duration_ms"], [run.duration_ms for run in runs])
    assert same(df["waited_ms"], [run.waited_ms for run in runs])
    assert same(df["approval"], [run.approval for run in runs])
    assert same(df["approved_by"], [run.approved_by for run in runs])
    assert same(df["edited"], [run.approval == "edited" for run in runs])
    failed = [run.result.error for run in runs if run.result and run.result.error]
    assert same(df.loc[~df["ok"], "error_code"], [error.code for error in failed])


def test_messages_say_what_the_records_say(store: Store) -> None:
    records = filled(store)
    df = frames.messages(store)
    messages = [message for record in records for message in record.messages]
    assert same(df["role"], [m.role for m in messages])
    assert same(df["text"], [utf8(m.text) for m in messages])
    assert same(df["index"], [i for record in records for i in range(len(record.messages))])
    assert same(df["n_tool_calls"], [len(m.tool_calls) for m in messages])
    images = [any(part.type == "image" for part in m.content) for m in messages]
    assert same(df["has_image"], images)


def test_index_of_a_childs_message_counts_the_shared_ones(store: Store) -> None:
    write(store, plain_run(1, run_id="a" * 16))
    write(store, plain_run(0, run_id="b" * 16, parent_id="a" * 16, shared_messages=3))
    assert frames.messages(store, run="b")["index"].tolist() == [3]


def test_frames_join_by_their_ids(store: Store) -> None:
    filled(store)
    tool_runs, turns = frames.tool_runs(store), frames.turns(store)
    joined = tool_runs.merge(turns, on=["run_id", "turn_id"], validate="many_to_one")
    joined = joined.merge(frames.runs(store), on="run_id", validate="many_to_one")
    assert len(joined) == len(tool_runs) > 0
    answers = frames.messages(store, role="tool")
    keys = ["run_id", "turn_id", "tool_call_id"]
    assert len(tool_runs.merge(answers, on=keys, validate="one_to_one")) == len(tool_runs)


def test_filters_narrow_the_rows(store: Store) -> None:
    records = filled(store)
    turns = [turn for record in records for turn in record.turns]
    assert len(frames.turns(store, session="s1")) == sum(len(r.turns) for r in records[1::3])
    assert len(frames.turns(store, session=["s1", "s2", "none"])) < len(turns)
    assert len(frames.turns(store, model="openai:gpt-x")) == len(turns)
    assert len(frames.turns(store, model="gpt-x")) == 0
    own = sum(len(record.messages) for record in records[1::3])
    assert len(frames.messages(store, session="s1", model="openai:gpt-x")) == own
    assert len(frames.turns(store, run_id=records[5].id)) == len(records[5].turns)
    assert len(frames.turns(store, run="last")) == len(records[-1].turns)
    assert frames.runs(store, run=records[3].id[:10])["run_id"].tolist() == [records[3].id]
    none = [turn for turn in turns if turn.ttft_ms is None]
    assert len(frames.turns(store, ttft_ms=None)) == len(none)
    sha = next(turn.request.system_sha for turn in turns if turn.request.system_sha)
    assert set(frames.turns(store, system_sha=sha)["system_sha"]) == {sha}
    no_system = [turn for turn in turns if not turn.request.system_sha]
    assert len(frames.turns(store, system_sha=None)) == len(no_system)
    assert set(frames.tool_runs(store, ok=False)["ok"]) == {False}
    assert len(frames.turns(store, texts=True, text="")) == len([t for t in turns if not t.text])


def forms(column: Any) -> Iterator[Any]:
    """What a person has a column's cells in."""
    yield column
    yield pd.Index(column)
    yield column.unique()
    yield column.to_numpy()
    yield column.array
    yield from (kind(column) for kind in (list, tuple, set))
    yield dict.fromkeys(column).keys()


@each_frame
def test_every_cell_and_column_of_a_frame_is_a_filter(frame: Frame, store: Store) -> None:
    filled(store, 4)
    df = frame(store)
    for name in df.columns:
        # A text with half of a surrogate pair is shown with another character in its place.
        found = df[~df[name].astype(str).str.contains("[?\ufffd] alone")]
        for form in forms(df[name]):
            assert len(frame(store, **{name: form})) == len(found) > 0, (name, type(form))
        for cell in found[name].unique():
            rows = df[name].isna() if pd.isna(cell) else df[name] == cell
            assert len(frame(store, **{name: cell})) == rows.sum() > 0, (name, cell)


def test_missing_values_in_any_form_find_the_same_rows(store: Store) -> None:
    filled(store)
    n = len(frames.turns(store, ttft_ms=None))
    assert n > 0
    for missing in (
        pd.NA,
        pd.NaT,
        float("nan"),
        np.float64("nan"),
        np.datetime64("NaT", "us"),
        [pd.NA],
    ):
        assert len(frames.turns(store, ttft_ms=missing)) == n


def test_numbers_of_numpy_and_whole_floats_are_numbers(store: Store) -> None:
    write(store, plain_run(5, run_id="a" * 16))
    for value in (
        np.int64(3),
        np.uint8(3),
        np.array(3),
        3.0,
        np.float32(3),
        pd.Series([3.0, None]),
    ):
        assert frames.turns(store, index=value)["index"].tolist() == [3]
    assert len(frames.turns(store, run_id=np.str_("a" * 16), limit=np.int64(2))) == 2
    third = np.datetime64((START + timedelta(seconds=3)).replace(tzinfo=None), "ns")
    assert frames.turns(store, since=third)["index"].tolist() == [3, 4, 5]
    assert frames.turns(store, started_at=third)["index"].tolist() == [3]
    assert frames.turns(store, started_at=pd.Series([third]))["index"].tolist() == [3]


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("index", {"a": 1}, "give a whole number of at most 64 bits, or a list of such values"),
        ("index", pd.DataFrame({"a": [1]}), "or a list of such values"),
        ("index", 2**70, "give a whole number of at most 64 bits"),
        ("index", [1, 2.5], "index=2.5 cannot be looked for"),
        ("index", "3", "index='3'"),
        ("model_ms", 10**400, "give a number"),
        ("model_ms", "long", "model_ms='long' cannot be looked for; give a number"),
        ("turn_id", b"C01", "turn_id=b'C01' cannot be looked for; give text"),
        ("turn_id", ["C01", ["C02"]], "give text"),
        ("model", "\ud800", "model='.ud800' cannot be looked for; give text"),
        ("session", object(), "session=<object .* cannot be looked for; give text"),
        ("run", None, "run=None"),
        ("run", "\ud800", "run='.ud800'"),
        ("since", pd.NaT, "since=NaT cannot be looked for; give a datetime or text"),
        ("since", {}, "since={}"),
        ("started_at", 5, "started_at=5 cannot be looked for; give a datetime or text"),
        ("limit", 10**30, "limit must be a whole number from 0 to 9223372036854775807, not 10"),
        ("limit", -1, "limit must be a whole number from 0"),
        ("limit", "5", "limit must be a whole number from 0"),
        ("turn_id", [str(n) for n in range(40_000)], "turn_id has 40,000 values"),
        ("text", "x", "texts=True"),
    ],
    ids=lambda value: str(value).encode("ascii", "replace").decode()[:20],
)
def test_an_unusable_filter_is_one_line_that_names_it(
    name: str, value: Any, takes: str, store: Store
) -> None:
    with pytest.raises(UsageError, match=takes) as caught:
        frames.turns(store, **{name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_only_true_and_false_are_flags(store: Store) -> None:
    filled(store)
    assert len(frames.tool_runs(store, ok=1)) == len(frames.tool_runs(store, ok=True)) > 0
    with pytest.raises(UsageError, match="ok='yes' cannot be looked for; give True or False"):
        frames.tool_runs(store, ok="yes")
    with pytest.raises(UsageError, match="ok=2 "):
        frames.tool_runs(store, ok=2)


def test_limit_takes_the_newest_and_shows_them_oldest_first(store: Store) -> None:
    records = filled(store)
    last = frames.runs(store, limit=3)
    assert last["run_id"].tolist() == [r.id for r in records[-3:]]
    assert last["prompt"].tolist() == [utf8(r.prompt) for r in records[-3:]]
    assert len(frames.messages(store, limit=0)) == 0


def test_since_and_until_cut_by_the_start(store: Store) -> None:
    write(store, plain_run(5, run_id="a" * 16))
    third = START + timedelta(seconds=3)
    assert frames.turns(store, since=third)["index"].tolist() == [3, 4, 5]
    assert frames.turns(store, until=third)["index"].tolist() == [1, 2]
    assert len(frames.turns(store, since=pd.Timestamp(third), until="2026-03-05")) == 3
    assert len(frames.messages(store, since=third)) == 6
    assert frames.turns(store, started_at=third)["index"].tolist() == [3]
    with pytest.raises(UsageError, match="yesterday"):
        frames.turns(store, since="yesterday")


@each_frame
def test_unknown_filter_is_an_error_that_names_the_nearest(frame: Frame, store: Store) -> None:
    with pytest.raises(UsageError, match="did you mean 'run_id'"):
        frame(store, runid="x")


def test_interrupted_run_shows_as_failed_in_every_frame(home: Path, store: Store) -> None:
    crash(home, plain_run(3, run_id="a" * 16)[:11])
    record = store.load("a" * 16)
    assert record.phase == "Failed"
    run = frames.runs(store).iloc[0]
    assert (run["phase"], run["stop_reason"]) == ("Failed", "error")
    assert run["error_code"] == "ENGINE_INTERRUPTED"
    assert run["total_tokens"] == record.usage.total_tokens > 0
    assert run["ended_at"] == record.ended_at
    assert run["cost_usd"] == record.cost_usd
    turns = frames.turns(store)
    assert turns["phase_after"].tolist()[-1] == "Failed"
    assert turns["error_code"].tolist()[-1] == "ENGINE_INTERRUPTED"
    assert same(turns["duration_ms"], [turn.duration_ms for turn in record.turns])
    tool = frames.tool_runs(store).iloc[-1]
    result = record.turns[-1].tool_runs[-1].result
    assert result is not None
    assert (tool["ok"], tool["error_code"]) == (False, "E_INTERRUPTED")
    assert tool["result"] == result.to_json().decode()
    assert tool["error"] in tool["result"]
    messages = frames.messages(store)
    assert messages["text"].tolist() == [message.text for message in record.messages]
    assert messages["chars"].tolist() == [len(message.text) for message in record.messages]
    before = [frame(store) for frame in ALL]
    store.close_interrupted("a" * 16)
    for old, frame in zip(before, ALL, strict=True):
        pd.testing.assert_frame_equal(frame(store), old)


def test_run_at_work_shows_as_running(store: Store) -> None:
    write(store, plain_run(3, run_id="a" * 16)[:7])
    assert frames.runs(store)["phase"].tolist() == ["Running"]
    assert frames.tool_runs(store)["ok"].isna().tolist() == [False, True]


def test_odd_names_do_not_break_a_frame(store: Store) -> None:
    write(store, plain_run(1, run_id="a" * 16, session="\ud83d", name="nul \0 in 'it'"))
    assert frames.runs(store)["session"].tolist() == ["?"]
    assert frames.turns(store)["session"].tolist() == ["?"]
    assert frames.runs(store)["name"].tolist() == ["nul \0 in 'it'"]


def test_frames_of_a_store_in_memory(store: Store) -> None:
    memory = Store.memory("for a test")
    write(memory, plain_run(2, run_id="a" * 16))
    write(store, plain_run(2, run_id="a" * 16))
    for frame in ALL:
        pd.testing.assert_frame_equal(frame(memory), frame(store))
    memory.close()


MARK = "cGljdHVyZQ"


def test_frames_neither_show_nor_load_the_bytes_of_pictures(home: Path, store: Store) -> None:
    picture = ImagePart(data=MARK + "A" * 4_000_000)
    words = Message(role="user", content=(TextPart(text="Look."), picture))
    whole = plain_run(1, run_id="a" * 16, attachments=(picture,), messages=(words,))
    dead = plain_run(2, run_id="b" * 16, attachments=(picture,), messages=(words,))
    crash(home, [*whole, *cut_after_a_result(dead)])
    for frame in ALL:
        frame(store)  # pandas is imported
    tracemalloc.start()
    try:
        made = [frame(store) for frame in ALL]
        lines = store.runs()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
    assert lines[0].phase == "Failed"
    assert not any(MARK in df.to_csv() for df in made)


def test_has_image_is_said_of_a_result_whose_message_was_never_written(
    home: Path, store: Store
) -> None:
    decoy = '{"type":"image"}'
    picture = (TextPart(text=decoy), ImagePart(data=MARK))
    for run_id, attachments in (("a" * 16, picture), ("b" * 16, picture[:1]), ("c" * 16, ())):
        events = plain_run(1, run_id=run_id, text=decoy, attachments=attachments)
        crash(home, cut_after_a_result(events))
    before = frames.messages(store)
    assert before["has_image"].tolist() == [False, False, True, *[False] * 6]
    for run_id in "abc":
        store.close_interrupted(run_id * 16)
    assert frames.messages(store)["has_image"].tolist() == before["has_image"].tolist()
