"""When a request may go: what its server asks to wait, retries, and the limits that runs share.

There is one limiter for each server and key. It learns from the headers of rate limits (OpenAI,
Azure, Groq, Anthropic, OpenRouter) and from a 429, and says who goes when, in order. It sends
nothing and retries nothing. Each attempt has a `Place`: it awaits its turn, sends, and lets the
limiter learn from the answer.

A request that is alone is never paced, and asks even where waiting would be pointless: a person
tried again. All others fail then at once with LLM_RATE_LIMITED. Whether a failure is worth a retry
at all is in `ModelError.retryable`.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import SecretKey

LONGEST_WAIT_S = 60.0
"""A server that asks for more gets no second request; the person decides."""
_FIRST_WAIT_S = 0.5
_LONGEST_BACKOFF_S = 8.0
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h|d)"
_TOLD_FROM_S = 0.1  # Shorter waits are not worth a word.
_LOOK_AGAIN_S = 0.05  # Who waits looks so often whether an answer changed something.
_LEAST_SLEEP_S = 0.01
_PAUSE_S = 1.0  # After a 429 that names no wait, when other requests are on their way.
_LEAST_GAP_S = 0.001  # Shorter ones are not passed on.
_SHARE = 0.8  # Of the pace that the server took before it refused.
_DOUBLED_IN_S = 30.0  # The pace grows as long as nothing is refused.
_MOST_SEEN = 512
_WINDOW = "x-ratelimit-{}"
_PATTERNS = (
    *(_WINDOW, "x-ratelimit-{}-requests", "x-ratelimit-{}-tokens"),
    *(f"anthropic-ratelimit-{what}-{{}}" for what in ("requests", "tokens", "input-tokens")),
)


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
    millis = _number(headers.get("retry-after-ms", ""))
    text = headers.get("retry-after", "").strip()
    wait = _number(text) if millis is None else millis / 1000
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
    moment = _number(text)
    if moment is None:
        try:
            moment = datetime.fromisoformat(text).timestamp()
        except (ValueError, OverflowError):
            return None
    elif moment > 1e11:
        moment /= 1000  # OpenRouter's unix time has milliseconds.
    return max(0.0, moment - time.time() if moment > 1e9 else moment)


@dataclass(slots=True)
class _Budget:
    """One limit as the server last said it, less what went since; over when it is full again."""

    limit: float
    left: float
    per_s: float  # How fast it fills up; 0 for a window, which is full at once when it ends.
    seen_at: float
    full_at: float

    def wait_s(self, need: float, now: float) -> float:
        missing = min(need, self.limit) - self.left - self.per_s * (now - self.seen_at)
        if missing <= 0 or now >= self.full_at:
            return 0.0
        wait = missing / self.per_s if self.per_s else self.full_at - now
        # What is further away is asked for all the same: the refusal will say how long.
        return wait if wait <= LONGEST_WAIT_S else 0.0


class Pace(NamedTuple):
    """What a process has learnt of a server's limits, for another process."""

    closed_s: float
    """So long the server takes nothing."""
    gap_s: float
    """Between two requests; 0: none is needed."""
    at_once: float | None
    """How many may be on their way; None: any number."""

    def divided(self, by: float) -> Pace:
        """The share of each of so many processes."""
        at_once = None if self.at_once is None else max(1.0, self.at_once / by)
        return Pace(self.closed_s, self.gap_s * by, at_once)


