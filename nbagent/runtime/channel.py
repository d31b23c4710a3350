"""The way of a run's events to someone on another thread or loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import suppress

from nbagent.contracts.events import Event


class EventChannel:
    """Any thread puts; the loop that it is made on iterates, woken once for all that came."""

    def __init__(self) -> None:
        self._events: deque[Event | None] = deque()
        self._loop = asyncio.get_running_loop()
        self._bell = asyncio.Event()
        self._rung = False

    def put(self, event: Event | None) -> None:
        """Add an event; None is the end."""
        self._events.append(event)
        if not self._rung:
            self._rung = True
            with suppress(RuntimeError):  # the consumer's loop has gone
                self._loop.call_soon_threadsafe(self._bell.set)

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            await self._bell.wait()
            self._bell.clear()
            self._rung = False  # before looking: who adds from here on rings again
            while self._events:
                event = self._events.popleft()
                if event is None:
                    return
                yield event


async def follow(
    channel: EventChannel, ending: Coroutine[object, object, object]
) -> AsyncGenerator[Event]:
    """The events of a run while `ending` (its `await_here`) is awaited beside.

    Closing this waits for the end; leaving early stops the run. What `ending`
    raises is raised after the last event.
    """
    waiter = asyncio.ensure_future(ending)
    waiter.add_done_callback(lambda _: channel.put(None))
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
