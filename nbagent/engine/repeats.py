"""Loop detection: counts equal calls of one run and says when it goes in circles."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.policy import Limits
from nbagent.contracts.records import ToolResult

_PAIRS = 4
"""So many A-B pairs in a row are a loop."""


def call_key(name: str, args: dict[str, Any] | None, raw: str) -> str:
    """Equal for equal calls: the name and the canonical arguments."""
    shown = canonical_json(args).decode() if args is not None else raw
    return f"{name}({shown})"


@dataclass(slots=True)
class _Same:
    result: bytes = b""
    times: int = 0


class Repeats:
    """What one run has called so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._made: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._same: dict[str, _Same] = {}
        self._recent: deque[str] = deque(maxlen=2 * _PAIRS)
        self.loop: str | None = None
        """Why the run goes in circles; None while it does not."""

    def begin(self, key: str) -> int:
        """Count a call; returns how many times it was made now."""
        self._made[key] += 1
        return self._made[key]

    def end(self, key: str, result: ToolResult) -> ToolResult:
        """Take a call's result; returns it, with a warning to the model where one is due."""
        self._recent.append(key)
        if result.ok:
            self._failed[key] = 0
            self._count_same(key, result)
        elif result.error and result.error.code not in ("E_INTERRUPTED", "E_DENIED"):
            result = self._count_failure(key, result, result.error)
        self._look_for_pairs()
        return result

    def _count_failure(self, key: str, result: ToolResult, error: ErrorInfo) -> ToolResult:
        self._failed[key] += 1
        times = self._failed[key]
        if times >= self._limits.loop_limit:
            self.loop = self.loop or f"{_short(key)} failed {times} times in the same way"
        if times < 2:
            return result
        warning = (
            f"This same call failed {times} times. Do not repeat it: "
            "change the arguments, use another tool, or answer with what you know."
        )
        details = {**error.details, "warning": warning}
        return result.model_copy(update={"error": ErrorInfo(error.code, error.message, details)})

    def _count_same(self, key: str, result: ToolResult) -> None:
        same = self._same.setdefault(key, _Same())
        encoded = result.to_json()
        same.times = same.times + 1 if same.result == encoded else 1
        same.result = encoded
        if same.times >= self._limits.same_result_limit:
            self.loop = self.loop or f"{_short(key)} gave the same result {same.times} times"

    def _look_for_pairs(self) -> None:
        recent = list(self._recent)
        if len(recent) < 2 * _PAIRS or recent[0] == recent[1]:
            return
        if set(recent[0::2]) == {recent[0]} and set(recent[1::2]) == {recent[1]}:
            pair = f"{_short(recent[0])} and {_short(recent[1])}"
            self.loop = self.loop or f"{pair} take turns, {_PAIRS} times in a row"


def _short(key: str) -> str:
    return key if len(key) <= 80 else f"{key[:79]}…"
