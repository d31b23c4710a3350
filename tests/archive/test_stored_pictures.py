"""A picture's bytes are stored once: with its tool run, or with the message that brought it."""

# pandas says little about the types of its own values.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from made_records import crash, cut_after_a_result, plain_run, record_of, write

from nbagent.archive import frames
from nbagent.archive.store import Store
from nbagent.contracts.chat import FilePart, ImagePart, Part, TextPart
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
