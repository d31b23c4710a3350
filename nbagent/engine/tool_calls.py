"""The tool calls of one turn: executed concurrently, answered in order, one tool run for each.

Asks the approver, passes calls to the host, counts repetitions and numbers figures. Does not change
the history.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from nbagent.contracts.canonical import dump_json, load_json, monotonic_ms, utc_now
from nbagent.contracts.errors import ErrorCode, ErrorInfo, ToolError, describe_error
from nbagent.contracts.events import ToolCallFinished, ToolCallStarted, ToolProgress
from nbagent.contracts.messages import (
    MAX_DEPTH,
    ImagePart,
    Message,
    TextPart,
    ToolCall,
    is_storable_json,
    parse_arguments,
    redacted,
)
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.ports import Decision, EventPort
from nbagent.contracts.records import ToolResult, ToolRun
from nbagent.contracts.secrets import redact
from nbagent.contracts.tools import CallOutput, ToolOutcome
from nbagent.engine.loop_detection import RepeatDetector
from nbagent.engine.plan import EnginePlan

_GRACE_S = 1.0
"""Time for an interruptible tool to end after a stop. Then the run continues without it. Longer
than the thread waits for an interrupted job (0.2 s), so that its result can still arrive."""
Rejection = tuple[ErrorCode, str]
"""Code and message of the error with which a call is answered instead of being executed."""


def pending_tool_runs(
    calls: Sequence[ToolCall], tools: Sequence[ToolSpec] = (), rejection: Rejection | None = None
) -> tuple[ToolRun, ...]:
    """Make tool runs of calls that are about to start, or that are rejected and never start."""
    now, traits = utc_now(), {tool.name: tool.traits for tool in tools}
    return tuple(
        ToolRun(
            tool_call_id=call.id,
            tool_name=call.name,
            host=of_tool.host if (of_tool := traits.get(call.name)) else "",
            args=call.arguments,
            result=_failure(*rejection) if rejection else None,
            queued_at=now,
            started_at=None if rejection else now,
            tool_sha=of_tool.sha if of_tool else "",
        )
        for call in calls
    )


# The notes in the conversation are all that a child run knows of the figures before it.
_FIGURES = re.compile(r"the person sees figures? (?:\d+ to )?(\d{1,6}); write \[figure ")


class FigureNumbers:
    """Numbers the images that tools show to the person, so that the model can refer to them.

    The numbers continue those in the conversation before.
    """

    def __init__(self, history: Iterable[Message] = ()) -> None:
        self._last = max(map(_last_figure, history), default=0)

    def with_figure_numbers(self, run: ToolRun) -> ToolRun:
        """Number the images of a tool run and add a note to the model, if there are any."""
        count, result = len(run.images), run.result
        if result is None or not count:
            return run
        first, self._last = self._last + 1, self._last + count
        which, how = f"figure {first}", f"write [figure {first}] in your answer to show it there"
        if count > 1:
            which = f"figures {first} to {self._last}"
            how = f"write [figure {first}] or another in your answer to show it there"
        note = f"the person sees {which}; {how}"
        note = f"{result.note}; {note}" if result.note else note
        numbered_result = result.model_copy(
            update={"note": note, "data": _number_images(result, first)}
        )
        return run.model_copy(update={"result": numbered_result, "first_figure": first})


def _number_images(result: ToolResult, first: int) -> Any:
    """Replace `[image 1: …]` in the data by the figure's number in the conversation."""
    text, number = dump_json(result.data).decode(), first
    for position, part in enumerate(result.attachments, 1):
        if isinstance(part, ImagePart) and part.data:
            alt = dump_json(part.alt).decode()[1:-1]
            text = text.replace(f"[image {position}: {alt}]", f"[figure {number}: {alt}]")
            number += 1
    return load_json(text)


def _last_figure(message: Message) -> int:
    """Return the last figure number in a tool message; 0 if there is none."""
    # The result is the first text; texts among the attachments follow it.
    text = next((part.text for part in message.content if isinstance(part, TextPart)), "")
    if message.role != "tool" or "write [figure " not in text:
        return 0
    note = (parse_arguments(text) or {}).get("note")
    numbers = _FIGURES.findall(note) if isinstance(note, str) else []
    return int(numbers[-1]) if numbers else 0


