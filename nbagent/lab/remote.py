"""Runs of a batch on a Dask cluster: the executor, what it sends to a worker, and the work there.

One task per run; the record comes back to the store. Nothing that is sent contains a known secret:
a worker takes its keys from its own environment. Replies are JSON: a pickle from a worker could run
code here.
"""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import re
import signal
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from inspect import unwrap
from types import FunctionType
from typing import Any, NamedTuple, cast

import cloudpickle
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
from nbagent.contracts.messages import redacted
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact, redact_json, register_environment
from nbagent.contracts.version import __version__
from nbagent.lab.local import Local, NoMoreRuns, Unattended
from nbagent.providers.offline import Script, scripts
from nbagent.providers.rate_limits import RateSnapshot, export_limits, import_limits
from nbagent.runtime import RunTask, engine_loop, wait
from nbagent.session.callbacks import OnEvent
from nbagent.session.frontend import Cell, Frontend, frontend
from nbagent.session.inherit import output_type_of, unrecorded_options
from nbagent.session.models import resolve_model, resolve_settings, same_server
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import (
    current_settings,
    setting_origins,
    settings_override,
    without_secrets,
)
from nbagent.store.rows import from_notebook_json, to_notebook_json
from nbagent.store.writer import Store
from nbagent.tools.functions.host import namespace_tools
from nbagent.tools.hosts import host_module, is_host_source

_WRITE_DELAY_S = 0.1
"""Records that arrive within this time are written in one transaction."""
_STOP_INTERVAL_S = 0.5
"""Interval at which a stop is repeated, for workers that were just starting."""
_COUNT_INTERVAL_S = 2.0
"""Interval at which workers are counted: they join and leave."""
_LOCAL_FILE_OPTIONS = ("workflow", "document", "agent", "cache", "cassette")
"""Options that name files on this machine."""
_SECRET_OPTIONS = [name for name, row in RunOptions.rows().items() if row.secret]


# What is sent


class SharedContext(NamedTuple):
    """Functions and types, which only cloudpickle can send.

    Runs share them, and a worker loads them once per batch: pickling them for each run is slow.
    """

    tools: tuple[object, ...] | None
    names: Mapping[str, object]
    """Values of the notebook: its tools, and names that their type hints use."""
    on_approval: Any
    output: Any
    script: Script | None
    """Script of an offline model; loading it registers it by name."""


class RemoteTask(NamedTuple):
    """One run, without the shared context."""

    batch: str
    task: str
    ask: RunRequest
    settings: Settings
    secret_names: Mapping[str, list[str]]
    """Names in each secret setting; the worker has the values in its environment."""
    lineage: list[Any]
    """Runs that it continues, oldest first, in the JSON form of saved notebooks."""
    limits: Mapping[str, RateSnapshot]
    cell: Cell


_Pickler: Any = cloudpickle.Pickler


