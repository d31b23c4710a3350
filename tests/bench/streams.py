"""Rows about streaming: a delta without and with the view, and what the view sends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any, cast

import comm
from frontends import StandIn
from jupyter_client.session import Session
from measure import Row, compared
from sides import PROMPT, BareLoop, agent

from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook.live_output import LiveWidget
from nbagent.notebook.run_widget import LiveRun
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
    """A live view, as a notebook with a front end shows every run."""
    view = LiveRun(run, controls, send=lambda message: cast("Any", widget).send(message))
    widget = LiveWidget(lambda: [view.picture()])
    return view


def rows(server: str, *, quick: bool) -> Iterator[Row]:
    """All of them."""
    comm.create_comm = CountingComm
    deltas, pairs = (1_000, 1) if quick else (_DELTAS, 9)
    burst = f"{server}/deltas-{deltas}/v1"
    yield from _ratios(burst, deltas, pairs)
    yield from _sent(server, *((500, 1) if quick else (_DELTAS, 20)))


def _ratios(url: str, deltas: int, pairs: int) -> Iterator[Row]:
    made = agent(url)
    with asyncio.Runner() as runner:
        loop = BareLoop(url)

        def bare() -> None:
            runner.run(loop.turns(stream=True))

        def ours() -> None:
            assert made.run(PROMPT).text

        for name, front, limit in (
            ("without a view", StandIn(), 1.0),
            ("with a view", StandIn(view=a_view), 1.3),
        ):
            use_frontend(front)
            what = f"{deltas:,} deltas in one burst, with the store, {name}"
            yield compared(what, bare, ours, pairs=pairs, limit=limit, each=(deltas, "delta"))
        runner.run(loop.client.aclose())
    use_frontend(None)


def _sent(server: str, deltas: int, seconds: int) -> Iterator[Row]:
    use_frontend(StandIn(view=a_view))
    CountingComm.messages = CountingComm.size = 0
    run = agent(f"{server}/paced-{deltas}-{seconds}/v1").run(PROMPT)
    assert run.ok, run.error
    use_frontend(None)
    what = f"{deltas:,} deltas in {seconds} s, iopub"
    note = f"the text itself is {len(json.dumps(run.text)) / 1e6:.2f} MB"
    yield Row(f"{what} bytes", CountingComm.size / 1e6, "MB", 0.4, note)
    yield Row(f"{what} messages", CountingComm.messages, "", 500.0)
