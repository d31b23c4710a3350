"""Records are read as they were written: conversations, requests, the search for a run."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from engine.laws import check_file, population
from made_records import Maker, crash, cut_after_a_result, plain_run, record_of, write

import nbagent
from nbagent.contracts import secrets
from nbagent.contracts.errors import StoreError, UsageError
from nbagent.contracts.messages import FilePart, ImagePart, Part, TextPart
from nbagent.contracts.records import RunRecord
from nbagent.providers.offline import call, script
from nbagent.session.stores import current_store
from nbagent.store import dataframes
from nbagent.store.rows import from_notebook_json, to_notebook_json
from nbagent.store.writer import Store


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
def test_stored_and_saved_records_equal_the_returned_one(tmp_path: Path, in_memory: bool) -> None:
    store = Store.memory() if in_memory else Store.open(tmp_path)
    records = [Maker(seed).run() for seed in range(80)]
    for record, events in records:
        write(store, events)
        assert store.load(record.id) == record
    if not in_memory:
        store.close()
        store = Store.open(tmp_path)
    for record, _ in records:
        assert store.load(record.id) == record
        saved = to_notebook_json(record)
        # What Jupyter does with an output's metadata.
        json.dumps(saved, ensure_ascii=False).encode()
        assert from_notebook_json(json.loads(json.dumps(saved))) == record
    check_file(store)
    store.close()


def test_a_response_is_put_on_the_disk_before_its_tool_begins_and_a_run_at_its_end() -> None:
    levels: list[int] = []

    def level() -> int:
        """How SQLite wrote last: 2 is FULL, with an fsync; 1 is NORMAL, without."""
        store: Any = current_store()
        return store.database._connection.execute("PRAGMA synchronous").fetchone()[0]

    def act() -> str:
        """Act on the world."""
        levels.append(level())
        return "done"

    model = script([call("act"), call("act"), "Done."])
    run = nbagent.Agent(model=model, tools=[act]).run("Go.")
    assert (run.ok, levels, level()) == (True, [2, 2], 2)


RUN = "a" * 16
NAMES = ("mother", "daughter", "daughter")


def family(store: Store) -> list[str]:
    """The ids of three runs, two of them of one name."""
    ids = [f"{n}{n + 1}" * 8 for n in range(3)]
    for n, (run_id, name) in enumerate(zip(ids, NAMES, strict=True)):
        write(store, plain_run(n, run_id=run_id, name=name))
    return ids


def test_run_is_found_by_last_name_and_the_only_start_of_its_id(
    store: Store,
) -> None:
    for ref in ("last", ""):
        with pytest.raises(UsageError, match=f"no run is called '{ref}'"):
            store.find(ref)
    ids = family(store)
    assert store.find("last") == store.last_run() == ids[2]
    assert store.find("mother") == ids[0]
    assert store.find("daughter") == ids[2]
    assert store.find(ids[1]) == ids[1]
    assert store.find(ids[1][:9]) == ids[1]
    assert store.last_run("another session") is None
    for run_id, name in (("f" * 16, "ab"), ("ab" * 8, None)):
        write(store, plain_run(0, run_id=run_id, name=name))
    assert store.find("ab") == "f" * 16
    with pytest.raises(UsageError, match="no run is called 'father'"):
        store.find("father")
    for run_id in ("abc1" * 4, "abc2" * 4):
        write(store, plain_run(0, run_id=run_id))
    with pytest.raises(UsageError, match=r"abc2abc2abc2abc2, abc1abc1abc1abc1"):
        store.find("abc")


def test_conversation_without_its_parent_is_an_error(store: Store) -> None:
    write(store, plain_run(1, run_id="d" * 16, parent_id="e" * 16, shared_messages=2))
    with pytest.raises(StoreError, match="not in this store"):
        store.conversation("d" * 16)


def test_runs_are_listed_newest_first_as_their_summaries(store: Store) -> None:
    ids = family(store)
    assert store.runs() == [store.load(run_id).summary() for run_id in ids[::-1]]
    assert [run.id for run in store.runs(limit=1)] == ids[2:]
    assert [len(run.text) for run in store.runs()] == [400, 400, 0]


def test_summary_of_a_stored_run_equals_that_of_its_record(store: Store) -> None:
    records: list[RunRecord] = []
    for seed in range(60):
        record, events = Maker(seed).run()
        write(store, events)
        records.append(record)
    at_work = cut_after_a_result(plain_run(3, run_id=RUN))
    write(store, at_work)
    records.append(store.load(RUN))
    assert (records[-1].phase, len(records[-1].turns)) == ("Running", 3)
    ids = [record.id for record in records]
    assert store.summaries([ids[3], "none", *ids]) == [
        records[3].summary(),
        *(record.summary() for record in records),
    ]
    assert store.summaries([]) == []


def test_secret_is_in_no_byte_of_the_folder(tmp_path: Path) -> None:
    key = "sk-store-0123456789abcdef"
    secrets.register_secret(key)
    with contextlib.closing(Store.open(tmp_path)) as store:
        write(store, plain_run(2, run_id=RUN, text=f"the key is {key}.", prompt=f"use {key}"))
        record = store.load(RUN)
        assert (record.turns[0].text, record.prompt) == ("the key is [redacted].", "use [redacted]")
        written = [path.read_bytes() for path in tmp_path.iterdir()]
    written += [path.read_bytes() for path in tmp_path.iterdir()]
    assert not any(key.encode() in data for data in written)


def test_bytes_per_turn_do_not_grow_with_the_run(tmp_path: Path) -> None:
    Store.open(tmp_path / "empty").close()
    empty = (tmp_path / "empty" / "runs.sqlite").stat().st_size
    per_turn: dict[int, float] = {}
    for n_turns in (20, 100):
        store = Store.open(tmp_path / str(n_turns))
        write(store, plain_run(n_turns, run_id="a" * 16, text="word " * 800))
        assert store.counts()["messages"] == 2 * n_turns + 1
        store.close()
        size = (tmp_path / str(n_turns) / "runs.sqlite").stat().st_size
        per_turn[n_turns] = (size - empty) / n_turns
    assert per_turn[100] < 1.3 * per_turn[20]
    # A turn has 4 kB of answer and 4 kB of result: each is there once.
    assert per_turn[100] < 2 * 4000 * 1.6


def test_prompt_and_toolset_are_stored_once_and_an_ended_run_has_no_open_turn(store: Store) -> None:
    for run_id in ("a" * 16, "b" * 16):
        write(store, plain_run(5, run_id=run_id))
    with store.reading() as connection:
        assert connection.execute("SELECT count(*) FROM texts").fetchone()[0] == 2
        assert connection.execute("SELECT count(*) FROM open").fetchone()[0] == 0


# Pictures

SMALL = ImagePart(data="aGVsbG8gcGljdHVyZQ==", alt="a chart")
FILE = FilePart(name="a.csv", media_type="text/csv", data="YSxi")
MARK = "bWFyay1vZi1hLXBpY3R1cmU="
LARGE = ImagePart(data=MARK + "A" * 1_333_336, alt="a large chart")


def times_kept(home: Path, mark: str = MARK) -> int:
    """How often the mark stands in the closed file."""
    return (home / "runs.sqlite").read_bytes().count(mark.encode())


def test_kernel_that_ends_after_a_result_keeps_its_picture_once(home: Path) -> None:
    events = plain_run(2, run_id=RUN, text="seen", attachments=(LARGE,))
    crash(home, cut_after_a_result(events))
    assert times_kept(home) == 2  # one of each of two turns
    with contextlib.closing(Store.open(home)) as store:
        before = store.load(RUN)
        assert before.messages[-1].content[1:] == (LARGE,)
        assert store.load(RUN) == before
        assert store.conversation(RUN) == before.messages
    assert times_kept(home) == 2


@pytest.mark.parametrize(
    "attachments",
    [(TextPart(text="a note"), SMALL), (SMALL, TextPart(text="")), (TextPart(text="\ud83d"),)],
    ids=["text first", "empty text", "half a character"],
)
def test_text_among_the_attachments_stays_a_part_of_the_message(
    store: Store, attachments: tuple[Part, ...]
) -> None:
    events = plain_run(2, run_id=RUN, text="seen", attachments=attachments)
    write(store, events)
    record = store.load(RUN)
    assert record == record_of(events)
    shown = [message.text.encode(errors="replace").decode() for message in record.messages]
    assert dataframes.read_frame([store], "messages", {})["text"].tolist()[1:] == shown


# In the metadata of a saved notebook


def chart(year: int) -> list[Any]:
    """A chart and what it says."""
    return [{"year": year, "said": "a text that occurs only in the result"}, LARGE]


ANSWER = "So: a text of the answer."


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
    text = json.dumps(to_notebook_json(record))
    assert text.count(ANSWER) == 1
    assert text.count(MARK) == text.count("a text that occurs only in the result") == 2
    assert len(text) < 2 * 1_333_336 + 20_000
    back = from_notebook_json(json.loads(text))
    assert back == record
    assert back.model_dump() == record.model_dump()


def test_a_result_that_the_model_was_given_otherwise_is_kept_as_it_is() -> None:
    record = pictured()
    messages = list(record.messages)
    answers = [i for i, message in enumerate(messages) if message.role == "tool"]
    for place, content in zip(answers, ((), messages[answers[1]].content * 2), strict=False):
        messages[place] = messages[place].model_copy(update={"content": content})
    changed = record.model_copy(update={"messages": tuple(messages)})
    assert from_notebook_json(json.loads(json.dumps(to_notebook_json(changed)))) == changed
    # A run that was stopped may end before its results are said.
    short = record.model_copy(update={"messages": record.messages[:2]})
    assert from_notebook_json(json.loads(json.dumps(to_notebook_json(short)))) == short


ODD: dict[str, tuple[str, int, dict[str, Any]]] = {
    "no place": ("turns", 0, {"message_at": 99}),
    "no tool run": ("messages", 2, {"call": 99}),
    "another kind of row": ("tool_runs", 0, {"turn": []}),
    "a time far away": ("runs", 0, {"started_at": 10**30}),
    "no text": ("runs", 0, {"prompt": 7}),
    "no object": ("tool_runs", 0, {"result": "x"}),
}


def test_what_is_no_record_is_refused() -> None:
    plain = to_notebook_json(pictured())
    broken: list[Any] = [None, 1, "x", [], {}, {"escaped": 1}, {"escaped": "{}"}]
    changes: list[dict[str, Any]] = [{"version": 1}, {"runs": []}, {"turns": 1}, {"messages": [1]}]
    broken += [{**plain, **change} for change in changes]
    for table, place, change in ODD.values():
        rows = [row | (change if i == place else {}) for i, row in enumerate(plain[table])]
        broken.append({**plain, table: rows})
    for found in broken:
        with pytest.raises(ValueError):
            from_notebook_json(found)
