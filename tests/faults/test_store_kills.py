"""`kill -9` in bare processes that write to the store: nothing acknowledged is ever lost.

The child prints what it has written after `write` returned, unbuffered; the parent kills it at a
named point or at random, opens the store and compares.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nbagent.archive.store import Store

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")

_CHILD = r"""
import json, os, sys
from pathlib import Path
from nbagent.archive.store import Store
from nbagent.contracts.canonical import sha256_hex, utc_now
from nbagent.contracts.chat import ChatResponse, Message, TextPart, ToolCall, Usage
from nbagent.contracts.events import *
from nbagent.contracts.records import *

home, run_prefix, point, n_runs, n_turns = sys.argv[1:6]
say = lambda *told: os.write(1, json.dumps(told).encode() + b"\n")

class Watched:
    # Stands around the connection: says and stops in the middle of a transaction.
    armed = ""
    def __init__(self, connection): self._c = connection
    def __getattr__(self, name): return getattr(self._c, name)
    def execute(self, sql, *rest):
        if sql == "COMMIT" and self.armed == "commit": stop()
        done = self._c.execute(sql, *rest)
        if sql == "BEGIN IMMEDIATE" and self.armed == "begin": stop()
        return done
    def executemany(self, sql, *rest):
        done = self._c.executemany(sql, *rest)
        if self.armed == "middle": stop()
        return done

def stop():
    say("here")
    sys.stdin.read()

store = Store.open(Path(home))
watched = store._db._connection = Watched(store._db._connection)
wanted, _, when = point.partition(":")

def write(event, *told):
    mine = type(event).__name__ == wanted and n_begun > 2
    watched.armed = when if mine else ""
    store.write(event)
    watched.armed = ""
    say(*told)
    if mine and when == "after": stop()

text = "word " * 400
SHA = sha256_hex("S")
n_begun = 0
for r in range(int(n_runs)):
    run_id = f"{run_prefix}{r:08x}"
    words = (Message.of("user", "go"),)
    start = {"id": run_id, "session": "s", "model": "offline:demo", "started_at": utc_now()}
    run = RunRecord(**start, messages=words)
    write(RunStarted(run), "run", run_id)
    messages, turns = list(words), []
    for index in range(1, int(n_turns) + 1):
        n_begun += 1
        ids = [f"c{index}-{i}" for i in range(2)]
        call = {"name": "work", "arguments": {}, "arguments_raw": "{}"}
        calls = tuple(ToolCall(id=id, **call) for id in ids)
        content = (TextPart(text=f"{index} {text}"),)
        answer = Message(role="assistant", content=content, tool_calls=calls)
        request = TurnRequest(n_messages=len(messages), n_new=1, model="demo", system_sha=SHA)
        ran = {"tool_name": "work", "args": {}, "started_at": utc_now()}
        runs = tuple(ToolRun(tool_call_id=id, **ran) for id in ids)
        done = tuple(
            ToolRun(tool_call_id=id, **ran, result=ToolResult(ok=True, data=f"{id} {text}"))
            for id in ids
        )
        turn = EngineTurn(
            id=turn_id(index), run_id=run_id, index=index, request=request, tool_runs=runs,
            response=ChatResponse(message=answer, usage=Usage(total_tokens=7)),
            started_at=utc_now(),
        )
        store.write(TurnStarted(run_id, turn.id, index, request, (), "S", ()))
        write(ResponseReceived(turn, answer), "response", run_id, index)
        write(ToolCallFinished(run_id, turn.id, done[0], 1), "result", run_id, index)
        store.write(ToolCallFinished(run_id, turn.id, done[1], 0))
        added = [answer]
        for it in done:
            content = (TextPart(text=it.result.to_json().decode()),)
            to = {"tool_call_id": it.tool_call_id, "name": "work"}
            added.append(Message(role="tool", content=content, **to))
        final = turn.model_copy(update={"tool_runs": done})
        write(TurnFinished(final, tuple(added), "S", ()), "turn", run_id, index)
        messages += added
        turns.append(final)
    end = {
        "phase": "WaitingUser", "stop_reason": "answered", "ended_at": utc_now(),
        "messages": tuple(messages), "turns": tuple(turns),
        "usage": Usage(total_tokens=7 * len(turns)), "system_prompts": {SHA: "S"},
    }
    write(RunFinished(run.model_copy(update=end)), "end", run_id)
