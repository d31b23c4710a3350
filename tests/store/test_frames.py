"""Frames: final columns, one row each, joinable, the same dtypes with and without rows, filters."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import cycle, zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from made_records import START, Maker, plain_run, write
from stories import Assembly, Story, patched, walked

import nbagent
from nbagent.contracts.canonical import dump_json, utc_now
from nbagent.contracts.errors import ErrorInfo, UsageError
from nbagent.contracts.messages import Message, ToolCall
from nbagent.contracts.model import ChatResponse
from nbagent.contracts.records import (
    Case,
    ForkedFrom,
    RunRecord,
    ScoreRecord,
    ToolResult,
    ToolRun,
    WorkflowRef,
)
from nbagent.store import dataframes, frame_queries
from nbagent.store.batches import save_scores
from nbagent.store.dataframes import query
from nbagent.store.writer import Store

TOKENS = (
    "prompt_tokens:int completion_tokens:int total_tokens:int cached_tokens:int "
    "reasoning_tokens:int"
)
# Final: in this order, with these dtypes.
COLUMNS = {
    "runs": (
        "run_id name started_at:time model:word prompt text ok:flag stop_reason:word turns:int "
        "tool_calls:int total_tokens:int cost_usd:float duration_ms:float error "
        "session:word conversation_id root_id parent_id depth:int kind:word forked_from tags "
        "notebook:word cell_id execution_count:int batch:word row_key variant attempt:int "
        "template template_sha:word phase:word error_code:word agent:word workflow:word "
        "provider:word server:word params system_sha:word toolset_sha:word tool_errors:int "
        "prompt_tokens:int completion_tokens:int cached_tokens:int reasoning_tokens:int "
        "n_unpriced:int ended_at:time model_ms:float tools_ms:float waited_ms:float "
        "retry_wait_ms:float nbagent_version:word"
    ),
    "turns": (
        "run_id turn_id turn:int session:word batch:word provider:word server:word model:word "
        "served_model:word workflow:word agent:word node:word ok:flag phase_before:word "
        "phase_after:word "
        "stop_reason:word finish_reason:word error_code:word error text reasoning attempts:int "
        "attempt_statuses "
        f"retry_wait_ms:float source:word n_messages:int n_new:int tool_calls:int {TOKENS} "
        "resent_tokens:int new_prompt_tokens:int toolset_tokens_est:int "
        "cost_usd:float cost_input_usd:float cost_cached_usd:float cost_output_usd:float "
        "saved_usd:float ttft_ms:float model_ms:float tools_ms:float waited_ms:float "
        "duration_ms:float started_at:time dropped_params trimmed:int system_sha:word "
        "toolset_sha:word"
    ),
    "tool_runs": (
        "run_id turn_id turn:int tool_call_id position:int session:word batch:word model:word "
        "workflow:word agent:word node:word host:word "
        "tool_name:word ok:flag error_code:word error args args_sha asked_args reason result "
        "result_chars:int result_tokens_est:int truncated:flag notes approval:word "
        "approved_by:word edited:flag waited_ms:float queued_at:time started_at:time "
        "duration_ms:float ran_in:word isolation:word repeat_n:int tool_sha:word"
    ),
    "messages": (
        "run_id position:int turn_id role:word source:word text reasoning tool_calls tool_call_id "
        "tool_name:word chars:int has_image:flag at:time"
    ),
    "transitions": (
        "run_id turn_id turn:int tool_call_id session:word at:time workflow:word from_node:word "
        "to_node:word label:word accepted:flag error_code:word error agent:word"
    ),
    "scores": (
        "run_id batch:word row_key variant attempt:int model:word scorer:word version:int "
        "kind:word value:float label:word reason by:word error at:time judge_run_id"
    ),
    "prompts": "sha kind:word text first_seen:time last_seen:time runs:int",
}
DTYPES = {
    "": "string",
    "word": "category",
    "flag": "boolean",
    "int": "Int64",
    "float": "Float64",
    "time": "datetime64[us, UTC]",
}
each_frame = pytest.mark.parametrize("name", COLUMNS)


def read(store: Store, name: str, /, **filters: Any) -> Any:
    return dataframes.read_frame([store], name, filters)


def filled(store: Store, n: int = 30) -> list[RunRecord]:
    records: list[RunRecord] = []
    for seed in range(n):
        record, events = Maker(seed).run(session=f"s{seed % 3}")
        write(store, events)
        records.append(record)
    story = walked(session="s0")
    write(store, story.events)
    said = [
        ScoreRecord(run_id=run.id, scorer="tone", value=value, reason="So.", by="me", at=START)
        for run, value in zip(records, cycle([True, 2.5, "dry", None]))
    ]
    save_scores(store, said)
    return [*records, story.run]


def numbered(store: Store) -> str:
    """A run of five turns, a second apart, that began at START."""
    write(store, plain_run(5, run_id="a" * 16))
    return "a" * 16


@each_frame
def test_columns_and_dtypes_are_final_with_and_without_rows(name: str, store: Store) -> None:
    pairs = (column.partition(":") for column in COLUMNS[name].split())
    expected = [(column, DTYPES[kind]) for column, _, kind in pairs]
    empty = read(store, name)
    filled(store)
    full = read(store, name)
    assert len(empty) == 0 < len(full)
    for frame in (empty, full):
        assert [(it, str(dtype)) for it, dtype in frame.dtypes.items()] == expected


@each_frame
def test_frames_come_back_the_same_from_parquet_and_feather(
    name: str, store: Store, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    filled(store)
    frame = read(store, name)
    assert "object" not in {str(dtype) for dtype in frame.dtypes}
    for form in ("parquet", "feather"):
        getattr(frame, f"to_{form}")(tmp_path / form)
        # Pandas chooses the storage of the texts that it reads, not their dtype.
        with pd.option_context("mode.string_storage", "python"):
            again = getattr(pd, f"read_{form}")(tmp_path / form)
        # A file does not say the type of words where there are none.
        for column in frame.columns[frame.isna().all()]:
            again[column] = again[column].astype(frame[column].dtype)
        assert [*map(str, again.dtypes)] == [*map(str, frame.dtypes)]
        pd.testing.assert_frame_equal(
            again, frame, check_column_type=False, check_categorical=False
        )


PARTS: dict[str, Callable[[RunRecord], Sequence[Any]]] = {
    "runs": lambda record: [record],
    "turns": lambda record: record.turns,
    "tool_runs": lambda record: [run for turn in record.turns for run in turn.tool_runs],
    "messages": lambda record: record.messages,
}
# Columns that are not called as the field of the record that they show.
SAID: dict[str, dict[str, Callable[[Any], Any]]] = {
    "runs": {
        "run_id": lambda it: it.id,
        "text": lambda it: it.text or None,
        "ok": lambda it: it.stop_reason == "answered",
        "error_code": lambda it: it.error and it.error.code,
        "turns": lambda it: len(it.turns),
        "tool_calls": lambda it: sum(len(turn.tool_runs) for turn in it.turns),
    },
    "turns": {
        "turn": lambda it: it.index,
        "ok": lambda it: it.error is None,
        "text": lambda it: it.text if it.response else None,
        "reasoning": lambda it: it.response and it.response.message.reasoning,
        "attempt_statuses": lambda it: it.attempt_statuses or None,
        "source": lambda it: it.response and it.response.meta.source,
        "served_model": lambda it: (it.response and it.response.model) or None,
        "dropped_params": lambda it: (it.response and it.response.meta.dropped_params) or None,
        "system_sha": lambda it: it.request.system_sha or None,
    },
    "tool_runs": {
        "ok": lambda it: it.result.ok,
        "error_code": lambda it: it.result.error and it.result.error.code,
        "result_tokens_est": lambda it: -(-len(it.result.to_json().decode()) // 4),
        "edited": lambda it: it.approval == "edited",
        "notes": lambda it: it.notes or None,
    },
    "messages": {
        "chars": lambda it: len(it.text),
        "has_image": lambda it: any(part.type == "image" for part in it.content),
    },
}


def shown(value: Any) -> Any:
    """A field as a frame shows it."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case datetime():
            return pd.Timestamp(value)
        case dict() | tuple():
            return shown(dump_json(value).decode())
        case ToolResult():
            return shown(value.to_json().decode())
        case ErrorInfo():
            return shown(value.message)
        case WorkflowRef():
            return shown(value.name)
        case ForkedFrom():
            return shown(value.turn_id)
        case _:
            return value


