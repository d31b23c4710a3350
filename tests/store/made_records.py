"""Runs for the archive's tests: random ones of every shape, and the events that lead to them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from stories import Assembly, answer_with

from nbagent.contracts.canonical import dump_json
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.events import Event, RunFinished, ToolCallFinished
from nbagent.contracts.messages import Message, Part, ToolCall, Value
from nbagent.contracts.model import ChatResponse, ToolSpec, Usage
from nbagent.contracts.records import EngineTurn, RunRecord, ToolResult, ToolRun
from nbagent.store.writer import Store

START = datetime(2026, 3, 4, 5, 6, 7, 891011, tzinfo=UTC)
_WORDS = (
    "plain words",
    "Zürich ✓ 日本",
    "two\nlines\ttab",
    "nul \0 inside",
    "\ud83d alone",
    "'\"\\",
)


V = TypeVar("V", bound=Value)
OF_RUNS = (
    *("name", "agent", "workflow", "forked_from", "nbagent_version", "execution_count"),
    *("cell_id", "kernel_id", "file_id", "notebook", "base_url", "template", "options", "limits"),
)
OF_TURNS = (
    *("phase_before", "duration_ms", "model_ms", "ttft_ms", "attempts", "retry_wait_ms"),
    *("cost_usd", "cost_input_usd", "cost_cached_usd", "cost_output_usd", "saved_usd"),
    *("node", "agent", "notices"),
)


class Maker:
    """Makes one random run after the other; the same seed makes the same runs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._clock = START

    def later(self) -> datetime:
        self._clock += timedelta(microseconds=self.random.randrange(10**7))
        return self._clock

    def words(self) -> str:
        return self.random.choice(_WORDS) + self.random.choice(("", "x" * 300))

    def maybe(self, value: Any) -> Any:
        return value if self.random.random() < 0.5 else None

    def json(self) -> Any:
        plain = [None, True, -(2**63), 2**63 - 1, self.random.random() * 1e6, self.words()]
        nested: list[Any] = [[], {}, plain, {"k é": plain, "half \ud83d": {"deep": self.words()}}]
        return self.random.choice([*plain, *nested])

    def value(self, hint: Any) -> Any:
        """Any value of a type that records have."""
        origin, options = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self.value(options[0])
        if origin is Literal:
            return self.random.choice(options)
        if origin in (Union, UnionType):
            return self.value(self.random.choice(options))
        if origin is tuple:
            return tuple(self.value(options[0]) for _ in range(self.random.choice((0, 0, 1, 2))))
        if origin is dict:
            return {"a": self.value(options[1]), "b": self.value(options[1])}
        plain: dict[Any, Callable[[], Any]] = {
            Any: self.json,
            NoneType: lambda: None,
            bool: lambda: self.random.random() < 0.5,
            int: lambda: self.random.randrange(1, 5_000),
            float: lambda: self.random.random() * 1_000,
            str: self.words,
            datetime: self.later,
            ErrorInfo: lambda: ErrorInfo("E_TOOL_FAILED", self.words(), self.maybe({"n": 1}) or {}),
        }
        return plain[hint]() if hint in plain else self.of(hint)

    def fields(self, kind: type[Value], names: Iterable[str]) -> dict[str, Any]:
        """Values for these fields of a record."""
        return {name: self.value(kind.model_fields[name].annotation) for name in names}

    def of(self, kind: type[V], **given: Any) -> V:
        """A record with any values in the fields that are not given."""
        return kind(
            **self.fields(kind, [it for it in kind.model_fields if it not in given]), **given
        )

    def tool_run(self, call: ToolCall) -> ToolRun:
        failed = ToolResult.failure(self.value(ErrorInfo))
        result = failed if self.random.random() < 0.3 else self.of(ToolResult, ok=True, error=None)
        given: dict[str, Any] = {"args": call.arguments, "result": result}
        return self.of(ToolRun, tool_call_id=call.id, tool_name=call.name, **given)

    def call(self, n: int) -> ToolCall:
        raw, arguments = "{not json", None
        if self.random.random() < 0.8:
            arguments = {"a": self.json(), "b": self.json()}
            raw = dump_json(arguments).decode()
        call_id = f"call_{n}_{self.random.randrange(10**6)}"
        return self.of(ToolCall, id=call_id, arguments=arguments, arguments_raw=raw)

    def run(self, *, n_turns: int | None = None, **fields: Any) -> tuple[RunRecord, list[Event]]:
        """A finished run and the events that lead to it."""
        n_turns = self.random.randrange(5) if n_turns is None else n_turns
        words = (Message.of("user", self.words()),)
        base: dict[str, Any] = {
            **self.fields(RunRecord, OF_RUNS),
            "id": f"{self.random.getrandbits(64):016x}",
            "tags": self.maybe(("x", "y")) or (),
            "prompt": words[0].text,
            "started_at": self.later(),
            "messages": words,
        }
        made = Assembly(**{**base, **fields})
        for _ in range(n_turns):
            if self.random.random() < 0.2:
                made.directive("a directive")
            self.turn(made)
        failed = self.random.random() < 0.3
        made.end(
            phase="Failed" if failed else "WaitingUser",
            stop_reason="error" if failed else "answered",
            error=self.value(ErrorInfo) if failed else None,
            ended_at=self.later(),
            **self.fields(RunRecord, ("duration_ms", "cost_usd", "notices")),
        )
        return made.run, made.events

    def turn(self, made: Assembly) -> None:
        """Add a random turn; one that was cut, or that failed, is not in the conversation."""
        kind = self.random.choice(("answer", "calls", "calls", "nothing", "cut"))
        failed = kind in ("nothing", "cut")
        calls = tuple(self.call(n) for n in range(self.random.randrange(1, 4)))
        calls = calls if kind == "calls" else ()
        answer = self.of(Message, role="assistant", tool_calls=calls)
        runs = [self.tool_run(call) for call in calls]
        made.add_turn(
            None if kind == "nothing" else self.of(ChatResponse, message=answer),
            runs,
            ends_in=self.random.sample(runs, len(runs)),
            is_kept=not failed,
            system=self.words(),
            tools=self.value(tuple[ToolSpec, ...]),
            params=self.value(dict[str, Any]),
            started_at=self.later(),
            phase_after="Failed" if failed else "Running",
            error=self.value(ErrorInfo) if failed else None,
            **self.fields(EngineTurn, OF_TURNS),
        )


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
    asked = (Message.of("user", "go"),)
    base: dict[str, Any] = {"prompt": "go", "messages": asked, "started_at": START}
    made = Assembly(id=run_id, **{**base, **fields})
    for index in range(1, n_turns + 1):
        run = ToolRun(
            tool_call_id=f"c{index}",
            tool_name="work",
            args={"n": index},
            started_at=START,
            result=ToolResult(ok=True, data=f"{index} {text}", attachments=attachments),
        )
        made.add_turn(
            ChatResponse(message=answer_with(text, [run]), usage=Usage.of(index, 20)),
            [run],
            system="Be brief.",
            tools=(ToolSpec(name="work", description="Works."),),
            params={"tool_choice": "auto"},
            started_at=START + timedelta(seconds=index),
        )
    ended = START + timedelta(seconds=n_turns + 1)
    return made.end(stop_reason="max_turns", ended_at=ended).events


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
