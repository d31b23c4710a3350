"""Loop detection: counts equal calls of one run and says when it goes in circles."""

from __future__ import annotations

from collections import Counter, deque

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.chat import ToolCall
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.policy import Limits
from nbagent.contracts.records import ToolResult, ToolRun

_PAIRS = 4
"""So many A-B pairs in a row are a loop."""


def _key(call: ToolCall) -> str:
    """Equal for equal calls: the name and the canonical arguments."""
    known = call.arguments is not None
    return (
        f"{call.name}({canonical_json(call.arguments).decode() if known else call.arguments_raw})"
    )


class Repeats:
    """What one run has called so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._made: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._denied: set[str] = set()
        self._same: dict[str, tuple[bytes, int]] = {}
        """The last result of a call, and how often it came in a row."""
        self._recent: deque[str] = deque(maxlen=2 * _PAIRS)
        self.loop: str | None = None
        """Why the run goes in circles; None while it does not."""

    def begin(self, call: ToolCall) -> int:
        """Count a call; returns how many times it was made now."""
        key = _key(call)
        self._made[key] += 1
        return self._made[key]

    def denied_often(self, call: ToolCall) -> bool:
        """Whether asking about this call once more would be the same question too often."""
        key = _key(call) if self._denied else ""
        return key in self._denied and self._failed[key] >= self._limits.loop_limit - 1

    def judged(self, call: ToolCall, run: ToolRun) -> ToolRun:
        """The run of a call that ended, with a warning to the model where one is due."""
        assert run.result is not None
        key = _key(call)
        self._recent.append(key)
        error = run.result.error
        if run.result.ok:
            self._failed[key] = 0
            self._count_same(key, run.result)
        elif error is not None and error.code != "E_INTERRUPTED":
            run = self._count_failure(key, run, error)
        self._look_for_pairs()
        return run

    def _count_failure(self, key: str, run: ToolRun, error: ErrorInfo) -> ToolRun:
        self._failed[key] += 1
        times = self._failed[key]
        if error.code == "E_DENIED":
            self._denied.add(key)
        if times >= self._limits.loop_limit:
            self.loop = self.loop or f"{_short(key)} failed {times} times in the same way"
        if times < 2:
            return run
        warning = (
            f"This same call failed {times} times. Do not repeat it: "
            "change the arguments, use another tool, or answer with what you know."
        )
        details = {**error.details, "warning": warning}
        told = ErrorInfo(error.code, error.message, details)
        result = run.result and run.result.model_copy(update={"error": told})
        return run.model_copy(update={"result": result})

    def _count_same(self, key: str, result: ToolResult) -> None:
        encoded = result.to_json()
        last, times = self._same.get(key, (b"", 0))
        times = times + 1 if last == encoded else 1
        self._same[key] = encoded, times
        if times >= self._limits.same_result_limit:
            self.loop = self.loop or f"{_short(key)} gave the same result {times} times"

    def _look_for_pairs(self) -> None:
        recent = list(self._recent)
        if len(recent) < 2 * _PAIRS or recent[0] == recent[1]:
            return
        if recent[2:] == recent[:-2]:
            pair = f"{_short(recent[0])} and {_short(recent[1])}"
            self.loop = self.loop or f"{pair} take turns, {_PAIRS} times in a row"


def _short(key: str) -> str:
    return key if len(key) <= 80 else f"{key[:79]}…"
