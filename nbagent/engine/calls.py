"""The tool calls of one turn: run side by side, answered in order, each with exactly one run.

Asks the approver, hands calls to the host, counts repetitions. Does not touch the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import dump_json, load_json, monotonic_ms, utc_now
from nbagent.contracts.chat import MAX_DEPTH, ToolCall, ToolSpec, is_keepable, redacted
from nbagent.contracts.errors import ErrorCode, ErrorInfo, ToolError
from nbagent.contracts.events import (
    Event,
    ToolCallFinished,
    ToolCallStarted,
    ToolProgress,
)
from nbagent.contracts.ports import Approver, Decision, ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import redact
from nbagent.engine.repeats import Repeats, call_key
from nbagent.engine.request import Mailbox, described

_GRACE_S = 1.0
"""After a stop an interruptible tool has so long to end; then the run goes on without it."""

Emit = Callable[[Event], None]


def failed_run(
    call: ToolCall, code: ErrorCode, message: str, *, repeat_n: int = 1, host: str = ""
) -> ToolRun:
    """The run of a call that never started."""
    return ToolRun(
        tool_call_id=call.id,
        tool_name=call.name,
        host=host,
        args=call.arguments,
        result=ToolResult.failure(ErrorInfo(code, message)),
        queued_at=utc_now(),
        repeat_n=repeat_n,
    )


@dataclass(slots=True)
class CallSet:
    """The calls of one turn and what came of them."""

    calls: tuple[ToolCall, ...]
    host: ToolHost
    context: ToolContext
    cancel: CancelToken
    repeats: Repeats
    specs: dict[str, ToolSpec]
    approver: Approver | None = None
    runs: dict[int, ToolRun] = field(default_factory=dict[int, ToolRun])
    """By position in `calls`; whole when `run` has ended."""

    def ordered(self) -> tuple[ToolRun, ...]:
        """The tool runs in the order of the calls."""
        return tuple(self.runs[i] for i in range(len(self.calls)))

    def planned(self) -> tuple[ToolRun, ...]:
        """What the store is told before any of them starts."""
        now = utc_now()
        return tuple(
            ToolRun(
                tool_call_id=call.id,
                tool_name=call.name,
                args=call.arguments,
                queued_at=now,
                started_at=now,
                tool_sha=spec.traits.sha if (spec := self.specs.get(call.name)) else "",
            )
            for call in self.calls
        )

    async def run(self) -> AsyncGenerator[Event]:
        """Run all calls; yield what happens."""
        mailbox: Mailbox[Event] = Mailbox()
        keys = [call_key(c.name, c.arguments, c.arguments_raw) for c in self.calls]
        tasks = [
            asyncio.ensure_future(self._one(call, self.repeats.begin(key), mailbox.put))
            for call, key in zip(self.calls, keys, strict=True)
        ]
        for task in tasks:
            task.add_done_callback(lambda _: mailbox.wake())
        try:
            while len(self.runs) < len(tasks):
                for event in self._collect(tasks, keys, mailbox):
                    yield event
                if len(self.runs) < len(tasks):
                    await mailbox.wait()
        finally:
            for task in tasks:
                task.cancel()

    def _collect(
        self, tasks: Sequence[asyncio.Future[ToolRun]], keys: list[str], mailbox: Mailbox[Event]
    ) -> list[Event]:
        events: list[Event] = list(mailbox.take())
        ended = [
            self._settle(i, _result_of(task, self.calls[i]), keys[i])
            for i, task in enumerate(tasks)
            if i not in self.runs and task.done()
        ]
        # Calls that ended together are told together: the store commits the last ones with the
        # turn, and three commits on a slow disk take as long as a tool.
        pending = len(tasks) - len(self.runs)
        run_id, turn_id = self.context.run_id, self.context.turn_id
        events += [ToolCallFinished(run_id, turn_id, run, pending) for run in ended]
        return events

    def _settle(self, i: int, run: ToolRun, key: str) -> ToolRun:
        assert run.result is not None
        result = self.repeats.end(key, run.result)
        if result is not run.result:
            run = run.model_copy(update={"result": result})
        self.runs[i] = run
        return run

    async def _one(self, call: ToolCall, repeat_n: int, emit: Emit) -> ToolRun:
        if call.arguments is None:
            return failed_run(call, "E_INVALID_ARGUMENTS", _not_an_object(call), repeat_n=repeat_n)
        return await run_call(
            call,
            host=self.host,
            context=self.context,
            cancel=self.cancel,
            approver=self.approver,
            emit=emit,
            repeat_n=repeat_n,
        )


def _result_of(task: asyncio.Future[ToolRun], call: ToolCall) -> ToolRun:
    error = None if task.cancelled() else task.exception()
    if error is None:
        return task.result()
    # A host never raises; one that does is a defect, and still the call gets its one result.
    return failed_run(call, "E_INTERNAL", described(error))


def _not_an_object(call: ToolCall) -> str:
    seen = redact(call.arguments_raw)[:200]
    try:
        unusable = isinstance(load_json(call.arguments_raw), dict)
    except (ValueError, RecursionError) as error:
        unusable = isinstance(error, RecursionError)
    if unusable:
        return (
            f"the arguments hold a number that is too large or more than {MAX_DEPTH} levels of "
            f"lists and objects: {seen!r}; send finite numbers and a flatter object"
        )
    return f"the arguments are not a JSON object: {seen!r}; send one object, keys in double quotes"


async def run_call(
    call: ToolCall,
    *,
    host: ToolHost,
    context: ToolContext,
    cancel: CancelToken,
    approver: Approver | None = None,
    emit: Emit = lambda event: None,
    repeat_n: int = 1,
) -> ToolRun:
    """Run one call whose arguments are an object: prepare, ask, run, time it."""
    queued_at, queued_ms = utc_now(), monotonic_ms()
    context = replace(
        context, tool_call_id=call.id, progress=_progress(call, context, emit), cancel=cancel
    )
    decision, outcome = await _decided(call, host, context, cancel, approver, emit)
    used = call.arguments
    if decision is not None and decision.arguments is not None:
        used = decision.arguments
    if outcome is None and decision is not None:
        title = decision.prepared.spec.title
        emit(ToolCallStarted(context.turn_id, call.id, call.name, used or {}, title))
        outcome = await _run(decision, context, cancel)
    assert outcome is not None
    result = redacted(_keepable(outcome.result))
    ended_ms, waited_ms = monotonic_ms(), decision.waited_ms if decision else 0.0
    began_ms = outcome.started_at_ms
    if began_ms is None and outcome.ran_in is not None:
        began_ms = queued_ms + waited_ms
    return ToolRun(
        tool_call_id=call.id,
        tool_name=call.name,
        display_name=decision.prepared.spec.title if decision else "",
        args=used,
        result=result,
        queued_at=queued_at,
        started_at=None
        if began_ms is None
        else queued_at + timedelta(milliseconds=began_ms - queued_ms),
        duration_ms=0.0 if began_ms is None else max(0.0, ended_ms - began_ms),
        waited_ms=waited_ms,
        ran_in=outcome.ran_in,
        approval=decision.approval if decision and decision.by else None,
        approved_by=decision.by or None if decision else None,
        truncated=outcome.truncated,
        repeat_n=repeat_n,
        tool_sha=outcome.tool_sha or (decision.prepared.spec.traits.sha if decision else ""),
        error_detail=None if outcome.error_detail is None else redact(outcome.error_detail),
        notes=tuple(redact(note) for note in outcome.notes),
    )


def _progress(
    call: ToolCall, context: ToolContext, emit: Emit
) -> Callable[[str, float | None], None]:
    loop = asyncio.get_running_loop()

    def progress(text: str, fraction: float | None) -> None:
        event = ToolProgress(context.turn_id, call.id, redact(text), fraction)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(emit, event)

    return progress


async def _decided(
    call: ToolCall,
    host: ToolHost,
    context: ToolContext,
    cancel: CancelToken,
    approver: Approver | None,
    emit: Emit,
) -> tuple[Decision | None, ToolOutcome | None]:
    """What may run; or the outcome of a call that may not."""
    decision: Decision | None = None
    try:
        preparing = asyncio.ensure_future(host.prepare(call, context))
        if not await cancel.finished(preparing, _GRACE_S) or preparing.cancelled():
            return None, _stopped_before()
        decision = Decision(prepared=preparing.result())
        if approver is not None and not cancel.is_set:
            decision = await approver.review(call, decision.prepared, context, cancel, emit)
    except ToolError as error:
        return decision, ToolOutcome(result=ToolResult.failure(error.info))
    if cancel.is_set:
        return decision, _stopped_before()
    if decision.approval == "denied":
        return decision, _refused("E_DENIED", decision.reason or "the person denied this call")
    return decision, None


async def _run(decision: Decision, context: ToolContext, cancel: CancelToken) -> ToolOutcome:
    began_ms, prepared = monotonic_ms(), decision.prepared
    context = replace(context, approved=prepared.preview.binds if decision.by else "")
    task = asyncio.ensure_future(prepared.run(context))
    ended = await cancel.finished(task, _GRACE_S if prepared.spec.traits.interruptible else None)
    if ended and not task.cancelled():
        return task.result()
    text = f"{prepared.spec.name} was stopped before it had finished; what it did so far is unknown"
    text += "" if ended else "; it was left behind and may still be running"
    return replace(_refused("E_INTERRUPTED", text), started_at_ms=began_ms)


def _stopped_before() -> ToolOutcome:
    return _refused("E_INTERRUPTED", "the person stopped the run before the tool began")


def _keepable(result: ToolResult) -> ToolResult:
    """The result a record can hold: data that is nested too deeply becomes its JSON text."""
    if result.error is not None and not is_keepable(result.error.details):
        error = ErrorInfo(result.error.code, result.error.message)
        result = result.model_copy(update={"error": error})
    if is_keepable(result.data):
        return result
    try:
        text = dump_json(result.data).decode()
    except (RecursionError, ValueError, TypeError):
        return ToolResult.failure(
            ErrorInfo(
                "E_TOOL_FAILED",
                f"the result has more than {MAX_DEPTH} levels of lists and objects, "
                "so it cannot be shown; ask for a flatter one",
            )
        )
    return result.model_copy(update={"data": text})


def _refused(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome(result=ToolResult.failure(ErrorInfo(code, message)))
