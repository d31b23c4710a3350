"""Stop points set by limits: turns, requests, tokens, money. Loops are in `loop_detection`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.model import ChatRequest, Usage
from nbagent.contracts.ports import Cost
from nbagent.contracts.records import EngineTurn, Phase
from nbagent.contracts.stop_reasons import StopReason
from nbagent.engine.overflow import CHARS_PER_TOKEN, request_chars
from nbagent.engine.plan import EnginePlan

RESUME_HINT = "%agent resume continues"


@dataclass(frozen=True, slots=True)
class StopState:
    """Phase of a run after a turn, with the reason if it stopped."""

    phase: Phase = "Running"
    stop_reason: StopReason | None = None
    error: ErrorInfo | None = None


def price(plan: EnginePlan, usage: Usage, model: str) -> Cost | None:
    """Compute the cost of a response; None if unknown, also if the price list raises."""
    try:
        return plan.price(usage, model)
    except Exception:  # a faulty price list must not lose an answer
        return None


def over_budget(
    plan: EnginePlan, turns: Sequence[EngineTurn], request: ChatRequest
) -> ErrorInfo | None:
    """Explain why a request must not be sent: it would exceed a budget. None if it may be sent."""
    limits = plan.run.limits
    if limits.max_total_tokens is None and limits.max_cost_usd is None:
        return None
    usages = [turn.response.usage for turn in turns if turn.response and turn.response.usage]
    known = usages[-1].prompt_tokens + usages[-1].completion_tokens if usages else 0
    # The next prompt contains at least the last prompt and answer; the estimate by characters adds
    # new messages, and is all there is before the first turn.
    prompt_tokens = max(known, request_chars(request) // CHARS_PER_TOKEN, 1)
    # The length of the answer is unknown; only an explicit maximum can be counted.
    answer: int = plan.params.get("max_tokens") or 0
    tokens = sum(usage.total_tokens for usage in usages) + prompt_tokens + answer
    usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=answer)
    cost = price(plan, usage, plan.model)
    usd = sum(turn.cost_usd or 0.0 for turn in turns) + (cost.total_usd if cost else 0.0)
    if limits.max_total_tokens is not None and tokens > limits.max_total_tokens:
        excess, name = f"{tokens:,} tokens", "max_total_tokens"
        limit = f"{limits.max_total_tokens:,}"
    elif limits.max_cost_usd is not None and usd > limits.max_cost_usd:
        excess, name = f"${usd:.4f}", "max_cost_usd"
        limit = f"${limits.max_cost_usd:.4f}"
    else:
        return None
    text = f"the next request would make it about {excess}, over the limit of {limit} ({name}); "
    if limits.max_cost_usd == 0 and name == "max_cost_usd":
        text = f"the limit of $0 ({name}) allows no request; "
    text += f"raise the limit with {name}=…, then {RESUME_HINT}"
    return ErrorInfo("ENGINE_BUDGET", text)


def state_after_calls(plan: EnginePlan, n_turns: int) -> StopState:
    """Decide how the run continues after `n_turns` turns, if the calls of the last are answered."""
    limits, requests = plan.run.limits, plan.requests_before + n_turns
    # Before max_turns: at this limit a resume without a prompt is refused, so it is no pause.
    if requests >= limits.max_requests:
        text = f"{requests} requests since your last prompt, the limit (max_requests); say what to "
        text += "do next to continue, or raise the limit with max_requests=…"
        error = ErrorInfo("ENGINE_MAX_TURNS", text, {"max_requests": limits.max_requests})
        return StopState("Failed", "max_turns", error)
    if n_turns >= limits.max_turns:
        turns = f"{n_turns} turn{'s' * (n_turns != 1)}"
        text = f"paused at the limit of {turns} (max_turns=… raises it); nothing is lost, "
        text += RESUME_HINT
        error = ErrorInfo("ENGINE_MAX_TURNS", text, {"max_turns": limits.max_turns})
        return StopState("WaitingUser", "max_turns", error)
    return StopState()
