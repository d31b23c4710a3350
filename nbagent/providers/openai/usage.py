"""How a Chat Completions answer ended and what it used: finish reasons and token counts.

Maps only; which of them an answer gets in the end is decided in `answer`.
"""

from __future__ import annotations

from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import FinishReason, Usage

_FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "error": "error",
    "insufficient_system_resource": "error",
    "network_error": "error",
    # Gateways that pass on what the model behind them said.
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos_token": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "prohibited_content": "content_filter",
    "abort": "error",
    "malformed_function_call": "error",
}
_RANKS: dict[FinishReason, int] = {"length": 1, "content_filter": 2, "error": 3}
_MOST_TOKENS = 2**53
"""Of one count: no model has read so much, a broken counter says nothing, also of the price."""


def known_finish(text: str) -> FinishReason | None:
    """The finish reason that a server's word stands for; None for an unknown word."""
    return _FINISH.get(text) or _FINISH.get(text.lower())


def stronger_finish(before: str | None, word: str) -> str:
    """The word that counts when a server says more than one.

    That an answer was cut, filtered or failed is not taken back: its calls are not run.
    """
    if before is None:
        return word
    ranks = [_RANKS.get(known_finish(said) or "stop", 0) for said in (before, word)]
    return before if ranks[0] > ranks[1] else word


def usage_of(value: Any) -> Usage | None:
    """The tokens of a `usage` object; None when there is none."""
    usage = json_object(value)
    if usage is None:
        return None
    prompt, completion = _tokens(usage, "prompt_tokens"), _tokens(usage, "completion_tokens")
    total = _tokens(usage, "total_tokens")
    prompt_details = json_object(usage.get("prompt_tokens_details")) or {}
    completion_details = json_object(usage.get("completion_tokens_details")) or {}
    reasoning = _tokens(completion_details, "reasoning_tokens")
    if reasoning and (reasoning > completion or total == prompt + completion + reasoning):
        # xAI and some gateways count the reasoning beside the completion, not within it.
        completion += reasoning
    cached = (
        _tokens(prompt_details, "cached_tokens")
        or _tokens(usage, "prompt_cache_hit_tokens")  # DeepSeek
        or _tokens(usage, "cached_tokens")  # Moonshot
    )
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=total or prompt + completion,
        # More cached than read would be an error of the price list.
        cached_tokens=min(cached, prompt),
        reasoning_tokens=reasoning,
    )


def _tokens(holder: dict[str, Any], name: str) -> int:
    value = holder.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return int(value) if 0 <= value <= _MOST_TOKENS else 0
