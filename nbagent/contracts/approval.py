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
    """A text that a person should read before deciding. It is shown whole, never cut."""

    label: str
    text: str
    kind: Literal["text", "diff", "code"] = "text"
    replaced_arguments: tuple[str, ...] = ()
    """Names of the arguments whose content this text shows; they are not shown a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPreview:
    """A tool host's description of a call that has not run yet."""

    ruling: Ruling = "allow"
    """Applied if no rule of a policy matches the call."""
    minimum: bool = False
    """True: a policy may be stricter than `ruling`, not looser."""
    why: str = ""
    """One line: what the call would do."""
    pieces: tuple[PreviewPiece, ...] = ()
    approval_key: str = ""
    """Hash of further inputs that an approval is valid for, beside the tool's definition and the
    arguments: a script's bytes, the state of the file that is written."""
    session_scope: Literal["this call", "this file", "every call", "none"] = "this call"
    """Calls that an approval for the session covers. `every call` means every call of the tool
    with the same `approval_key`; `this file`, every call of the tool that changes that file,
    whatever its content is by then."""
    session_file: str = ""
    """With `this file`: its path, as a person reads it."""
    session_key: str = ""
    """With `this file`: the identity of the file, independent of its content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about one call. The view, `input()` and `on_approval` receive it."""

    run_id: str
    turn_id: str
    tool_call_id: str
    tool: str
    host: str
    arguments: dict[str, Any]
    why: str
    """What the call would do, and the rule that asks if there is one; may be empty."""
    pieces: tuple[PreviewPiece, ...] = ()
    scope: str = ""
    """Calls that "for this session" would cover: this exact call, every call of the tool for this
    file, or every call of the tool; empty if the call cannot be allowed for the session."""
    display_name: str = ""
    """Name of the tool on cards; empty: `tool`."""
    summary: str = ""
    """First line of the tool's documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonAnswer:
    """A person's answer to a question."""

    choice: Literal["once", "session", "deny"]
    reason: str = ""
    """With `deny`: sent to the model."""
    arguments: Mapping[str, Any] | None = None
    """Run the call with these arguments instead."""

    def __post_init__(self) -> None:
        if self.choice not in ("once", "session", "deny"):
            raise UsageError(
                f"choice={self.choice!r} is not an answer; write 'once', 'session' or 'deny'"
            )
