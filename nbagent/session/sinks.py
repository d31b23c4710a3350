"""The sinks that need no notebook: a callback, a stream, and stderr for what should be known."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable

from nbagent.contracts.errors import UsageError
from nbagent.contracts.events import Event, Notice, RunStarted
from nbagent.runtime import EventChannel


class CallbackSink:
    """Hands events to a function of the person's (`on_event=`), on the engine thread."""

    def __init__(self, callback: Callable[[Event], object]) -> None:
        if inspect.iscoroutinefunction(callback):
            raise UsageError(
                "on_event takes a plain function, it is called on the engine thread and not "
                "awaited; for `await` use `async for event in agent.stream(…)`"
            )
        self._callback = callback

    @property
    def name(self) -> str:
        """For the notice when it is detached."""
        return "on_event"

    def handle(self, event: Event) -> None:
        """Call it."""
        self._callback(event)

    def close(self) -> None:
        """Nothing to close."""


class StderrSink:
    """Where nothing shows a run (a script), what the person should know goes to stderr."""

    name = "stderr"

    def handle(self, event: Event) -> None:
        """Print notices, the ones that the run begins with too."""
        if isinstance(event, RunStarted):
            for text in event.run.notices:
                print(f"nbagent: {text}", file=sys.stderr)
        elif isinstance(event, Notice) and event.level != "info":
            print(f"nbagent: {event.text}", file=sys.stderr)

    def close(self) -> None:
        """Nothing to close."""


class ChannelSink:
    """Feeds `agent.stream()`."""

    name = "stream"

    def __init__(self, channel: EventChannel) -> None:
        self._channel = channel

    def handle(self, event: Event) -> None:
        """Put it into the channel."""
        self._channel.put(event)

    def close(self) -> None:
        """The channel is closed by the run itself."""
