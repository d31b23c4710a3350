"""One run of many: started on the engine thread, shown nowhere, asking nobody.

The only place of this room that starts a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from nbagent.archive.store import Store
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.ports import RunCode, RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.runtime import Courier
from nbagent.session.active import ActiveRun, OnEvent
from nbagent.session.frontend import Asker, Cell, Frontend
from nbagent.session.prepare import Ask
from nbagent.settings import RunOptions


class Unattended(Frontend):
    """What the runs of a batch have of the front end: its names and its thread, but no view.

    Nobody is there to answer a question: only `on_approval` can.
    """

    def __init__(self, here: Frontend) -> None:
        """Take what `here` offers now, in the thread that makes the batch."""
        self._here, self._cell = here, here.cell()
        self._namespace, self._run_code = here.namespace(), here.run_code()
        self.waits_for = here.waits_for

    def namespace(self) -> Mapping[str, Any]:
        return self._namespace

    def run_code(self) -> RunCode | None:
        return self._run_code

    def cell(self) -> Cell:
        return self._cell

    def asker(self) -> Asker | None:
        return None

    def adopt(self, courier: Courier) -> None:
        self._here.adopt(courier)

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        return None


async def run_to_end(
    ask: Ask,
    *,
    store: Store,
    here: Unattended,
    cancel: CancelToken,
    on_event: OnEvent | None = None,
) -> RunRecord:
    """Run and give the record at the end; a stop of `cancel` stops it. On the engine thread.

    Raises:
        UsageError: it cannot start as asked; there is no run.
    """
    active = ActiveRun(ask, store=store, here=here)
    active.start(on_event)
    cancel.on_set(active.stop)
    await asyncio.wrap_future(active.courier.future)
    return active.record