class Limiter:
    """What one server takes from one key."""

    def __init__(self) -> None:
        self._line: deque[Place] = deque()
        self._sent: set[Place] = set()  # On their way, or being answered.
        self._budgets: dict[str, _Budget] = {}
        self._went_at: deque[float] = deque(maxlen=_MOST_SEEN)  # Of those not refused.
        self._last_at = self._refused_at = -math.inf
        self._open_at = 0.0  # Nothing goes before; set by a refusal.
        # How fast requests went at the last refusal: measured, so that no herd goes at once.
        self._per_s = math.inf
        # How many may be on their way; learnt from a 429 that names no wait.
        self._at_once = math.inf

    @staticmethod
    def of(server: str, key: SecretKey | None) -> Limiter:
        """The one limiter of this process for a server and a key."""
        known = (server, sha256_hex(key.reveal()) if key else "")
        if known not in _limiters:
            made = _limiters[known] = Limiter()
            if server in _told:
                made.told(_told[server].said())
        return _limiters[known]

    def said(self) -> Pace:
        """What another process should know."""
        now = time.monotonic()
        gap_s = self._gap_s(now)
        at_once = self._at_once if self._at_once < math.inf else None
        return Pace(max(0.0, self._open_at - now), gap_s if gap_s > _LEAST_GAP_S else 0.0, at_once)

    def told(self, pace: Pace) -> None:
        """Take what another process has learnt; it only tightens."""
        now = time.monotonic()
        gap_s = max(self._gap_s(now), pace.gap_s)
        if gap_s > self._gap_s(now) or now + pace.closed_s > self._open_at:
            # An answer to what went before does not mean that the server changed its mind.
            self._per_s, self._refused_at = 1 / gap_s if gap_s else math.inf, now
        self._open_at = max(self._open_at, now + pace.closed_s)
        if pace.at_once is not None:
            self._at_once = min(self._at_once, pace.at_once)

    def _gap_s(self, now: float) -> float:
        """Between two requests; it shrinks as long as nothing is refused."""
        return 2 ** ((self._refused_at - now) / _DOUBLED_IN_S) / self._per_s

    def asked_s(self, tokens: int, now: float) -> float:
        """Seconds that the server itself wants such a request to wait."""
        waits = [budget.wait_s(_need(name, tokens), now) for name, budget in self._budgets.items()]
        return max(0.0, self._open_at - now, *waits)

    def turn(self, place: Place, left_s: float) -> float:
        """0.0 when the request goes now, else in how many seconds it may. Raises ModelError."""
        now = time.monotonic()
        if place not in self._line:
            self._line.append(place)
        alone = not self._sent and len(self._line) == 1
        asked = self.asked_s(place.tokens, now)
        gap_s = 0.0 if alone else self._gap_s(now)
        ahead = self._line.index(place)
        wait = max(asked, self._last_at + gap_s - now) + ahead * gap_s
        if len(self._sent) + 1 > self._at_once:
            wait = max(wait, _PAUSE_S)  # As good a guess as any.
        if asked > LONGEST_WAIT_S or left_s <= asked:
            if not alone:
                wait = asked or wait
                within = f"in {wait:,.0f} s" if wait < math.inf else "no more"
                text = (
                    "too many requests for the provider: it said that it takes this one only"
                    f" {within}, which is longer than is waited here. Try again later."
                )
                raise ModelError(text, code="LLM_RATE_LIMITED", retry_after_s=wait)
            wait = 0.0  # A person tries again: the server may have changed its mind.
        if wait > 0 or ahead:
            return max(wait, _LEAST_SLEEP_S)
        self._line.popleft()
        self._sent.add(place)
        place.went_at = self._last_at = now
        self._went_at.append(now)
        for name, budget in self._budgets.items():
            budget.left -= _need(name, place.tokens)
        return 0.0

    def leave(self, place: Place) -> None:
        """Give back what was taken."""
        self._sent.discard(place)
        with suppress(ValueError):
            self._line.remove(place)

    def learn(
        self, place: Place, status: int, headers: Mapping[str, str], wait_s: float | None = None
    ) -> None:
        """Take what the answer to a request says about limits; names are in lower case."""
        now, place.answered = time.monotonic(), True
        for pattern in _PATTERNS:
            if pattern.format("remaining") not in headers:
                continue  # most servers say nothing of most limits
            said = [headers.get(pattern.format(it), "") for it in ("limit", "remaining", "reset")]
            limit, left, reset_s = _number(said[0]) or math.inf, _number(said[1]), until_s(said[2])
            if left is None or reset_s is None or not math.isfinite(left + reset_s):
                continue
            fills = pattern != _WINDOW and left < limit < math.inf and reset_s > 0
            per_s = (limit - left) / reset_s if fills else 0.0
            # The server had not seen those that are still on their way.
            left -= sum(_need(pattern, it.tokens) for it in self._sent if not it.answered)
            self._budgets[pattern] = _Budget(limit, left, per_s, now, now + reset_s)
        if status == 429 or (status in (503, 529) and wait_s):
            self._refused(place, wait_s, now)
        elif status < 400:
            self._at_once += 1 / self._at_once
            if place.went_at > self._refused_at:
                self._open_at = 0.0  # The server changed its mind.

    def _refused(self, place: Place, wait_s: float | None, now: float) -> None:
        with suppress(ValueError):
            self._went_at.remove(place.went_at)
        if wait_s is None and len(self._sent) + len(self._line) > 1:
            self._at_once = min(self._at_once, max(1, len(self._sent) - 1))
            wait_s = _PAUSE_S
        wait_s = wait_s or 0.0
        span_s = min(max(wait_s, 1.0), LONGEST_WAIT_S)
        taken = sum(at > now - span_s for at in self._went_at)
        self._per_s = _SHARE * max(taken, 1) / span_s
        self._refused_at = now
        self._open_at = max(self._open_at, now + wait_s)


