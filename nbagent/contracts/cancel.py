"""The cancel token: one flag of a run that any thread may set and anybody may watch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class CancelToken:
    """Set once, by any thread. Nobody cancels the task that iterates the engine; this is set.

    `after_turn` asks for a pause at the end of the running turn instead.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []
        self._set = False
        self.after_turn = False

    @property
    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._set

    def set(self) -> None:
        """Ask for a stop. Callbacks run in the calling thread; a second call does nothing."""
        with self._lock:
            if self._set:
                return
            self._set = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            with suppress(Exception):
                callback()

    def on_set(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Call back (at once when it is set already); returns a function that takes this back."""
        with self._lock:
            if not self._set:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _forget(self, callback: Callable[[], object]) -> None:
        with self._lock, suppress(ValueError):
            self._callbacks.remove(callback)
