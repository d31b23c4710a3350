"""Limits of a run and of a single tool call. Plain values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import Value


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """How much a single tool call may take."""

    max_read_bytes: int = 10_000_000
    """Of one file; asking for more is `E_READ_LIMIT`."""
    max_write_bytes: int = 5_000_000
    """Of one file; more is `E_WRITE_LIMIT`."""
    search_timeout_s: float = 10.0
    script_timeout_s: float = 120.0
    """The longest that a script may ask for."""
    script_memory_bytes: int = 2_000_000_000
    script_disk_bytes: int = 100 * 1024 * 1024
    """Of all that a script writes; there it is ended."""
    script_output_bytes: int = 20_000
    """Of stdout and of stderr, which a model reads whole; the rest is cut visibly."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise UsageError(f"{name}={value!r} does not fit; give a number above 0")

    def tightened(self, by: ToolLimits) -> ToolLimits:
        """The smaller of each."""
        theirs = asdict(by)
        return ToolLimits(**{name: min(mine, theirs[name]) for name, mine in asdict(self).items()})
