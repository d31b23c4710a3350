"""Detects loops: repeated failures, repeated results, two calls that alternate."""

from __future__ import annotations

from collections import Counter, deque

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.limits import Limits
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.records import ToolResult, ToolRun

_MAX_PAIRS = 4
"""So many A-B pairs in a row are a loop."""


def _key(call: ToolCall) -> str:
    """Equal for equal calls: the name and the canonical arguments."""
    if call.arguments is None:
        return f"{call.name}({call.arguments_raw})"
    return f"{call.name}({canonical_json(call.arguments).decode()})"


class RepeatDetector:
    """What one run has called so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._call_counts: Counter[str] = Counter()
        self._failure_counts: Counter[str] = Counter()
        self._denied: set[str] = set()
        self._last_results: dict[str, tuple[bytes, int]] = {}
        """The last result of a call, and how often it came in a row."""
        self._recent: deque[str] = deque(maxlen=2 * _MAX_PAIRS)
        self.loop_reason: str | None = None
        """Why the run goes in circles; None while it does not."""

    def count_call(self, call: ToolCall) -> int:
        """Count a call; returns how many times it was made now."""
        key = _key(call)
        self._call_counts[key] += 1
        return self._call_counts[key]

    def was_denied_repeatedly(self, call: ToolCall) -> bool:
        """Whether asking about this call once more would be the same question too often."""
        key = _key(call) if self._denied else ""
        return key in self._denied and self._failure_counts[key] >= self._limits.loop_limit - 1

    def with_loop_warning(self, call: ToolCall, run: ToolRun) -> ToolRun:
        """The run of a call that ended, with a warning to the model where one is due."""
        assert run.result is not None
        key = _key(call)
        self._recent.append(key)
        error = run.result.error
        if run.result.ok:
            self._failure_counts[key] = 0
            self._count_result(key, run.result)
        elif error is not None and error.code != "E_INTERRUPTED":
            run = self._count_failure(key, run, error)
        self._detect_alternation()
        return run

    def _count_failure(self, key: str, run: ToolRun, error: ErrorInfo) -> ToolRun:
        self._failure_counts[key] += 1
        times = self._failure_counts[key]
        if error.code == "E_DENIED":
            self._denied.add(key)
        if times >= self._limits.loop_limit:
            self.loop_reason = self.loop_reason or f"{_shorten(key)} failed {times} times in the same way"
        if times < 2:
            return run
        warning = (
            f"This same call failed {times} times. Do not repeat it: "
            "change the arguments, use another tool, or answer with what you know."
        )
        details = {**error.details, "warning": warning}
        warned = ErrorInfo(error.code, error.message, details)
        result = run.result and run.result.model_copy(update={"error": warned})
        return run.model_copy(update={"result": result})

    def _count_result(self, key: str, result: ToolResult) -> None:
        encoded = result.to_json()
        last, times = self._last_results.get(key, (b"", 0))
        times = times + 1 if last == encoded else 1
        self._last_results[key] = encoded, times
        if times >= self._limits.same_result_limit:
            self.loop_reason = self.loop_reason or f"{_shorten(key)} gave the same result {times} times"

    def _detect_alternation(self) -> None:
        recent = list(self._recent)
        if len(recent) < 2 * _MAX_PAIRS or recent[0] == recent[1]:
            return
        if recent[2:] == recent[:-2]:
            pair = f"{_shorten(recent[0])} and {_shorten(recent[1])}"
            self.loop_reason = self.loop_reason or f"{pair} take turns, {_MAX_PAIRS} times in a row"


def _shorten(key: str) -> str:
    return key if len(key) <= 80 else f"{key[:79]}…"
