"""The way of a run's events to someone on another thread or loop: in batches, one wake-up each."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from nbagent.contracts.events import Event


class EventChannel:
    """Any thread puts, one consumer takes: `async for`, or whole batches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque()
        self._closed = False
        self._wake: Callable[[], None] | None = None

    def put(self, event: Event) -> None:
        """Add an event. Wakes the consumer only if it sleeps. After `close` it does nothing."""
        with self._lock:
            if self._closed:
                return
            self._events.append(event)
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def close(self) -> None:
        """No more events: the consumer ends when it has taken what there is."""
        with self._lock:
            self._closed = True
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    async def next_batch(self) -> list[Event]:
        """All events that are there, at least one; none when the channel is closed and empty."""
        loop = asyncio.get_running_loop()
        while True:
            bell = asyncio.Event()

            def wake(bell: asyncio.Event = bell) -> None:
                with suppress(RuntimeError):  # the consumer's loop has gone
                    loop.call_soon_threadsafe(bell.set)

            batch, closed = self._take_or_sleep(wake)
            if batch or closed:
                return batch
            await bell.wait()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while batch := await self.next_batch():
            for event in batch:
                yield event

    def _take_or_sleep(self, wake: Callable[[], None]) -> tuple[list[Event], bool]:
        with self._lock:
            batch = list(self._events)
            self._events.clear()
            if not batch and not self._closed:
                self._wake = wake
            return batch, self._closed
