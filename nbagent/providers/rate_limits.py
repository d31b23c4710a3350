"""Rate limits that runs share: when a request may be sent, and the wait before a retry.

There is one limiter for each server and key. It learns from rate-limit headers (OpenAI, Azure,
Groq, Anthropic, OpenRouter) and from status 429, and lets requests go in order. It sends nothing
and retries nothing. Each attempt has a `RequestSlot`: acquire it, send, update the limiter.

A single request is sent at once, even if the server asked for a long wait: a person retried on
purpose. If others wait too, a wait over MAX_WAIT_S is LLM_RATE_LIMITED at once.
`ModelError.retryable` says if a retry makes sense at all.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from nbagent.contracts.canonical import sha256_hex
from nbagent.contracts.errors import ModelError
from nbagent.contracts.secrets import SecretKey
from nbagent.providers.wait_times import parse_number, parse_reset_s

MAX_WAIT_S = 60.0
"""Longest wait for a server. Longer waits are an error: a person decides then."""
_FIRST_WAIT_S = 0.5
_MAX_BACKOFF_S = 8.0
_MIN_NOTICE_S = 0.1  # Shorter waits get no notice.
_POLL_S = 0.05  # While waiting, check this often if an answer changed the limits.
_MIN_SLEEP_S = 0.01
_PAUSE_S = 1.0  # After a 429 without a wait, if other requests are in flight.
_MIN_GAP_S = 0.001  # Shorter gaps are not exported.
_RATE_AFTER_REFUSAL = 0.8  # Share of the rate that the server accepted before it refused.
_RATE_DOUBLES_IN_S = 30.0  # The rate grows while nothing is refused.
_MAX_SENT_TIMES = 512
_WINDOW = "x-ratelimit-{}"
_PATTERNS = (
    *(_WINDOW, "x-ratelimit-{}-requests", "x-ratelimit-{}-tokens"),
    *(f"anthropic-ratelimit-{kind}-{{}}" for kind in ("requests", "tokens", "input-tokens")),
)


def backoff_s(error: ModelError, attempt: int, retries: int) -> float | None:
    """Seconds to wait after this many failed attempts; None if the error is final.

    Without a wait from the server: 0.5 s, doubled each time, at most 8 s, minus up to a quarter at
    random, as in OpenAI's and Anthropic's clients. The random part spreads runs that failed
    together.
    """
    if not error.retryable or attempt > retries:
        return None
    wait = error.retry_after_s
    if wait is None:
        wait = min(_FIRST_WAIT_S * 2 ** (attempt - 1), _MAX_BACKOFF_S)
        wait *= 1 - 0.25 * random.random()
    return wait if wait <= MAX_WAIT_S else None


@dataclass(slots=True)
class _Budget:
    """One limit as the server last reported it, minus what was sent since then."""

    limit: float
    left: float
    per_s: float  # Refill rate; 0 for a window, which is full again when it ends.
    seen_at: float
    full_at: float

    def wait_s(self, need: float, now: float) -> float:
        missing = min(need, self.limit) - self.left - self.per_s * (now - self.seen_at)
        if missing <= 0 or now >= self.full_at:
            return 0.0
        wait = missing / self.per_s if self.per_s else self.full_at - now
        # Send it if the wait is longer: the server's refusal names the exact time.
        return wait if wait <= MAX_WAIT_S else 0.0


class RateSnapshot(NamedTuple):
    """Limits of one server as one process learnt them, for another process."""

    blocked_s: float
    """Seconds during which the server accepts no request."""
    gap_s: float
    """Seconds between two requests; 0 if none are needed."""
    max_in_flight: float | None
    """Largest number of requests in flight; None for no limit."""

    def divided_by(self, processes: float) -> RateSnapshot:
        """Return the share of one process, if this many processes send requests."""
        at_once = None if self.max_in_flight is None else max(1.0, self.max_in_flight / processes)
        return RateSnapshot(self.blocked_s, self.gap_s * processes, at_once)


class Limiter:
    """Limits of one server for one key, and the requests that wait for it."""

    def __init__(self) -> None:
        self._queue: deque[RequestSlot] = deque()
        self._in_flight: set[RequestSlot] = set()  # Sent and not yet completely answered.
        self._budgets: dict[str, _Budget] = {}
        self._sent_times: deque[float] = deque(maxlen=_MAX_SENT_TIMES)  # Without refused ones.
        self._last_sent_at = self._refused_at = -math.inf
        self._blocked_until = 0.0  # Set by a refusal; nothing is sent before.
        # Measured rate at the last refusal. It paces the requests that waited: without it all of
        # them would be sent in the same moment and refused again.
        self._per_s = math.inf
        # Learnt from a 429 without a wait: some servers limit parallel requests, not their rate.
        self._max_in_flight = math.inf

    @staticmethod
    def shared(server: str, key: SecretKey | None) -> Limiter:
        """Return this process's limiter for a server and a key."""
        known = (server, sha256_hex(key.reveal()) if key else "")
        if known not in _limiters:
            _forget_unused_limiters()
            limiter = _limiters[known] = Limiter()
            if server in _imported:
                limiter.merge(_imported[server].snapshot())
        return _limiters[known]

    @property
    def in_use(self) -> bool:
        """True if a request waits for it, or is in flight."""
        return bool(self._queue or self._in_flight)

    def snapshot(self) -> RateSnapshot:
        """Return the learnt limits, for another process."""
        now = time.monotonic()
        gap_s = self._gap_s(now)
        at_once = self._max_in_flight if self._max_in_flight < math.inf else None
        return RateSnapshot(
            max(0.0, self._blocked_until - now), gap_s if gap_s > _MIN_GAP_S else 0.0, at_once
        )

    def merge(self, snapshot: RateSnapshot) -> None:
        """Merge limits that another process learnt. This never loosens a limit."""
        now = time.monotonic()
        gap_s = max(self._gap_s(now), snapshot.gap_s)
        if gap_s > self._gap_s(now) or now + snapshot.blocked_s > self._blocked_until:
            # Answers to requests sent before this moment must not lift the block (see `update`).
            self._per_s, self._refused_at = 1 / gap_s if gap_s else math.inf, now
        self._blocked_until = max(self._blocked_until, now + snapshot.blocked_s)
        if snapshot.max_in_flight is not None:
            self._max_in_flight = min(self._max_in_flight, snapshot.max_in_flight)

    def _gap_s(self, now: float) -> float:
        """Seconds between two requests; shrinks while nothing is refused."""
        return 2 ** ((self._refused_at - now) / _RATE_DOUBLES_IN_S) / self._per_s

    def required_wait_s(self, tokens: int, now: float) -> float:
        """Seconds that the server's own limits require a request of this size to wait."""
        waits = [
            budget.wait_s(_amount(name, tokens), now) for name, budget in self._budgets.items()
        ]
        return max(0.0, self._blocked_until - now, *waits)

    def try_acquire(self, slot: RequestSlot, left_s: float) -> float:
        """Take the slot and return 0.0, or return the seconds to wait. Raises ModelError."""
        now = time.monotonic()
        if slot not in self._queue:
            self._queue.append(slot)
        alone = not self._in_flight and len(self._queue) == 1
        required_s = self.required_wait_s(slot.tokens, now)
        gap_s = 0.0 if alone else self._gap_s(now)
        ahead = self._queue.index(slot)
        wait = max(required_s, self._last_sent_at + gap_s - now) + ahead * gap_s
        if len(self._in_flight) + 1 > self._max_in_flight:
            wait = max(wait, _PAUSE_S)  # A guess: the next answer ends the wait earlier.
        if required_s > MAX_WAIT_S or left_s <= required_s:
            if not alone:
                wait = required_s or wait
                within = f"only in {wait:,.0f} s" if wait < math.inf else "at no known time"
                text = (
                    "too many requests for the provider: it accepts this one"
                    f" {within}; nbagent waits at most {MAX_WAIT_S:g} s. Try again later."
                )
                raise ModelError(text, code="LLM_RATE_LIMITED", retry_after_s=wait)
            wait = 0.0  # A single request: a person retries, and the limit may be lifted.
        if wait > 0 or ahead:
            return max(wait, _MIN_SLEEP_S)
        self._queue.popleft()
        self._in_flight.add(slot)
        slot.sent_at = self._last_sent_at = now
        self._sent_times.append(now)
        for name, budget in self._budgets.items():
            budget.left -= _amount(name, slot.tokens)
        return 0.0

    def release(self, slot: RequestSlot) -> None:
        """Give the slot back, or leave the queue."""
        self._in_flight.discard(slot)
        with suppress(ValueError):
            self._queue.remove(slot)

    def update(
        self,
        slot: RequestSlot,
        status: int,
        headers: Mapping[str, str],
        wait_s: float | None = None,
    ) -> None:
        """Learn limits from the headers of an answer; header names are in lower case."""
        now, slot.answered = time.monotonic(), True
        for pattern in _PATTERNS:
            if pattern.format("remaining") not in headers:
                continue  # Most servers send few of these headers.
            values = [
                headers.get(pattern.format(field), "") for field in ("limit", "remaining", "reset")
            ]
            limit, left, reset_s = (
                parse_number(values[0]) or math.inf,
                parse_number(values[1]),
                parse_reset_s(values[2]),
            )
            if left is None or reset_s is None or not math.isfinite(left + reset_s):
                continue
            fills = pattern != _WINDOW and left < limit < math.inf and reset_s > 0
            per_s = (limit - left) / reset_s if fills else 0.0
            # The server had not counted the requests that are still in flight.
            left -= sum(
                _amount(pattern, sent.tokens) for sent in self._in_flight if not sent.answered
            )
            self._budgets[pattern] = _Budget(limit, left, per_s, now, now + reset_s)
        if status == 429 or (status in (503, 529) and wait_s):
            self._refused(slot, wait_s, now)
        elif status < 400:
            self._max_in_flight += 1 / self._max_in_flight
            if slot.sent_at > self._refused_at:
                self._blocked_until = 0.0  # It was sent after the refusal and accepted.

    def _refused(self, slot: RequestSlot, wait_s: float | None, now: float) -> None:
        with suppress(ValueError):
            self._sent_times.remove(slot.sent_at)
        if wait_s is None and len(self._in_flight) + len(self._queue) > 1:
            self._max_in_flight = min(self._max_in_flight, max(1, len(self._in_flight) - 1))
            wait_s = _PAUSE_S
        wait_s = wait_s or 0.0
        span_s = min(max(wait_s, 1.0), MAX_WAIT_S)
        taken = sum(at > now - span_s for at in self._sent_times)
        self._per_s = _RATE_AFTER_REFUSAL * max(taken, 1) / span_s
        self._refused_at = now
        self._blocked_until = max(self._blocked_until, now + wait_s)


