"""When a request is tried again: how long to wait, and when waiting is pointless.

Whether a failure is worth a retry at all is in `ModelError.retryable`.
"""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from nbagent.contracts.errors import ModelError

LONGEST_WAIT_S = 60.0
"""A server that asks for more gets no second request; the person decides."""
_FIRST_WAIT_S = 0.5
_LONGEST_BACKOFF_S = 8.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"


def backoff_s(error: ModelError, attempt: int, retries: int) -> float | None:
    """Seconds to wait before the next attempt, or None when the error is final.

    Args:
        attempt: how many attempts have failed, from 1.
        retries: how many more than one there may be.
    """
    if not error.retryable or attempt > retries:
        return None
    wait = error.retry_after_s
    if wait is None:
        wait = min(_FIRST_WAIT_S * 2 ** (attempt - 1), _LONGEST_BACKOFF_S)
        wait *= 1 - 0.25 * random.random()
    return wait if wait <= LONGEST_WAIT_S else None


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, else `Retry-After` in any form.

    A time in the past and a negative number are 0; what cannot be read is None.
    """
    millis = number_in(headers.get("retry-after-ms", ""))
    if millis is not None:
        return max(0.0, millis / 1000)
    text = headers.get("retry-after", "").strip()
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        # The header may come twice: the longest of the waits that can be read.
        waits = [wait for part in text.split(",") if (wait := number_in(part)) is not None]
    return max(0.0, *waits) if waits else None


def until_s(text: str) -> float | None:
    """Seconds until a limit is reset: `6m0s`, `20ms`, `7.66`, a unix time, or RFC 3339."""
    text = text.strip()
    if re.fullmatch(rf"(?:{_PART})+", text):
        return sum(float(count) * _UNITS_S[unit] for count, unit in re.findall(_PART, text))
    moment = number_in(text)
    if moment is not None and moment > 1e11:
        moment /= 1000  # OpenRouter's unix time has milliseconds.
    if moment is not None and moment < 1e9:
        return max(0.0, moment)
    try:
        moment = moment or datetime.fromisoformat(text).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None
    return max(0.0, moment - time.time())


def number_in(text: str) -> float | None:
    """The number that a text is; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
