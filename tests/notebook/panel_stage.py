"""A panel without a kernel: its widget's messages are kept, and a test plays the front end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import comm
import pytest
from comm.base_comm import BaseComm
from frontends import StandIn

from nbagent import tool
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord
from nbagent.notebook import button_actions
from nbagent.notebook import panel as room
from nbagent.notebook.outputs import forget_runs
from nbagent.notebook.panel import Panel
from nbagent.runtime import RunTask
from nbagent.session.frontend import Cell, use_frontend
from nbagent.session.stores import current_store
from nbagent.store.writer import Store

Message = dict[str, Any]
LONG_S = 20.0


@tool
def population(city: str) -> int:
    """People living in a city."""
    return {"Oslo": 717_710, "Bergen": 291_940}[city]


@tool
def nap(seconds: int) -> str:
    """Sleep for some seconds."""
    time.sleep(seconds)
    return "slept"


class Wire:
    """Stands where the kernel's comms would be; keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def open(self, **given: Any) -> BaseComm:
        wire = self

        class Comm(BaseComm):
            def publish_msg(self, msg_type: str, data: Any = None, *more: Any, **keys: Any) -> None:
                wire.sent.append(json.loads(json.dumps(data or {}, default=str)))

        return Comm(**given)

    def of(self, *kinds: str) -> list[Message]:
        """The messages of these kinds; without one, all that are ops."""
        found = [sent["content"] for sent in self.sent if sent.get("method") == "custom"]
        return [one for one in found if (one.get("kind") in kinds if kinds else "ops" in one)]

    @property
    def replies(self) -> list[Message]:
        """Replies to the buttons below runs."""
        found = [sent["content"] for sent in self.sent if sent.get("method") == "custom"]
        return [one for one in found if "at" in one]


class Stage:
    """A panel, what it sent, and hands to use it."""

    def __init__(self, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wire = wire
        self.shown: list[tuple[Any, dict[str, Any]]] = []
        self.handles: list[Any] = []
        self.namespace: dict[str, Any] = {"population": population, "nap": nap}
        monkeypatch.setattr(comm, "create_comm", wire.open)
        monkeypatch.setattr(room, "display", self._display)
        monkeypatch.setattr(button_actions, "_actions", None)
        names = {"user_ns": self.namespace, "user_global_ns": self.namespace}
        shell = SimpleNamespace(events=SimpleNamespace(register=_no_cells), **names)
        monkeypatch.setattr(room, "get_ipython", lambda: shell)
        self.fail_after(1_000)
        self.panel = Panel()
        self.panel.show()
        self._n = 0

    def fail_after(self, most: int) -> None:
        """Have a kernel in which no run can begin after so many."""

        def cell() -> Cell:
            if len(self.handles) >= most:
                raise UsageError("no more than that")
            return Cell()

        keep = self.handles.append
        use_frontend(StandIn(self.namespace, adopt=_drained, set_last=keep, cell=cell))

    def _display(self, data: Any, **how: Any) -> None:
        self.shown.append((data, how))

    @property
    def store(self) -> Store:
        return current_store()

    @property
    def state(self) -> dict[str, Any]:
        return self.panel.widget.state

    @property
    def told(self) -> list[Message]:
        """Replies to the prompts that were sent: taken or refused."""
        return self.wire.of("taken", "refused")

    @property
    def pictures(self) -> list[Any]:
        """The conversation, as a page that is loaded anew gets it."""
        self.say("ready", page="p")
        return self.wire.of("thread")[-1]["pictures"]

    def say(self, kind: str, **more: Any) -> None:
        """A message of the page."""
        self.panel.on_message({"kind": kind, **more})

    def click(self, do: str, run: RunRecord, **more: Any) -> None:
        """A button below a run of the panel."""
        button_actions.on_message(
            {"kind": "act", "do": do, "run": run.id, "at": self.panel.id, **more}
        )

    def forget(self, run: RunRecord, *, children: bool = False) -> None:
        forget_runs(self.store.forget(run.id, children=children))

    def set(self, name: str, value: str) -> None:
        self.say("field", name=name, value=value)

    def tick(self, name: str, *, on: bool) -> None:
        ticked = {**self.ticked(hosts=True), name: on}
        self.set("tools", ",".join(tool for tool, is_on in ticked.items() if is_on))

    def ticked(self, *, hosts: bool = False) -> dict[str, bool]:
        """The tools of the form and whether they are ticked."""
        found = {name: on for name, _, on in self.state["tools"]}
        return {name: on for name, on in found.items() if hosts or name in self.namespace}

    def listed(self, key: str, text: str = "") -> Any:
        """Choices that the panel lists."""
        n = len(self.wire.of("list"))
        self.say("list", name=key, value=text)
        until(lambda: len(self.wire.of("list")) > n or self.state["error"])
        return self.wire.of("list")[-1]["node"]

    def ask(self, prompt: str, *, kind: str = "send", **more: Any) -> str:
        """Send, as the box does; the id of the message."""
        self._n += 1
        self.say(kind, id=f"m{self._n}", prompt=prompt, **more)
        return f"m{self._n}"

    def run(self, prompt: str = "", *, kind: str = "send", **more: Any) -> RunRecord:
        before = len(self.handles)
        self.ask(prompt, kind=kind, **more)
        return self.ended(before + 1)

    def ended(self, n: int) -> RunRecord:
        """The run that was begun last, of `n`, when it is over."""
        assert len(self.handles) == n, self.state["error"]
        self.handles[-1].wait(LONG_S)
        self.settle()
        return self.handles[-1].record

    def settle(self) -> None:
        """Wait until the panel says that nothing is at work."""
        until(lambda: not self.state["working"])


def _no_cells(event: str, hear: Callable[[object], None]) -> None:
    """Nobody runs a cell."""


def until(true: Callable[[], object], *, within_s: float = LONG_S) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def _drained(courier: RunTask) -> None:
    """An idle kernel: a thread of its own does what nobody waits for."""

    def drain() -> None:
        threading.Thread(target=courier.run_queued_jobs, daemon=True).start()

    courier.on_idle_job = drain