class RequestSlot:
    """One request's position in the queue, then its slot in flight; `tokens` is an estimate."""

    def __init__(self, limiter: Limiter, tokens: int) -> None:
        self.tokens = tokens
        self.sent_at = 0.0
        self.answered = False
        self.waited_s = 0.0
        self.limiter = limiter
        self._notice_until = 0.0

    def __enter__(self) -> RequestSlot:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        refused = error if isinstance(error, ModelError) and not self.answered else None
        if refused and refused.status and refused.code != "LLM_QUOTA_EXCEEDED":
            self.limiter.update(self, refused.status, {}, refused.retry_after_s)
        self.limiter.release(self)

    async def acquire(self, deadline: float) -> float | None:
        """Wait until this request may be sent; return None then. The deadline is loop time.

        A number is a wait that is about to begin: show a notice and call again to wait.

        Raises:
            ModelError: the wait would be too long.
        """
        clock = asyncio.get_running_loop().time
        while wait_s := self.limiter.try_acquire(self, deadline - clock()):
            began = clock()
            if wait_s > _MIN_NOTICE_S and began + wait_s > self._notice_until:
                self._notice_until = began + wait_s + 1
                return wait_s
            await asyncio.sleep(min(wait_s, _POLL_S))
            self.waited_s += clock() - began
        return None


