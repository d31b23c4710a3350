"""One run of many: started on the engine thread, shown nowhere, asking nobody.

The only place of this room that starts a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from nbagent.contracts.errors import EngineError
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import RunCode
from nbagent.runtime import RunTask
from nbagent.session.active import ActiveRun, OnEvent
from nbagent.session.frontend import Asker, Cell, Frontend
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions
from nbagent.store.writer import Store


class Unattended(Frontend):
    """What the runs of a batch have of the front end: its names and its thread, but no view.

    Nobody is there to answer a question: only `on_approval` can.
    """

    def __init__(self, here: Frontend) -> None:
        """Take what `here` offers now, in the thread that makes the batch."""
        self._here, self._cell = here, here.cell()
        self._namespace, self._run_code = here.namespace(), here.run_code()
        self.waits_for = here.wait_reason

    def namespace(self) -> Mapping[str, Any]:
        return self._namespace

    def run_code(self) -> RunCode | None:
        return self._run_code

    def cell(self) -> Cell:
        return self._cell

    def asker(self) -> Asker | None:
        return None

    def adopt(self, courier: RunTask) -> None:
        self._here.serve_when_idle(courier)

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        return None


class NoMoreRuns(EngineError):
    """There is no run, and none can begin any more: it was stopped, or its machines are gone."""


class Executor(Protocol):
    """Where the runs of a batch are made. All of it on the engine thread."""

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        """Run to a stop point; the run is in the batch's store when this returns.

        Raises:
            UsageError: it cannot start as asked; there is no run.
            NoMoreRuns: there is no run, and none can begin until `close` was called.
        """
        ...

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop all that is at work, or pause it after its turn; each `run` then returns soon."""
        ...

    async def close(self) -> None:
        """This go of the batch has ended: give back what it held. Another one may follow."""
        ...


class Local:
    """In this process."""

    def __init__(self, store: Store, here: Unattended) -> None:
        self._store, self._here = store, here
        self._at_work: set[ActiveRun] = set()

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        active = ActiveRun(ask, store=self._store, here=self._here)
        self._at_work.add(active)
        try:
            active.start(on_event)
            await asyncio.wrap_future(active.courier.future)
        finally:
            self._at_work.discard(active)
        return active.record

    def stop(self, *, after_turn: bool = False) -> None:
        for active in tuple(self._at_work):
            active.stop(after_turn=after_turn)

    async def close(self) -> None:
        """Nothing is held."""
