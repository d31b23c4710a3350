"""Reasons why a run stopped. Their texts for people are in `view/run_status`."""

from __future__ import annotations

from typing import Literal

# A new reason needs a text in `view/run_status`. Stored runs have the old ones, so all must stay.
StopReason = Literal[
    # The model answered. The phase is WaitingUser: the conversation can be continued.
    "answered",
    # The document of a workflow says that its last step is done.
    "workflow_complete",
    # max_turns (the run waits and can be resumed) or max_requests (it failed).
    "max_turns",
    # The same call failed, or gave the same result, too often.
    "loop_detected",
    # The run's tokens or dollars are used up.
    "budget",
    # The answer was cut at its limit of tokens, or the context is full.
    "length",
    # The provider kept the answer back, or a part of it.
    "content_filter",
    # A person pressed Stop, or a program called `stop()`.
    "stopped",
    # A model, a server or a tool's host failed; `RunRecord.error` has the code.
    "error",
]
