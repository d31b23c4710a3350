"""Where a run pauses or ends: circles, turns, the ceiling of requests, tokens and money."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from nbagent.contracts.canonical import canonical_json
from nbagent.contracts.chat import ChatRequest, ToolCall, Usage
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.policy import Limits
from nbagent.contracts.ports import Cost
from nbagent.contracts.records import EngineTurn, Phase, StopReason, ToolResult, ToolRun
from nbagent.engine.overflow import CHARS_PER_TOKEN, request_chars
from nbagent.engine.plan import EnginePlan

RESUME = "%agent resume goes on"
_PAIRS = 4
"""So many A-B pairs in a row are a loop."""


@dataclass(frozen=True, slots=True)
class End:
    """Where the run stands after a turn."""

    phase: Phase = "Running"
    stop_reason: StopReason | None = None
    error: ErrorInfo | None = None


def price(plan: EnginePlan, usage: Usage, model: str) -> Cost | None:
    """What a response cost; a price list that fails is an unknown price."""
    try:
        return plan.price(usage, model)
    except Exception:
        return None


def over_budget(
    plan: EnginePlan, turns: Sequence[EngineTurn], request: ChatRequest
) -> ErrorInfo | None:
    """Why a request waits for the person: it would exceed a budget of the run."""
    limits = plan.run.limits
    if limits.max_total_tokens is None and limits.max_cost_usd is None:
        return None
    usages = [turn.response.usage for turn in turns if turn.response and turn.response.usage]
    known = usages[-1].prompt_tokens + usages[-1].completion_tokens if usages else 0
    prompt_tokens = max(known, request_chars(request) // CHARS_PER_TOKEN)
    answer: int = plan.params.get("max_tokens") or 0
    tokens = sum(usage.total_tokens for usage in usages) + prompt_tokens + answer
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=answer)
    cost = price(plan, usage, plan.model)
    usd = sum(turn.cost_usd or 0.0 for turn in turns) + (cost.total_usd if cost else 0.0)
    if limits.max_total_tokens is not None and tokens > limits.max_total_tokens:
        over = f"{tokens:,} tokens, the budget is {limits.max_total_tokens:,}"
    elif limits.max_cost_usd is not None and usd > limits.max_cost_usd:
        over = f"${usd:.4f}, the budget is ${limits.max_cost_usd:.4f}"
    else:
        return None
    text = f"the next request would make it about {over}; raise it to go on, or {RESUME}"
    return ErrorInfo("ENGINE_BUDGET", text)


def after_calls(plan: EnginePlan, made: int) -> End:
    """Where the run stands after its turn number `made`, whose calls were answered."""
    limits, requests = plan.run.limits, plan.requests_before + made
    if requests >= limits.ceiling:
        text = f"{requests} requests since your last words; say what to do next to go on"
        error = ErrorInfo("ENGINE_MAX_TURNS", text, {"ceiling": limits.ceiling})
        return End("Failed", "max_turns", error)
    if made >= limits.max_turns:
        turns = f"{made} turn{'s' * (made != 1)}"
        text = f"paused after {turns} (max_turns); nothing is lost, {RESUME}"
        error = ErrorInfo("ENGINE_MAX_TURNS", text, {"max_turns": limits.max_turns})
        return End("WaitingUser", "max_turns", error)
    return End()


def _key(call: ToolCall) -> str:
    """Equal for equal calls: the name and the canonical arguments."""
    if call.arguments is None:
        return f"{call.name}({call.arguments_raw})"
    return f"{call.name}({canonical_json(call.arguments).decode()})"


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
