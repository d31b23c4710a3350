"""Rows about streaming: a delta without and with the view, and what the view sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import comm
from bare import BareLoop
from frontends import StandIn
from jupyter_client.session import Session
from measure import Row, compare
from ours import PROMPT, agent, step

from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook.live_state import LiveState
from nbagent.notebook.live_view import live_view
from nbagent.session.frontend import use_frontend

_DELTAS = 10_000


class CountingComm(comm.base_comm.BaseComm):
    """Packs each message as a kernel does for iopub, and counts instead of sending."""

    session = Session(key=b"bench")
    messages = 0
    size = 0

    def publish_msg(
        self,
        msg_type: str,
        data: Any = None,
        metadata: Any = None,
        buffers: Any = None,
        **keys: Any,
    ) -> None:
        """Count one message."""
        content: dict[str, Any] = {"data": data or {}, "comm_id": self.comm_id, **keys}
        message = cast("Any", self.session).msg(msg_type, content, metadata=metadata)
        parts = [*self.session.serialize(message), *(buffers or ())]
        CountingComm.messages += 1
        CountingComm.size += sum(len(part) for part in parts)


def a_view(run: RunRecord, controls: RunControls) -> Sink | None:
    """A `RunView`, as a notebook with a front end shows every run."""
    _, sink = live_view(LiveState(run))
    return sink


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    comm.create_comm = CountingComm
    deltas, pairs = (1_000, 1) if quick else (_DELTAS, 9)
    burst = f"{server}/deltas-{deltas}/v1"
    yield from _ratios(burst, deltas, pairs, "in one burst")
    # As a model sends them: one packet each, so that every one is an event of its own.
    deltas, seconds, pairs = (100, 0.1, 1) if quick else (1_000, 1, 5)
    paced = f"{server}/paced-{deltas}-{seconds}/v1"
    yield from _ratios(paced, deltas, pairs, "one by one, 1,000 a second")
    yield from _sent(server, *((500, 1) if quick else (_DELTAS, 20)))


def _ratios(url: str, deltas: int, pairs: int, how: str) -> Iterator[Row]:
    made = agent(url)
    with asyncio.Runner() as runner:
        loop = BareLoop(url, step)

        def bare() -> None:
            runner.run(loop.turns(stream=True))

        def ours() -> None:
            assert made.run(PROMPT).text

        for name, front, limit in (
            ("without a view", StandIn(), 1.0),
            ("with a view", StandIn(view=a_view), 1.3),
        ):
            use_frontend(front)
            found = compare(bare, ours, pairs=pairs)
            each = deltas / 1e6
            yield Row(
                f"streaming {deltas:,} deltas {how}, {name}",
                f"≤ {limit} × bare",
                f"{found.ours_s / each:.1f} µs a delta (bare {found.bare_s / each:.1f})",
                found.ratio,
                limit,
                found.ratio,
                f"with the store; half of the ratios in {found.spread}",
            )
        runner.run(loop.client.aclose())
    use_frontend(None)


def _sent(server: str, deltas: int, seconds: int) -> Iterator[Row]:
    use_frontend(StandIn(view=a_view))
    CountingComm.messages = CountingComm.size = 0
    run = agent(f"{server}/paced-{deltas}-{seconds}/v1").run(PROMPT)
    assert run.ok, run.error
    use_frontend(None)
    what = f"{deltas:,} deltas in {seconds} s, iopub"
    full = deltas == _DELTAS
    megabytes, messages = CountingComm.size / 1e6, CountingComm.messages
    yield Row(
        f"{what} bytes",
        "≤ 0.4 MB",
        f"{megabytes:.3f} MB",
        megabytes,
        0.4 if full else None,
        note=f"the text itself is {len(json.dumps(run.text)) / 1e6:.2f} MB",
    )
    yield Row(f"{what} messages", "≤ 500", f"{messages}", messages, 500.0 if full else None)
