"""Results of tools from a cassette: what is recorded there is not run, the rest is recorded.

A result is found by the tool's name, the arguments and which time of the run it is. Results are
as the tools gave them; a person's denials and edits are not in them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

from nbagent.archive.store import Store
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.chat import ToolCall, ToolSpec
from nbagent.contracts.errors import ModelError, ToolError, UsageError
from nbagent.contracts.ports import PreparedCall, ToolContext, ToolHost, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.providers.replay import Cassette, Mode, RecordedResult
from nbagent.session.clients import cache_file
from nbagent.session.stores import home_of
from nbagent.settings import Settings, project_folder
from nbagent.tools.base import HostSet


def cassette_of(
    asked: Settings, store: Store, run_id: str
) -> tuple[Mode | Literal["off"], Cassette]:
    """The record of a run, and how it is used: who names a cassette wants it used.

    Raises:
        UsageError: results of tools are to come from a record, and there is none.
    """
    mode = asked.cache or ("auto" if asked.cassette else "off")
    if asked.replay_tools and mode == "off":
        raise UsageError("replay_tools needs a record: cassette=FILE.jsonl or cache=auto")
    if asked.cassette is None:
        cassette = Cassette(cache_file(home_of(store), run_id), cache=True)
    else:
        cassette = Cassette(project_folder() / Path(asked.cassette).expanduser())
    return cast("Mode", mode), cassette


def recorded_hosts(
    cassette: Cassette, mode: Mode | Literal["off"], join: Callable[..., HostSet]
) -> Callable[..., HostSet]:
    """What joins hosts as `join` does, each with its results from the cassette."""

    def joined(hosts: Sequence[ToolHost], **given: Any) -> HostSet:
        return join([RecordedHost(host, cassette, cast("Mode", mode)) for host in hosts], **given)

    return joined


class RecordedHost:
    """A host for one run, whose results come from a cassette as far as they are there."""

    def __init__(self, inner: ToolHost, cassette: Cassette, mode: Mode) -> None:
        self._inner = inner
        self._cassette = cassette
        self._mode: Mode = mode
        self._specs: dict[str, ToolSpec] = {}
        self._made: Counter[str] = Counter()
        self._numbers: dict[tuple[str, str, str], int] = {}
        """Of the calls so far: one that somebody was asked about is prepared twice."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def name(self) -> str:
        """As the host within."""
        return self._inner.name

    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]:
        """As the host within."""
        tools = await self._inner.tools(context)
        self._specs = {spec.name: spec for spec in tools}
        return tools

    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall:
        """The recorded result, else the call itself.

        Raises:
            ToolError: there is none in mode `replay`, or the call cannot be made.
        """
        key = RecordedResult.key_of(call.name, call.arguments or {})
        this_call = (context.turn_id, call.id, key)
        if this_call not in self._numbers:
            self._made[key] += 1
        n = self._numbers.setdefault(this_call, self._made[key])
        found = None if self._mode == "refresh" else await self._found(key, n)
        if found is not None and call.name in self._specs:
            return self._replayed(call, found)
        if self._mode == "replay":
            times = f" a {n}. time" if n > 1 else ""
            raise ToolError(
                f"{self._cassette.name} holds no result of {call.name} with these arguments"
                f"{times}, and nothing was run; cache=auto runs and records it",
                code="E_PRECONDITION_FAILED",
            )
        try:
            prepared = await self._inner.prepare(call, context)
        except ToolError as error:
            await self._keep(key, n, call, ToolOutcome(result=ToolResult.failure(error.info)))
            raise

        async def run(context: ToolContext) -> ToolOutcome:
            return await self._keep(key, n, call, await prepared.run(context))

        return replace(prepared, run=run)

    async def _found(self, key: str, n: int) -> RecordedResult | None:
        try:
            return await asyncio.to_thread(self._cassette.find_result, key, n)
        except ModelError as error:
            raise ToolError(error.message, code="E_PRECONDITION_FAILED") from None

    def _replayed(self, call: ToolCall, found: RecordedResult) -> PreparedCall:
        async def give(context: ToolContext) -> ToolOutcome:
            return ToolOutcome(
                result=found.result,
                started_at_ms=monotonic_ms(),
                truncated=found.truncated,
                notes=(f"from {self._cassette.name}; the tool was not run",),
            )

        spec = self._specs[call.name]
        return PreparedCall(spec=spec, arguments=call.arguments or {}, run=give)

    async def _keep(self, key: str, n: int, call: ToolCall, outcome: ToolOutcome) -> ToolOutcome:
        """Record an outcome; none is lost by it."""
        line = RecordedResult(
            key=key,
            n=n,
            tool=call.name,
            arguments=call.arguments or {},
            result=outcome.result,
            truncated=outcome.truncated,
        )
        try:
            await asyncio.to_thread(self._cassette.add, line, replace=self._mode == "refresh")
        except (OSError, ValueError, TypeError, RecursionError, ModelError) as problem:
            note = f"not recorded in {self._cassette.name}: {problem}"
            return replace(outcome, notes=(*outcome.notes, note))
        return outcome
