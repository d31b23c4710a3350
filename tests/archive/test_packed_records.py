"""A record in the metadata of a saved notebook gives the same record back, each message once."""

from __future__ import annotations

import json
from typing import Any

import pytest

import nbagent
from nbagent.archive.codec import packed, unpacked
from nbagent.contracts.chat import ImagePart
from nbagent.contracts.records import RunRecord

ANSWER = "So: a text of the answer."
PICTURE = "bWFyay1vZi1hLXBpY3R1cmU="


def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


def chart(year: int) -> list[Any]:
    """A chart and what it says."""
    return [{"year": year, "said": "a text that occurs only in the result"}, PICTURES[0]]


PICTURES = [ImagePart(data=PICTURE + "A" * 1_333_336, alt="a chart")]


def pictured() -> RunRecord:
    """Two calls at once, one after, one that fails; two of the results have a picture."""
    call = nbagent.offline.call
    both = nbagent.offline.calls([call("chart", year=2020), call("population", city="Oslo")])
    steps = [both, call("chart", year=2**70), call("population", city="Rome"), ANSWER]
    record = nbagent.Agent(nbagent.offline.script(steps), tools=[population, chart]).run("?").record
    results = [run.result for turn in record.turns for run in turn.tool_runs]
    assert [len(it.attachments) for it in results if it] == [1, 0, 1, 0]
    assert [it.ok for it in results if it] == [True, True, True, False]
    return record


def test_a_packed_record_holds_each_result_and_its_pictures_once() -> None:
    record = pictured()
    text = json.dumps(packed(record))
    assert text.count(ANSWER) == 1
    assert text.count(PICTURE) == text.count("a text that occurs only in the result") == 2
    assert len(text) < 2 * 1_333_336 + 20_000
    back = unpacked(json.loads(text))
    assert back == record
    assert back.model_dump() == record.model_dump()


def test_a_result_that_the_model_was_given_otherwise_is_kept_as_it_is() -> None:
    record = pictured()
    messages = list(record.messages)
    answers = [i for i, message in enumerate(messages) if message.role == "tool"]
    for place, content in zip(answers, ((), messages[answers[1]].content * 2), strict=False):
        messages[place] = messages[place].model_copy(update={"content": content})
    changed = record.model_copy(update={"messages": tuple(messages)})
    assert unpacked(json.loads(json.dumps(packed(changed)))) == changed
    # A run that was stopped may end before its results are said.
    short = record.model_copy(update={"messages": record.messages[:2]})
    assert unpacked(json.loads(json.dumps(packed(short)))) == short


ODD: dict[str, tuple[str, int, dict[str, Any]]] = {
    "no place": ("turns", 0, {"message_at": 99}),
    "no tool run": ("messages", 2, {"call": 99}),
    "another kind of row": ("tool_runs", 0, {"turn": []}),
    "a time far away": ("runs", 0, {"started_at": 10**30}),
    "no text": ("runs", 0, {"prompt": 7}),
    "no object": ("tool_runs", 0, {"result": "x"}),
}


def test_what_is_no_record_is_refused() -> None:
    plain = packed(pictured())
    broken: list[Any] = [None, 1, "x", [], {}, {"escaped": 1}, {"escaped": "{}"}]
    changes: list[dict[str, Any]] = [{"version": 1}, {"runs": []}, {"turns": 1}, {"messages": [1]}]
    broken += [{**plain, **change} for change in changes]
    for table, place, change in ODD.values():
        rows = [row | (change if i == place else {}) for i, row in enumerate(plain[table])]
        broken.append({**plain, table: rows})
    for found in broken:
        with pytest.raises(ValueError):
            unpacked(found)
