"""Read how long a server asks to wait: from headers, from fields of its error, from its words.

One reader for all forms of a time: OpenAI, Groq and Azure send durations (`6m0s`, `20ms`, `7.66`),
Anthropic RFC 3339, OpenRouter unix milliseconds, `Retry-After` also an HTTP date, and error
messages say "Please try again in 1m12.5s" or "in 6 minutes". `rate_limits` decides what to do.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.providers.answer.json_fields import objects_in
from nbagent.providers.error_body import as_text

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_COUNT = r"\d{1,9}(?:\.\d{1,12})?"
_UNIT = (
    r"(?:milliseconds?|millis|msecs?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)"
    r"(?![a-z])"
)
_PART = re.compile(rf"({_COUNT}) ?({_UNIT})", re.I)
_DURATION = rf"{_COUNT} ?{_UNIT}(?:,? ?(?:and )?{_COUNT} ?{_UNIT}){{0,3}}"
_MAX_TEXT_CHARS = 8_000
_MAX_SHOWN_S = 400 * 86_400.0
"""No moment is shown for longer waits."""
_WAIT_WORDS = (
    r"(?:try(?:ing)? again|retry(?:ing)?|retried|wait|resets?|available|back off|resume|refresh\w*"
    r"|allowed|come back|cool[- ]?down|limited|blocked)"
    r"(?:\s+(?:your request|the request|this request|again|later|back))?[\s,:(=-]*"
    r"(?:(?:in|after|for|about|approximately|around|at least|another|within|~)[\s:]*){0,3}"
)
_WAIT_TEXT = re.compile(
    rf"\b{_WAIT_WORDS}({_DURATION})"
    rf"|\bretry[ _-]after['\"]?[:= ]{{1,3}}({_COUNT})(?![.:-]?\w| ?[a-z])",
    re.I,
)
"""A number without a unit only behind the name of the header."""
_MOMENT_TEXT = re.compile(
    r"\b(?:try again|retry|resets?|available|access)\s+(?:again\s+)?(?:at|on|after)[\s:]+"
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d))",
    re.I,
)
"""Only a moment with its zone: Z.AI writes Beijing's time without one."""
_CHINESE_UNITS_S = {"秒": 1.0, "分": 60.0, "小": 3600.0, "時": 3600.0}
_CHINESE_WAIT = re.compile(rf"({_COUNT}) ?(秒|分|小|時)(?:钟|鐘|时|時|間)?(?:之?[后後])")
"""Also Japanese. The first letter of a unit says which one it is."""
_SECONDS_FIELDS = (
    *("retry_after", "retry_after_seconds", "retryAfter", "resets_in_seconds", "estimated_time"),
    *("resets_at", "reset_at"),
)
"""Fields with seconds or a moment. `estimated_time`: a model of Hugging Face is still loading."""
_MILLIS_FIELDS = ("retry_after_ms", "retryAfterMs")
_RETRY_HEADERS = ("retry-after", "x-retry-after", "x-ratelimit-retry-after")
_RESETS = re.compile(
    # Cerebras: x-ratelimit-reset-tokens-minute; Mistral: ratelimitbysize-reset.
    r"(?:x-)?rate-?limit\w*-reset(?:-[\w-]+)?|(?:x-)?rate-?limit-\w+-reset"
    r"|anthropic-ratelimit-(?:[a-z]+-)*reset"
)


