"""Running one call of a function: where, how long, and how it is stopped.

Owns places, timeouts, cancelling and generators. Everything a tool raises is caught here and
handed on in an `Ending`; what the model is told of it is `results`'.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.ports import Interrupted, ToolContext
from nbagent.contracts.records import RanIn
from nbagent.contracts.secrets import redact
from nbagent.shown import is_iterator, shown_text

Why = Literal["stop", "timeout", "cancelled"]
_GRACE_S = 1.0
"""How long a cancelled coroutine may tidy up before it is left alone."""
_WORKER_GRACE_S = 0.2
"""How long a stopped worker thread is waited for; a thread cannot be ended from outside."""
_PROGRESS_CHARS = 500
_PROGRESS_EVERY_MS = 40.0
_ALL_TOLD = 100
_left_alone: set[asyncio.Task[_Boxed]] = set()
"""Abandoned calls; the loop itself holds its tasks weakly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What `@nbagent.tool(…)` says about a function."""

    name: str | None = None
    description: str | None = None
    threaded: bool = False
    loop: Literal["notebook"] | None = None
    interruptible: bool = True
    idempotent: bool = False
    timeout_s: float | None = None
    on_cancel: Callable[[], object] | None = None
    max_result_chars: int | None = None
    ask: bool = False


@dataclass(slots=True)
class Ending:
    """How a call ended: a value, or what was raised, or why it was stopped."""

    value: Any = None
    error: BaseException | None = None
    why: Why | None = None
    """Set when a stop or a timeout hit the call, also when it still returned a value."""
    place: RanIn | None = None
    started_ms: float | None = None
    abandoned: bool = False
    """It may still be running, with nobody waiting."""


@dataclass(slots=True)
class _Boxed:
    """What a function returned or raised: no exception may fly through the loop or the runner."""

    value: Any = None
    error: BaseException | None = None


class _Attempt:
    """One call's life: when it began, and the one token that a stop or its timeout sets."""

    def __init__(self, options: ToolOptions, cancel: CancelToken) -> None:
        self.options = options
        self.token = CancelToken()
        self.why: Why | None = None
        self.place: RanIn | None = None
        self.started_ms: float | None = None
        self._cancel = cancel
        self._lock = threading.Lock()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._forget: Callable[[], None] = lambda: None
        if options.interruptible:
            self._forget = cancel.on_set(lambda: self.stop("stop"))

    def begin(self, place: RanIn) -> None:
        """The function is about to run, in this thread; its time counts from here."""
        if self.why is not None or self._cancel.is_set:
            # Stopped in the queue: also one that a stop would wait for does not start now.
            raise Interrupted
        self.place, self.started_ms = place, monotonic_ms()
        if self.options.timeout_s is not None:
            self._loop.call_soon_threadsafe(self._arm)

    def _arm(self) -> None:
        if not self._closed and self.options.timeout_s is not None:
            self._timer = self._loop.call_later(self.options.timeout_s, self.stop, "timeout")

    def stop(self, why: Why) -> None:
        """End the call, once. Any thread."""
        with self._lock:
            if self.why is not None or self._closed:
                return
            self.why = why
        self.token.set()
        if self.started_ms is not None and self.options.on_cancel is not None:
            with suppress(Exception):
                self.options.on_cancel()

    def close(self) -> None:
        """The call is over: nothing may stop it any more."""
        with self._lock:
            self._closed = True
        self._forget()
        if self._timer is not None:
            self._timer.cancel()

    def ending(self, boxed: _Boxed, *, abandoned: bool = False) -> Ending:
        return Ending(
            value=boxed.value,
            error=boxed.error,
            why=self.why,
            place=self.place,
            started_ms=self.started_ms,
            abandoned=abandoned,
        )


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Work:
    """One function with its arguments placed."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    label: str = ""
    settle: Callable[[Any], Any] = _as_it_is
    """Makes of the value what is kept of it. Runs where the function ran: showing a value runs
    its own code, which a stop has to reach and which may belong to one thread."""

    def __call__(self) -> Any:
        return self.target(*self.args, **self.kwargs)


async def run_call(
    work: Work, options: ToolOptions, context: ToolContext, cancel: CancelToken
) -> Ending:
    """Run a function where its kind and its options say; only CancelledError comes out."""
    attempt = _Attempt(options, cancel)
    try:
        if is_async(work.target):
            return await _run_async(work, attempt, context)
        return await _run_sync(work, attempt, context)
    except Interrupted as error:
        return attempt.ending(_Boxed(error=error))
    except asyncio.CancelledError:
        # The engine gave up this call, whatever its options: its resources still want to know.
        attempt.stop("cancelled")
        raise
    finally:
        attempt.close()


def is_async(target: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine or an asynchronous generator."""
    inner: Any = target
    if not inspect.isroutine(target) and not isinstance(target, functools.partial):
        inner = type(target).__call__
    return inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)


