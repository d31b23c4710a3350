"""The handle of a run: live while it is at work, a view of its record afterwards.

Also which run is the last one, and forgetting one. Thin: what a run was is in its record.
"""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from nbagent import runtime
from nbagent.archive.frames import frame_of
from nbagent.archive.store import Store
from nbagent.contracts.chat import ChatRequest, Message, Usage
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError, error_from_info
from nbagent.contracts.events import Event
from nbagent.contracts.records import EngineTurn, Phase, RunRecord, StopReason
from nbagent.providers.offline import source_of
from nbagent.session.approval import checked_callback
from nbagent.session.clients import cache_file
from nbagent.session.front import Front, front
from nbagent.session.last import forget_last, last_of, note_last
from nbagent.session.live import LiveRun, at_work, prepare_run
from nbagent.session.output import Output, answer_text, type_of
from nbagent.session.prepare import Ask
from nbagent.session.stores import current_store, home_of
from nbagent.settings import RunOptions, Tools

if TYPE_CHECKING:
    from pandas import DataFrame

OnEvent = Callable[[Event], object]


_handles: WeakSet[Run] = WeakSet()


class Run:
    """One run: live while it is at work, a view of its record afterwards."""

    def __init__(
        self,
        record: RunRecord,
        store: Store,
        *,
        live: LiveRun | None = None,
        ask: Ask | None = None,
    ) -> None:
        self._final = record
        self._store = store
        self._live = live
        self._ask = ask
        _handles.add(self)

    @classmethod
    @contextmanager
    def starting(
        cls,
        ask: Ask,
        *,
        on_event: OnEvent | None = None,
        channel: runtime.EventChannel | None = None,
        store: Store | None = None,
        here: Front | None = None,
    ) -> Generator[Run]:
        """Start a run and put its handle into `_run`. Within, an interrupt is a stop of the run.

        Where nothing in it waits for the run, leaving raises the KeyboardInterrupt.
        """
        here = here or front()
        runtime.check_interrupted(here.execution_id())
        live = prepare_run(ask, store=store, here=here)
        live.channel = channel
        with runtime.Watch(live.cancel):  # before its view is there
            live.start(on_event)
            run = cls(live.record, live.store, live=live, ask=live.ask)
            if not runtime.inside_a_tool():
                # What a tool starts by itself is not what the person goes on with.
                note_last(run.id, live.store)
                here.set_last(run)
            yield run

    @classmethod
    def started(
        cls,
        ask: Ask,
        *,
        on_event: OnEvent | None = None,
        channel: runtime.EventChannel | None = None,
        here: Front | None = None,
    ) -> Run:
        """Start a run that somebody may wait for later."""
        with cls.starting(ask, on_event=on_event, channel=channel, here=here) as run:
            return run

    @classmethod
    def ended(cls, ask: Ask, *, on_event: OnEvent | None = None, store: Store | None = None) -> Run:
        """Start a run and wait for its end: from its start on, an interrupt is a stop."""
        with cls.starting(ask, on_event=on_event, store=store) as run:
            return run.wait()

    @property
    def record(self) -> RunRecord:
        """Everything that is kept of the run; while it is at work, what there is so far."""
        return self._final if self._live is None else self._live.so_far()

    @property
    def id(self) -> str:
        """16 hex digits."""
        return self._final.id

    @property
    def name(self) -> str | None:
        """What `--name` called it."""
        return self._final.name

    @property
    def session(self) -> str:
        """The session that it belongs to."""
        return self._final.session

    @property
    def model(self) -> str:
        """`provider:model`."""
        return self._final.model

    @property
    def phase(self) -> Phase:
        """`Running`, `WaitingUser`, `Completed` or `Failed`."""
        return self.record.phase

    @property
    def stop_reason(self) -> StopReason | None:
        """Why it stopped."""
        return self.record.stop_reason

    @property
    def ok(self) -> bool:
        """Whether the model answered (or the workflow is complete)."""
        return self.record.stop_reason in ("answered", "workflow_complete")

    @property
    def error(self) -> ErrorInfo | None:
        """What went wrong, or which limit paused it."""
        return self.record.error

    @property
    def text(self) -> str:
        """The last text that the model wrote, also a part of one."""
        return self.record.text

    @property
    def turns(self) -> tuple[EngineTurn, ...]:
        """This run's own turns."""
        return self.record.turns

    @property
    def usage(self) -> Usage:
        """Tokens, summed over the turns."""
        return self.record.usage

    @property
    def cost_usd(self) -> float | None:
        """USD; None when a price is unknown."""
        return self.record.cost_usd

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation up to now, the ancestors' part included."""
        if self._live is not None:
            return (*self._live.history, *self.record.messages)
        return self._store.conversation(self.id)

    @property
    def given_tools(self) -> tuple[object, ...] | None:
        """The functions that it was given by hand, as far as this handle knows them."""
        return self._ask.tools if self._ask is not None else None

    @property
    def output(self) -> Any:
        """The answer as a value of the type that was asked for; None where there is none.

        Raises:
            UsageError: the type is not known in this process: `run.output_as(Type)` takes it.
        """
        kind = type_of(self.id)
        if kind is None and (name := self.record.options.get("output")):
            raise UsageError(
                f"the type {name} of this answer is not known in this process; "
                f"give it with run.output_as({name})"
            )
        if kind is None or not self.ok:
            return None
        return self.text if kind is str else self.output_as(kind)

    def output_as(self, kind: Any) -> Any:
        """The answer as a value of a type: a pydantic model, TypedDict, dataclass, list of these.

        Raises:
            UsageError: there is no answer, or it does not fit.
        """
        text = answer_text(self.record)
        if text is None:
            state = self.stop_reason or self.phase
            raise UsageError(f"run {self.id[:8]} has no answer ({state}); see run.error")
        try:
            return Output(kind).read(text)
        except ToolError as error:
            raise UsageError(f"{error.message}; run.text is what the model wrote") from None

    def frame(self) -> DataFrame:
        """The answer as a table: one row for each value of a list, one for a single object.

        Raises:
            UsageError: there is no answer of a type.
        """
        kind = type_of(self.id)
        value = self.output  # says where the type is unknown
        if kind is str or value is None:
            raise UsageError(
                f"run {self.id[:8]} has no answer of a type; ask with output=list[Model]"
            )
        return frame_of(Output(kind).rows(value))

    def request_of(self, turn_id: str) -> ChatRequest:
        """What that turn sent, rebuilt.

        Raises:
            UsageError: the run has no such turn.
        """
        return self._store.request_of(self.id, turn_id)

    def to_script(self) -> str:
        """A test as Python text: an `offline.script` that says what the model said in this run.

        `nbagent.offline.replay(run)` is that script as a model.
        """
        return source_of(self.record)

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop at once, or pause after the running turn. Any thread; `wait()` then returns soon."""
        if self._live is not None:
            self._live.stop(after_turn=after_turn)

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until it is over, running its synchronous tools in this thread.

        Raises:
            TimeoutError: `timeout` seconds went by; the run goes on.
        """
        if self._live is not None:
            here = front()
            runtime.wait(
                self._live.courier, pump=here.pump(), timeout=timeout, execution=here.execution_id()
            )
        return self

    async def await_end(self) -> Run:
        """`wait()` for `await`. Leaving it before the end stops the run."""
        try:
            if self._live is not None:
                here = front()
                await runtime.await_here(
                    self._live.courier, pump=here.pump(), execution=here.execution_id()
                )
        except BaseException:
            self.stop()
            raise
        return self

    def raise_for_error(self) -> Run:
        """Raise what ended the run when it failed; else return it.

        Raises:
            NbagentError: of the class that the code belongs to.
        """
        record = self.record
        if record.phase == "Failed":
            raise error_from_info(record.error or ErrorInfo("UNKNOWN", "the run failed"))
        return self

    def resume(self, prompt: str | None = None, **options: Any) -> Run:
        """Go on after a stop, a limit, an error or a dead kernel; with words, add these first.

        Returns the child run, after it ended.

        Raises:
            UsageError: it is still at work, or it was answered and there are no words to add.
        """
        kind = "resume" if prompt is None else "continue"
        return self._start_child(self._child(kind, prompt, options))

    def fork(self, turn_id: str, prompt: str | None = None, **options: Any) -> Run:
        """Ask a turn anew: keep the conversation before it, with other options or more words.

        Raises:
            UsageError: this run has no such turn.
        """
        ask = replace(self._child("fork", prompt, options), fork_turn=turn_id)
        return self._start_child(ask)

    def _start_child(self, ask: Ask) -> Run:
        if self._live is not None and not self._live.done:
            raise UsageError(f"run {self.id[:8]} is still at work; wait for it or stop it first")
        if runtime.on_engine_thread():
            raise UsageError("an async tool may not wait for a run that goes on")
        return Run.ended(ask, store=self._store)

    def _child(self, kind: Any, prompt: str | None, options: dict[str, Any]) -> Ask:
        tools, on_approval = options.pop("tools", None), options.pop("on_approval", None)
        named, kept = told_apart(tools)
        if self._ask is not None:
            kept = self._ask.tools if tools is None else kept
            on_approval = checked_callback(on_approval) or self._ask.on_approval
        chosen = changed_options(RunOptions(tools=named), options)
        return Ask(
            prompt=prompt,
            options=chosen,
            tools=kept,
            on_approval=on_approval,
            kind=kind,
            parent_id=self.id,
        )

    def forget(self, *, children: bool = False) -> tuple[str, ...]:
        """Delete this run and its texts; see `nbagent.forget`."""
        if self._live is not None and not self._live.done:
            raise UsageError(f"run {self.id[:8]} is at work; stop it, then forget it")
        cassette = self.record.options.get("cassette")
        forgotten = self._store.forget(self.id, children=children)
        for run_id in forgotten:
            cache_file(home_of(self._store), run_id).unlink(missing_ok=True)
        for handle in tuple(_handles):
            if handle.id in forgotten:
                handle._final = _emptied(handle.record)
                handle._live = handle._ask = None
        forget_last(forgotten, current_store())
        front().forget(forgotten)
        if self._store.keeps_forgotten:
            warnings.warn(
                "another program is reading the store: the deleted texts stay in runs.sqlite-wal "
                "until it has finished; `%agent doctor compact` clears them then",
                stacklevel=2,
            )
        if cassette is not None:
            warnings.warn(
                f"{cassette} is a file of yours and may still hold what the run asked and was "
                "answered; delete it, or those of its lines",
                stacklevel=2,
            )
        return forgotten

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        record = self.record
        state = record.stop_reason or record.phase
        n = len(record.turns)
        tokens = f"{record.usage.total_tokens:,}"
        return f"<Run {self.id[:8]} {state}, {n} turn{'s' * (n != 1)}, {tokens} tokens>"

    def _ipython_display_(self) -> None:
        if not front().show(self.record):
            print(repr(self))


