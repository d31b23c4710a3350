"""A record in the metadata of a saved notebook gives the same record back, each message once."""

from __future__ import annotations

import json
from typing import Any

import nbagent
from nbagent.contracts.records import packed, unpacked


def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


def lookup(key: dict[str, Any]) -> dict[str, Any]:
    """Give the key back."""
    return {"key": key, "missing": None}


def run_of(*steps: Any) -> nbagent.Run:
    script = nbagent.offline.script(list(steps))
    return nbagent.Agent(model=script, tools=[population, lookup]).run("How many?")


def test_a_packed_record_gives_the_same_record_back() -> None:
    call = nbagent.offline.call("population", city="Oslo")
    empty = nbagent.offline.call("lookup", key={"nothing": None})
    record = run_of(call, empty, nbagent.offline.error("LLM_HTTP_ERROR", "gone")).record
    assert record.phase == "Failed"
    assert unpacked(json.loads(json.dumps(packed(record)))) == record


def test_a_packed_record_holds_each_message_once() -> None:
    text = "a text that occurs only in the answer"
    record = run_of(nbagent.offline.call("population", city="Oslo"), text).record
    assert json.dumps(packed(record)).count(text) == 1


def test_the_record_of_a_loaded_run_packs_as_well() -> None:
    run = run_of("short")
    loaded = nbagent.open_run(run.id).record
    assert unpacked(packed(loaded)) == run.record
