"""Questions of analysts: one line of pandas each, over a history with known answers."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from stories import Assembly, answer_with, tool_run, walked

import nbagent
from nbagent.contracts.errors import ErrorInfo, UsageError
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatResponse, Usage
from nbagent.contracts.records import ForkedFrom, RunRecord, ToolRun
from nbagent.session.stores import current_store
from nbagent.store.rows import to_notebook_json
from nbagent.store.writer import Store

MONDAY = datetime(2026, 3, 2, 9, tzinfo=UTC)
TUESDAY = MONDAY + timedelta(days=1)
GPT, CLAUDE = "openai:gpt-x", "anthropic:claude-x"
FIRST, SECOND, FAILED, FORK = "1" * 16, "2" * 16, "3" * 16, "4" * 16


def call(tool: str, args: dict[str, Any], value: Any, at_ms: float = 0, **fields: Any) -> ToolRun:
    """A call that took 100 ms; `value` is its data, or the code of its error."""
    failed = isinstance(value, str) and value.startswith("E_")
    outcome = ErrorInfo(value, "no such city") if failed else value  # pyright: ignore[reportArgumentType]
    made = tool_run(f"call_{at_ms:g}_{len(json.dumps(args))}", tool, args, outcome, 100)
    moment = MONDAY + timedelta(milliseconds=at_ms)
    return made.model_copy(update={"queued_at": moment, "started_at": moment, **fields})


def turn(text: str, *calls: ToolRun, tokens: int = 100, **fields: Any) -> dict[str, Any]:
    """Arguments for `Assembly.add_turn`: an answer with calls, and its cost."""
    usage = Usage.of(tokens, 10, cached=tokens // 2)
    base = {"model_ms": 500.0, "cost_usd": 0.5, "saved_usd": 0.125}
    return {
        **base,
        "response": ChatResponse(message=answer_with(text, calls), usage=usage),
        "runs": calls,
        **fields,
    }


def run(
    run_id: str,
    *turns: dict[str, Any],
    system: str = "Be brief.",
    params: Any = None,
    **fields: Any,
) -> RunRecord:
    """A run that ended: its turns put one after the other, with the sums over them."""
    ends = {name: fields.pop(name) for name in ("stop_reason", "error") if name in fields}
    base: dict[str, Any] = {"session": "geo", "model": GPT, "prompt": "Which is larger?"}
    base |= {"started_at": MONDAY, **fields}
    if "parent_id" not in base:
        base["messages"] = (Message.of("user", base["prompt"]),)
    common: Any = {"system": system, "params": params or {}, "started_at": base["started_at"]}
    made = Assembly(3 if "parent_id" in base else 1, id=run_id, **base)
    for it in turns:
        made.add_turn(**{**common, **it})
    costs = [it["cost_usd"] for it in turns if it["cost_usd"] is not None]
    return made.end(
        phase="Failed" if "error" in ends else "WaitingUser",
        cost_usd=sum(costs) if costs else None,
        n_unpriced=len(turns) - len(costs),
        ended_at=made.run.started_at + timedelta(seconds=2),
        duration_ms=2000.0,
        **ends,
    ).run


ASKED, EDITED = {"path": "@project/a.md", "text": "x"}, {"path": "@project/b.md", "text": "x"}
BY_PERSON: dict[str, Any] = {"approved_by": "person", "waited_ms": 1000.0}
RUNS = [
    run(
        FIRST,
        # Side by side: 100 ms each, 150 ms together.
        turn(
            "",
            call("population", {"city": "Oslo", "year": 2025}, 717_710),
            call("population", {"city": "Bergn"}, "E_TOOL_FAILED", 50),
        ),
        turn(
            "",
            call("population", {"year": 2025, "city": "Oslo"}, 717_710, 300),
            call("population", {"city": "Bergn"}, "E_TOOL_FAILED", 300),
        ),
        turn("Oslo."),
        name="oslo",
        tags=("a,b", "c"),
        template="Which of {{ cities }} is larger?",
    ),
    run(
        SECOND,
        turn(
            "",
            call("fs.write", EDITED, 1, approval="edited", asked_args=ASKED, **BY_PERSON),
            call("fs.write", ASKED, "E_DENIED", approval="denied", reason="not there", **BY_PERSON),
            call("fs.read", {"path": "@project/b.md"}, 1, approval="allowed", **BY_PERSON),
        ),
        turn("Written.", cost_usd=None, saved_usd=None),
        model=CLAUDE,
        started_at=TUESDAY,
        prompt="Write it down.",
    ),
    run(
        FAILED,
        turn(
            "Os",
            tokens=300,
            attempts=3,
            retry_wait_ms=1500.0,
            error=ErrorInfo("LLM_TIMEOUT", "it did not answer in 60 s"),
        ),
        stop_reason="error",
        error=ErrorInfo("LLM_TIMEOUT", "it did not answer in 60 s"),
        template="Which of {{ cities }} is larger?",
        started_at=TUESDAY,
    ),
    run(
        FORK,
        turn("Oslo, by far."),
        kind="fork",
        parent_id=FIRST,
        forked_from=ForkedFrom(turn_id="C03"),
        shared_messages=7,
        template="Which of {{ cities }} is larger, and why?",
        started_at=TUESDAY,
        system="Be exact.",
        params={"temperature": 0.5},
    ),
]


def notebook_of(*kept: Any) -> str:
    """A notebook with packed runs in the outputs of its cells."""
    cells: list[Any] = [{"cell_type": "markdown", "source": "# Geography"}]
    for it in kept:
        outputs = [{"output_type": "stream"}, {"metadata": {"nbagent": it}}]
        cells.append({"cell_type": "code", "outputs": outputs})
    # As Jupyter saves it.
    return json.dumps({"cells": cells, "nbformat": 4}, sort_keys=True)


def save_notebook(path: Path, records: list[RunRecord]) -> None:
    path.write_text(notebook_of(*map(to_notebook_json, records)))


def edited(table: str, column: str, value: object) -> str:
    """A notebook where somebody changed a cell of a run's first row."""
    kept = json.loads(json.dumps(to_notebook_json(RUNS[0])))
    kept[table][0][column] = value
    return notebook_of(kept)


