"""Running one call of a function: where, how long, what a stop or its time does to it; and its
outcome: what the model reads of the value or the error, and what the person does.

How a thread or a loop is interrupted is the runner's affair. Texts that somebody may have cut pass
`redact_cut`; host folders are left out.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
import types
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.records import RanIn, ToolResult
from nbagent.contracts.tools import ToolContext, ToolOutcome
from nbagent.shown.values import to_text
from nbagent.tools.functions.arguments import function_of
from nbagent.tools.functions.outcome import MAX_RESULT_CHARS, failure_of, loop_hint, result_of
from nbagent.tools.progress import captured, paced_progress

_PROGRESS_CHARS = 500
_HANDLERS = frozenset({"nbagent", "asyncio", "ipykernel", "IPython", "signal", "pydevd", "debugpy"})
"""Packages whose handlers of an interrupt raise it with a statement of their own."""
_NOTHING: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What `@nbagent.tool(…)` says about a function."""

    name: str | None = None
    display_name: str | None = None
    description: str | None = None
    threaded: bool = False
    loop: Literal["notebook"] | None = None
    interruptible: bool = True
    timeout_s: float | None = None
    max_result_chars: int | None = None
    ask: bool = False


def is_async(target: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine or an asynchronous generator."""
    inner = function_of(target)
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


class CallOfFunction:
    """One call of one function, its arguments placed."""

    def __init__(
        self, name: str, work: functools.partial[Any], options: ToolOptions, context: ToolContext
    ) -> None:
        self._name, self._work, self._options, self._context = name, work, options, context
        self._began_ms: float | None = None
        self._ran_in: RanIn | None = None
        self._budget_chars = options.max_result_chars or MAX_RESULT_CHARS
        self._limit_s = options.timeout_s if options.interruptible else None

    async def run(self) -> ToolOutcome:
        """Run it where its kind and its options say; only CancelledError comes out."""
        try:
            if is_async(self._work.func):
                outcome = await self._on_loop(self._work)
            else:
                outcome = await self._in_thread()
        except TimeoutError:
            message = (
                f"{self._name} took longer than {self._limit_s:g} s and was given up; what it did "
                "so far is unknown. Ask for less at once"
            )
            outcome = ToolOutcome(result=ToolResult.failure(ErrorInfo("E_TIMEOUT", message)))
        return replace(outcome, started_at_ms=self._began_ms, ran_in=self._ran_in)

    async def _in_thread(self) -> ToolOutcome:
        where = "worker thread" if self._options.threaded else "waiting thread"
        made = await self._at(where, self._sync_body)
        # A plain function around an async one (a decorator, a lambda) gives a coroutine.
        return await self._on_loop(lambda: made) if _is_awaited(made) else made

    async def _on_loop(self, work: Callable[[], Any]) -> ToolOutcome:
        where = "notebook loop" if self._options.loop else "tool loop"
        return await self._at(where, lambda: self._async_body(work))

    async def _at(self, where: RanIn, body: Callable[[], Any]) -> Any:
        """What the body makes there: an outcome, or what has yet to be awaited."""
        made, self._ran_in = await self._context.runner.run(
            body,
            where=where,
            interruptible=self._options.interruptible,
            timeout_s=self._limit_s,
            label=self._name,
        )
        return made

    def _sync_body(self) -> Any:
        self._began_ms = monotonic_ms()
        try:
            with captured(self._context) as returns:
                value = self._work()
                returns(value)
                # Showing a value runs its own code: in the tool's own thread.
                return value if _is_awaited(value) else result_of(value, self._budget_chars)
        except BaseException as error:
            return self._failed(error)

    async def _async_body(self, work: Callable[[], Any]) -> ToolOutcome:
        self._began_ms = self._began_ms or monotonic_ms()
        try:
            value = work()
            if issubclass(type(value), Awaitable):
                value = await value
            if type(value) is types.AsyncGeneratorType:
                value = await self._drained(cast("AsyncGenerator[Any, Any]", value))
            return result_of(value, self._budget_chars)
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of a task would end the whole loop.
            if cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                raise asyncio.CancelledError from error  # A stop, or what it provoked.
            return self._failed(error, loop_hint(error) if self._options.loop is None else "")

    def _failed(self, error: BaseException, hint: str = "") -> ToolOutcome:
        if isinstance(error, KeyboardInterrupt) and not _is_raised_by_code(error):
            raise error  # The person's, or the runner's at a stop.
        return failure_of(error, hint=hint)

    async def _drained(self, generator: AsyncGenerator[Any, Any]) -> Any:
        """All but the last yielded value are progress; that one is the result."""
        last, show = _NOTHING, paced_progress(self._context)
        async with aclosing(generator):
            async for item in generator:
                if last is not _NOTHING:
                    with suppress(Exception):
                        show(functools.partial(to_text, last, _PROGRESS_CHARS))
                last = item
        return None if last is _NOTHING else last


def _is_raised_by_code(error: KeyboardInterrupt) -> bool:
    """Whether a `raise` of some code made it, and no person: an interrupt comes between two steps.

    In doubt it is a person's. Where the runtime watches, a person's is known to it anyway.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    step = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return module not in _HANDLERS and dis.opname[step] == "RAISE_VARARGS"


def _is_awaited(value: object) -> bool:
    """Whether a plain function gave something that has yet to be awaited."""
    # Not `isinstance`: a value may lie about its `__class__`, or raise when it is asked.
    return issubclass(type(value), Awaitable | types.AsyncGeneratorType)


# The outcome
