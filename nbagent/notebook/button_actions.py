"""Buttons below finished runs: they work in every output while the kernel is alive.

A saved output is plain HTML. One widget model without a view listens for clicks in all outputs,
the panel included, so each action has one path. No action approves a call, and messages of a page
are untrusted until they were checked.
"""

# ipywidgets and anywidget have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import anywidget
import traitlets

from nbagent.contracts.errors import NbagentError, UsageError
from nbagent.contracts.records import RunRecord, RunSummary
from nbagent.contracts.secrets import register_environment
from nbagent.export.cell import cell_text
from nbagent.notebook.clicks import reason, run_in_thread, start_by_click
from nbagent.notebook.live_output import listen
from nbagent.notebook.messages import Message, read_message
from nbagent.notebook.outputs import (
    KERNEL,
    ListOutput,
    Output,
    find_output,
    forget_tabs,
    note_tab,
)
from nbagent.notebook.page_module import script
from nbagent.notebook.run_widget import RunOutput
from nbagent.run import tools_passed_to
from nbagent.session.frontend import frontend
from nbagent.session.request import RunRequest
from nbagent.session.stores import current_store
from nbagent.settings.options import RunOptions
from nbagent.view.buttons import FORM_TITLES
from nbagent.view.node import Node, h
from nbagent.view.run_rows import run_row
from nbagent.view.text_format import sanitize_value

_SEARCH_CHARS = 1_000
_RECENT_RUNS = 200
_MAX_OTHERS = 40
_RUN_STARTING = ("continue", "retry", "fork")
_OF_PAGE = ("cell", "search", "cases")
"""Actions that change no output of a run."""
_PROMPT_LABEL = "Further instructions for the model (optional)"


def form_node(click: Message, run: RunRecord) -> Node | None:
    """Draw the form of a button; None if it has none.

    The page inserts it below the button and sends the click again with its fields.

    Raises:
        UsageError: there is no run to compare with.
    """
    if click.do in ("continue", "fork"):
        box = h("textarea", "", rows="2", spellcheck="false", data_field="prompt")
        question = h("label", "nba-lab", _PROMPT_LABEL, box)
    elif click.do == "retry":
        note = "The model is asked again. Tool calls of its answer run when you press Continue"
        question = h("span", "nba-lab", note)
    elif click.do == "compare":
        others = comparable_runs(run)
        if not others:
            raise UsageError("there is no other run yet; fork or retry this one first")
        rows = [(other.id, run_row(other).label()) for other in others]
        question = h(
            "label", "nba-lab", "With which run? ", _select_node("other", rows, "Other run")
        )
    else:
        return None
    return h(
        "div",
        "nba-words",
        question,
        h("button", "nba-go", FORM_TITLES[click.do], type="button", data_do="go"),
        h("button", "", "Cancel", type="button", data_do="cancel"),
        data_do=click.do,
        data_turn=click.turn or None,
        data_lm_suppress_shortcuts="true",
    )


def _select_node(name: str, options: Sequence[tuple[str, str]], label: str) -> Node:
    options_nodes = [h("option", "", title, value=value) for value, title in options]
    return h("select", "", *options_nodes, data_field=name, aria_label=label)


def comparable_runs(run: RunRecord) -> list[RunSummary]:
    """List runs to compare with: the previous run first, then its session's, then the newest."""
    recent = [other for other in current_store().runs(limit=_RECENT_RUNS) if other.id != run.id]
    same_session = [other for other in recent if other.session == run.session]
    before = [other for other in same_session if other.started_at <= run.started_at]
    first = [other for other in recent if other.id == run.parent_id] or before[:1]
    return list({other.id: other for other in (*first, *same_session, *recent)}.values())[
        :_MAX_OTHERS
    ]


def to_request(click: Message, output: Output) -> RunRequest:
    """Build the request for the run that a button starts.

    A retry defers its tool calls until its answer is chosen with Continue.

    Raises:
        UsageError: the run has no such turn, or another run is running in the output.
    """
    register_environment()  # the typed prompt may contain a key that a cell has set since
    run = _load_idle(output, click)
    turns = [turn.id for turn in run.turns]
    if click.turn and click.turn not in turns:
        raise UsageError(f"run {run.id[:8]} has no turn {sanitize_value(click.turn[:20])!r}")
    tools = tools_passed_to(run.id, frontend().namespace())
    prompt = click.fields.get("prompt", "").strip() or None
    # A retry answers the same request again, so the panel's options for the next run do not apply.
    options, dropped = (RunOptions(), ()) if click.do == "retry" else output.options(run)
    base = RunRequest(
        prompt=prompt, parent_id=run.id, tools=tools, options=options, not_inherited=dropped
    )
    if click.do == "continue" or not turns:
        return replace(base, kind="continue" if prompt else "resume")
    turn_id = click.turn or turns[-1]
    return replace(base, kind="fork", fork_turn=turn_id, defer_calls=click.do == "retry")


