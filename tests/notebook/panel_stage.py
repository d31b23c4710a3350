"""A panel without a kernel: its widgets' messages are kept, and a test plays the front end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import comm
import pytest
from comm.base_comm import BaseComm
from frontends import StandIn

from nbagent import tool
from nbagent.archive.store import Store
from nbagent.contracts.records import RunRecord
from nbagent.notebook.panel import runs as room
from nbagent.notebook.panel.runs import Panel
from nbagent.runtime import Courier
from nbagent.session.frontend import use_frontend
from nbagent.session.stores import current_store

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
                plain = json.loads(json.dumps(data, default=str))
                wire.sent.append({"comm": self.comm_id, "type": msg_type, "data": plain})

        return Comm(**given)

    def of(self, comm_id: str, method: str) -> list[Message]:
        """The messages of one widget: `custom` contents, or `update` states."""
        found = [m["data"] for m in self.sent if m["comm"] == comm_id and m["data"]]
        key = "content" if method == "custom" else "state"
        return [data[key] for data in found if data.get("method") == method]


class Stage:
    """A panel, what it sent, and hands to use it."""

    def __init__(self, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wire = wire
        self.shown: list[tuple[Any, dict[str, Any]]] = []
        self.handles: list[Any] = []
        self.namespace: dict[str, Any] = {"population": population, "nap": nap}
        monkeypatch.setattr(comm, "create_comm", wire.open)
        monkeypatch.setattr(room, "display", self._display)
        use_frontend(StandIn(self.namespace, adopt=_drained, set_last=self.handles.append))
        self.panel = Panel()
        self.panel.show()
        self._n = 0

    def _display(self, data: Any, **how: Any) -> None:
        self.shown.append((data, how))

    @property
    def store(self) -> Store:
        return current_store()

    @property
    def state(self) -> dict[str, Any]:
        return self.panel.form.box.state

    def told(self) -> list[Message]:
        return self.wire.of(self.panel.form.box.comm_id, "custom")

    def ask(self, prompt: str, *, kind: str = "send", system: str | None = None) -> str:
        """Send, as the box does; the id of the message."""
        self._n += 1
        words = self.state["system"] if system is None else system
        self.panel.form.box.act(
            {"kind": kind, "id": f"m{self._n}", "prompt": prompt, "system": words}
        )
        return f"m{self._n}"

    def run(self, prompt: str = "", *, kind: str = "send", system: str | None = None) -> RunRecord:
        before = len(self.handles)
        self.ask(prompt, kind=kind, system=system)
        assert len(self.handles) == before + 1, self.state["error"]
        self.handles[-1].wait(LONG_S)
        self.settle()
        return self.handles[-1].record

    def settle(self) -> None:
        """Wait until the box says that nothing is at work."""
        until(lambda: not self.state["working"])

    def stop(self) -> None:
        self.panel.form.box.act({"kind": "stop"})

    def typed(self, widget: Any, text: str) -> None:
        """A text that the front end syncs from a field."""
        message = {"method": "update", "state": {"value": text}, "buffer_paths": []}
        widget._handle_msg({"content": {"comm_id": "", "data": message}, "buffers": []})


def until(true: Callable[[], object], *, within_s: float = LONG_S) -> None:
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def _drained(courier: Courier) -> None:
    """An idle kernel: a thread of its own does what nobody waits for."""

    def drain() -> None:
        threading.Thread(target=courier.drain, daemon=True).start()

    courier.on_idle_job = drain