@pytest.mark.parametrize("name", PARTS)
def test_frames_say_what_the_records_say(name: str, store: Store) -> None:
    rows = [row for record in filled(store) for row in PARTS[name](record)]
    df = read(store, name)
    df = df[df["position"] >= 0] if name == "messages" else df
    assert len(df) == len(rows) >= 30
    same = {
        it: attrgetter(it)
        for it in df.columns.drop("tool_calls", errors="ignore")
        if hasattr(rows[0], it)
    }
    for column, value in (same | SAID[name]).items():
        found = df[column].astype(object).where(df[column].notna(), None).tolist()
        assert found == [shown(value(row)) for row in rows], column


@each_frame
def test_limit_takes_the_newest_and_shows_them_oldest_first(name: str, store: Store) -> None:
    filled(store, 4)
    df = read(store, name)
    for n in (0, 1, 3):
        pd.testing.assert_frame_equal(
            read(store, name, limit=n).astype(object),
            df.tail(n).reset_index(drop=True).astype(object),
        )


def test_limit_is_of_each_store_also_where_runs_were_written_side_by_side(
    store: Store, tmp_path: Path
) -> None:
    other = Store.open(tmp_path / "other")
    for number, written in enumerate((store, other)):
        runs = [plain_run(40 + i, run_id=f"{number}{i}" * 8, text="word") for i in range(3)]
        write(written, [event for events in zip_longest(*runs) for event in events if event])
    alone = [read(one, "messages") for one in (store, other)]
    for df in alone:
        assert len(df) == 3 * 2 + 2 * (40 + 41 + 42)
        for _, of_run in df.groupby("run_id", sort=False):
            assert of_run["position"].tolist() == [*range(-1, len(of_run) - 1)]
        assert df["run_id"].drop_duplicates().is_monotonic_increasing
    for n in (1, 90, 100, 1_000):
        pd.testing.assert_frame_equal(
            dataframes.read_frame([store, other], "messages", {"limit": n}).astype(object),
            pd.concat([df.tail(n) for df in alone], ignore_index=True).astype(object),
        )
    whole = read(store, "messages", run="02" * 8, whole=True)
    last = read(store, "messages", run="02" * 8, whole=True, limit=7)
    assert last["role"].cat.categories.tolist() == ["assistant", "tool"]
    assert last["position"].tolist() == whole["position"].tolist()[-7:] == [*range(78, 85)]
    assert len(read(store, "messages", run="02" * 8, whole=True, limit=0)) == 0
    other.close()


