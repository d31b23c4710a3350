"""Run one call of a function: in which thread or loop, with which timeout, and its outcome.

How a thread or a loop is interrupted is decided by the runner (`contracts.ports`).
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
from nbagent.tools.functions.outcome import (
    MAX_RESULT_CHARS,
    failure_outcome,
    loop_hint,
    running_loop_hint,
    value_outcome,
)
from nbagent.tools.progress import capture_output, throttled_progress

_PROGRESS_CHARS = 500
_INTERRUPT_HANDLER_PACKAGES = frozenset(
    {"nbagent", "asyncio", "ipykernel", "IPython", "signal", "pydevd", "debugpy"}
)
"""Packages whose signal handlers raise KeyboardInterrupt with a `raise` statement."""
_NO_ITEM: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """Options of `@nbagent.tool(…)`."""

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
    """True if a call returns a coroutine or an asynchronous generator."""
    inner = function_of(target)
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


class FunctionCall:
    """One call of one function with its arguments."""

    def __init__(
        self, name: str, work: functools.partial[Any], options: ToolOptions, context: ToolContext
    ) -> None:
        self._name, self._work, self._options, self._context = name, work, options, context
        self._began_ms: float | None = None
        self._ran_in: RanIn | None = None
        self._budget_chars = options.max_result_chars or MAX_RESULT_CHARS
        # A timeout interrupts, too; a tool that must not be interrupted has none.
        self._limit_s = options.timeout_s if options.interruptible else None

    async def run(self) -> ToolOutcome:
        """Run it in the thread or loop of its kind and options; raises only CancelledError."""
        try:
            if is_async(self._work.func):
                outcome = await self._on_loop(self._work)
            else:
                outcome = await self._in_thread()
        except TimeoutError:
            message = (
                f"{self._name} took longer than {self._limit_s:g} s and was stopped; its effects "
                "so far are unknown. Ask for less at once"
            )
            outcome = ToolOutcome(result=ToolResult.failure(ErrorInfo("E_TIMEOUT", message)))
        return replace(outcome, started_at_ms=self._began_ms, ran_in=self._ran_in)

    async def _in_thread(self) -> ToolOutcome:
        where = "worker thread" if self._options.threaded else "waiting thread"
        result = await self._run_at(where, self._sync_body)
        # A plain function around an async one (a decorator, a lambda) returns a coroutine.
        return await self._on_loop(lambda: result) if _is_awaitable(result) else result

    async def _on_loop(self, work: Callable[[], Any]) -> ToolOutcome:
        where = "notebook loop" if self._options.loop else "tool loop"
        try:
            return await self._run_at(where, lambda: self._async_body(work))
        except (asyncio.CancelledError, TimeoutError):
            raise
        except Exception as error:  # It cancelled its own task.
            return self._failure(error)

    async def _run_at(self, where: RanIn, body: Callable[[], Any]) -> Any:
        """Run the body there; returns an outcome, or a value that must still be awaited."""
        result, self._ran_in = await self._context.runner.run(
            body,
            where=where,
            interruptible=self._options.interruptible,
            timeout_s=self._limit_s,
            label=self._name,
        )
        return result

    def _sync_body(self) -> Any:
        self._began_ms = monotonic_ms()
        try:
            with capture_output(self._context) as returns:
                value = self._work()
                returns(value)
                # Converting a value runs its own code, so this happens in the tool's thread.
                return value if _is_awaitable(value) else value_outcome(value, self._budget_chars)
        except BaseException as error:
            return self._failure(error, running_loop_hint(error))

    async def _async_body(self, work: Callable[[], Any]) -> ToolOutcome:
        self._began_ms = self._began_ms or monotonic_ms()
        try:
            value = work()
            if issubclass(type(value), Awaitable):
                value = await value
            if type(value) is types.AsyncGeneratorType:
                value = await self._last_item(cast("AsyncGenerator[Any, Any]", value))
            return value_outcome(value, self._budget_chars)
        except BaseException as error:
            # Everything is caught: SystemExit or KeyboardInterrupt of a task would end the loop.
            if cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                raise asyncio.CancelledError from error  # A stop, or an error that it caused.
            hint = loop_hint(error) if self._options.loop is None else ""
            return self._failure(error, running_loop_hint(error) or hint)

    def _failure(self, error: BaseException, hint: str = "") -> ToolOutcome:
        if isinstance(error, KeyboardInterrupt) and not _is_raised_by_code(error):
            raise error  # From the person, or from the runner at a stop.
        return failure_outcome(error, hint=hint, folders=self._context.folders)

    async def _last_item(self, generator: AsyncGenerator[Any, Any]) -> Any:
        """Read an async generator: the last value is the result, the others are progress."""
        last, show = _NO_ITEM, throttled_progress(self._context)
        async with aclosing(generator):
            async for item in generator:
                if last is not _NO_ITEM:
                    with suppress(Exception):
                        show(functools.partial(to_text, last, _PROGRESS_CHARS))
                last = item
        return None if last is _NO_ITEM else last


def _is_raised_by_code(error: KeyboardInterrupt) -> bool:
    """True if code raised KeyboardInterrupt itself.

    An interrupt of the person arrives between two instructions, so the last one is no `raise`. In
    doubt it counts as the person's. Inside an InterruptGuard the runtime knows it anyway.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    module = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    step = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return module not in _INTERRUPT_HANDLER_PACKAGES and dis.opname[step] == "RAISE_VARARGS"


def _is_awaitable(value: object) -> bool:
    """True if a plain function returned a value that must still be awaited."""
    # Not `isinstance`: a value's own `__class__` may be wrong or raise.
    return issubclass(type(value), Awaitable | types.AsyncGeneratorType)