def open_run(ref: str) -> Run:
    """A run of the store: `"last"`, its name, or a unique start of its id.

    `"last"` is the last one that was started here, and in a fresh process the store's.

    Raises:
        UsageError: there is none, or several begin so.
    """
    given: Any = ref
    if not isinstance(given, str):
        raise UsageError(
            f'open_run({reprlib.repr(given)}): give "last", a run\'s name or the start of its id'
        )
    store = current_store()
    run_id = (last_of(store) if ref == "last" else None) or store.find(ref)
    for live in at_work():
        if live.record.id == run_id:
            return Run(live.record, live.store, live=live, ask=live.ask)
    return Run(store.load(run_id), store)


def forget(run: Run | str, *, children: bool = False) -> tuple[str, ...]:
    """Delete a run and its texts: from the store's files, the frames, `_run`, its open view.

    What a notebook has saved of it stays there until the cell's output is cleared.

    Args:
        run: a handle, `"last"`, a name or the start of an id.
        children: also the runs that go on from it; they would lose their beginning.

    Returns:
        The ids of the deleted runs, the run's own first.

    Raises:
        UsageError: there is none, it is at work, or others go on from it and `children` is off.
    """
    return (run if isinstance(run, Run) else open_run(run)).forget(children=children)


def told_apart(tools: Any) -> tuple[Tools | None, tuple[object, ...] | None]:
    """Names of tools and hosts, for the options, and objects, for the run itself."""
    if tools is None:
        return None, None
    if isinstance(tools, str):
        return tools, None
    given = listed("tools", tools, "[look, count]")
    # `nbagent.mcp(file=…)` gives several servers.
    given = [it for one in given for it in (_several(one) if type(one) is tuple else (one,))]
    # By its type: a callable's `__class__` may be a property that raises.
    names = tuple(str(tool) for tool in given if issubclass(type(tool), str))
    objects = tuple(tool for tool in given if not issubclass(type(tool), str))
    return names or None, objects if objects or not names else None