@pytest.mark.parametrize(
    ("dtype", "cell", "another"),
    [
        ("string", "text", None),
        ("string", None, "text"),
        ("string", "half \ud83d".encode("utf-8", "surrogatepass"), "text"),
        ("string", 5, "text"),
        ("category", "word", None),
        ("category", None, "word"),
        ("category", b"half \xed\xa0\xbd", "word"),
        ("Int64", 2**53 - 1, None),
        ("Int64", None, 1),
        ("Float64", 0.1, 1),
        ("boolean", 1, None),
        ("boolean", None, 0),
        ("datetime64[us, UTC]", 1_700_000_000_000_001, None),
        ("datetime64[us, UTC]", None, 0),
    ],
)
def test_cells_are_the_same_in_a_column_of_one_value_and_of_several(
    dtype: Any, cell: Any, another: Any
) -> None:
    alone = dataframes.array_of(dtype, [cell] * 3)
    among = dataframes.array_of(dtype, [cell, another, cell])
    assert str(alone.dtype) == str(among.dtype)
    for found in (alone, among):
        values = [None if pd.isna(value) else value for value in (found[0], found[2])]
        assert values == [None if pd.isna(among[0]) else among[0]] * 2
    assert (cell is None) == alone.isna().all()


@pytest.mark.parametrize("cells", [["text"] * 3, ["text", None, 1]], ids=["all", "one"])
def test_a_text_among_numbers_is_an_error_also_if_all_are_texts(cells: list[Any]) -> None:
    with pytest.raises(ValueError, match="could not convert string to float: 'text'"):
        dataframes.array_of("Int64", cells)


