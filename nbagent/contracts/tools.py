"""The interface of tool hosts: the context of a call, the prepared call, its outcome.

Also the protocols by which a tool's code is run and its output captured. No implementations.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.model import ToolSpec
from nbagent.contracts.records import RanIn, ToolResult


class CallRunner(Protocol):
    """Calls a function in a thread, or awaits a coroutine function on a loop.

    In the thread that waits for the run, calls are executed in order. A worker thread cannot be
    interrupted. If no loop runs in the waiting thread, `notebook loop` means the loop of the tools.

    `run` raises what the work raises. Cancelling the task that awaits it drops work that has not
    begun, and interrupts running work (KeyboardInterrupt or CancelledError inside) if it is
    `interruptible`. At its time limit, counted from its start, the work is interrupted too, and
    `run` raises TimeoutError unless the work still returns a value. Work that ignores the interrupt
    is abandoned after 0.2 s. A person's interrupt inside the work is a CancelledError here.
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
    """Outcome of a piece of code that ran in the notebook."""

    value: Any = None
    """Value of the last expression."""
    stdout: str = ""
    stderr: str = ""
    displays: tuple[Mapping[str, Any], ...] = ()
    """Displayed objects, each as a mapping from media type to data."""
    error: BaseException | None = None
    """Error that the code raised; its traceback begins in the code itself."""


class RunCode(Protocol):
    """Runs plain Python, without magics, as a person's own cells run: in this thread.

    Code with `await` returns a coroutine for the notebook's loop. Output is also shown in the
    cell; the outcome has the first `keep_bytes` of stdout and of stderr. A KeyboardInterrupt is
    raised; any other error is in the outcome.
    """

    def __call__(
        self, code: str, *, keep_bytes: int
    ) -> CodeOutcome | Coroutine[Any, Any, CodeOutcome]: ...


@dataclass(slots=True)
class CallOutput:
    """Output that a tool printed and displayed for the person, also if it was stopped."""

    read: Callable[[], tuple[str, tuple[ImagePart, ...]]] = lambda: ("", ())
    """Returns text and images so far; set by the capture."""


class Capture(Protocol):
    """Captures what this thread prints and displays, for the call instead of the cell.

    `output.read` is set. `say` receives a function that makes the last line of the output. The
    context manager gives a function to call with the tool's value: a figure that a tool returns is
    then not shown a second time.
    """

    def __call__(
        self, output: CallOutput, say: Callable[[Callable[[], str]], object]
    ) -> AbstractContextManager[Callable[[Any], object]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """The run that a call belongs to, as a tool host sees it."""

    run_id: str
    session: str
    turn_id: str = ""
    tool_call_id: str = ""
    runner: CallRunner
    namespace: Callable[[], Mapping[str, Any]] = dict[str, Any]
    """Variables of the notebook, if there is one."""
    folders: Mapping[str, str] = field(default_factory=dict[str, str])
    """Folders of this machine, each with the name of its mount, for texts that a model reads."""
    run_code: RunCode | None = None
    """None if there is no notebook."""
    capture: Capture | None = None
    """None if a tool's output is not captured."""
    output: CallOutput = field(default_factory=CallOutput)
    progress: Callable[[str, float | None], None] = lambda text, fraction: None
    waiting: Callable[[str], None] = lambda text: None
    """Shows what the run waits for before it can list its tools; an empty text ends the wait."""
    approved: bool = False
    """True if a person or a rule decided about the call: it must then do exactly what was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCall:
    """A checked call that can run. Made by `ToolHost.prepare`."""

    spec: ToolSpec
    arguments: dict[str, Any]
    """Checked arguments as JSON values, for rules, people and records."""
    preview: CallPreview = field(default_factory=CallPreview)
    run: Callable[[ToolContext], Awaitable[ToolOutcome]]
    """Runs the call. Its closure holds the tool, the values and the state that was previewed.
    Errors are in the outcome; the only exception it raises is CancelledError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """Outcome of one call, as a tool host returns it."""

    result: ToolResult
    ran_in: RanIn | None = None
    started_at_ms: float | None = None
    """`monotonic_ms()` when the tool itself started, after any queue."""
    truncated: bool = False
    tool_sha: str = ""
    isolation: str | None = None
    """Isolation of a script."""
    error_detail: str | None = None
    """For the person: the last frames of the tool's traceback."""
    notes: tuple[str, ...] = ()