@pytest.fixture
def history() -> Any:
    for record in RUNS:
        current_store().add(record)
    return nbagent


def test_which_tool_fails_most_and_with_what_and_which_calls_repeat(history: Any) -> None:
    names = ["tool_name", "error_code", "error"]
    found = history.tool_runs(ok=False).groupby(names, observed=True).size()
    assert found.to_dict() == {
        ("fs.write", "E_DENIED", "no such city"): 1,
        ("population", "E_TOOL_FAILED", "no such city"): 2,
    }
    found = history.tool_runs().groupby(["tool_name", "args_sha"], observed=True)["args"].agg(list)
    assert sorted(found[found.str.len() > 1]) == [
        ['{"city":"Bergn"}', '{"city":"Bergn"}'],
        ['{"city":"Oslo","year":2025}', '{"year":2025,"city":"Oslo"}'],
    ]


def test_time_in_model_in_tools_waiting_for_a_person_and_between_retries(history: Any) -> None:
    found = history.runs().set_index("run_id")
    parts = found[["model_ms", "tools_ms", "waited_ms", "retry_wait_ms"]].round(3)
    # What overlaps counts once.
    assert parts.loc[FIRST].tolist() == [1500.0, 250.0, 0.0, 0.0]
    assert parts.loc[SECOND].tolist() == [1000.0, 100.0, 1000.0, 0.0]
    assert parts.loc[FAILED].tolist() == [500.0, 0.0, 0.0, 1500.0]


def test_turns_to_an_answer_by_prompt_version(history: Any) -> None:
    texts = history.prompts(kind="template").set_index("sha")["text"]
    found = history.runs(ok=True).groupby("template_sha", observed=True)["turns"].mean()
    assert found.rename(texts).to_dict() == {
        "Which of {{ cities }} is larger?": 3,
        "Write it down.": 2,
        "Which of {{ cities }} is larger, and why?": 1,
    }


def test_what_changed_between_two_runs(history: Any) -> None:
    names = ["model", "params", "prompt", "system_sha", "template_sha", "toolset_sha"]
    df = history.runs(run_id=[FIRST, FORK])[names].astype("string").fillna("")
    assert df.columns[df.nunique() > 1].tolist() == ["params", "system_sha", "template_sha"]


def test_what_a_reviewer_decided_and_what_the_edit_changed(history: Any) -> None:
    df = history.tool_runs(approved_by="person")
    found = df[["tool_name", "approval", "reason"]].astype(object).fillna("").values.tolist()
    assert found == [
        ["fs.write", "edited", ""],
        ["fs.write", "denied", "not there"],
        ["fs.read", "allowed", ""],
    ]
    edits = nbagent.expand(nbagent.expand(df[df["edited"]], "asked_args"), "args")
    (edit,) = edits[["asked_args.path", "args.path"]].values.tolist()
    assert edit == ["@project/a.md", "@project/b.md"]


# The notebook, beside the store