def _several(given: Any) -> tuple[object, ...]:
    return tuple(given)


def _emptied(record: RunRecord) -> RunRecord:
    """What a handle may still say of a run that was forgotten: its id, and how it ended."""
    emptied = RunRecord(
        id=record.id, session=record.session, model=record.model, started_at=record.started_at
    )
    names = ("kind", "phase", "stop_reason", "ended_at", "duration_ms", "usage", "cost_usd")
    error = record.error and ErrorInfo(record.error.code, "forgotten")
    kept = {name: getattr(record, name) for name in names}
    return emptied.model_copy(update={**kept, "error": error})


def listed(name: str, given: Any, example: str) -> tuple[Any, ...]:
    try:
        return tuple(given)
    except TypeError:
        raise UsageError(
            f"{name}={reprlib.repr(given)} is no list; write {name}={example}"
        ) from None


def model_id_of(model: object) -> str | None:
    if model is None or isinstance(model, str):
        return model
    found = getattr(model, "model_id", None)
    if isinstance(found, str):
        return found
    raise UsageError(
        f"model={model!r} is no model; write provider:model, or give nbagent.offline.script([...])"
    )


def changed_options(base: RunOptions, changes: dict[str, Any]) -> RunOptions:
    if "model" in changes:
        changes = {**changes, "model": model_id_of(changes["model"])}
    return base.changed(**changes)
