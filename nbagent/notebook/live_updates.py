"""Sends the changes of what pages show live: each changed part once in a short window.

Everything that is shown live is a `Shown`: it has parts, and takes messages of pages.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from nbagent.notebook.messages import Message
from nbagent.view.live_changes import Op
from nbagent.view.node import Node

INTERVAL_S = 0.05
"""20 messages per second: 10,000 deltas then cost 0.3 MB instead of 200 MB."""


class Shown(ABC):
    """A run, batch or review that pages show while it changes."""

    def __init__(self, key: str, *, interval_s: float = INTERVAL_S) -> None:
        """Show it under a key, which is the `data-run` of its element."""
        self.key = key
        self.updates = LiveUpdates(self, interval_s)
        self._drawn: dict[str, Node] = {}
        """The parts as the pages have them."""

    @abstractmethod
    def parts(self) -> dict[str, Node]:
        """Draw the parts by their `data-key`."""

    @abstractmethod
    def whole(self) -> Node:
        """Draw the element that holds the parts. Any thread."""

    @abstractmethod
    def on_message(self, message: Message) -> None:
        """Handle a message of a page, which may be for another key. Any thread."""

    def picture(self) -> Node:
        """Draw it as a widget shows it. Any thread."""
        return self.whole()

    def rest(self) -> Iterable[list[Op]]:
        """Draw what a page gets after the whole picture, in slices. Any thread."""
        return ()

    def on_pages(self, is_shown: bool) -> None:  # noqa: B027 (only some do something)
        """Do something when a page shows it, or none does any more. Any thread."""

    def changes(self) -> list[Op]:
        """Draw what changed since the last call."""
        parts = self.parts()
        changed = [key for key, node in parts.items() if self._drawn.get(key) != node]
        self._drawn = parts
        return [["put", key, parts[key], ""] for key in changed]


class LiveUpdates:
    """Sends the changes of one shown thing at most every `interval_s`, the first ones at once.

    It belongs to the event loop on which `begin` was called. Without a loop it sends at once.
    """

    def __init__(self, shown: Shown, interval_s: float) -> None:
        self.send: Callable[[dict[str, Any]], object] = lambda message: None
        """Sends a message to the pages. Any thread."""
        self.on_error: Callable[[Exception], object] = lambda error: None
        """Called if the changes cannot be drawn or sent: a timer would lose the exception."""
        self._shown, self._interval_s = shown, interval_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    def begin(self) -> None:
        """Send on this event loop from now on."""
        self._loop = self._loop or asyncio.get_running_loop()

    def changed(self) -> None:
        """Send the changes soon. On the loop."""
        if self._timer is None and not self._is_over:
            self.flush()

    def changed_elsewhere(self) -> None:
        """Send the changes soon. Any thread."""
        self.call_soon(self.changed)

    def flush(self) -> None:
        """Send the changes now. On the loop."""
        self._cancel()
        try:
            ops = self._shown.changes()
        except Exception as error:
            self.on_error(error)
            return
        # Without changes the timer is not renewed, so the next ones are sent at once.
        if ops:
            self._send_ops(ops)
            if self._loop is not None:
                self._timer = self._loop.call_later(self._interval_s, self.flush)

    def end(self) -> None:
        """Send the last picture; nothing is sent after it. On the loop."""
        self._cancel()
        self._is_over = True
        self.send_whole()

    def page_ready(self, page: int | str) -> None:
        """Send one page everything, after the changes that it already includes. Any thread."""
        self.call_soon(self._send_to, page)

    def call_soon(self, work: Callable[..., object], *args: object) -> None:
        """Call `work` between two changes. Any thread."""
        if self._loop is None or self._is_over:
            work(*args)
        else:
            with suppress(RuntimeError):  # the kernel is going down
                self._loop.call_soon_threadsafe(work, *args)

    def send_whole(self, page: int | str | None = None) -> None:
        """Send the whole picture to one page, or to all."""
        try:
            ops: list[Op] = [["done", self._shown.whole()]]
        except Exception as error:
            self.on_error(error)
            return
        self._send_ops(ops, page)
        for more in self._shown.rest():
            self._send_ops(more, page)

    def _send_to(self, page: int | str) -> None:
        if not self._is_over:
            self.flush()
        self.send_whole(page)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_ops(self, ops: list[Op], page: int | str | None = None) -> None:
        message: dict[str, Any] = {"run": self._shown.key, "ops": ops}
        try:
            self.send(message if page is None else {**message, "page": page})
        except Exception as error:
            self.on_error(error)
