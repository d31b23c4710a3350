"""A batch of runs as it stands: how far it is, what it cost, what failed.

What a batch is is in `lab`; which of its runs are shown a click decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from nbagent.view.node import Node, h

BatchState = Literal["Ready", "Running", "Paused", "Stopped", "Finished"]
"""`Ready`: not begun. `Paused` and `Stopped` ended before all cases were done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCase:
    """A case of a batch without an answer."""

    run_id: str
    """Empty where no run could start."""
    row_key: str
    variant: str
    """The labels of its axes, such as `v1 · openai:gpt-5.4`."""
    why: str
    """The code and the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSummary:
    """What is known of the cases of one variant."""

    variant: str
    total: int
    ok: int
    failed: int
    cost_usd: float | None
    scores: dict[str, float]
    """Means, by scorer."""
    run_ids: tuple[str, ...]
    """The first ones, to be opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """A batch at one moment. Counts are of cases: rows × variants × repeats."""

    name: str
    state: BatchState
    why: str
    """Why it ended before all cases were done, as a sentence; else empty."""
    total: int
    reused: int
    """Done in an earlier go."""
    ok: int
    """With an answer, the reused ones included."""
    failed: int
    """Ended without an answer."""
    at_work: int
    cost_usd: float | None
    """Of all of its runs; None where no price is known."""
    judge_cost_usd: float
    elapsed_s: float
    per_s: float
    """Cases a second in this go."""
    left_s: float | None
    """Estimated; None where nothing is known yet, or nothing is left."""
    started_at: datetime
    failures: tuple[FailedCase, ...]
    """The first ones."""
    variants: tuple[VariantSummary, ...]


def batch_text(progress: BatchProgress) -> str:
    """How far it is, in a line."""
    done = progress.ok + progress.failed
    return f"{progress.name}: {done} of {progress.total}, {progress.state}"


def batch_node(progress: BatchProgress, *, kernel: str = "", buttons: bool = False) -> Node:
    """The same as a picture."""
    return h("div", "", batch_text(progress), data_kernel=kernel or None)
