"""The runs of a batch on a Dask cluster: one task each, and its record comes home to the store.

Owns the tasks: how they are sent, stopped and lost. What they hold is in `parcels`. What comes back
is JSON, which nobody has to trust as a pickle.
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
from nbagent.lab.remote_task import Parcel, Receiver, Sender
from nbagent.providers.rate_limits import RateSnapshot, export_limits, import_limits
from nbagent.session.active import OnEvent
from nbagent.session.inherit import remembered
from nbagent.session.request import RunRequest
from nbagent.store.rows import to_notebook_json, from_notebook_json
from nbagent.store.writer import Store

_TOGETHER_S = 0.1
"""Records that come within so long are written in one transaction."""
_LOOK_AGAIN_S = 0.5
"""How often a stop looks for workers that had not heard of it."""
_COUNT_AGAIN_S = 2.0


class OnDask:
    """On the workers of a cluster. Made in the thread that makes the batch.

    Each run has a thread of its worker, in which its synchronous tools run beside those of other
    runs. The folders that file tools see are those of the worker's machine.
    """

    def __init__(self, client: Any, store: Store) -> None:
        if client.status != "running":
            raise UsageError("executor: this Dask client is closed; connect a new one")
        self._address: str = client.scheduler.address
        self._security = client.security
        self._store, self._sender = store, Sender(store)
        self.check = self._sender.check
        self._came: list[tuple[RunRecord, asyncio.Future[None]]] = []
        self._n_workers, self._counted_at = 1, 0.0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._batch = new_id()
        self._connecting: asyncio.Future[Any] | None = None
        self._handing_out = asyncio.Lock()
        self._handed_out: set[str] = set()
        """Hashes of kits that the workers have."""
        self._futures: dict[str, Any] = {}
        """By task, of those that are not done."""
        self._stopping: asyncio.Task[None] | None = None
        self._gone = False

    async def run(self, ask: RunRequest, on_event: OnEvent | None = None) -> RunRecord:
        """Run on a worker, and write the record here. Nothing is heard of it before its end."""
        kit, task = self._sender.kit_of(ask), new_id()
        client = await self._connected()
        limits = {name: it.divided_by(self._n_workers) for name, it in export_limits().items()}
        parcel = self._sender.parcel_of(ask, self._batch, task, limits)
        try:
            reply = await self._reply(client, task, kit, parcel)
        except Exception as error:
            raise self._failure(error) from None
        finally:
            self._futures.pop(task, None)
        paces = {name: RateSnapshot(*it) for name, it in reply["limits"].items()}
        import_limits({name: it.divided_by(1 / self._n_workers) for name, it in paces.items()})
        if "error" in reply:
            is_usage, code, message, details = reply["error"]
            if is_usage:
                raise UsageError(message, code=code, details=details)
            raise error_from_info(ErrorInfo(code, message, details))
        if reply["run"] is None:
            raise NoMoreRuns("stopped before it began")
        record = from_notebook_json(reply["run"])
        if "output" in ask.options.explicit:
            remembered[record.id] = {"output": ask.options.output}
        await self._keep(record)
        return record

    async def _reply(self, client: Any, task: str, kit: bytes, parcel: bytes) -> dict[str, Any]:
        """What a worker answers. It is given the kit first, if it has not got it yet."""
        sha = sha256_hex(kit)
        while True:
            # Not as what the task depends on: all tasks would go to the worker that has it.
            async with self._handing_out:
                if sha not in self._handed_out:
                    given = (self._batch, sha, kit, os.getpid())
                    await client.run(hand_to_worker, *given, on_error="ignore")
                    self._handed_out.add(sha)
            if self._stopping is not None:
                raise NoMoreRuns("stopped before it began")
            key = f"nbagent-{new_id()}"
            self._futures[task] = client.submit(run_on_worker, __version__, sha, parcel, key=key)
            reply = load_json(cast("bytes", await self._futures[task]))
            if "no kit" not in reply:
                return reply
            self._handed_out.discard(sha)  # A worker that came later.

    async def _connected(self) -> Any:
        """A client of our own on this loop, to the scheduler of the person's; see who works."""
        loop, connecting = asyncio.get_running_loop(), self._connecting
        if connecting is None:
            how: dict[str, Any] = {"asynchronous": True, "set_as_default": False}
            client: Any = distributed.Client(self._address, security=self._security, **how)
            connecting = self._connecting = asyncio.ensure_future(client)
        try:
            if self._gone:
                raise OSError
            client = await asyncio.shield(connecting)
            if loop.time() - self._counted_at > _COUNT_AGAIN_S:
                self._counted_at = loop.time()
                self._n_workers = max(1, len(await client.nthreads()))
        except Exception as error:
            raise self._failure(error) from None
        return client

    def _failure(self, error: Exception) -> NbagentError:
        """What Dask raised, as an error that says what to do."""
        if isinstance(error, NoMoreRuns):
            return error
        if isinstance(error, distributed.KilledWorker):
            return EngineError(
                f"{error.allowed_failures + 1} workers died while they made this run; see their "
                "logs (out of memory?), then start the same cell again",
                code="ENGINE_INTERRUPTED",
            )
        if isinstance(error, OSError) or "connection-lost" in getattr(error, "reason", ""):
            self._gone = True
            return NoMoreRuns(
                f"the Dask cluster at {self._address} is gone; connect a new client and start the "
                "same cell again: it goes on with what is missing"
            )
        if self._stopping is not None:
            return NoMoreRuns("stopped before it began")
        return EngineError(
            f"the Dask cluster could not make this run ({describe_error(error)}); scheduler and workers "
            f"need nbagent {__version__} and the Python of this process",
            code="ENGINE_INTERRUPTED",
        )

    async def _keep(self, record: RunRecord) -> None:
        """Write a record together with those that come at the same time."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        self._came.append((record, written))
        if len(self._came) == 1:
            await asyncio.sleep(_TOGETHER_S)
            came, self._came = self._came, []
            error: Exception | None = None
            try:
                await asyncio.to_thread(self._store.add, *(it for it, _ in came))
            except Exception as raised:
                error = raised
            for _, future in came:
                future.set_result(None) if error is None else future.set_exception(error)
        await written

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop the runs at work, which come home; cancel those that have not begun.

        A pause lets them end by themselves: of their turns nothing is heard here.
        """
        if self._stopping is None and not after_turn:
            self._stopping = asyncio.ensure_future(self._stop())

    async def _stop(self) -> None:
        # Again and again: a worker may have been starting.
        while self._futures and not self._gone:
            with suppress(Exception):
                client = await self._connected()
                said = await client.run(stop_on_worker, self._batch, on_error="ignore")
                begun = {task for tasks in said.values() for task in tasks or ()}
                idle = [it for task, it in self._futures.items() if task not in begun]
                await client.cancel([it for it in idle if not it.done()])
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def close(self) -> None:
        connecting, stopping, batch = self._connecting, self._stopping, self._batch
        was_gone = self._gone
        self._begin_anew()
        if stopping is not None:
            stopping.cancel()
        if connecting is not None and connecting.done() and not connecting.exception():
            client = connecting.result()
            if not was_gone:
                with suppress(Exception):
                    await client.run(forget_on_worker, batch, on_error="ignore")
            await client.close()


