"""What the process offers a run: a view, the notebook's names, a thread that waits.

A script offers the least of it; IPython's frontend is in the room `notebook`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, cast

from nbagent.contracts.approval import PersonAnswer, Question
from nbagent.contracts.events import Event, Notice, RunStarted
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.contracts.tools import Capture, RunCode
from nbagent.runtime import Pump, RunTask
from nbagent.settings.options import RunOptions
from nbagent.view.node import Node

if TYPE_CHECKING:
    from nbagent.view.batch import BatchProgress

Asker = Callable[[Question], PersonAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Where a run was started, as far as the front end tells."""

    cell_id: str | None = None
    execution_count: int | None = None
    notebook: str | None = None
    """Path of the notebook's file."""


class RunList(Protocol):
    """Runs in a table or a tree."""

    def node(self, kernel: str = "") -> Node:
        """Its picture; `kernel` names the output that its buttons belong to."""
        ...


class BatchControls(Protocol):
    """What the buttons of a batch do. Any thread."""

    def stop(self, *, after_rows: bool = False) -> None:
        """Stop at once; `after_rows`: when the runs at work have ended."""
        ...


class BatchView(Protocol):
    """Shows a batch while it is at work."""

    @property
    def only_while_waited(self) -> bool:
        """Whether it would be in the way of who types meanwhile: a line of a terminal."""
        ...

    def update(self, progress: BatchProgress) -> None:
        """Show how far it is. On the engine thread, a few times a second."""
        ...

    def close(self, progress: BatchProgress) -> None:
        """Show its end, as it is to be saved. Once, on the engine thread."""
        ...


class PersonReview(Protocol):
    """Answers that a person labels one by one, without the names of their variants. Any thread."""

    title: str
    position: int
    """Number of the case that is shown, from 1."""
    total: int
    scale: int
    """The best label, up to 5; the worst is 1."""

    def shown(self) -> tuple[tuple[str, str], ...]:
        """Headings and texts of the case that waits for a label; empty at the end."""
        ...

    def label(self, value: int) -> None:
        """Keep the label of the case that is shown, and go to the next."""
        ...

    def skip(self) -> None:
        """Go to the next case; this one gets no label."""
        ...

    def back(self) -> None:
        """Show the case before, to label it again."""
        ...


class Frontend:
    """What a script has: plain lines where it wants them, questions where somebody types."""

    wait_reason = "a free thread: run.wait() runs it here"
    """What a tool is said to wait for when nobody waits for its run."""

    def namespace(self) -> Mapping[str, Any]:
        """The names a person can use; its `@nbagent.tool` functions are offered by default."""
        return {}

    def run_code(self) -> RunCode | None:
        """Runs Python in the notebook; None where there is none."""
        return None

    def capture(self, options: RunOptions) -> Capture | None:
        """Takes what tools print and display to their cards; None where no card is shown."""
        return None

    def cell(self) -> Cell:
        """The cell that runs now."""
        return Cell()

    def execution_id(self) -> str | None:
        """Tells one execution of a cell from the next."""
        return None

    def input_prompt(self) -> Asker | None:
        """What asks by `input()` in the thread that waits; None where nobody types."""
        stdin: Any = sys.stdin
        if stdin is None or stdin.closed or not stdin.isatty():
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
        """Put the handle of what was started last into a variable: `_run`, or `_batch`."""

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        """A view of a run that begins, in the thread that starts it; None where none is wanted."""
        if options.quiet:
            return None
        return self.printer() if options.echo else NoticePrinter()

    def open_batch(self, progress: BatchProgress, controls: BatchControls) -> BatchView | None:
        """A view of a batch that begins, in the thread that starts it; None: none is wanted."""
        stderr: Any = sys.stderr
        if stderr is None or stderr.closed:
            return None
        from nbagent.view.terminal import BatchPrinter

        return BatchPrinter(stderr.write, is_terminal=stderr.isatty())

    def show_batch(self, progress: BatchProgress) -> bool:
        """Show a batch where it was not shown yet; False where nothing can be shown."""
        return False

    def printer(self) -> Sink:
        """Prints events as plain lines while they happen."""
        from nbagent.view.terminal import PlainPrinter

        write, asks = sys.stdout.write, self.input_prompt() is not None
        return PlainPrinter(write, asked_by_input=asks, renders=sys.stdout.isatty())

    def show(self, run: RunRecord) -> bool:
        """Show a run where it was not shown yet; False where nothing can be shown."""
        return False

    def show_list(self, runs: RunList, *, search: Callable[[str], RunList] | None = None) -> bool:
        """Show runs of which each can be opened below them; False where nothing can be shown.

        Args:
            runs: the list.
            search: those of it that have a text.
        """
        return False

    def review(self, review: PersonReview) -> bool:
        """Let a person label answers by buttons and keys, and return at once.

        Returns:
            Whether this can be shown; where not, the caller asks by `input()`.
        """
        return False

    def forget(self, run_ids: tuple[str, ...]) -> None:
        """Take runs that were deleted out of what is shown and remembered."""


class LineFrontend(Frontend):
    """Prints the events of every run as lines: for a notebook whose view is not installed."""

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink | None:
        return None if options.quiet else self.printer()


class NoticePrinter:
    """Where nothing shows a run, what the person should know goes to stderr."""

    name = "stderr"

    def handle(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            for text in event.run.notices:
                self.say(text)
        elif isinstance(event, Notice) and event.level != "info":
            self.say(event.text)

    def say(self, text: str) -> None:
        print(f"nbagent: {text}", file=sys.stderr)

    def close(self) -> None:
        """Nothing to close."""


ENTRY_POINT_GROUP = "nbagent.frontends"
OWN = "ipython"
"""Name of nbagent's own entry point."""
_frontend: Frontend | None = None


def use_frontend(frontend: Frontend | None) -> None:
    """Set the frontend of this process; None lets it be chosen again."""
    global _frontend
    _frontend = frontend


def frontend() -> Frontend:
    """The frontend of this process, chosen when a run first needs it."""
    global _frontend
    if _frontend is None:
        ipython = sys.modules.get("IPython")
        in_ipython = ipython is not None and cast("Any", ipython).get_ipython() is not None
        _frontend = _installed_frontend() if in_ipython else Frontend()
    return _frontend


def _installed_frontend() -> Frontend:
    """Load the frontend of an installed package; nbagent's own one comes last.

    An entry point finds it, so that this room imports nothing above itself and runs show themselves
    without `%load_ext`, too. An entry point may return None where it does not apply.
    """
    # Another package's frontend is asked first: it was installed for its own kind of notebook.
    entries = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda e: (e.name == OWN, e.name))
    for entry in entries:
        try:
            loaded: object = entry.load()()
        except Exception as error:
            warn = f"the frontend {entry.name!r} cannot be loaded ({type(error).__name__}: {error})"
            print(f"nbagent: {warn}; repair or uninstall its package", file=sys.stderr)
            continue
        if isinstance(loaded, Frontend):
            return loaded
    print(
        "nbagent: the notebook view is not registered; install nbagent again (in a checkout: "
        "%pip install -e .) and restart the kernel. Until then runs print lines.",
        file=sys.stderr,
    )
    return LineFrontend()
