"""The tool calls of one turn: run side by side, answered in order, each with exactly one run.

Asks the approver, hands calls to the host, counts repetitions and figures. Does not touch the
history.
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
"""After a stop an interruptible tool has so long to end; then the run goes on without it."""

Refusal = tuple[ErrorCode, str]
"""Why a call is answered with an error instead of being run."""


def unstarted(
    calls: Sequence[ToolCall], tools: Sequence[ToolSpec] = (), refusal: Refusal | None = None
) -> tuple[ToolRun, ...]:
    """What the store is told before the calls start, or the runs of those that never start."""
    now, traits = utc_now(), {tool.name: tool.traits for tool in tools}
    return tuple(
        ToolRun(
            tool_call_id=call.id,
            tool_name=call.name,
            host=of_tool.host if (of_tool := traits.get(call.name)) else "",
            args=call.arguments,
            result=_failure(*refusal) if refusal else None,
            queued_at=now,
            started_at=None if refusal else now,
            tool_sha=of_tool.sha if of_tool else "",
        )
        for call in calls
    )


_FIGURES = re.compile(r"the person sees figures? (?:\d+ to )?(\d{1,6}); write \[figure ")


class Figures:
    """Numbers the pictures that the person sees of tools, so that the model can name them.

    The numbers go on from those in the conversation before.
    """

    def __init__(self, history: Iterable[Message] = ()) -> None:
        self._last = max(map(_last_figure, history), default=0)

    def numbered(self, run: ToolRun) -> ToolRun:
        """The run of a call that ended, with a note to the model where it has pictures."""
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
        told = result.model_copy(update={"note": note, "data": _with_numbers(result, first)})
        return run.model_copy(update={"result": told, "first_figure": first})


def _with_numbers(result: ToolResult, first: int) -> Any:
    """The data, in which `[image 1: …]` has the number by which the answer names it."""
    text, number = dump_json(result.data).decode(), first
    for place, part in enumerate(result.attachments, 1):
        if isinstance(part, ImagePart) and part.data:
            alt = dump_json(part.alt).decode()[1:-1]
            text = text.replace(f"[image {place}: {alt}]", f"[figure {number}: {alt}]")
            number += 1
    return load_json(text)


def _last_figure(message: Message) -> int:
    """The last number that the model was told in a message; 0 where there is none."""
    # Texts among the attachments follow the result.
    text = next((part.text for part in message.content if isinstance(part, TextPart)), "")
    if message.role != "tool" or "write [figure " not in text:
        return 0
    note = (parse_arguments(text) or {}).get("note")
    found = _FIGURES.findall(note) if isinstance(note, str) else []
    return int(found[-1]) if found else 0


@dataclass(slots=True)
class Calls:
    """Runs the calls of one turn."""

    plan: EnginePlan
    events: EventPort
    turn_id: str
    repeats: RepeatDetector
    figures: Figures
    tools: Sequence[ToolSpec]

    def refuse(self, calls: Sequence[ToolCall], refusal: Refusal) -> tuple[ToolRun, ...]:
        """Answer them with errors; what is refused again and again is a loop, too."""
        runs: list[ToolRun] = []
        for call, run in zip(calls, unstarted(calls, self.tools, refusal), strict=True):
            counted = run.model_copy(update={"repeat_n": self.repeats.count_call(call)})
            runs.append(self.repeats.with_loop_warning(call, counted))
        return tuple(runs)

    async def run(self, calls: Sequence[ToolCall]) -> tuple[ToolRun, ...]:
        """Run them side by side; gives what came of them, in their order."""
        works = [_Work(self, call, self.repeats.count_call(call)) for call in calls]
        if len(works) == 1:
            return (await self._keep(works[0], await works[0].run(), 0),)
        tasks = [asyncio.ensure_future(work.run()) for work in works]
        runs: dict[int, ToolRun] = {}
        waiting: set[asyncio.Task[ToolRun]] = set(tasks)
        try:
            while waiting:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # Calls that ended together are told together: the store commits the last ones
                # with the turn, and three commits on a slow disk take as long as a tool.
                for i, task in enumerate(tasks):
                    if i not in runs and task.done():
                        runs[i] = await self._keep(works[i], task.result(), len(waiting))
        finally:
            for task in tasks:
                task.cancel()
        return tuple(runs[i] for i in range(len(tasks)))

    async def _keep(self, work: _Work, run: ToolRun, pending: int) -> ToolRun:
        # Numbers come last: with them no two results would be the same.
        run = self.figures.numbered(self.repeats.with_loop_warning(work.call, run))
        await self.events.commit(ToolCallFinished(self.plan.run.id, self.turn_id, run, pending))
        return run


@dataclass(slots=True)
class _Work:
    """One call from its preparation to its result."""

    turn: Calls
    call: ToolCall
    repeat_n: int
    decision: Decision | None = None
    began_ms: float | None = None
    output: CallOutput = field(default_factory=CallOutput)
    queued_at: datetime = field(default_factory=utc_now)
    queued_ms: float = field(default_factory=monotonic_ms)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    async def run(self) -> ToolRun:
        """Prepare, ask, run; a stop ends it."""
        task = await self.turn.plan.cancel.run_cancellable(self._outcome(), self._grace_s)
        if not task.done() or task.cancelled():
            return self._tool_run(self._interrupted())
        if (error := task.exception()) is not None:
            # A host never raises; one that does is a defect, and still the call has one result.
            return self._tool_run(_refused("E_INTERNAL", describe_error(error)))
        return self._tool_run(task.result())

    def _grace_s(self) -> float | None:
        """How long a stop lets it end; None once a tool runs that may not be interrupted."""
        if self.began_ms is None or self.decision is None:
            return _GRACE_S
        return _GRACE_S if self.decision.prepared.spec.traits.interruptible else None

    async def _outcome(self) -> ToolOutcome:
        call, plan, emit = self.call, self.turn.plan, self.turn.events.emit
        if call.arguments is None:
            return _refused(
                "E_INVALID_ARGUMENTS",
                f"the arguments are not a JSON object: {call.arguments_raw[:200]!r}; send one "
                f"object of finite numbers, with at most {MAX_DEPTH} levels of lists and objects",
            )
        if self.turn.repeats.was_denied_repeatedly(call):
            return _refused("E_DENIED", "this same call was denied, so nobody is asked again")
        context = replace(
            plan.context,
            turn_id=self.turn.turn_id,
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
            return _refused("E_DENIED", decision.reason or "the person denied this call")
        used = call.arguments if decision.arguments is None else decision.arguments
        title = decision.prepared.spec.title
        emit(ToolCallStarted(self.turn.turn_id, call.id, call.name, used, title))
        self.began_ms = monotonic_ms()
        if decision.decided_by:
            context = replace(context, approved=True)
        return await decision.prepared.run(context)

    def _progress(self, text: str, fraction: float | None) -> None:
        event = ToolProgress(self.turn.turn_id, self.call.id, redact(text), fraction)
        with suppress(RuntimeError):  # the loop has gone
            self.loop.call_soon_threadsafe(self.turn.events.emit, event)

    def _interrupted(self) -> ToolOutcome:
        if self.began_ms is None:
            return _refused("E_INTERRUPTED", "the person stopped the run before the tool began")
        text = f"{self.call.name} was stopped before it had finished; what it did so far is unknown"
        return _refused("E_INTERRUPTED", text)

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
        if began_ms is None and (outcome.ran_in is not None or cut):
            began_ms = self.began_ms
        started_at, lasted_ms = None, 0.0
        if began_ms is not None:
            started_at = self.queued_at + timedelta(milliseconds=began_ms - self.queued_ms)
            lasted_ms = max(0.0, monotonic_ms() - began_ms)
        named = (spec for spec in self.turn.tools if spec.name == call.name)
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
        # The border of every tool: from here on the call is told, kept and sent.
        return redacted(run)


def _failure(code: ErrorCode, message: str) -> ToolResult:
    return ToolResult.failure(ErrorInfo(code, message))


def _refused(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome(result=_failure(code, message))