@dataclass(slots=True)
class ToolCalls:
    """Executes the calls of one turn."""

    plan: EnginePlan
    events: EventPort
    turn_id: str
    repeats: RepeatDetector
    figures: FigureNumbers
    tools: Sequence[ToolSpec]

    def reject_calls(self, calls: Sequence[ToolCall], rejection: Rejection) -> tuple[ToolRun, ...]:
        """Answer calls with errors. They count as failures: repeated rejections are a loop, too."""
        runs: list[ToolRun] = []
        for call, run in zip(calls, pending_tool_runs(calls, self.tools, rejection), strict=True):
            counted = run.model_copy(update={"repeat_n": self.repeats.count_call(call)})
            runs.append(self.repeats.with_loop_warning(call, counted))
        return tuple(runs)

    async def run(self, calls: Sequence[ToolCall]) -> tuple[ToolRun, ...]:
        """Execute calls concurrently; return their tool runs in the order of the calls."""
        works = [_CallTask(self, call, self.repeats.count_call(call)) for call in calls]
        # One call is the usual case; a second task around it would only cost time.
        if len(works) == 1:
            return (await self._commit(works[0], await works[0].run(), 0),)
        tasks = [asyncio.ensure_future(work.run()) for work in works]
        runs: dict[int, ToolRun] = {}
        waiting: set[asyncio.Task[ToolRun]] = set(tasks)
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # Calls that ended together are reported together: the store commits the last ones
                # with the turn, and three commits on a slow disk take as long as a tool.
                for i, task in enumerate(tasks):
                    if i not in runs and task.done():
                        runs[i] = await self._commit(works[i], task.result(), len(waiting))
        finally:
            for task in tasks:
                task.cancel()
        return tuple(runs[i] for i in range(len(tasks)))

    async def _commit(self, work: _CallTask, run: ToolRun, pending: int) -> ToolRun:
        # Figures are numbered after the comparison: with numbers no two results would be equal.
        run = self.figures.with_figure_numbers(self.repeats.with_loop_warning(work.call, run))
        await self.events.commit(ToolCallFinished(self.plan.run.id, self.turn_id, run, pending))
        return run


