"""The ports: what the engine and the session need from rooms that they do not import."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nbagent.contracts.approval import Approval, PersonAnswer, PreviewPiece
from nbagent.contracts.cancel import CancelToken
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
from nbagent.contracts.records import EngineTurn, StopReason
from nbagent.contracts.tools import PreparedCall, ToolContext


class ChatClient(Protocol):
    """Talks to one provider, the part of a model id before the colon. On the engine's loop.

    `chat` gives one whole answer, `chat_stream` chunks of which the last has `done` and `response`.
    Both raise ModelError only; being cancelled, they close the connection.
    """

    @property
    def provider(self) -> str: ...
    async def chat(
        self, request: ChatRequest, *, notify: Callable[[ClientNotice], None] | None = None
    ) -> ChatResponse: ...
    def chat_stream(self, request: ChatRequest) -> AsyncGenerator[ChatChunk]: ...
    async def list_models(self) -> list[ModelInfo]: ...
    async def close(self) -> None: ...


@runtime_checkable
class SchemaClient(Protocol):
    """A client that can say whether an answer to a request (its model and tools) fits a schema."""

    def has_schema_mode(self, request: ChatRequest) -> bool: ...


@dataclass(frozen=True, slots=True)
class Cost:
    """What one response cost, in USD, by part."""

    input_usd: float = 0.0
    """Prompt tokens that no cache had."""
    cached_usd: float = 0.0
    """Prompt tokens read from or written to the provider's cache."""
    output_usd: float = 0.0
    saved_usd: float = 0.0
    """What the cached tokens would have cost more without the cache."""

    @property
    def total_usd(self) -> float:
        return self.input_usd + self.cached_usd + self.output_usd


class ToolHost(Protocol):
    """A source that lists and runs tools. Its name stands in their traits.

    `tools` is what the model is shown now, asked before every request; raising fails the run.
    `prepare` checks a call and does nothing yet; a ToolError is the result of the call.
    """

    @property
    def name(self) -> str: ...
    async def tools(self, context: ToolContext) -> Sequence[ToolSpec]: ...
    async def prepare(self, call: ToolCall, context: ToolContext) -> PreparedCall: ...


class PatchGuard(Protocol):
    """Keeps a file that changes by checked updates only, whatever tool would change it."""

    def guards(self, path: Path) -> bool:
        """Whether this path of the host is the file, also as another file system spells it."""
        ...

    def change(
        self,
        before: bytes | None,
        update: Mapping[str, Any] | None,
        path_exists: Callable[[str], bool],
    ) -> tuple[bytes, dict[str, Any]]:
        """What an update makes of the file, and what the result says of it beside.

        `update` is None for any other change. ToolError: it is refused.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person or a policy says to one call."""

    prepared: PreparedCall
    """The call that runs when it is allowed."""
    approval: Approval = "allowed"
    decided_by: str = ""
    """`person`, `callback`, `session`, `policy`, `nobody`; empty when nobody had to be asked."""
    reason: str = ""
    arguments: dict[str, Any] | None = None
    """Those that a person gave instead, also where they are denied or fit nothing."""
    waited_ms: float = 0.0


class Approver(Protocol):
    """Allows, denies or changes a call before it runs; emits ApprovalRequested when it asks.

    A ToolError says that the call could not be prepared again.
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
    """What a composer adds to the next request."""

    system_prompt: str
    new_messages: tuple[Message, ...] = ()
    """Directives and briefs; they enter the history and stay."""
    node: str | None = None
    agent: str | None = None
    output_schema: dict[str, Any] | None = None
    """What the answer has to fit, where the provider sees to that."""


@dataclass(frozen=True, slots=True)
class TurnDecision:
    """What a composer says after an answer, or after a turn whose calls were answered."""

    stop_reason: StopReason | None = None
    """The run is complete, for this reason."""
    call_was_answer: bool = False
    """One of the calls was the answer: the run ends as after an answer."""
    new_messages: tuple[Message, ...] = ()
    """After an answer: when there are some, the run goes on with them."""
    error: ErrorInfo | None = None
    """The answer cannot be used: the run fails, after `new_messages` were said."""
    notices: tuple[str, ...] = ()
    """What the person should know of the run now."""


class Composer(Protocol):
    """Knows what stands around the person's words: the base, and a workflow's directives.

    It is asked before each request, and after an answer or a turn whose calls were answered.
    """

    async def before_turn(self, tools: Sequence[ToolSpec]) -> Composition: ...
    async def after_turn(self, turn: EngineTurn) -> TurnDecision: ...


class EventPort(Protocol):
    """Where the engine's events go, on its loop: in passing, or onto the disk.

    When `commit` returns, the event is on disk; with a StoreError the run ends here.
    """

    def emit(self, event: Event) -> None: ...
    async def commit(self, event: Event) -> None: ...


class Sink(Protocol):
    """Takes the events of one run, on the engine thread, and does not block. Raising detaches it.

    One in which a person may answer questions, by `RunControls.answer`, has a true `can_answer`;
    it may become true while a run goes on. It is closed when the run is over or it was detached.
    """

    @property
    def name(self) -> str: ...
    def handle(self, event: Event) -> None: ...
    def close(self) -> None: ...


ShowPieces = Callable[[str, Sequence[PreviewPiece]], object]
"""Takes `why` and `pieces` of a question."""


class RunControls(Protocol):
    """What a view may do to a run, in any thread: stop it at once or pause it after the turn.

    `answer` answers the question about a call, `preview` shows what the call would do with edited
    arguments (`show` is called on the engine's loop); False when it is not asked (any more).
    """

    def stop(self, *, after_turn: bool = False) -> None: ...
    def answer(self, tool_call_id: str, answer: PersonAnswer) -> bool: ...
    def preview(
        self, tool_call_id: str, arguments: Mapping[str, Any], show: ShowPieces
    ) -> bool: ...
