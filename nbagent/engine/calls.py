"""The tool calls of one turn: run side by side, answered in order, each with exactly one run.

Asks the approver, hands calls to the host, counts repetitions. Does not touch the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from nbagent.contracts.canonical import dump_json, load_json, monotonic_ms, utc_now
from nbagent.contracts.chat import MAX_DEPTH, ToolCall, ToolSpec, is_keepable, redacted
from nbagent.contracts.errors import ErrorCode, ErrorInfo, ToolError
from nbagent.contracts.events import ToolCallFinished, ToolCallStarted, ToolProgress
from nbagent.contracts.ports import Decision, EventPort, ToolOutcome
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
        works = [
            _Work(call, self.plan, self.events, self.turn_id, self.repeats.begin(call))
            for call in self.calls
        ]
        for work in works:
            if self.repeats.denied_often(work.call):
                work.refusal = "E_DENIED", "this same call was denied, so nobody is asked again"
        if len(works) == 1:
            return (await self._told(works[0], await works[0].run(), 0),)
        tasks = [asyncio.ensure_future(work.run()) for work in works]
        runs: dict[int, ToolRun] = {}
        waiting: set[asyncio.Future[ToolRun]] = set(tasks)
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # Calls that ended together are told together: the store commits the last ones
                # with the turn, and three commits on a slow disk take as long as a tool.
                for i, task in enumerate(tasks):
                    if i not in runs and task.done():
                        runs[i] = await self._told(works[i], task.result(), len(waiting))
        finally:
            for task in tasks:
                task.cancel()
        return tuple(runs[i] for i in range(len(tasks)))

    async def _told(self, work: _Work, run: ToolRun, pending: int) -> ToolRun:
        run = self.repeats.judged(run, work.call.arguments_raw)
        await self.events.commit(ToolCallFinished(self.plan.run.id, self.turn_id, run, pending))
        return run


@dataclass(slots=True)
class _Work:
    """One call from its preparation to its result."""

    call: ToolCall
    plan: EnginePlan
    events: EventPort
    turn_id: str
    repeat_n: int
    refusal: tuple[ErrorCode, str] | None = None
    """Why it is not even prepared."""
    decision: Decision | None = None
    began_ms: float | None = None
    """When the tool began."""
    queued_at: datetime = field(default_factory=utc_now)
    queued_ms: float = field(default_factory=monotonic_ms)

    async def run(self) -> ToolRun:
        """Prepare, ask, run; a stop ends it."""
        task = asyncio.ensure_future(self._outcome())
        ended = await self.plan.cancel.finished(task, self._grace_s)
        if ended and not task.cancelled():
            return self._tool_run(_outcome_of(task))
        return self._tool_run(_refused(*self._interrupted(ended)))

    def _grace_s(self) -> float | None:
        """How long a stop lets it end; None once a tool runs that may not be interrupted."""
        if self.began_ms is None or self.decision is None:
            return _GRACE_S
        return _GRACE_S if self.decision.prepared.spec.traits.interruptible else None

    async def _outcome(self) -> ToolOutcome:
        call, plan = self.call, self.plan
        if call.arguments is None:
            return _refused("E_INVALID_ARGUMENTS", _not_an_object(call))
        if self.refusal is not None:
            return _refused(*self.refusal)
        context = replace(
            plan.context, turn_id=self.turn_id, tool_call_id=call.id, progress=self._progress()
        )
        try:
            decision = Decision(prepared=await plan.host.prepare(call, context))
            if plan.approver is not None and not plan.cancel.is_set:
                decision = await plan.approver.review(
                    call, decision.prepared, context, plan.cancel, self.events.emit
                )
        except ToolError as error:
            return ToolOutcome(result=ToolResult.failure(error.info))
        self.decision = decision
        if plan.cancel.is_set:
            return _refused(*self._interrupted(ended=True))
        if decision.approval == "denied":
            return _refused("E_DENIED", decision.reason or "the person denied this call")
        title = decision.prepared.spec.title
        self.events.emit(
            ToolCallStarted(self.turn_id, call.id, call.name, self._used() or {}, title)
        )
        self.began_ms = monotonic_ms()
        if decision.by:
            context = replace(context, approved=True)
        return await decision.prepared.run(context)

    def _progress(self) -> Callable[[str, float | None], None]:
        loop = asyncio.get_running_loop()

        def progress(text: str, fraction: float | None) -> None:
            event = ToolProgress(self.turn_id, self.call.id, redact(text), fraction)
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self.events.emit, event)

        return progress

    def _used(self) -> dict[str, Any] | None:
        edited = self.decision.arguments if self.decision else None
        return self.call.arguments if edited is None else edited

    def _interrupted(self, ended: bool) -> tuple[ErrorCode, str]:
        if self.began_ms is None:
            return "E_INTERRUPTED", "the person stopped the run before the tool began"
        text = f"{self.call.name} was stopped before it had finished; what it did so far is unknown"
        text += "" if ended else "; it was left behind and may still be running"
        return "E_INTERRUPTED", text

    def _tool_run(self, outcome: ToolOutcome) -> ToolRun:
        call, decision, used = self.call, self.decision, self._used()
        began_ms = outcome.started_at_ms
        if began_ms is None and (outcome.ran_in is not None or _was_cut(outcome)):
            began_ms = self.began_ms
        lasted_ms = 0.0 if began_ms is None else max(0.0, monotonic_ms() - began_ms)
        result = redacted(_keepable(outcome.result))
        if used is not call.arguments:
            note = f"edited by the person: {redact(dump_json(used).decode())}"
            result = result.model_copy(update={"note": note})
        spec = decision.prepared.spec if decision else None
        return ToolRun(
            tool_call_id=call.id,
            tool_name=call.name,
            display_name=spec.title if spec else "",
            host=spec.traits.host if spec else "",
            args=used,
            asked_args=None if used is call.arguments else call.arguments,
            result=result,
            queued_at=self.queued_at,
            started_at=None
            if began_ms is None
            else self.queued_at + timedelta(milliseconds=began_ms - self.queued_ms),
            duration_ms=lasted_ms,
            waited_ms=decision.waited_ms if decision else 0.0,
            ran_in=outcome.ran_in,
            isolation=outcome.isolation,
            approval=decision.approval if decision and decision.by else None,
            approved_by=(decision.by or None) if decision else None,
            reason=(decision.reason or None) if decision else None,
            truncated=outcome.truncated,
            repeat_n=self.repeat_n,
            tool_sha=outcome.tool_sha or (spec.traits.sha if spec else ""),
            error_detail=None if outcome.error_detail is None else redact(outcome.error_detail),
            notes=tuple(redact(note) for note in outcome.notes),
        )


def _was_cut(outcome: ToolOutcome) -> bool:
    return outcome.result.error is not None and outcome.result.error.code == "E_INTERRUPTED"


def _outcome_of(task: asyncio.Future[ToolOutcome]) -> ToolOutcome:
    error = task.exception()
    # A host never raises; one that does is a defect, and still the call gets its one result.
    return task.result() if error is None else _refused("E_INTERNAL", described(error))


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
