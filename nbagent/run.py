"""The handle of a run: live while it is at work, a view of its record afterwards.

Also which run is the last one, and forgetting one. Thin: what a run was is in its record.
"""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from nbagent import runtime
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError, error_from_info
from nbagent.contracts.messages import Message, redacted
from nbagent.contracts.model import ChatRequest, Usage
from nbagent.contracts.records import EngineTurn, Phase, RunRecord, StopReason
from nbagent.export.formats import FORMATS, ExportSource
from nbagent.providers.offline import test_source
from nbagent.run_tree import Spread
from nbagent.session.active import ActiveRun, OnEvent, at_work
from nbagent.session.approval import ANSWERS
from nbagent.session.frontend import Frontend, frontend
from nbagent.session.inherit import turn_of, type_of
from nbagent.session.output import Output, answer_text
from nbagent.session.request import RunRequest, Kind
from nbagent.session.stores import cache_file, current_store, find_run, note_last
from nbagent.settings.sources import to_path
from nbagent.store.dataframes import frame_of
from nbagent.store.writer import Store
from nbagent.view.words import pluralize

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from nbagent.view.value_nodes import Answer
    from nbagent.workflow.composer import WorkflowRun

T = TypeVar("T")
MOST_ANSWERS = 50
"""To one request, in one retry."""