@pytest.mark.parametrize("cells", [["a", None], ["a", "a"], [None, None], []], ids=str)
def test_dtypes_of_texts_do_not_depend_on_pyarrow(
    cells: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it were installed: pandas then chooses another dtype for "string".
    monkeypatch.setattr("pandas.core.arrays.string_.HAS_PYARROW", True)
    texts, words = (dataframes.array_of(dtype, cells) for dtype in ("string", "category"))
    assert texts.dtype.storage == words.categories.dtype.storage == "python"
    assert [None if pd.isna(cell) else cell for cell in texts] == cells


def test_tokens_that_no_turn_reported_are_missing_and_not_none(store: Store) -> None:
    record, events = Maker(1).run(n_turns=0)
    write(store, events)
    found = read(store, "runs", run=record.id).iloc[0]
    assert found[["total_tokens", "cached_tokens"]].isna().all()
    assert found[["turns", "tool_calls", "n_unpriced"]].tolist() == [0, 0, 0]


def test_each_move_of_a_workflow_is_a_row_with_what_became_of_it(store: Store) -> None:
    half = {"transition": {"from": "draft", "to": "half \ud83d of\U0001f600", "label": None}}
    refusal = ErrorInfo("E_INVALID_TRANSITION", "no such step", half)
    runs = [patched("c1", {}, refusal), patched("c2", {}, {"transition": "no object"})]
    later = Story(id="b" * 16, workflow=WorkflowRef(name="other"), agent="mira").turn("", *runs)
    write(store, walked().events)
    write(store, later.end().events)
    # The same call in a run without a workflow moves nothing.
    moved = patched("c1", {}, {"transition": {"from": "a", "to": "b", "label": "next"}})
    write(store, Story(id="c" * 16).turn("", moved).end().events)
    df = read(store, "transitions")
    shown = df.drop(columns=["run_id", "session", "at", "turn"]).astype(object)
    assert shown.where(shown.notna(), None).to_numpy().tolist() == [
        [
            *("C01", "c1", "story-flow", "select", "close", None, False),
            *("E_INVALID_TRANSITION", "close does not follow select", "mira"),
        ],
        ["C02", "c2", "story-flow", "select", "draft", "next", True, None, None, "mira"],
        [
            *("C01", "c1", "other", "draft", "half ? of\U0001f600", None, False),
            *("E_INVALID_TRANSITION", "no such step", "mira"),
        ],
    ]
    by_agent = df.groupby(["workflow", "agent"], observed=True)["accepted"].mean()
    assert by_agent.to_dict() == {("story-flow", "mira"): 0.5, ("other", "mira"): 0.0}
    keys = ["run_id", "turn_id", "tool_call_id"]
    joined = df.merge(read(store, "tool_runs"), on=keys, validate="one_to_one")
    assert joined["tool_name"].tolist() == ["fs.apply_patch"] * 3
    refused = read(store, "transitions", accepted=False, run="b")
    assert refused["to_node"].tolist() == ["half ? of\U0001f600"]
    found = read(store, "transitions", to_node="draft", model="deepseek:deepseek-flash")
    assert found["label"].tolist() == ["next"]


@pytest.mark.parametrize(
    "target",
    [{"currentNodeId": {"set": "half \ud83d"}}, {"currentNodeId.set": "half \ud83d"}],
    ids=["protocol", "dotted"],
)
def test_a_move_whose_result_was_not_kept_is_a_row_that_says_neither_yes_nor_no(
    store: Store, target: dict[str, Any]
) -> None:
    cut = ErrorInfo("E_INTERRUPTED", "the kernel ended")
    runs = [
        patched("c1", target, cut),
        patched("c2", {"variables.set": {"a": 1}}, cut),
        patched("c3", target, cut).model_copy(update={"started_at": None}),
    ]
    story = Story(id="b" * 16, workflow=WorkflowRef(name="other"), agent="mira").turn(
        "", *runs, node="draft"
    )
    write(store, story.end().events)
    df = read(store, "transitions")
    assert df[["tool_call_id", "from_node", "to_node", "error_code"]].to_numpy().tolist() == [
        ["c1", "draft", "half ?", "E_INTERRUPTED"]
    ]
    assert df["accepted"].isna().tolist() == [True]
    assert df["label"].isna().tolist() == [True]


# Conversations


def test_messages_of_a_run_and_of_all_that_it_goes_on_from(store: Store) -> None:
    parent = numbered(store)
    write(store, plain_run(1, run_id="b" * 16, parent_id=parent, shared_messages=3))
    own = read(store, "messages", run="b")
    assert own["position"].tolist() == [-1, 3, 4, 5]
    assert own["role"].tolist() == ["system", "user", "assistant", "tool"]
    assert (own["text"][0], own["source"][0]) == ("Be brief.", "system")
    whole = read(store, "messages", run="b", whole=True)
    assert whole["position"].tolist() == [-1, *range(6)]
    assert whole["run_id"].tolist() == ["b" * 16, *[parent] * 3, *["b" * 16] * 3]
    assert whole["text"][1:].tolist() == [message.text for message in store.conversation("b" * 16)]
    # It goes on from a place in its parent's parent.
    write(store, plain_run(1, run_id="c" * 16, parent_id="b" * 16, shared_messages=2))
    whole = read(store, "messages", run="c", whole=True)
    assert whole["text"][1:].tolist() == [message.text for message in store.conversation("c" * 16)]
    with pytest.raises(UsageError, match="whole=True needs the run"):
        read(store, "messages", whole=True)


# Filters


@each_frame
def test_every_cell_and_column_of_a_frame_is_a_filter(name: str, store: Store) -> None:
    filled(store, 4)
    df = read(store, name)
    for column in df.columns:
        # A text with half of a surrogate pair is shown with another character in its place.
        found = df[~df[column].astype(str).str.contains("[?\ufffd] alone")]
        forms: list[Any] = [list, tuple, set, pd.Index, pd.unique, np.asarray, pd.Series]
        for form in forms:
            assert len(read(store, name, **{column: form(found[column])})) == len(found) > 0, column
        for cell in found[column].unique():
            rows = df[column].isna() if pd.isna(cell) else df[column] == cell
            if column == "text" and not pd.isna(cell) and cell:  # texts that contain it
                rows = df[column].str.contains(cell, regex=False)
            assert len(read(store, name, **{column: cell})) == rows.sum() > 0, (column, cell)


@pytest.mark.parametrize(
    ("filters", "turns"),
    [
        ({"turn": pd.Series([3.0, None])}, [3]),
        ({"run_id": np.str_("a" * 16), "limit": np.int64(2)}, [4, 5]),
        ({"run": "last"}, [1, 2, 3, 4, 5]),
        ({"since": np.datetime64("2026-03-04T05:06:10", "ns")}, [3, 4, 5]),
        ({"until": "2026-03-04T07:06:10+02:00"}, [1, 2]),
        ({"since": "2026-03-04", "until": "2026-03-05"}, [1, 2, 3, 4, 5]),
        ({"started_at": START + timedelta(seconds=3)}, [3]),
        ({"ttft_ms": [float("nan"), 2.5]}, [1, 2, 3, 4, 5]),
        ({"error_code": "LLM_TIMEOUT"}, []),
    ],
    ids=lambda value: str(value)[:40],
)
def test_filters_narrow_the_rows(filters: dict[str, Any], turns: list[int], store: Store) -> None:
    numbered(store)
    assert read(store, "turns", **filters)["turn"].tolist() == turns


def test_runs_are_found_by_each_of_their_tags(store: Store) -> None:
    for i, tags in enumerate([("a,b", "c"), ("c",), ()]):
        write(store, plain_run(0, run_id=str(i) * 16, tags=tags))
    counts = [len(read(store, "runs", tags=tag)) for tag in ("c", "a,b", "a", ["a,b", "z"])]
    assert counts == [2, 1, 0, 1]
    assert read(store, "runs")["tags"].tolist() == ['["a,b","c"]', '["c"]', "[]"]


def test_since_keeps_calls_that_never_started_and_words_of_the_person(store: Store) -> None:
    call = ToolCall(id="c1", name="fs.write", arguments={}, arguments_raw="{}")
    denied = ToolResult.failure(ErrorInfo("E_DENIED", "no"))
    run = ToolRun(tool_call_id=call.id, tool_name=call.name, result=denied, queued_at=START)
    said = (Message.of("user", "go"),)
    made = Assembly(id="a" * 16, prompt="go", messages=said, started_at=START)
    answer = ChatResponse(message=Message(role="assistant", tool_calls=(call,)))
    made.add_turn(answer, [run], system="Be brief.", params={}, started_at=START)
    write(store, made.end(ended_at=START).events)
    for since, n in ((START, 1), (START + timedelta(hours=1), 0)):
        assert len(read(store, "tool_runs", since=since)) == n
        assert len(read(store, "messages", since=since, role="user")) == n
        assert len(read(store, "messages", since=since)) == 4 * n


def test_today_begins_at_midnight_here_and_days_are_counted_back(store: Store) -> None:
    midnight = datetime.now().astimezone().replace(hour=0, minute=0, second=0, microsecond=0)
    ages = {"yesterday": midnight - timedelta(seconds=1), "today": midnight, "now": utc_now()}
    for i, moment in enumerate(ages.values()):
        write(store, plain_run(0, run_id=str(i) * 16, started_at=moment))
    assert len(read(store, "runs", since="today")) == 2
    assert len(read(store, "runs", until="today")) == 1
    counts = [len(read(store, "runs", since=it)) for it in ("1m", "3d", "1 w", "99999w")]
    assert counts == [1, 3, 3, 3]


# What is refused


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("turn", [1, 2.5], "turn=.1, 2.5. is not a valid filter"),
        ("model_ms", 10**400, "give a number"),
        ("ok", "yes", "give True or False"),
        ("model", "\ud800", "model='.ud800' is not a valid filter; give text"),
        ("run", None, "run=None"),
        ("since", "yesterday", "'today', '7d'"),
        ("started_at", 5, "started_at=5 is not a valid filter; give a datetime or a text"),
        ("limit", -1, "limit must be a whole number from 0, not -1"),
        ("turn_id", [*map(str, range(40_000))], "give text, or up to 30,000 of them"),
        ("runid", "x", r"there is no filter 'runid'; did you mean 'run_id'\?$"),
        ("zzzz", "x", "there is no filter 'zzzz'; the filters are run_id, "),
        # A word that is nearly one that rows have.
        ("model", "m-1", "no row has model='m-1'; did you mean 'openai:m-1'?"),
        ("phase_after", ["Failed", "Complete"], "did you mean 'Completed'?"),
        ("error_code", "FOOBAR", "there is ENGINE_ABORTED, "),
    ],
    ids=lambda value: str(value).encode("ascii", "replace").decode()[:20],
)
def test_a_filter_that_can_find_nothing_is_one_line_that_says_why(
    name: str, value: Any, said: str, store: Store
) -> None:
    write(store, plain_run(1, run_id="a" * 16, model="openai:m-1", session="main"))
    with pytest.raises(UsageError, match=said) as caught:
        read(store, "turns", **{name: value})
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