class _RemotePickler(_Pickler):
    """Refuses open files: cloudpickle would silently send a copy of their content."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, io.TextIOWrapper):
            raise TypeError("it holds an open file")
        return _Pickler.reducer_override(self, obj)


def _pickle_for_worker(label: str, value: Any) -> bytes:
    """Pickle a value for a worker; raise UsageError if that fails or it contains a secret."""
    file = io.BytesIO()
    try:
        _RemotePickler(file).dump(value)
    except Exception as error:
        raise UsageError(
            f"{label} cannot be sent to a worker ({describe_error(error)}); open files, locks and "
            "connections inside the function, or run without executor="
        ) from None
    register_environment()
    # Pickle stores texts as plain UTF-8, so a secret can be found in the bytes.
    text = file.getvalue().decode("utf-8", "replace")
    if redact(text) != text:
        raise UsageError(
            f"{label} holds a secret of this process, which is never sent; read it from the "
            "workers' environment inside the function"
        )
    return file.getvalue()


class Serializer:
    """Pickles the runs of a batch. Created in the thread that makes the batch."""

    def __init__(self, store: Store) -> None:
        here = frontend()
        self._store, self._namespace, self._cell = store, dict(here.namespace()), here.cell()
        settings = current_settings()
        secrets = {name: getattr(settings, name) or () for name in _SECRET_OPTIONS}
        self._secret_names = {name: sorted(values) for name, values in secrets.items() if values}
        self._settings = without_secrets(settings.with_changes(**dict.fromkeys(_SECRET_OPTIONS)))
        self._pickled: dict[tuple[Any, ...], tuple[SharedContext, bytes]] = {}

    def check(self, ask: RunRequest) -> None:
        """Raise UsageError if a run cannot be sent."""
        configured = {
            name for name, source in setting_origins().items() if source.source == "configure"
        }
        for name in _SECRET_OPTIONS:
            if name in ask.options.explicit or name in configured:
                raise UsageError(
                    f"{name} may hold secrets, which are never sent; set NBAGENT_{name.upper()} in "
                    "the workers' environment instead"
                )
        run_settings = resolve_settings(ask.options, self._settings)
        for name in _LOCAL_FILE_OPTIONS:
            value: Any = ask.options.explicit.get(name) or getattr(run_settings, name, None)
            if value not in (None, "off"):
                raise UsageError(
                    f"{name}={value!r} names files of this machine, which a worker does not have; "
                    "leave it out, or run without executor="
                )
        for host_name in self._tool_names(ask) or ():
            if host_name == "all" or host_module(host_name) in ("notebook", "mcp"):
                raise UsageError(
                    f"the tools {host_name!r} belong to this process and cannot be sent to a "
                    "worker; name functions, fs or skills"
                )
        for tool in ask.tools or ():
            if is_host_source(tool) or hasattr(type(tool), "prepare"):
                raise UsageError(
                    f"the tools of {_name(tool)} belong to this process and cannot be sent to a "
                    "worker; give functions, or run without executor="
                )
        if ask.api_key is not None:
            raise UsageError(
                "the function in api_key= belongs to this process and cannot be sent to a worker; "
                "set an environment variable of the workers, or run without executor="
            )
        self.shared_context(ask)

    def _tool_names(self, ask: RunRequest) -> tuple[str, ...] | None:
        setting = resolve_settings(ask.options, self._settings).tools
        names: Any = setting if ask.tools is None else ask.options.tools
        return (names,) if isinstance(names, str) else names

    def shared_context(self, ask: RunRequest) -> bytes:
        """Return the pickled shared context of a run; equal ones are pickled once."""
        model = resolve_settings(ask.options, self._settings).model or ""
        output: Any = ask.options.output
        if output is None and ask.parent_id:
            output = output_type_of(ask.parent_id)
        script = scripts.get(model.removeprefix("offline:"))
        names = self._tool_names(ask)
        shared = SharedContext(ask.tools, {}, ask.on_approval, output, script)
        # The cached contexts keep these objects alive, so an id is not used again.
        key = (ask.tools and tuple(map(id, ask.tools)), names, *map(id, shared[2:]))
        if key not in self._pickled:
            shared = shared._replace(names=self._notebook_values(ask.tools, names))
            # One by one first, so that an error names the value that cannot be sent.
            for tool in ask.tools or ():
                _pickle_for_worker(f"the tool {_name(tool)}", tool)
            for name, value in shared.names.items():
                _pickle_for_worker(f"{name!r} of the notebook", value)
            _pickle_for_worker("on_approval", ask.on_approval)
            self._pickled[key] = shared, _pickle_for_worker("the shared context", shared)
        return self._pickled[key][1]

    def _notebook_values(
        self, tools: tuple[object, ...] | None, names: tuple[str, ...] | None
    ) -> dict[str, object]:
        marked = namespace_tools(self._namespace)
        if names is None:
            values = {} if tools else marked
        else:
            plain = {name: self._namespace.get(name) for name in names}
            values = {name: tool for name, tool in plain.items() if type(tool) is FunctionType}
            values |= {name: marked[name] for name in names if name in marked}
        for tool in (*values.values(), *(tools or ())):
            # cloudpickle follows names in code, but not those in string annotations.
            inner: Any = unwrap(cast("Any", tool)) if callable(tool) else None
            if type(inner) is FunctionType:
                known = {**self._namespace, **inner.__globals__}
                hints = (name for name in inner.__annotations__.values() if isinstance(name, str))
                hint_names = {word for hint in hints for word in re.findall(r"\w+", hint)}
                values = {word: known[word] for word in hint_names if word in known} | values
        return values

    def pickle_task(
        self, ask: RunRequest, batch: str, task: str, limits: Mapping[str, RateSnapshot]
    ) -> bytes:
        """Pickle one run; raise UsageError if it cannot be sent."""
        options, settings = without_secrets(ask.options), self._settings
        stays = same_server(options, settings.model, settings.base_url)
        if ask.parent_id is None:
            # Model and server come from this environment, not from the worker's.
            resolved = resolve_model(resolve_settings(options, settings), need_key=False)
            target = {"model": resolved.model_id, "base_url": resolved.base_url}
            new = {name: part for name, part in target.items() if name not in options.explicit}
            if stays:
                settings = settings.with_changes(**new)
            else:
                options = options.with_changes(**new)
        lineage: list[Any] = []
        parent_id = ask.parent_id
        while parent_id is not None:
            parent = self._store.load(parent_id)
            lineage.insert(0, to_notebook_json(parent))
            parent_id = parent.parent_id
        ask = replace(
            ask,
            prompt=ask.prompt and redact(ask.prompt),
            template=ask.template and redact(ask.template),
            parts=tuple(redacted(part) for part in ask.parts),
            messages=tuple(redacted(part) for part in ask.messages),
            edits=redact_json(ask.edits),
            # These are in the shared context, once for all runs.
            options=options.with_changes(output=None),
            tools=None,
            on_approval=None,
        )
        # Headers and the like are meant for the configured server, not for another one.
        names = self._secret_names if stays else {}
        remote_task = RemoteTask(batch, task, ask, settings, names, lineage, limits, self._cell)
        return _pickle_for_worker(
            f"row {ask.case.row_key!r}" if ask.case else "the run", remote_task
        )


def _name(tool: Any) -> str:
    return repr(getattr(tool, "__name__", None) or getattr(tool, "name", type(tool).__name__))


# The executor


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


class _RemoteFrontend(Frontend):
    """Frontend on a worker: the cell and the names of the process that made the batch."""

    def __init__(self, cell: Cell, names: Mapping[str, object]) -> None:
        self._cell, self._names = cell, names

    def namespace(self) -> Mapping[str, Any]:
        return self._names

    def cell(self) -> Cell:
        return self._cell


class WorkerBatch:
    """State of one batch in a worker process."""

    def __init__(self) -> None:
        self._stopped = False
        self._begun_tasks: set[str] = set()
        self._executors: set[Local] = set()
        self.shared: dict[str, bytes | SharedContext] = {}
        """Shared contexts by hash; unpickled at the first use."""
        self._lock = threading.Lock()

    def run(self, sha: str, task: RemoteTask) -> RunRecord | None:
        """Make a run in this thread; return None if the batch was stopped before it started.

        Raises:
            UsageError: it cannot start here.
        """
        shared = self._load_shared(sha)
        options = task.ask.options.with_changes(output=shared.output)
        ask = replace(task.ask, options=options, tools=shared.tools, on_approval=shared.on_approval)
        settings = task.settings.with_changes(**_worker_secrets(task.secret_names))
        store = Store.memory()
        if task.lineage:
            store.add(*map(from_notebook_json, task.lineage))
        local = Local(store, Unattended(_RemoteFrontend(task.cell, shared.names)))

        async def make() -> RunRecord | None:
            # On the engine's loop, as `stop` is: no run can start after a stop.
            if self._stopped:
                return None
            self._begun_tasks.add(task.task)
            self._executors.add(local)
            try:
                return await local.run(ask)
            finally:
                self._executors.discard(local)

        with settings_override(settings):
            run_task = RunTask().start(make)
        try:
            record: RunRecord | None = wait(run_task)
        finally:
            store.close()
        if record is not None:
            # Nobody resumes a run here, and a worker may live for weeks.
            unrecorded_options.pop(record.id, None)
        return record

    def _load_shared(self, sha: str) -> SharedContext:
        with self._lock:
            shared = self.shared[sha]
            if isinstance(shared, bytes):
                try:
                    shared = self.shared[sha] = cast("SharedContext", pickle.loads(shared))
                except Exception as error:
                    raise UsageError(
                        f"the tools cannot be loaded ({describe_error(error)}); install their "
                        "module on the workers, or send it with client.upload_file(…)"
                    ) from None
            return shared

    async def stop(self) -> list[str]:
        """Stop the active runs and start no more; return the started tasks. Any loop."""

        async def stop() -> list[str]:
            self._stopped = True
            for local in tuple(self._executors):
                local.stop()
            return [*self._begun_tasks]

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stop(), engine_loop()))


def _worker_secrets(names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the secret settings of this process; raise UsageError if names are missing."""
    own = current_settings()
    for name, wanted in names.items():
        if missing := sorted({*wanted} - (getattr(own, name) or {}).keys()):
            raise UsageError(
                f"{name} has no {', '.join(missing)} here; set NBAGENT_{name.upper()} in the "
                "workers' environment as it is where the batch was made"
            )
    return {name: getattr(own, name) for name in _SECRET_OPTIONS}


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
