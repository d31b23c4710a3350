"""Executes `%%agent` and `%agent`: read the line, render the prompt, start the run, report its end.

Decides nothing about a run; that is the session's. `magics` imports it when a magic is first used.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.display_functions import display

from nbagent import run as handles
from nbagent import runtime
from nbagent.comparison import compare, history
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.nearest import nearest_name
from nbagent.contracts.records import as_turn_id
from nbagent.contracts.secrets import redact_truncated, register_environment
from nbagent.notebook import kernel, reports
from nbagent.notebook.batch_cell import create_batch, is_batch
from nbagent.notebook.frontend import show_again, was_shown_here
from nbagent.notebook.help import help_of
from nbagent.notebook.interrupt import Interrupt, Stopped
from nbagent.notebook.line import (
    Line,
    join_continued_lines,
    parse,
    parse_command,
    with_question_offer,
)
from nbagent.notebook.panel import panel
from nbagent.notebook.panel_sidecar import panel_position
from nbagent.notebook.prompt_names import evaluate
from nbagent.providers.local import SUGGESTED, pull
from nbagent.run import Run, tools_passed_to
from nbagent.run_tree import session_tree
from nbagent.session.active_run import active_runs
from nbagent.session.approval import session_grants
from nbagent.session.dry_run import dry_run
from nbagent.session.frontend import frontend
from nbagent.session.models import resolve_settings
from nbagent.session.notebook_runs import is_of_notebook
from nbagent.session.request import RunRequest
from nbagent.session.stores import current_store, find_run
from nbagent.session.template import render
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import configure, current_settings
from nbagent.view.listing import Listing
from nbagent.view.text_format import pluralize, sanitize_value
from nbagent.workflow.graph import PackageError

if TYPE_CHECKING:
    from nbagent.lab.batch import Batch

_MIN_ID_CHARS = 4
"""Shortest accepted part of a run id. A shorter text is probably a misspelt name."""
_CODE_BLOCK = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?:i?python3?|py)?[ \t]*\n(?P<code>.*?)^ {0,3}(?P=fence)",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
"""A Markdown code block in Python or without a language."""


class Commands:
    """The two magics in one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._run: Run | None = None
        self._batch: Batch | None = None

    def execute(self, line: str, cell: str | None) -> None:
        """Execute a cell (`%%agent`) or a line (`%agent`, with `cell` None).

        Raises:
            NbagentError: it cannot be done, or the run failed.
            Interrupt: interrupted before a run had started, or a second time.
        """
        # First: an expression in the prompt may contain a key and fail with it in the message.
        register_environment()
        try:
            if cell is None:
                self._command(line)
            else:
                self._cell(*join_continued_lines(line, cell))
        except NbagentError as error:
            # It may contain a server's or a tool's text, and a terminal obeys control characters.
            error.message = _one_line(error.message)
            error.args = (error.message,)
            raise
        except Interrupt:  # a KeyboardInterrupt too, but it has its message already
            raise
        except KeyboardInterrupt as interrupt:
            reason = _one_line(str(interrupt))
            raise Interrupt(reason or self._interrupted()) from None
        except Exception as error:
            text = _one_line(f"{type(error).__name__}: {error}")
            raise NbagentError(
                f"nbagent itself failed: {text}; stored runs are kept, see %agent doctor",
                code="E_INTERNAL",
            ) from error

    # Runs

    def _cell(self, line: str, cell: str) -> None:
        options = parse(line)
        if options.help:
            _show(help_of())
            return
        template = cell.removesuffix("\n")
        if is_batch(options):
            self._run_batch(template, options)
            return
        run_options = self._run_options(options)
        literal = not resolve_settings(run_options, current_settings()).template
        rendered = render(template, self._evaluate, literal=literal)
        kind, parent_id, turn_id, left_out = "start", None, None, ()
        if options.continue_run is not None and options.fork is not None:
            raise UsageError("--continue and --fork exclude each other; keep one of them")
        if options.continue_run is not None:
            kind = "continue"
            run_id = self._run_id(options.continue_run, options.session)
            parent_id, left_out = _continued_run(options.continue_run, run_id)
        elif options.fork is not None:
            kind = "fork"
            ref, _, turn = options.fork.rpartition(":")
            parent_id, turn_id = self._run_id(ref), as_turn_id(turn)
        ask = RunRequest(
            prompt=rendered.prompt,
            parts=rendered.parts,
            template=template if rendered.expressions else None,
            options=run_options,
            kind=kind,
            parent_id=parent_id,
            fork_turn=turn_id,
            notices=(*rendered.warnings, *left_out),
        )
        self._start(ask, options)

    def _run_batch(self, template: str, options: Line) -> None:
        """Run a prompt for each row of a DataFrame and wait for the end."""
        batch = create_batch(options, self._run_options(options), template, self._shell)
        if options.dry_run:
            display(batch.dry_run())
            return
        if options.into is not None:
            self._shell.user_ns[options.into] = batch
        self._batch = batch
        try:
            batch.start().wait()
        except KeyboardInterrupt:
            batch.stop()
            raise
        ended = batch.progress
        if ended.state == "Stopped":
            raise Stopped(f"batch {batch.name}: {ended.why}", code="ENGINE_ABORTED")

    def _start(self, ask: RunRequest, options: Line) -> None:
        """Start the requested run and wait for its end."""
        tools = self._inherited_tools(ask.parent_id, options)
        ask = replace(ask, tools=tools, dry_run=bool(options.dry_run))
        if ask.dry_run:
            # A dry run leaves the --into variable unchanged.
            display(dry_run(ask))
            return
        with Run.starting(ask) as run:
            self._run = run
            # Before the wait: the variable must hold the run after an error or an interrupt too.
            if options.into is not None:
                self._shell.user_ns[options.into] = run
            run.wait()
        if run.phase == "Failed" and run.stop_reason == "stopped" and run.error:
            raise Stopped(run.error.message, code=run.error.code, details=run.error.details)
        run.raise_for_error()
        if options.to is not None:
            code = "\n".join(match["code"] for match in _CODE_BLOCK.finditer(run.text))
            # Hidden characters become visible: the person must read what the new cell would run.
            if code.strip():
                self._shell.set_next_input(sanitize_value(code.rstrip()))
            else:
                print("the answer has no Python code block; no cell was added")

    def _interrupted(self) -> str:
        run, batch = self._run, self._batch
        if batch is not None:
            return f"interrupted; batch {batch.name} is stopping, its finished cases are kept"
        if run is None:
            return "interrupted; no run was started"
        if run.phase != "Running":
            return f"interrupted; run {run.id[:8]} had ended"
        return f"interrupted twice; run {run.id[:8]} is still stopping, %agent stop waits for it"

    def _inherited_tools(self, run_id: str | None, options: Line) -> tuple[object, ...] | None:
        """Return the functions that the continued run used, unless the line has --tools."""
        return None if options.tools is not None else tools_passed_to(run_id, self._shell.user_ns)

    def _run_options(self, options: Line) -> RunOptions:
        """Return the options of the run; `--output` is evaluated to its class."""
        run_options = options.run_options()
        if run_options.output is None:
            return run_options
        try:
            return run_options.with_changes(output=self._evaluate(run_options.output))
        except Exception as error:
            raise UsageError(
                f"--output {run_options.output}: {type(error).__name__}: {error}; name a class of "
                "this notebook, or list[CLASS]"
            ) from None

    def _run_id(self, ref: str, session: str | None = None) -> str:
        """Return the id of a run, named by `last`, a variable, a name, or a part of an id."""
        value = self._shell.user_ns.get(ref)
        if ref != "last" and type(value) is Run:
            return find_run(value.id)  # it may have been deleted
        try:
            run_id = find_run(ref, session=session)
        except UsageError as error:
            raise self._with_nearest_variable(error, ref) from None
        if len(ref) < _MIN_ID_CHARS and ref != "last" and current_store().load(run_id).name != ref:
            raise UsageError(
                f"{ref!r} is not a variable with a run or a run's name; write at least "
                f"{_MIN_ID_CHARS} characters of an id (%agent runs lists them)"
            )
        return run_id

    def _with_nearest_variable(self, error: UsageError, ref: str) -> UsageError:
        """Add the variable with a run whose name is most similar to an unknown run's."""
        values = dict(self._shell.user_ns).items()
        runs = [name for name, value in values if type(value) is Run and name[0] != "_"]
        near = nearest_name(ref, runs) if error.code == "ENOENT" else None
        hint = f"; there is a run in the variable {near!r}" if near else ""
        return UsageError(f"{error.message}{hint}", code=error.code) if hint else error

    def _evaluate(self, expression: str) -> object:
        return evaluate(self._shell, expression)

    # Commands: each gets its arguments and its options as `line` has parsed them.

    def _command(self, line: str) -> None:
        try:
            name, args, options = parse_command(line)
            if name:
                getattr(self, f"do_{name}")(args, options)
        except UsageError as error:
            raise with_question_offer(error, line) from None
        if not name:
            self._cell("--no-template" if options.template is False else "", args[0])

    def do_help(self, args: list[str], options: Line) -> None:
        _show(help_of(args[0]))

    def do_tools(self, args: list[str], options: Line) -> None:
        names = Line.tools.checked(" ".join(args) or None, "%agent tools")
        _show(reports.tools(names, options.run_options()))

    def do_approvals(self, args: list[str], options: Line) -> None:
        if args:
            revoked = pluralize(len(session_grants), "approval")
            print(f"revoked {revoked}; these calls need approval again")
            session_grants.clear()
        else:
            _show(reports.approvals())

    def do_models(self, args: list[str], options: Line) -> None:
        if options.explicit and not args:
            raise UsageError("name the provider, such as: %agent models openai-compatible …")
        _show(reports.models(" ".join(args) or None, options.run_options()))

    def do_pull(self, args: list[str], options: Line) -> None:
        _show(pull(" ".join(args), _show) if args else SUGGESTED)

    def do_runs(self, args: list[str], options: Line) -> None:
        _show(reports.runs(_number("runs", args or ["10"], 9999)))

    def do_history(self, args: list[str], options: Line) -> None:
        _show(history(search=args[0] or None))

    def do_tree(self, args: list[str], options: Line) -> None:
        session = " ".join(args) or None
        _show(session_tree(all_notebooks=True) if session == "all" else session_tree(session))

    def do_show(self, args: list[str], options: Line) -> None:
        show_again(handles.open_run(self._run_id(" ".join(args) or "last")).record)

    def do_compare(self, args: list[str], options: Line) -> None:
        _show(compare(*[handles.open_run(self._run_id(word)) for word in args]))

    def do_resume(self, args: list[str], options: Line) -> None:
        ref = " ".join(args) or "last"
        run_options = self._run_options(options)
        parent_id = None
        if ref.endswith(".md"):
            run_options = run_options.with_changes(document=ref)
            if options.with_history:
                from nbagent.workflow.locate import last_run_id

                parent_id = last_run_id(ref, current_store())
        else:
            parent_id = self._run_id(ref)
            record = handles.open_run(parent_id).record
            if record.ok and record.workflow is None:  # a workflow continues with its next step
                # No error: this line must not stop Run All of a notebook that has it.
                print(
                    f"nothing to resume: run {parent_id[:8]} has ended ({record.stop_reason}). To "
                    "ask something more: %%agent --continue, with the prompt on the next line"
                )
                return
        self._start(RunRequest(kind="resume", parent_id=parent_id, options=run_options), options)

    def do_fork(self, args: list[str], options: Line) -> None:
        parent_id, run_options = self._run_id(" ".join(args[:-1])), self._run_options(options)
        ask = RunRequest(
            kind="fork", parent_id=parent_id, fork_turn=as_turn_id(args[-1]), options=run_options
        )
        self._start(ask, options)

    def do_retry(self, args: list[str], options: Line) -> None:
        run = handles.open_run(self._run_id(args[0]))
        n = _number("retry", args[1:] or ["1"], handles.MAX_ANSWERS)
        _show(run.retry(n, tools=self._inherited_tools(run.id, options)))

    def do_export(self, args: list[str], options: Line) -> None:
        ref, format, *rest = args
        run, path = handles.open_run(self._run_id(ref)), " ".join(rest) or None
        if path is None and format == "html":  # printed, a page is no use to anybody
            path = f"run-{run.id[:8]}.html"
        text = run.export(format, path)
        _show(text if path is None else f"wrote run {run.id[:8]} to {path}")

    def do_workflow(self, args: list[str], options: Line) -> None:
        ref = " ".join(args)
        try:
            _show(reports.workflow(ref))
        except PackageError as error:
            _show(Listing(notes=[*map(str, error.problems)]))
            problems = pluralize(len(error.problems), "problem")
            raise UsageError(f"{ref} cannot be used: it has {problems}, listed above") from None

    def do_stop(self, args: list[str], options: Line) -> None:
        later = bool(options.after_turn)
        batches: list[Batch] = []
        if "nbagent.lab.batch" in sys.modules:
            from nbagent.lab.batch import active_batches

            batches = active_batches()
        # Runs of a batch are stopped by the batch.
        runs = [run for run in active_runs() if run.record.case is None]
        for batch in batches:
            batch.stop(after_rows=later)
        for run in runs:
            run.stop(after_turn=later)
        names = [f"batch {sanitize_value(batch.name)}" for batch in batches]
        stopped = " and ".join([*names, *([pluralize(len(runs), "run")] if runs else [])])
        if not stopped:
            print("no run is running")
        elif later:
            print(f"{stopped} will pause after the current turn")
        else:
            # Waited for: the message below must not appear while one of them is still stopping.
            for batch in batches:
                batch.wait()
            for run in runs:
                runtime.wait(run.run_task, pump=frontend().pump())
            print(f"stopped {stopped}")

    def do_config(self, args: list[str], options: Line) -> None:
        changes: dict[str, Any] = {}
        for word in args:
            name, equals, value = word.partition("=")
            if not equals or name in changes:
                problem = "is set twice" if equals else "is not NAME=VALUE"
                raise UsageError(
                    f"{name!r} {problem}; %agent config takes NAME=VALUE once for each name, NAME= "
                    "resets it, and a value with spaces needs quotes"
                )
            changes[name] = value or None
        if changes:
            configure(**changes)
        _show(reports.config(tuple(changes)))

    def do_trust(self, args: list[str], options: Line) -> None:
        # Late: most kernels never ask.
        from nbagent.session.trust_question import ask_for_trust, revoke_trust

        print(sanitize_value(revoke_trust() if options.revoke else ask_for_trust(_print_text)))

    def do_panel(self, args: list[str], options: Line) -> None:
        panel(where=panel_position(" ".join(args) or "below"))

    def do_forget(self, args: list[str], options: Line) -> None:
        run_id = self._run_id(" ".join(args))
        n = len(handles.forget(run_id, children=bool(options.children))) - 1
        more = f" and {pluralize(n, 'run')} that continued it" if n else ""
        print(f"deleted run {run_id[:8]}{more}; outputs saved in notebooks are not changed")

    def do_doctor(self, args: list[str], options: Line) -> None:
        if options.drop_backup:
            _show(reports.drop_backup())
        if args or not options.drop_backup:
            _show(reports.compact() if args else reports.doctor())


