"""Handle of an agent: a model with tools and limits. The handle of a run is in `run`.

Thin: session and engine do the work.
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
from nbagent.contracts.secrets import KeyFunction
from nbagent.run import Run, as_tuple, with_options
from nbagent.session.approval import OnApproval
from nbagent.session.callbacks import OnEvent, OnToolCall, OnToolResult
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
        on_approval: answers questions about tool calls instead of a person: it takes a
            `Question` and returns True, `"session"`, False, a reason, or a dict of other arguments.
        api_key: a function that returns the key of the model's server, for keys that expire; it
            is called in a thread for each request. (A key as a text belongs into an environment
            variable.) The key is sent to the server of `model=` and `base_url=` only.
        options: further fields of `RunOptions`: `max_turns`, `base_url`, `session`, `policy`…
            `output` is the type of the answer (a pydantic model, TypedDict, dataclass, or a list
            of one): see `Run.output`.
            No temperature is sent unless set; `timeout_s` is 600 unless set.

    Raises:
        UsageError: an option does not exist or is not valid.
    """

    def __init__(
        self,
        model: str | object | None = None,
        *,
        tools: Sequence[object] | str | None = None,
        system: str | None = None,
        on_approval: OnApproval | None = None,
        api_key: KeyFunction | None = None,
        **options: Any,
    ) -> None:
        own_options = {"tools": tools, "on_approval": on_approval, "model": model, "system": system}
        if api_key is not None:
            own_options["api_key"] = api_key
        base = with_options(RunRequest(), {**own_options, **options})
        self._base = replace(base, options=without_secrets(base.options))

    @property
    def options(self) -> RunOptions:
        """Options of every run, unless the run sets others."""
        return self._base.options

    def __repr__(self) -> str:
        return f"<Agent {self.options.model or 'default model'}>"

    def run(
        self,
        prompt: str = "",
        *,
        messages: Sequence[Message] = (),
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        **options: Any,
    ) -> Run:
        """Run to a stop point and return the run, also when it failed.

        Works in a script, in a cell, and inside a running loop. KeyboardInterrupt is a stop.
        The prompt is sent as typed: `{{ expression }}` is evaluated in cells and in `map` only; in
        Python write an f-string. `messages` come before the prompt. `options` (the agent's,
        `on_approval` too) win over the agent's own. A `workflow=` (a package) needs no prompt.

        On the engine thread `on_event` is called with each event, `on_tool_call` with name and
        arguments when a tool starts, `on_tool_result` with name and `ToolResult` when a call has
        its result. One that raises is detached and named; the run continues.

        Raises:
            UsageError: the run cannot start (an invalid option, a missing key). A later failure,
                such as a refused connection or a wrong key, is in `run.error`.
        """
        if runtime.on_engine_thread():
            # It would wait for itself: the engine's loop runs both.
            raise UsageError("use `await agent.arun(…)` in an async tool; agent.run() would block")
        with Run.starting(
            self._request(prompt, messages, **options),
            on_event=on_event,
            on_tool_call=on_tool_call,
            on_tool_result=on_tool_result,
        ) as run:
            return run.wait()

    async def arun(
        self,
        prompt: str = "",
        *,
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        **options: Any,
    ) -> Run:
        """Like `run`, for `await`. Synchronous tools run on the awaiting loop."""
        run = self.start(
            prompt,
            on_event=on_event,
            on_tool_call=on_tool_call,
            on_tool_result=on_tool_result,
            **options,
        )
        return await run.await_end()

    def start(
        self,
        prompt: str = "",
        *,
        on_event: OnEvent | None = None,
        on_tool_call: OnToolCall | None = None,
        on_tool_result: OnToolResult | None = None,
        **options: Any,
    ) -> Run:
        """Start and return at once; `run.wait()` waits, and runs the synchronous tools.

        Arguments as in `run`.
        """
        with Run.starting(
            self._request(prompt, **options),
            on_event=on_event,
            on_tool_call=on_tool_call,
            on_tool_result=on_tool_result,
        ) as run:
            return run

    async def stream(self, prompt: str = "", **options: Any) -> AsyncGenerator[Event]:
        """Yield the run's events as they happen. Leaving the loop stops the run."""
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
        data: DataFrame | Any,
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

        The same call continues the batch: answered cases are reused, stopped ones are resumed.
        Synchronous tools run while somebody waits (`batch.wait()`), or in an idle kernel.

        Args:
            data: the table, of pandas, polars, pyarrow or another library. Its columns can be used
                in the template by name.
            template: the prompt, with `{{ column }}` for that row's value; `{{ row["a column"] }}`
                for a column whose name is not a Python name. An agent with `template=False`
                sends it as typed.
            key: column of unique row ids; default: the index.
            vary: values to try, by option of a run or `prompt`: a list, or a dict by label; all
                combinations are asked.
            repeat: runs per case.
            name: name of the batch; default: derived from the call.
            concurrency: maximum number of runs at a time.
            max_cost_usd: budget of the whole batch, judges included; the batch stops at it.
            max_failed: stop when more cases failed; 0 stops at the first. A float up to 1 is a
                share of all cases.
            score: functions of a row and a run, scorers and judges.
            stale: if the table changed: `run` asks the changed rows again, `keep` keeps their old
                answers, also after a change of prompt or options; default: an error.
            executor: a `dask.distributed.Client`, to run on a cluster (on one machine that makes
                a batch resilient, not fast: runs wait for a model, which one process does as well);
                or `"provider-batch"`, to send all cases to the batch API of the model's provider
                (half the price, answered within a day; one request for each case, no tools).
            start: False only plans the batch: then use `dry_run()` and `start()`.
            names: further names for the template.
            options: as in `run`.

        Raises:
            UsageError: an argument is not valid; nothing was sent.
        """
        # Late: most agents never run on a whole table.
        from nbagent.lab.batch import Batch
        from nbagent.lab.plan import MapOptions

        how = MapOptions(
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

    async def amap(self, data: DataFrame | Any, template: str = "", **how: Any) -> Batch:
        """As `map`, for `await`: returns at its end; synchronous tools run on the loop here."""
        # In a thread: planning a large table and listing tools would block this loop.
        how["start"] = False
        batch = await asyncio.to_thread(self.map, data, template, **how)
        return await batch.await_end()

    def dry_run(self, prompt: str = "", **options: Any) -> DryRun:
        """Return the first request of `run`: messages, tools, the body. Sends and stores nothing.

        A missing key is no error here; the returned value shows it.
        """
        return dry_run(replace(self._request(prompt, **options), dry_run=True))

    def _request(self, prompt: str, messages: Sequence[Message] = (), **options: Any) -> RunRequest:
        text: Any = prompt
        if not isinstance(text, str):
            raise UsageError(f"the prompt is a {type(text).__name__}; write it as text")
        earlier: tuple[Any, ...] = as_tuple(
            "messages", messages, "[nbagent.Message.of('user', 'Hi')]"
        )
        if not all(isinstance(message, Message) for message in earlier):
            raise UsageError("messages has an item that is not an nbagent.Message")
        return with_options(replace(self._base, prompt=prompt, messages=earlier), options)
