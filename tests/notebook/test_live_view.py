"""The widget, the batches and the sink: how much is sent, when, and what a late page gets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from itertools import pairwise
from typing import Any, cast

import comm
import pytest
from comm.base_comm import BaseComm
from stories import ANSWER, Story, drawn

from nbagent.contracts import events
from nbagent.notebook.live_state import LiveState, state_for_front_end
from nbagent.notebook.live_view import Batcher, LiveViewSink, RunView, live_view, merge
from nbagent.notebook.view_state import view_of
from nbagent.notebook.view_types import Op, TextOp

ENVELOPE_BYTES = 600
"""What Jupyter adds to each message (headers, signature, topic): 560 with ipykernel 7.4."""


class Wire:
    """Stands where the kernel's comms would be; keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def open(self, **given: Any) -> BaseComm:
        wire = self

        class Comm(BaseComm):
            def publish_msg(
                self,
                msg_type: str,
                data: Any = None,
                metadata: Any = None,
                buffers: Any = None,
                **keys: Any,
            ) -> None:
                wire.sent.append({"type": msg_type, "data": json.loads(json.dumps(data))})

        return Comm(**given)

    @property
    def batches(self) -> list[list[Op]]:
        """The ops of each custom message."""
        messages = [m["data"] for m in self.sent if m["data"].get("method") == "custom"]
        return [cast("list[Op]", message["content"]["ops"]) for message in messages]

    @property
    def states(self) -> list[dict[str, Any]]:
        """The pictures that were synced."""
        updates = [m["data"] for m in self.sent if m["data"].get("method") == "update"]
        return [update["state"]["state"] for update in updates]

    @property
    def n_bytes(self) -> int:
        """All that was sent, envelopes included."""
        return sum(map(_bytes_of, self.sent))

    @property
    def opening_bytes(self) -> int:
        """What opening the view took: its source and its look, once for each run."""
        return sum(_bytes_of(m) for m in self.sent if m["type"] == "comm_open")


def _bytes_of(message: dict[str, Any]) -> int:
    return len(json.dumps(message, ensure_ascii=False)) + ENVELOPE_BYTES


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    """A wire for the widgets of one test."""
    wire = Wire()
    monkeypatch.setattr(comm, "create_comm", wire.open)
    return wire


def begin(story: Story) -> tuple[LiveState, RunView, LiveViewSink]:
    """A live view of a story's run."""
    live = LiveState(story.run.model_copy(update={"turns": (), "phase": "Running"}))
    return live, *live_view(live)


def text_op(text: str, turn: str = "C01") -> TextOp:
    """A piece of text."""
    return {"op": "text", "turn": turn, "text": text}


def test_first_ops_leave_at_once_and_later_ones_together() -> None:
    sent: list[tuple[float, list[Op]]] = []

    async def go() -> None:
        batcher = Batcher(lambda ops: sent.append((time.monotonic(), ops)), interval_s=0.05)
        for i in range(40):
            batcher.add([text_op(f"{i} ")])
            if i == 0:
                assert len(sent) == 1
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.12)

    asyncio.run(go())
    pieces = [op["text"] for _, ops in sent for op in ops if op["op"] == "text"]
    assert "".join(pieces) == "".join(f"{i} " for i in range(40))
    assert len(sent) < 20
    gaps = [b - a for (a, _), (b, _) in pairwise(sent)]
    assert min(gaps) > 0.04


def test_ops_that_wait_are_merged() -> None:
    pending: list[Op] = []
    for op in (text_op("a"), text_op("b"), text_op("c", "C02"), text_op("d")):
        merge(pending, op)
    assert [op["text"] for op in pending if op["op"] == "text"] == ["ab", "c", "d"]
    merge(pending, {"op": "state", "state": view_of(drawn().run)})
    assert [op["op"] for op in pending] == ["state"]


def test_a_send_that_fails_reaches_the_next_add() -> None:
    def send(ops: list[Op]) -> None:
        raise OSError("no front end")

    async def go() -> None:
        batcher = Batcher(send)
        with pytest.raises(OSError, match="no front end"):
            batcher.add([text_op("a")])
        with pytest.raises(OSError, match="no front end"):
            batcher.add([text_op("b")])

    asyncio.run(go())