# Columns of JSON


NOTEBOOKS: dict[str, tuple[Any, str]] = {
    "the stem": ("penguins", "ab"),
    "the file": ("penguins.ipynb", "ab"),
    "the end of a path": ("study/penguins", "b"),
    "the whole path": ("penguins.ipynb", "ab"),
    "other letters": ("Penguins", "ab"),
    "several": (["cities", "study/penguins"], "bc"),
    "a missing one": (None, "d"),
    "nothing similar": ("zebra", ""),
}


@pytest.mark.parametrize(("notebook", "found"), NOTEBOOKS.values(), ids=list(NOTEBOOKS))
def test_a_notebook_is_found_by_the_end_of_its_path(
    notebook: Any, found: str, store: Store
) -> None:
    files = ("work/penguins.ipynb", "work/study/penguins.ipynb", "C:\\work\\cities.ipynb", None)
    for letter, file in zip("abcd", files, strict=True):
        write(store, plain_run(1, run_id=letter * 16, notebook=file))
    rows = read(store, "runs", notebook=notebook)
    assert rows["run_id"].tolist() == [letter * 16 for letter in found]
    ids = dataframes.find_runs(store, {"notebook": notebook}, sort="id", limit=9)
    assert ids == [letter * 16 for letter in found[::-1]]


