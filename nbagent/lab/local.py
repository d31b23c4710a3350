"""Runs of a batch in this process: started on the engine thread, without a view or questions.

Only this module of the package starts runs. Runs on a cluster are in `remote`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from nbagent.contracts.errors import EngineError
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import RunCode
from nbagent.runtime import RunTask
from nbagent.session.active_run import ActiveRun
from nbagent.session.callbacks import OnEvent
from nbagent.session.frontend import Cell, Frontend, InputPrompt
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import current_settings, settings_override
from nbagent.store.writer import Store


class Unattended(Frontend):
    """Frontend of the runs of a batch: the names and the thread of the real one, without a view.

    Nobody can answer a question; only `on_approval` can.
    """

    def __init__(self, here: Frontend) -> None:
        """Copy the offers of `here`, in the thread that makes the batch."""
        # Read now: the engine's thread, which starts the runs, is in no cell.
        self._frontend, self._cell = here, here.cell()
        self._namespace, self._run_code = here.namespace(), here.run_code()
        self.wait_reason = here.wait_reason

    def namespace(self) -> Mapping[str, Any]:
        return self._namespace

    def run_code(self) -> RunCode | None:
        return self._run_code

    def cell(self) -> Cell:
        return self._cell

    def input_prompt(self) -> InputPrompt | None:
        return None

    def serve_when_idle(self, courier: RunTask) -> None:
        self._frontend.serve_when_idle(courier)

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        return None


class NoMoreRuns(EngineError):
    """No run was made, and none can start any more: stopped, or the cluster is gone."""


class Executor(Protocol):
    """Makes the runs of a batch. All methods are called on the engine thread."""

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        """Run to a stop point and return the record, which is then in the batch's store.

        Raises:
            UsageError: the run cannot start as requested.
            NoMoreRuns: no run can start until `close` was called.
        """
        ...

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop all active runs, or pause them after their turn; each `run` then returns soon."""
        ...

    async def close(self) -> None:
        """Release the resources: the batch has ended or paused. It may be started again later."""
        ...


@runtime_checkable
class SentTogether(Protocol):
    """Executor whose requests are sent all at once, before its runs are made."""

    def arrivals(
        self, requests: Mapping[int, RunRequest], on_change: Callable[[], None]
    ) -> AsyncGenerator[list[int]]:
        """Send the requests, and yield the indexes of those whose runs can be made now.

        Raises:
            NoMoreRuns: the wait was left.
            NbagentError: the requests cannot be sent, or their answers not be had.
        """
        ...

    def leave(self) -> None:
        """End the wait for answers; they can be had later."""
        ...

    @property
    def n_arriving(self) -> int:
        """Requests that are done, and whose runs cannot be made yet."""
        ...

    def notes(self) -> tuple[str, ...]:
        """Return what a person should know now."""
        ...


def n_arriving_at(executor: Executor) -> int:
    """Return the requests that are done, and whose runs cannot be made yet."""
    return executor.n_arriving if isinstance(executor, SentTogether) else 0


class Local:
    """Executor for runs in this process.

    All runs of one start of the batch have the settings of its first run: they are answers to one
    question, also if the person changes a setting meanwhile, and reading them takes a tenth of the
    time of a run.
    """

    def __init__(self, store: Store, here: Unattended) -> None:
        self._store, self._shared_frontend = store, here
        self._active_runs: set[ActiveRun] = set()
        self._settings: Settings | None = None

    def _prepare(self, ask: RunRequest) -> ActiveRun:
        """Prepare a run without starting it."""
        self._settings = self._settings or current_settings()
        with settings_override(self._settings):
            return ActiveRun(ask, store=self._store, here=self._shared_frontend)

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        active = self._prepare(ask)
        self._active_runs.add(active)
        try:
            active.start(on_event)
            await asyncio.wrap_future(active.run_task.future)
        finally:
            self._active_runs.discard(active)
        return active.record

    def stop(self, *, after_turn: bool = False) -> None:
        for active in tuple(self._active_runs):
            active.stop(after_turn=after_turn)

    async def close(self) -> None:
        self._settings = None
