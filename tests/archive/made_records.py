"""Runs for the archive's tests: random ones of every shape, and the events that lead to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from nbagent.archive.store import Store
from nbagent.contracts.canonical import dump_json, sha256_hex
from nbagent.contracts.chat import (
    ChatResponse,
    FilePart,
    ImagePart,
    Message,
    Part,
    ResponseMeta,
    TextPart,
    ToolCall,
    ToolSpec,
    ToolTraits,
    Usage,
)
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.events import (
    Event,
    MessagesAdded,
    ResponseReceived,
    RunFinished,
    RunStarted,
    ToolCallFinished,
    TurnFinished,
    TurnStarted,
)
from nbagent.contracts.policy import Limits
from nbagent.contracts.records import (
    EngineTurn,
    RunRecord,
    ToolResult,
    ToolRun,
    TurnRequest,
    toolset_sha,
    turn_id,
)

START = datetime(2026, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
_WORDS = (
    "",
    "plain words",
    "Zürich ✓ 日本",
    "two\nlines\ttab",
    "nul \0 inside",
    "\ud83d alone",
    "'\"\\",
)


class Maker:
    """Makes one random run after the other; the same seed makes the same runs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._clock = START

    def id(self) -> str:
        return f"{self.random.getrandbits(64):016x}"

    def later(self) -> datetime:
        self._clock += timedelta(microseconds=self.random.randrange(10**7))
        return self._clock

    def words(self) -> str:
        return self.random.choice(_WORDS) + self.random.choice(("", "x" * 300))

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.5 else None

    def json(self) -> Any:
        plain = [None, True, -(2**63), 2**63 - 1, self.random.random() * 1e6, self.words()]
        nested: list[Any] = [[], {}, plain, {"k é": plain, "b": {"deep": self.words()}}]
        return self.random.choice([*plain, *nested])

    def object(self) -> dict[str, Any]:
        return {"a": self.json(), "b": self.json()}

    def part(self) -> Part:
        return self.random.choice(
            (
                TextPart(text=self.words()),
                ImagePart(data="aGk=", alt="a chart"),
                ImagePart(url="https://example.org/x.png", media_type="image/jpeg"),
                FilePart(name="data.csv", media_type="text/csv", data="YSxi"),
            )
        )

    def error(self) -> ErrorInfo:
        return ErrorInfo("E_TOOL_FAILED", "it failed: " + self.words(), self.maybe({"n": 1}) or {})

    def result(self) -> ToolResult:
        if self.random.random() < 0.3:
            return ToolResult.failure(self.error())
        attachments = tuple(self.part() for _ in range(self.random.choice((0, 0, 0, 2))))
        return ToolResult(ok=True, data=self.json(), attachments=attachments)

    def tool_run(self, call: ToolCall) -> ToolRun:
        return ToolRun(
            tool_call_id=call.id,
            tool_name=call.name,
            args=call.arguments,
            result=self.result(),
            queued_at=self.maybe(self.later()),
            started_at=self.maybe(self.later()),
            duration_ms=self.random.random() * 100,
            waited_ms=self.maybe(12.5) or 0.0,
            ran_in=self.maybe("worker thread"),
            approval=self.maybe("edited"),
            approved_by=self.maybe("person"),
            truncated=self.random.random() < 0.5,
            repeat_n=self.random.randrange(1, 4),
            tool_sha=self.maybe("f" * 64) or "",
            error_detail=self.maybe('File "x.py", line 3\n' + self.words()),
            notes=self.maybe(("redefined since the run began",)) or (),
        )

    def call(self, n: int) -> ToolCall:
        if self.random.random() < 0.2:
            raw, arguments = "{not json", None
        else:
            arguments = self.object()
            raw = dump_json(arguments).decode()
        extra = self.maybe({"signature": "abc"})
        name = self.random.choice(("fs.read", "population"))
        call_id = f"call_{n}_{self.random.randrange(10**6)}"
        return ToolCall(id=call_id, name=name, arguments=arguments, arguments_raw=raw, extra=extra)

    def answer(self, n_calls: int) -> Message:
        content = tuple(self.part() for _ in range(2)) if self.random.random() < 0.2 else ()
        text = self.words()
        if not content and text:
            content = (TextPart(text=text),)
        return Message(
            role="assistant",
            content=content,
            tool_calls=tuple(self.call(n) for n in range(n_calls)),
            reasoning=self.maybe(self.words()),
            raw=self.maybe({"provider": "openai", "items": [self.json()]}),
        )

    def tools(self) -> tuple[ToolSpec, ...]:
        traits = ToolTraits(host="functions", sha=self.id())
        spec = ToolSpec(name="population", description=self.words(), traits=traits)
        return self.random.choice(((), (spec,), (spec, ToolSpec(name="fs.read"))))

    def usage(self) -> Usage:
        prompt, written = self.random.randrange(5000), self.maybe(7) or 0
        return Usage.of(prompt, 90, cached=prompt // 2, reasoning=30, cache_write=written)

    def run(self, *, n_turns: int | None = None, **fields: Any) -> tuple[RunRecord, list[Event]]:
        """A finished run and the events that lead to it."""
        n_turns = self.random.randrange(5) if n_turns is None else n_turns
        words = (Message.of("user", self.words() or "hello"),)
        base: dict[str, Any] = {
            "id": self.id(),
            "name": self.maybe("a name"),
            "tags": self.maybe(("x", "y")) or (),
            "cell_id": self.maybe("cell"),
            "base_url": self.maybe("http://127.0.0.1:1/v1"),
            "template": self.maybe("{{ it }}"),
            "prompt": words[0].text,
            "options": self.object(),
            "limits": Limits(max_turns=7, max_cost_usd=self.maybe(0.5)),
            "started_at": self.later(),
            "messages": words,
        }
        made = Assembly(**{**base, **fields})
        for _ in range(n_turns):
            if self.random.random() < 0.2:
                made.directive("a directive")
            self.turn(made)
        failed = self.random.random() < 0.3
        return made.end(
            phase="Failed" if failed else "WaitingUser",
            stop_reason="error" if failed else "answered",
            error=self.error() if failed else None,
            ended_at=self.later(),
            duration_ms=1234.5678901234567,
            cost_usd=self.maybe(0.1 + 0.2),
            notices=self.maybe(("the price is unknown",)) or (),
        )

    def turn(self, made: Assembly) -> None:
        """Add a random turn; one that was cut, or that failed, is not in the conversation."""
        kind = self.random.choice(("answer", "calls", "calls", "nothing", "cut"))
        failed = kind in ("nothing", "cut")
        answer = self.answer(self.random.randrange(1, 4) if kind == "calls" else 0)
        meta = ResponseMeta(
            request_id=self.maybe("req_1"),
            attempts=self.random.randrange(3),
            retry_wait_ms=self.maybe(1234.5) or 0.0,
            source=self.random.choice(("live", "hit", "replay", "offline")),
            dropped_params=self.maybe(("top_p",)) or (),
        )
        response = ChatResponse(
            message=answer,
            usage=self.maybe(self.usage()),
            model=self.maybe("gpt-x-2026") or "",
            finish_reason="tool_calls" if answer.tool_calls else "stop",
            meta=meta,
        )
        runs = [self.tool_run(call) for call in answer.tool_calls]
        made.turn(
            None if kind == "nothing" else response,
            runs,
            ends_in=self.random.sample(runs, len(runs)),
            is_kept=not failed,
            system=self.words(),
            tools=self.tools(),
            params=self.maybe({"tool_choice": "auto", "temperature": 0.5}) or {},
            started_at=self.later(),
            model_ms=self.random.random(),
            ttft_ms=self.maybe(3.25),
            attempts=1 + self.random.randrange(3),
            retry_wait_ms=self.maybe(0.1 + 0.2) or 0.0,
            cost_usd=self.maybe(0.01),
            node=self.maybe("draft"),
            agent=self.maybe("writer"),
            duration_ms=self.random.random() * 1000,
            phase_after="Failed" if failed else "Running",
            error=self.error() if failed else None,
            notices=self.maybe(("tool changed",)) or (),
        )


class Assembly:
    """Puts a run together turn by turn, with the events that an engine would emit for it."""

    def __init__(self, first_turn: int = 1, **fields: Any) -> None:
        self.first_turn = first_turn
        base: dict[str, Any] = {"session": "s1", "model": "openai:gpt-x", "started_at": START}
        self.record = RunRecord(**{**base, **fields})
        self.events: list[Event] = [RunStarted(self.record)]
        self.messages = list(self.record.messages)
        self.turns: list[EngineTurn] = []
        self.prompts: dict[str, str] = {}
        self.toolsets: dict[str, tuple[ToolSpec, ...]] = {}

    def directive(self, text: str) -> None:
        added = (Message.of("user", text),)
        self.messages += added
        self.events.append(MessagesAdded(self.record.id, added))

    def turn(
        self,
        response: ChatResponse | None,
        runs: Sequence[ToolRun],
        *,
        system: str,
        ends_in: Sequence[ToolRun] | None = None,
        tools: tuple[ToolSpec, ...] = (),
        params: dict[str, Any],
        is_kept: bool = True,
        **fields: Any,
    ) -> None:
        """Add a turn whose runs end in an order; its messages stay outside unless it is kept."""
        run_id, index = self.record.id, len(self.turns) + self.first_turn
        request = TurnRequest(
            n_messages=self.record.shared_messages + len(self.messages),
            n_new=1,
            model=self.record.model.partition(":")[2],
            params=params,
            system_sha=sha256_hex(system) if system else "",
            toolset_sha=toolset_sha(tools),
            n_tools=len(tools),
        )
        self.prompts |= {request.system_sha: system} if system else {}
        self.toolsets |= {request.toolset_sha: tools} if tools else {}
        names: dict[str, Any] = {"id": turn_id(index), "run_id": run_id, "index": index}
        turn = EngineTurn(
            **names, request=request, response=response, tool_runs=tuple(runs), **fields
        )
        self.events.append(TurnStarted(run_id, turn.id, index, request, (), system, tools))
        if response is not None and runs:
            waiting = tuple(run.model_copy(update={"result": None}) for run in runs)
            begun = turn.model_copy(update={"tool_runs": waiting, "duration_ms": 0.0})
            self.events.append(ResponseReceived(begun, response.message, system, tools))
            for pending, run in zip(range(len(runs))[::-1], ends_in or runs, strict=True):
                self.events.append(ToolCallFinished(run_id, turn.id, run, pending))
        added: tuple[Message, ...] = ()
        if response is not None and is_kept:
            added = (response.message, *map(_answer_to, runs))
        self.messages += added
        self.turns.append(turn)
        self.events.append(TurnFinished(turn, added, system, tools))

    def end(self, **fields: Any) -> tuple[RunRecord, list[Event]]:
        """The record and the events."""
        usages = [turn.response.usage for turn in self.turns if turn.response]
        whole: dict[str, Any] = {
            "messages": tuple(self.messages),
            "turns": tuple(self.turns),
            "usage": sum((usage for usage in usages if usage), Usage()),
            "system_prompts": self.prompts,
            "toolsets": self.toolsets,
        }
        record = self.record.model_copy(update={**whole, **fields})
        return record, [*self.events, RunFinished(record)]


def _answer_to(run: ToolRun) -> Message:
    assert run.result is not None
    content = run.result.as_content()
    return Message(role="tool", content=content, tool_call_id=run.tool_call_id, name=run.tool_name)


def plain_run(
    n_turns: int,
    *,
    run_id: str,
    text: str = "word " * 200,
    attachments: tuple[Part, ...] = (),
    **fields: Any,
) -> list[Event]:
    """The events of a run whose turns each make one call of the same size.

    `text` is what each answer says and each tool gives back, with the attachments beside it.
    """
    base: dict[str, Any] = {"prompt": "go", "messages": (Message.of("user", "go"),)}
    made = Assembly(id=run_id, **{**base, **fields})
    for index in range(1, n_turns + 1):
        args, raw = {"n": index}, f'{{"n":{index}}}'
        call = ToolCall(id=f"c{index}", name="work", arguments=args, arguments_raw=raw)
        answer = Message(role="assistant", content=(TextPart(text=text),), tool_calls=(call,))
        result = ToolResult(ok=True, data=f"{index} {text}", attachments=attachments)
        run = ToolRun(
            tool_call_id=call.id,
            tool_name="work",
            args=args,
            started_at=START,
            result=result,
            duration_ms=5.0,
        )
        response = ChatResponse(
            message=answer,
            usage=Usage.of(index, 20),
            model="gpt-x",
            finish_reason="tool_calls",
            meta=ResponseMeta(request_id="req_0123456789abcdef"),
        )
        made.turn(
            response,
            [run],
            system="Be brief.",
            tools=(ToolSpec(name="work", description="Works."),),
            params={"tool_choice": "auto"},
            started_at=START + timedelta(seconds=index),
            model_ms=12.3456789,
            cost_usd=0.001,
            duration_ms=20.25,
        )
    ended = START + timedelta(seconds=n_turns + 1)
    return made.end(phase="WaitingUser", stop_reason="max_turns", ended_at=ended)[1]


def record_of(events: Sequence[Event]) -> RunRecord:
    """The record that the last event brings."""
    last = events[-1]
    assert isinstance(last, RunFinished)
    return last.run


def cut_after_a_result(events: Sequence[Event]) -> list[Event]:
    """The events up to the last result on disk, whose message is not there yet."""
    end = max(i for i, event in enumerate(events) if isinstance(event, ToolCallFinished))
    last = events[end]
    assert isinstance(last, ToolCallFinished)
    return [*events[:end], replace(last, pending=1)]


def write(store: Store, events: Sequence[Event]) -> None:
    """Commit the events one by one."""

    async def commit() -> None:
        for event in events:
            await store.commit(event)

    asyncio.run(commit())


def crash(home: Path, events: Sequence[Event]) -> None:
    """Write events in a store whose process then is gone: its lease is given back."""
    with contextlib.closing(Store.open(home)) as store:
        write(store, events)
