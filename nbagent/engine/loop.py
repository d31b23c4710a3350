"""The loop itself: turn after turn until the run stops, with the record that comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from nbagent.contracts.canonical import monotonic_ms, utc_now
from nbagent.contracts.chat import ChatRequest, Message, ToolSpec, Usage
from nbagent.contracts.events import (
    Event,
    MessagesAdded,
    RunFinished,
    RunStarted,
    TurnFinished,
)
from nbagent.contracts.ports import Composition
from nbagent.contracts.records import EngineTurn, RunRecord
from nbagent.engine.plan import EnginePlan
from nbagent.engine.repeats import Repeats
from nbagent.engine.room import Room
from nbagent.engine.turn import Counts, End, Turn, aborted, broken


async def run_engine(plan: EnginePlan) -> AsyncGenerator[Event]:
    """Run to a stop point. When the generator is resumed after a yield, the event is kept.

    Nobody cancels the task that iterates this: set `plan.cancel`, and it ends by itself with
    TurnFinished and RunFinished. Failures of the model or of tools are events, not exceptions.
    """
    run = _Run(plan)
    yield RunStarted(plan.run)
    while run.end.phase == "Running":
        async for event in run.turn():
            yield event
    yield RunFinished(run.record())


async def first_request(plan: EnginePlan) -> tuple[ChatRequest, tuple[str, ...]]:
    """What the run would send first, and what would be noted with it. Nothing is sent."""
    run = _Run(plan)
    tools = tuple(await plan.host.tools(plan.context))
    composition = await plan.composer.before_turn(tools)
    turn = run.next_turn(composition, tools)
    run.add(composition.new_messages)
    return turn.compose(), tuple(turn.answer.notices)


class _Run:
    """The state of one run: its history, which only grows, and its turns."""

    def __init__(self, plan: EnginePlan) -> None:
        self.plan = plan
        self.history: list[Message] = [*plan.history, *plan.run.messages]
        self.own: list[Message] = list(plan.run.messages)
        self.turns: list[EngineTurn] = []
        self.counts = Counts()
        self.repeats = Repeats(plan.run.limits)
        self.room = Room(plan)
        self.end = End()
        self.sent = len(plan.history)
        self.system_prompts: dict[str, str] = {}
        self.toolsets = dict(plan.run.toolsets)
        self.began_ms = monotonic_ms()

    def add(self, messages: tuple[Message, ...]) -> None:
        self.history.extend(messages)
        self.own.extend(messages)

    async def turn(self) -> AsyncGenerator[Event]:
        run_id = self.plan.run.id
        if self.plan.cancel.is_set:
            self.end = aborted()
            return
        try:
            tools = await self._tools()
            if tools is None:
                self.end = aborted()
                return
            composition = await self.plan.composer.before_turn(tools)
            turn = self.next_turn(composition, tools)
            if composition.new_messages:
                self.add(composition.new_messages)
                yield MessagesAdded(run_id, composition.new_messages)
            request = turn.compose()
        except Exception as error:
            self.end = broken(error)
            return
        self.sent = len(self.history)
        directives: tuple[Message, ...] = ()
        try:
            async for event in turn.run(request):
                yield event
            if turn.end.stop_reason == "answered" and turn.finished is not None:
                directives = await self._judge(turn, turn.finished)
        except Exception as error:
            turn.fail(error)
        yield self._keep(turn)
        if directives:
            self.add(directives)
            yield MessagesAdded(run_id, directives)

    async def _tools(self) -> tuple[ToolSpec, ...] | None:
        """What the host shows now; None when a stop came while it was asked."""
        listing = asyncio.ensure_future(self.plan.host.tools(self.plan.context))
        if not await self.plan.cancel.finished(listing, 0.0) or listing.cancelled():
            return None
        return tuple(listing.result())

    def next_turn(self, composition: Composition, tools: tuple[ToolSpec, ...]) -> Turn:
        """The turn that comes now; `new_messages` are still to be added."""
        return Turn(
            plan=self.plan,
            index=self.plan.first_index + len(self.turns),
            history=self.history,
            n_new=len(self.history) + len(composition.new_messages) - self.sent,
            composition=composition,
            tools=tools,
            counts=self.counts,
            repeats=self.repeats,
            room=self.room,
            earlier=self.turns,
        )

    async def _judge(self, turn: Turn, finished: EngineTurn) -> tuple[Message, ...]:
        verdict = await self.plan.composer.after_turn(finished)
        if verdict.complete:
            turn.complete()
        elif verdict.new_messages:
            turn.go_on()
            return verdict.new_messages
        return ()

    def _keep(self, turn: Turn) -> TurnFinished:
        finished = turn.finished
        assert finished is not None
        self.add(turn.messages)
        self.turns.append(finished)
        self.end = turn.end
        self.counts.turns += 1
        if finished.response is not None and finished.response.usage is not None:
            self.counts.tokens += finished.response.usage.total_tokens
        self.counts.cost_usd += finished.cost_usd or 0.0
        request = finished.request
        if request.system_sha:
            self.system_prompts[request.system_sha] = turn.composition.system_prompt
        if request.toolset_sha:
            self.toolsets[request.toolset_sha] = turn.tools
        return TurnFinished(finished, turn.messages, turn.composition.system_prompt, turn.tools)

    def record(self) -> RunRecord:
        """The record as it ends."""
        usage, cost = Usage(), 0.0
        known = True
        for turn in self.turns:
            if turn.response is None:
                continue
            usage = usage + (turn.response.usage or Usage())
            known = known and turn.cost_usd is not None
            cost += turn.cost_usd or 0.0
        return self.plan.run.model_copy(
            update={
                "phase": self.end.phase,
                "stop_reason": self.end.stop_reason,
                "error": self.end.error,
                "ended_at": utc_now(),
                "duration_ms": monotonic_ms() - self.began_ms,
                "usage": usage,
                "cost_usd": cost if known else None,
                "notices": tuple(self.plan.notices),
                "system_prompts": self.system_prompts,
                "toolsets": self.toolsets,
                "messages": tuple(self.own),
                "turns": tuple(self.turns),
            }
        )