say("over")
"""


@contextmanager
def writing(
    home: Path, *, point: str = "", prefix: str = "aaaaaaaa", n_runs: int = 1, n_turns: int = 4
) -> Generator[subprocess.Popen[bytes]]:
    arguments = [str(home), prefix, point, str(n_runs), str(n_turns)]
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def told_until_here(child: subprocess.Popen[bytes]) -> list[list[Any]]:
    assert child.stdout is not None
    told: list[list[Any]] = []
    for line in child.stdout:
        told.append(json.loads(line))
        if told[-1][0] in ("here", "over"):
            return told
    raise AssertionError("the child ended by itself")


def kill(child: subprocess.Popen[bytes]) -> list[list[Any]]:
    """Kill it; what it had said and we had not read yet. A torn last line was not said."""
    child.send_signal(signal.SIGKILL)
    rest, _ = child.communicate()
    return [json.loads(line) for line in rest.split(b"\n")[:-1]]


def check(home: Path, told: list[list[Any]]) -> None:
    """Nothing that was acknowledged is lost; the file is whole; every run can be gone on with."""
    store = Store.open(home)
    assert store.check() == []
    for kind, *rest in told:
        if kind in ("here", "over"):
            continue
        record = store.load(rest[0])
        if kind == "end":
            assert (record.phase, record.stop_reason) == ("WaitingUser", "answered")
        if kind in ("turn", "response", "result"):
            turn = record.turns[int(rest[1]) - 1]
            assert turn.text.startswith(f"{turn.index} word")
            results = [run.result for run in turn.tool_runs]
            assert None not in results
            if kind in ("turn", "result"):
                assert results[0] is not None
                assert results[0].ok
            if kind == "turn":
                assert results[1] is not None
                assert results[1].ok
    for run_id in {it[1] for it in told if len(it) > 1}:
        check_run(store, run_id)
    store.close()


def check_run(store: Store, run_id: str) -> None:
    record = store.load(run_id)
    assert record.phase != "Running"
    messages = list(record.messages)
    assert [m.role for m in messages] == [
        "user",
        *["assistant", "tool", "tool"] * len(record.turns),
    ]
    for turn in record.turns:
        place = turn.request.n_messages
        answers = [message.tool_call_id for message in messages[place + 1 : place + 3]]
        assert answers == [f"c{turn.index}-0", f"c{turn.index}-1"]
        sent = store.request_of(run_id, turn.id)
        assert (len(sent.messages), sent.system_prompt) == (place, "S")
    assert store.close_interrupted(run_id) is (record.phase == "Failed")
    assert store.load(run_id) == record
    assert store.requests_since_words(run_id) == len(record.turns)


_POINTS = [
    *(f"ResponseReceived:{when}" for when in ("begin", "middle", "commit", "after")),
    *("ToolCallFinished:commit", "ToolCallFinished:after"),
    *(f"TurnFinished:{when}" for when in ("middle", "commit", "after")),
    *("RunFinished:commit", "RunFinished:after"),
]


@pytest.mark.parametrize("point", _POINTS)
def test_kill_at_a_named_point_loses_nothing_acknowledged(tmp_path: Path, point: str) -> None:
    with writing(tmp_path, point=point) as child:
        told = told_until_here(child)
        assert told[-1] == ["here"]
        told += kill(child)
    check(tmp_path, told)


def kill_at_random(home: Path, chance: random.Random, number: int) -> int:
    """Kill one writer some time after its first word; how many words it had said."""
    with writing(home, prefix=f"{number:08x}", n_runs=10_000) as child:
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 30)[0]
        time.sleep(chance.random() * 0.08)
        told = kill(child)
    check(home, told)
    return len(told)


def test_kill_at_random_moments_loses_nothing_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(1)
    assert sum(kill_at_random(tmp_path, chance, number) for number in range(3)) > 3


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_two_hundred_kills_lose_nothing_acknowledged(tmp_path: Path) -> None:
    chance = random.Random(2)
    assert sum(kill_at_random(tmp_path, chance, number) for number in range(200)) > 200


def test_two_processes_write_at_once_and_lose_nothing(tmp_path: Path) -> None:
    with (
        writing(tmp_path, prefix="aaaaaaaa", n_runs=8) as one,
        writing(tmp_path, prefix="bbbbbbbb", n_runs=8) as two,
    ):
        told = told_until_here(one) + told_until_here(two)
    assert told.count(["over"]) == 2
    check(tmp_path, told)
    store = Store.open(tmp_path)
    assert store.counts() == {"runs": 16, "turns": 64, "tool_runs": 128, "messages": 208}
    store.close()
