"""Progress of a call, and what it prints: both go to its card."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.tools import ToolContext

_PROGRESS_EVERY_MS = 40.0


_ALL_SHOWN = 100


def paced_progress(context: ToolContext) -> Callable[..., None]:
    """What shows progress: the first texts all, then so many a second, and the last one.

    A loop that reports a million times would fill the queue faster than anybody reads it.
    """
    shown, next_ms = 0, 0.0

    def show(make_text: Callable[[], str], fraction: float | None = None) -> None:
        nonlocal shown, next_ms
        now_ms = monotonic_ms()
        if shown < _ALL_SHOWN or now_ms >= next_ms or fraction == 1.0:
            shown, next_ms = shown + 1, now_ms + _PROGRESS_EVERY_MS
            context.progress(make_text(), fraction)

    return show


def captured(context: ToolContext) -> AbstractContextManager[Callable[[Any], object]]:
    """Keep what is printed and displayed meanwhile for the call's card, where it has one.

    Only in the main thread: elsewhere it could not be told from what others print meanwhile.
    """
    if context.capture is None or threading.current_thread() is not threading.main_thread():
        return nullcontext(lambda value: None)
    return context.capture(context.output, paced_progress(context))
