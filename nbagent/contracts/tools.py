"""The interface of tool hosts: the context of a call, the prepared call, its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from nbagent.contracts.approval import CallPreview
from nbagent.contracts.messages import ImagePart
from nbagent.contracts.model import (
    ToolSpec,
)
from nbagent.contracts.records import RanIn, ToolResult


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
