"""The port to the user's process: views, the notebook's names, the waiting thread.

`Frontend` is the one of a script; IPython's is in the package `notebook`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from nbagent.contracts.approval import PersonAnswer, Question
from nbagent.contracts.case_results import CaseResult
from nbagent.contracts.events import Event, Notice, RunStarted
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord, ScoreRecord
from nbagent.contracts.tools import Capture, RunCode
from nbagent.runtime import Pump, RunTask
from nbagent.settings.installed import installed_entry_points
from nbagent.settings.options import RunOptions
from nbagent.view.advice import without_magics
from nbagent.view.node import Node

if TYPE_CHECKING:
    from nbagent.view.batch import BatchProgress

InputPrompt = Callable[[Question], PersonAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The cell that started a run, as far as the front end tells."""

    cell_id: str | None = None
    execution_count: int | None = None
    notebook: str | None = None
    """Path that the notebook's file had when the kernel process was started."""
    kernel_id: str | None = None
    """Id of the kernel on its Jupyter server; a restart keeps it."""
    file_id: str | None = None
    """Identity of the notebook's file; a rename keeps it."""


class RunList(Protocol):
    """Runs in a table or a tree."""

    def node(self, kernel: str = "") -> Node:
        """The list as a node; `kernel` names the output that its buttons belong to."""
        ...


class CaseSource(Protocol):
    """Cases of a batch, for a page over all of them. Any thread."""

    @property
    def name(self) -> str:
        """Name of the batch."""
        ...

    @property
    def options(self) -> Mapping[str, Any]:
        """`label`, `scale`, `by` and `is_blind` of `view.case_columns.CaseColumns`."""
        ...

    @property
    def score_names(self) -> Sequence[str]:
        """Names of the scores that may come while it works."""
        ...

    @property
    def state(self) -> str:
        """State of the batch in a word, such as `Running`; empty if it has ended."""
        ...

    def results(self) -> Sequence[CaseResult]:
        """Return the present cases, always as many and in the same order."""
        ...

    def record(self, run_id: str) -> RunRecord:
        """Load a run."""
        ...

    def label(self, run_id: str, value: float | bool, reason: str | None) -> ScoreRecord:
        """Store a person's label of a run."""
        ...

    def watch(self, on_change: Callable[[], object]) -> None:
        """Call `on_change` after cases have changed. Any thread; it must not block."""
        ...


class BatchControls(Protocol):
    """Actions of a batch's buttons. Any thread."""

    def stop(self, *, after_rows: bool = False) -> None:
        """Stop at once; with `after_rows` after the running cases have ended."""
        ...

    def notebook_record(self) -> Mapping[str, Any]:
        """Return the form in which a saved notebook holds the batch as it is now."""
        ...

    def case_source(self) -> CaseSource:
        """Return its cases for a page over all of them."""
        ...


class BatchView(Protocol):
    """Shows a running batch."""

    @property
    def only_while_waited(self) -> bool:
        """True if drawn only during `wait()`: a terminal line would disturb typing."""
        ...

    @property
    def saves_record(self) -> bool:
        """True if the final state is saved with `BatchControls.notebook_record`."""
        ...

    def update(self, progress: BatchProgress) -> None:
        """Show the progress. On the engine thread, a few times a second."""
        ...

    def close(self, progress: BatchProgress) -> None:
        """Show the final state, in the form that is saved. Once, on the engine thread."""
        ...


class PersonReview(Protocol):
    """A review: a person labels answers without seeing their variants. Any thread."""

    title: str
    position: int
    """Number of the case that is shown, from 1."""
    total: int
    scale: int
    """The best label, up to 5; the worst is 1."""

    def shown(self) -> tuple[tuple[str, str], ...]:
        """Headings and texts of the current case, the answer last; empty at the end."""
        ...

    def label(self, value: int, reason: str | None = None) -> None:
        """Store the label of the current case and show the next."""
        ...

    def skip(self) -> None:
        """Show the next case without a label for this one."""
        ...

    def back(self) -> None:
        """Show the previous case, to label it again."""
        ...


