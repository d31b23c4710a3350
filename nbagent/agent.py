"""The handle of an agent: a model, tools and limits. What a run of it is, is `run`'s.

Thin: what an agent does is in the session and the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from nbagent import runtime
from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import Event
from nbagent.contracts.messages import Message
from nbagent.run import Run, as_tuple, with_options
from nbagent.session.active import OnEvent
from nbagent.session.approval import OnApproval
from nbagent.session.dry_run import dry_run
from nbagent.session.request import RunRequest
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import without_secrets

if TYPE_CHECKING:
    from pandas import DataFrame

    from nbagent.lab.batch import Batch
    from nbagent.view.dry_run import DryRun


class Agent:
    """A model with tools and limits. It has no memory: every run starts a conversation.

    Args:
        model: `provider:model`, or a script of `nbagent.offline.script`; None: as the settings say.
        tools: functions, methods or callables, `nbagent.mcp(…)` servers, names of the notebook's
            tools, and words for hosts (`"fs"`, `"skills"`, `"notebook"`, `"mcp:git"`); or `"none"`
            or `"all"`; None: the notebook's own `@nbagent.tool` functions.
        system: the system prompt.
        on_approval: answers questions about tool calls instead of a person: it is given a
            `Question` and returns True, `"session"`, False, a reason, or a dict of other arguments.
        options: further fields of `RunOptions`: `max_turns`, `base_url`, `session`, `policy`…
            `output` is the type of the answer (a pydantic model, TypedDict, dataclass, or a list
            of one): see `Run.output`.
            No temperature is sent unless set; `timeout_s` is 600 unless set.

    Raises:
        UsageError: an option that does not exist or does not fit.
    """

    def __init__(
        self,
        model: str | object | None = None,
        *,
        tools: Sequence[object] | str | None = None,
        system: str | None = None,
        on_approval: OnApproval | None = None,
        **options: Any,
    ) -> None:
        given = {"tools": tools, "on_approval": on_approval, "model": model, "system": system}
        base = with_options(RunRequest(), {**given, **options})
        self._base = replace(base, options=without_secrets(base.options))

    @property
    def options(self) -> RunOptions:
        """What every run of it has, if the run does not say otherwise."""
        return self._base.options

    def __repr__(self) -> str:
        return f"<Agent {self.options.model or 'default model'}>"

    def run(
        self,
        prompt: str = "",
        *,
        messages: Sequence[Message] = (),
        on_event: OnEvent | None = None,
        **options: Any,
    ) -> Run:
        """Run to a stop point and return the run, also when it failed.

        Works in a script, in a cell, and inside a running loop. KeyboardInterrupt is a stop.
        `messages` come before the prompt, `on_event` is called with each event on the engine
        thread, and `options` (the agent's, `on_approval` too) win over the agent's own. A
        `workflow=` (a package) needs no prompt.

        Raises:
            UsageError: it cannot start as asked (an option, a missing key): there is no run. What
                fails later, as a refused connection or a wrong key, stands in `run.error`.
        """
        if runtime.on_engine_thread():
            raise UsageError("in an async tool write `await agent.arun(…)`; agent.run() would wait")
        with Run.starting(self._ask(prompt, messages, **options), on_event=on_event) as run:
            return run.wait()

    async def arun(
        self, prompt: str = "", *, on_event: OnEvent | None = None, **options: Any
    ) -> Run:
        """As `run`, for `await`; synchronous tools run on the loop that awaits."""
        return await self.start(prompt, on_event=on_event, **options).await_end()

    def start(self, prompt: str = "", *, on_event: OnEvent | None = None, **options: Any) -> Run:
        """Begin and return at once; `run.wait()` waits, and runs the synchronous tools."""
        with Run.starting(self._ask(prompt, **options), on_event=on_event) as run:
            return run

    async def stream(self, prompt: str = "", **options: Any) -> AsyncGenerator[Event]:
        """The run's events as they happen. Leaving the loop stops the run."""
        channel = runtime.EventChannel()
        run = self.start(prompt, on_event=channel.put, **options)
        try:
            async with aclosing(runtime.follow(channel, run.await_end)) as events:
                async for event in events:
                    yield event
        finally:
            run.stop()

    def map(
        self,
        data: DataFrame,
        template: str = "",
        *,
        key: str | None = None,
        vary: Mapping[str, Any] | None = None,
        repeat: int = 1,
        name: str | None = None,
        concurrency: int = 16,
        max_cost_usd: float | None = None,
        max_failed: float | None = None,
        score: Sequence[Any] | Any = (),
        stale: Literal["run", "keep"] | None = None,
        executor: Any = None,
        start: bool = True,
        names: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Batch:
        """Run it for each row of a table, in each variant; returns at once.

        The same call goes on: what is answered is not asked again, what was stopped is resumed.
        Synchronous tools run while somebody waits (`batch.wait()`), or in an idle kernel.

        Args:
            data: the table. Its columns are the names of the template.
            template: the prompt, with `{{ column }}`; `{{ row["a column"] }}` for other names.
            key: the column that tells rows apart; else the index. No two rows may have the same.
            vary: by option of a run, or `prompt`, the values to try: a list, or a dict by label;
                all combinations are asked.
            repeat: how often each case is asked.
            name: of the batch; else one that follows from the call.
            concurrency: most runs at a time.
            max_cost_usd: of the whole batch, judges included; it then stops.
            max_failed: more failed cases stop it; as a float up to 1, this share of all cases.
            score: functions of a row and a run, scorers and judges.
            stale: where the table changed: `run` asks the changed rows anew, `keep` takes their
                old answers, also after a change of prompt or options; else an error says so.
            executor: a `dask.distributed.Client`, to run on a cluster.
            start: whether to begin; else `dry_run()` tells what it would be, and `start()` begins.
            names: further names for the template.
            options: as in `run`.

        Raises:
            UsageError: something cannot be done as asked; nothing was sent.
        """
        # Late: most agents are never asked a whole table.
        from nbagent.lab.batch import Batch
        from nbagent.lab.plan import How

        how = How(
            key=key,
            vary=vary,
            repeat=repeat,
            name=name,
            concurrency=concurrency,
            max_cost_usd=max_cost_usd,
            max_failed=max_failed,
            score=score,
            stale=stale,
            executor=executor,
            names=names or {},
        )
        batch = Batch(with_options(self._base, options), data, template, how)
        return batch.start() if start else batch

    async def amap(self, data: DataFrame, template: str = "", **how: Any) -> Batch:
        """As `map`, for `await`: returns at its end; synchronous tools run on the loop here."""
        # To plan a large table, and to list tools, takes a while: not on the loop here.
        how["start"] = False
        batch = await asyncio.to_thread(self.map, data, template, **how)
        return await batch.await_end()

    def dry_run(self, prompt: str = "", **options: Any) -> DryRun:
        """What `run` would send first: messages, tools, the body. Sends and keeps nothing.

        A missing key is no error here; the value says so.
        """
        return dry_run(replace(self._ask(prompt, **options), dry_run=True))

    def _ask(self, prompt: str, messages: Sequence[Message] = (), **options: Any) -> RunRequest:
        given: Any = prompt
        if not isinstance(given, str):
            raise UsageError(f"the prompt is a {type(given).__name__}; write it as text")
        said: tuple[Any, ...] = as_tuple("messages", messages, "[nbagent.Message.of('user', 'Hi')]")
        if not all(isinstance(message, Message) for message in said):
            raise UsageError("messages: one of them is no nbagent.Message")
        return with_options(replace(self._base, prompt=prompt, messages=said), options)
