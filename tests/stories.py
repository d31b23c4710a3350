"""Runs as stories: the record of one, and the events that an engine would yield for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from nbagent.contracts import events
from nbagent.contracts.chat import ChatResponse, Message, ResponseMeta, ToolCall, ToolSpec, Usage
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.policy import Question
from nbagent.contracts.records import (
    EngineTurn,
    RunRecord,
    ToolResult,
    ToolRun,
    TurnRequest,
    toolset_sha,
    turn_id,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ID = "1a2b3c4d5e6f7081"
TOOLS = (
    ToolSpec(name="population", description="People living in a city."),
    ToolSpec(name="area"),
)
ANSWER = (
    "Oslo is larger: **717,710** people against **291,940** in Bergen, "
    "about two and a half times as many."
)
REASONING = "Density needs the area too; the first call gave only people."


def tool_run(key: str, name: str, args: dict[str, Any], value: Any, ms: float = 12) -> ToolRun:
    """A tool run that ended well, or with the given error."""
    failed = isinstance(value, ErrorInfo)
    return ToolRun(
        tool_call_id=key,
        tool_name=name,
        args=args,
        result=ToolResult.failure(value) if failed else ToolResult(ok=True, data=value),
        queued_at=NOW,
        started_at=NOW,
        duration_ms=ms,
        ran_in="main thread",
        error_detail="KeyError: 'Bergn'   areas.py:7 in area" if failed else None,
        tool_sha="t",
    )


class Story:
    """Builds a record turn by turn, and the events that an engine would yield for it."""

    def __init__(self, model: str = "deepseek:deepseek-flash", **fields: Any) -> None:
        self.run = RunRecord(
            id=ID,
            session="main",
            model=model,
            prompt="Which is larger?",
            started_at=NOW,
            messages=(Message.of("user", "Which is larger?"),),
            system_prompts={"s": "Be brief."},
            toolsets={toolset_sha(TOOLS): TOOLS},
            **fields,
        )
        self.events: list[events.Event] = [events.RunStarted(self.run)]
        self._sent = 0

    def turn(self, text: str = "", *runs: ToolRun, reasoning: str = "", **fields: Any) -> Story:
        """Add one turn: its request, its deltas, its calls, its end."""
        index = len(self.run.turns) + 1
        name = turn_id(index)
        total = self.run.shared_messages + len(self.run.messages)
        request = TurnRequest(
            n_messages=total,
            n_new=total - self._sent,
            model="m",
            params={"tool_choice": "auto"},
            system_sha="s",
            toolset_sha=toolset_sha(TOOLS),
            n_tools=2,
        )
        new = self.run.messages[len(self.run.messages) - (total - self._sent) :]
        self._sent = total
        self.events.append(events.TurnStarted(name, request, new, "Be brief.", TOOLS))
        self._stream(name, text, reasoning, runs)
        calls = tuple(
            ToolCall(id=r.tool_call_id, name=r.tool_name, arguments=r.args, arguments_raw="{}")
            for r in runs
        )
        message = Message.of("assistant", text).model_copy(
            update={"tool_calls": calls, "reasoning": reasoning or None}
        )
        usage = Usage(prompt_tokens=300, completion_tokens=128, total_tokens=428, cached_tokens=304)
        base: dict[str, Any] = {
            "id": name,
            "run_id": ID,
            "index": index,
            "request": request,
            "started_at": NOW,
            "duration_ms": 1100.0,
            "model_ms": 800.0 if runs else 1100.0,
            "cost_usd": 0.00013,
            "response": ChatResponse(message=message, usage=usage, meta=ResponseMeta()),
        }
        turn = EngineTurn(**{**base, **fields})
        added = (message, *(run.as_message() for run in runs))
        self._run_tools(turn, runs)
        turn = turn.model_copy(update={"tool_runs": runs})
        self.events.append(events.TurnFinished(turn, added, "Be brief.", TOOLS))
        total_usage = self.run.usage + (
            turn.response.usage or Usage() if turn.response else Usage()
        )
        self.run = self.run.model_copy(
            update={
                "turns": (*self.run.turns, turn),
                "messages": (*self.run.messages, *added),
                "usage": total_usage,
                "cost_usd": (self.run.cost_usd or 0.0) + (turn.cost_usd or 0.0),
            }
        )
        return self

    def _stream(self, name: str, text: str, reasoning: str, runs: tuple[ToolRun, ...]) -> None:
        for i in range(0, len(reasoning), 9):
            self.events.append(events.ReasoningDelta(name, reasoning[i : i + 9]))
        for i in range(0, len(text), 7):
            self.events.append(events.TextDelta(name, text[i : i + 7]))
        for i, run in enumerate(runs):
            self.events.append(events.ToolCallDelta(name, i, run.tool_name, '{"city"'))
            self.events.append(events.ToolCallDelta(name, i, None, ": 1}"))

    def _run_tools(self, turn: EngineTurn, runs: tuple[ToolRun, ...]) -> None:
        if not runs:
            return
        queued = tuple(
            ToolRun(tool_call_id=r.tool_call_id, tool_name=r.tool_name, args=r.args) for r in runs
        )
        begun = turn.model_copy(update={"tool_runs": queued, "duration_ms": turn.model_ms})
        self.events.append(events.ResponseReceived(begun, "Be brief.", TOOLS))
        for i, run in enumerate(runs):
            key, args = run.tool_call_id, run.args or {}
            self.events.append(events.ToolCallStarted(turn.id, key, run.tool_name, args))
            self.events.append(events.ToolProgress(turn.id, key, "half", 0.5))
            self.events.append(events.ToolCallFinished(ID, turn.id, run, len(runs) - i - 1))

    def end(self, **fields: Any) -> Story:
        """End the run; answered unless the fields say otherwise."""
        ends = {"phase": "WaitingUser", "stop_reason": "answered", "ended_at": NOW}
        self.run = self.run.model_copy(update={**ends, "duration_ms": 2800.0, **fields})
        self.events.append(events.RunFinished(self.run))
        return self


def asked(key: str, name: str, args: dict[str, Any], **fields: Any) -> events.ApprovalRequested:
    """The event of a question about a call of the first turn."""
    given: dict[str, Any] = {"host": "fs", "why": "it writes", "scope": "this very call", **fields}
    question = Question(
        run_id=ID, turn_id="C01", tool_call_id=key, tool=name, arguments=args, **given
    )
    return events.ApprovalRequested("C01", key, name, args, question)


def drawn(model: str = "deepseek:deepseek-flash") -> Story:
    """The run that the look draws: it asks for two cities, fails once, and answers."""
    error = ErrorInfo("E_TOOL_FAILED", "KeyError: 'Bergn'")
    story = Story(model)
    story.turn(
        "",
        tool_run("c1", "population", {"city": "Oslo"}, 717710, 120),
        tool_run("c2", "population", {"city": "Bergen"}, 291940, 180),
    )
    story.turn("", tool_run("c3", "area", {"city": "Bergn"}, error), reasoning=REASONING)
    return story.turn(ANSWER).end()
