"""Handle of a run: live while it runs, a view of its record afterwards.

Also opening and deleting runs, and the options of a request. Thin: the data is in the record.
"""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from nbagent import runtime
from nbagent.contracts.errors import ErrorInfo, ToolError, UsageError, error_from_info
from nbagent.contracts.messages import Message, redacted
from nbagent.contracts.model import ChatRequest, ProviderConfig, Usage
from nbagent.contracts.nearest import nearest_hint, nearest_or_all
from nbagent.contracts.records import EngineTurn, Phase, RunRecord, as_turn_id
from nbagent.contracts.secrets import KeyFunction, KeySource
from nbagent.contracts.stop_reasons import StopReason
from nbagent.export.formats import FORMATS, ExportSource
from nbagent.export.written_file import write_export
from nbagent.files.opening import remove_own_file
from nbagent.providers.default_model import with_provider
from nbagent.providers.offline import test_source
from nbagent.run_tree import RetryResult
from nbagent.session.active_run import ActiveRun, active_runs
from nbagent.session.approval import ANSWER_FORMS
from nbagent.session.callbacks import OnEvent, OnToolCall, OnToolResult
from nbagent.session.frontend import Frontend, frontend
from nbagent.session.inherit import output_type_of, turn_of
from nbagent.session.request import Kind, RunRequest, ServerKey
from nbagent.session.stores import cache_file, current_store, find_run, set_last_run, store_at
from nbagent.session.typed_answer import OutputType, answer_text
from nbagent.settings.options import RunOptions
from nbagent.store.dataframes import frame_of
from nbagent.store.writer import Store
from nbagent.view.text_format import pluralize, sanitize_prose

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from nbagent.view.value_nodes import Answer, AnswerImages
    from nbagent.workflow.composer import WorkflowRun

T = TypeVar("T")
MAX_ANSWERS = 50
"""Limit for one retry."""


class _RecordField(property, Generic[T]):
    """Read-only property for the field of the record with the same name."""

    def __init__(self, doc: str) -> None:
        super().__init__(lambda run: getattr(run.record, self._name))
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    if TYPE_CHECKING:

        def __get__(self, instance: Any, owner: type | None = None, /) -> T: ...  # pyright: ignore[reportIncompatibleMethodOverride]


_SAME_MEANING = {"status": "phase", "state": "phase"}
"""Names that other libraries have for attributes of a run."""


