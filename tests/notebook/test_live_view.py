"""The batches of a live view: when they leave, and what a page gets that is loaded later."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise

import comm
import pytest
from panel_stage import Wire
from stories import drawn

from nbagent.notebook.live_view import Batcher, live_view
from nbagent.view.live_state import LiveState, state_for_front_end
from nbagent.view.view_state import view_of
from nbagent.view.view_types import Op, TextOp


def text_op(text: str) -> TextOp:
    return {"op": "text", "turn": "C01", "text": text}


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


@pytest.mark.parametrize("pages", [1, 2])
def test_a_page_loaded_in_mid_run_gets_the_present_picture_and_the_end(
    monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """The cell's output is swapped in the first page only: the other one keeps the widget."""
    wire, story = Wire(), drawn()
    monkeypatch.setattr(comm, "create_comm", wire.open)

    def last_ops() -> list[Op]:
        sent = [m["data"] for m in wire.sent if m["data"].get("method") == "custom"]
        return sent[-1]["content"]["ops"]

    async def go() -> None:
        begun = story.run.model_copy(update={"turns": (), "phase": "Running"})
        view, sink = live_view(LiveState(begun), stays=False)
        for event in story.events[:-3]:
            sink.handle(event)
        for _ in range(pages):
            await asyncio.to_thread(view.act, {"kind": "ready", "running": True})
        await asyncio.sleep(0.1)
        assert [op["op"] for op in last_ops()] == ["state"]
        for event in story.events[-3:]:
            sink.handle(event)
        states = [m["data"] for m in wire.sent if m["data"].get("method") == "update"]
        end = json.loads(json.dumps(state_for_front_end(view_of(story.run))))
        assert [update["state"]["state"] for update in states] == [end] * (pages - 1)
        # A page that began with the run at work, and missed the end.
        view.act({"kind": "ready", "running": True})
        (last,) = last_ops()
        assert last["op"] == "state"
        assert not last["state"]["running"]

    asyncio.run(go())
