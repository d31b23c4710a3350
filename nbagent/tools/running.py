"""Running one call of a function: where, how long, and what a stop or its time does to it.

Owns places, timeouts and generators. Whatever the function raises is in the outcome; what a model
reads of it is `results`'. How a thread or a loop is interrupted is the runner's affair.
"""

from __future__ import annotations

import asyncio
import contextvars
import dis
import functools
import inspect
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.errors import ErrorCode, ErrorInfo
from nbagent.contracts.ports import ToolContext, ToolOutcome
from nbagent.contracts.records import ToolResult
from nbagent.contracts.secrets import redact
from nbagent.shown import shown_text
from nbagent.tools.results import MAX_RESULT_CHARS, failure_of, loop_hint, result_of

_PROGRESS_CHARS = 500
_PROGRESS_EVERY_MS = 40.0
_ALL_SHOWN = 100
_HANDLERS = frozenset({"nbagent", "asyncio", "ipykernel", "IPython", "signal", "pydevd", "debugpy"})
"""Packages whose handlers of an interrupt raise it with a statement of their own."""


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
    on_cancel: Callable[[], object] | None = None
    max_result_chars: int | None = None
    ask: bool = False


def is_async(target: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine or an asynchronous generator."""
    inner: Any = target
    if not inspect.isroutine(target) and not isinstance(target, functools.partial):
        inner = type(target).__call__
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


class CallOfFunction:
    """One call of one function, its arguments placed."""

    def __init__(
        self, name: str, work: functools.partial[Any], options: ToolOptions, context: ToolContext
    ) -> None:
        self._name, self._work, self._options, self._context = name, work, options, context
        self._began_ms: float | None = None

    async def run(self) -> ToolOutcome:
        """Run it where its kind and its options say; only CancelledError comes out."""
        options = self._options
        limit_s = options.timeout_s if options.interruptible else None
        try:
            if is_async(self._work.func):
                outcome = await self._on_loop(self._work, limit_s)
            else:
                outcome = await self._in_thread(limit_s)
        except TimeoutError:
            self._tell_hook()
            return self._ended(
                "E_TIMEOUT",
                f"{self._name} took longer than {limit_s:g} s and was given up; what it did so far "
                "is unknown. Ask for less at once",
            )
        except asyncio.CancelledError:
            self._tell_hook()
            raise
        return replace(outcome, started_at_ms=self._began_ms)

    async def _in_thread(self, limit_s: float | None) -> ToolOutcome:
        body: Callable[[], Any] = self._sync_body
        if self._options.threaded:
            body = functools.partial(contextvars.copy_context().run, body)
        made, place = await self._context.runner.run_sync(
            body,
            where="worker" if self._options.threaded else "waiting",
            interruptible=self._options.interruptible,
            timeout_s=limit_s,
            label=self._name,
        )
        if _is_late(made):
            # A plain function around an async one (a decorator, a lambda) gives a coroutine.
            return await self._on_loop(lambda: made, limit_s)
        return replace(cast("ToolOutcome", made), ran_in=place)

    async def _on_loop(self, work: Callable[[], Any], limit_s: float | None) -> ToolOutcome:
        outcome, place = await self._context.runner.run_async(
            lambda: self._async_body(work),
            where=self._options.loop or "tools",
            interruptible=self._options.interruptible,
            timeout_s=limit_s,
            label=self._name,
        )
        return replace(outcome, ran_in=place)

    def _sync_body(self) -> Any:
        self._began_ms = monotonic_ms()
        try:
            value = self._work()
            if _yields(self._work.func, value):
                value = self._drained(value)
            return value if _is_late(value) else self._outcome(value)
        except BaseException as error:
            return self._failed(error)

    async def _async_body(self, work: Callable[[], Any]) -> ToolOutcome:
        self._began_ms = self._began_ms or monotonic_ms()
        try:
            value = work()
            if issubclass(type(value), Awaitable):
                value = await value
            if type(value) is types.AsyncGeneratorType:
                value = await self._drained_async(cast("AsyncGenerator[Any, Any]", value))
            return self._outcome(value)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._failed(error)  # It cancelled itself.
        except BaseException as error:
            # SystemExit and KeyboardInterrupt of a task would end the whole loop.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise asyncio.CancelledError from error  # A stop provoked it.
            hint = loop_hint(error) if self._options.loop is None else ""
            return self._failed(error, hint)

    def _outcome(self, value: object) -> ToolOutcome:
        """What is kept of the value. Showing it runs its own code: in the tool's own thread."""
        outcome = result_of(value, self._options.max_result_chars or MAX_RESULT_CHARS)
        limit_s, began_ms = self._options.timeout_s, self._began_ms or 0.0
        if limit_s is not None and monotonic_ms() - began_ms > 1000 * limit_s:
            note = f"{self._name} finished although its time was up"
            outcome = replace(outcome, notes=(*outcome.notes, note))
        return outcome

    def _failed(self, error: BaseException, hint: str = "") -> ToolOutcome:
        if isinstance(error, KeyboardInterrupt) and not is_raised_by_code(error):
            raise error  # The person's, or the runner's at a stop.
        return failure_of(error, hint=hint)

    def _ended(self, code: ErrorCode, message: str) -> ToolOutcome:
        result = ToolResult.failure(ErrorInfo(code, message))
        return ToolOutcome(result=result, started_at_ms=self._began_ms)

    def _tell_hook(self) -> None:
        if self._began_ms is not None and self._options.on_cancel is not None:
            with suppress(Exception):
                self._options.on_cancel()

    def _drained(self, generator: Generator[Any, Any, Any]) -> Any:
        """All but the last yielded value are progress; a returned value comes before the last."""
        last, show = _NOTHING, _Progress(self._context)
        try:
            while True:
                try:
                    item = next(generator)
                except StopIteration as end:
                    if end.value is None:
                        return None if last is _NOTHING else last
                    show(last)
                    return end.value
                show(last)
                last = item
        finally:
            generator.close()

    async def _drained_async(self, generator: AsyncGenerator[Any, Any]) -> Any:
        last, show = _NOTHING, _Progress(self._context)
        async with aclosing(generator):
            async for item in generator:
                show(last)
                last = item
        return None if last is _NOTHING else last


_NOTHING: Any = object()


class _Progress:
    """Shows what a generator yields: the first ones all, then so many a second.

    A loop that yields a million times would fill the queue faster than anybody reads it.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._shown = 0
        self._next_ms = 0.0

    def __call__(self, item: Any) -> None:
        now = monotonic_ms()
        if item is _NOTHING or (self._shown >= _ALL_SHOWN and now < self._next_ms):
            return
        self._shown += 1
        self._next_ms = now + _PROGRESS_EVERY_MS
        with suppress(Exception):
            self._context.progress(redact(shown_text(item, _PROGRESS_CHARS)), None)


def is_raised_by_code(error: KeyboardInterrupt) -> bool:
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


def _is_late(value: object) -> bool:
    """Whether a plain function gave something that has yet to be awaited."""
    # Not `isinstance`: a value may lie about its `__class__`, or raise when it is asked.
    return issubclass(type(value), Awaitable | types.AsyncGeneratorType)


def _yields(target: Callable[..., Any], value: object) -> bool:
    """Whether the value is the generator that a generator function gives."""
    if type(value) is not types.GeneratorType:
        return False
    inner: Any = inspect.unwrap(target)
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[Any]", inner).func
    return inspect.isgeneratorfunction(inner if inspect.isroutine(inner) else type(inner).__call__)
