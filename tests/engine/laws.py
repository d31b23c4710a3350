"""The laws of DESIGN 5 as checks over a run, for every test that makes one,
and the tools of many of them: nobody marks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import nbagent
from nbagent.contracts.canonical import dump_json, load_json
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.records import RunRecord
from nbagent.providers.offline import Script
from nbagent.run import Run
from nbagent.session.stores import current_store
from nbagent.store.writer import Store


def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


def check_answered(messages: Sequence[Message]) -> None:
    """Law 1: each call has exactly one result, in order, before anything else is said."""
    waiting: list[str] = []
    for message in messages:
        if message.role == "tool":
            assert waiting, f"a result without a call: {message.tool_call_id}"
            assert message.tool_call_id == waiting.pop(0)
            assert message.name
            body: dict[str, Any] = load_json(message.text)
            for extra in ("trimmed", "note"):
                body.pop(extra, None)
            assert set(body) == ({"ok", "data"} if body["ok"] else {"ok", "error"})
            if not body["ok"]:
                assert set(body["error"]) <= {"code", "message", "details"}
            continue
        assert not waiting, f"calls without a result: {waiting}"
        waiting = [call.id for call in message.tool_calls]
        assert len(set(waiting)) == len(waiting)
    assert not waiting, f"calls without a result: {waiting}"


def encoded(request: ChatRequest) -> bytes:
    """The messages of a request as bytes, without the closing bracket."""
    return dump_json([m.model_dump(mode="json") for m in request.messages])[:-1]


def check_sent(requests: Sequence[ChatRequest], *, one_system: bool = True) -> None:
    """Every request keeps law 1 and extends the one before it, byte by byte.

    The system prompt is one and the same but in a workflow, whose agents change.
    """
    for request in requests:
        check_answered(request.messages)
    for earlier, later in pairwise(requests):
        assert encoded(later).startswith(encoded(earlier))
        assert not one_system or later.system_prompt == earlier.system_prompt


def check_file(store: Store) -> None:
    """SQLite finds nothing wrong with the file of a store."""
    with store.reading() as c:
        assert [row[0] for row in c.execute("PRAGMA integrity_check")] == ["ok"]


def check_record(record: RunRecord) -> None:
    """A record agrees with itself."""
    assert record.phase != "Running"
    assert record.stop_reason is not None
    assert record.ended_at is not None
    assert (record.error is not None) >= (record.phase == "Failed")
    for earlier, later in pairwise(record.turns):
        assert later.index == earlier.index + 1
        assert earlier.phase_after == "Running"
    for turn in record.turns:
        calls = turn.response.message.tool_calls if turn.response else ()
        assert [run.tool_call_id for run in turn.tool_runs] == [call.id for call in calls]
        assert all(run.result is not None for run in turn.tool_runs)


def check_run(run: Run, model: Script | None = None, *, whole_store: bool = True) -> Run:
    """All laws that a run which ended must keep; returns it."""
    check_record(run.record)
    check_answered(run.messages)
    stored = nbagent.open_run(run.id)
    assert stored.record == run.record
    assert stored.messages == run.messages
    if whole_store:
        check_file(current_store())
    for turn in run.turns:
        check_answered(run.request_of(turn.id).messages)
    if model is not None:
        check_sent(model.requests, one_system=run.record.workflow is None)
        sent = model.requests[-len(run.turns) :] if run.turns else []
        assert [run.request_of(turn.id) for turn in run.turns] == sent
    return run


def results(run: Run) -> list[dict[str, Any]]:
    """Results that the model got, in the order of the calls."""
    return [load_json(m.text) for m in run.messages if m.role == "tool"]


def codes(run: Run) -> list[str | None]:
    """The error code of each tool run, None where it went well."""
    found = [tool_run.result for turn in run.turns for tool_run in turn.tool_runs]
    return [result.error.code if result and result.error else None for result in found]


def column(frame: object, name: str) -> list[Any]:
    """A column of a frame as a list; pandas has no whole types."""
    untyped: Any = frame
    return untyped[name].tolist()


def fill_disk() -> None:
    """Let the store's file grow no more, as on a full disk."""
    store: Any = current_store()
    store.database._connection.execute("PRAGMA max_page_count = 1")


def error_code(run: Run) -> str | None:
    """The code of what ended or paused the run."""
    return run.error.code if run.error else None
