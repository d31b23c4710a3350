"""What `%%agent` and `%agent` do: read the line, render the cell, start the run, say how it ended.

One of three doors to the session; it decides nothing about a run. `magics` imports it when one of
the two is first used.
"""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.display_functions import display

import nbagent
from nbagent import run as handles
from nbagent import runtime
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.secrets import redact_truncated, register_environment
from nbagent.notebook import kernel, reports
from nbagent.notebook.batch_cell import batch_of, is_batch
from nbagent.notebook.frontend import show_again, was_shown_here
from nbagent.notebook.help import help_of
from nbagent.notebook.interrupt import Interrupt, Stopped
from nbagent.notebook.line import (
    Line,
    continued,
    parse,
    parse_command,
)
from nbagent.notebook.panel import panel
from nbagent.notebook.prompt_names import evaluate
from nbagent.providers.local import SUGGESTED, pull
from nbagent.run import Run, tools_given_to
from nbagent.session.active import at_work
from nbagent.session.approval import granted
from nbagent.session.dry_run import dry_run
from nbagent.session.frontend import frontend
from nbagent.session.request import Ask
from nbagent.session.stores import current_store, find_run
from nbagent.session.template import render
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import configure
from nbagent.view.listing import Listing
from nbagent.view.words import things, visible
from nbagent.workflow.graph import PackageError

if TYPE_CHECKING:
    from nbagent.lab.batch import Batch

_ID_CHARS = 4
"""So much of an id has to be written: less is a run by chance, where a name was meant."""
_CODE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?:i?python3?|py)?[ \t]*\n(?P<code>.*?)^ {0,3}(?P=fence)",
    re.MULTILINE | re.DOTALL | re.IGNORECASE,
)
"""A block of Python, or of no named language, in Markdown."""


