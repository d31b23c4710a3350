"""A picture's bytes are stored once: with its tool run, or with the message that brought it."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import crash, cut_after_a_result, plain_run, record_of, write

from nbagent.archive import frames
from nbagent.archive.store import Store
from nbagent.contracts.chat import FilePart, ImagePart, Message, Part, TextPart
from nbagent.contracts.records import RunRecord

RUN = "a" * 16
SMALL = ImagePart(data="aGVsbG8gcGljdHVyZQ==", alt="a chart")
FILE = FilePart(name="a.csv", media_type="text/csv", data="YSxi")
MARK = "bWFyay1vZi1hLXBpY3R1cmU="
LARGE = ImagePart(data=MARK + "A" * 1_333_336, alt="a large chart")


def times_kept(home: Path, mark: str = MARK) -> int:
    """How often the mark stands in the closed file."""
    return (home / "runs.sqlite").read_bytes().count(mark.encode())


def shares_its_pictures(record: RunRecord) -> bool:
    """Whether every tool's message holds the very attachments of its tool run."""
    given = {it.tool_call_id: it.content[1:] for it in record.messages if it.role == "tool"}
    runs = [run for turn in record.turns for run in turn.tool_runs if run.result]
    return bool(runs) and all(
        part is kept
        for run in runs
        if run.result
        for part, kept in zip(given[run.tool_call_id], run.result.attachments, strict=True)
    )


def test_picture_that_a_tool_gave_back_is_in_the_file_once(home: Path) -> None:
    events = plain_run(1, run_id=RUN, text="seen", attachments=(LARGE, FILE))
    crash(home, events)
    assert times_kept(home) == 1
    assert times_kept(home, '"1 seen"') == 1  # what it said beside the picture
    assert (home / "runs.sqlite").stat().st_size < 1_333_336 + 100_000
    with contextlib.closing(Store.open(home)) as store:
        record = store.load(RUN)
        assert record == record_of(events)
        assert store.conversation(RUN) == record.messages
        assert shares_its_pictures(record)
        assert store.check() == []


def test_kernel_that_ends_after_a_result_keeps_its_picture_once(home: Path) -> None:
    events = plain_run(2, run_id=RUN, text="seen", attachments=(LARGE,))
    crash(home, cut_after_a_result(events))
    assert times_kept(home) == 2  # one of each of two turns
    with contextlib.closing(Store.open(home)) as store:
        before = store.load(RUN)
        assert before.messages[-1].content[1:] == (LARGE,)
        assert store.conversation(RUN) == before.messages
        assert store.load(RUN) == before
        assert store.conversation(RUN) == before.messages
        assert shares_its_pictures(store.load(RUN))
    assert times_kept(home) == 2


def test_run_that_goes_on_refers_to_the_pictures_before_it(home: Path) -> None:
    words = Message(role="user", content=(TextPart(text="What is this?"), LARGE))
    first = plain_run(1, run_id=RUN, text="seen", attachments=(LARGE,), messages=(words,))
    shared = record_of(first).messages
    second = plain_run(
        2, run_id="b" * 16, text="more", kind="continue", parent_id=RUN, shared_messages=len(shared)
    )
    fork = plain_run(
        1, run_id="c" * 16, text="other", kind="fork", parent_id=RUN, shared_messages=1, messages=()
    )
    crash(home, [*first, *second, *fork])
    assert times_kept(home) == 2  # the pasted one, and the tool's
    with contextlib.closing(Store.open(home)) as store:
        assert store.load(RUN).messages[0] == words
        assert store.conversation("b" * 16) == (*shared, *record_of(second).messages)
        assert store.conversation("c" * 16) == (words, *record_of(fork).messages)


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
    assert frames.read([store], "messages", {})["text"].tolist()[1:] == shown


def test_message_that_says_more_than_its_result_is_kept_as_it_is(store: Store) -> None:
    """A host may change what a model is given; nothing may be taken from the result then."""
    events = plain_run(1, run_id=RUN, text="seen", attachments=(SMALL,))
    record = record_of(events)
    answer = record.messages[-1]
    changed = answer.model_copy(update={"content": (*answer.content, SMALL)})
    final = record.model_copy(update={"messages": (*record.messages[:-1], changed)})
    added = replace(events[-2], messages=(record.messages[1], changed))  # pyright: ignore[reportCallIssue]
    write(store, [*events[:-2], added, replace(events[-1], run=final)])  # pyright: ignore[reportCallIssue]
    assert store.load(RUN) == final