def _number(command: str, args: list[str], maximum: int) -> int:
    text = " ".join(args)
    # Nine digits exceed every maximum, and `int` itself refuses thousands of them.
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= maximum):
        raise UsageError(f"%agent {command} takes a number from 1 to {maximum}, not {text!r}")
    return int(text)


def _one_line(text: str) -> str:
    register_environment()  # what the cell ran may have set a key
    return " ".join(sanitize_value(redact_truncated(text)).splitlines())


def _print_text(text: str) -> None:
    """Print at once: the question follows in the line below."""
    print(sanitize_value(text), flush=True)


def _show(value: object) -> None:
    """Show a value with the environment's keys hidden and control characters made visible."""
    register_environment()
    if kernel.in_kernel() and not isinstance(value, str):
        display(value)
    else:
        print(sanitize_value(value) if isinstance(value, str) else value)


# Which run a cell continues


def _continued_run(ref: str, run_id: str) -> tuple[str, tuple[str, ...]]:
    """Find the run that a `--continue` cell continues.

    If the cell is run again, it drops its earlier answer and asks again. So the result is the run
    before the first one that an earlier execution of this cell added. Runs of the present execution
    (a loop over `run_cell_magic`) stay. Runs that other cells added after the dropped answer
    replied to it: they are kept outside of this conversation and named in a notice.

    Returns:
        The id of the run, and notices for the person.
    """
    here = kernel.cell()
    is_id = len(ref) >= _MIN_ID_CHARS and run_id.startswith(ref)
    if here.cell_id is None or is_id:
        return run_id, ()  # no cell id to compare, or the id names exactly one run
    store = current_store()
    parent_id, next_id = run_id, run_id
    others: list[str] = []
    later: list[str] = []
    while next_id is not None and not was_shown_here(next_id):
        run = store.load(next_id)
        mine = run.kind == "continue" and run.cell_id == here.cell_id
        # Copied notebooks have the same cell ids.
        mine = mine and is_of_notebook(run.origin, here)
        if mine and run.parent_id is not None:
            parent_id, later = run.parent_id, list(others)
        elif not mine:
            others.append(run.id)
        next_id = run.parent_id
    if not later:
        return parent_id, ()
    names = ", ".join(later_id[:8] for later_id in reversed(later))
    return parent_id, (
        f"This cell was run before, so it continues run {parent_id[:8]} again. "
        f"The answer of {pluralize(len(later), 'later run')} ({names}) is kept, but is not part of "
        f"this conversation; to continue there, use `%%agent --continue {run_id[:8]}`.",
    )
