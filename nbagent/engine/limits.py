"""Where a run pauses or ends: turns, the ceiling of requests, tokens and money."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from nbagent.contracts.chat import ChatRequest, ChatResponse, Usage
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.ports import Cost
from nbagent.contracts.records import EngineTurn, Phase, StopReason
from nbagent.engine.overflow import CHARS_PER_TOKEN, request_chars
from nbagent.engine.plan import EnginePlan

RESUME = "%agent resume goes on"


@dataclass(frozen=True, slots=True)
class End:
    """Where the run stands after a turn."""

    phase: Phase = "Running"
    stop_reason: StopReason | None = None
    error: ErrorInfo | None = None


@dataclass(slots=True)
class Spent:
    """What the limits look at, kept over the turns of a run."""

    plan: EnginePlan
    turns: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    _last: Usage | None = field(default=None, init=False)

    def add(self, turn: EngineTurn) -> None:
        """A turn is over."""
        self.turns += 1
        self.cost_usd += turn.cost_usd or 0.0
        self._last = turn.response.usage if turn.response else None
        self.tokens += self._last.total_tokens if self._last else 0

    def estimate(self, request: ChatRequest) -> int:
        """Tokens of a request's prompt: at least the one before it and its answer, where known."""
        known = self._last.prompt_tokens + self._last.completion_tokens if self._last else 0
        return max(known, request_chars(request) // CHARS_PER_TOKEN)

    def over_budget(self, estimate: Callable[[], int]) -> End | None:
        """The pause before a request of about so many tokens that would exceed a budget."""
        limits = self.plan.run.limits
        if limits.max_total_tokens is None and limits.max_cost_usd is None:
            return None
        prompt_tokens = estimate()
        answer: int = self.plan.params.get("max_tokens") or 0
        tokens = self.tokens + prompt_tokens + answer
        over = ""
        if limits.max_total_tokens is not None and tokens > limits.max_total_tokens:
            over = (
                f"{self.tokens:,} tokens used, the next request would make it about {tokens:,}, "
                f"the budget is {limits.max_total_tokens:,}"
            )
        elif limits.max_cost_usd is not None:
            usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=answer)
            cost = self.price(usage, self.plan.model)
            next_usd = self.cost_usd + (cost.total_usd if cost else 0.0)
            if next_usd > limits.max_cost_usd:
                over = (
                    f"${self.cost_usd:.4f} spent, the next request would make it about "
                    f"${next_usd:.4f}, the budget is ${limits.max_cost_usd:.4f}"
                )
        if not over:
            return None
        return _paused("budget", "ENGINE_BUDGET", f"{over}; raise it to go on, or {RESUME}")

    def price(self, usage: Usage, model: str) -> Cost | None:
        """What a response cost; a price list that fails is an unknown price."""
        try:
            return self.plan.price(usage, model)
        except Exception:
            return None

    def after_calls(self, response: ChatResponse | None, result_chars: int) -> End:
        """Where the run stands after a turn whose calls were answered with so many characters."""
        limits, made = self.plan.run.limits, self.turns + 1
        requests = self.plan.requests_before + made
        if requests >= limits.ceiling:
            text = f"{requests} requests since your last words; say what to do next to go on"
            details: dict[str, Any] = {"ceiling": limits.ceiling}
            return End("Failed", "max_turns", ErrorInfo("ENGINE_MAX_TURNS", text, details))
        if made >= limits.max_turns:
            turns = f"{made} turn{'s' * (made != 1)}"
            text = f"paused after {turns} (max_turns); nothing is lost, {RESUME}"
            details = {"max_turns": limits.max_turns}
            return _paused("max_turns", "ENGINE_MAX_TURNS", text, details)
        usage = response.usage if response else None
        if usage is None or (limits.max_total_tokens is None and limits.max_cost_usd is None):
            return End()
        cost = self.price(usage, self.plan.model)
        here = Spent(
            self.plan,
            tokens=self.tokens + usage.total_tokens,
            cost_usd=self.cost_usd + (cost.total_usd if cost else 0.0),
        )
        prompt = usage.prompt_tokens + usage.completion_tokens + result_chars // CHARS_PER_TOKEN
        return here.over_budget(lambda: prompt) or End()


def _paused(
    reason: StopReason,
    code: Literal["ENGINE_BUDGET", "ENGINE_MAX_TURNS"],
    text: str,
    details: dict[str, Any] | None = None,
) -> End:
    return End("WaitingUser", reason, ErrorInfo(code, text, details or {}))
