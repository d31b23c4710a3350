"""`--replay-tools`: results from the record instead of runs, found by name, arguments and time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_run
from servers.model_server import ModelServer, Reply

import nbagent
from nbagent.providers.offline import call, calls, script
from nbagent.testing import tool_runs_of

done: list[str] = []


@nbagent.tool
def roll(sides: int, label: str = "") -> dict[str, Any]:
    """Roll a die."""
    done.append(f"roll {sides}")
    if sides < 1:
        raise ValueError("no such die")
    return {"rolled": len(done), "note": None}


@nbagent.tool(ask=True)
def delete(path: str) -> str:
    """Delete a file."""
    done.append(f"delete {path}")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    done.clear()
    return tmp_path / "answers.jsonl"


def ran(file: Path | None, *steps: Any, answer: Any = None, **options: Any) -> nbagent.Run:
    model = script([*steps, "Done."])
    given: dict[str, Any] = {"tools": [roll, delete], "quiet": True, "replay_tools": True}
    given |= {"cassette": str(file)} if file else {}
    agent = nbagent.Agent(model=model, on_approval=answer, **{**given, **options})
    return check_run(agent.run("Go."), model)


def results(run: nbagent.Run) -> list[Any]:
    return [one.result.body for one in tool_runs_of(run) if one.result]


SIX = call("roll", sides=6)
STEPS = (
    calls([SIX, SIX, call("roll", sides=20)]),
    call("roll", sides=0),
    call("roll", sides="many"),
    call("delete", path="a"),
    call("delete", path="a"),
)


def test_what_is_recorded_is_not_run_again_nor_asked_about(file: Path) -> None:
    def agree(question: nbagent.Question) -> bool:
        return True

    first = ran(file, *STEPS, answer=agree)
    assert len(done) == 6
    for mode in "replay", "auto":
        again = ran(file, *STEPS, cache=mode)
        assert len(done) == 6, "nothing was run"
        assert results(again) == results(first)
        notes = {one.notes for one in tool_runs_of(again)}
        assert notes == {("from answers.jsonl; the tool was not run",)}
        assert [one.approval for one in tool_runs_of(again)] == [None] * 7
    rows: Any = nbagent.tool_runs(run=again.id)
    assert "not run" in rows["notes"].iloc[0]
    nbagent.configure(deny="roll(sides=6)")
    assert results(ran(file, SIX))[0]["error"]["code"] == "E_DENIED", "rules hold"


def test_the_order_of_names_does_not_count_and_the_time_does(file: Path) -> None:
    ran(file, call("roll", {"sides": 6, "label": "a"}))
    again = call("roll", {"label": "a", "sides": 6})
    assert [body["data"]["rolled"] for body in results(ran(file, again, again))] == [1, 2]
    assert done == ["roll 6", "roll 6"], "the second one was not recorded yet, and is now"
    other = call("roll", sides=7)
    *good, third, missing = results(ran(file, again, again, again, other, cache="replay"))
    assert [body["ok"] for body in good] == [True, True]
    assert third["error"]["code"] == missing["error"]["code"] == "E_PRECONDITION_FAILED"
    assert "no result number 3 of roll" in third["error"]["message"]
    assert "answers.jsonl holds no result number 1 of roll" in missing["error"]["message"]
    assert len(done) == 2


def test_refresh_runs_again_and_records_anew(file: Path) -> None:
    ran(file, SIX)
    ran(file, SIX, cache="refresh")
    (line,) = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert (line["tool"], line["n"], line["result"]["data"]["rolled"]) == ("roll", 1, 2)


def test_the_cache_serves_results_and_without_a_record_it_is_an_error(file: Path) -> None:
    ran(None, SIX, cache="auto")
    assert results(ran(None, SIX, cache="replay"))[0]["data"]["rolled"] == 1
    with pytest.raises(nbagent.UsageError, match="replay_tools needs a record"):
        ran(None, SIX)
    ran(file, SIX, replay_tools=False)
    assert done == ["roll 6", "roll 6"]
    assert not file.exists(), "results are recorded only where they are asked for"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"ok":true', '"ok":"perhaps"', "is no recorded answer"),
        ('"n":1', '"n":"x"', "it does not begin with a key"),
        ('"rolled":1', '"rolled":1e999', "nested too deeply, or an infinite number"),
    ],
)
def test_a_strangers_line_is_checked(file: Path, old: str, new: str, said: str) -> None:
    ran(file, SIX)
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
    error = results(ran(file, SIX, cache="replay"))[0]["error"]
    assert (error["code"], said in error["message"]) == ("E_PRECONDITION_FAILED", True)


def test_a_whole_run_is_played_from_the_record_without_server_and_tool(file: Path) -> None:
    with ModelServer([Reply(calls=[("roll", {"sides": 6})]), "A one."]) as server:
        given: dict[str, Any] = {"model": "openai:little", "base_url": server.url, "quiet": True}
        given |= {"tools": [roll], "cassette": str(file), "replay_tools": True}
        first = nbagent.Agent(**given).run("Roll a die.")
        agent = nbagent.Agent(**given, cache="replay")
        again = agent.run("Roll a die.")
        assert (len(server.bodies), done) == (2, ["roll 6"])
        assert again.text == first.text == "A one."
        assert results(again) == results(first)
        assert "differs" in str(agent.run("Roll two dice.").error), "results are no requests"