class Frontend:
    """The frontend of a script: plain lines if wanted, and questions if somebody can type."""

    wait_reason = "a free thread: run.wait() runs it here"
    """Shown as the reason why a tool waits if nobody waits for its run."""

    def namespace(self) -> Mapping[str, Any]:
        """The names a person can use; its `@nbagent.tool` functions are offered by default."""
        return {}

    def run_code(self) -> RunCode | None:
        """Runs Python in the notebook; None where there is none."""
        return None

    def capture(self, options: RunOptions) -> Capture | None:
        """Captures the printed text and displays of tools for their cards; None without cards."""
        return None

    def cell(self) -> Cell:
        """The cell that runs now."""
        return Cell()

    def execution_id(self) -> str | None:
        """Id of this execution of a cell."""
        return None

    def input_prompt(self) -> InputPrompt | None:
        """Function that asks by `input()` in the waiting thread; None if nobody can type."""
        stdin: Any = sys.stdin
        if not _is_terminal(stdin):
            return None
        # Late, here and below: a script that shows nothing needs none of it.
        from nbagent.view.question import ask_by_input

        return ask_by_input

    def pump(self) -> Pump | None:
        """Delivers the front end's messages while the main thread waits."""
        return None

    def serve_when_idle(self, courier: RunTask) -> None:
        """Let an idle kernel run the synchronous tools of a run that nobody waits for."""

    def bind_variable(self, handle: object, name: str = "_run") -> None:
        """Put the last handle into a variable: `_run`, or `_batch`."""

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        """Open a view of a new run, in the thread that starts it; None if no view is wanted."""
        if options.quiet:
            return None
        if options.echo is None and _is_terminal(sys.stdout):
            return CallLines(self.input_prompt() is not None, self.advise)
        return self.printer() if options.echo else NoticePrinter(self.advise)

    def advise(self, text: str) -> str:
        """Change an advice to what a person can do here: a script has no magics."""
        return without_magics(text)

    def open_batch(self, progress: BatchProgress, controls: BatchControls) -> BatchView | None:
        """Open a view of a new batch, in the thread that starts it; None if no view is wanted."""
        stderr: Any = sys.stderr
        if stderr is None or stderr.closed:
            return None
        from nbagent.view.terminal import BatchPrinter

        return BatchPrinter(stderr.write, is_terminal=stderr.isatty())

    def show_batch(self, progress: BatchProgress, controls: BatchControls) -> bool:
        """Show a batch that is not shown yet; False if this process shows nothing."""
        return False

    def printer(self) -> Sink:
        """Prints events as plain lines while they happen."""
        from nbagent.view.terminal import PlainPrinter

        write, asks = sys.stdout.write, self.input_prompt() is not None
        return PlainPrinter(
            write, asked_by_input=asks, renders=sys.stdout.isatty(), advise=self.advise
        )

    def show(self, run: RunRecord) -> bool:
        """Show a run that is not shown yet; False if this process shows nothing."""
        return False

    def show_list(self, runs: RunList, *, search: Callable[[str], RunList] | None = None) -> bool:
        """Show a list of runs, each to be opened below it; False if this process shows nothing.

        Args:
            runs: the list.
            search: returns the runs that contain a text.
        """
        return False

    def review(self, review: PersonReview) -> bool:
        """Let a person label answers by buttons and keys, and return at once.

        Returns:
            True if the review is shown; otherwise the caller asks by `input()`.
        """
        return False

    def show_cases(self, source: CaseSource) -> bool:
        """Show the page over all cases of a batch; False if this process shows nothing."""
        return False

    def forget(self, run_ids: tuple[str, ...]) -> None:
        """Remove deleted runs from the open views and from memory."""


class LineFrontend(Frontend):
    """Prints the events of every run as lines: for a notebook whose view is not installed."""

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        return None if options.quiet else self.printer()

    def advise(self, text: str) -> str:
        return text


class NoticePrinter:
    """Prints notices of a run to stderr if no view shows it."""

    name = "stderr"

    def __init__(self, advise: Callable[[str], str] = str) -> None:
        """Print notices as `advise` changes them."""
        self._advise = advise

    def handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            for text in event.run.notices:
                self.print_line(text)
        elif isinstance(event, Notice) and event.level != "info":
            self.print_line(event.text)

    def print_line(self, text: str) -> None:
        print(f"nbagent: {self._advise(text)}", file=sys.stderr)

    def close(self) -> None:
        """Nothing to close."""


class CallLines(NoticePrinter):
    """Prints the calls of a run to stdout while they happen, and its notices to stderr."""

    name = "calls in the terminal"

    def __init__(self, asked_by_input: bool, advise: Callable[[str], str]) -> None:
        super().__init__(advise)
        from nbagent.view.terminal import CallPrinter

        self._calls = CallPrinter(sys.stdout.write, asked_by_input=asked_by_input)

    def handle(self, event: Event) -> None:
        super().handle(event)
        self._calls.handle(event)


def _is_terminal(stream: Any) -> bool:
    """True if a person reads what is printed to a stream; Python may have none, or a closed one."""
    return stream is not None and not stream.closed and stream.isatty()


ENTRY_POINT_GROUP = "nbagent.frontends"
OWN_ENTRY_POINT = "ipython"
"""Name of nbagent's own entry point."""
_frontend: Frontend | None = None
_chosen_in_ipython: bool | None = None
"""True or False if the frontend was chosen with or without IPython; None if it was set."""


def use_frontend(frontend: Frontend | None) -> None:
    """Set the frontend of this process; after None it is chosen again."""
    global _frontend, _chosen_in_ipython
    _frontend, _chosen_in_ipython = frontend, None


def frontend() -> Frontend:
    """The frontend of this process, chosen when a run first needs it.

    It is chosen again if IPython began or ended since: `IPython.embed()` after a first run.
    """
    global _frontend, _chosen_in_ipython
    ipython = sys.modules.get("IPython")
    in_ipython = ipython is not None and cast("Any", ipython).get_ipython() is not None
    if _frontend is None or _chosen_in_ipython not in (None, in_ipython):
        _frontend = _installed_frontend() if in_ipython else Frontend()
        _chosen_in_ipython = in_ipython
    return _frontend


def _installed_frontend() -> Frontend:
    """Load the frontend of an installed package; nbagent's own one comes last.

    It is found by an entry point, so that this package imports nothing above itself, and runs are
    shown without `%load_ext`, too. An entry point may return None if it does not apply.
    """
    # Another package's frontend is asked first: it was installed for its own kind of notebook.
    entries = sorted(
        installed_entry_points(ENTRY_POINT_GROUP), key=lambda e: (e.name == OWN_ENTRY_POINT, e.name)
    )
    for entry in entries:
        try:
            loaded: object = entry.load()()
        except Exception as error:  # another package must not keep runs from starting
            warn = f"the frontend {entry.name!r} cannot be loaded ({type(error).__name__}: {error})"
            print(f"nbagent: {warn}; repair or uninstall its package", file=sys.stderr)
            continue
        if isinstance(loaded, Frontend):
            return loaded
    print(
        "nbagent: the notebook view is not registered; in the checkout of nbagent run "
        "`%pip install -e .` and restart the kernel. Until then runs print lines.",
        file=sys.stderr,
    )
    return LineFrontend()