def _amount(name: str, tokens: int) -> int:
    return tokens if "tokens" in name else 1


_MAX_LIMITERS = 256
"""More come only of a function that gives another key each time."""
_limiters: dict[tuple[str, str], Limiter] = {}
_imported: dict[str, Limiter] = {}
"""Limits from other processes by server, for limiters that do not exist yet."""


def _forget_unused_limiters() -> None:
    """Make room for one more limiter: forget the oldest one that no request waits for or uses."""
    if len(_limiters) < _MAX_LIMITERS:
        return
    if (
        oldest := next((key for key, limiter in _limiters.items() if not limiter.in_use), None)
    ) is not None:
        del _limiters[oldest]


def export_limits() -> dict[str, RateSnapshot]:
    """Return the learnt limits of each server, merged over all keys."""
    known = [*((server, limiter) for (server, _), limiter in _limiters.items()), *_imported.items()]
    merged: dict[str, Limiter] = {}
    for server, limiter in known:
        merged.setdefault(server, Limiter()).merge(limiter.snapshot())
    snapshots = {server: limiter.snapshot() for server, limiter in merged.items()}
    return {
        server: snapshot for server, snapshot in snapshots.items() if snapshot != (0.0, 0.0, None)
    }


def import_limits(snapshots: Mapping[str, RateSnapshot]) -> None:
    """Merge limits that another process learnt."""
    for server, snapshot in snapshots.items():
        limiters = [limiter for (name, _), limiter in _limiters.items() if name == server]
        for limiter in (*limiters, _imported.setdefault(server, Limiter())):
            limiter.merge(snapshot)


def forget_limits() -> None:
    """Forget all limits of this process."""
    _limiters.clear()
    _imported.clear()
