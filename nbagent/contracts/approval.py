"""A question about one tool call, its preview, and the person's answer. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nbagent.contracts.errors import UsageError
from nbagent.contracts.policy import Ruling

Approval = Literal["allowed", "denied", "edited"]


@dataclass(frozen=True, slots=True)
class PreviewPiece:
    """One thing that a person should see before deciding. Shown whole, never cut."""

    label: str
    text: str
    kind: Literal["text", "diff", "code"] = "text"
    replaced_arguments: tuple[str, ...] = ()
    """Arguments that it holds; they are not shown beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPreview:
    """What a tool host says about a call before it runs."""

    ruling: Ruling = "allow"
    """What happens where no policy speaks of it."""
    minimum: bool = False
    """True: `ruling` is the least; a policy may be stricter and not looser."""
    why: str = ""
    """One line: what the call would do."""
    pieces: tuple[PreviewPiece, ...] = ()
    approval_key: str = ""
    """Hash of what an approval binds to beside definition and arguments: a script's bytes, the
    state of the file that is written."""
    session_scope: Literal["this call", "every call", "none"] = "this call"
    """What an approval for the session covers; of every call those with the same `binds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is asked about one call: the view, `input()` and `on_approval` are given it."""

    run_id: str
    turn_id: str
    tool_call_id: str
    tool: str
    host: str
    arguments: dict[str, Any]
    why: str
    """What the call would do, and the rule that asks, when one does; may be empty."""
    pieces: tuple[PreviewPiece, ...] = ()
    scope: str = ""
    """What "for this session" would cover: this very call, or every call of the tool; empty where
    it cannot be allowed for the session."""
    display_name: str = ""
    """What cards call the tool; empty: its name."""
    summary: str = ""
    """First line of the tool's documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAnswer:
    """What a person says to a question."""

    choice: Literal["once", "session", "deny"]
    reason: str = ""
    """With `deny`: what the model gets to know of it."""
    arguments: Mapping[str, Any] | None = None
    """Run it with these arguments instead."""

    def __post_init__(self) -> None:
        if self.choice not in ("once", "session", "deny"):
            raise UsageError(
                f"choice={self.choice!r} is no answer; write 'once', 'session' or 'deny'"
            )