class _Kept(Generic[T]):
    """A field of the record, read by its own name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, run: Run, owner: type) -> T:
        return getattr(run.record, self._name)


class Run:
    """One run: live while it is at work, a view of its record afterwards."""

    id = _Kept[str]()
    """16 hex digits."""
    name = _Kept[str | None]()
    session = _Kept[str]()
    model = _Kept[str]()
    """`provider:model`."""
    phase = _Kept[Phase]()
    """`Running`, `WaitingUser`, `Completed` or `Failed`."""
    stop_reason = _Kept[StopReason | None]()
    error = _Kept[ErrorInfo | None]()
    """What went wrong, or which limit paused it."""
    text = _Kept[str]()
    """The last text that the model wrote, also a part of one."""
    turns = _Kept[tuple[EngineTurn, ...]]()
    """This run's own turns."""
    usage = _Kept[Usage]()
    cost_usd = _Kept[float | None]()
    """USD; None when no price is known."""

    def __init__(self, record: RunRecord, store: Store, active: ActiveRun | None = None) -> None:
        self._record = record
        self._store = store
        self._active = active

    @classmethod
    @contextmanager
    def starting(
        cls,
        ask: RunRequest,
        *,
        on_event: OnEvent | None = None,
        store: Store | None = None,
        here: Frontend | None = None,
    ) -> Generator[Run]:
        """Start a run and put its handle into `_run`. Within, an interrupt is a stop of the run.

        Where nothing in it waits for the run, leaving raises the KeyboardInterrupt.
        """
        here = here or frontend()
        runtime.check_interrupted(here.execution_id())
        active = ActiveRun(ask, store=store, here=here)
        with runtime.InterruptGuard(active.plan.cancel):  # before its view is there
            active.start(on_event)
            run = cls(active.record, active.store, active)
            if not runtime.inside_a_tool():
                # What a tool starts by itself is not what the person goes on with.
                note_last(run.id, active.store)
                here.bind_variable(run)
            yield run

    @property
    def record(self) -> RunRecord:
        """Everything that is kept of the run; while it is at work, what there is so far."""
        return self._record if self._active is None else self._active.record

    @property
    def workflow(self) -> WorkflowRun | None:
        """Its workflow as the document says now: `current_node`, `state`, `package`; else None."""
        if self._active is not None:
            flow = self._active.prepared.flow
            return flow.for_looking() if flow else None
        if self.record.workflow is None:
            return None
        # Late: most runs have no workflow.
        from nbagent.workflow.locate import open_recorded_workflow

        return open_recorded_workflow(self.record, self._store)

    @property
    def ok(self) -> bool:
        """Whether the model answered (or the workflow is complete)."""
        return self.stop_reason in ("answered", "workflow_complete")

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation up to now, the ancestors' part included."""
        if self._active is not None:
            return (*self._active.plan.history, *self.record.messages)
        return self._store.conversation(self.id)

    @property
    def given_tools(self) -> tuple[object, ...] | None:
        """The functions that it was given by hand, as far as this handle knows them."""
        return self._active.ask.tools if self._active is not None else None

    @property
    def output(self) -> Any:
        """The answer as a value of the type that was asked for; None where there is none.

        In a process that does not know the type it is an error; `run.output_as(Type)` takes it.
        """
        kind = type_of(self.id)
        if kind is None and (name := self.record.options.get("output")):
            raise UsageError(f"{name} is not known in this process; use run.output_as({name})")
        if kind is None or not self.ok:
            return None
        return self.text if kind is str else self.output_as(kind)

    def output_as(self, kind: Any) -> Any:
        """The answer as a value of a type (pydantic model, TypedDict, dataclass, list of these)."""
        text = answer_text(self.record)
        if text is None:
            state = self.stop_reason or self.phase
            raise UsageError(f"run {self.id[:8]} has no answer ({state}); see run.error")
        try:
            return Output(kind).read(text)
        except ToolError as error:
            raise UsageError(f"{error.message}; run.text is what the model wrote") from None

    def frame(self) -> DataFrame:
        """The answer as a table: one row for each value of a list, one for a single object."""
        kind = type_of(self.id)
        value = self.output  # says where the type is unknown
        if kind is str or value is None:
            raise UsageError(f"run {self.id[:8]} has no answer of a type; ask with output=…")
        return frame_of(Output(kind).rows(value))

    def request_of(self, turn_id: str) -> ChatRequest:
        """What that turn sent, rebuilt; UsageError where the run has no such turn."""
        return self._store.request_of(self.id, turn_id)

    def to_script(self) -> str:
        """A test as Python text: an `offline.script` that says what the model said in this run.

        `nbagent.offline.replay(run)` is that script as a model.
        """
        return test_source(self.record)

    def export(
        self,
        format: str = "md",
        path: str | os.PathLike[str] | None = None,
        *,
        content: bool = False,
    ) -> str:
        """The run as the text of a file, and as the file at `path` where one is given.

        Known secrets are hidden. The formats: `md` (Markdown), `html` (one file, no script),
        `jsonl` (a line for each message, turn and tool run), `openai` (a line of a fine-tuning
        file), `cell` (a `%%agent` cell), `otel` (OTLP/JSON: OpenTelemetry spans).

        Args:
            format: one of these words.
            path: where to write it, too; a file there is replaced.
            content: for `otel`: also what was said, and what tools took and gave.

        Raises:
            UsageError: there is no such format, or the run has nothing for it.
        """
        row = FORMATS.get(format)
        if row is None:
            raise UsageError(f"format={format!r} is unknown; take one of {', '.join(FORMATS)}")
        source = ExportSource(
            record=redacted(self.record),
            load_messages=lambda: [redacted(message) for message in self.messages],
            content=content,
            is_own=self._store is current_store(),
        )
        # Half a character (a lone surrogate) cannot be written.
        text = row.render(source).encode("utf-8", "replace").decode()
        if path is not None:
            try:
                to_path(path, "path").write_text(text, "utf-8", newline="")
            except OSError as error:
                raise UsageError(f"{path} cannot be written ({error.strerror})") from None
        return text

    def send_spans(self, provider: Any = None, *, content: bool = False) -> None:
        """Give the run's spans to a tracer provider of OpenTelemetry; without one, the global one.

        Args:
            provider: an `opentelemetry.sdk.trace.TracerProvider`.
            content: also what was said, and what tools took and gave.
        """
        from nbagent.export.otel import send, spans_of

        messages = [redacted(message) for message in self.messages] if content else None
        try:
            send(spans_of(redacted(self.record), messages), provider)
        except ImportError:
            raise UsageError("spans need a package: pip install 'nbagent[otel]'") from None

    def plot(self) -> Figure:
        """Where the time went: model, tools, waiting and retries of each turn, as a figure."""
        return drawing().timeline(self.record)

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop at once, or pause after the running turn. Any thread; `wait()` then returns soon."""
        if self._active is not None:
            self._active.stop(after_turn=after_turn)

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until it is over, running its synchronous tools in this thread.

        After `timeout` seconds it raises TimeoutError, and the run goes on.
        """
        if self._active is not None:
            here, courier = frontend(), self._active.courier
            runtime.wait(courier, pump=here.pump(), timeout=timeout, execution=here.execution_id())
        return self

    async def await_end(self) -> Run:
        """`wait()` for `await`. Leaving it before the end stops the run."""
        try:
            if self._active is not None:
                here, courier = frontend(), self._active.courier
                await runtime.wait_async(courier, pump=here.pump(), execution=here.execution_id())
        except BaseException:  # also an interrupt before anybody waits
            self.stop()
            raise
        return self

    def raise_for_error(self) -> Run:
        """Raise what ended the run when it failed, of the class of its code; else return it."""
        record = self.record
        if record.phase == "Failed":
            raise error_from_info(record.error or ErrorInfo("UNKNOWN", "the run failed"))
        return self

    def resume(self, prompt: str | None = None, **options: Any) -> Run:
        """Go on after a stop, a limit, an error or a dead kernel; with words, add these first.

        Returns the child run, after it ended. A run that was answered needs words.
        """
        ask = self._ask("continue" if prompt else "resume", options, prompt=prompt)
        with Run.starting(ask, store=self._store) as run:
            return run.wait()

    def fork(
        self,
        turn_id: str,
        prompt: str | None = None,
        *,
        edits: Mapping[str, object] | None = None,
        drop: Sequence[str] = (),
        **options: Any,
    ) -> Run:
        """Ask a turn anew, in a child run: what was before it is reused, nothing of it runs again.

        Args:
            turn_id: one of the run's own turns (`"C03"`).
            prompt: more words, after what was before the turn.
            edits: what is to be different before it: by the id of a call its result (a value as a
                tool returns it, or an exception), by the id of a turn the text of its answer.
            drop: turns and calls that are left out, by their ids, with their results.
            options: `model`, `system`, `tools`, `temperature`, …: as in `Agent.run`.

        Raises:
            UsageError: there is no such turn or call, or it cannot start as asked.
        """
        given: Any = edits or {}
        if not isinstance(given, Mapping):
            raise UsageError(f"edits={reprlib.repr(given)}; write edits={{'CALL_ID': new result}}")
        ask = self._ask(
            "fork",
            options,
            prompt=prompt,
            fork_turn=turn_id,
            edits=dict(cast("Mapping[str, object]", given)),
            drop=(drop,) if isinstance(drop, str) else as_tuple("drop", drop, "['C02']"),
        )
        with Run.starting(ask, store=self._store) as run:
            return run.wait()

    def retry(self, n: int = 1, *, turn: str | None = None, **options: Any) -> Spread[Run]:
        """Ask the model again for a turn (the last one), n times side by side.

        Each answer is a run of its own, a fork. Where it asks for tools, its run pauses before they
        run: `resume()` of the run that you choose runs them and goes on, without asking for that
        answer again. Of several none becomes the last run. Options as in `fork`.

        Raises:
            UsageError: there is no such turn, or it cannot start as asked.
        """
        if not 1 <= n <= MOST_ANSWERS:
            raise UsageError(f"n={n!r}: one to {MOST_ANSWERS} answers can be asked for")
        of = turn_of(self.record, turn)
        ask = self._ask("fork", options, fork_turn=of.id, holds_calls=True)
        with ExitStack() as stack:
            starts = (Run.starting(ask, store=self._store) for _ in range(n))
            runs = [stack.enter_context(start) for start in starts]
            spread = Spread(self, of.id, tuple(run.wait() for run in runs))
        if n > 1 and not runtime.inside_a_tool():
            # Until one is chosen, the person goes on with this run.
            note_last(self.id, self._store)
            frontend().bind_variable(self)
        return spread

    def _ask(self, kind: Kind, options: dict[str, Any], **what: Any) -> RunRequest:
        """What to start, so that it goes on from this run, which is over."""
        self._check_over()
        if runtime.on_engine_thread():
            raise UsageError("an async tool may not wait for a run that goes on")
        own = self._active.ask if self._active is not None else RunRequest()
        base = RunRequest(
            kind=kind, parent_id=self.id, tools=own.tools, on_approval=own.on_approval, **what
        )
        return with_options(base, options)

    def forget(self, *, children: bool = False) -> tuple[str, ...]:
        """Delete this run and its texts; see `nbagent.forget`."""
        self._check_over()
        forgotten = self._store.forget(self.id, children=children)
        for run_id in forgotten:
            cache_file(self._store, run_id).unlink(missing_ok=True)
        if self.record.workflow is not None:
            from nbagent.workflow.locate import forget_state

            forget_state(forgotten, self._store)
        frontend().forget(forgotten)
        if self._store.database.deleted_data_in_log:
            warnings.warn(
                "another program is reading the store: the deleted texts stay in runs.sqlite-wal "
                "until it has finished; `%agent doctor compact` clears them then",
                stacklevel=2,
            )
        return forgotten

    def _check_over(self) -> None:
        if self.phase == "Running":
            raise UsageError(f"run {self.id[:8]} is still at work; stop it, or wait for it, first")

    @property
    def answer(self) -> Answer:
        """`text`, rendered where it is shown as the last value of a cell."""
        from nbagent.view.value_nodes import Answer

        return Answer.of(self.record)

    def __dir__(self) -> list[str]:
        """Public names only, as Tab offers them: what other modules of nbagent call is left out."""
        internal = {"starting", "await_end", "given_tools"}
        public = (name for name in super().__dir__() if name[:1] != "_" or name[:2] == "__")
        return [name for name in public if name not in internal]

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        record = self.record
        state = record.stop_reason or record.phase
        turns, tokens = pluralize(len(record.turns), "turn"), f"{record.usage.total_tokens:,}"
        return f"<Run {self.id[:8]} {state}, {turns}, {tokens} tokens>"

    def _ipython_display_(self) -> None:
        if not frontend().show(self.record):
            print(repr(self))


