"""The batches of a live view: the first one leaves at once, later ones together."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

from nbagent.notebook.live_view import Batcher
from nbagent.notebook.view_types import Op, TextOp


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
