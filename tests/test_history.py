"""The history of runs as DataFrames: every run, turn, call and message, joinable."""

from __future__ import annotations

from typing import Any

import pytest
from engine.laws import column

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.providers.offline import call, calls, error, script


def look(place: str) -> str:
    """Look at a place."""
    if place == "nowhere":
        raise ValueError("nothing there")
    return f"seen {place}"


def test_frames_show_what_the_records_hold() -> None:
    asked = calls([call("look", place="a"), call("look", place="nowhere")])
    model = script([asked, "Done.", "More.", error("LLM_TIMEOUT", "too slow")])
    first = nbagent.Agent(model=model, tools=[look]).run("Go.", session="s")
    second = first.resume("On.")
    third = second.resume("And on.")
    records = [run.record for run in (first, second, third)]
    runs = nbagent.runs()
    assert column(runs, "run_id") == [r.id for r in records]
    assert column(runs, "parent_id")[1:] == [first.id, second.id]
    assert column(runs, "phase") == [r.phase for r in records]
    assert column(runs, "stop_reason") == ["answered", "answered", "error"]
    assert column(runs, "error_code")[2] == "LLM_TIMEOUT"
    assert column(runs, "total_tokens") == [r.usage.total_tokens for r in records]
    turns = nbagent.turns()
    assert column(turns, "turn_id") == ["C01", "C02", "C03", "C04"]
    assert len(turns) == sum(len(r.turns) for r in records), "one row per turn"
    tool_runs = nbagent.tool_runs()
    assert column(tool_runs, "tool_name") == ["look", "look"]
    joined: Any = tool_runs.merge(turns, on=["run_id", "turn_id"]).merge(runs, on="run_id")
    assert len(joined) == 2
    messages = nbagent.messages()
    assert column(messages, "role") == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "assistant",
        "user",
    ]


def test_a_run_that_was_stopped_or_failed_has_its_rows_too() -> None:
    run = nbagent.Agent(model=script([error("LLM_AUTH_FAILED")])).run("Go.")
    assert column(nbagent.runs(run_id=run.id), "phase") == ["Failed"]
    assert column(nbagent.turns(run_id=run.id), "stop_reason") == ["error"]


@pytest.mark.parametrize("frame", ["runs", "turns", "tool_runs", "messages"])
def test_a_frame_has_the_same_columns_and_types_without_rows(frame: str) -> None:
    make = getattr(nbagent, frame)
    empty = make()
    assert len(empty) == 0
    nbagent.Agent(model=script([call("look", place="a"), "Done."]), tools=[look]).run("Go.")
    full = make()
    assert len(full) > 0
    assert list(full.dtypes.astype(str)) == list(empty.dtypes.astype(str))
    assert list(full.columns) == list(empty.columns)


@pytest.mark.parametrize("frame", ["runs", "turns", "tool_runs", "messages"])
def test_an_unknown_filter_is_an_error_that_names_the_nearest(frame: str) -> None:
    with pytest.raises(UsageError, match="run_id"):
        getattr(nbagent, frame)(runid="x")
