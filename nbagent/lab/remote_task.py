"""A run on its way to another process: what goes along, what is refused, and the run made there.

Nothing that is sent holds a known secret: a worker has its keys from its own environment. Knows no
cluster; in a worker's process it holds what a batch needs there.
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
from nbagent.session.inherit import remembered, type_of
from nbagent.session.models import provider_settings, resolve_model, same_server
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions, Settings
from nbagent.settings.sources import current_settings, settings_override, setting_origins, without_secrets
from nbagent.store.rows import to_notebook_json, from_notebook_json
from nbagent.store.writer import Store
from nbagent.tools.functions.host import namespace_tools
from nbagent.tools.hosts import host_of, is_source

_OF_THIS_MACHINE = ("workflow", "document", "agent", "cache", "cassette")
"""Options that name files which a run reads or writes."""
_SECRET = [name for name, row in RunOptions.rows().items() if row.secret]


class Kit(NamedTuple):
    """What only cloudpickle can send; runs share it, and a worker loads it once for a batch."""

    tools: tuple[object, ...] | None
    names: Mapping[str, object]
    """Of the notebook: its tools, and what their hints name."""
    on_approval: Any
    output: Any
    script: Script | None
    """Of an offline model; loaded, it is found by its name."""


class Parcel(NamedTuple):
    """One run, beside its kit."""

    batch: str
    task: str
    ask: RunRequest
    settings: Settings
    secret_names: Mapping[str, list[str]]
    """Of each secret setting that holds here the names in it; a worker has the values."""
    lineage: list[Any]
    """The runs that it goes on from, packed, the first one first."""
    limits: Mapping[str, RateSnapshot]
    cell: Cell


_Pickler: Any = cloudpickle.Pickler


class _Packer(_Pickler):
    """Refuses open files, of which cloudpickle would send a copy."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, io.TextIOWrapper):
            raise TypeError("it holds an open file")
        return _Pickler.reducer_override(self, obj)


def _sealed(what: str, value: Any) -> bytes:
    """Pickle something for a worker; UsageError where that cannot be, or it holds a secret."""
    file = io.BytesIO()
    try:
        _Packer(file).dump(value)
    except Exception as error:
        raise UsageError(
            f"{what} cannot be sent to a worker ({describe_error(error)}); open files, locks and "
            "connections inside the function, or run without executor="
        ) from None
    register_environment()
    text = file.getvalue().decode("utf-8", "replace")
    if redact(text) != text:
        raise UsageError(
            f"{what} holds a secret of this process, which is never sent; read it from the "
            "workers' environment inside the function"
        )
    return file.getvalue()


class Sender:
    """Packs the runs of a batch. Made in the thread that makes the batch."""

    def __init__(self, store: Store) -> None:
        here = frontend()
        self._store, self._there, self._cell = store, dict(here.namespace()), here.cell()
        settings = current_settings()
        held = {name: getattr(settings, name) or () for name in _SECRET}
        self._secret_names = {name: sorted(it) for name, it in held.items() if it}
        self._settings = without_secrets(settings.with_changes(**dict.fromkeys(_SECRET)))
        self._kits: dict[tuple[Any, ...], tuple[Kit, bytes]] = {}

    def check(self, ask: RunRequest) -> None:
        """Raise UsageError where a run cannot be sent as it is."""
        configured = {name for name, it in setting_origins().items() if it.source == "configure"}
        for name in _SECRET:
            if name in ask.options.explicit or name in configured:
                raise UsageError(
                    f"{name} may hold secrets, which are never sent; set NBAGENT_{name.upper()} in "
                    "the workers' environment instead"
                )
        asked = provider_settings(ask.options, self._settings)
        for name in _OF_THIS_MACHINE:
            value: Any = ask.options.explicit.get(name) or getattr(asked, name, None)
            if value not in (None, "off"):
                raise UsageError(
                    f"{name}={value!r} means files of this machine, which a worker has not; leave "
                    "it out, or run without executor="
                )
        for word in self._tool_names(ask) or ():
            if word == "all" or host_of(word) in ("notebook", "mcp"):
                raise UsageError(
                    f"the tools {word!r} belong to this process and cannot be sent to a worker; "
                    "name functions, fs or skills"
                )
        for tool in ask.tools or ():
            if is_source(tool) or hasattr(type(tool), "prepare"):
                raise UsageError(
                    f"the tools of {_name(tool)} belong to this process and cannot be sent to a "
                    "worker; give functions, or run without executor="
                )
        self.kit_of(ask)

    def _tool_names(self, ask: RunRequest) -> tuple[str, ...] | None:
        asked = provider_settings(ask.options, self._settings).tools
        names: Any = asked if ask.tools is None else ask.options.tools
        return (names,) if isinstance(names, str) else names

    def kit_of(self, ask: RunRequest) -> bytes:
        """What a run shares with others, pickled once for all of them."""
        model = provider_settings(ask.options, self._settings).model or ""
        output: Any = ask.options.output
        if output is None and ask.parent_id:
            output = type_of(ask.parent_id)
        script = scripts.get(model.removeprefix("offline:"))
        names = self._tool_names(ask)
        kit = Kit(ask.tools, {}, ask.on_approval, output, script)
        key = (ask.tools and tuple(map(id, ask.tools)), names, *map(id, kit[2:]))
        if key not in self._kits:
            kit = kit._replace(names=self._names_of(ask.tools, names))
            for tool in ask.tools or ():
                _sealed(f"the tool {_name(tool)}", tool)
            for name, value in kit.names.items():
                _sealed(f"{name!r} of the notebook", value)
            _sealed("on_approval", ask.on_approval)
            self._kits[key] = kit, _sealed("what the runs share", kit)
        return self._kits[key][1]

    def _names_of(
        self, tools: tuple[object, ...] | None, names: tuple[str, ...] | None
    ) -> dict[str, object]:
        marked = namespace_tools(self._there)
        if names is None:
            found = {} if tools else marked
        else:
            plain = {it: self._there.get(it) for it in names}
            found = {it: tool for it, tool in plain.items() if type(tool) is FunctionType}
            found |= {it: marked[it] for it in names if it in marked}
        for tool in (*found.values(), *(tools or ())):
            # cloudpickle sends what code names, but not what a hint that is a text names.
            inner: Any = unwrap(cast("Any", tool)) if callable(tool) else None
            if type(inner) is FunctionType:
                known = {**self._there, **inner.__globals__}
                hints = (it for it in inner.__annotations__.values() if isinstance(it, str))
                words = {word for hint in hints for word in re.findall(r"\w+", hint)}
                found = {word: known[word] for word in words if word in known} | found
        return found

    def parcel_of(self, ask: RunRequest, batch: str, task: str, limits: Mapping[str, RateSnapshot]) -> bytes:
        """One run, pickled. UsageError where it cannot be asked as it is."""
        options, settings = without_secrets(ask.options), self._settings
        stays = same_server(options, settings.model, settings.base_url)
        if ask.parent_id is None:
            # Model and server are those of this environment, not of a worker's.
            chosen = resolve_model(provider_settings(options, settings), need_key=False)
            found = {"model": chosen.model_id, "base_url": chosen.base_url}
            new = {name: it for name, it in found.items() if name not in options.explicit}
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
            parts=tuple(redacted(it) for it in ask.parts),
            messages=tuple(redacted(it) for it in ask.messages),
            edits=redact_json(ask.edits),
            options=options.with_changes(output=None),
            tools=None,
            on_approval=None,
        )
        names = self._secret_names if stays else {}
        parcel = Parcel(batch, task, ask, settings, names, lineage, limits, self._cell)
        return _sealed(f"row {ask.case.row_key!r}" if ask.case else "the run", parcel)


