"""The loop itself: turn after turn until the run stops, with the record that comes of it."""

from __future__ import annotations

import asyncio

from nbagent.contracts.canonical import monotonic_ms, utc_now
from nbagent.contracts.chat import ChatRequest, Message, ToolSpec, Usage
from nbagent.contracts.events import MessagesAdded, RunFinished, RunStarted, TurnFinished
from nbagent.contracts.ports import Composition, EventPort
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.engine.limits import Spent
from nbagent.engine.overflow import Overflow
from nbagent.engine.plan import EnginePlan
from nbagent.engine.repeats import Repeats
from nbagent.engine.turn import End, ToolsSha, Turn, aborted, broken


async def run_engine(plan: EnginePlan, events: EventPort) -> RunRecord:
    """Run to a stop point.

    Nobody cancels the task that awaits this: set `plan.cancel`, and it ends by itself with
    TurnFinished and RunFinished. Failures of the model or of tools are in the record; what
    `events.commit` raises is raised.
    """
    run = _Run(plan, events)
    await events.commit(RunStarted(plan.run))
    while run.end.phase == "Running":
        await run.turn()
    record = run.record()
    await events.commit(RunFinished(record))
    return record


async def first_request(plan: EnginePlan, events: EventPort) -> tuple[ChatRequest, tuple[str, ...]]:
    """What the run would send first, and what would be noted with it. Nothing is sent."""
    run = _Run(plan, events)
    tools = tuple(await plan.host.tools(plan.context))
    composition = await plan.composer.before_turn(tools)
    turn = run.next_turn(composition, tools)
    run.add(composition.new_messages)
    return turn.compose(), tuple(turn.answer.notices)


class _Run:
    """The state of one run: its history, which only grows, and its turns."""

    def __init__(self, plan: EnginePlan, events: EventPort) -> None:
        self.plan = plan
        self.events = events
        self.history: list[Message] = [*plan.history, *plan.run.messages]
        self.own: list[Message] = list(plan.run.messages)
        self.turns: list[EngineTurn] = []
        self.spent = Spent(plan)
        self.repeats = Repeats(plan.run.limits)
        self.overflow = Overflow(plan)
        self.tools_sha = ToolsSha()
        self.end = End()
        self.sent = len(plan.history)
        self.system_prompts: dict[str, str] = {}
        self.toolsets = dict(plan.run.toolsets)
        self.began_ms = monotonic_ms()

    def add(self, messages: tuple[Message, ...]) -> None:
        self.history.extend(messages)
        self.own.extend(messages)

    async def turn(self) -> None:
        """Make one turn, or find out why there is none."""
        try:
            turn, request = await self._composed()
        except Exception as error:
            self.end = broken(error)
            return
        if turn is None or request is None:
            self.end = aborted()
            return
        over = self.spent.over_budget(lambda: self.spent.estimate(request))
        if over is not None:
            self.end = over
            return
        self.sent = len(self.history)
        directives: tuple[Message, ...] = ()
        try:
            await turn.run(request)
            directives = await self._judge(turn)
        except Exception as error:
            turn.fail(error)
        await self._keep(turn)
        await self._say(directives)

    async def _composed(self) -> tuple[Turn | None, ChatRequest | None]:
        """The next turn and its request; None where a stop came first."""
        tools = None if self.plan.cancel.is_set else await self._tools()
        if tools is None:
            return None, None
        composition = await self.plan.composer.before_turn(tools)
        turn = self.next_turn(composition, tools)
        await self._say(composition.new_messages)
        return turn, turn.compose()

    async def _say(self, messages: tuple[Message, ...]) -> None:
        if messages:
            self.add(messages)
            await self.events.commit(MessagesAdded(self.plan.run.id, messages))

    async def _tools(self) -> tuple[ToolSpec, ...] | None:
        """What the host shows now; None when a stop came while it was asked."""
        if getattr(self.plan.host, "lists_at_once", False):
            return tuple(await self.plan.host.tools(self.plan.context))
        listing = asyncio.ensure_future(self.plan.host.tools(self.plan.context))
        if not await self.plan.cancel.finished(listing, 0.0) or listing.cancelled():
            return None
        return tuple(listing.result())

    def next_turn(self, composition: Composition, tools: tuple[ToolSpec, ...]) -> Turn:
        """The turn that comes now; `new_messages` are still to be added."""
        return Turn(
            plan=self.plan,
            events=self.events,
            index=self.plan.first_index + len(self.turns),
            history=self.history,
            n_new=len(self.history) + len(composition.new_messages) - self.sent,
            composition=composition,
            tools=tools,
            tools_sha=self.tools_sha,
            spent=self.spent,
            repeats=self.repeats,
            overflow=self.overflow,
            earlier=self.turns,
        )

    async def _judge(self, turn: Turn) -> tuple[Message, ...]:
        """What the composer wants said after an answer or calls; it may also end the run."""
        is_answer = turn.end.stop_reason == "answered"
        broken_off = turn.end.stop_reason in ("stopped", "error") and turn.end.phase == "Failed"
        if turn.finished is None or broken_off or not (is_answer or turn.runs):
            return ()
        verdict = await self.plan.composer.after_turn(turn.finished)
        if verdict.error is not None:
            turn.end_with(End("Failed", "error", verdict.error))
        elif verdict.complete:
            turn.end_with(End("Completed", "workflow_complete"))
        elif verdict.answered:
            turn.end_with(End("WaitingUser", "answered"))
        elif is_answer and verdict.new_messages:
            turn.end_with(turn.next_end())
        return verdict.new_messages if is_answer else ()

    async def _keep(self, turn: Turn) -> None:
        finished = turn.finished
        assert finished is not None
        self.add(turn.messages)
        self.turns.append(finished)
        self.end = turn.end
        self.spent.add(finished)
        request = finished.request
        if request.system_sha:
            self.system_prompts[request.system_sha] = turn.composition.system_prompt
        if request.toolset_sha:
            self.toolsets[request.toolset_sha] = turn.tools
        prompt = turn.composition.system_prompt
        await self.events.commit(TurnFinished(finished, turn.messages, prompt, turn.tools))

    def record(self) -> RunRecord:
        """The record as it ends."""
        answered = [turn for turn in self.turns if turn.response is not None]
        usage = Usage()
        for turn in answered:
            usage = usage + ((turn.response and turn.response.usage) or Usage())
        costs = [turn.cost_usd for turn in answered if turn.cost_usd is not None]
        return self.plan.run.model_copy(
            update={
                "phase": self.end.phase,
                "stop_reason": self.end.stop_reason,
                "error": self.end.error,
                "ended_at": utc_now(),
                "duration_ms": monotonic_ms() - self.began_ms,
                "usage": usage,
                "cost_usd": sum(costs) if costs else None,
                "n_unpriced": len(answered) - len(costs),
                "notices": tuple(self.plan.notices),
                "system_prompts": self.system_prompts,
                "toolsets": self.toolsets,
                "messages": tuple(self.own),
                "turns": tuple(self.turns),
            }
        )