@dataclass(slots=True)
class _CallTask:
    """One call from its preparation to its result."""

    calls: ToolCalls
    call: ToolCall
    repeat_n: int
    decision: Decision | None = None
    began_ms: float | None = None
    output: CallOutput = field(default_factory=CallOutput)
    queued_at: datetime = field(default_factory=utc_now)
    queued_ms: float = field(default_factory=monotonic_ms)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def run(self) -> ToolRun:
        """Prepare, ask for approval, execute. A stop ends it."""
        task = await self.calls.plan.cancel.run_cancellable(self._execute(), self._grace_s)
        if not task.done() or task.cancelled():
            return self._tool_run(self._interrupted())
        if (error := task.exception()) is not None:
            # A host must not raise. If it does, that is a bug, and the call still gets its result.
            return self._tool_run(_rejected("E_INTERNAL", describe_error(error)))
        return self._tool_run(task.result())

    def _grace_s(self) -> float | None:
        """Time that a stop allows in seconds; None while an uninterruptible tool runs."""
        if self.began_ms is None or self.decision is None:
            return _GRACE_S
        return _GRACE_S if self.decision.prepared.spec.traits.interruptible else None

    async def _execute(self) -> ToolOutcome:
        call, plan, emit = self.call, self.calls.plan, self.calls.events.emit
        if call.arguments is None:
            return _rejected(
                "E_INVALID_ARGUMENTS",
                f"the arguments are not a JSON object: {call.arguments_raw[:200]!r}; send one "
                f"object of finite numbers, with at most {MAX_DEPTH} levels of lists and objects",
            )
        if self.calls.repeats.was_denied_repeatedly(call):
            return _rejected(
                "E_DENIED", "this call was denied before; use other arguments or another tool"
            )
        context = replace(
            plan.context,
            turn_id=self.calls.turn_id,
            tool_call_id=call.id,
            progress=self._progress,
            output=self.output,
        )
        try:
            decision = Decision(prepared=await plan.host.prepare(call, context))
            if plan.approver is not None and not plan.cancel.is_set:
                decision = await plan.approver.review(
                    call, decision.prepared, context, plan.cancel, emit
                )
        except ToolError as error:
            return ToolOutcome(result=ToolResult.failure(error.info))
        self.decision = decision
        if plan.cancel.is_set:
            return self._interrupted()
        if decision.approval == "denied":
            return _rejected("E_DENIED", decision.reason or "the person denied this call")
        used = call.arguments if decision.arguments is None else decision.arguments
        title = decision.prepared.spec.title
        emit(ToolCallStarted(self.calls.turn_id, call.id, call.name, used, title))
        self.began_ms = monotonic_ms()
        if decision.decided_by:
            context = replace(context, approved=True)
        return await decision.prepared.run(context)

    def _progress(self, text: str, fraction: float | None) -> None:
        event = ToolProgress(self.calls.turn_id, self.call.id, redact(text), fraction)
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.calls.events.emit, event)

    def _interrupted(self) -> ToolOutcome:
        if self.began_ms is None:
            return _rejected("E_INTERRUPTED", "the person stopped the run before the tool began")
        text = f"{self.call.name} was stopped before it had finished; what it did so far is unknown"
        return _rejected("E_INTERRUPTED", text)

    def _tool_run(self, outcome: ToolOutcome) -> ToolRun:
        call, decision, result = self.call, self.decision, outcome.result
        edited = decision.arguments if decision else None
        if not is_storable_json(result.data) or (
            result.error is not None and not is_storable_json(result.error.details)
        ):
            deep = f"the result has more than {MAX_DEPTH} levels of lists and objects"
            result = _failure("E_TOOL_FAILED", f"{deep}, or values that are no JSON; ask for less")
        if edited is not None:
            note = f"edited by the person: {dump_json(edited).decode()}"
            result = result.model_copy(update={"note": note})
        printed, shown = self.output.read()
        returned = {getattr(part, "data", None) for part in result.attachments}
        began_ms = outcome.started_at_ms
        cut = result.error is not None and result.error.code == "E_INTERRUPTED"
        # Some hosts report no start; a call that was rejected has none.
        if began_ms is None and (outcome.ran_in is not None or cut):
            began_ms = self.began_ms
        started_at, lasted_ms = None, 0.0
        if began_ms is not None:
            # A start is on the monotonic clock, so only its difference to another is a time.
            started_at = self.queued_at + timedelta(milliseconds=began_ms - self.queued_ms)
            lasted_ms = max(0.0, monotonic_ms() - began_ms)
        named = (spec for spec in self.calls.tools if spec.name == call.name)
        spec = decision.prepared.spec if decision else next(named, None)
        run = ToolRun(
            tool_call_id=call.id,
            tool_name=call.name,
            display_name=spec.title if spec else "",
            host=spec.traits.host if spec else "",
            args=call.arguments if edited is None else edited,
            asked_args=None if edited is None else call.arguments,
            result=result,
            queued_at=self.queued_at,
            started_at=started_at,
            duration_ms=lasted_ms,
            waited_ms=decision.waited_ms if decision else 0.0,
            ran_in=outcome.ran_in,
            isolation=outcome.isolation,
            approval=decision.approval if decision and decision.decided_by else None,
            approved_by=(decision.decided_by or None) if decision else None,
            reason=(decision.reason or None) if decision else None,
            truncated=outcome.truncated,
            repeat_n=self.repeat_n,
            tool_sha=outcome.tool_sha or (spec.traits.sha if spec else ""),
            error_detail=outcome.error_detail,
            printed=printed,
            shown=tuple(image for image in shown if image.data not in returned),
            notes=outcome.notes,
        )
        # All tools pass here: after this the result is shown, stored and sent to the model.
        return redacted(run)


def _failure(code: ErrorCode, message: str) -> ToolResult:
    return ToolResult.failure(ErrorInfo(code, message))


def _rejected(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome(result=_failure(code, message))
