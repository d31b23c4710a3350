"""The tree of errors, and every code that a run, a tool result or a cell can show.

NbagentError            everything nbagent raises; carries `code`, `message`, `details`
├── ModelError          a provider failed: LLM_* and UNKNOWN
├── EngineError         the loop ended a run: ENGINE_*
├── ToolError           a tool call failed: E_*
├── UsageError          the person asked for something that cannot be done as written
└── StoreError          the store cannot be opened, read or written

A constructor has no side effects and redacts every known secret in its text, because errors are
quoted in outputs, logs and records. `ErrorInfo` is the frozen form for records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from nbagent.contracts.hidden_characters import visible
from nbagent.contracts.nearest import nearest_name
from nbagent.contracts.secrets import redact, redact_json, redact_truncated, register_environment

ModelCode = Literal[
    "LLM_AUTH_FAILED",
    "LLM_TIMEOUT",
    "LLM_RATE_LIMITED",
    "LLM_QUOTA_EXCEEDED",
    "LLM_CONTEXT_OVERFLOW",
    "LLM_HTTP_ERROR",
    "LLM_BAD_RESPONSE",
    "UNKNOWN",
]
EngineCode = Literal[
    "ENGINE_ABORTED",
    "ENGINE_INTERRUPTED",
    "ENGINE_LOOP_DETECTED",
    "ENGINE_MAX_TURNS",
    "ENGINE_BUDGET",
]
ToolCode = Literal[
    "ENOENT",
    "E_SANDBOX_VIOLATION",
    "E_READ_LIMIT",
    "E_WRITE_LIMIT",
    "E_INVALID_FRONTMATTER",
    "E_SCHEMA_VALIDATION",
    "E_INVALID_TRANSITION",
    "E_PRECONDITION_FAILED",
    "E_UNKNOWN_TOOL",
    "E_INVALID_ARGUMENTS",
    "E_DENIED",
    "E_TIMEOUT",
    "E_TOOL_FAILED",
    "E_INTERRUPTED",
    "E_INTERNAL",
]
ModelErrorKind = Literal[
    "", "content_filter", "unreadable_call", "missing_calls", "nothing_readable"
]
"""Kinds of errors that a client handles by itself: a filter stopped the answer, the server could
not read a call that the model wrote, an answer announces calls and has none, or is paid and holds
nothing."""
ErrorCode = Literal[ModelCode, EngineCode, ToolCode]
_MAX_FOREIGN_CHARS = 4_000
"""Longest message that is taken over from a foreign exception."""
CODES: frozenset[str] = frozenset(get_args(ErrorCode))


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An error as data, for records and tool results."""

    code: ErrorCode
    message: str
    details: dict[str, Any] = field(default_factory=dict[str, Any])
    """JSON values only."""

    def __str__(self) -> str:
        return f"{self.code}: {visible(self.message)}"


class NbagentError(Exception):
    """Base of all errors that nbagent raises.

    The message says what happened and ends with what to do about it.
    """

    code: ErrorCode = "UNKNOWN"

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        # A key that the message quotes may have been put into the environment a moment ago.
        register_environment()
        self.message = redact(message)
        super().__init__(self.message)
        self.details: dict[str, Any] = redact_json(details or {})
        if code is not None:
            self.code = code

    @property
    def info(self) -> ErrorInfo:
        """The frozen form of this error."""
        return ErrorInfo(self.code, self.message, self.details)

    def __str__(self) -> str:
        return f"{self.code}: {visible(self.message)}"

    def _render_traceback_(self) -> list[str]:
        # IPython shows these lines in place of a traceback; the output is still an error.
        return [str(self)]


class ModelError(NbagentError):
    """A provider failed.

    Attributes:
        status: HTTP status, where there was one.
        retry_after_s: how long the server asked to wait, in seconds.
        request_id: the provider's id of the request, for its support.
        retryable: True if the same request may succeed a moment later.
        server_text: the provider's own message; may be empty.
        kind: kind of an error that the client handles by itself; empty for all others.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        details: dict[str, Any] | None = None,
        status: int | None = None,
        retry_after_s: float | None = None,
        request_id: str | None = None,
        retryable: bool = False,
        server_text: str = "",
        kind: ModelErrorKind = "",
    ) -> None:
        super().__init__(message, code=code, details=details)
        self.kind: ModelErrorKind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        self.request_id = request_id
        self.retryable = retryable
        self.server_text = redact(server_text)


class EngineError(NbagentError):
    """The loop ended a run before the model answered."""

    code: ErrorCode = "ENGINE_ABORTED"


class ToolError(NbagentError):
    """A tool call failed. Raise it in a tool to choose the code that the model sees."""

    code: ErrorCode = "E_TOOL_FAILED"


class UsageError(NbagentError):
    """The person's input cannot be executed as written; nothing was started."""

    code: ErrorCode = "E_INVALID_ARGUMENTS"

    def __str__(self) -> str:
        # A person named a run: the code of a file that does not exist would come as a surprise.
        return (
            f"{visible(self.message)} ({self.code})" if self.code == "ENOENT" else super().__str__()
        )


class StoreError(NbagentError):
    """The store of runs cannot be opened, read or written."""

    code: ErrorCode = "E_PRECONDITION_FAILED"


def error_from_info(info: ErrorInfo) -> NbagentError:
    """Rebuild the exception of the right class from its frozen form."""
    kinds = ((EngineCode, EngineError), (ToolCode, ToolError))
    kind = next((kind for codes, kind in kinds if info.code in get_args(codes)), ModelError)
    return kind(info.message, code=info.code, details=info.details)


def unknown_argument(where: str, names: Iterable[str], known: Iterable[str]) -> UsageError:
    """Make the error about arguments that a callable does not have, with the nearest names."""
    known = list(known)
    texts: list[str] = []
    is_unlike_all = False
    for name in names:
        near = nearest_name(name, known)
        is_unlike_all |= near is None
        texts.append(f"{name!r} (write {near})" if near else repr(name))
    all_names = f"; it takes {', '.join(known)}" if is_unlike_all else ""
    return UsageError(f"{where} has no argument {', '.join(texts)}{all_names}")


def describe_error(error: BaseException) -> str:
    """Format any exception as `Type: message`, truncated; only the type if its `str` fails."""
    if isinstance(error, OSError) and error.filename is not None:
        # Without the path: the model and exported records must not learn paths of this machine.
        return f"{type(error).__name__}: {error.strerror}"
    try:
        return redact_truncated(f"{type(error).__name__}: {str(error)[:_MAX_FOREIGN_CHARS]}")
    except BaseException:
        return type(error).__name__
