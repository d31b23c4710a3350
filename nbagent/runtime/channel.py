"""The way of a run's events to someone on another thread or loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import suppress

from nbagent.contracts.events import Event


class EventChannel:
    """Any thread puts, one consumer iterates; it is woken once for all that came meanwhile."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._closed = False
        self._wake: Callable[[], None] | None = None
        """There while the consumer sleeps."""

    def put(self, event: Event) -> None:
        """Add an event. After `close` it does nothing."""
        if not self._closed:
            self._events.append(event)
            self._ring()

    def close(self) -> None:
        """No more events: the consumer ends when it has taken what there is."""
        self._closed = True
        self._ring()

    def _ring(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the consumer's loop has gone
                loop.call_soon_threadsafe(bell.set)

        while self._events or not self._closed:
            while self._events:
                yield self._events.popleft()
            bell.clear()
            self._wake = wake
            # Looked at again: who puts adds first and looks for a sleeper afterwards.
            if not self._events and not self._closed:
                await bell.wait()


async def follow(
    channel: EventChannel, ending: Coroutine[object, object, object]
) -> AsyncGenerator[Event]:
    """The events of a run while `ending` (its `await_here`) is awaited beside.

    Closing this waits for the end; leaving early stops the run. What `ending`
    raises is raised after the last event.
    """
    waiter = asyncio.ensure_future(ending)
    waiter.add_done_callback(lambda _: channel.close())
    loop, failed = waiter.get_loop(), None
    try:
        async for event in channel:
            yield event
    finally:
        # A loop that an interrupt ended drops this generator afterwards: there is no more waiting.
        if loop.is_running():
            waiter.cancel()
            await asyncio.wait([waiter])
            failed = None if waiter.cancelled() else waiter.exception()
    if failed is not None:
        raise failed
