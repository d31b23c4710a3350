"""Forgetting a run: its texts leave the files and the frames; others stay whole."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_file

import nbagent
from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import RunStarted
from nbagent.contracts.messages import ImagePart, Message
from nbagent.providers.offline import call, delay, error, reasoning, script
from nbagent.session.stores import close_stores, current_store
from nbagent.store.writer import Store

MARKS = {
    name: f"forgetme-{name}-5d1c"
    for name in (
        *("prompt", "system", "docs", "argument", "result", "failure", "reasoning", "answer"),
        *("name", "tag", "error", "image"),
    )
}


def look(where: str) -> Any:
    """Look; see forgetme-docs-5d1c."""
    if where == "nowhere":
        raise ValueError(MARKS["failure"] * 300)
    return [MARKS["result"] * 500, ImagePart(data=MARKS["image"] * 9_000, alt="a chart")]


def a_run(**options: Any) -> nbagent.Run:
    answers = script(
        [
            call("look", where=MARKS["argument"]),
            call("look", where="nowhere"),
            reasoning(MARKS["reasoning"], MARKS["answer"]),
        ]
    )
    agent = nbagent.Agent(model=answers, tools=[look], system=MARKS["system"])
    pasted = Message(role="user", content=(ImagePart(data=MARKS["image"] * 9_000),))
    options = {"name": MARKS["name"], "tags": (MARKS["tag"],), "messages": [pasted], **options}
    return agent.run(MARKS["prompt"], **options)


def kept() -> set[str]:
    """The marks that are in any file of the store's folder."""
    files = [file for file in Path(os.environ["NBAGENT_HOME"]).rglob("*") if file.is_file()]
    blob = b"".join(file.read_bytes() for file in files)
    return {name for name, mark in MARKS.items() if mark.encode() in blob}


def test_a_forgotten_run_leaves_no_text_and_no_picture_in_any_file() -> None:
    run = a_run()
    assert run.ok
    assert kept() == set(MARKS) - {"error"}
    assert nbagent.forget(run) == (run.id,)
    assert kept() == set()
    frames: list[Any] = [nbagent.runs(), nbagent.turns(), nbagent.tool_runs(), nbagent.messages()]
    assert all(frame.empty for frame in frames)
    check_file(current_store())
    failed = nbagent.Agent(model=script([error("LLM_HTTP_ERROR", MARKS["error"])])).run("Hello")
    assert (failed.phase, "error" in kept()) == ("Failed", True)
    nbagent.forget(failed.id[:8])
    close_stores()
    assert kept() == set()


def test_last_is_no_other_run_after_the_last_one_was_forgotten() -> None:
    older = a_run()
    run = a_run()
    nbagent.forget("last")
    for _ in range(2):
        with pytest.raises(UsageError, match="no run is called"):
            nbagent.forget("last")
    for use in (lambda: run.resume("More"), lambda: run.request_of("C01")):
        with pytest.raises(UsageError, match=f"there is no run '{run.id}'"):
            use()
    for empty in ("", "  ", "\n"):
        with pytest.raises(UsageError, match="no run is called"):
            nbagent.forget(empty)
    assert nbagent.runs(run_id=older.id).shape[0] == len(nbagent.runs()) == 1
    a_run()
    assert nbagent.forget("last") != (older.id,)


def test_other_runs_keep_every_text_and_what_they_share() -> None:
    model = script(["One.", "Two."])
    other = nbagent.Agent(model=model, tools=[look], system=MARKS["system"]).run("Hello")
    before = nbagent.open_run(other.id).record
    nbagent.forget(a_run())
    assert kept() == {"system", "docs"}
    assert nbagent.open_run(other.id).record == before
    request = nbagent.open_run(other.id).request_of("C01")
    assert (MARKS["system"] in request.system_prompt, len(request.tools)) == (True, 1)
    assert nbagent.forget(other) == (other.id,)
    assert kept() == set()


def test_run_that_others_go_on_from_is_forgotten_only_together_with_them() -> None:
    first = a_run()
    second = first.resume("More", model=script(["More."]))
    third = second.fork(second.turns[0].id, model=script(["More."]))
    with pytest.raises(UsageError, match=r"other runs continue run .* children=True"):
        nbagent.forget(first)
    assert nbagent.open_run(first.id).record == first.record
    assert nbagent.forget(third) == (third.id,)
    assert nbagent.forget(first.id, children=True) == (first.id, second.id)
    assert nbagent.runs().empty
    assert kept() == set()


def test_a_run_at_work_here_or_in_another_kernel_is_not_forgotten_and_an_abandoned_one_is() -> None:
    run = nbagent.Agent(model=script([delay(5), "late"])).start("Hello")
    with pytest.raises(UsageError, match="is still at work; stop it"):
        nbagent.forget(run)
    run.stop()
    here = run.wait().record
    other = Store.open(Path(os.environ["NBAGENT_HOME"]))
    begun = {"phase": "Running", "stop_reason": None, "error": None, "ended_at": None}
    at_work = here.model_copy(update={"id": "f" * 16, **begun, "turns": (), "messages": ()})
    asyncio.run(other.commit(RunStarted(at_work)))
    with pytest.raises(UsageError, match="is still at work; stop it"):
        nbagent.forget(at_work.id)
    other.abandon(at_work.id)
    assert nbagent.forget(at_work.id) == (at_work.id,)
    other.close()
    assert nbagent.forget(run) == (run.id,)


def test_other_kernel_that_knew_a_forgotten_text_writes_it_again() -> None:
    agent = nbagent.Agent(model=script(["One.", "Two."]), tools=[look], system=MARKS["system"])
    run = agent.run("Hello")
    other = Store.open(Path(os.environ["NBAGENT_HOME"]))
    assert other.forget(run.id) == (run.id,)
    other.close()
    again = agent.run("Hello")
    close_stores()
    assert MARKS["system"] in nbagent.open_run(again.id).request_of("C01").system_prompt
    assert nbagent.open_run(again.id).record == again.record


def test_reader_that_keeps_deleted_texts_in_the_log_is_told_and_they_go_later() -> None:
    run = a_run()
    path = current_store().path
    assert path is not None
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchall()
        with pytest.warns(UserWarning, match="another program is reading the store"):
            nbagent.forget(run)
        assert kept()
    current_store().heartbeat()
    assert kept() == set()