def test_a_run_ends_with_the_picture_of_its_record(wire: Wire) -> None:
    story = drawn()

    async def go() -> None:
        _, _, sink = begin(story)
        for event in story.events:
            sink.handle(event)
            await asyncio.sleep(0)
        sink.close()
        await asyncio.sleep(0.1)

    asyncio.run(go())
    assert wire.states == [json.loads(json.dumps(state_for_front_end(view_of(story.run))))]
    assert wire.sent[-1]["data"]["method"] == "update"
    assert wire.batches[0][0]["op"] == "head"


def test_a_page_loaded_in_mid_run_gets_the_present_picture(wire: Wire) -> None:
    story = drawn()

    async def go() -> None:
        _, view, sink = begin(story)
        for event in story.events[:-3]:
            sink.handle(event)
        sent = len(wire.sent)
        state = cast("Any", view).get_state()["state"]
        assert state["turns"][2]["text"]["text"] == ANSWER[: len(state["turns"][2]["text"]["text"])]
        assert len(state["turns"][2]["text"]["text"]) > 50
        assert len(wire.sent) == sent
        # The front end says that it is ready, on another thread.
        thread = threading.Thread(target=view.act, args=({"kind": "ready", "running": True},))
        thread.start()
        thread.join()
        await asyncio.sleep(0.1)
        assert [op["op"] for op in wire.batches[-1]] == ["state"]
        for event in story.events[-3:]:
            sink.handle(event)
        view.act({"kind": "ready", "running": True})
        last = wire.batches[-1][0]
        assert last["op"] == "state"
        assert not last["state"]["running"]

    asyncio.run(go())


@pytest.mark.parametrize("pages", [1, 2])
def test_a_page_that_was_loaded_anew_is_told_the_end(wire: Wire, pages: int) -> None:
    """The cell's output is swapped in the first page only: the other one keeps the widget."""
    story = drawn()

    async def go() -> None:
        live = LiveState(story.run.model_copy(update={"turns": (), "phase": "Running"}))
        view, sink = live_view(live, stays=False)
        for event in story.events[:-3]:
            sink.handle(event)
        for _ in range(pages):
            view.act({"kind": "ready", "running": True})
        for event in story.events[-3:]:
            sink.handle(event)

    asyncio.run(go())
    assert len(wire.states) == pages - 1


def test_actions_reach_every_callback(wire: Wire) -> None:
    view = RunView(view_of(drawn().run))
    heard: list[object] = []
    view.on_action(heard.append)
    view.act({"kind": "stop"})
    view.act("not an action")
    assert heard == [{"kind": "stop"}]
    assert wire.sent[0]["type"] == "comm_open"
    assert "model_id" in dir(view)


def test_ten_thousand_deltas_stay_within_the_goal(wire: Wire) -> None:
    """500 deltas a second for 20 s: here in a fifth of the time, at a fifth of the interval."""
    words = [f"{'word' if i % 7 else 'words'[: i % 5]} "[:5] for i in range(10_000)]
    text = "".join(words)[:37_000]
    story = Story().turn(text).end()

    async def go() -> None:
        live = LiveState(story.run.model_copy(update={"turns": (), "phase": "Running"}))
        view = RunView(live.snapshot(), live=live.snapshot)
        sink = LiveViewSink(view, live, interval_s=0.01)
        for event in story.events[:2]:
            sink.handle(event)
        start, done = time.perf_counter(), 0
        while done < len(words):
            due = min(len(words), int((time.perf_counter() - start) * 2500) + 1)
            for word in words[done:due]:
                sink.handle(events.TextDelta("C01", word))
            done = due
            await asyncio.sleep(0.001)
        for event in story.events[-2:]:
            sink.handle(event)

    asyncio.run(go())
    assert len(wire.sent) <= 500
    assert wire.n_bytes - wire.opening_bytes <= 400_000
    assert wire.opening_bytes <= 45_000
    assert len(wire.states) == 1
