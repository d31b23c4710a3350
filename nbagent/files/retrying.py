"""Tries again what fails only for a moment: a file that another program has open or locked.

Virus scanners, indexers, editors and network file systems hold a file for some milliseconds. Blocks
the calling thread for less than a second; never call it on an event loop.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_BUSY_ERRNOS = frozenset({errno.EBUSY, errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR})
_BUSY_WINERRORS = frozenset({32, 33})
"""ERROR_SHARING_VIOLATION and ERROR_LOCK_VIOLATION; their errno is EACCES."""
PAUSES_S = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32)
"""0.63 s together."""


def is_busy(error: OSError) -> bool:
    """True if another program uses the file at this moment."""
    return error.errno in _BUSY_ERRNOS or getattr(error, "winerror", None) in _BUSY_WINERRORS


def retry_busy(work: Callable[[], T]) -> T:
    """Call `work` until the file is no longer in use; raise its last OSError after all pauses."""
    for pause_s in PAUSES_S:
        try:
            return work()
        except OSError as error:
            if not is_busy(error):
                raise
        time.sleep(pause_s)
    return work()