def test_the_frames_of_a_notebook_are_those_of_the_store(history: Any, tmp_path: Path) -> None:
    shown = [*map(to_notebook_json, RUNS)]
    # A run and what its buttons made of it, one of them again, and a panel without runs.
    (tmp_path / "x.ipynb").write_text(notebook_of([shown[3], shown[0]], *shown[1:], shown[3], []))
    saved = nbagent.read_notebook(tmp_path / "x.ipynb")
    assert repr(saved) == "<SavedNotebook x.ipynb, runs: 4>"
    for name in ("runs", "turns", "tool_runs", "transitions", "messages", "prompts"):
        frames = [getattr(it, name)().convert_dtypes() for it in (saved, history)]
        keys = [it for it in ("run_id", "turn_id", "position", "sha") if it in frames[0]]
        one, other = (it.sort_values(keys).reset_index(drop=True) for it in frames)
        pd.testing.assert_frame_equal(one, other)
    save_notebook(tmp_path / "y.ipynb", [walked().run])
    moves = nbagent.read_notebook(tmp_path / "y.ipynb").transitions(accepted=True)
    assert moves[["from_node", "to_node"]].values.tolist() == [["select", "draft"]]
    whole = saved.messages(run=FORK, whole=True)
    assert whole["position"].tolist() == [-1, *range(8)]
    assert set(whole["run_id"]) == {FIRST, FORK}


def test_a_run_of_a_notebook_is_the_record_and_can_only_be_read(tmp_path: Path) -> None:
    save_notebook(tmp_path / "x.ipynb", RUNS)
    run = nbagent.read_notebook(tmp_path / "x.ipynb").open_run("oslo")
    assert run.record == RUNS[0]
    assert (run.text, run.request_of("C02").system_prompt) == ("Oslo.", "Be brief.")
    for act in (run.resume, lambda: run.resume("And?"), lambda: run.fork("C02"), run.forget):
        with pytest.raises(UsageError, match="was read from a notebook"):
            act()
    assert nbagent.runs().empty


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("{", ""),
        ('{"cells": 3}', ""),
        ('{"cells": [3]}', ""),
        (notebook_of({"id": 1}), "not a saved record"),
        (notebook_of({"version": 4}), "saved by a very old nbagent"),
        (notebook_of({"version": 99}), "saved by a newer nbagent .*upgrade nbagent"),
        (notebook_of([[]]), "not a saved record"),
        (edited("tool_runs", "tool_call_id", "x"), "record of a run is damaged"),
        (edited("turns", "n_messages", 10**30), "record of a run is damaged"),
    ],
    ids=[
        "missing",
        "no JSON",
        "no cells",
        "no cell",
        "no record",
        "very old",
        "newer",
        "a list in a list",
        "other call",
        "huge number",
    ],
)
def test_what_is_no_saved_notebook_is_one_clear_line(
    tmp_path: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (tmp_path / "x.ipynb").write_text(content)
    said = rf"x\.ipynb is not a notebook with valid records \(.*{said}"
    with pytest.raises(UsageError, match=said):
        nbagent.read_notebook(tmp_path / "x.ipynb")


@pytest.mark.parametrize("given", [5, "~nobody_x/y", [5]], ids=str)
def test_what_can_be_no_path_is_one_clear_line_at_each_door(given: Any) -> None:
    doors = {"path": [nbagent.read_notebook, nbagent.verify_audit], "store": [nbagent.runs]}
    for name, door in ((name, door) for name, several in doors.items() for door in several):
        with pytest.raises(UsageError, match="is not a path"):
            door(**{name: given})


def test_frames_of_other_stores(tmp_path: Path) -> None:
    for name, record in zip(("a", "b"), RUNS, strict=False):
        store = Store.open(tmp_path / name)
        store.add(record)
        store.close()
    assert nbagent.runs(store=tmp_path / "a")["run_id"].tolist() == [FIRST]
    both = [tmp_path / "b", str(tmp_path / "a" / "runs.sqlite")]
    assert nbagent.runs(store=both)["run_id"].tolist() == [SECOND, FIRST]
    assert len(nbagent.tool_runs(store=both, model=GPT)) == 4
    assert set(nbagent.messages(store=both, model=GPT, session="geo")["run_id"]) == {FIRST}
    (tmp_path / "link").symlink_to(tmp_path / "a")
    twice = [tmp_path / "a", tmp_path / "b" / ".." / "a", tmp_path / "link"]
    assert nbagent.runs(store=twice)["run_id"].tolist() == [FIRST]
    with pytest.raises(UsageError, match=r"there is no store at .*; give a folder"):
        nbagent.runs(store=tmp_path)
