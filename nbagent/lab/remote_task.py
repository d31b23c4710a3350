"""A run for another process: what is sent with it, what is refused, and the run made there.

Nothing that is sent contains a known secret: a worker takes its keys from its own environment. Does
not know Dask; sending and stopping are in `remote`.
"""

from __future__ import annotations

import asyncio
import io
import pickle
import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from inspect import unwrap
from types import FunctionType
from typing import Any, NamedTuple, cast

import cloudpickle

from nbagent.contracts.errors import UsageError, describe_error
from nbagent.contracts.messages import redacted
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact, redact_json, register_environment
from nbagent.lab.local import Local, Unattended
from nbagent.providers.offline import Script, scripts
from nbagent.providers.rate_limits import RateSnapshot
from nbagent.runtime import RunTask, engine_loop, wait
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

_LOCAL_FILE_OPTIONS = ("workflow", "document", "agent", "cache", "cassette")
"""Options that name files on this machine."""
_SECRET_OPTIONS = [name for name, row in RunOptions.rows().items() if row.secret]


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
