"""Detects loops: repeated failures, repeated results, two calls that alternate.

Owns the warning to the model before a run is paused.
"""

from __future__ import annotations

from collections import Counter, deque

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.limits import Limits
from nbagent.contracts.messages import ToolCall
from nbagent.contracts.records import ToolResult, ToolRun

_MAX_PAIRS = 4
"""Number of A-B pairs in a row that is a loop."""


def _key(call: ToolCall) -> str:
    """Make a key that is equal for equal calls: name and canonical arguments."""
    if call.arguments is None:
        return f"{call.name}({call.arguments_raw})"
    return f"{call.name}({canonical_json(call.arguments).decode()})"


class RepeatDetector:
    """Counts the calls of one run and their results."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._call_counts: Counter[str] = Counter()
        self._failure_counts: Counter[str] = Counter()
        self._denied: set[str] = set()
        self._last_results: dict[str, tuple[bytes, int]] = {}
        """Last result of each call, and its number of repetitions in a row."""
        self._recent: deque[str] = deque(maxlen=2 * _MAX_PAIRS)
        self.loop_reason: str | None = None
        """Description of the loop; None if there is none."""

    def count_call(self, call: ToolCall) -> int:
        """Count a call; return its count so far."""
        key = _key(call)
        self._call_counts[key] += 1
        return self._call_counts[key]

    def was_denied_repeatedly(self, call: ToolCall) -> bool:
        """True if a call was denied too often to ask the person again.

        One below the limit of failures: the refusal without a question is the failure that
        reaches the limit.
        """
        # Most runs deny nothing: they need not encode the arguments.
        key = _key(call) if self._denied else ""
        return (
            key in self._denied
            and self._failure_counts[key] >= self._limits.max_repeated_failures - 1
        )

    def with_loop_warning(self, call: ToolCall, run: ToolRun) -> ToolRun:
        """Record the result of a call; return its run, with a warning to the model if needed."""
        assert run.result is not None
        key = _key(call)
        self._recent.append(key)
        error = run.result.error
        if run.result.ok:
            self._failure_counts[key] = 0
            self._count_result(key, run.result)
        # An interrupted call was stopped by the person, so it says nothing about the model.
        elif error is not None and error.code != "E_INTERRUPTED":
            run = self._count_failure(key, run, error)
        self._detect_alternation()
        return run

    def _count_failure(self, key: str, run: ToolRun, error: ErrorInfo) -> ToolRun:
        self._failure_counts[key] += 1
        times = self._failure_counts[key]
        if error.code == "E_DENIED":
            self._denied.add(key)
        if times >= self._limits.max_repeated_failures:
            limit = "the limit (max_repeated_failures=… raises it)"
            self._stop_for(f"{_shorten(key)} failed {times} times in the same way, {limit}")
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
        if times >= self._limits.max_repeated_results:
            limit = "the limit (max_repeated_results=… raises it)"
            self._stop_for(f"{_shorten(key)} gave the same result {times} times, {limit}")

    def _stop_for(self, reason: str) -> None:
        self.loop_reason = self.loop_reason or reason

    def _detect_alternation(self) -> None:
        recent = list(self._recent)
        # Equal calls in a row are no pair; they are counted by their results.
        if len(recent) < 2 * _MAX_PAIRS or recent[0] == recent[1]:
            return
        if recent[2:] == recent[:-2]:
            pair = f"{_shorten(recent[0])} and {_shorten(recent[1])}"
            self._stop_for(f"{pair} take turns, {_MAX_PAIRS} times in a row, the fixed limit")


def _shorten(key: str) -> str:
    return key if len(key) <= 80 else f"{key[:79]}…"
