"""When a request is tried again: how long to wait, and when waiting is pointless.

Whether a failure is worth a retry at all is in `ModelError.retryable`.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from nbagent.contracts.errors import ModelError

LONGEST_WAIT_S = 60.0
"""A server that asks for more gets no second request; the person decides."""
_FIRST_WAIT_S = 0.5
_LONGEST_BACKOFF_S = 8.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"


def backoff_s(error: ModelError, attempt: int, retries: int) -> float | None:
    """Seconds to wait after so many failed attempts, or None when the error is final."""
    if not error.retryable or attempt > retries:
        return None
    wait = error.retry_after_s
    if wait is None:
        wait = min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_BACKOFF_S)
        wait *= 1 - 0.25 * random.random()
    return wait if wait <= LONGEST_WAIT_S else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, by `retry-after-ms` or `Retry-After`; at least 0."""
    millis = number_in(headers.get("retry-after-ms", ""))
    text = headers.get("retry-after", "").strip()
    wait = number_in(text) if millis is None else millis / 1000
    if wait is None:
        try:
            wait = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, wait)


def until_s(text: str) -> float | None:
    """Seconds until a limit is reset: `6m0s`, `20ms`, `7.66`, a unix time, or RFC 3339."""
    if re.fullmatch(rf"(?:{_PART})+", text):
        return sum(float(count) * _UNITS_S[unit] for count, unit in re.findall(_PART, text))
    moment = number_in(text)
    if moment is None:
        try:
            moment = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            return None
    elif moment > 1e11:
        moment /= 1000  # OpenRouter's unix time has milliseconds.
    return max(0.0, moment - time.time() if moment > 1e9 else moment)


def number_in(text: str) -> float | None:
    """The number that a text is; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
