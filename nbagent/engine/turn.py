"""One turn: compose the request, send it, execute the calls, decide how the run continues.

Owns the stop rules of a turn, and the state that the turns of a run share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from nbagent.contracts.canonical import monotonic_ms, sha256_hex, utc_now
from nbagent.contracts.errors import ErrorInfo, NbagentError, UsageError, describe_error
from nbagent.contracts.events import Notice, ResponseReceived, TurnStarted
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.contracts.ports import Composition, Cost, EventPort
from nbagent.contracts.records import EngineTurn, ToolRun, TurnRequest, toolset_sha, turn_id
from nbagent.engine.limits import RESUME_HINT, StopState, price, state_after_calls
from nbagent.engine.loop_detection import RepeatDetector
from nbagent.engine.model_call import ModelCall
from nbagent.engine.overflow import OVERFLOW, Overflow
from nbagent.engine.plan import EnginePlan
from nbagent.engine.tool_calls import FigureNumbers, ToolCalls, pending_tool_runs


class RunState:
    """State that the turns of one run share. The history only grows."""

    def __init__(self, plan: EnginePlan, events: EventPort) -> None:
        self.plan, self.events = plan, events
        self.history: list[Message] = [*plan.history, *plan.run.messages]
        self.turns: list[EngineTurn] = []
        self.n_sent = len(plan.history)
        """Number of messages of the history that were sent in a request."""
        self.toolsets = dict(plan.run.toolsets)
        """Toolsets that were sent, by their hash."""
        self.repeats = RepeatDetector(plan.run.limits)
        self.figures = FigureNumbers(plan.history)
        self.overflow = Overflow(plan)


class Turn:
    """One turn. `finished` and `messages` are set when `run` has ended.

    The constructor builds the request before anything is emitted or sent; it raises if a parameter
    is not valid.
    """

    def __init__(
        self, state: RunState, composition: Composition, tools: tuple[ToolSpec, ...]
    ) -> None:
        self.state, self.plan, self.events = state, state.plan, state.events
        self.composition, self.tools = composition, tools
        self.system = composition.system_prompt
        self._started_at, self._began_ms = utc_now(), monotonic_ms()
        self.index = self.plan.first_index + len(state.turns)
        self.id = turn_id(self.index)
        self.model_call = ModelCall(self.id, self.events)
        self.runs: tuple[ToolRun, ...] = ()
        self.stop_state = StopState()
        self.messages: tuple[Message, ...] = ()
        self.finished: EngineTurn | None = None
        self._cost: Cost | None = None
        params = self._params()
        self.request = ChatRequest(
            model=self.plan.model,
            messages=state.overflow.messages_to_send(state.history),
            system_prompt=self.system,
            tools=tools,
            **params,
        )
        # Comparing tuples of the same objects is a comparison of pointers.
        known = (sha for sha, turn_request in state.toolsets.items() if turn_request == tools)
        self.sent = TurnRequest(
            n_messages=len(state.history),
            n_new=len(state.history) - state.n_sent,
            model=self.plan.model,
            # As JSON has them, so that the record equals the one that is read back.
            params={k: list(v) if k == "stop_sequences" else v for k, v in params.items()},
            system_sha=sha256_hex(self.system) if self.system else "",
            toolset_sha=next(known, None) or toolset_sha(tools),
            n_tools=len(tools),
            trimmed=state.overflow.trimmed_indexes,
        )

    def _params(self) -> dict[str, Any]:
        params = dict(self.plan.params)
        choice = params.pop("tool_choice", None)
        # Without tools it is left out: OpenAI refuses a tool_choice without tools.
        if self.tools:
            _check_tool_choice(choice, self.tools)
            # A forced choice holds for the first request only: else the loop could never answer.
            forced = choice not in (None, "auto", "none")
            again = choice is None or (forced and self.state.turns)
            params["tool_choice"] = "auto" if again else choice
        if self.composition.output_schema is not None:
            params["output_schema"] = self.composition.output_schema
        return params

    async def run(self) -> None:
        """Execute the turn; emit all its events except TurnFinished."""
        while True:
            new = tuple(self.state.history[len(self.state.history) - self.sent.n_new :])
            self.events.emit(TurnStarted(self.id, self.sent, new, self.system, self.tools))
            await self.model_call.send(self.plan, self.request)
            if not self._is_overflow() or self.plan.cancel.is_set or not self._trim_for_retry():
                break
        # Once: a price list takes longer than the rest of the turn's record.
        self._cost = self._price_response()
        await self._run_calls()
        self.finish(self._find_stop_state())

    def _is_overflow(self) -> bool:
        error = self.model_call.error
        return error is not None and error.code == OVERFLOW

    def _trim_for_retry(self) -> bool:
        """Trim the request after a refusal. If nothing can be trimmed, explain it; return False."""
        overflow, history, error = self.state.overflow, self.state.history, self.model_call.error
        assert error is not None
        text = None
        if self.model_call.response is None:
            text = overflow.trim_more(history, self.request, error)
        if text is None:
            self.model_call.error = overflow.explain(self.request, error)
            return False
        self.request = self.request.model_copy(
            update={"messages": overflow.messages_to_send(history)}
        )
        self.sent = self.sent.model_copy(update={"trimmed": overflow.trimmed_indexes})
        self.model_call.notices.append(text)
        self.events.emit(Notice("warning", text, self.id))
        return True

    async def _run_calls(self) -> None:
        response = self.model_call.response
        if response is None or not response.message.tool_calls:
            return
        calls = response.message.tool_calls
        state = self.state
        work = ToolCalls(self.plan, self.events, self.id, state.repeats, state.figures, self.tools)
        cut = self._rejection()
        if cut is not None:
            self.runs = work.reject_calls(
                calls, ("E_INTERRUPTED", f"{cut[0]}; this call was not run")
            )
        # Arguments that were cut off may still parse as JSON, with a wrong value.
        elif response.finish_reason == "length":
            text = "the response hit its length limit in the middle of this call, so it was not run"
            refusal = "E_INVALID_ARGUMENTS", f"{text}; call again with shorter arguments"
            self.runs = work.reject_calls(calls, refusal)
        else:
            begun = self._record(pending_tool_runs(calls, self.tools))
            # On disk before a tool runs: after a crash the store knows which calls may have had
            # an effect.
            await self.events.commit(ResponseReceived(begun, self.system, self.tools))
            self.runs = await work.run(calls)

    def _rejection(self) -> tuple[str, StopState] | None:
        """Reason why no call of this response is executed, and the stop state; None if they may."""
        error = self.model_call.error
        finish = self.model_call.response.finish_reason if self.model_call.response else "stop"
        if self.model_call.stopped or self.plan.cancel.is_set:
            return "the person stopped the run", stopped_by_person()
        if error is not None and self._is_overflow():
            # WaitingUser, not Failed: a retry would not help; the person decides what to leave out.
            return "the response was cut off", StopState("WaitingUser", "length", error)
        if error is None and finish == "error":
            error = ErrorInfo("LLM_BAD_RESPONSE", f"the model ended with an error; {RESUME_HINT}")
        if error is not None:
            return "the response was cut off", StopState("Failed", "error", error)
        if finish == "content_filter":
            return "the response was filtered", StopState("WaitingUser", "content_filter")
        return None

    def _find_stop_state(self) -> StopState:
        cut = self._rejection()
        if cut is not None:
            return cut[1]
        if self.runs:
            return self.next_state()
        length = (
            self.model_call.response is not None
            and self.model_call.response.finish_reason == "length"
        )
        return StopState("WaitingUser", "length" if length else "answered")

    def next_state(self) -> StopState:
        """Return Running, unless a loop, a pause or a limit stops the run here."""
        if self.state.repeats.loop_reason is not None:
            text = f"{self.state.repeats.loop_reason}; the run is paused, {RESUME_HINT}"
            return StopState(
                "WaitingUser", "loop_detected", ErrorInfo("ENGINE_LOOP_DETECTED", text)
            )
        if self.plan.cancel.after_turn:
            return StopState("WaitingUser", "stopped")
        return state_after_calls(self.plan, len(self.state.turns) + 1)

    def fail(self, error: Exception) -> None:
        """End the turn after an error in nbagent or a plug-in. Every call still gets a result."""
        with suppress(Exception):  # keep the partial answer if possible; its error is less useful
            self.model_call.use_partial(self.plan.model)
        calls = self.model_call.response.message.tool_calls if self.model_call.response else ()
        if len(self.runs) < len(calls):
            text = "nbagent failed before this call had a result"
            self.runs = pending_tool_runs(calls, rejection=("E_INTERNAL", text))
        self.finish(failed_with(error))

    def finish(self, end: StopState) -> None:
        """Set the stop state; make the record of the turn and its messages."""
        self.stop_state = end
        self.finished = self._record(self.runs)
        response = self.model_call.response
        # An answer of reasoning alone is not added: Mistral and others refuse an empty message.
        if response is not None and (response.message.content or response.message.tool_calls):
            self.messages = (response.message, *(run.as_message() for run in self.runs))

    def _price_response(self) -> Cost | None:
        """Compute the cost of the response; None if unknown."""
        response = self.model_call.response
        if response is None or response.usage is None:
            return None
        # Servers report a snapshot (`gpt-5.4-2026-03-05`). If it has no price, use the price of
        # the requested name.
        names = response.model or self.plan.model, self.plan.model
        costs = (price(self.plan, response.usage, name) for name in names)
        cost = next((cost for cost in costs if cost is not None), None)
        if cost is not None and response.meta.source in ("hit", "replay"):
            return Cost(saved_usd=cost.total_usd)  # a recorded answer is already paid
        return cost

    def _record(self, runs: tuple[ToolRun, ...]) -> EngineTurn:
        times, cost = self.model_call.times, self._cost
        return EngineTurn(
            id=self.id,
            run_id=self.plan.run.id,
            index=self.index,
            phase_before="Running" if self.state.turns else self.plan.phase_before,
            request=self.sent,
            response=self.model_call.response,
            tool_runs=runs,
            phase_after=self.stop_state.phase,
            stop_reason=self.stop_state.stop_reason,
            started_at=self._started_at,
            duration_ms=monotonic_ms() - self._began_ms,
            model_ms=times.model_ms,
            ttft_ms=times.ttft_ms,
            attempts=times.attempts,
            attempt_statuses=",".join(self.model_call.failed_attempts),
            retry_wait_ms=times.retry_wait_ms,
            cost_usd=cost.total_usd if cost else None,
            cost_input_usd=cost.input_usd if cost else None,
            cost_cached_usd=cost.cached_usd if cost else None,
            cost_output_usd=cost.output_usd if cost else None,
            saved_usd=cost.saved_usd if cost else None,
            node=self.composition.node,
            agent=self.composition.agent,
            error=self.stop_state.error,
            notices=tuple(self.model_call.notices),
        )


def _check_tool_choice(choice: str | None, tools: Sequence[ToolSpec]) -> None:
    names = [tool.name for tool in tools]
    if choice not in (None, "auto", "none", "required", *names):
        raise UsageError(
            f"tool_choice={choice!r} is not a tool of this run; use auto, none, required or "
            f"one of its tools: {', '.join(names)}"
        )


def failed_with(error: Exception) -> StopState:
    """Stop state of a run in which a composer, a host or nbagent itself raised."""
    if isinstance(error, NbagentError):
        return StopState("Failed", "error", ErrorInfo(error.code, error.message))
    return StopState(
        "Failed", "error", ErrorInfo("E_INTERNAL", f"{describe_error(error)}; {RESUME_HINT}")
    )


def stopped_by_person() -> StopState:
    """Stop state of a run that the person stopped."""
    error = ErrorInfo("ENGINE_ABORTED", f"stopped; what it had written is kept, {RESUME_HINT}")
    return StopState("Failed", "stopped", error)
