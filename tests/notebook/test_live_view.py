"""The widget, the batches and the sink: how much is sent, when, and what a late page gets."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from typing import Any, cast

import comm
import pytest
from panel_stage import Wire
from stories import ANSWER, Story, drawn

from nbagent.notebook.live_state import LiveState, state_for_front_end
from nbagent.notebook.live_view import Batcher, LiveViewSink, RunView, live_view
from nbagent.notebook.view_state import view_of
from nbagent.notebook.view_types import Op, TextOp


class ViewWire(Wire):
    """What one view sends."""

    @property
    def batches(self) -> list[list[Op]]:
        messages = [m["data"] for m in self.sent if m["data"].get("method") == "custom"]
        return [message["content"]["ops"] for message in messages]

    @property
    def states(self) -> list[dict[str, Any]]:
        updates = [m["data"] for m in self.sent if m["data"].get("method") == "update"]
        return [update["state"]["state"] for update in updates]


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> ViewWire:
    wire = ViewWire()
    monkeypatch.setattr(comm, "create_comm", wire.open)
    return wire


def begin(story: Story, *, stays: bool = True) -> tuple[RunView, LiveViewSink]:
    begun = story.run.model_copy(update={"turns": (), "phase": "Running"})
    return live_view(LiveState(begun), stays=stays)


def text_op(text: str, turn: str = "C01") -> TextOp:
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


def test_a_send_that_fails_reaches_the_next_add() -> None:
    def send(ops: list[Op]) -> None:
        raise OSError("no front end")

    async def go() -> None:
        batcher = Batcher(send)
        for text in ("a", "b"):
            with pytest.raises(OSError, match="no front end"):
                batcher.add([text_op(text)])

    asyncio.run(go())


def test_a_page_loaded_in_mid_run_gets_the_present_picture(wire: ViewWire) -> None:
    story = drawn()

    async def go() -> None:
        view, sink = begin(story)
        for event in story.events[:-3]:
            sink.handle(event)
        sent = len(wire.sent)
        state = cast("Any", view).get_state()["state"]
        assert state["turns"][2]["text"]["text"] == ANSWER[: len(state["turns"][2]["text"]["text"])]
        assert len(wire.sent) == sent
        # The front end says that it is ready, on another thread.
        await asyncio.to_thread(view.act, {"kind": "ready", "running": True})
        await asyncio.sleep(0.1)
        assert [op["op"] for op in wire.batches[-1]] == ["state"]
        for event in story.events[-3:]:
            sink.handle(event)
        view.act({"kind": "ready", "running": True})
        (last,) = wire.batches[-1]
        assert last["op"] == "state"
        assert not last["state"]["running"]

    asyncio.run(go())


@pytest.mark.parametrize("pages", [1, 2])
def test_a_page_that_was_loaded_anew_is_told_the_end(wire: ViewWire, pages: int) -> None:
    """The cell's output is swapped in the first page only: the other one keeps the widget."""
    story = drawn()

    async def go() -> None:
        view, sink = begin(story, stays=False)
        for event in story.events[:-3]:
            sink.handle(event)
        for _ in range(pages):
            view.act({"kind": "ready", "running": True})
        for event in story.events[-3:]:
            sink.handle(event)

    asyncio.run(go())
    end = json.loads(json.dumps(state_for_front_end(view_of(story.run))))
    assert wire.states == [end] * (pages - 1)