async def _run_async(work: Work, attempt: _Attempt, context: ToolContext) -> Ending:
    async def body() -> Any:
        return await _settled(work(), work, context)

    where = "notebook" if attempt.options.loop == "notebook" else "tools"
    return await _on_a_loop(body, where, work, attempt, context)


async def _on_a_loop(
    body: Callable[[], Awaitable[Any]],
    where: Literal["tools", "notebook"],
    work: Work,
    attempt: _Attempt,
    context: ToolContext,
) -> Ending:
    async def there() -> _Boxed:
        attempt.begin("tool loop" if where == "tools" else "notebook loop")
        try:
            return await _contained(body())
        except asyncio.CancelledError as error:
            if attempt.why is not None:
                raise
            return _Boxed(error=error)

    async def handed_over() -> _Boxed:
        boxed, attempt.place = await context.runner.run_async(
            there, where=where, cancel=attempt.token, label=work.label
        )
        return boxed

    ending = attempt.ending(await _contained_box(handed_over()))
    left = isinstance(ending.error, Interrupted) and str(ending.error) == "left behind"
    return replace(ending, abandoned=left)


async def _finished(
    task: asyncio.Task[_Boxed],
    attempt: _Attempt,
    grace_s: float,
    on_stop: Callable[[], object] = lambda: None,
) -> bool:
    """Wait for the task; once the call is stopped, only so long. False: it goes on by itself."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end(*_: object) -> None:
        if not over.done():
            over.set_result(None)

    def stop() -> None:
        on_stop()
        loop.call_later(grace_s, end)

    task.add_done_callback(end)
    attempt.token.on_set(lambda: loop.call_soon_threadsafe(stop))
    try:
        await over
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        if not task.done():
            _left_alone.add(task)
            task.add_done_callback(_left_alone.discard)
    return task.done()


async def _run_sync(work: Work, attempt: _Attempt, context: ToolContext) -> Ending:
    options = attempt.options
    body = _sync_body(work, attempt, context)
    if options.threaded:
        within = contextvars.copy_context()
        inner, body = body, lambda: within.run(inner)

    async def handed_over() -> _Boxed:
        boxed, attempt.place = await context.runner.run_sync(
            body,
            where="worker" if options.threaded else "waiting",
            interruptible=options.interruptible,
            cancel=attempt.token,
            label=work.label,
        )
        return boxed

    if options.threaded:
        ending = await _in_worker(handed_over(), attempt)
    else:
        ending = attempt.ending(await _contained_box(handed_over()))
    if ending.error is None and _is_late(ending.value):
        # A plain function around an async one (a decorator, a lambda) gives a coroutine.
        late = ending.value
        return await _on_a_loop(
            lambda: _settled(late, work, context), "tools", work, attempt, context
        )
    return ending


def _is_late(value: object) -> bool:
    """Whether a plain function gave something that has yet to be awaited."""
    # Not `isinstance`: a value may lie about its `__class__`, or raise when it is asked.
    return issubclass(type(value), Awaitable | types.AsyncGeneratorType)


def _sync_body(work: Work, attempt: _Attempt, context: ToolContext) -> Callable[[], _Boxed]:
    def body() -> _Boxed:
        main = threading.current_thread() is threading.main_thread()
        if attempt.options.threaded:
            attempt.begin("worker thread")
        else:
            attempt.begin("main thread" if main else "waiting thread")
        try:
            value: Any = work()
            if type(value) is types.GeneratorType and _yields(work.target):
                value = _drained(cast("Generator[Any, Any, Any]", value), context)
            return _Boxed(value if _is_late(cast("object", value)) else work.settle(value))
        except KeyboardInterrupt as error:
            if attempt.why is not None:
                # A timeout ends this call, not the run: no interrupt that a runner could mistake.
                raise Interrupted from error
            if main:
                # The person's interrupt, which the runner must see.
                raise
            return _Boxed(error=error)
        except BaseException as error:
            return _Boxed(error=error)

    return body


async def _in_worker(handed_over: Coroutine[Any, Any, _Boxed], attempt: _Attempt) -> Ending:
    task = asyncio.create_task(_contained_box(handed_over))
    if await _finished(task, attempt, _WORKER_GRACE_S):
        return attempt.ending(task.result())
    return attempt.ending(_Boxed(), abandoned=True)


async def _settled(value: Any, work: Work, context: ToolContext) -> Any:
    """What is kept of the value of an asynchronous function."""
    if issubclass(type(value), Awaitable):
        value = await value
    if type(value) is types.AsyncGeneratorType:
        value = await _drained_async(cast("AsyncGenerator[Any, Any]", value), context)
    if type(value) in (str, int, float, bool, type(None)):
        return work.settle(value)
    if is_iterator(value):
        # A cursor can be read in its own thread only.
        return work.settle(value)
    # Its own code may take its time, and the loop is not its own.
    return await asyncio.to_thread(work.settle, value)


async def _contained(body: Awaitable[Any]) -> _Boxed:
    """Await and box; SystemExit and KeyboardInterrupt of a task would end the whole loop."""
    try:
        return _Boxed(await body)
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return _Boxed(error=error)


async def _contained_box(body: Awaitable[_Boxed]) -> _Boxed:
    boxed = await _contained(body)
    return boxed if boxed.error is not None else boxed.value


def _yields(target: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(_function(target))


def _function(target: Callable[..., Any]) -> Any:
    inner: Any = inspect.unwrap(target)
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[Any]", inner).func
    return inner if inspect.isroutine(inner) else type(inner).__call__


_NOTHING: Any = object()


def _drained(generator: Generator[Any, Any, Any], context: ToolContext) -> Any:
    """All but the last yielded value are progress; a returned value comes before the last."""
    last, tell = _NOTHING, _Progress(context)
    try:
        while True:
            try:
                item = next(generator)
            except StopIteration as end:
                if end.value is None:
                    return None if last is _NOTHING else last
                tell(last)
                return end.value
            tell(last)
            last = item
    finally:
        generator.close()


async def _drained_async(generator: AsyncGenerator[Any, Any], context: ToolContext) -> Any:
    last, tell = _NOTHING, _Progress(context)
    async with aclosing(generator):
        async for item in generator:
            tell(last)
            last = item
    return None if last is _NOTHING else last


class _Progress:
    """Tells what a generator yields: the first ones all, then so many a second.

    A loop that yields a million times would fill the queue faster than anybody reads it.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._told = 0
        self._next_ms = 0.0

    def __call__(self, item: Any) -> None:
        if item is _NOTHING:
            return
        now = monotonic_ms()
        if self._told >= _ALL_TOLD and now < self._next_ms:
            return
        self._told += 1
        self._next_ms = now + _PROGRESS_EVERY_MS
        with suppress(Exception):
            self._context.progress(redact(shown_text(item, _PROGRESS_CHARS)), None)