def drawing() -> Any:
    """The module that draws figures. UsageError where matplotlib is not installed."""
    try:
        # Late: matplotlib is an extra, and takes long to import.
        from nbagent.export import figures
    except ImportError:
        raise UsageError("Figures need matplotlib: %pip install matplotlib") from None
    return figures


def tools_given_to(run_id: str | None, names: Mapping[str, Any]) -> tuple[object, ...] | None:
    """The functions that a run was given by hand, if `_run` among these names is its handle.

    No name in its options says which; as in `run.resume()` they go on with it.
    """
    last = names.get("_run")
    return last.given_tools if isinstance(last, Run) and last.id == run_id else None


def open_run(ref: str) -> Run:
    """A run of the store: `"last"`, its name, or a unique start of its id.

    `"last"` is the last one that was started here, and in a fresh process the store's.
    """
    run_id = find_run(ref)
    for active in at_work():
        if active.record.id == run_id:
            return Run(active.record, active.store, active)
    return Run(current_store().load(run_id), current_store())


def forget(run: Run | str, *, children: bool = False) -> tuple[str, ...]:
    """Delete a run and its texts: from the store's files, the frames, `_run`, its open view.

    Its scores go with it, and the runs of the judges that quote its answer.

    What a notebook has saved of it stays there until the cell's output is cleared, and a handle of
    it that you keep in a variable keeps what it holds.

    Takes a handle, `"last"`, a name or the start of an id; with `children` also the runs that go on
    from it, which would lose their beginning. Returns the ids of the deleted runs, its own first.
    """
    return (run if isinstance(run, Run) else open_run(run)).forget(children=children)