def test_a_misspelt_notebook_is_one_line_with_the_right_one(store: Store) -> None:
    write(store, plain_run(1, run_id="a" * 16, notebook="penguins.ipynb"))
    with pytest.raises(UsageError, match=r"did you mean 'penguins\.ipynb'"):
        read(store, "runs", notebook="pengins.ipynb")


@pytest.mark.parametrize(("name", "column"), frame_queries.ALIASES.items())
def test_short_names_of_columns_are_filters(name: str, column: str, store: Store) -> None:
    filled(store)
    frame = "tool_runs" if column == "tool_name" else "runs"
    value = read(store, frame)[column].dropna().iloc[0]
    same = read(store, frame, **{name: value})
    assert len(same) > 0
    assert same.equals(read(store, frame, **{column: value}))
    with pytest.raises(UsageError, match=f"{column!r} is set twice"):
        read(store, frame, **{name: value, column: value})


def test_a_column_of_json_becomes_columns() -> None:
    cells = ['{"city":"Oslo","n":1}', None, '{"city":"Bergen","deep":{"a":1}}', "[1]"]
    frame = pd.DataFrame({"args": pd.array(cells, dtype="string")}, index=[5, 6, 7, 8])
    found: Any = nbagent.expand(frame, "args")
    assert found.columns.tolist() == ["args", "args.city", "args.n", "args.deep"]
    assert found["args.city"].fillna("").tolist() == ["Oslo", "", "Bergen", ""]
    assert found["args.city"].dtype == pd.StringDtype("python")
    assert found["args.n"].dtype == "Int64"
    assert found.loc[7, "args.deep"] == {"a": 1}
    empty: Any = nbagent.expand(frame.iloc[:0], "args")
    assert empty.columns.tolist() == ["args"]
    with pytest.raises(UsageError, match="has no column 'arg'; it has args"):
        nbagent.expand(frame, "arg")
    with pytest.raises(UsageError, match="is not JSON; use a column"):
        nbagent.expand(found, "args.city")


