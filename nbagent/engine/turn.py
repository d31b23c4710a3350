"""One turn: compose, ask, run the calls, and decide where the run stands then.

Owns the rules for the ends of a turn. Does not keep the history.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from nbagent.contracts.canonical import monotonic_ms, sha256_hex, utc_now
from nbagent.contracts.chat import ChatRequest, Message, TextPart, ToolSpec
from nbagent.contracts.errors import ErrorCode, ErrorInfo, NbagentError, UsageError
from nbagent.contracts.events import Notice, ResponseReceived, TurnStarted
from nbagent.contracts.ports import Composition, Cost, EventPort
from nbagent.contracts.records import EngineTurn, ToolRun, TurnRequest, toolset_sha, turn_id
from nbagent.engine.calls import CallSet, failed_run
from nbagent.engine.limits import RESUME, End, Spent
from nbagent.engine.overflow import OVERFLOW, Overflow
from nbagent.engine.plan import EnginePlan
from nbagent.engine.repeats import Repeats
from nbagent.engine.request import ModelAnswer, ask, described


class ToolsSha:
    """`toolset_sha`, computed again only when a spec is another object."""

    def __init__(self) -> None:
        self._tools: tuple[ToolSpec, ...] = ()
        self._sha = ""

    def of(self, tools: tuple[ToolSpec, ...]) -> str:
        """The hash of these tools."""
        same = len(tools) == len(self._tools) and all(
            a is b for a, b in zip(tools, self._tools, strict=True)
        )
        if not same:
            self._tools, self._sha = tools, toolset_sha(tools)
        return self._sha


@dataclass(slots=True)
class Turn:
    """One turn at work; `finished` and `messages` are there when `run` has ended."""

    plan: EnginePlan
    events: EventPort
    index: int
    history: Sequence[Message]
    n_new: int
    composition: Composition
    tools: tuple[ToolSpec, ...]
    tools_sha: ToolsSha
    spent: Spent
    repeats: Repeats
    overflow: Overflow
    earlier: Sequence[EngineTurn]
    """The run's turns before this one."""
    answer: ModelAnswer = field(default_factory=ModelAnswer)
    runs: tuple[ToolRun, ...] = ()
    end: End = field(default_factory=End)
    messages: tuple[Message, ...] = ()
    finished: EngineTurn | None = None
    _request: TurnRequest | None = None
    _costs: tuple[Cost | None] | None = None
    _started_at: datetime = field(default_factory=utc_now)
    _began_ms: float = field(default_factory=monotonic_ms)

    @property
    def id(self) -> str:
        """`C01`, …"""
        return turn_id(self.index)

    def compose(self) -> ChatRequest:
        """The request, before anything is said or sent. Raises what a bad value raises."""
        params = dict(self.plan.params)
        choice = params.pop("tool_choice", None)
        if self.tools:
            _check_choice(choice, self.tools)
            # A forced choice holds for the first request only: else the loop could never answer.
            forced = choice not in (None, "auto", "none")
            again = choice is None or (forced and self.spent.turns)
            params["tool_choice"] = "auto" if again else choice
        if self.composition.output_schema is not None:
            params["output_schema"] = self.composition.output_schema
        request = ChatRequest(
            model=self.plan.model,
            messages=self.overflow.sent(self.history),
            system_prompt=self.composition.system_prompt,
            tools=self.tools,
            **params,
        )
        text = self.overflow.fit(request, self.history, self.earlier)
        if text is not None:
            self.answer.notices.append(text)
            request = request.model_copy(update={"messages": self.overflow.sent(self.history)})
        system = self.composition.system_prompt
        self._request = TurnRequest(
            n_messages=len(self.history),
            n_new=self.n_new,
            model=self.plan.model,
            # As JSON has them, so that the record equals the one that is read back.
            params={k: list(v) if k == "stop_sequences" else v for k, v in params.items()},
            system_sha=sha256_hex(system) if system else "",
            toolset_sha=self.tools_sha.of(self.tools),
            n_tools=len(self.tools),
            trimmed=self.overflow.trimmed,
        )
        return request

    async def run(self, request: ChatRequest) -> None:
        """Make the turn; tells all of its events but TurnFinished."""
        self._start()
        for text in self.answer.notices:  # of what was shortened before the request
            self.events.emit(Notice("warning", text, self.id))
        await ask(self.plan, request, self.answer, self.id, self.events)
        while self._overflows() and not self.plan.cancel.is_set:
            untouched = self.answer.response is None
            text = self.overflow.refused(request, self.history, self.earlier) if untouched else None
            if text is None:
                assert self.answer.error is not None
                self.answer.error = self.overflow.explain(request, self.answer.error, self.earlier)
                break
            request = request.model_copy(update={"messages": self.overflow.sent(self.history)})
            await self._ask_again(request, text)
        await self._run_calls()
        self._decide()
        self._assemble()

    async def _ask_again(self, request: ChatRequest, text: str) -> None:
        """Once more with shorter tool results."""
        assert self._request is not None
        self.answer = ModelAnswer(notices=[*self.answer.notices, text], times=self.answer.times)
        self._request = self._request.model_copy(update={"trimmed": self.overflow.trimmed})
        self.events.emit(Notice("warning", text, self.id))
        self._start()
        await ask(self.plan, request, self.answer, self.id, self.events)

    def _start(self) -> None:
        assert self._request is not None
        self.events.emit(
            TurnStarted(
                self.plan.run.id,
                self.id,
                self.index,
                self._request,
                tuple(self.history[len(self.history) - self.n_new :]),
                self.composition.system_prompt,
                self.tools,
            )
        )

    def _overflows(self) -> bool:
        error = self.answer.error
        return error is not None and error.code == OVERFLOW

    async def _run_calls(self) -> None:
        response = self.answer.response
        calls = response.message.tool_calls if response else ()
        if response is None or not calls:
            return
        refusal = self._why_not_run()
        if refusal is not None:
            self.runs = tuple(
                self.repeats.judged(
                    failed_run(call, *refusal, repeat_n=self.repeats.begin(call)),
                    call.arguments_raw,
                )
                for call in calls
            )
            return
        work = CallSet(
            calls=calls,
            plan=self.plan,
            events=self.events,
            turn_id=self.id,
            repeats=self.repeats,
            specs={tool.name: tool for tool in self.tools},
        )
        begun = self._record(work.planned(), End())
        prompt = self.composition.system_prompt
        await self.events.commit(ResponseReceived(begun, response.message, prompt, self.tools))
        self.runs = await work.run()

    def _why_not_run(self) -> tuple[ErrorCode, str] | None:
        """Why the calls of this response are answered with errors instead of being run."""
        response = self.answer.response
        if self.answer.stopped or self.plan.cancel.is_set:
            return "E_INTERRUPTED", "the person stopped the run; this call was not run"
        if self.answer.error is not None:
            return "E_INTERRUPTED", "the response was cut off; this call was not run"
        reason = response.finish_reason if response else "stop"
        if reason == "length":
            return (
                "E_INVALID_ARGUMENTS",
                "the response hit its length limit in the middle of this call, so it was not run; "
                "call again with shorter arguments",
            )
        if reason in ("content_filter", "error"):
            return "E_INTERRUPTED", f"the response ended in {reason!r}; this call was not run"
        return None

    def _decide(self) -> None:
        response = self.answer.response
        finish = response.finish_reason if response else "stop"
        if self.answer.stopped or self.plan.cancel.is_set:
            self.end = aborted()
        elif self._overflows():
            # Nothing failed that trying again would mend: the person decides what is left out.
            self.end = End("WaitingUser", "length", self.answer.error)
        elif self.answer.error is not None:
            self.end = End("Failed", "error", self.answer.error)
        elif finish == "error":
            text = f"the model ended with an error; {RESUME}"
            self.end = End("Failed", "error", ErrorInfo("LLM_BAD_RESPONSE", text))
        elif finish == "content_filter":
            self.end = End("WaitingUser", "content_filter")
        elif self.runs:
            self.end = self.next_end()
        elif finish == "length":
            self.end = End("WaitingUser", "length")
        else:
            self.end = End("WaitingUser", "answered")

    def fail(self, error: Exception) -> None:
        """Something of ours, or plugged into us, raised: end here, with every call answered."""
        with suppress(Exception):  # what had arrived is worth more than why it cannot be kept
            self.answer.keep_part(self.plan.model)
        calls = self.answer.response.message.tool_calls if self.answer.response else ()
        if len(self.runs) < len(calls):
            text = "nbagent failed before this call had a result"
            self.runs = tuple(failed_run(call, "E_INTERNAL", text) for call in calls)
        self.end_with(broken(error))

    def end_with(self, end: End) -> None:
        """End otherwise than the answer says."""
        self.end = end
        self._assemble()

    def next_end(self) -> End:
        """Another turn follows, unless a limit or a stop is in the way."""
        if self.plan.cancel.is_set:
            return aborted()
        if self.repeats.loop is not None:
            text = f"{self.repeats.loop}; the run is paused, {RESUME}"
            return End("WaitingUser", "loop_detected", ErrorInfo("ENGINE_LOOP_DETECTED", text))
        if self.plan.cancel.after_turn:
            return End("WaitingUser", "stopped")
        chars = sum(len(run.result.to_json()) for run in self.runs if run.result)
        return self.spent.after_calls(self.answer.response, chars)

    def _cost(self) -> Cost | None:
        response = self.answer.response
        if response is None or response.usage is None:
            return None
        if self._costs is None:
            # Looked up once: a price list takes longer than the rest of the turn's record.
            cost = self.spent.price(response.usage, response.model or self.plan.model)
            if cost is not None and response.meta.source in ("hit", "replay"):
                cost = Cost(saved_usd=cost.total_usd)  # what was recorded has been paid
            self._costs = (cost,)
        return self._costs[0]

    def _assemble(self) -> None:
        self.finished = self._record(self.runs, self.end)
        response = self.answer.response
        if response is None or not (response.message.content or response.message.tool_calls):
            self.messages = ()
            return
        self.messages = (response.message, *(_tool_message(run) for run in self.runs))

    def _record(self, runs: tuple[ToolRun, ...], end: End) -> EngineTurn:
        assert self._request is not None
        times, cost = self.answer.times, self._cost()
        return EngineTurn(
            id=self.id,
            run_id=self.plan.run.id,
            index=self.index,
            phase_before="Running" if self.spent.turns else self.plan.phase_before,
            request=self._request,
            response=self.answer.response,
            tool_runs=runs,
            phase_after=end.phase,
            stop_reason=end.stop_reason,
            started_at=self._started_at,
            duration_ms=monotonic_ms() - self._began_ms,
            model_ms=times.model_ms,
            ttft_ms=times.ttft_ms,
            attempts=times.attempts,
            retry_wait_ms=times.retry_wait_ms,
            cost_usd=cost.total_usd if cost else None,
            cost_input_usd=cost.input_usd if cost else None,
            cost_cached_usd=cost.cached_usd if cost else None,
            cost_output_usd=cost.output_usd if cost else None,
            saved_usd=cost.saved_usd if cost else None,
            node=self.composition.node,
            agent=self.composition.agent,
            error=end.error,
            notices=tuple(self.answer.notices),
        )


def _check_choice(choice: str | None, tools: Sequence[ToolSpec]) -> None:
    names = [tool.name for tool in tools]
    if choice not in (None, "auto", "none", "required", *names):
        raise UsageError(
            f"tool_choice={choice!r} names no tool of this run; use auto, none, required or "
            f"one of its tools: {', '.join(names)}"
        )


def broken(error: Exception) -> End:
    """The end of a run in which a composer, a host or nbagent itself raised."""
    if isinstance(error, NbagentError):
        return End("Failed", "error", ErrorInfo(error.code, error.message))
    return End("Failed", "error", ErrorInfo("E_INTERNAL", f"{described(error)}; {RESUME}"))


def aborted() -> End:
    """The end of a run that the person stopped."""
    error = ErrorInfo("ENGINE_ABORTED", f"stopped; what was there is kept, {RESUME}")
    return End("Failed", "stopped", error)


def _tool_message(run: ToolRun) -> Message:
    assert run.result is not None
    text = TextPart(text=run.result.to_json().decode("utf-8", "replace"))
    return Message(
        role="tool",
        content=(text, *run.result.attachments),
        tool_call_id=run.tool_call_id,
        name=run.tool_name,
    )