class Run:
    """One run: live while it runs, a view of its record afterwards."""

    id = _RecordField[str]("16 hex digits. A unique start of it names the run, too.")
    name = _RecordField[str | None]("Name given with `name=` or `--name`; None without one.")
    session = _RecordField[str]("Named tree of runs that it belongs to.")
    model = _RecordField[str]("`provider:model`.")
    phase = _RecordField[Phase]("`Running`, `WaitingUser`, `Completed` or `Failed`.")
    stop_reason = _RecordField[StopReason | None](
        "Why it ended or paused: `answered`, `max_turns`, `stopped`, …; None while it runs."
    )
    ok = _RecordField[bool]("True if the model answered (or the workflow is complete).")
    error = _RecordField[ErrorInfo | None]("Error that ended it, or the limit that paused it.")
    text = _RecordField[str](
        "Last text of the model, possibly cut off, with the characters that it sent. `print(run)` "
        "makes hidden ones visible."
    )
    turns = _RecordField[tuple[EngineTurn, ...]](
        "This run's own turns, as a tuple: `turns[0].id` is `C01` unless it continues another run."
    )
    usage = _RecordField[Usage]("Tokens of all its turns: `usage.total_tokens`, …")
    cost_usd = _RecordField[float | None]("USD; None when no price is known.")

    def __init__(self, record: RunRecord, store: Store, active: ActiveRun | None = None) -> None:
        self._record = record
        self._store = store
        self._active = active

    @classmethod
    @contextmanager
    def starting(
        cls,
        request: RunRequest,
        *,
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        store: Store | None = None,
        front_end: Frontend | None = None,
    ) -> Generator[Run]:
        """Start a run and put its handle into `_run`. Inside, an interrupt stops the run.

        If nothing inside waits for the run, `__exit__` raises the KeyboardInterrupt.
        """
        front_end, store = front_end or frontend(), store or current_store()
        runtime.check_interrupted(front_end.execution_id())
        active = ActiveRun(request, store=store, here=front_end)
        with runtime.InterruptGuard(active.plan.cancel):  # from before its view opens
            active.start(on_event, on_tool_call, on_tool_result)
            # The handle is bound now, not at the end: an interrupted cell leaves it in `_run`.
            run = cls(active.record, store, active)
            if not runtime.inside_a_tool():
                # A run that a tool starts must not become the run that the person continues.
                set_last_run(run.id, store)
                front_end.bind_variable(run)
            yield run

    @property
    def record(self) -> RunRecord:
        """Record of the run; while it runs, the committed part so far."""
        return self._record if self._active is None else self._active.record

    @property
    def workflow(self) -> WorkflowRun | None:
        """Workflow as in its document (`current_node`, `state`, `package`); None without one."""
        if self._active is not None:
            flow = self._active.prepared.workflow_run
            return flow.for_looking() if flow else None
        if self.record.workflow is None:
            return None
        self._check_own()  # the record of a stranger's store names a package
        # Imported late: most runs have no workflow.
        from nbagent.workflow.locate import open_recorded_workflow

        return open_recorded_workflow(self.record, self._store)

    @property
    def iterations(self) -> int:
        """Number of this run's own turns."""
        return len(self.turns)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Whole conversation up to now, including the earlier runs that this one continues."""
        if self._active is not None:
            return (*self._active.plan.history, *self.record.messages)
        return self._store.conversation(self.id)

    @property
    def passed_tools(self) -> tuple[object, ...] | None:
        """Functions passed as `tools=`; None for a handle that did not start the run."""
        return self._active.ask.tools if self._active is not None else None

    @property
    def output(self) -> Any:
        """Answer as a value of the requested type; None if there is no such answer.

        In a process that does not know the type it raises UsageError; use `run.output_as(Type)`.
        """
        kind = output_type_of(self.id)
        if kind is None and (name := self.record.options.get("output")):
            raise UsageError(f"{name} is not known in this process; use run.output_as({name})")
        if kind is None or not self.ok:
            return None
        return self.text if kind is str else self.output_as(kind)

    def output_as(self, kind: Any) -> Any:
        """Return the answer as a value of a type (pydantic model, TypedDict, dataclass, list of
        these)."""
        text = answer_text(self.record)
        if text is None:
            state = self.stop_reason or self.phase
            raise UsageError(f"run {self.id[:8]} has no answer ({state}); see run.error")
        try:
            return OutputType(kind).read(text)
        except ToolError as error:
            raise UsageError(f"{error.message}; run.text is what the model wrote") from None

    def frame(self) -> DataFrame:
        """Return the answer as a table: one row per value of a list, one for a single object."""
        kind = output_type_of(self.id)
        value = self.output  # raises if the type is unknown
        if kind is str or value is None:
            raise UsageError(f"run {self.id[:8]} has no typed answer; run it with output=…")
        return frame_of(OutputType(kind).rows(value))

    def request_of(self, turn_id: str | int) -> ChatRequest:
        """Rebuild the request of a turn (`"C02"` or 2); raise UsageError if it does not exist."""
        return self._store.request_of(self.id, turn_id)

    def to_script(self) -> str:
        """Return Python code for a test: an `offline.script` with the model's answers of this run.

        `nbagent.offline.replay(run)` returns the same script as a model.
        """
        return test_source(self.record)

    def export(
        self,
        format: str = "md",
        path: str | os.PathLike[str] | None = None,
        *,
        content: bool = False,
    ) -> str:
        """Export the run as text, and write it to `path` if one is given.

        Known secrets are hidden. The formats: `md` (Markdown), `html` (one file, no script),
        `jsonl` (a line for each message, turn and tool run), `openai` (a line of a fine-tuning
        file), `cell` (a `%%agent` cell), `otel` (OTLP/JSON: OpenTelemetry spans).

        Args:
            format: one of these names.
            path: file to write as well; an existing one is replaced.
            content: for `otel`: include messages, and arguments and results of tools.

        Raises:
            UsageError: the format is unknown, or the run has no data for it.
        """
        row = FORMATS.get(format)
        if row is None:
            hint = nearest_or_all(format, FORMATS, "take one of")
            raise UsageError(f"format={format!r} is unknown{hint}")
        source = ExportSource(
            record=redacted(self.record),
            load_messages=lambda: [redacted(message) for message in self.messages],
            content=content,
            is_own=self._store is current_store() and not self._store.is_foreign(self.id),
        )
        # Half a character (a lone surrogate) cannot be written.
        text = row.render(source).encode("utf-8", "replace").decode()
        if path is not None:
            write_export(text, path)
        return text

    def send_spans(self, provider: Any = None, *, content: bool = False) -> None:
        """Send the spans of the run to a tracer provider of OpenTelemetry.

        Args:
            provider: an `opentelemetry.sdk.trace.TracerProvider`; by default the global one.
            content: include messages, and arguments and results of tools.
        """
        from nbagent.export.otel import send, spans_of

        messages = [redacted(message) for message in self.messages] if content else None
        try:
            send(spans_of(redacted(self.record), messages), provider)
        except ImportError:
            raise UsageError("spans need OpenTelemetry: %pip install opentelemetry-sdk") from None

    def plot(self) -> Figure:
        """Draw the time of each turn: model, tools, waiting and retries."""
        return load_figures().timeline(self.record)

    def stop(self, *, after_turn: bool = False) -> None:
        """Stop at once, or pause after the present turn. Any thread; `wait()` then returns soon."""
        if self._active is not None:
            self._active.stop(after_turn=after_turn)

    def wait(self, timeout: float | None = None) -> Run:
        """Wait for the end, running its synchronous tools in this thread.

        After `timeout` seconds it raises TimeoutError, and the run continues.
        """
        if self._active is not None:
            here, courier = frontend(), self._active.run_task
            runtime.wait(courier, pump=here.pump(), timeout=timeout, execution=here.execution_id())
        return self

    async def await_end(self) -> Run:
        """`wait()` for `await`. If the awaiting task is cancelled, the run is stopped."""
        try:
            if self._active is not None:
                here, courier = frontend(), self._active.run_task
                await runtime.wait_async(courier, pump=here.pump(), execution=here.execution_id())
        except BaseException:  # also an interrupt before the wait begins
            self.stop()
            raise
        return self

    def raise_for_error(self, *, calls: bool = False) -> Run:
        """Raise the run's error, of the class of its code; return the run if it did not fail.

        Args:
            calls: True also raises if a tool call failed or was denied, although the model
                answered. A job, such as one of papermill, then fails at this cell.
        """
        record = self.record
        if record.phase == "Failed":
            raise error_from_info(record.error or ErrorInfo("UNKNOWN", "the run failed"))
        tool_runs = [tool for turn in record.turns for tool in turn.tool_runs]
        failed = [tool for tool in tool_runs if tool.result and not tool.result.ok]
        error = failed[0].result.error if calls and failed and failed[0].result else None
        if error is not None:
            count = f"{len(failed)} of {pluralize(len(tool_runs), 'call')} failed"
            message = f"{count}; the first was {failed[0].tool_name}: {error.message}"
            raise error_from_info(replace(error, message=message))
        return self

    def resume(
        self,
        prompt: str | None = None,
        *,
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        **options: Any,
    ) -> Run:
        """Continue after a stop, a limit, an error or a dead kernel; with a prompt, add it first.

        Return the child run after its end. An answered run needs a prompt. `options` and the
        functions that are called are those of `Agent.run`.
        """
        request = self._request("continue" if prompt else "resume", options, prompt=prompt)
        with self._starting(request, on_event, on_tool_call, on_tool_result) as run:
            return run.wait()

    def fork(
        self,
        turn_id: str | int,
        prompt: str | None = None,
        *,
        edits: Mapping[str, object] | None = None,
        drop: Sequence[str] = (),
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        **options: Any,
    ) -> Run:
        """Repeat a turn in a child run. The conversation before it is reused; nothing in it runs
        again.

        Args:
            turn_id: one of the run's own turns: its id or number (`"C03"` or 3).
            prompt: another user message before the turn.
            edits: changes before the turn: by call id the new result (a value as a tool returns
                it, or an exception), by turn id the new text of the answer.
            drop: ids of turns and calls that are left out, with their results.
            on_event: called with each event, and `on_tool_call`, `on_tool_result` with each call,
                as in `Agent.run`.
            options: `model`, `system`, `tools`, `temperature`, …: as in `Agent.run`.

        Raises:
            UsageError: there is no such turn or call, or the run cannot start.
        """
        if "results" in options:
            raise UsageError("unknown option 'results'; did you mean 'edits'?")
        results: Any = edits or {}
        if not isinstance(results, Mapping):
            raise UsageError(
                f"edits={reprlib.repr(results)}; write edits={{'CALL_ID': new result}}"
            )
        request = self._request(
            "fork",
            options,
            prompt=prompt,
            fork_turn=as_turn_id(turn_id),
            edits=dict(cast("Mapping[str, object]", results)),
            drop=(drop,) if isinstance(drop, str) else as_tuple("drop", drop, "['C02']"),
        )
        with self._starting(request, on_event, on_tool_call, on_tool_result) as run:
            return run.wait()

    def retry(
        self,
        n: int = 1,
        *,
        turn: str | int | None = None,
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        **options: Any,
    ) -> RetryResult[Run]:
        """Ask the model again for a turn (the last one), n times side by side.

        Each answer is a run of its own, a fork. If it calls tools, its run pauses before they run:
        `resume()` of the run that you choose runs them and continues, without asking for that
        answer again. With n > 1 none of them becomes the last run. Options and functions as in
        `fork`; the functions are called for each of the n runs.

        Raises:
            UsageError: there is no such turn, or the run cannot start.
        """
        if type(n) is not int or not 1 <= n <= MAX_ANSWERS:
            raise UsageError(f"n={n!r} is not valid; expected 1 to {MAX_ANSWERS}")
        retried = turn_of(self.record, turn)
        request = self._request("fork", options, fork_turn=retried.id, defer_calls=True)
        with ExitStack() as stack:
            starts = (
                self._starting(request, on_event, on_tool_call, on_tool_result) for _ in range(n)
            )
            runs = [stack.enter_context(start) for start in starts]
            result = RetryResult(self, retried.id, tuple(run.wait() for run in runs))
        if n > 1 and not runtime.inside_a_tool():
            # Until the person chooses an answer, `last` stays this run.
            set_last_run(self.id, self._store)
            frontend().bind_variable(self)
        return result

    def _starting(
        self,
        request: RunRequest,
        on_event: OnEvent | None,
        on_tool_call: OnToolCall | None,
        on_tool_result: OnToolResult | None,
    ) -> AbstractContextManager[Run]:
        """Start a run that continues this one, in the same store."""
        return Run.starting(
            request,
            store=self._store,
            on_event=on_event,
            on_tool_call=on_tool_call,
            on_tool_result=on_tool_result,
        )

    def _request(self, kind: Kind, options: dict[str, Any], **fields: Any) -> RunRequest:
        """Build the request for a run that continues this one; raise UsageError while it runs."""
        self._check_own()
        self._check_ended()
        prompt: Any = fields.get("prompt", "")
        if not isinstance(prompt, str | None):
            raise UsageError(f"the prompt is a {type(prompt).__name__}; write it as text")
        if runtime.on_engine_thread():
            raise UsageError(
                "an async tool may not wait for another run; continue it outside of tools"
            )
        own = self._active.ask if self._active is not None else RunRequest()
        base = RunRequest(
            kind=kind,
            parent_id=self.id,
            tools=own.tools,
            on_approval=own.on_approval,
            api_key=own.api_key,
            **fields,
        )
        return with_options(base, options)

    def forget(self, *, children: bool = False) -> tuple[str, ...]:
        """Delete this run and its texts; see `nbagent.forget`."""
        self._check_own()
        self._check_ended()
        forgotten = self._store.forget(self.id, children=children)
        for run_id in forgotten:
            remove_own_file(cache_file(self._store, run_id))
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
        if backups := self._store.database.backups():
            warnings.warn(
                f"{', '.join(map(str, backups))} still has the deleted texts; "
                "`%agent doctor --drop-backup` deletes it",
                stacklevel=2,
            )
        return forgotten

    def _check_own(self) -> None:
        if self._store.read_only:
            raise UsageError(self._store.read_only)

    def _check_ended(self) -> None:
        if self.phase == "Running":
            raise UsageError(f"run {self.id[:8]} is still at work; stop it, or wait for it, first")

    @property
    def answer(self) -> Answer:
        """`text`, rendered when it is the last value of a cell."""
        from nbagent.view.value_nodes import Answer

        return Answer.of(self.record)

    @property
    def images(self) -> AnswerImages:
        """Images of the model's answers, in order. `images[0].content` are the bytes of one."""
        from nbagent.view.value_nodes import AnswerImages

        return AnswerImages(self.record.images)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # raises the property's own error again
            known = _SAME_MEANING.get(name, name)
            hint = "" if name.startswith("_") else nearest_hint(known, dir(self))
            raise AttributeError(f"a Run has no attribute {name!r}{hint}")

    def __dir__(self) -> list[str]:
        """Public names only, for Tab: methods for other modules of nbagent are left out."""
        internal = {"starting", "await_end", "passed_tools"}
        return public_names(super().__dir__(), internal)

    def __str__(self) -> str:
        """Return `text` as a terminal may print it: control and hidden characters are visible."""
        return sanitize_prose(self.text).replace("\u200b", "⟦U+200B⟧")

    def __repr__(self) -> str:
        record = self.record
        state = record.stop_reason or record.phase
        turns, tokens = pluralize(len(record.turns), "turn"), f"{record.usage.total_tokens:,}"
        return f"<Run {self.id[:8]} {state}, {turns}, {tokens} tokens>"

    def _prompt_value_(self) -> str:
        """Return the value of `{{ run }}` in a prompt: its text, or its state if it has none."""
        return self.text or repr(self)

    def _repr_html_(self) -> str:
        """Return the picture for programs that show HTML (marimo); IPython shows its own form."""
        from nbagent.view.run_picture import page, picture

        return page(picture(self.record, actions=False))

    def _ipython_display_(self) -> None:
        if not frontend().show(self.record):
            print(repr(self))