def _name(tool: Any) -> str:
    return repr(getattr(tool, "__name__", None) or getattr(tool, "name", type(tool).__name__))


# In a worker's process


class _Sent(Frontend):
    """What a run has of the front end where the batch was made."""

    def __init__(self, cell: Cell, names: Mapping[str, object]) -> None:
        self._cell, self._names = cell, names

    def namespace(self) -> Mapping[str, Any]:
        return self._names

    def cell(self) -> Cell:
        return self._cell


class Receiver:
    """What a worker's process holds of one batch."""

    def __init__(self) -> None:
        self._stopped = False
        self._begun: set[str] = set()
        self._at_work: set[Local] = set()
        self.kits: dict[str, bytes | Kit] = {}
        """By hash; loaded at the first use."""
        self._lock = threading.Lock()

    def run(self, sha: str, parcel: Parcel) -> RunRecord | None:
        """Make a run, in this thread; None where the batch was stopped before it began.

        Raises:
            UsageError: it cannot start here.
        """
        given = self._loaded(sha)
        options = parcel.ask.options.with_changes(output=given.output)
        ask = replace(parcel.ask, options=options, tools=given.tools, on_approval=given.on_approval)
        settings = parcel.settings.with_changes(**_own_secrets(parcel.secret_names))
        store = Store.memory()
        if parcel.lineage:
            store.add(*map(from_notebook_json, parcel.lineage))
        local = Local(store, Unattended(_Sent(parcel.cell, given.names)))

        async def make() -> RunRecord | None:
            if self._stopped:
                return None
            self._begun.add(parcel.task)
            self._at_work.add(local)
            try:
                return await local.run(ask)
            finally:
                self._at_work.discard(local)

        with settings_override(settings):
            courier = RunTask().start(make)
        try:
            record: RunRecord | None = wait(courier)
        finally:
            store.close()
        if record is not None:
            remembered.pop(record.id, None)
        return record

    def _loaded(self, sha: str) -> Kit:
        with self._lock:
            kit = self.kits[sha]
            if isinstance(kit, bytes):
                try:
                    kit = self.kits[sha] = cast("Kit", pickle.loads(kit))
                except Exception as error:
                    raise UsageError(
                        f"the tools cannot be loaded ({describe_error(error)}); install their module "
                        "on the workers, or send it with client.upload_file(…)"
                    ) from None
            return kit

    async def stop(self) -> list[str]:
        """Stop what is at work and begin no more; gives the tasks that have begun. Any loop."""

        async def stop() -> list[str]:
            self._stopped = True
            for local in tuple(self._at_work):
                local.stop()
            return [*self._begun]

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stop(), engine_loop()))


def _own_secrets(names: Mapping[str, list[str]]) -> dict[str, Any]:
    """The secret settings of this process, which must be of the same names."""
    own = current_settings()
    for name, wanted in names.items():
        if missing := sorted({*wanted} - (getattr(own, name) or {}).keys()):
            raise UsageError(
                f"{name} has no {', '.join(missing)} here; set NBAGENT_{name.upper()} in the "
                "workers' environment as it is where the batch was made"
            )
    return {name: getattr(own, name) for name in _SECRET}