class Commands:
    """The two magics in one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._run: Run | None = None
        self._batch: Batch | None = None

    def execute(self, line: str, cell: str | None) -> None:
        """Do what a cell (`%%agent`) or a line (`%agent`) says.

        Raises:
            NbagentError: it cannot be done, or the run failed.
            Interrupt: an interrupt before there was a run, or a second one.
        """
        # Before anything is read: an expression in the prompt may hold a key and fail with it.
        register_environment()
        try:
            if cell is None:
                self._command(line)
            else:
                self._cell(*continued(line, cell))
        except NbagentError as error:
            # A server's or a tool's words are in it, and a terminal obeys control characters.
            error.message = _one_line(error.message)
            error.args = (error.message,)
            raise
        except Interrupt:
            raise
        except KeyboardInterrupt as interrupt:
            said = _one_line(str(interrupt))
            raise Interrupt(said or self._interrupted()) from None
        except Exception as error:
            text = _one_line(f"{type(error).__name__}: {error}")
            raise NbagentError(
                f"nbagent itself failed: {text}; what was stored is kept, see %agent doctor",
                code="E_INTERNAL",
            ) from error

    # Runs

    def _cell(self, line: str, cell: str) -> None:
        options = parse(line)
        if options.help:
            _say(help_of())
            return
        template = cell.removesuffix("\n")
        if is_batch(options):
            self._run_batch(template, options)
            return
        rendered = render(template, self._evaluate)
        kind, parent_id, turn_id, left_out = "start", None, None, ()
        if options.continue_run is not None and options.fork is not None:
            raise UsageError("--continue and --fork exclude each other; keep one of them")
        if options.continue_run is not None:
            kind = "continue"
            run_id = self._run_id(options.continue_run, options.session)
            parent_id, left_out = _continued_run(options.continue_run, run_id)
        elif options.fork is not None:
            kind = "fork"
            ref, _, turn_id = options.fork.rpartition(":")
            parent_id = self._run_id(ref)
        ask = Ask(
            prompt=rendered.prompt,
            parts=rendered.parts,
            template=template if rendered.expressions else None,
            options=self._run_options(options),
            kind=kind,
            parent_id=parent_id,
            fork_turn=turn_id,
            notices=left_out,
        )
        self._start(ask, options)

    def _run_batch(self, template: str, options: Line) -> None:
        """Ask a prompt for each row of a table, and wait for the end."""
        batch = batch_of(options, self._run_options(options), template, self._shell)
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

    def _start(self, ask: Ask, options: Line) -> None:
        """Start what was asked, and wait for its end."""
        tools = self._given_tools(ask.parent_id, options)
        ask = replace(ask, tools=tools, dry_run=bool(options.dry_run))
        if ask.dry_run:
            # Also the name given by --into keeps what it holds.
            display(dry_run(ask))
            return
        with Run.starting(ask) as run:
            self._run = run
            if options.into is not None:
                self._shell.user_ns[options.into] = run
            run.wait()
        if run.phase == "Failed" and run.stop_reason == "stopped" and run.error:
            raise Stopped(run.error.message, code=run.error.code, details=run.error.details)
        run.raise_for_error()
        if options.to is not None:
            code = "\n".join(match["code"] for match in _CODE.finditer(run.text))
            if code.strip():
                self._shell.set_next_input(visible(code.rstrip()))
            else:
                print("the answer has no Python code block; no cell was added")

    def _interrupted(self) -> str:
        run, batch = self._run, self._batch
        if batch is not None:
            return f"interrupted; batch {batch.name} ends by itself, and keeps what is done"
        if run is None:
            return "interrupted; no run was started"
        if run.phase != "Running":
            return f"interrupted; run {run.id[:8]} had ended"
        return f"interrupted twice; run {run.id[:8]} ends by itself, %agent stop waits for that"

    def _given_tools(self, run_id: str | None, options: Line) -> tuple[object, ...] | None:
        """The functions that go on with a run, unless the line names others."""
        return None if options.tools is not None else tools_given_to(run_id, self._shell.user_ns)

    def _run_options(self, options: Line) -> RunOptions:
        """What is for the run, with the type that `--output` names."""
        given = options.run_options()
        if given.output is None:
            return given
        try:
            return given.changed(output=self._evaluate(given.output))
        except Exception as error:
            raise UsageError(
                f"--output {given.output}: {type(error).__name__}: {error}; name a class of this "
                "notebook, or list[CLASS]"
            ) from None

    def _run_id(self, ref: str, session: str | None = None) -> str:
        """The run that a line means: `last`, a variable that holds one, its name, or its id."""
        held = self._shell.user_ns.get(ref)
        if ref != "last" and type(held) is Run:
            return find_run(held.id)  # it may have been deleted
        run_id = find_run(ref, session=session)
        if len(ref) < _ID_CHARS and ref != "last" and current_store().load(run_id).name != ref:
            raise UsageError(
                f"{ref!r} is no variable that holds a run, and no run's name; of an id write at "
                f"least {_ID_CHARS} characters (%agent runs lists them)"
            )
        return run_id

    def _evaluate(self, expression: str) -> object:
        return evaluate(self._shell, expression)

    # Commands: each is given its words and its options, as `line` has read them.

    def _command(self, line: str) -> None:
        name, words, options = parse_command(line)
        if name:
            getattr(self, f"do_{name}")(words, options)
        else:
            self._cell("", words[0])

    def do_help(self, words: list[str], options: Line) -> None:
        _say(help_of(words[0]))

    def do_tools(self, words: list[str], options: Line) -> None:
        names = Line.tools.checked(" ".join(words) or None, "%agent tools")
        _say(reports.tools(names, options.run_options()))

    def do_approvals(self, words: list[str], options: Line) -> None:
        if words:
            print(f"revoked {things(len(granted), 'approval')}; such calls need approval again")
            granted.clear()
        else:
            _say(reports.approvals())

    def do_models(self, words: list[str], options: Line) -> None:
        if options.given and not words:
            raise UsageError("name the provider, such as: %agent models openai-compatible …")
        _say(reports.models(" ".join(words) or None, options.run_options()))

    def do_pull(self, words: list[str], options: Line) -> None:
        _say(pull(" ".join(words), _say) if words else SUGGESTED)

    def do_runs(self, words: list[str], options: Line) -> None:
        _say(reports.runs(_number("runs", words or ["10"], 9999)))

    def do_history(self, words: list[str], options: Line) -> None:
        _say(nbagent.history(search=words[0] or None))

    def do_tree(self, words: list[str], options: Line) -> None:
        _say(nbagent.session_tree(" ".join(words) or None))

    def do_show(self, words: list[str], options: Line) -> None:
        show_again(handles.open_run(self._run_id(" ".join(words) or "last")).record)

    def do_compare(self, words: list[str], options: Line) -> None:
        _say(nbagent.compare(*[handles.open_run(self._run_id(word)) for word in words]))

    def do_resume(self, words: list[str], options: Line) -> None:
        ref = " ".join(words) or "last"
        given = self._run_options(options)
        parent_id = None
        if ref.endswith(".md"):
            given = given.changed(document=ref)
            if options.with_history:
                from nbagent.workflow.locate import last_run_of

                parent_id = last_run_of(ref)
        else:
            parent_id = self._run_id(ref)
        self._start(Ask(kind="resume", parent_id=parent_id, options=given), options)

    def do_fork(self, words: list[str], options: Line) -> None:
        parent_id, given = self._run_id(" ".join(words[:-1])), self._run_options(options)
        ask = Ask(kind="fork", parent_id=parent_id, fork_turn=words[-1], options=given)
        self._start(ask, options)

    def do_retry(self, words: list[str], options: Line) -> None:
        run = handles.open_run(self._run_id(words[0]))
        n = _number("retry", words[1:] or ["1"], handles.MOST_ANSWERS)
        _say(run.retry(n, tools=self._given_tools(run.id, options)))

    def do_export(self, words: list[str], options: Line) -> None:
        ref, format, *rest = words
        run, path = handles.open_run(self._run_id(ref)), " ".join(rest) or None
        text = run.export(format, path)
        _say(text if path is None else f"wrote run {run.id[:8]} to {path}")

    def do_workflow(self, words: list[str], options: Line) -> None:
        ref = " ".join(words)
        try:
            _say(reports.workflow(ref))
        except PackageError as error:
            _say(Listing(notes=[*map(str, error.faults)]))
            faults = things(len(error.faults), "fault")
            raise UsageError(f"{ref} cannot be used: it has {faults}, listed above") from None

    def do_stop(self, words: list[str], options: Line) -> None:
        later = bool(options.after_turn)
        lab: Any = sys.modules.get("nbagent.lab.batch")
        batches: list[Batch] = lab.at_work() if lab else []
        # The runs of a batch end with it.
        runs = [run for run in at_work() if run.record.case is None]
        for batch in batches:
            batch.stop(after_rows=later)
        for run in runs:
            run.stop(after_turn=later)
        said = [f"batch {visible(batch.name)}" for batch in batches]
        named = " and ".join([*said, *([things(len(runs), "run")] if runs else [])])
        if not named:
            print("no run is running")
        elif later:
            print(f"{named} will pause after the present turn")
        else:
            for batch in batches:
                batch.wait()
            for run in runs:
                runtime.wait(run.courier, pump=frontend().pump())
            print(f"stopped {named}")

    def do_config(self, words: list[str], options: Line) -> None:
        changes: dict[str, Any] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals or name in changes:
                said = "is set twice" if equals else "is no NAME=VALUE"
                raise UsageError(
                    f"{name!r} {said}; %agent config takes NAME=VALUE once for each name, NAME= "
                    "takes a value back, and a value with spaces stands in quotes"
                )
            changes[name] = value or None
        if changes:
            configure(**changes)
        _say(reports.config())

    def do_panel(self, words: list[str], options: Line) -> None:
        panel()

    def do_forget(self, words: list[str], options: Line) -> None:
        run_id = self._run_id(" ".join(words))
        n = len(handles.forget(run_id, children=bool(options.children))) - 1
        more = f" and {things(n, 'run')} that continued it" if n else ""
        print(f"deleted run {run_id[:8]}{more}; what a notebook has saved of it stays there")

    def do_doctor(self, words: list[str], options: Line) -> None:
        _say(reports.compact() if words else reports.doctor())


def _number(command: str, words: list[str], most: int) -> int:
    text = " ".join(words)
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= most):
        raise UsageError(f"%agent {command} takes a number from 1 to {most}, not {text!r}")
    return int(text)


def _one_line(text: str) -> str:
    register_environment()  # what the cell ran may have set a key
    return " ".join(visible(redact_truncated(text)).splitlines())


def _say(said: object) -> None:
    """Show with every key of the environment hidden, and what a terminal would obey visible."""
    register_environment()
    if kernel.in_kernel() and not isinstance(said, str):
        display(said)
    else:
        print(visible(said) if isinstance(said, str) else said)


# Which run a cell continues


def _continued_run(ref: str, run_id: str) -> tuple[str, tuple[str, ...]]:
    """The run that a `--continue` cell continues, and what the person should know about it.

    Running such a cell again replaces what it added before. So this is the run before the first one
    of the conversation that an earlier execution of this cell added. What the present execution
    has added (a loop over `run_cell_magic`) stays. What other cells added after it was said in
    answer to what is replaced: it stays where it is, and is named.
    """
    here = kernel.cell()
    is_id = len(ref) >= _ID_CHARS and run_id.startswith(ref)
    if here.cell_id is None or is_id:
        return run_id, ()  # without a cell's id, or with a run's own, just this one is meant
    store = current_store()
    found, next_id = run_id, run_id
    others: list[str] = []
    later: list[str] = []
    while next_id is not None and not was_shown_here(next_id):
        run = store.load(next_id)
        # A copied notebook has the same ids of cells.
        copied = None not in (here.notebook, run.notebook) and run.notebook != here.notebook
        mine = run.kind == "continue" and run.cell_id == here.cell_id and not copied
        if mine and run.parent_id is not None:
            found, later = run.parent_id, list(others)
        elif not mine:
            others.append(run.id)
        next_id = run.parent_id
    if not later:
        return found, ()
    names = ", ".join(one[:8] for one in reversed(later))
    return found, (
        f"This cell was run before: it continues run {found[:8]} again. What "
        f"{things(len(later), 'later run')} added ({names}) is kept, but is no part of this "
        f"conversation; `%%agent --continue {run_id[:8]}` continues there.",
    )
