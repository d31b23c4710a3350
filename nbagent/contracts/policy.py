"""Limits of a run, and the decisions about a call. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nbagent.contracts.chat import Value

Approval = Literal["allowed", "denied", "edited"]


class Limits(Value):
    """Where a run pauses or ends."""

    max_turns: int = 20
    """Turns of one run; at the limit it pauses."""
    ceiling: int = 50
    """Requests since the person's last words; there it ends."""
    loop_limit: int = 3
    """The same failing call so many times stops the run."""
    same_result_limit: int = 6
    """The same call with the same successful result so many times stops the run."""
    max_total_tokens: int | None = None
    """Tokens of one run, counted after each turn."""
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person or a policy says to one call."""

    approval: Approval = "allowed"
    by: str = ""
    """`policy`, `person`, `callback`, …; empty when nobody had to be asked."""
    reason: str = ""
    arguments: dict[str, Any] | None = None
    """The arguments to use instead, when `edited`."""
    waited_ms: float = 0.0
