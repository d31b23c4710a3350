"""How many requests a server takes: one limiter for each server and key, shared by all runs.

Learns from the headers of rate limits (OpenAI, Azure, Groq, Anthropic, OpenRouter) and from a 429,
and says who goes when, in order. It sends nothing and retries nothing. For each attempt:

    with limiter.place(tokens) as place:
        while wait_s := await place.turn(deadline):
            ...  # tell it; it is waited by the next call
        ...      # now send the request; then, with the status and headers of its answer:
        place.learn(status, headers, retry_after_s)

Leaving the block, by a cancellation too, gives back what was taken. Several loops may share one.
A request that is alone is never paced, and asks even where waiting would be pointless: a person
tried again. All others fail then at once with LLM_RATE_LIMITED.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.retry import LONGEST_WAIT_S, until_s

_TOLD_FROM_S = 0.1
"""Shorter waits are not worth a word."""
_PAUSE_S = 1.0
"""After a 429 that names no wait, when other requests are on their way."""
_LEAST_PAUSE_S = 0.25
"""Until the other refusals of a herd are in."""
_PROBE_S = 5.0
"""So long without a 429, and requests go a quarter faster."""
_FORGOTTEN_S = 60.0
_MOST_SEEN = 512
_PATTERNS = {
    "requests": "x-ratelimit-{}-requests",
    "tokens": "x-ratelimit-{}-tokens",
    "window": "x-ratelimit-{}",
    "anthropic requests": "anthropic-ratelimit-requests-{}",
    "anthropic tokens": "anthropic-ratelimit-tokens-{}",
    "anthropic input tokens": "anthropic-ratelimit-input-tokens-{}",
}
_HEADERS = [
    (name, *(pattern.format(field) for field in ("limit", "remaining", "reset")))
    for name, pattern in _PATTERNS.items()
]


@dataclass(slots=True)
class _Budget:
    """What is left of one limit, as the server last said it and less what went since."""

    limit: float
    left: float
    seen_at: float
    full_at: float
    span_s: float
    """How far away `full_at` was."""
    per_s: float
    """How fast it fills up; 0 for a window, which is full at once when it ends."""

    def left_at(self, now: float) -> float:
        """What may be taken now."""
        if now >= self.full_at:
            return self.limit
        return min(self.limit, self.left + self.per_s * (now - self.seen_at))

    def wait_s(self, need: float, now: float) -> float:
        """Seconds until so much may be taken."""
        missing = min(need, self.limit) - self.left_at(now)
        if missing <= 0:
            return 0.0
        wait = self.full_at - now
        if self.per_s and wait > 1:  # The last second is waited in full: it may end a window.
            wait = min(wait, missing / self.per_s)
        # What is further away is asked for all the same: the refusal will say how long.
        return wait if wait <= LONGEST_WAIT_S else 0.0

    def take(self, need: float, now: float) -> None:
        """Count a request that goes."""
        self.left, self.seen_at = self.left_at(now) - need, now
        if self.per_s:
            self.full_at = max(now, self.full_at) + need / self.per_s
        elif now >= self.full_at:
            self.full_at = now + self.span_s  # As long as the window before.


class Limiter:
    """What one server takes from one key."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[Place] = deque()
        self._sent: set[Place] = set()
        """Requests that are on their way or being answered."""
        self._budgets: dict[str, _Budget] = {}
        self._went_at: deque[float] = deque(maxlen=_MOST_SEEN)
        """When requests went that were not refused."""
        self._open_at = 0.0
        """Nothing goes before; set by a 429."""
        self._refused_at = self._changed_at = -math.inf
        self._per_s: float | None = None
        """How fast requests go since a 429; None: as they come."""
        self._measured_from: float | None = None
        self._next_at = 0.0
        self._at_once: float | None = None
        """How many may be on their way; learnt from a 429 that names no wait."""

    @staticmethod
    def of(server: str, key: SecretKey | None) -> Limiter:
        """The one limiter of this process for a server and a key."""
        known = (server, sha256_hex(key.reveal()) if key else "")
        with _lock:
            return _limiters.setdefault(known, Limiter())

    def place(self, tokens: int) -> Place:
        """A place in line for a request of about so many tokens."""
        return Place(self, tokens)

    def wait_s(self, tokens: int) -> float:
        """Seconds until such a request may go, 0.0 now. Reserves nothing."""
        with self._lock:
            return self._expected_s(tokens, len(self._line), time.monotonic())

    def learn(
        self,
        status: int,
        headers: Mapping[str, str],
        retry_after_s: float | None = None,
        *,
        place: Place | None = None,
    ) -> None:
        """Take what an answer says about limits.

        Args:
            headers: with names in lower case.
            retry_after_s: how long a refusal asks to wait.
            place: whose answer it is.
        """
        now = time.monotonic()
        with self._lock:
            for name, limit, remaining, reset in _HEADERS:
                if remaining in headers and reset in headers:
                    said = (headers.get(limit, ""), headers[remaining], headers[reset])
                    self._read(name, said, now)
            if status == 429 and place is not None:
                with suppress(ValueError):
                    self._went_at.remove(place.went_at)
            if status == 429 or (status in (503, 529) and retry_after_s):
                self._refused(retry_after_s, now)
            elif status < 400:
                self._served(now)
                if place is not None and place.went_at > self._refused_at:
                    self._open_at = min(self._open_at, now)  # The server changed its mind.

    def _read(self, name: str, said: tuple[str, str, str], now: float) -> None:
        limit, left, reset_s = _number(said[0]) or math.inf, _number(said[1]), until_s(said[2])
        if left is None or reset_s is None or reset_s == math.inf:
            return
        fills = name != "window" and left < limit < math.inf and reset_s > 0
        per_s = (limit - left) / reset_s if fills else 0.0
        # The server had not seen those that are still on their way.
        left -= sum(_need(name, place.tokens) for place in self._sent if not place.answered)
        self._budgets[name] = _Budget(limit, left, now, now + reset_s, reset_s, per_s)

    def _refused(self, retry_after_s: float | None, now: float) -> None:
        herd = len(self._sent) + len(self._line) > 1
        pause = retry_after_s or 0.0
        if retry_after_s is None and herd:
            self._at_once = min(self._at_once or math.inf, max(1, len(self._sent) - 1))
            pause = _PAUSE_S
        if now >= self._open_at:  # The first refusal of a herd.
            self._measured_from = None
            if self._per_s is None:
                self._measured_from = now - min(max(pause, 1.0), LONGEST_WAIT_S)
            else:
                self._per_s *= 0.75
        self._refused_at = self._changed_at = now
        self._open_at = max(self._open_at, now + max(pause, _LEAST_PAUSE_S if herd else 0.0))
        if self._measured_from is not None and self._open_at < math.inf:
            # Measured again with each refusal: until then its request counts as taken.
            taken = [at for at in self._went_at if at >= self._measured_from] or [now]
            self._per_s = 0.9 * len(taken) / max(1.0, self._open_at - taken[0])
        for place in self._line:
            place.wake()

    def _served(self, now: float) -> None:
        if self._at_once is not None:
            self._at_once += 1 / self._at_once
        if self._per_s is not None and now - self._changed_at > _PROBE_S:
            self._per_s, self._changed_at = self._per_s * 1.25, now

    def _asked_s(self, tokens: int, now: float) -> float:
        """Seconds that the server itself wants a request to wait."""
        waits = [budget.wait_s(_need(name, tokens), now) for name, budget in self._budgets.items()]
        return max(0.0, self._open_at - now, *waits)

    def _paced_s(self, now: float) -> float:
        """Seconds until the next one goes, so that no herd goes at once."""
        return 0.0 if self._per_s is None else max(0.0, self._next_at - now)

    def _is_alone(self) -> bool:
        return not self._sent and len(self._line) <= 1

    def _expected_s(self, tokens: int, ahead: int, now: float) -> float:
        spread = ahead / self._per_s if self._per_s else 0.0
        blocked = _PAUSE_S if self._is_full() else 0.0  # As good a guess as any.
        paced = 0.0 if self._is_alone() else self._paced_s(now)
        return max(self._asked_s(tokens, now), paced, blocked) + spread

    def _is_full(self) -> bool:
        return self._at_once is not None and len(self._sent) >= int(self._at_once)

    def turn(self, place: Place, left_s: float) -> tuple[float, float] | None:
        """None when the request goes now, else how long to sleep and what to expect, in seconds.

        Raises:
            ModelError: the server wants a longer wait than is waited.
        """
        with self._lock:
            now = time.monotonic()
            if place not in self._line:
                if self._is_alone() and now - self._refused_at > _FORGOTTEN_S:
                    self._per_s = self._at_once = None
                self._line.append(place)
            alone = self._is_alone()
            asked = self._asked_s(place.tokens, now)
            if asked > LONGEST_WAIT_S or 0 < left_s <= asked:
                if not alone:
                    raise _too_long(asked)
                asked = 0.0  # A person tries again: the server may have changed its mind.
            wait = asked if alone else max(asked, self._paced_s(now))
            first = self._line[0] is place and not self._is_full()
            if not first or wait > 0:
                expected = self._expected_s(place.tokens, self._line.index(place), now)
                if left_s <= 0:
                    raise _too_long(expected)
                return wait if first else math.inf, expected
            self._line.popleft()
            self._sent.add(place)
            self._went_at.append(now)
            place.went_at = now
            if self._per_s:
                self._next_at = now + 1 / self._per_s
            for name, budget in self._budgets.items():
                budget.take(_need(name, place.tokens), now)
            self._wake_first()
            return None

    def leave(self, place: Place) -> None:
        """Give back what was taken."""
        with self._lock:
            self._sent.discard(place)
            with suppress(ValueError):
                self._line.remove(place)
            self._wake_first()

    def _wake_first(self) -> None:
        while self._line and not self._line[0].wake():
            self._line.popleft()


