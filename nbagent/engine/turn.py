"""One turn: compose, ask, run the calls, and decide where the run stands then.

Owns the rules of DESIGN 6 for the ends of a turn. Does not keep the history.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from nbagent.contracts.canonical import monotonic_ms, sha256_hex, utc_now
from nbagent.contracts.chat import ChatRequest, ChatResponse, Message, TextPart, ToolSpec, Usage
from nbagent.contracts.errors import ErrorCode, ErrorInfo, NbagentError, UsageError
from nbagent.contracts.events import Event, Notice, ResponseReceived, TurnStarted
from nbagent.contracts.ports import Composition
from nbagent.contracts.records import (
    EngineTurn,
    Phase,
    StopReason,
    ToolRun,
    TurnRequest,
    toolset_sha,
    turn_id,
)
from nbagent.contracts.secrets import redact
from nbagent.engine.calls import CallSet, failed_run
from nbagent.engine.plan import EnginePlan
from nbagent.engine.repeats import Repeats
from nbagent.engine.request import ModelAnswer, ask, described
from nbagent.engine.room import OVERFLOW, Room

_RESUME = "%agent resume goes on"


@dataclass(frozen=True, slots=True)
class End:
    """Where the run stands after a turn."""

    phase: Phase = "Running"
    stop_reason: StopReason | None = None
    error: ErrorInfo | None = None


@dataclass(slots=True)
class Counts:
    """What the limits look at, kept over the turns of a run."""

    turns: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    cached_tools: tuple[ToolSpec, ...] = ()
    cached_sha: str = ""

    def sha_of_tools(self, tools: tuple[ToolSpec, ...]) -> str:
        """`toolset_sha`, computed again only when a spec is another object."""
        same = len(tools) == len(self.cached_tools) and all(
            a is b for a, b in zip(tools, self.cached_tools, strict=True)
        )
        if not same:
            self.cached_tools, self.cached_sha = tools, toolset_sha(tools)
        return self.cached_sha


@dataclass(slots=True)
class Turn:
    """One turn at work; `finished` and `messages` are there when `run` has ended."""

    plan: EnginePlan
    index: int
    history: Sequence[Message]
    n_new: int
    composition: Composition
    tools: tuple[ToolSpec, ...]
    counts: Counts
    repeats: Repeats
    room: Room
    earlier: Sequence[EngineTurn]
    """The run's turns before this one."""
    answer: ModelAnswer = field(default_factory=ModelAnswer)
    runs: tuple[ToolRun, ...] = ()
    end: End = End()
    messages: tuple[Message, ...] = ()
    finished: EngineTurn | None = None
    _request: TurnRequest | None = None
    _priced: tuple[float | None] | None = None
    _started_at: datetime = field(default_factory=utc_now)
    _began_ms: float = field(default_factory=monotonic_ms)

    @property
    def id(self) -> str:
        """`C01`, …"""
        return turn_id(self.index)

    async def run(self, request: ChatRequest) -> AsyncGenerator[Event]:
        """Make the turn; yields all of its events but TurnFinished."""
        yield self._started()
        for text in self.answer.notices:  # of what was shortened before the request
            yield Notice("warning", text, self.id)
        async for event in self._ask(request):
            yield event
        if self._overflows():
            async for event in self._ask_with_more_room(request):
                yield event
        async for event in self._run_calls():
            yield event
        self._decide()
        self._assemble()

    def _started(self) -> TurnStarted:
        assert self._request is not None
        return TurnStarted(
            self.plan.run.id,
            self.id,
            self.index,
            self._request,
            tuple(self.history[len(self.history) - self.n_new :]),
            self.composition.system_prompt,
            self.tools,
        )

    async def _ask(self, request: ChatRequest) -> AsyncGenerator[Event]:
        async for event in ask(
            self.plan.client,
            request,
            self.answer,
            turn_id=self.id,
            cancel=self.plan.cancel,
            stream=self.plan.stream,
        ):
            yield event
        if self.answer.response is not None:
            # The request that was answered, which may be a shortened one.
            self.room.observe(request, self.answer.response)

    async def _ask_with_more_room(self, request: ChatRequest) -> AsyncGenerator[Event]:
        """After a refusal for its size: once more with shorter results, else say what is large."""
        await self.room.refused(request, self._refusal())
        untouched = self.answer.response is None and not self.plan.cancel.is_set
        text = self.room.shorten(request, self.history, self.earlier) if untouched else None
        if text is not None:
            request = self._shortened(request, text)
            yield Notice("warning", text, self.id)
            yield self._started()
            async for event in self._ask(request):
                yield event
            if not self._overflows():
                return
            await self.room.refused(request, self._refusal())
        self.answer.error = self.room.explain(request, self._refusal(), self.earlier)

    def _overflows(self) -> bool:
        error = self.answer.error
        return error is not None and error.code == OVERFLOW

    def _refusal(self) -> ErrorInfo:
        assert self.answer.error is not None
        return self.answer.error

    def _shortened(self, request: ChatRequest, text: str) -> ChatRequest:
        """The request once more, with what `room` sends shortened now."""
        assert self._request is not None
        self.answer = ModelAnswer(notices=[*self.answer.notices, text], times=self.answer.times)
        self._request = self._request.model_copy(update={"trimmed": self.room.trimmed})
        return request.model_copy(update={"messages": self.room.sent(self.history)})

    def compose(self) -> ChatRequest:
        """The request, before anything is said or sent. Raises what a bad value raises."""
        params = dict(self.plan.params)
        choice = params.pop("tool_choice", None)
        if self.tools:
            forced = choice not in (None, "auto", "none")
            self._check_choice(choice)
            # A forced choice holds for the first request only: else the loop could never answer.
            params["tool_choice"] = (
                "auto" if choice is None or (forced and self.counts.turns) else choice
            )
        self._request = TurnRequest(
            n_messages=len(self.history),
            n_new=self.n_new,
            model=self.plan.model,
            # As JSON has them, so that the record equals the one that is read back.
            params={k: list(v) if k == "stop_sequences" else v for k, v in params.items()},
            system_sha=_sha(self.composition.system_prompt),
            toolset_sha=self.counts.sha_of_tools(self.tools),
            n_tools=len(self.tools),
        )
        request = ChatRequest(
            model=self.plan.model,
            messages=self.room.sent(self.history),
            system_prompt=self.composition.system_prompt,
            tools=self.tools,
            **params,
        )
        text = self.room.fit(request, self.history, self.earlier)
        if text is not None:
            self.answer.notices.append(text)
            request = request.model_copy(update={"messages": self.room.sent(self.history)})
        self._request = self._request.model_copy(update={"trimmed": self.room.trimmed})
        return request

    def _check_choice(self, choice: str | None) -> None:
        names = [tool.name for tool in self.tools]
        if choice not in (None, "auto", "none", "required", *names):
            raise UsageError(
                f"tool_choice={choice!r} names no tool of this run; use auto, none, required or "
                f"one of its tools: {', '.join(names)}"
            )

    async def _run_calls(self) -> AsyncGenerator[Event]:
        response = self.answer.response
        calls = response.message.tool_calls if response else ()
        if response is None or not calls:
            return
        refusal = self._why_not_run()
        if refusal is not None:
            self.runs = tuple(failed_run(call, *refusal) for call in calls)
            return
        work = CallSet(
            calls=calls,
            host=self.plan.host,
            context=replace(self.plan.context, turn_id=self.id),
            cancel=self.plan.cancel,
            repeats=self.repeats,
            specs={tool.name: tool for tool in self.tools},
            approver=self.plan.approver,
        )
        yield ResponseReceived(self._record(work.planned(), End()), response.message)
        async for event in work.run():
            yield event
        self.runs = work.ordered()

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
        response, finish = self.answer.response, "stop"
        if response is not None:
            finish = response.finish_reason
        if self.answer.stopped or (self._overflows() and self.plan.cancel.is_set):
            self.end = aborted()
        elif self._overflows():
            # Nothing failed that trying again would mend: the person decides what is left out.
            self.end = End("WaitingUser", "length", self.answer.error)
        elif self.answer.error is not None:
            self.end = End("Failed", "error", self.answer.error)
        elif finish == "error":
            self.end = End(
                "Failed",
                "error",
                ErrorInfo("LLM_BAD_RESPONSE", f"the model ended with an error; {_RESUME}"),
            )
        elif finish == "content_filter":
            self.end = End("WaitingUser", "content_filter")
        elif self.plan.cancel.is_set:
            self.end = aborted()
        elif self.runs:
            self.end = self._after_calls()
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
        self.end = broken(error)
        self._assemble()

    def go_on(self) -> None:
        """A composer wants another turn in spite of an answer; the limits still hold."""
        self.end = self._after_calls()
        self._assemble()

    def complete(self) -> None:
        """The workflow says that this was the last turn."""
        self.end = End("Completed", "workflow_complete")
        self._assemble()

    def _after_calls(self) -> End:
        limits, made = self.plan.run.limits, self.counts.turns + 1
        if self.plan.cancel.is_set:
            return aborted()
        if self.repeats.loop is not None:
            text = f"{self.repeats.loop}; the run is paused, {_RESUME}"
            return End("WaitingUser", "loop_detected", ErrorInfo("ENGINE_LOOP_DETECTED", text))
        if self.plan.cancel.after_turn:
            return End("WaitingUser", "stopped")
        over = self._over_budget()
        if over is not None:
            return End("WaitingUser", "budget", ErrorInfo("ENGINE_BUDGET", f"{over}; {_RESUME}"))
        requests = self.plan.requests_before + made
        if requests >= limits.ceiling:
            text = f"{requests} requests since your last words; say what to do next to go on"
            details: dict[str, Any] = {"ceiling": limits.ceiling}
            return End("Failed", "max_turns", ErrorInfo("ENGINE_MAX_TURNS", text, details))
        if made >= limits.max_turns:
            turns = f"{made} turn{'s' * (made != 1)}"
            text = f"paused after {turns} (max_turns); nothing is lost, {_RESUME}"
            details = {"max_turns": limits.max_turns}
            return End("WaitingUser", "max_turns", ErrorInfo("ENGINE_MAX_TURNS", text, details))
        return End()

    def _over_budget(self) -> str | None:
        limits, response = self.plan.run.limits, self.answer.response
        usage = response.usage if response else None
        tokens = self.counts.tokens + (usage.total_tokens if usage else 0)
        cost = self.counts.cost_usd + (self._cost() or 0.0)
        if limits.max_total_tokens is not None and tokens >= limits.max_total_tokens:
            return f"{tokens:,} tokens used, the budget is {limits.max_total_tokens:,}"
        if limits.max_cost_usd is not None and cost >= limits.max_cost_usd:
            return f"${cost:.4f} spent, the budget is ${limits.max_cost_usd:.4f}"
        return None

    def _cost(self) -> float | None:
        response = self.answer.response
        if response is None or response.usage is None:
            return None
        if self._priced is None:
            # Looked up once: a price list takes longer than the rest of the turn's record.
            self._priced = (self._look_up_price(response, response.usage),)
        return self._priced[0]

    def _look_up_price(self, response: ChatResponse, usage: Usage) -> float | None:
        with suppress(Exception):  # a price list that fails is an unknown price
            price = self.plan.price(usage, response.model or self.plan.model)
            # What was recorded has been paid; an unknown price stays unknown.
            recorded = response.meta.source in ("hit", "replay")
            return 0.0 if recorded and price is not None else price
        return None

    def _assemble(self) -> None:
        self.finished = self._record(self.runs, self.end)
        response = self.answer.response
        if response is None or not (response.message.content or response.message.tool_calls):
            self.messages = ()
            return
        self.messages = (response.message, *(_tool_message(run) for run in self.runs))

    def _record(self, runs: tuple[ToolRun, ...], end: End) -> EngineTurn:
        assert self._request is not None
        times = self.answer.times
        return EngineTurn(
            id=self.id,
            run_id=self.plan.run.id,
            index=self.index,
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
            cost_usd=self._cost(),
            node=self.composition.node,
            agent=self.composition.agent,
            error=end.error,
            notices=tuple(self.answer.notices),
        )


def broken(error: Exception) -> End:
    """The end of a run in which a composer, a host or nbagent itself raised."""
    if isinstance(error, NbagentError):
        return End("Failed", "error", ErrorInfo(error.code, redact(error.message)))
    return End("Failed", "error", ErrorInfo("E_INTERNAL", f"{described(error)}; {_RESUME}"))


def aborted() -> End:
    """The end of a run that the person stopped."""
    error = ErrorInfo("ENGINE_ABORTED", f"stopped; what was there is kept, {_RESUME}")
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


def _sha(text: str) -> str:
    return sha256_hex(text) if text else ""
