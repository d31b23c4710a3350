"""Columns that follow from other rows: tokens sent again, depth in a chain, tool definitions."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from servers.model_server import ModelServer, Reply
from stories import NOW, Assembly, answer_with, tool_run

import nbagent
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatResponse, ToolSpec, ToolTraits, Usage
from nbagent.session.stores import current_store
from nbagent.store.writer import Store

frames: Any = nbagent

SEARCH = ToolSpec(name="search", description="Find it.", parameters={"type": "object"})
"""6 + 8 + 17 characters."""


def add(
    run_id: str,
    prompts: Sequence[int | None],
    *,
    first_turn: int = 1,
    tools: tuple[ToolSpec, ...] = (),
    store: Store | None = None,
    **fields: Any,
) -> None:
    """Store a run whose turns sent these numbers of tokens; None: the server reported none."""
    base: dict[str, Any] = {
        "session": "s",
        "prompt": "Go.",
        "messages": (Message.of("user", "Go."),),
    }
    started = NOW + timedelta(seconds=int(run_id[0], 16))
    made = Assembly(first_turn, id=run_id, started_at=started, **base, **fields)
    for i, tokens in enumerate(prompts):
        call = tool_run(f"{run_id[0]}{i}", "search", {"n": i}, "y" * i)
        usage = None if tokens is None else Usage.of(tokens, 10)
        response = ChatResponse(message=answer_with("", [call]), usage=usage)
        made.add_turn(
            response, [call], system="", params={}, tools=tools, started_at=started, model_ms=1.0
        )
    (store or current_store()).add(made.end().run)


A, B, C, D, E, LOST = ("a" * 16, "b" * 16, "c" * 16, "d" * 16, "e" * 16, "f" * 16)


@pytest.fixture
def chain() -> None:
    """Runs that continue each other: B and D continue A, C continues B, E a deleted run."""
    add(A, [100, 150, 120, None, 300], tools=(SEARCH,))
    add(B, [310, 320], first_turn=6, parent_id=A, kind="continue")
    add(C, [None, 400], first_turn=8, parent_id=B, kind="continue")
    # It repeats turn 3 of A, so only the first two of A were sent before.
    add(D, [160], first_turn=3, parent_id=A, kind="fork")
    add(E, [50], first_turn=9, parent_id=LOST, kind="continue")


def tokens(frame: Any, column: str) -> list[Any]:
    return frame[column].astype(object).where(frame[column].notna(), None).tolist()


def test_tokens_of_a_request_are_new_or_were_in_the_request_before(chain: None) -> None:
    turns = frames.turns()
    resent = [0, 100, 120, None, 120, 300, 310, None, 320, 150, 0]
    assert tokens(turns, "resent_tokens") == resent
    assert tokens(turns, "new_prompt_tokens") == [
        *(100, 50, 0, None, 180, 10, 10, None, 80),
        *(10, 50),
    ]


@pytest.mark.parametrize(
    "filters",
    [
        {"turn": [1, 3]},
        {"turn": [3, 5, 7, 9]},
        {"limit": 2},
        {"run_id": [C, D]},
        {"turn_id": "C03"},
        {"turn": (2, 2)},
    ],
    ids=str,
)
def test_tokens_do_not_depend_on_the_rows_that_a_filter_leaves(
    chain: None, filters: dict[str, Any]
) -> None:
    part, whole = frames.turns(**filters), frames.turns()
    expected = whole.merge(part[["run_id", "turn_id"]])
    pd.testing.assert_frame_equal(
        part[["resent_tokens", "new_prompt_tokens", "toolset_tokens_est"]],
        expected[["resent_tokens", "new_prompt_tokens", "toolset_tokens_est"]],
    )
    assert len(part) > 0


def test_derived_columns_are_filters_by_value_and_by_range(chain: None) -> None:
    for column in ("resent_tokens", "new_prompt_tokens", "toolset_tokens_est"):
        turns = frames.turns()
        for value in turns[column].unique():
            rows = turns[column].isna() if pd.isna(value) else turns[column] == value
            assert len(frames.turns(**{column: value})) == rows.sum() > 0, (column, value)
    assert tokens(frames.turns(resent_tokens=(150, 310)), "resent_tokens") == [300, 310, 150]
    assert frames.runs(depth=(1, None))["run_id"].tolist() == [B, C, D, E]


def test_depth_counts_the_runs_before_up_to_a_deleted_one(chain: None) -> None:
    assert dict(zip(frames.runs()["run_id"], frames.runs()["depth"], strict=True)) == {
        A: 0,
        **dict.fromkeys((B, D, E), 1),
        C: 2,
    }
    # Its ancestors are not in the frame.
    assert frames.runs(run=C)["depth"].tolist() == [2]
    assert frames.runs(depth=2)["run_id"].tolist() == [C]


def test_a_long_chain_of_runs_is_read_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    ids = [f"{i:016x}" for i in range(60)]
    for i, run_id in enumerate(ids):
        add(run_id, [i + 1], first_turn=i + 1, parent_id=ids[i - 1] if i else None, store=store)
    assert frames.runs(store=tmp_path).set_index("run_id")["depth"][ids].tolist() == [*range(60)]
    turns: Any = frames.turns(store=tmp_path).set_index("run_id")
    assert turns["resent_tokens"][ids].tolist() == [*range(60)]
    store.close()


def test_depth_of_a_run_in_a_strangers_store_that_is_its_own_ancestor_ends(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    add(A, [1], parent_id=A, kind="continue", store=store)
    assert frames.runs(store=tmp_path)["depth"].tolist() == [1]
    assert frames.turns(store=tmp_path)["resent_tokens"].tolist() == [0]
    store.close()


def test_tool_definitions_are_estimated_at_four_characters_a_token(chain: None) -> None:
    turns = frames.turns(run=A)
    assert turns["toolset_tokens_est"].tolist() == [8] * 5
    assert frames.turns(run=B)["toolset_tokens_est"].tolist() == [0, 0]
    results = frames.tool_runs(run=A)
    assert results["result_tokens_est"].tolist() == [
        -(-chars // 4) for chars in results["result_chars"]
    ]


def test_the_definition_of_a_tool_is_found_by_its_hash(tmp_path: Path) -> None:
    @nbagent.tool
    def half(n: int) -> float:
        """Halve a number."""
        return n / 2

    @nbagent.tool
    def whole(n: int) -> int:
        """Do nothing."""
        return n

    script = nbagent.offline.script([nbagent.offline.call("half", n=3), "1.5", "Fine."])
    nbagent.Agent(script, tools=[half, whole]).run("Halve 3.")
    nbagent.Agent(script, tools=[half]).run("And?")
    tools: Any = frames.prompts(kind="tool").set_index("sha")
    assert sorted(tools["runs"]) == [1, 2]
    (call,) = frames.tool_runs().join(tools, on="tool_sha").to_dict("records")
    definition = json.loads(call["text"])
    assert definition["name"] == "half"
    assert definition["description"] == "Halve a number."
    assert definition["parameters"]["properties"]["n"]["type"] == "integer"
    assert call["runs"] == 2
    assert call["first_seen"] == frames.runs()["started_at"].min()
    assert frames.prompts(limit=1)["last_seen"].tolist() == [frames.runs()["started_at"].max()]
    nbagent.forget(frames.runs()["run_id"][0])
    assert frames.prompts(kind="tool")["runs"].tolist() == [1]


def test_hostile_hashes_of_tools_are_no_rows(chain: None) -> None:
    hostile = ToolSpec(name="x", traits=ToolTraits(sha="half \ud83d"))
    add("9" * 16, [1], tools=(hostile, SEARCH))
    assert frames.prompts(kind="tool").empty
    assert frames.turns(run="9")["toolset_tokens_est"].tolist() == [17]


STATUSES: dict[str, tuple[list[int | None], str | None]] = {
    "answered at once": ([None], None),
    "answered after two": ([429, 503, None], "429,503"),
    "never answered": ([500, 502, 503, 503], "500,502,503"),
    "final at once": ([401], "401"),
}


@pytest.mark.parametrize(("replies", "statuses"), STATUSES.values(), ids=list(STATUSES))
def test_a_turn_names_the_status_of_each_failed_attempt(
    replies: list[int | None], statuses: str | None
) -> None:
    steps = [
        Reply("Fine.")
        if status is None
        else Reply(
            status=status, error={"error": {"message": "busy"}}, headers={"Retry-After": "0"}
        )
        for status in replies
    ]
    with ModelServer(steps) as server:
        agent = nbagent.Agent("openai:m", base_url=server.url, retries=2, tools="none")
        run = agent.run("Hello.")
    assert run.turns[0].attempt_statuses == (statuses or "")
    assert tokens(frames.turns(run="last"), "attempt_statuses") == [statuses]
    assert frames.turns(run="last", attempt_statuses=statuses).shape[0] == 1
    assert nbagent.open_run("last").record == run.record