def load_figures() -> Any:
    """Import the module that draws figures; raise UsageError if matplotlib is not installed."""
    try:
        # Late: matplotlib is an extra, and takes long to import.
        from nbagent.export import figures
    except ImportError:
        raise UsageError("Figures need matplotlib: %pip install matplotlib") from None
    return figures


def tools_passed_to(run_id: str | None, names: Mapping[str, Any]) -> tuple[object, ...] | None:
    """Return the functions passed to a run as `tools=`, if `_run` in `names` is its handle.

    The record cannot hold functions, so only the handle knows them; `run.resume()` uses them too.
    """
    last = names.get("_run")
    return last.passed_tools if isinstance(last, Run) and last.id == run_id else None


def public_names(names: Iterable[str], internal: Collection[str]) -> list[str]:
    """Names that Tab offers of a handle: no private ones, and none for other modules of nbagent."""
    public = (name for name in names if name[:1] != "_" or name[:2] == "__")
    return [name for name in public if name not in internal]


def open_run(ref: str, *, store: str | os.PathLike[str] | None = None) -> Run:
    """Open a run of the store: `"last"`, its name, or a unique start of its id.

    `"last"` is the last run started in this process; in a fresh one, the last of this notebook.

    Args:
        ref: the run.
        store: another store, as a folder like `.nbagent`; `"last"` is then its last run.
    """
    if store is not None:
        other = store_at(store)
        return Run(other.load(other.find(ref)), other)
    run_id = find_run(ref)
    # The handle of a run that is active here can wait for it and stop it; that of a record cannot.
    for active in active_runs():
        if active.record.id == run_id:
            return Run(active.record, current_store(), active)
    return Run(current_store().load(run_id), current_store())