class Place:
    """One request's place in line, and its slot once it goes; about so many tokens."""

    def __init__(self, limiter: Limiter, tokens: int) -> None:
        self.tokens = tokens
        self.went_at = 0.0
        self.answered = False
        self.waited_s = 0.0
        self._limiter = limiter
        self._told_until = 0.0

    def __enter__(self) -> Place:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        refused = error if isinstance(error, ModelError) and not self.answered else None
        if refused and refused.status and refused.code != "LLM_QUOTA_EXCEEDED":
            self._limiter.learn(self, refused.status, {}, refused.retry_after_s)
        self._limiter.leave(self)

    async def turn(self, deadline: float) -> float | None:
        """Wait for this request's turn, by the deadline (the loop's time): None when it may go.

        Seconds, before that, are what it will have to wait, to be told; call again to wait them.
        Raises ModelError when that would be longer than is waited.
        """
        clock = asyncio.get_running_loop().time
        while wait_s := self._limiter.turn(self, deadline - clock()):
            began = clock()
            if wait_s > _TOLD_FROM_S and began + wait_s > self._told_until:
                self._told_until = began + wait_s + 1
                return wait_s
            await asyncio.sleep(min(wait_s, _LOOK_AGAIN_S))
            self.waited_s += clock() - began
        return None


def _number(text: str) -> float | None:
    """The number that a text is; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _need(name: str, tokens: int) -> int:
    return tokens if "tokens" in name else 1


_limiters: dict[tuple[str, str], Limiter] = {}
_told: dict[str, Limiter] = {}
"""By server, what other processes said: for limiters that are not made yet."""


def said_limits() -> dict[str, Pace]:
    """What this process knows of each server that limits it, with whatever key."""
    known = [*((server, it) for (server, _), it in _limiters.items()), *_told.items()]
    merged: dict[str, Limiter] = {}
    for server, limiter in known:
        merged.setdefault(server, Limiter()).told(limiter.said())
    paces = {server: limiter.said() for server, limiter in merged.items()}
    return {server: pace for server, pace in paces.items() if pace != (0.0, 0.0, None)}


def tell_limits(paces: Mapping[str, Pace]) -> None:
    """Take what another process has learnt of servers."""
    for server, pace in paces.items():
        limiters = [it for (name, _), it in _limiters.items() if name == server]
        for limiter in (*limiters, _told.setdefault(server, Limiter())):
            limiter.told(pace)


def forget_limits() -> None:
    """Forget what servers said of their limits."""
    _limiters.clear()
    _told.clear()
