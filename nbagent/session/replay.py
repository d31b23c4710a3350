"""Replays answers and tool results from a cassette instead of asking and running again.

A result is found by the tool's name, its arguments, and how many equal calls of the run came
before. Results are as the tools returned them, without a person's denials and edits.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, cast

from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.chat_doors import ChatDoors, whole_deltas
from nbagent.contracts.deltas import Delta
from nbagent.contracts.errors import ModelError, ToolError, UsageError
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.model import ChatRequest, ChatResponse, ToolSpec
from nbagent.contracts.ports import ChatClient, RunStore, ToolHost
from nbagent.contracts.records import ToolResult
from nbagent.contracts.tools import CallOutput, PreparedCall, ToolContext, ToolOutcome
from nbagent.providers.address import origin
from nbagent.providers.cassette.client import CacheMode, ReplayClient
from nbagent.providers.cassette.file import Cassette, RecordedResult
from nbagent.session.models import ResolvedModel
from nbagent.session.stores import cache_file
from nbagent.settings.options import Settings
from nbagent.settings.sources import named_path


@dataclass(frozen=True, slots=True)
class Recording:
    """The cassette of a run, and its mode."""

    mode: CacheMode
    cassette: Cassette

    def client(self, chosen: ResolvedModel, *, attempt: int = 1) -> ChatClient:
        """The client of one run that answers from the cassette. Offline models are as cheap as
        replay.

        Each repeat of a case (`attempt`, from 1) has its own answers.
        """
        if chosen.provider == "offline":
            return chosen.client
        # A local server gets another port at each start; with it no answer would be found again.
        server = "" if chosen.provider == "local" else origin(chosen.base_url) or ""
        return ReplayClient(
            chosen.client,
            server=server,
            mode=self.mode,
            cassette=self.cassette,
            extra_body=chosen.extra_body,
            earlier=attempt - 1,
        )


def open_recording(settings: Settings, store: RunStore, run_id: str) -> Recording | None:
    """Open the cassette of a run. Naming a cassette is enough to use it."""
    mode = settings.cache or ("auto" if settings.cassette else "off")
    if mode == "off":
        if settings.replay_tools:
            raise UsageError("replay_tools needs a record: cassette=FILE.jsonl or cache=auto")
        return None
    if settings.cassette is None:
        cassette = Cassette(cache_file(store, run_id), cache=True)
    else:
        cassette = Cassette(named_path(settings.cassette, "cassette"))
    return Recording(cast("CacheMode", mode), cassette)


class RecordedHost:
    """Tool host of one run that returns recorded results if there are any."""

    def __init__(self, inner: ToolHost, recording: Recording) -> None:
        self._inner = inner
        self._cassette, self._mode = recording.cassette, recording.mode
        self._specs: dict[str, ToolSpec] = {}
        self._calls: dict[str, dict[tuple[str, str], int]] = {}
        """Numbers of the calls by key. A call that needs approval is prepared twice and keeps
        its number."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        tools = await self._inner.tools(context)
        self._specs = {spec.name: spec for spec in tools}
        return tools

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """The recorded result, or the prepared call; ToolError if `replay` finds none."""
        arguments = call.arguments or {}
        key = RecordedResult.key_of(call.name, arguments)
        calls = self._calls.setdefault(key, {})
        n = calls.setdefault((context.turn_id, call.id), len(calls) + 1)
        if self._mode != "refresh" and call.name in self._specs:
            try:
                recorded_result = await asyncio.to_thread(self._cassette.find_result, key, n)
            except ModelError as error:
                raise ToolError(error.message, code="E_PRECONDITION_FAILED") from None
            if recorded_result is not None:
                note = f"from {self._cassette.name}; the tool was not run"
                recorded = ToolOutcome(
                    result=recorded_result.result,
                    truncated=recorded_result.truncated,
                    notes=(note,),
                )
                output = recorded_result.printed, recorded_result.shown

                async def give(context: ToolContext) -> ToolOutcome:
                    context.output.read = lambda: output
                    return replace(recorded, started_at_ms=monotonic_ms())

                return PreparedCall(spec=self._specs[call.name], arguments=arguments, run=give)
        if self._mode == "replay":
            raise ToolError(
                f"{self._cassette.name} holds no result number {n} of {call.name} with these "
                "arguments, and nothing was run; cache=auto runs and records it",
                code="E_PRECONDITION_FAILED",
            )
        try:
            prepared = await self._inner.prepare(call, context)
        except ToolError as error:
            # Recorded too: in a replay the model must get the same result.
            failed = ToolOutcome(result=ToolResult.failure(error.info))
            await self._record(key, n, call, failed, CallOutput())
            raise

        async def run_and_keep(context: ToolContext) -> ToolOutcome:
            outcome = await prepared.run(context)
            return await self._record(key, n, call, outcome, context.output)

        return replace(prepared, run=run_and_keep)

    async def _record(
        self, key: str, n: int, call: ToolCall, outcome: ToolOutcome, output: CallOutput
    ) -> ToolOutcome:
        """Record an outcome. A failure to write loses no result."""
        printed, shown = output.read()
        line = RecordedResult(
            key=key,
            n=n,
            tool=call.name,
            arguments=call.arguments or {},
            result=outcome.result,
            truncated=outcome.truncated,
            printed=printed,
            shown=shown,
        )
        try:
            await asyncio.to_thread(self._cassette.add, line, replace=self._mode == "refresh")
        except (OSError, ValueError, TypeError, RecursionError, ModelError) as problem:
            note = f"not recorded in {self._cassette.name}: {problem}"
            return replace(outcome, notes=(*outcome.notes, note))
        return outcome


class DeferredTools:
    """Tool host that defers calls: each is answered with a notice, and nothing runs."""

    def __init__(self, inner: ToolHost) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """Answer that the call is deferred, without asking a person."""
        message = "not run: the person looks at several answers first"
        raise ToolError(message, code="E_INTERRUPTED", details={"held": True})


class ReplayedAnswer(ChatDoors):
    """Client that returns a given answer first; the next ones come from the inner client."""

    def __init__(self, response: ChatResponse, inner: ChatClient) -> None:
        # `replay`, so that it costs nothing: it was paid for in the run that received it.
        meta = response.meta.model_copy(update={"source": "replay"})
        self._answers = [response.model_copy(update={"meta": meta})]
        self._inner: Any = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Yield the next answer; the given one arrives whole."""
        if self._answers:
            for delta in whole_deltas(self._answers.pop()):
                yield delta
            return
        async with aclosing(self._inner.send(request, stream=stream)) as deltas:
            async for delta in deltas:
                yield delta