def forget(run: Run | str, *, children: bool = False) -> tuple[str, ...]:
    """Delete a run and its texts: from the store's files, the frames, `_run` and its open view.

    Its scores, and the runs of judges that quote its answer, are deleted too. A copy in a saved
    notebook stays until you clear the output of the cell; a handle in a variable keeps its data.

    Args:
        run: a handle, `"last"`, a name or the start of an id.
        children: also delete the runs that continue it; without it they would lose their start.

    Returns:
        The ids of the deleted runs, this one first.
    """
    return (run if isinstance(run, Run) else open_run(run)).forget(children=children)


_KEY_ADVICE = (
    "api_key= is not a function: give a function that returns the key. A key itself is read from "
    "the environment variable of its provider, such as OPENAI_API_KEY, or from another one: "
    "key_variable=NAME"
)


def with_options(base: RunRequest, changes: dict[str, Any]) -> RunRequest:
    """Copy the request with other options, and with the `tools` and `on_approval` of a call."""
    options = dict(changes)
    callback = options.pop("on_approval", None) or base.on_approval
    if callback is not None and not callable(callback):
        raise UsageError(
            f"on_approval={callback!r} is not a function of a Question; {ANSWER_FORMS}"
        )
    api_key: KeyFunction | None = options.pop("api_key", None)
    if api_key is not None and not callable(api_key):
        raise UsageError(_KEY_ADVICE)
    objects, tools = base.tools, options.pop("tools", None)
    if isinstance(tools, str):
        options["tools"], objects = tools, None
    elif tools is not None:
        all_tools: list[object] = []
        for tool in as_tuple("tools", tools, "[look, count]"):
            # A tuple is taken apart, so that several tools can be one value.
            all_tools += tool if type(tool) is tuple else (tool,)
        # By type(), not isinstance(): a callable's `__class__` may be a property that raises.
        names = [str(item) for item in all_tools if issubclass(type(item), str)]
        objects = tuple(item for item in all_tools if not issubclass(type(item), str))
        options["tools"] = names or None
        objects = None if names and not objects else objects
    if "model" in options:  # A script of `nbagent.offline` is a model with an id.
        options["model"] = getattr(options["model"], "model_id", options["model"])
    changed = base.options.with_changes(**options)
    key = base.api_key if api_key is None else _server_key(api_key, changed)
    return replace(base, options=changed, tools=objects, on_approval=callback, api_key=key)


def _server_key(function: KeyFunction, options: RunOptions) -> ServerKey:
    """Bind a function that returns a key to the server of the same call."""
    if options.model is None:
        raise UsageError("api_key= needs model= beside it: the key is sent to that server only")
    source = ProviderConfig(api_key=function).key
    assert isinstance(source, KeySource)
    return ServerKey(source, with_provider(options.model), options.base_url)


def as_tuple(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Convert a list argument to a tuple; raise UsageError with the example if it is not one."""
    try:
        return tuple(value)
    except TypeError:
        problem = f"{name}={reprlib.repr(value)} is not a list; write {name}={example}"
        raise UsageError(problem) from None
