"""Calls of MCP tools that had nothing to approve, until that host prepares its calls."""

from __future__ import annotations

from nbagent.contracts.chat import ToolCall
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.policy import CallPreview
from nbagent.contracts.ports import ToolOutcome
from nbagent.contracts.records import ToolResult


class Refusals:
    """Calls that had nothing to approve because they would fail.

    Nobody was asked about such a call, so it must fail, even where what was wrong (a file that was
    not there) is put right before it runs. By the id of the call: a host serves one run.
    """

    def __init__(self) -> None:
        self._errors: dict[str, ErrorInfo] = {}

    def forget(self, call: ToolCall) -> None:
        """It is looked at anew."""
        self._errors.pop(call.id, None)

    def note(self, call: ToolCall, error: ErrorInfo) -> CallPreview:
        """The call would fail with this error; the preview that says so."""
        self._errors[call.id] = error
        return CallPreview(why=error.message)

    def take(self, call: ToolCall) -> ToolOutcome | None:
        """The outcome of a call that must not run; None for every other one."""
        error = self._errors.pop(call.id, None)
        return None if error is None else ToolOutcome(result=ToolResult.failure(error))
