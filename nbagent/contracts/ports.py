"""Ports: protocols that the engine and the session use and other packages implement.

They let the engine import contracts only, so that it runs the same in tests and batches.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nbagent.contracts.approval import Approval, PersonAnswer, PreviewPiece, Question
from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.deltas import Delta
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.events import Event
from nbagent.contracts.messages import Message, ToolCall
from nbagent.contracts.model import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ModelInfo,
    ToolSpec,
)
from nbagent.contracts.records import EngineTurn, RunOrigin, RunRecord, RunSummary
from nbagent.contracts.stop_reasons import StopReason
from nbagent.contracts.tools import PreparedCall, ToolContext


class ChatClient(Protocol):
    """Sends requests to one provider (the start of a model id), on the engine's loop.

    `send` yields the deltas of one answer, the last of them an `AnswerEnd` or a `WholeAnswer`. It
    raises ModelError only. If it is cancelled, it closes the connection. `chat` and `chat_stream`
    are made of it: inherit them from `chat_doors.ChatDoors`.
    """

    @property
    def provider(self) -> str: ...
    def send(self, request: ChatRequest, *, stream: bool) -> AsyncGenerator[Delta]:
        """Send one request. Without `stream` the server sends its answer whole."""
        ...

    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse: ...
    def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]: ...
    async def list_models(self) -> list[ModelInfo]: ...
    async def close(self) -> None: ...


@runtime_checkable
class SchemaClient(Protocol):
    """A client that knows if its provider can enforce a schema for the answer to a request."""

    def has_schema_mode(self, request: ChatRequest) -> bool: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one response in USD, by part."""

    input_usd: float = 0.0
    """Prompt tokens that were not cached."""
    cached_usd: float = 0.0
    """Prompt tokens read from or written to the provider's cache."""
    output_usd: float = 0.0
    saved_usd: float = 0.0
    """Additional cost of the cached tokens if there had been no cache."""

    @property
    def total_usd(self) -> float:
        return self.input_usd + self.cached_usd + self.output_usd


class ToolHost(Protocol):
    """A source that lists and runs tools. Its name is in the traits of its tools.

    `tools` lists the tools for the next request; it is called before every request, and an
    exception fails the run. `prepare` checks a call without any effect; a ToolError becomes the
    result of the call.
    """

    @property
    def name(self) -> str: ...
    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]: ...
    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall: ...


class PatchGuard(Protocol):
    """Protects a file: only checked updates may change it, whichever tool writes."""

    def guards(self, path: Path) -> bool:
        """True if this path is the file, also in the spelling of another file system."""
        ...

    def change(
        self,
        before: bytes | None,
        update: Mapping[str, Any] | None,
        path_exists: Callable[[str], bool],
    ) -> tuple[bytes, dict[str, Any]]:
        """Apply an update; return the new bytes and further data for the result.

        Args:
            before: the file's bytes; None if it does not exist.
            update: None for any other kind of change.
            path_exists: True for a path (with its mount) that exists.

        Raises:
            ToolError: the change is refused.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Decision of a person or a policy about one call."""

    prepared: PreparedCall
    """The call to run if it is allowed."""
    approval: Approval = "allowed"
    decided_by: str = ""
    """`person`, `callback`, `session`, `policy`, `nobody`; empty if no decision was needed."""
    reason: str = ""
    arguments: dict[str, Any] | None = None
    """Arguments that a person gave instead, even if these are denied or not valid."""
    waited_ms: float = 0.0


class Approver(Protocol):
    """Allows, denies or changes a call before it runs. Emits ApprovalRequested if it asks.

    Raises ToolError if a changed call could not be prepared again.
    """

    async def review(
        self,
        call: ToolCall,
        prepared: PreparedCall,
        context: ToolContext,
        cancel: CancelToken,
        emit: Callable[[Event], None],
    ) -> Decision: ...


@dataclass(frozen=True, slots=True)
class Composition:
    """A composer's part of the next request."""

    system_prompt: str
    new_messages: tuple[Message, ...] = ()
    """Directives and briefs; they become part of the history."""
    node: str | None = None
    agent: str | None = None
    output_schema: dict[str, Any] | None = None
    """JSON schema of the answer, if the provider can enforce it."""


@dataclass(frozen=True, slots=True)
class TurnDecision:
    """A composer's decision after an answer, or after a turn whose calls were answered."""

    stop_reason: StopReason | None = None
    """Not None: the run is complete, for this reason."""
    call_was_answer: bool = False
    """One of the calls was the answer: the run ends as after an answer."""
    new_messages: tuple[Message, ...] = ()
    """After an answer: if there are any, the run continues with them."""
    error: ErrorInfo | None = None
    """The answer cannot be used: `new_messages` are added, then the run fails."""
    notices: tuple[str, ...] = ()
    """Texts for the person."""