_IETF_LIMIT = re.compile(r"\b(?:r|remaining)=0\b.{0,80}?\b(?:t|reset)=(\d{1,9})\b")
"""Value of the header `RateLimit` in the drafts of the IETF: `"default";r=0;t=12`."""


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait, from `retry-after-ms` or `Retry-After`; at least 0.

    `Retry-After` holds seconds (also with a fraction) or an HTTP date; OpenAI and Azure also send
    `retry-after-ms`, which is more exact.
    """
    millis = parse_number(headers.get("retry-after-ms", ""))
    text = next(filter(None, map(headers.get, _RETRY_HEADERS)), "").strip()
    wait = parse_duration_s(text) if millis is None else millis / 1000
    if wait is None:
        try:
            wait = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return max(0.0, wait)


def parse_duration_s(text: str) -> float | None:
    """Seconds of a number, or of a duration such as `1m12.5s` or `6 minutes`; else None."""
    if (number := parse_number(text)) is not None:
        return number
    if not re.fullmatch(_DURATION, text.strip(), re.I):
        return None
    return sum(float(count) * _unit_s(unit) for count, unit in _PART.findall(text))


def parse_reset_s(text: str) -> float | None:
    """Seconds until a limit resets, from a duration, a unix time, or RFC 3339; at least 0."""
    wait = parse_duration_s(text)
    if wait is None:
        try:
            wait = datetime.fromisoformat(text.strip()).timestamp()
        except (ValueError, OverflowError, OSError):
            return None
    if wait > 1e11:
        wait /= 1000  # Milliseconds (OpenRouter).
    return max(0.0, wait - time.time() if wait > 1e9 else wait)


def parse_number(text: str) -> float | None:
    """Parse a number; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def requested_wait_s(
    status: int | None, fault: Mapping[str, Any], headers: Mapping[str, str]
) -> float | None:
    """Seconds that a server asks to wait, from the most exact source that says it.

    Args:
        status: status of the error; headers of a limit count only if the limit was exceeded.
        fault: fields of the error.
        headers: names in lower case.
    """
    metadata = json_object(fault.get("metadata")) or {}
    # OpenRouter passes on the headers of the server behind it.
    inner = {k.lower(): as_text(v) for k, v in (json_object(metadata.get("headers")) or {}).items()}
    waits = (
        retry_after_s(headers),
        retry_after_s(inner),
        _wait_in_fields(fault),
        _wait_in_fields(metadata),
        _wait_in_words(as_text(fault.get("message") or "")),
        _reset_s({**headers, **inner}) if status == 429 else None,
    )
    return next((wait for wait in waits if wait is not None), None)


def wait_in_words(wait_s: float) -> str:
    """Write a long wait: seconds, and the moment at which it ends."""
    if wait_s == math.inf:
        return "without end"
    if wait_s > _MAX_SHOWN_S:
        return f"{wait_s:,.0f} s"
    moment = datetime.fromtimestamp(time.time() + wait_s, UTC)
    return f"{wait_s:,.0f} s (until {moment:%Y-%m-%d %H:%M} UTC)"


def _wait_in_fields(fields: Mapping[str, Any]) -> float | None:
    details = fields.get("details")
    for item in objects_in(details):
        if delay := item.get("retryDelay"):
            return parse_reset_s(as_text(delay))  # Gemini sends no header; RetryInfo has "14s".
    for name in _SECONDS_FIELDS:
        value = fields.get(name)
        if value is not None and not isinstance(value, bool):
            return parse_reset_s(as_text(value))
    for name in _MILLIS_FIELDS:
        if (millis := parse_number(as_text(fields.get(name)))) is not None:
            return max(0.0, millis / 1000)
    return _wait_in_fields(inner) if (inner := json_object(details)) else None


def _wait_in_words(message: str) -> float | None:
    """Seconds in a sentence such as "Please try again in 3.2s"; the longest of several."""
    text = message[:_MAX_TEXT_CHARS]
    waits = [parse_duration_s("".join(groups)) for groups in _WAIT_TEXT.findall(text)]
    waits += [parse_reset_s(moment) for moment in _MOMENT_TEXT.findall(text)]
    waits += [float(count) * _CHINESE_UNITS_S[unit] for count, unit in _CHINESE_WAIT.findall(text)]
    return max((wait for wait in waits if wait is not None), default=None)


def _reset_s(headers: Mapping[str, str]) -> float | None:
    """Seconds until the exceeded limits reset. Limits with something left were not exceeded.

    If no header says what is left, the soonest: a longer one is often only the time until a limit
    that was not exceeded is full again.
    """
    ietf = _IETF_LIMIT.search(headers.get("ratelimit", ""))
    exceeded = [float(ietf[1])] if ietf else list[float]()
    unknown: list[float] = []
    for name, text in headers.items():
        if not _RESETS.fullmatch(name) or (wait_s := parse_reset_s(text)) is None:
            continue
        left = parse_number(headers.get(name.replace("reset", "remaining"), ""))
        if left is None:
            unknown.append(wait_s)
        elif left <= 0:
            exceeded.append(wait_s)
    return max(exceeded, default=None) if exceeded else min(unknown, default=None)


def _unit_s(unit: str) -> float:
    """Seconds of a unit: `minutes` and `m` are 60."""
    unit = unit.lower()
    return _UNITS_S["ms" if unit.startswith(("ms", "mil")) else unit[0]]
