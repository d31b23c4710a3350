"""A process that runs an agent and is killed with SIGKILL at a named point or at random.

Run as a script it forks one victim for each line `POINT FOLDER` of its stdin, so that the
imports are paid once. `options_of` and `TASK` serve the test as well.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbagent
from nbagent.contracts.events import (
    Event,
    ResponseReceived,
    RunFinished,
    RunStarted,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    TurnFinished,
    TurnStarted,
)
from nbagent.contracts.model import ChatRequest
from nbagent.contracts.tools import ToolContext
from nbagent.providers.offline import ScriptedAnswer, call, script, step
from nbagent.session.stores import current_store

TASK = "Write three times."
TURNS = 3
LAST = f"C{TURNS + 1:02}"
"""The turn that answers."""
ANSWER = "All is written."

POINTS: dict[str, Callable[[Event], bool]] = {
    "before the first request": lambda e: isinstance(e, TurnStarted) and e.turn_id == "C01",
    "at the start": lambda e: isinstance(e, RunStarted),
    "in the first stream": lambda e: isinstance(e, TextDelta) and e.turn_id == "C01",
    "in a call": lambda e: isinstance(e, ToolCallDelta) and e.turn_id == "C02",
    "response stored": lambda e: isinstance(e, ResponseReceived) and e.turn.index == 2,
    "tool started": lambda e: isinstance(e, ToolCallStarted) and e.turn_id == "C02",
    "between two tools": lambda e: (
        isinstance(e, ToolCallFinished) and e.turn_id == "C02" and e.pending == 1
    ),
    "last result": lambda e: isinstance(e, ToolCallFinished) and e.pending == 0,
    "turn finished": lambda e: isinstance(e, TurnFinished) and e.turn.index == 2,
    "before the last request": lambda e: isinstance(e, TurnStarted) and e.turn_id == LAST,
    "last turn finished": lambda e: isinstance(e, TurnFinished) and e.turn.id == LAST,
    "run finished": lambda e: isinstance(e, RunFinished),
}
"""Where the callback kills: the event is committed then, and nothing after it."""
IN_TOOL = ("in the tool before", "in the tool after", "in the async tool")
IN_STORE = ("COMMIT 3", "COMMIT 4", "COMMIT 5", "COMMIT 6", "executemany 2", "executemany 8")
"""The statement of the store before which it dies, and the how manieth of them."""
RANDOM = "random"
LASTS_S = 0.25
"""About as long as a run takes, its commits included."""


def die() -> None:
    """End at once, as the machine would."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(10)


class Mortal:
    """Stands around the store's connection and dies in the middle of a transaction."""

    def __init__(self, inner: Any, point: str) -> None:
        self._inner = inner
        self._word, number = point.split()
        self._left = int(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _count(self, word: str) -> None:
        self._left -= word == self._word
        if not self._left:
            die()

    def execute(self, sql: str, *rest: Any) -> Any:
        self._count(sql)
        return self._inner.execute(sql, *rest)

    def executemany(self, sql: str, *rest: Any) -> Any:
        self._count("executemany")
        return self._inner.executemany(sql, *rest)


def note(file: Path, line: str) -> None:
    """Append a line in one write, on disk as soon as this returns."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def lines(file: Path) -> list[str]:
    """The lines that were noted."""
    return file.read_text().splitlines() if file.exists() else []


def answer(request: ChatRequest) -> ScriptedAnswer:
    """Answer for the model: three turns of two calls each, then the text."""
    turn = sum(
        message.role == "assistant" and bool(message.tool_calls) for message in request.messages
    )
    if turn >= TURNS:
        return step(text=ANSWER, delay_ms=1)
    made = [call("write", n=turn), call("put", n=turn)]
    return step(text=f"Now part {turn}.", calls=made, delay_ms=1)


def options_of(folder: Path, point: str = "") -> dict[str, Any]:
    """A model, and tools that leave lines in `folder/effects`."""
    effects = folder / "effects"

    def write(n: int, context: ToolContext) -> str:
        """Write once."""
        if point == "in the tool before" and n == 1:
            die()
        note(effects, f"write {n} {context.run_id}/{context.turn_id}/{context.tool_call_id}")
        time.sleep(0.02)  # the other tool ends first
        if point == "in the tool after" and n == 1:
            die()
        return f"wrote {n}"

    async def put(n: int, context: ToolContext) -> str:
        """Put once."""
        note(effects, f"put {n} {context.run_id}/{context.turn_id}/{context.tool_call_id}")
        if point == "in the async tool" and n == 1:
            die()
        return f"put {n}"

    return {"model": script([answer] * 40, name="writer"), "tools": [write, put]}


def acknowledged(event: Event) -> str | None:
    """Line for an event that a person has seen and may rely on."""
    if isinstance(event, RunStarted):
        return f"run {event.run.id}"
    if isinstance(event, TurnFinished):
        return f"turn {event.turn.id}"
    if isinstance(event, ToolCallFinished) and event.pending:
        return f"result {event.turn_id} {event.tool_run.tool_call_id}"
    if isinstance(event, RunFinished):
        return f"end {event.run.stop_reason}"
    return None


def run_victim(point: str, folder: Path) -> None:
    """Run the agent and die on the way."""
    os.environ["NBAGENT_HOME"] = str(folder / "home")
    there: Any = POINTS.get(point, lambda event: False)

    def on_event(event: Event) -> None:
        told = acknowledged(event)
        if told is not None:
            note(folder / "acknowledged", told)
        if there(event):
            die()
        if point == RANDOM and isinstance(event, RunStarted):
            threading.Timer(random.uniform(0.0, LASTS_S), die).start()

    if point in IN_STORE:
        store: Any = current_store()
        store.database._connection = Mortal(store.database._connection, point)
    nbagent.Agent(**options_of(folder, point)).run(TASK, on_event=on_event)
    die()


def main() -> None:
    """Fork a victim for each line; say when it is dead."""
    for line in sys.stdin:
        point, folder = line.rstrip("\n").split("\t")
        pid = os.fork()
        if pid == 0:
            try:
                run_victim(point, Path(folder))
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -1, flush=True)


if __name__ == "__main__":
    main()
