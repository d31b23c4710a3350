"""Runs as stories: the record of one, and the events that an engine would yield for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from nbagent.contracts import events
from nbagent.contracts.approval import Question
from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.messages import Message, ToolCall
from nbagent.contracts.model import ChatResponse, ResponseMeta, ToolSpec, Usage
from nbagent.contracts.records import (
    EngineTurn,
    RunRecord,
    ToolResult,
    ToolRun,
    TurnRequest,
    WorkflowRef,
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


def answer_with(text: str, runs: Sequence[ToolRun]) -> Message:
    """Assistant message with the calls of these runs."""
    calls = tuple(
        ToolCall(id=r.tool_call_id, name=r.tool_name, arguments=r.args, arguments_raw="{}")
        for r in runs
    )
    return Message.of("assistant", text).model_copy(update={"tool_calls": calls})


class Assembly:
    """Puts a run together turn by turn, with the events that an engine would emit for it."""

    def __init__(self, first_turn: int = 1, **fields: Any) -> None:
        base: dict[str, Any] = {"session": "s1", "model": "openai:gpt-x", "started_at": NOW}
        self.run = RunRecord(**{**base, **fields})
        self.events: list[events.Event] = [events.RunStarted(self.run)]
        self._first_turn = first_turn
        self._sent = 0

    def directive(self, text: str) -> None:
        self._add(Message.of("user", text))
        self.events.append(events.MessagesAdded(self.run.id, self.run.messages[-1:]))

    def add_turn(
        self,
        response: ChatResponse | None,
        runs: Sequence[ToolRun],
        *,
        system: str,
        params: dict[str, Any],
        tools: tuple[ToolSpec, ...] = (),
        ends_in: Sequence[ToolRun] | None = None,
        is_kept: bool = True,
        **fields: Any,
    ) -> None:
        """Add a turn whose runs end in an order; its messages stay outside unless it is kept."""
        index = len(self.run.turns) + self._first_turn
        total = self.run.shared_messages + len(self.run.messages)
        request = TurnRequest(
            n_messages=total,
            n_new=total - self._sent,
            model=self.run.model.partition(":")[2],
            params=params,
            system_sha=sha256_hex(system) if system else "",
            toolset_sha=toolset_sha(tools),
            n_tools=len(tools),
        )
        named: dict[str, Any] = {"id": turn_id(index), "run_id": self.run.id, "index": index}
        named |= {"request": request, "response": response, "tool_runs": tuple(runs)}
        turn = EngineTurn(**{**named, **fields})
        response = turn.response
        new = self.run.messages[max(self._sent - self.run.shared_messages, 0) :]
        self._sent = total
        self.events.append(events.TurnStarted(turn.id, request, new, system, tools))
        self.events += self.deltas(turn)
        if response is not None and runs:
            waiting = tuple(
                ToolRun(tool_call_id=run.tool_call_id, tool_name=run.tool_name, args=run.args)
                for run in runs
            )
            begun = turn.model_copy(update={"tool_runs": waiting, "duration_ms": turn.model_ms})
            self.events.append(events.ResponseReceived(begun, system, tools))
            for pending, run in zip(range(len(runs))[::-1], ends_in or runs, strict=True):
                self.events += self.beginning(turn, run)
                self.events.append(events.ToolCallFinished(self.run.id, turn.id, run, pending))
        added: tuple[Message, ...] = ()
        if response is not None and is_kept:
            added = (response.message, *(run.as_message() for run in runs))
        self._add(*added)
        self.events.append(events.TurnFinished(turn, added, system, tools))
        usage = response.usage if response else None
        prompt = {request.system_sha: system} if system else {}
        toolset = {request.toolset_sha: tools} if tools else {}
        self._set(
            turns=(*self.run.turns, turn),
            usage=self.run.usage + (usage or Usage()),
            system_prompts={**self.run.system_prompts, **prompt},
            toolsets={**self.run.toolsets, **toolset},
        )

    def deltas(self, turn: EngineTurn) -> Iterable[events.Event]:
        """Events of an answer before it is whole."""
        return ()

    def beginning(self, turn: EngineTurn, run: ToolRun) -> Iterable[events.Event]:
        """Events of a call before its end."""
        return ()

    def end(self, **fields: Any) -> Self:
        """End the run; answered unless the fields say otherwise."""
        ends = {"phase": "WaitingUser", "stop_reason": "answered", "ended_at": NOW}
        self._set(**{**ends, "duration_ms": 2800.0, **fields})
        self.events.append(events.RunFinished(self.run))
        return self

    def _add(self, *messages: Message) -> None:
        self._set(messages=(*self.run.messages, *messages))

    def _set(self, **fields: Any) -> None:
        self.run = self.run.model_copy(update=fields)


class Story(Assembly):
    """A run in few words, with every event that a view folds."""

    def __init__(self, model: str = "deepseek:deepseek-flash", **fields: Any) -> None:
        question = "Which is larger?"
        base: dict[str, Any] = {"id": ID, "session": "main", "model": model, "prompt": question}
        base["messages"] = (Message.of("user", question),)
        super().__init__(**{**base, **fields})

    def turn(
        self,
        text: str = "",
        *runs: ToolRun,
        reasoning: str = "",
        system: str = "Be brief.",
        tools: tuple[ToolSpec, ...] = TOOLS,
        **fields: Any,
    ) -> Story:
        """Add one turn: its request, its deltas, its calls, its end."""
        message = answer_with(text, runs).model_copy(update={"reasoning": reasoning or None})
        usage = Usage(prompt_tokens=300, completion_tokens=128, total_tokens=428, cached_tokens=304)
        base: dict[str, Any] = {
            "started_at": NOW,
            "duration_ms": 1100.0,
            "model_ms": 800.0 if runs else 1100.0,
            "cost_usd": 0.00013,
            "response": ChatResponse(message=message, usage=usage, meta=ResponseMeta()),
        }
        given: dict[str, Any] = {"system": system, "tools": tools, **base, **fields}
        self.add_turn(runs=runs, params={"tool_choice": "auto"}, **given)
        cost = (self.run.cost_usd or 0.0) + (self.run.turns[-1].cost_usd or 0.0)
        self._set(cost_usd=cost)
        return self

    def deltas(self, turn: EngineTurn) -> Iterable[events.Event]:
        message = turn.response.message if turn.response else Message.of("assistant", "")
        text, reasoning = message.text, message.reasoning or ""
        for i in range(0, len(reasoning), 9):
            yield events.ReasoningDelta(turn.id, reasoning[i : i + 9])
        for i in range(0, len(text), 7):
            yield events.TextDelta(turn.id, text[i : i + 7])
        for i, run in enumerate(turn.tool_runs):
            yield events.ToolCallDelta(turn.id, i, run.tool_name, '{"city"')
            yield events.ToolCallDelta(turn.id, i, None, ": 1}")

    def beginning(self, turn: EngineTurn, run: ToolRun) -> Iterable[events.Event]:
        yield events.ToolCallStarted(turn.id, run.tool_call_id, run.tool_name, run.args or {})
        yield events.ToolProgress(turn.id, run.tool_call_id, "half", 0.5)


def asked(key: str, name: str, args: dict[str, Any], **fields: Any) -> events.ApprovalRequested:
    """The event of a question about a call of the first turn."""
    given: dict[str, Any] = {"host": "fs", "why": "it writes", "scope": "this exact call", **fields}
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


DOCUMENT = "@state/workflow.md"


def patched(
    key: str,
    update: dict[str, Any],
    outcome: dict[str, Any] | ErrorInfo | None = None,
    **fields: Any,
) -> ToolRun:
    """A patch of a workflow's document, with what came of it besides its hashes, or an error."""
    done: dict[str, Any] = {"path": DOCUMENT, "sha256Before": "1" * 64, "sha256After": "2" * 64}
    args = {"path": DOCUMENT, "operation": "updateFrontmatter", "update": update, **fields}
    value = outcome if isinstance(outcome, ErrorInfo) else {**done, **(outcome or {})}
    return tool_run(key, "fs.apply_patch", args, value).model_copy(update={"host": "fs"})


def walked(**fields: Any) -> Story:
    """A workflow's run: a refused move and a good one; then it asks the person."""
    base: dict[str, Any] = {"workflow": WorkflowRef(name="story-flow"), "agent": "mira"}
    story = Story(**{**base, **fields})
    bad, good = ({"from": "select", "to": to, "label": None} for to in ("close", "draft"))
    good["label"] = "next"
    details: dict[str, Any] = {"transition": bad, "allowed": ["draft"]}
    refusal = ErrorInfo("E_INVALID_TRANSITION", "close does not follow select", details)
    here: dict[str, Any] = {"node": "select", "agent": "mira"}
    story.turn("", patched("c1", {"currentNodeId.set": "close"}, refusal), **here)
    update = {"stepsCompleted.append": "select", "currentNodeId.set": "draft"}
    story.turn("", patched("c2", update, {"transition": good}), **here)
    here = {"node": "draft", "agent": "otto"}
    story.turn("", patched("c3", {"decisionLog.append": "a fjord"}), **here)
    return story.turn("Which ending?", **here).end()
