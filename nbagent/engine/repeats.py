"""Loop detection: counts equal calls of one run and says when it goes in circles."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.policy import Limits
from nbagent.contracts.records import ToolResult, ToolRun

_PAIRS = 4
"""So many A-B pairs in a row are a loop."""


def _key(name: str, args: dict[str, Any] | None, raw: str) -> str:
    """Equal for equal calls: the name and the canonical arguments."""
    return f"{name}({raw if args is None else canonical_json(args).decode()})"


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
        self._denied: set[str] = set()
        self._same: dict[str, _Same] = {}
        self._recent: deque[str] = deque(maxlen=2 * _PAIRS)
        self.loop: str | None = None
        """Why the run goes in circles; None while it does not."""

    def begin(self, call: ToolCall) -> int:
        """Count a call; returns how many times it was made now."""
        key = _key(call.name, call.arguments, call.arguments_raw)
        self._made[key] += 1
        return self._made[key]

    def denied_often(self, call: ToolCall) -> bool:
        """Whether asking about this call once more would be the same question too often."""
        key = _key(call.name, call.arguments, call.arguments_raw)
        return key in self._denied and self._failed[key] >= self._limits.loop_limit - 1

    def judged(self, run: ToolRun, raw: str = "") -> ToolRun:
        """A run that ended, with a warning to the model in its result where one is due."""
        assert run.result is not None
        key = _key(run.tool_name, run.asked_args or run.args, raw)
        self._recent.append(key)
        error, result = run.result.error, run.result
        if result.ok:
            self._failed[key] = 0
            self._count_same(key, result)
        elif error is not None and error.code != "E_INTERRUPTED":
            if error.code == "E_DENIED":
                self._denied.add(key)
            result = self._count_failure(key, result, error)
        self._look_for_pairs()
        return run if result is run.result else run.model_copy(update={"result": result})

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
