"""Limits of a run and of a single tool call. Plain values."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from nbagent.contracts.errors import UsageError
from nbagent.contracts.messages import Value


class Limits(Value):
    """Limits at which a run pauses or ends."""

    max_turns: int = 20
    """Turns of one run. At the limit it pauses and can be resumed."""
    max_requests: int = 50
    """Requests since the person's last prompt. At the limit the run ends."""
    max_repeated_failures: int = 3
    """Number of identical failing calls that pauses the run."""
    max_repeated_results: int = 6
    """Number of identical calls with the same successful result that pauses the run. Higher than
    for failures: polling is legitimate."""
    max_total_tokens: int | None = None
    """Tokens of one run. A request that would probably exceed them is not sent."""
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLimits:
    """Limits of a single tool call."""

    max_read_bytes: int = 10_000_000
    """Largest file to read; a larger one gives `E_READ_LIMIT`."""
    max_write_bytes: int = 5_000_000
    """Largest file to write; a larger one gives `E_WRITE_LIMIT`."""
    search_timeout_s: float = 10.0
    script_timeout_s: float = 120.0
    """Longest time limit that a script may ask for."""
    script_memory_bytes: int = 2_000_000_000
    script_disk_bytes: int = 100 * 1024 * 1024
    """Size of all files that a script writes. At the limit the script is killed."""
    script_output_bytes: int = 20_000
    """Size of stdout and of stderr, each. The rest is cut, with a mark: a model reads all of it."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise UsageError(f"{name}={value!r} is not valid; give a number above 0")

    def tightened(self, by: ToolLimits) -> ToolLimits:
        """Take the smaller value of each limit."""
        theirs = asdict(by)
        return ToolLimits(**{name: min(mine, theirs[name]) for name, mine in asdict(self).items()})
