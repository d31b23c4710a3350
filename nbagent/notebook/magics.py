"""`%%agent` and `%agent`: read the line, render the cell, start the run, say how it ended.

One of three doors to the session; it decides nothing about a run.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from nbagent import agent as handles
from nbagent import runtime, settings
from nbagent.agent import Run
from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.secrets import redact
from nbagent.notebook import doctor, listings, surface
from nbagent.notebook.options import MagicOptions, help_text, parse, split_command
from nbagent.notebook.template import render
from nbagent.session.live import at_work
from nbagent.session.prepare import Ask
from nbagent.session.stores import current_store
from nbagent.settings import RunOptions


def register(ipython: Any) -> None:
    """Register the magics; called by `%load_ext nbagent`."""
    ipython.register_magics(AgentMagics)


@magics_class
class AgentMagics(Magics):
    """The two magics."""

    @no_var_expand
    @line_cell_magic
    def agent(self, line: str, cell: str | None = None) -> None:
        """Ask a model and watch it use tools: `%%agent [options]`, the prompt on the next lines.

        `%agent COMMAND` does the rest: tools, models, show, resume, stop, config, doctor, help.
        `%agent help` lists all options with examples.
        """
        try:
            if cell is None:
                self._command(line)
            else:
                self._cell(line, cell)
        except NbagentError:
            raise
        except Exception as error:
            text = redact(f"{type(error).__name__}: {error}")
            raise NbagentError(
                f"nbagent itself failed: {text}; what was stored is kept, %agent doctor tells more",
                code="E_INTERNAL",
            ) from error

    def _cell(self, line: str, cell: str) -> None:
        options = parse(line)
        if options.help:
            print(help_text())
            return
        template = cell.removesuffix("\n")
        rendered = render(template, self._evaluate)
        child = options.continue_run is not None
        ask = Ask(
            prompt=rendered.prompt,
            parts=rendered.parts,
            template=template if rendered.expressions else None,
            options=_run_options(options),
            kind="continue" if child else "start",
            parent_id=_parent(options.continue_run) if options.continue_run else None,
        )
        self._finish(ask, options.into)

    def _finish(self, ask: Ask, into: str | None = None) -> None:
        run = Run.started(ask)
        if into is not None:
            self._shell.user_ns[into] = run
        run.wait().raise_for_error()

    @property
    def _shell(self) -> Any:
        return self.shell

    def _evaluate(self, expression: str) -> object:
        code = compile(expression, "<prompt>", "eval")
        return eval(code, self._shell.user_global_ns, self._shell.user_ns)

    def _command(self, line: str) -> None:
        name, rest = split_command(line)
        commands: dict[str, Callable[[str], None]] = {
            "tools": self._tools,
            "models": self._models,
            "show": self._show,
            "resume": self._resume,
            "stop": self._stop,
            "config": self._config,
            "doctor": self._doctor,
            "help": lambda rest: print(help_text()),
        }
        commands[name](rest)

    def _tools(self, rest: str) -> None:
        print(listings.tools_text(self._shell.user_ns))

    def _models(self, rest: str) -> None:
        print(listings.models_text(rest.strip() or None))

    def _show(self, rest: str) -> None:
        ref = rest.strip() or "last"
        surface.show_again(handles.open_run(ref).record)

    def _resume(self, rest: str) -> None:
        run_id = _found(rest.strip() or "last")
        self._finish(Ask(kind="resume", parent_id=run_id))

    def _stop(self, rest: str) -> None:
        runs = at_work()
        for run in runs:
            run.stop()
        for run in runs:
            if run.task is not None:
                runtime.wait(run.task, pump=surface.make_pump())
        n = len(runs)
        print(f"stopped {n} run{'s' * (n != 1)}" if n else "no run is at work")

    def _config(self, rest: str) -> None:
        changes = _assignments(rest)
        if changes:
            settings.configure(**changes)
        print(listings.settings_text())

    def _doctor(self, rest: str) -> None:
        print(doctor.report())


def _run_options(options: MagicOptions) -> RunOptions:
    return RunOptions(
        model=options.model,
        base_url=options.base_url,
        system=options.system,
        tools=options.tools,
        tool_choice=options.tool_choice,
        max_turns=options.max_turns,
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        stop_sequences=options.stop_sequences,
        timeout_s=options.timeout_s,
        session=options.session,
        name=options.name,
        tags=options.tags or (),
        stream=False if options.no_stream else None,
        quiet=bool(options.quiet),
        raw=bool(options.raw),
    )


def _found(ref: str) -> str:
    """The id of a run; `last` is this kernel's last one, and in a fresh kernel the store's."""
    if ref == "last" and (last := surface.last_run_id()) is not None:
        return last
    return current_store().find(ref)


def _parent(ref: str) -> str:
    """The run to go on with. Running a `--continue` cell again replaces what it added before."""
    run_id = _found(ref)
    here = surface.here_cell()
    if ref != "last" or here is None:
        return run_id
    run = current_store().load(run_id)
    while run.kind == "continue" and run.cell_id == here and run.parent_id is not None:
        run = current_store().load(run.parent_id)
    return run.id


def _assignments(rest: str) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise UsageError(f"%agent config: {error}; close the quote") from None
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"%agent config takes NAME=VALUE, not {word!r}; NAME= takes it back")
        changes[name] = value or None
    return changes