def with_options(base: RunRequest, changes: dict[str, Any]) -> RunRequest:
    """The same with other options, and with the tools and `on_approval` that a call gives."""
    options = dict(changes)
    callback = options.pop("on_approval", None) or base.on_approval
    if callback is not None and not callable(callback):
        raise UsageError(f"on_approval={callback!r} is no function of a Question; {ANSWERS}")
    objects, tools = base.tools, options.pop("tools", None)
    if isinstance(tools, str):
        options["tools"], objects = tools, None
    elif tools is not None:
        given: list[object] = []
        for one in as_tuple("tools", tools, "[look, count]"):
            # `nbagent.mcp(file=…)` gives several servers.
            given += one if type(one) is tuple else (one,)
        # By its type: a callable's `__class__` may be a property that raises.
        names = [str(one) for one in given if issubclass(type(one), str)]
        objects = tuple(one for one in given if not issubclass(type(one), str))
        options["tools"] = names or None
        objects = None if names and not objects else objects
    if "model" in options:  # its id, of a script
        options["model"] = getattr(options["model"], "model_id", options["model"])
    changed = base.options.with_changes(**options)
    return replace(base, options=changed, tools=objects, on_approval=callback)


def as_tuple(name: str, given: Any, example: str) -> tuple[Any, ...]:
    """A list that a person gives, as a tuple."""
    try:
        return tuple(given)
    except TypeError:
        said = f"{name}={reprlib.repr(given)} is no list; write {name}={example}"
        raise UsageError(said) from None
