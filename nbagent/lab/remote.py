"""Executor for a Dask cluster: one task per run; the record comes back to the store.

Owns sending, stopping and losing tasks; their content is in `remote_task`. Replies are JSON: a
pickle from a worker could run code here.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from contextlib import suppress
from typing import Any, cast

import distributed

from nbagent.contracts.canonical import dump_json, load_json, new_id, sha256_hex
from nbagent.contracts.errors import (
    EngineError,
    ErrorInfo,
    NbagentError,
    UsageError,
    describe_error,
    error_from_info,
)
from nbagent.contracts.records import RunRecord
from nbagent.contracts.version import __version__
from nbagent.lab.local import NoMoreRuns
from nbagent.lab.remote_task import RemoteTask, Serializer, WorkerBatch
from nbagent.providers.rate_limits import RateSnapshot, export_limits, import_limits
from nbagent.session.callbacks import OnEvent
from nbagent.session.inherit import unrecorded_options
from nbagent.session.request import RunRequest
from nbagent.store.rows import from_notebook_json, to_notebook_json
from nbagent.store.writer import Store

_WRITE_DELAY_S = 0.1
"""Records that arrive within this time are written in one transaction."""
_STOP_INTERVAL_S = 0.5
"""Interval at which a stop is repeated, for workers that were just starting."""
_COUNT_INTERVAL_S = 2.0
"""Interval at which workers are counted: they join and leave."""


class DaskExecutor:
    """Executor on the workers of a cluster. Created in the thread that makes the batch.

    Each run has a thread of its worker, in which its synchronous tools run beside those of other
    runs. File tools see the folders of the worker's machine.
    """

    def __init__(self, client: Any, store: Store) -> None:
        if client.status != "running":
            raise UsageError("executor: this Dask client is closed; connect a new one")
        self._address: str = client.scheduler.address
        self._security = client.security
        self._store, self._serializer = store, Serializer(store)
        self.check = self._serializer.check
        self._unwritten: list[tuple[RunRecord, asyncio.Future[None]]] = []
        self._n_workers, self._counted_at = 1, 0.0
        self._reset()

    def _reset(self) -> None:
        self._batch = new_id()
        self._connecting: asyncio.Future[Any] | None = None
        self._sharing_lock = asyncio.Lock()
        self._shared_hashes: set[str] = set()
        """Hashes of the shared contexts that the workers have."""
        self._futures: dict[str, Any] = {}
        """Dask futures of unfinished tasks, by task id."""
        self._stopping: asyncio.Task[None] | None = None
        self._is_gone = False

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        """Run on a worker, and write the record here. There are no events before its end."""
        shared, task = self._serializer.shared_context(ask), new_id()
        client = await self._connect()
        # A server's limit is for all workers together: each gets a share, and reports of its share.
        limits = {
            name: snapshot.divided_by(self._n_workers) for name, snapshot in export_limits().items()
        }
        pickled_task = self._serializer.pickle_task(ask, self._batch, task, limits)
        try:
            reply = await self._reply(client, task, shared, pickled_task)
        except Exception as error:
            raise self._failure(error) from None
        finally:
            self._futures.pop(task, None)
        snapshots = {name: RateSnapshot(*snapshot) for name, snapshot in reply["limits"].items()}
        import_limits(
            {name: snapshot.divided_by(1 / self._n_workers) for name, snapshot in snapshots.items()}
        )
        if "error" in reply:
            is_usage, code, message, details = reply["error"]
            if is_usage:
                raise UsageError(message, code=code, details=details)
            raise error_from_info(ErrorInfo(code, message, details))
        if reply["run"] is None:
            raise NoMoreRuns("stopped before it began")
        record = from_notebook_json(reply["run"])
        # No record holds the type; a resumed run needs it.
        if "output" in ask.options.explicit:
            unrecorded_options[record.id] = {"output": ask.options.output}
        await self._write(record)
        return record

    async def _reply(
        self, client: Any, task: str, shared: bytes, pickled_task: bytes
    ) -> dict[str, Any]:
        """Submit a task and return the worker's reply; send the shared context first if it is
        missing."""
        sha = sha256_hex(shared)
        while True:
            # Not as a dependency of the task: Dask prefers workers that hold the dependencies, so
            # all tasks would go to one worker.
            async with self._sharing_lock:
                if sha not in self._shared_hashes:
                    arguments = (self._batch, sha, shared, os.getpid())
                    # A worker that misses it asks for it by "no kit".
                    await client.run(share_with_worker, *arguments, on_error="ignore")
                    self._shared_hashes.add(sha)
            if self._stopping is not None:
                raise NoMoreRuns("stopped before it began")
            # A key of its own: Dask makes calls with equal arguments only once.
            key = f"nbagent-{new_id()}"
            self._futures[task] = client.submit(
                run_on_worker, __version__, sha, pickled_task, key=key
            )
            reply = load_json(cast("bytes", await self._futures[task]))
            if "no kit" not in reply:
                return reply
            self._shared_hashes.discard(sha)  # a worker that joined later

    async def _connect(self) -> Any:
        """Open an own client on this loop, to the person's scheduler; count its workers now and
        then.

        The person's client has a loop of its own and must not wait for this one.
        """
        loop, connecting = asyncio.get_running_loop(), self._connecting
        if connecting is None:
            how: dict[str, Any] = {"asynchronous": True, "set_as_default": False}
            client: Any = distributed.Client(self._address, security=self._security, **how)
            connecting = self._connecting = asyncio.ensure_future(client)
        try:
            if self._is_gone:
                raise OSError
            # Several runs wait for it: cancelling one must not cancel it for all.
            client = await asyncio.shield(connecting)
            if loop.time() - self._counted_at > _COUNT_INTERVAL_S:
                self._counted_at = loop.time()
                self._n_workers = max(1, len(await client.nthreads()))
        except Exception as error:
            raise self._failure(error) from None
        return client

    def _failure(self, error: Exception) -> NbagentError:
        """Convert an exception of Dask to an error that says what to do."""
        if isinstance(error, NoMoreRuns):
            return error
        if isinstance(error, distributed.KilledWorker):
            return EngineError(
                f"{error.allowed_failures + 1} workers died while they made this run; see their "
                "logs (out of memory?), then start the same cell again",
                code="ENGINE_INTERRUPTED",
            )
        # Dask cancels futures with the reason "scheduler-connection-lost".
        if isinstance(error, OSError) or "connection-lost" in getattr(error, "reason", ""):
            self._is_gone = True
            return NoMoreRuns(
                f"the Dask cluster at {self._address} is gone; connect a new client and start the "
                "same cell again: it continues with the missing cases"
            )
        if self._stopping is not None:
            return NoMoreRuns("stopped before it began")
        return EngineError(
            f"the Dask cluster could not make this run ({describe_error(error)}); scheduler and "
            f"workers need nbagent {__version__} and the Python of this process",
            code="ENGINE_INTERRUPTED",
        )

    async def _write(self, record: RunRecord) -> None:
        """Write a record, together with those that arrive at the same time."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._unwritten.append((record, written))
        if len(self._unwritten) == 1:
            await asyncio.sleep(_WRITE_DELAY_S)
            batch, self._unwritten = self._unwritten, []
            error: Exception | None = None
            try:
                await asyncio.to_thread(self._store.add, *(record for record, _ in batch))
            except Exception as raised:
                error = raised
            for _, future in batch:
                future.set_result(None) if error is None else future.set_exception(error)
        await written

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop the active runs, whose records come back; cancel those that have not started.

        A pause (`after_turn`) lets them run to their end: their turns are not reported here.
        """
        if self._stopping is None and not after_turn:
            self._stopping = asyncio.ensure_future(self._stop())

    async def _stop(self) -> None:
        # Repeated, because a worker may have been starting meanwhile.
        while self._futures and not self._is_gone:
            with suppress(Exception):
                client = await self._connect()
                begun_by_worker = await client.run(stop_on_worker, self._batch, on_error="ignore")
                begun = {task for tasks in begun_by_worker.values() for task in tasks or ()}
                idle = [future for task, future in self._futures.items() if task not in begun]
                await client.cancel([future for future in idle if not future.done()])
            await asyncio.sleep(_STOP_INTERVAL_S)

    async def close(self) -> None:
        connecting, stopping, batch = self._connecting, self._stopping, self._batch
        was_gone = self._is_gone
        self._reset()
        if stopping is not None:
            stopping.cancel()
        if connecting is not None and connecting.done() and not connecting.exception():
            client = connecting.result()
            if not was_gone:
                with suppress(Exception):
                    await client.run(forget_on_worker, batch, on_error="ignore")
            await client.close()


# In a worker's process

_worker_batches: dict[str, WorkerBatch] = {}
"""State of each batch in this worker process, by batch id."""


def share_with_worker(batch: str, sha: str, shared: bytes, made_by: int) -> None:
    """Store the shared context of a batch in this worker process."""
    _worker_batches.setdefault(batch, WorkerBatch()).shared[sha] = shared
    if os.getppid() == made_by:
        # Ctrl-C and ■ reach all processes of a group, so a LocalCluster's worker would die with all
        # of its runs. The process that made the batch stops it.
        # ValueError: only a process's main thread can set a handler.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_on_worker(version: str, sha: str, pickled_task: bytes) -> bytes:
    """Make a run in a thread of a worker; return JSON: the record or an error, and rate limits."""
    # Leave the worker's thread pool: runs mostly wait for a model and must not block other tasks.
    distributed.secede()
    reply: dict[str, Any] = {}
    try:
        # Before unpickling, which could fail with a confusing error for another version.
        if version != __version__:
            raise UsageError(f"nbagent {__version__} is here, {version} where the batch was made")
        task: RemoteTask = pickle.loads(pickled_task)
        import_limits(task.limits)
        state = _worker_batches.setdefault(task.batch, WorkerBatch())
        if sha in state.shared:
            record = state.run(sha, task)
            reply["run"] = record and to_notebook_json(record)
        else:
            reply["no kit"] = True
    except Exception as error:
        info = error.info if isinstance(error, NbagentError) else None
        info = info or ErrorInfo("E_INTERNAL", describe_error(error))
        text = f"on the worker {distributed.get_worker().address}: {info.message}"
        reply["error"] = [isinstance(error, UsageError), info.code, text, info.details]
    reply["limits"] = {name: [*snapshot] for name, snapshot in export_limits().items()}
    return dump_json(reply)


async def stop_on_worker(batch: str) -> list[str]:
    """Stop the runs of a batch on this worker; return the tasks that have started."""
    return await _worker_batches.setdefault(batch, WorkerBatch()).stop()


def forget_on_worker(batch: str) -> None:
    """Drop the state of a batch that has ended."""
    _worker_batches.pop(batch, None)