class Place:
    """One request's place in line, and its slot once it goes."""

    def __init__(self, limiter: Limiter, tokens: int) -> None:
        self.tokens = tokens
        self.went_at = 0.0
        self.answered = False
        self.waited_s = 0.0
        """Until its turn came."""
        self._limiter = limiter
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._told_until = self._loop.time() + _TOLD_FROM_S
        self._began = 0.0

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        self._limiter.leave(self)

    async def turn(self, deadline: float) -> float | None:
        """Wait for this request's turn: None when it may go.

        Seconds, before that, are what it will have to wait, to be told; call again to wait them.

        Args:
            deadline: the loop's time at which the whole answer must be there.

        Raises:
            ModelError: that would be longer than is waited; says how long.
        """
        loop = self._loop
        while wait := self._limiter.turn(self, deadline - loop.time()):
            sleep_s, expected_s = wait
            self._began = self._began or loop.time()
            if loop.time() + expected_s > self._told_until:
                self._told_until = loop.time() + expected_s + 1
                return expected_s
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(loop.time() + sleep_s, deadline)):
                    await self._woken.wait()
        self.waited_s = loop.time() - self._began if self._began else 0.0
        return None

    def learn(
        self, status: int, headers: Mapping[str, str], retry_after_s: float | None = None
    ) -> None:
        """Take what the answer to this request says about limits."""
        self.answered = True
        self._limiter.learn(status, headers, retry_after_s, place=self)

    def wake(self) -> bool:
        """Look again whether it is this request's turn; False when its loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            return False
        return True


def _need(name: str, tokens: int) -> int:
    return tokens if "tokens" in name else 1


def _too_long(wait_s: float) -> ModelError:
    within = f"in {wait_s:,.0f} s" if wait_s < math.inf else "no more"
    return ModelError(
        "too many requests for the provider: it said that it takes this one only"
        f" {within}, which is longer than is waited here. Try again later.",
        code="LLM_RATE_LIMITED",
        retry_after_s=wait_s,
    )


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return max(0.0, value) if math.isfinite(value) else None


_limiters: dict[tuple[str, str], Limiter] = {}
_lock = threading.Lock()
