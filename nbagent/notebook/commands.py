"""What `%%agent` and `%agent` do: read the line, render the cell, start the run, say how it ended.

One of three doors to the session; it decides nothing about a run. `magics` imports it when one of
the two is first used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from IPython.core.display_functions import display

from nbagent import run as handles
from nbagent import runtime, settings
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.secrets import redact_cut, register_environment
from nbagent.notebook import doctor, listings, surface
from nbagent.notebook.help_text import help_text
from nbagent.notebook.magics import Interrupt
from nbagent.notebook.option_table import Line
from nbagent.notebook.options import continued, parse, run_and_options, split_command, split_words
from nbagent.notebook.panel import panel
from nbagent.notebook.template import render
from nbagent.notebook.which_run import continued_run
from nbagent.providers.local import SUGGESTED, pull
from nbagent.run import Run
from nbagent.session.active import at_work, dry_run
from nbagent.session.approval import granted
from nbagent.session.frontend import frontend
from nbagent.session.prepare import Ask
from nbagent.session.stores import find_run
from nbagent.view.words import visible
from nbagent.workflow.graph import PackageError

_LAST_RUNS = 10


class Commands:
    """The two magics in one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._run: Run | None = None

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
                self._cell(line, cell)
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
                f"nbagent itself failed: {text}; what was stored is kept, %agent doctor tells more",
                code="E_INTERNAL",
            ) from error

    def _cell(self, line: str, cell: str) -> None:
        line, cell = continued(line, cell)
        options = parse(line)
        if options.help:
            print(help_text())
            return
        template = cell.removesuffix("\n")
        rendered = render(template, self._evaluate)
        parent_id, left_out = None, ()
        if options.continue_run is not None:
            parent_id, left_out = continued_run(options.continue_run, options.session)
        ask = Ask(
            prompt=rendered.prompt,
            parts=rendered.parts,
            template=template if rendered.expressions else None,
            options=self._run_options(options),
            kind="start" if parent_id is None else "continue",
            parent_id=parent_id,
            tools=self._given_tools(parent_id, options),
            dry_run=bool(options.dry_run),
            notices=left_out,
        )
        self._finish(ask, options.into)

    def _finish(self, ask: Ask, into: str | None = None) -> None:
        if ask.dry_run:
            # Also the name given by --into keeps what it holds.
            display(frontend().bundle(dry_run(ask)), raw=True)
            return
        with Run.starting(ask) as run:
            self._run = run
            if into is not None:
                self._shell.user_ns[into] = run
            run.wait()
        run.raise_for_error()

    def _interrupted(self) -> str:
        run = self._run
        if run is None:
            return "interrupted; no run was started"
        if run.phase != "Running":
            return f"interrupted; run {run.id[:8]} had ended"
        return f"interrupted twice; run {run.id[:8]} ends by itself, %agent stop waits for that"

    def _given_tools(self, run_id: str | None, options: Line) -> tuple[object, ...] | None:
        """The functions that `agent.run(tools=[…])` was given: no name in the options says which.

        They go on with the run, as in `run.resume()`, unless the line names others.
        """
        last = self._shell.user_ns.get("_run")
        if options.tools is not None or not isinstance(last, Run) or last.id != run_id:
            return None
        return last.given_tools

    def _run_options(self, options: Line) -> settings.RunOptions:
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

    def _evaluate(self, expression: str) -> object:
        code = compile(expression, "<prompt>", "eval")
        return eval(code, self._shell.user_global_ns, self._shell.user_ns)

    def _command(self, line: str) -> None:
        name, rest = split_command(line)
        alone: dict[str, Callable[[], None]] = {
            "stop": self._stop,
            "panel": panel,
        }
        with_words: dict[str, Callable[[str], None]] = {
            "help": self._help,
            "tools": self._tools,
            "approvals": self._approvals,
            "models": self._models,
            "pull": self._pull,
            "runs": self._runs,
            "show": self._show,
            "resume": self._resume,
            "workflow": self._workflow,
            "forget": self._forget,
            "config": self._config,
            "doctor": self._doctor,
        }
        if name in with_words:
            with_words[name](rest)
        elif rest:
            raise UsageError(f"%agent {name} stands alone; remove {rest!r}")
        else:
            alone[name]()

    def _help(self, rest: str) -> None:
        print(help_text(rest))

    def _tools(self, rest: str) -> None:
        ref, options = run_and_options("tools", rest, otherwise="")
        names = tuple(re.findall(r"[^\s,]+", ref))
        chosen = ref if ref in ("all", "none") else names or None
        _say(listings.tools_text(chosen, options.run_options()))

    def _models(self, rest: str) -> None:
        ref, options = run_and_options("models", rest, otherwise="")
        if options.given and not ref:
            raise UsageError(f"name the provider: %agent models openai-compatible {rest}")
        _say(listings.models_text(ref or None, options.run_options()))

    def _pull(self, rest: str) -> None:
        if rest:
            pull(rest, _say)
        else:
            _say(SUGGESTED)

    def _runs(self, rest: str) -> None:
        if rest and not (rest.isascii() and rest.isdigit() and 0 < int(rest[:9]) < 10_000):
            raise UsageError(f"%agent runs takes a number from 1 to 9999, not {rest!r}")
        _say(listings.runs_text(int(rest or _LAST_RUNS)))

    def _show(self, rest: str) -> None:
        ref, _ = run_and_options("show", rest)
        surface.show_again(handles.open_run(find_run(ref)).record)

    def _resume(self, rest: str) -> None:
        ref, options = run_and_options("resume", rest)
        if options.help:
            self._help("resume")
            return
        given = self._run_options(options)
        parent_id = None
        if ref.endswith(".md"):
            given = given.changed(document=ref)
            if options.with_history:
                from nbagent.session.documents import last_run_of

                parent_id = last_run_of(ref)
        else:
            parent_id = find_run(ref)
        ask = Ask(
            kind="resume",
            parent_id=parent_id,
            options=given,
            tools=self._given_tools(parent_id, options),
            dry_run=bool(options.dry_run),
        )
        self._finish(ask, options.into)

    def _workflow(self, rest: str) -> None:
        ref, _ = run_and_options("workflow", rest, otherwise="")
        try:
            _say(listings.package_text(ref))
        except PackageError as error:
            _say("\n".join(map(str, error.faults)))
            n = len(error.faults)
            said = f"{ref} cannot be used: it has {n} fault{'s' * (n != 1)}, listed above"
            raise UsageError(said) from None

    def _stop(self) -> None:
        runs = at_work()
        for run in runs:
            run.stop()
        for run in runs:
            runtime.wait(run.courier, pump=frontend().pump())
        n = len(runs)
        print(f"stopped {n} run{'s' * (n != 1)}" if n else "no run is at work")

    def _config(self, rest: str) -> None:
        changes = _assignments(rest)
        if changes:
            settings.configure(**changes)
        _say(listings.settings_text())

    def _approvals(self, rest: str) -> None:
        if rest not in ("", "clear"):
            raise UsageError(f"%agent approvals takes nothing or clear, not {rest!r}")
        n = len(granted)
        if rest:
            granted.clear()
            print(f"took back {n} approval{'s' * (n != 1)}; such calls are asked about again")
        else:
            _say(listings.approvals_text())

    def _forget(self, rest: str) -> None:
        words = split_words(rest)
        named = [word for word in words if word != "--children"]
        if len(named) != 1 or named[0].startswith("-"):
            raise UsageError(
                "%agent forget takes one run: its name, the start of its id, or last; "
                "%agent runs lists them"
            )
        with_children = len(named) < len(words)
        forgotten = handles.forget(find_run(named[0]), children=with_children)
        n = len(forgotten) - 1
        more = f" and {n} run{'s' * (n != 1)} that went on from it" if n else ""
        print(
            f"forgot run {forgotten[0][:8]}{more}; what a notebook has saved of it is not touched"
        )

    def _doctor(self, rest: str) -> None:
        if rest not in ("", "compact"):
            raise UsageError(f"%agent doctor takes nothing or compact, not {rest!r}")
        _say(doctor.compact() if rest else doctor.report())


def _one_line(text: str) -> str:
    register_environment()  # what the cell ran may have set a key
    return " ".join(visible(redact_cut(text)).splitlines())


def _say(text: str) -> None:
    """Print with every key of the environment hidden, and what a terminal would obey shown."""
    register_environment()
    print(visible(text))


def _assignments(rest: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for word in split_words(rest):
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(
                f"%agent config takes NAME=VALUE, not {word!r}; NAME= takes a value back, "
                "and a value with spaces stands in quotes"
            )
        if name in changes:
            raise UsageError(f"{name} is set twice; keep one of them")
        changes[name] = value or None
    return changes