# The widget in the page


class PageActions(anywidget.AnyWidget):
    """Widget model of a kernel's buttons. One per kernel, never displayed."""

    _esm = script()
    kind = traitlets.Unicode("actions").tag(sync=True)
    kernel = traitlets.Unicode(KERNEL).tag(sync=True)


_actions: PageActions | None = None


def enable_buttons() -> None:
    """Make the buttons of this kernel's saved pictures work. Needs a front end with widgets."""
    global _actions
    if _actions is None:
        forget_tabs()
        _actions = PageActions()
        listen(_actions, on_message)


def on_message(message: object) -> None:
    """Handle a click. Any thread: the work itself is queued or done in a thread of its own."""
    click = read_message(message)
    if click is None:
        return
    if click.kind == "ready" and _actions is not None:
        note_tab(click.tab)
    output = find_output(click.at)
    if output is None or click.kind != "act":
        return
    reply = partial(_reply, output, click)
    if isinstance(output, ListOutput):
        do, is_known = partial(_do_in_list, output), click.do in ("show", "search", "cases")
    else:
        do, is_known = partial(_act, output), click.do in (*FORM_TITLES, "cell")
        is_known = is_known and click.run in output.run_ids
    failed, context = partial(_failed, reply), output.context
    if is_known and click.do not in _OF_PAGE and not output.takes_updates(click.tab):
        run_in_thread(lambda: _check_page(output, click), on_error=failed, context=context)
    elif is_known and click.do in _RUN_STARTING and click.has_form:
        reply(said="Starts as soon as the kernel is free")
        start_by_click(
            lambda: to_request(click, output),
            show=output.open_view or partial(RunOutput, output),
            on_error=failed,
            context=context,
        )
    elif is_known:
        run_in_thread(lambda: do(click, reply), on_error=failed, context=context)


def _check_page(output: Output, click: Message) -> RunRecord:
    """Load the run of a click, whose result the page can show.

    Raises:
        UsageError: the run was deleted, or the page does not apply updates of the output.
    """
    run, short = _load(output, click.run), sanitize_value(click.run[:8])
    if not output.takes_updates(click.tab):
        raise UsageError(
            "nothing was started: this page was loaded after the run; "
            f"%agent show {short} in a cell shows the run with working buttons"
        )
    return run


def _load(output: Output, run_id: str) -> RunRecord:
    try:
        return output.load(run_id)
    except NbagentError as error:
        if error.code != "ENOENT":
            raise
        raise UsageError(f"run {sanitize_value(run_id[:8])} was deleted") from None


def _load_idle(output: Output, click: Message) -> RunRecord:
    """Load a run of an output; raise UsageError if a run is running in it."""
    run = _check_page(output, click)
    if output.running_id:
        raise UsageError(
            "nothing was started: a run in this output is still running; stop it or wait for its "
            "end"
        )
    return run


def _act(output: Output, click: Message, reply: Callable[..., None]) -> None:
    """Do an action that starts no run. In a thread of its own: the kernel may be busy."""
    run = _load(output, click.run)
    if click.do == "cell":
        reply(said="Copied: paste it into a cell", text=cell_text(run))
    elif click.do in FORM_TITLES and not click.has_form:
        reply(form=form_node(click, run))
    elif click.do == "compare":
        _load_idle(output, click)
        # The older run first: a comparison shows what the later one changed.
        both = [current_store().load(click.fields.get("other", "")), run]
        output.add(*(record.id for record in sorted(both, key=lambda record: record.started_at)))
        output.show_saved()


def _do_in_list(output: ListOutput, click: Message, reply: Callable[..., None]) -> None:
    if click.do == "cases":
        if not output.takes_updates(click.tab):
            raise UsageError(
                "this page was loaded after the batch; batch.page() in a cell shows all cases"
            )
        output.open_cases()
        reply(said="")
    elif click.do == "show":
        _load(output, click.run)
        output.open(click.run)
        reply(said="")
    elif click.do == "search" and output.search:
        reply(list=output.search(click.fields.get("search", "")[:_SEARCH_CHARS]).node(output.id))


def _reply(output: Output, click: Message, **said: object) -> None:
    """Reply to the page of a click, and to no other: a person may type there."""
    if _actions is not None:
        _actions.send({"run": click.run, "at": output.id, "tab": click.tab, **said})


def _failed(reply: Callable[..., None], error: Exception) -> None:
    reply(said=reason(error))
