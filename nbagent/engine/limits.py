"""Where a run pauses or ends: turns, the ceiling of requests, tokens and money."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nbagent.contracts.chat import ChatRequest, Usage
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

    def price(self, usage: Usage, model: str) -> Cost | None:
        """What a response cost; a price list that fails is an unknown price."""
        try:
            return self.plan.price(usage, model)
        except Exception:
            return None

    def over_budget(self, request: ChatRequest) -> End | None:
        """The pause before a request that would exceed a budget."""
        limits = self.plan.run.limits
        if limits.max_total_tokens is None and limits.max_cost_usd is None:
            return None
        known = self._last.prompt_tokens + self._last.completion_tokens if self._last else 0
        prompt_tokens = max(known, request_chars(request) // CHARS_PER_TOKEN)
        answer: int = self.plan.params.get("max_tokens") or 0
        tokens = self.tokens + prompt_tokens + answer
        usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=answer)
        cost = self.price(usage, self.plan.model)
        usd = self.cost_usd + (cost.total_usd if cost else 0.0)
        if limits.max_total_tokens is not None and tokens > limits.max_total_tokens:
            over = f"{tokens:,} tokens, the budget is {limits.max_total_tokens:,}"
        elif limits.max_cost_usd is not None and usd > limits.max_cost_usd:
            over = f"${usd:.4f}, the budget is ${limits.max_cost_usd:.4f}"
        else:
            return None
        text = f"the next request would make it about {over}; raise it to go on, or {RESUME}"
        return End("WaitingUser", "budget", ErrorInfo("ENGINE_BUDGET", text))

    def after_calls(self) -> End:
        """Where the run stands after a turn whose calls were answered."""
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
            return End("WaitingUser", "max_turns", ErrorInfo("ENGINE_MAX_TURNS", text, details))
        return End()
