"""The loop: turn after turn until the run stops, and the record of the run.

Owns the order of commits. One turn is in `turn`.
"""

from __future__ import annotations

from nbagent.contracts.canonical import monotonic_ms, utc_now
from nbagent.contracts.events import MessagesAdded, Notice, RunFinished, RunStarted, TurnFinished
from nbagent.contracts.messages import Message
from nbagent.contracts.model import ChatRequest, ToolSpec
from nbagent.contracts.ports import EventPort
from nbagent.contracts.records import RunRecord
from nbagent.engine.limits import StopState, over_budget
from nbagent.engine.plan import EnginePlan
from nbagent.engine.turn import RunState, Turn, failed_with, stopped_by_person


async def run_engine(plan: EnginePlan, events: EventPort) -> RunRecord:
    """Run to a stop point.

    Do not cancel the task that awaits this: set `plan.cancel`, and it ends with TurnFinished and
    RunFinished. Failures of the model or of tools are in the record. Errors of `events.commit` are
    raised.
    """
    run = _EngineRun(plan, events)
    await events.commit(RunStarted(plan.run))
    while run.stop_state.phase == "Running":
        await run.turn()
    record = run.record()
    await events.commit(RunFinished(record))
    return record


async def first_request(plan: EnginePlan, events: EventPort) -> ChatRequest:
    """Build the first request of a run. Nothing is sent."""
    state = RunState(plan, events)
    tools = tuple(await plan.host.tools(plan.context))
    composition = await plan.composer.before_turn(tools)
    state.history += composition.new_messages
    return Turn(state, composition, tools).request


class _EngineRun(RunState):
    """One run: makes its turns and commits their messages."""

    def __init__(self, plan: EnginePlan, events: EventPort) -> None:
        super().__init__(plan, events)
        self.stop_state = StopState()
        self.system_prompts: dict[str, str] = {}
        self.began_ms = monotonic_ms()

    async def turn(self) -> None:
        """Make one turn, or set the reason why there is none."""
        try:
            turn = await self._compose_turn()
        except Exception as error:
            turn = failed_with(error)
        if isinstance(turn, StopState):
            self.stop_state = turn
            return
        # Only now: the turn has counted its new messages against the old value.
        self.n_sent = len(self.history)
        directives: tuple[Message, ...] = ()
        try:
            await turn.run()
            directives = await self._consult_composer(turn)
        except Exception as error:
            turn.fail(error)
        await self._commit_turn(turn)
        await self._add_messages(directives)

    async def _compose_turn(self) -> Turn | StopState:
        """Build the next turn; a StopState if there must be none. Nothing is sent yet."""
        tools = None if self.plan.cancel.is_set else await self._list_tools()
        if tools is None:
            return stopped_by_person()
        composition = await self.plan.composer.before_turn(tools)
        await self._add_messages(composition.new_messages)
        turn = Turn(self, composition, tools)
        excess = over_budget(self.plan, self.turns, turn.request)
        return turn if excess is None else StopState("WaitingUser", "budget", excess)

    async def _add_messages(self, messages: tuple[Message, ...]) -> None:
        if messages:
            self.history += messages
            await self.events.commit(MessagesAdded(self.plan.run.id, messages))

    async def _list_tools(self) -> tuple[ToolSpec, ...] | None:
        """List the host's tools; None if a stop came meanwhile."""
        listing = self.plan.host.tools(self.plan.context)
        # Most hosts list without waiting; a task of its own costs more than the list.
        if getattr(self.plan.host, "lists_at_once", False):
            return tuple(await listing)
        task = await self.plan.cancel.run_cancellable(listing, 0.0)
        return tuple(task.result()) if task.done() and not task.cancelled() else None

    async def _consult_composer(self, turn: Turn) -> tuple[Message, ...]:
        """Ask the composer after an answer or calls; return messages to add. May end the run."""
        is_answer = turn.stop_state.stop_reason == "answered"
        # A pause after the turn (WaitingUser, stopped) is no failure: its calls may have been the
        # answer, or the end of a workflow.
        has_failed = (
            turn.stop_state.stop_reason in ("stopped", "error")
            and turn.stop_state.phase == "Failed"
        )
        if turn.finished is None or has_failed or not (is_answer or turn.runs):
            return ()
        decision = await self.plan.composer.after_turn(turn.finished)
        for text in decision.notices:
            self.plan.notices.append(text)
            self.events.emit(Notice("info", text))
        if decision.error is not None:
            turn.finish(StopState("Failed", "error", decision.error))
        elif decision.stop_reason is not None:
            turn.finish(StopState("Completed", decision.stop_reason))
        elif decision.call_was_answer:
            turn.finish(StopState("WaitingUser", "answered"))
        elif is_answer and decision.new_messages:
            turn.finish(turn.next_state())
        # After calls, their results already tell the model what was wrong.
        return decision.new_messages if is_answer else ()

    async def _commit_turn(self, turn: Turn) -> None:
        finished = turn.finished
        assert finished is not None
        self.history += turn.messages
        self.turns.append(finished)
        self.stop_state = turn.stop_state
        if finished.request.system_sha:
            self.system_prompts[finished.request.system_sha] = turn.system
        if finished.request.toolset_sha:
            self.toolsets[finished.request.toolset_sha] = turn.tools
        await self.events.commit(TurnFinished(finished, turn.messages, turn.system, turn.tools))

    def record(self) -> RunRecord:
        run = self.plan.run.model_copy(
            update={
                "notices": tuple(self.plan.notices),
                "system_prompts": self.system_prompts,
                "toolsets": self.toolsets,
                "messages": tuple(self.history[len(self.plan.history) :]),
                "turns": tuple(self.turns),
            }
        )
        return run.ended(
            phase=self.stop_state.phase,
            stop_reason=self.stop_state.stop_reason,
            error=self.stop_state.error,
            ended_at=utc_now(),
            duration_ms=monotonic_ms() - self.began_ms,
        )
