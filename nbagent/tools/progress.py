"""Progress and printed text of a running call, which its card shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nbagent.contracts.canonical import monotonic_ms
from nbagent.contracts.tools import ToolContext

_PROGRESS_INTERVAL_MS = 40.0
_MAX_UNTHROTTLED = 100


def throttled_progress(context: ToolContext) -> Callable[..., None]:
    """Return a function that reports progress: the first 100 reports, then 25 a second.

    A loop that reports a million times would fill the queue faster than anybody reads it. The
    report of fraction 1.0 is always shown.
    """
    shown, next_ms = 0, 0.0

    def show(make_text: Callable[[], str], fraction: float | None = None) -> None:
        nonlocal shown, next_ms
        now_ms = monotonic_ms()
        if shown < _MAX_UNTHROTTLED or now_ms >= next_ms or fraction == 1.0:
            shown, next_ms = shown + 1, now_ms + _PROGRESS_INTERVAL_MS
            context.progress(make_text(), fraction)

    return show


def capture_output(context: ToolContext) -> AbstractContextManager[Callable[[Any], object]]:
    """Send output of the `with` block to the call's card.

    Only in the main thread: `sys.stdout` belongs to the process, so the output of a worker thread
    cannot be told from the output of other threads.
    """
    if context.capture is None or threading.current_thread() is not threading.main_thread():
        return nullcontext(lambda value: None)
    return context.capture(context.output, throttled_progress(context))
