"""Runs whose kernel is gone: what they read as, and that one kernel alone takes them over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from made_records import START, Maker, plain_run

from nbagent.archive.interrupted import TOOL_INTERRUPTED, TOOL_NOT_STARTED
from nbagent.archive.lease import Lease
from nbagent.archive.store import Store
from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import (
    Event,
    ResponseReceived,
    ToolCallFinished,
    TurnFinished,
)
from nbagent.contracts.records import RunRecord, ToolResult

RUN = "a" * 16


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / ".nbagent"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    opened = Store.open(home)
    yield opened
    opened.close()


def crash(home: Path, events: Sequence[Event]) -> None:
    """Write events in a store whose process then is gone: its lease is given back."""
    store = Store.open(home)
    for event in events:
        store.write(event)
    store.close()


def one_of_each(turn_of_seed: int = 3) -> list[Event]:
    """A run up to the first of three parallel calls that finishes; the third has not started."""
    maker = Maker(turn_of_seed)
    while True:
        _, events = maker.run(id=RUN, n_turns=3)
        for i, event in enumerate(events):
            if isinstance(event, ResponseReceived) and len(event.message.tool_calls) == 3:
                runs = tuple(
                    maker.tool_run(call).model_copy(update={"result": None})
                    for call in event.message.tool_calls[:2]
                )
                opened = event.turn.model_copy(update={"tool_runs": runs})
                done = runs[0].model_copy(update={"result": ToolResult(ok=True, data=[1, "é"])})
                start = replace(event, turn=opened)
                return [*events[:i], start, ToolCallFinished(RUN, opened.id, done, 1)]


def check_laws(record: RunRecord) -> None:
    """Every call has one tool message with its id, in the order of the calls."""
    messages = list(record.messages)
    for place, message in enumerate(messages):
        ids = [call.id for call in message.tool_calls]
        answers = messages[place + 1 : place + 1 + len(ids)]
        assert [answer.tool_call_id for answer in answers] == ids


def test_run_without_a_live_lease_reads_as_interrupted(home: Path, store: Store) -> None:
    events = plain_run(3, run_id=RUN)
    crash(home, events[:9])
    record = store.load(RUN)
    assert (record.phase, record.stop_reason) == ("Failed", "error")
    assert record.error is not None
    assert record.error.code == "ENGINE_INTERRUPTED"
    finished = [event.turn for event in events[:9] if isinstance(event, TurnFinished)]
    assert list(record.turns) == finished
    assert record.usage.total_tokens == 120 + 220
    assert store.runs()[0].error_code == "ENGINE_INTERRUPTED"


def test_calls_of_an_open_turn_are_answered_in_order(home: Path, store: Store) -> None:
    crash(home, one_of_each())
    record = store.load(RUN)
    results = [run.result for run in record.turns[-1].tool_runs]
    assert results == [ToolResult(ok=True, data=[1, "é"]), TOOL_INTERRUPTED, TOOL_NOT_STARTED]
    assert record.turns[-1].phase_after == "Failed"
    check_laws(record)
    assert store.conversation(RUN) == record.messages


def test_open_turn_says_which_calls_had_no_result(home: Path, store: Store) -> None:
    crash(home, one_of_each())
    turn = store.open_turn(RUN)
    assert turn is not None
    assert [run.result is None for run in turn.tool_runs] == [False, True, True]


def test_what_the_open_turn_sent_can_be_rebuilt(home: Path, store: Store) -> None:
    events = one_of_each()
    crash(home, events)
    opened = events[-2]
    assert isinstance(opened, ResponseReceived)
    request = store.request_of(RUN, opened.turn.id)
    assert len(request.messages) == opened.turn.request.n_messages
    assert len(request.tools) == opened.turn.request.n_tools


def test_closed_run_reads_as_it_read_before(home: Path, store: Store) -> None:
    crash(home, one_of_each())
    before = store.load(RUN)
    assert store.close_interrupted(RUN) is True
    assert store.load(RUN) == before
    assert store.open_turn(RUN) is None
    assert store.close_interrupted(RUN) is False
    check_laws(store.load(RUN))


def test_results_of_calls_that_ran_again_are_kept(home: Path, store: Store) -> None:
    crash(home, one_of_each())
    turn = store.open_turn(RUN)
    assert turn is not None
    again = {
        run.tool_call_id: run.model_copy(update={"result": ToolResult(ok=True, data="again")})
        for run in turn.tool_runs
    }
    assert store.claim(RUN)
    assert store.close_interrupted(RUN, again)
    record = store.load(RUN)
    data = [run.result.data for run in record.turns[-1].tool_runs if run.result]
    # A result that was on disk is not replaced.
    assert data == [[1, "é"], "again", "again"]
    assert record.messages[-1].text == '{"ok":true,"data":"again"}'
    check_laws(record)


def test_run_of_a_living_process_cannot_be_taken(home: Path, store: Store) -> None:
    code = (
        "import sys; from pathlib import Path; from nbagent.archive.store import Store\n"
        "from nbagent.contracts.events import RunStarted\n"
        "from nbagent.contracts.records import RunRecord\n"
        "from nbagent.contracts.canonical import utc_now\n"
        "store = Store.open(Path(sys.argv[1]))\n"
        "store.write(RunStarted(RunRecord(id=sys.argv[2], session='s', model='a:b', "
        "started_at=utc_now())))\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(home), RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert store.load(RUN).phase == "Running"
        with pytest.raises(UsageError, match=f"process {child.pid}") as caught:
            store.close_interrupted(RUN)
        assert caught.value.details == {"pid": child.pid}
    finally:
        child.kill()
        # A process that nobody has waited for yet is as dead as one that is gone.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert store.load(RUN).phase == "Failed"
    assert store.close_interrupted(RUN)
    child.communicate()


def test_claimed_run_belongs_to_one_store(home: Path, store: Store) -> None:
    crash(home, one_of_each())
    before = store.load(RUN)
    assert store.claim(RUN)
    other = Store.open(home)
    with pytest.raises(UsageError, match=f"process {os.getpid()}"):
        other.claim(RUN)
    other.close()
    store.close_interrupted(RUN)
    assert store.load(RUN) == before


def test_run_at_work_in_this_kernel_cannot_be_closed(store: Store) -> None:
    store.write(plain_run(1, run_id=RUN)[0])
    with pytest.raises(UsageError, match="this kernel"):
        store.close_interrupted(RUN)
    store.release(RUN)
    assert store.load(RUN).phase == "Failed"
    assert store.close_interrupted(RUN)


def test_interrupted_run_ended_when_its_kernel_last_gave_a_sign(home: Path, store: Store) -> None:
    """A child beats once and dies; the lease that it left behind tells the time."""
    code = (
        "import os, sys; from datetime import timedelta; from pathlib import Path\n"
        "from nbagent.archive.store import Store\n"
        "from nbagent.contracts.events import RunStarted\n"
        "from nbagent.contracts.records import RunRecord\n"
        "from nbagent.contracts.canonical import utc_now\n"
        "start = utc_now(); clock = [start]\n"
        "store = Store.open(Path(sys.argv[1]), now=lambda: clock[0])\n"
        "store.write(RunStarted(RunRecord(id=sys.argv[2], session='s', model='a:b', "
        "started_at=start)))\n"
        "clock[0] += timedelta(seconds=10); store.heartbeat(); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(home), RUN], check=False)
    assert done.returncode == 9
    record = store.load(RUN)
    assert record.duration_ms == 10_000
    assert store.claim(RUN)
    assert store.close_interrupted(RUN)
    assert store.load(RUN) == record
    # Nothing needs the dead kernel's lease any more: the next store to open removes it.
    Store.open(home).close()
    with store.reading() as (connection, alive):
        assert connection.execute("SELECT count(*) FROM leases").fetchone()[0] == len(alive) == 1


@pytest.mark.parametrize(
    ("change", "age_s", "alive"),
    [
        ({}, 0, True),
        ({}, 3600, True),
        ({"pid_started": "1"}, 0, False),
        ({"pid": 2**22 + 1}, 0, False),
        ({"boot_id": "another boot"}, 0, False),
        ({"host": "elsewhere/"}, 29, True),
        ({"host": "elsewhere/"}, 31, False),
        ({"pid_started": None}, 60, True),
        ({"pid_started": None}, 3600, False),
        ({"pid_started": None, "pid": 2**22 + 1}, 0, False),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_lease_lives_as_long_as_its_process(
    change: dict[str, object], age_s: int, alive: bool
) -> None:
    lease = replace(Lease.of_this_process(START), **change)  # pyright: ignore[reportArgumentType]
    assert lease.is_alive(START + timedelta(seconds=age_s)) is alive