# In a worker's process

_receivers: dict[str, Receiver] = {}
"""By batch."""


def hand_to_worker(batch: str, sha: str, kit: bytes, made_by: int) -> None:
    """Leave what runs share in the process of a worker."""
    _receivers.setdefault(batch, Receiver()).kits[sha] = kit
    if os.getppid() == made_by:
        # Ctrl-C and ■ reach all processes of a group. The batch is stopped where it was made: a
        # LocalCluster's worker would die of it, with all that is at work there.
        with suppress(ValueError):
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_on_worker(version: str, sha: str, parcel: bytes) -> bytes:
    """Make a run in a thread of a worker; gives JSON: the record or an error, and the limits."""
    # Many runs wait for a model at the same time: none may take the place of another task.
    distributed.secede()
    said: dict[str, Any] = {}
    try:
        if version != __version__:
            raise UsageError(f"nbagent {__version__} is here, {version} where the batch was made")
        task: Parcel = pickle.loads(parcel)
        import_limits(task.limits)
        receiver = _receivers.setdefault(task.batch, Receiver())
        if sha in receiver.kits:
            record = receiver.run(sha, task)
            said["run"] = record and to_notebook_json(record)
        else:
            said["no kit"] = True
    except Exception as error:
        info = error.info if isinstance(error, NbagentError) else None
        info = info or ErrorInfo("E_INTERNAL", describe_error(error))
        text = f"on the worker {distributed.get_worker().address}: {info.message}"
        said["error"] = [isinstance(error, UsageError), info.code, text, info.details]
    said["limits"] = {name: [*it] for name, it in export_limits().items()}
    return dump_json(said)


async def stop_on_worker(batch: str) -> list[str]:
    """Stop the runs of a batch here; gives the tasks that have begun."""
    return await _receivers.setdefault(batch, Receiver()).stop()


def forget_on_worker(batch: str) -> None:
    """Let go of what is held for a batch that is over."""
    _receivers.pop(batch, None)
