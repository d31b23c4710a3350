"""The tool calls of one turn: run side by side, answered in order, each with exactly one run.

Asks the approver, hands calls to the host, counts repetitions. Does not touch the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import dump_json, load_json, monotonic_ms, utc_now
from nbagent.contracts.chat import MAX_DEPTH, ToolCall, ToolSpec, is_keepable, redacted
from nbagent.contracts.errors import ErrorCode, ErrorInfo, ToolError
from nbagent.contracts.events import ToolCallFinished, ToolCallStarted, ToolProgress
from nbagent.contracts.ports import Decision, EventPort, ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import redact
from nbagent.engine.plan import EnginePlan
from nbagent.engine.repeats import Repeats
from nbagent.engine.request import described

_GRACE_S = 1.0
"""After a stop an interruptible tool has so long to end; then the run goes on without it."""


def failed_run(call: ToolCall, code: ErrorCode, message: str, *, repeat_n: int = 1) -> ToolRun:
    """The run of a call that never started."""
    return ToolRun(
        tool_call_id=call.id,
        tool_name=call.name,
        args=call.arguments,
        result=ToolResult.failure(ErrorInfo(code, message)),
        queued_at=utc_now(),
        repeat_n=repeat_n,
    )


@dataclass(slots=True)
class CallSet:
    """The calls of one turn."""

    calls: tuple[ToolCall, ...]
    plan: EnginePlan
    events: EventPort
    turn_id: str
    repeats: Repeats
    specs: dict[str, ToolSpec]

    def planned(self) -> tuple[ToolRun, ...]:
        """What the store is told before any of them starts."""
        now = utc_now()
        return tuple(
            ToolRun(
                tool_call_id=call.id,
                tool_name=call.name,
                host=spec.traits.host if (spec := self.specs.get(call.name)) else "",
                args=call.arguments,
                queued_at=now,
                started_at=now,
                tool_sha=spec.traits.sha if spec else "",
            )
            for call in self.calls
        )

    async def run(self) -> tuple[ToolRun, ...]:
        """Run all calls; gives what came of them, in the order of the calls."""
        tasks = [asyncio.ensure_future(self._one(call)) for call in self.calls]
        runs: dict[int, ToolRun] = {}
        waiting: set[asyncio.Future[ToolRun]] = set(tasks)
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                ended = [i for i, task in enumerate(tasks) if i not in runs and task.done()]
                for i in ended:
                    runs[i] = self.repeats.judged(
                        _result_of(tasks[i], self.calls[i]), self.calls[i].arguments_raw
                    )
                # Calls that ended together are told together: the store commits the last ones
                # with the turn, and three commits on a slow disk take as long as a tool.
                for i in ended:
                    await self.events.commit(
                        ToolCallFinished(self.plan.run.id, self.turn_id, runs[i], len(waiting))
                    )
        finally:
            for task in tasks:
                task.cancel()
        return tuple(runs[i] for i in range(len(tasks)))

    async def _one(self, call: ToolCall) -> ToolRun:
        repeat_n = self.repeats.begin(call)
        if call.arguments is None:
            return failed_run(call, "E_INVALID_ARGUMENTS", _not_an_object(call), repeat_n=repeat_n)
        if self.repeats.denied_often(call):
            text = "this same call was denied before, so nobody is asked again"
            return failed_run(call, "E_DENIED", text, repeat_n=repeat_n)
        context = replace(self.plan.context, turn_id=self.turn_id)
        return await run_call(call, self.plan, context, self.events, repeat_n=repeat_n)


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
    call: ToolCall, plan: EnginePlan, context: ToolContext, events: EventPort, *, repeat_n: int = 1
) -> ToolRun:
    """Run one call whose arguments are an object: prepare, ask, run, time it."""
    queued_at, queued_ms = utc_now(), monotonic_ms()
    context = replace(
        context, tool_call_id=call.id, progress=_progress(call, context, events), cancel=plan.cancel
    )
    decision, outcome = await _decided(call, plan, context, events)
    used = call.arguments
    if decision is not None and decision.arguments is not None:
        used = decision.arguments
    if outcome is None:
        assert decision is not None
        title = decision.prepared.spec.title
        events.emit(ToolCallStarted(context.turn_id, call.id, call.name, used or {}, title))
        outcome = await _run(decision, context, plan.cancel)
    ended_ms, waited_ms = monotonic_ms(), decision.waited_ms if decision else 0.0
    began_ms = outcome.started_at_ms
    if began_ms is None and outcome.ran_in is not None:
        began_ms = queued_ms + waited_ms
    result = redacted(_keepable(outcome.result))
    if used is not call.arguments:
        note = f"edited by the person: {redact(dump_json(used).decode())}"
        result = result.model_copy(update={"note": note})
    run = ToolRun(
        tool_call_id=call.id,
        tool_name=call.name,
        display_name=decision.prepared.spec.title if decision else "",
        args=used,
        asked_args=None if used is call.arguments else call.arguments,
        result=result,
        queued_at=queued_at,
        started_at=None
        if began_ms is None
        else queued_at + timedelta(milliseconds=began_ms - queued_ms),
        duration_ms=0.0 if began_ms is None else max(0.0, ended_ms - began_ms),
        ran_in=outcome.ran_in,
        isolation=outcome.isolation,
        truncated=outcome.truncated,
        repeat_n=repeat_n,
        tool_sha=outcome.tool_sha,
        error_detail=None if outcome.error_detail is None else redact(outcome.error_detail),
        notes=tuple(redact(note) for note in outcome.notes),
    )
    return run if decision is None else _with_decision(run, decision)


def _with_decision(run: ToolRun, decision: Decision) -> ToolRun:
    traits = decision.prepared.spec.traits
    return run.model_copy(
        update={
            "host": traits.host,
            "tool_sha": run.tool_sha or traits.sha,
            "waited_ms": decision.waited_ms,
            "approval": decision.approval if decision.by else None,
            "approved_by": decision.by or None,
            "reason": decision.reason or None,
        }
    )


def _progress(
    call: ToolCall, context: ToolContext, events: EventPort
) -> Callable[[str, float | None], None]:
    loop = asyncio.get_running_loop()

    def progress(text: str, fraction: float | None) -> None:
        event = ToolProgress(context.turn_id, call.id, redact(text), fraction)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(events.emit, event)

    return progress


async def _decided(
    call: ToolCall, plan: EnginePlan, context: ToolContext, events: EventPort
) -> tuple[Decision | None, ToolOutcome | None]:
    """What may run; or the outcome of a call that may not."""
    cancel = plan.cancel
    decision: Decision | None = None
    try:
        preparing = asyncio.ensure_future(plan.host.prepare(call, context))
        if not await cancel.finished(preparing, _GRACE_S) or preparing.cancelled():
            return None, _stopped_before()
        decision = Decision(prepared=preparing.result())
        if plan.approver is not None and not cancel.is_set:
            decision = await plan.approver.review(
                call, decision.prepared, context, cancel, events.emit
            )
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
