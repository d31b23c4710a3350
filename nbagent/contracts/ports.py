"""The ports: what the engine and the session need from rooms that they do not import."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from nbagent.contracts.cancel import CancelToken
from nbagent.contracts.chat import (
    ChatChunk,
    ChatRequest,
    ChatResponse,
    ClientNotice,
    ImagePart,
    Message,
    ModelInfo,
    ToolCall,
    ToolSpec,
)
from nbagent.contracts.errors import ErrorInfo
from nbagent.contracts.events import Event
from nbagent.contracts.policy import Approval, CallPreview, PersonAnswer, PreviewPiece
from nbagent.contracts.records import EngineTurn, RanIn, StopReason, ToolResult


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


class CallRunner(Protocol):
    """Calls a function in a thread, or awaits a coroutine function on a loop.

    In the thread that waits for the run calls go in order; nothing can interrupt a worker thread.
    Where no loop runs in the thread that waits, the notebook's is that of the tools.

    What the work raises, this raises. Cancelling the task that awaits this drops work that has not
    begun and interrupts what has (KeyboardInterrupt or CancelledError inside), unless it is not
    `interruptible`. Over its time, which counts from its begin, it is interrupted as well, and this
    raises TimeoutError unless it still returns a value. Work that does not heed its interrupt is
    left behind after 0.2 s. An interrupt of the person within the work is a CancelledError here.
    """

    async def run(
        self,
        work: Callable[[], Any],
        *,
        where: RanIn,
        interruptible: bool = True,
        timeout_s: float | None = None,
        label: str = "",
    ) -> tuple[Any, RanIn]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeOutcome:
    """What came of a piece of code that ran in the notebook."""

    value: Any = None
    """Of the last expression."""
    stdout: str = ""
    stderr: str = ""
    displays: tuple[Mapping[str, Any], ...] = ()
    """What was displayed, each as its forms by media type."""
    error: BaseException | None = None
    """What it raised; its traceback begins in the code itself."""


class RunCode(Protocol):
    """Runs plain Python, without magics, where a person's own cells run: in this thread.

    Code that awaits something gives what the notebook's loop runs. What it prints and displays is
    shown in the cell too, of stdout and of stderr `keep_bytes`. An interrupt comes out; whatever
    else it raises is in the outcome.
    """

    def __call__(
        self, code: str, *, keep_bytes: int
    ) -> CodeOutcome | Coroutine[Any, Any, CodeOutcome]: ...


@dataclass(slots=True)
class CallOutput:
    """What a tool printed and displayed for the person so far: one that is stopped, too."""

    read: Callable[[], tuple[str, tuple[ImagePart, ...]]] = lambda: ("", ())
    """The text and the pictures; set by what captures them."""


class Capture(Protocol):
    """Keeps what is printed and displayed in this thread out of the cell: it goes to the call.

    `output` reads it from then on; `say` is given what makes the last line. It gives a function
    that is told the value of the tool: a figure that it returns is not shown twice.
    """

    def __call__(
        self, output: CallOutput, say: Callable[[Callable[[], str]], object]
    ) -> AbstractContextManager[Callable[[Any], object]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool host is told about the run that a call belongs to."""

    run_id: str
    session: str
    turn_id: str = ""
    tool_call_id: str = ""
    runner: CallRunner
    namespace: Callable[[], Mapping[str, Any]] = dict[str, Any]
    """The names of the notebook, where there is one."""
    run_code: RunCode | None = None
    """None where there is no notebook."""
    capture: Capture | None = None
    """None where what a tool prints stays where it was printed."""
    output: CallOutput = field(default_factory=CallOutput)
    progress: Callable[[str, float | None], None] = lambda text, fraction: None
    waiting: Callable[[str], None] = lambda text: None
    """Says what the run waits for before its tools can be listed; no text: no longer."""
    approved: bool = False
    """Whether somebody decided about the call: it must do then what was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A call that was checked once and can run. `ToolHost.prepare` makes it."""

    spec: ToolSpec
    arguments: dict[str, Any]
    """The checked arguments, as JSON values: what rules judge, people see and records keep."""
    preview: CallPreview = field(default_factory=CallPreview)
    run: Callable[[ToolContext], Awaitable[ToolOutcome]]
    """Runs it: closes over the tool, the values, and what was looked at. Whatever goes wrong is
    in the outcome; of exceptions only CancelledError comes out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What a tool host gives back for one call."""

    result: ToolResult
    ran_in: RanIn | None = None
    started_at_ms: float | None = None
    """`monotonic_ms()` at which the tool itself began (after any queue)."""
    truncated: bool = False
    tool_sha: str = ""
    isolation: str | None = None
    """How a script was kept apart."""
    error_detail: str | None = None
    """For the person: the last frames of what the tool raised."""
    notes: tuple[str, ...] = ()


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
        is_there: Callable[[str], bool],
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
    by: str = ""
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
class Verdict:
    """What a composer says after an answer, or after a turn whose calls were answered."""

    completed: StopReason | None = None
    """The run is complete, for this reason."""
    answered: bool = False
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
    async def after_turn(self, turn: EngineTurn) -> Verdict: ...


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
