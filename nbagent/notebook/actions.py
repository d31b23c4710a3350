"""The buttons below a run that is over: they work while the kernel lives, in every output.

A saved output is plain HTML. One widget model without a view listens for clicks in all of them;
which verbs there are stands here. None of them approves anything, and what a page says is hostile
until it was checked.
"""

# ipywidgets and anywidget have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import anywidget
import traitlets

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_cut, register_environment
from nbagent.notebook import kernel
from nbagent.notebook.clicks import later, start_by_click
from nbagent.notebook.outputs import KERNEL, Output, output_of
from nbagent.notebook.run_view import OutputView, comm_id, script
from nbagent.run import Run
from nbagent.session.frontend import frontend
from nbagent.session.prepare import Ask
from nbagent.session.stores import current_store
from nbagent.settings import RunOptions
from nbagent.view.cell import cell_text
from nbagent.view.words import visible

PROMPT_CHARS = 100_000
_RECENT = 200
_STARTS = ("continue", "retry", "fork")


class PageActions(anywidget.AnyWidget):
    """One for a kernel; never displayed."""

    _esm = script()
    kind = traitlets.Unicode("actions").tag(sync=True)
    kernel = traitlets.Unicode(KERNEL).tag(sync=True)


_actions: PageActions | None = None


def offer() -> None:
    """Give the static pictures of this kernel their buttons. In a front end with widgets only."""
    global _actions
    if _actions is None:
        _actions = PageActions()
        _actions.on_msg(lambda _widget, content, _buffers: heard(content))
        kernel.register(comm_id(_actions), heard)


def heard(message: object) -> None:
    """A button was clicked. In whichever thread the message arrives: it only asks."""
    told = json_object(message) or {}
    output, run_id, do = output_of(told.get("at")), told.get("run"), told.get("do")
    if output is None or not isinstance(run_id, str) or run_id not in output.run_ids:
        return
    prompt, turn_id = told.get("prompt", ""), told.get("turn", "")
    if not isinstance(prompt, str) or len(prompt) > PROMPT_CHARS or not isinstance(turn_id, str):
        return
    answer = partial(_reply, output, run_id)
    failed = partial(_failed, output, run_id)
    if do in _STARTS:
        answer("Starts as soon as the kernel is free")
        start_by_click(
            lambda: asked(do, output, run_id, turn_id, prompt),
            show=output.view or partial(OutputView, output),
            failed=failed,
            context=output.context,
        )
    elif do == "compare":
        later(lambda: _compare(output, run_id), failed=failed, context=output.context)
    elif do == "cell":
        later(
            lambda: answer("Copied: paste it into a cell", cell_text(output.load(run_id))),
            failed=failed,
        )


def asked(
    do: Literal["continue", "retry", "fork"],
    output: Output,
    run_id: str,
    turn_id: str,
    prompt: str,
) -> Ask:
    """What a button wants to be done, with other words or as it is."""
    if output.at_work:
        raise UsageError("a run in this output is still running; stop it or wait for its end")
    register_environment()
    run = output.load(run_id)
    turns = [turn.id for turn in run.turns]
    words = prompt.strip() or None
    if turn_id and turn_id not in turns:
        raise UsageError(f"run {run_id[:8]} has no turn {visible(turn_id[:20])!r}")
    # The functions that it was given by hand, as far as a handle of this kernel knows them.
    last = frontend().namespace().get("_run")
    tools = last.given_tools if isinstance(last, Run) and last.id == run_id else None
    # Another answer to the same question: the person's next options are not meant.
    options, dropped = (RunOptions(), ()) if do == "retry" else output.options(run)
    given = Ask(prompt=words, parent_id=run_id, tools=tools, options=options, dropped=dropped)
    if do == "continue" or not turns:
        return replace(given, kind="continue" if words else "resume")
    turn_id = turn_id or turns[-1]
    holds_calls = do == "retry" and not words
    return replace(given, kind="fork", fork_turn=turn_id, holds_calls=holds_calls)


def _compare(output: Output, run_id: str) -> None:
    """Show below how the run differs from the one that it came from, or from its neighbour."""
    run = output.load(run_id)
    others = [one for one in output.run_ids if one != run_id]
    other = run.parent_id or next(iter(reversed(others)), None) or _newest_other(run)
    if other is None:
        raise UsageError("there is no other run in this session; fork or retry this one first")
    if output.at_work:
        raise UsageError("a run in this output is still running; wait for its end")
    output.add(other, run_id)
    output.show_saved()


def _newest_other(run: RunRecord) -> str | None:
    recent = current_store().runs(limit=_RECENT)
    return next((it.id for it in recent if it.id != run.id and it.session == run.session), None)


def _reply(output: Output, run_id: str, said: str, text: str = "") -> None:
    if _actions is not None:
        _actions.send({"run": run_id, "at": output.id, "said": said, "text": text})


def _failed(output: Output, run_id: str, error: Exception) -> None:
    _reply(output, run_id, visible(redact_cut(str(error))))