# Amount of work


def steps(n_runs: int, frame: str, filters: dict[str, Any], n_rows: int) -> int:
    """Steps of SQLite's machine, in hundreds, to read a frame of at least so many rows."""
    count = [0]
    store = Store.memory()
    story = Story()
    story.turn("It is 42.")
    story.end()
    for i in range(n_runs):
        run, case = f"{i:016x}", Case(batch="b", row_key=f"r{i}", sha=f"{i}")
        turns = tuple(turn.model_copy(update={"run_id": run}) for turn in story.run.turns)
        store.add(story.run.model_copy(update={"id": run, "turns": turns, "case": case}))
        said = ScoreRecord(run_id=run, scorer="s", value=True, by="me", at=START)
        save_scores(store, [said])

    def step() -> int:
        count[0] += 1
        return 0

    with store.reading() as connection:
        connection.set_progress_handler(step, 100)
    assert len(dataframes.read_frame([store], frame, filters)) >= n_rows
    store.close()
    return count[0]


@pytest.mark.parametrize("frame", ["runs", "turns", "tool_runs", "messages", "scores"])
@pytest.mark.parametrize("filters", [{}, {"batch": "b"}], ids=["all", "of a batch"])
def test_four_times_as_many_runs_are_about_four_times_the_work(
    frame: str, filters: dict[str, Any]
) -> None:
    few, many = (steps(n, frame, filters, n * (frame != "tool_runs")) for n in (100, 400))
    assert many < 8 * max(few, 4)


@pytest.mark.parametrize("frame", ["runs", "turns", "messages"])
def test_the_newest_rows_of_a_large_store_are_no_more_work(
    frame: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_FIRST_RUNS", 10)
    few, many = (steps(n, frame, {"limit": 5}, 5) for n in (100, 400))
    assert many < 1.5 * max(few, 4)
