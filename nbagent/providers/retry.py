"""When a request is tried again: how long to wait, and when waiting is pointless.

Whether a failure is worth a retry at all is in `ModelError.retryable`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from nbagent.contracts.errors import ModelError

LONGEST_WAIT_S = 60.0
"""A server that asks for more gets no second request; the person decides."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently."""

    retries: int = 2
    first_wait_s: float = 0.5
    longest_backoff_s: float = 8.0

    def wait_s(self, error: ModelError, attempt: int, left_s: float) -> float | None:
        """Seconds to wait before the next attempt, or None when the error is final.

        Args:
            attempt: how many attempts have failed, from 1.
            left_s: seconds until the total deadline of the request.
        """
        if not error.retryable or attempt > self.retries:
            return None
        asked = error.retry_after_s
        if asked is None:
            backoff = min(self.first_wait_s * 2 ** (attempt - 1), self.longest_backoff_s)
            wait = backoff * (1 - 0.25 * random.random())
        elif asked > LONGEST_WAIT_S:
            return None
        else:
            wait = asked
        return wait if wait < left_s else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, else `Retry-After` in any form.

    A time in the past and a negative number are 0; what cannot be read is None.
    """
    millis = _number(headers.get("retry-after-ms"))
    if millis is not None:
        return max(0.0, millis / 1000)
    text = headers.get("retry-after", "").strip()
    seconds = _seconds(text)
    if seconds is None:
        # The header came twice: the longest of the waits that can be read.
        seconds = max(
            (s for part in text.split(",") if (s := _number(part)) is not None), default=None
        )
    return None if seconds is None else max(0.0, seconds)


def _seconds(text: str) -> float | None:
    seconds = _number(text)
    if seconds is not None or not text:
        return seconds
    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text and text.strip() else math.nan
    except ValueError:
        return None
    return None if math.isnan(value) else value