class Composer(Protocol):
    """Adds system prompt and messages around the person's prompt: the base, or a workflow's.

    One object with two methods, not a list of hooks: a workflow must see the state before and
    after a turn together to decide how the run continues. `before_turn` is called before each
    request, `after_turn` after an answer or a turn whose calls were answered.
    """

    async def before_turn(self, tools: Sequence[ToolSpec]) -> Composition: ...
    async def after_turn(self, turn: EngineTurn) -> TurnDecision: ...


class RunStore(Protocol):
    """Stores runs: commits their events, and reads their records and conversations.

    When `commit` returns, the data of the event is on disk; StoreError if it cannot be. References
    and ids that are unknown raise UsageError.
    """

    @property
    def path(self) -> Path | None:
        """The file; None for a store in memory."""
        ...

    @property
    def warning(self) -> str | None:
        """Reason why runs are not saved to disk; None if they are."""
        ...

    def on_warning(self, callback: Callable[[str], None]) -> None:
        """Call a function with the warning if the file can no longer be written."""
        ...

    async def commit(self, event: Event, on_wait: Callable[[], None] = ...) -> None:
        """Store an event; `on_wait` is called once if another process makes it wait."""
        ...

    def heartbeat(self) -> bool:
        """Show that this process is alive; False if it has to be called again soon."""
        ...

    def abandon(self, run_id: str) -> None:
        """Give up a run that this process cannot finish."""
        ...

    def load(self, run_id: str) -> RunRecord: ...
    def is_foreign(self, run_id: str) -> bool:
        """True if another owner may have made the run."""
        ...

    def runs(
        self, *, limit: int = 20, workflow: str | None = None, document: str | None = None
    ) -> list[RunSummary]:
        """Summarize the newest runs (of a workflow, for a document), newest first."""
        ...

    def find(self, ref: str) -> str:
        """Find a run's id by `last`, a name, or the start of an id."""
        ...

    def last_run(self, session: str | None = None) -> str | None:
        """Id of the run that started last, in a session or anywhere."""
        ...

    def run_origins(
        self,
        *,
        notebook: str | None = None,
        kernel_id: str | None = None,
        cell_ids: Collection[str] = (),
        run_ids: Collection[str] = (),
    ) -> list[RunOrigin]:
        """The newest runs of a notebook, a kernel or cells, or with these ids; newest first.

        Runs of batches are left out.
        """
        ...

    def conversation(self, run_id: str) -> tuple[Message, ...]:
        """All messages up to the end of a run, with those of the runs that it continues."""
        ...

    def conversation_with_turns(self, run_id: str) -> tuple[tuple[Message, str], ...]:
        """The conversation, each message with the id of the turn that added it ('' for none)."""
        ...

    def requests_since_user_message(self, run_id: str) -> int: ...


class EventPort(Protocol):
    """Receives the engine's events, on its loop.

    `emit` does not wait. When `commit` returns, the event is on disk; a StoreError ends the run.
    """

    def emit(self, event: Event) -> None: ...
    async def commit(self, event: Event) -> None: ...


class Sink(Protocol):
    """Receives the events of one run, on the engine thread; must not block.

    A sink that raises is detached, and the run continues. A sink in which a person can answer
    questions (by `RunControls.answer`) has an attribute `can_answer` that is true; it may become
    true during a run. `close` is called when the run is over or the sink was detached.
    """

    @property
    def name(self) -> str: ...
    def handle(self, event: Event) -> None: ...
    def close(self) -> None: ...


ShowPieces = Callable[[str, Sequence[PreviewPiece]], object]
"""Called with `why` and `pieces` of a question."""


class RunControls(Protocol):
    """Actions of a view on a run, callable in any thread.

    `stop` stops at once, or pauses after the turn. `answer` answers the question about a call, or
    only the one given in `question`. `preview` shows what the call would do with edited arguments
    (`show` is called on the engine's loop). `answer` and `preview` return False if there is no such
    question (any more); `answered` then tells why: how it was answered, or that there is none.
    """

    def stop(self, *, after_turn: bool = False) -> None: ...
    def answer(
        self, tool_call_id: str, answer: PersonAnswer, *, question: Question | None = None
    ) -> bool: ...
    def answered(self, tool_call_id: str) -> str: ...
    def preview(
        self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces
    ) -> bool: ...
