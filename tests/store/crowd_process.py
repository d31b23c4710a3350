"""A process whose agents work together while it migrates, searches and forgets; it is killed.

The tools leave a line for each call, so that a call that ran twice shows.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from store.older_stores import blocks_of_eight_runs

import nbagent
from nbagent.contracts.events import (
    Event,
    RunFinished,
    RunStarted,
    ToolCallFinished,
    TurnFinished,
)
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.tools import ToolContext
from nbagent.providers.offline import ScriptedAnswer, call, script, step
from nbagent.session.stores import current_store
from nbagent.store import upkeep

ANSWER = "All is written."
TURNS = 2
AT_ONCE = 3
ROUNDS = 4
LASTS_S = 1.5
"""About as long as all rounds take."""


def note(file: Path, line: str) -> None:
    """Append a line in one write, on disk as soon as this returns."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def word_of(run_id: str) -> str:
    """A word that only this run says."""
    return f"word{run_id[::-1]}"


def answer(request: ChatRequest) -> ScriptedAnswer:
    """Answer for the model: two turns of two calls, then the text."""
    done = sum(message.role == "assistant" for message in request.messages)
    if done % (TURNS + 1) >= TURNS:
        return step(text=ANSWER, delay_ms=1)
    made = [call("write", n=done), call("put", n=done)]
    return step(text=f"Now part {done}.", calls=made, delay_ms=1)


def options_of(effects: Path) -> dict[str, Any]:
    """A model, and tools that note their calls in a file and say a word of their run."""

    @nbagent.tool(threaded=True)
    def write(n: int, context: ToolContext) -> str:
        """Write once."""
        note(effects, f"write {context.run_id}/{context.turn_id}/{context.tool_call_id}")
        return f"wrote {n} {word_of(context.run_id)}"

    @nbagent.tool
    async def put(n: int, context: ToolContext) -> str:
        """Put once."""
        note(effects, f"put {context.run_id}/{context.turn_id}/{context.tool_call_id}")
        return f"put {n}"

    return {"model": script([answer] * 1000, name="writer"), "tools": [write, put]}


def acknowledged(event: Event) -> str | None:
    """Line for an event that a person has seen and may rely on."""
    match event:
        case RunStarted(run=run):
            return f"run {run.id}"
        case TurnFinished(turn=turn):
            return f"turn {turn.run_id} {turn.id}"
        case ToolCallFinished(pending=pending) if pending:
            return f"result {event.run_id} {event.turn_id} {event.tool_run.tool_call_id}"
        case RunFinished(run=run):
            return f"end {run.id}"
        case _:
            return None


def work(home: Path, to_forget: Sequence[str], die_after_s: float | None = None) -> None:
    """Migrate the store by opening it; run agents, search and forget until the end or a kill."""
    from store.dying_process import die

    if die_after_s is not None:
        threading.Timer(die_after_s, die).start()
    os.environ["NBAGENT_HOME"] = str(home)
    patch = pytest.MonkeyPatch()
    patch.setattr(upkeep, "_IDLE_S", 0.01)
    patch.setattr(upkeep, "_PAUSE", 0.1)
    blocks_of_eight_runs(patch)
    told, store = home / "acknowledged", current_store()
    note(told, "opened")
    agent = nbagent.Agent(**options_of(home / "effects"))
    waiting = list(to_forget)

    def on_event(event: Event) -> None:
        line = acknowledged(event)
        if line is not None:
            note(told, line)

    def forget(run_id: str) -> None:
        note(told, f"forgetting {run_id}")
        assert nbagent.forget(run_id) == (run_id,)
        note(told, f"forgotten {run_id}")
        assert store.search(word_of(run_id)).run_ids == []

    async def rounds() -> None:
        own: list[str] = []
        for n in range(ROUNDS):
            runs = [agent.arun(f"Task {n} {i}.", on_event=on_event) for i in range(AT_ONCE)]
            gone = [waiting.pop(), *own[:1]] if waiting else own[:1]
            others = [asyncio.to_thread(forget, run_id) for run_id in gone]
            ended = await asyncio.gather(*runs, *others, asyncio.to_thread(store.search, "Task"))
            own = [run.id for run in ended[:AT_ONCE] if isinstance(run, nbagent.Run)]
            for run_id in own:
                assert store.search(word_of(run_id)).run_ids == [run_id]

    asyncio.run(rounds())


def random_end(chance: random.Random) -> dict[str, Any]:
    """When a process dies: before a statement, or after a time."""
    if chance.random() < 0.5:
        return {"die_at": chance.randrange(1, 900)}
    return {"die_after_s": chance.uniform(0.0, LASTS_S)}
