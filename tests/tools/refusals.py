"""The error of a call that did not go well."""

from __future__ import annotations

from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.ports import ToolOutcome


def refused(outcome: ToolOutcome) -> ErrorInfo:
    """What the model is told; fails where the call went well."""
    error = outcome.result.error
    assert error is not None, outcome.result
    return error
