"""The buttons below a run that is over: they work while the kernel lives, in every output.

A saved output is plain HTML. One widget model without a view listens for clicks in all of them;
which verbs there are stands here. None of them approves anything, and what a page says is hostile
until it was checked. The panel is an output, too: there is one path for each verb.
"""

# ipywidgets and anywidget have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import anywidget
import traitlets

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import UsageError
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_truncated, register_environment
from nbagent.export.cell import cell_text
from nbagent.notebook.clicks import aside, start_by_click
from nbagent.notebook.outputs import KERNEL, ListOutput, Output, loaded_anew, output_of
from nbagent.notebook.run_widget import OutputView, listen, script
from nbagent.run import tools_given_to
from nbagent.session.frontend import frontend
from nbagent.session.request import Ask
from nbagent.session.stores import current_store
from nbagent.settings.options import RunOptions
from nbagent.view.node import Node, h
from nbagent.view.words import began, clean, one_line, visible

FIELD_CHARS = 100_000
_WORD_CHARS = 200
_SEARCH_CHARS = 1_000
_RECENT = 200
_OFFERED = 40
_PROMPT_CHARS = 60
_TIMES = ("1", "2", "3", "4", "5")
_STARTS = ("continue", "retry", "fork")
_WORDS = "What else should the model be told? (may stay empty)"
_TITLES = {"continue": "Continue", "retry": "Retry", "fork": "Fork", "compare": "Compare"}
"""The verbs that ask for something first, and what the button of their form says."""


@dataclass(frozen=True, slots=True)
class Click:
    """A button of a run that is over."""

    do: str
    run_id: str
    turn_id: str = ""
    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    """What its form says: `prompt` (continue, fork), `n` (retry), `other` (compare)."""
    has_form: bool = False
    """Whether the form was filled in; else it is what is wanted."""

    @property
    def n(self) -> int:
        """How many answers a retry asks for."""
        asked = self.fields.get("n", "1")
        return int(asked) if asked in _TIMES else 1


def read_click(told: Mapping[str, Any]) -> Click | None:
    """A message of a page, checked; None where it is none."""
    do, run_id, turn_id = told.get("do"), told.get("run", ""), told.get("turn", "")
    given = told.get("fields")
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    words = (do, run_id, turn_id, *fields)
    if not all(isinstance(word, str) and len(word) <= _WORD_CHARS for word in words):
        return None
    if not all(isinstance(it, str) and len(it) <= FIELD_CHARS for it in fields.values()):
        return None
    return Click(str(do), str(run_id), str(turn_id), fields, given is not None)


def form_of(click: Click, run: RunRecord) -> Node | None:
    """What a button asks before it does something; None for one that asks nothing.

    The page puts it below the button, and sends the click again with its fields.

    Raises:
        UsageError: there is no run to compare with.
    """
    if click.do in ("continue", "fork"):
        box = h("textarea", "", rows="2", spellcheck="false", data_field="prompt")
        asked = h("label", "nba-lab", _WORDS, box)
    elif click.do == "retry":
        answers = [("1", "1 answer"), *((n, f"{n} answers") for n in _TIMES[1:])]
        note = "Their calls run when you choose one with Continue"
        asked = h("span", "nba-lab", _chooser("n", answers, "How many answers"), f" {note}")
    elif click.do == "compare":
        others = others_of(run)
        if not others:
            raise UsageError("there is no other run yet; fork or retry this one first")
        rows = [(it.id, _about(it)) for it in others]
        asked = h("label", "nba-lab", "With which run? ", _chooser("other", rows, "Other run"))
    else:
        return None
    return h(
        "div",
        "nba-words",
        asked,
        h("button", "nba-go", _TITLES[click.do], type="button", data_do="go"),
        h("button", "", "Cancel", type="button", data_do="cancel"),
        data_do=click.do,
        data_turn=click.turn_id or None,
        data_lm_suppress_shortcuts="true",
    )


def _chooser(name: str, options: Sequence[tuple[str, str]], label: str) -> Node:
    made = [h("option", "", words, value=value) for value, words in options]
    return h("select", "", *made, data_field=name, aria_label=label)


def _about(run: RunRecord) -> str:
    prompt = one_line(clean(run.prompt), _PROMPT_CHARS) or "(no prompt)"
    return f"{run.id[:8]} · {prompt} · {visible(run.model)} · {began(run.started_at)}"


def others_of(run: RunRecord) -> list[RunRecord]:
    """What a run can be compared with: the run before it first, its session's, then the last."""
    recent = [it for it in current_store().runs(limit=_RECENT) if it.id != run.id]
    here = [it for it in recent if it.session == run.session]
    before = [it for it in here if it.started_at <= run.started_at]
    first = [it for it in recent if it.id == run.parent_id] or before[:1]
    return list({it.id: it for it in (*first, *here, *recent)}.values())[:_OFFERED]


def asked(click: Click, output: Output) -> Ask:
    """What a button wants to be started, after a run that is over.

    The calls of a retry's answer wait until it is chosen (continue); `click.n` is how often it is
    started.

    Raises:
        UsageError: the run has no such turn, or another one is at work in the output.
    """
    register_environment()
    run = _free(output, click.run_id)
    turns = [turn.id for turn in run.turns]
    if click.turn_id and click.turn_id not in turns:
        raise UsageError(f"run {run.id[:8]} has no turn {visible(click.turn_id[:20])!r}")
    tools = tools_given_to(run.id, frontend().namespace())
    words = click.fields.get("prompt", "").strip() or None
    # Another answer to the same question: the next options of the panel are not meant.
    options, dropped = (RunOptions(), ()) if click.do == "retry" else output.options(run)
    base = Ask(prompt=words, parent_id=run.id, tools=tools, options=options, dropped=dropped)
    if click.do == "continue" or not turns:
        return replace(base, kind="continue" if words else "resume")
    turn_id = click.turn_id or turns[-1]
    return replace(base, kind="fork", fork_turn=turn_id, holds_calls=click.do == "retry")


# The page's half of an output


class PageActions(anywidget.AnyWidget):
    """One for a kernel; never displayed."""

    _esm = script()
    kind = traitlets.Unicode("actions").tag(sync=True)
    kernel = traitlets.Unicode(KERNEL).tag(sync=True)
    was_ready = False
    """Whether a page has it, or had."""


_actions: PageActions | None = None


def offer() -> None:
    """Give the static pictures of this kernel their buttons. In a front end with widgets only."""
    global _actions
    if _actions is None:
        _actions = PageActions()
        listen(_actions, heard)


def heard(message: object) -> None:
    """A button was clicked. In whichever thread the message arrives: it only asks."""
    told = json_object(message) or {}
    if told.get("kind") == "ready" and _actions is not None:
        if _actions.was_ready:
            loaded_anew()
        _actions.was_ready = True
    output, click = output_of(told.get("at")), read_click(told)
    if output is None or click is None:
        return
    reply = partial(_reply, output, click.run_id)
    if isinstance(output, ListOutput):
        do, is_known = partial(_do_in_list, output), click.do in ("show", "search")
    else:
        do, is_known = partial(_do, output), click.do in (*_TITLES, "cell")
        is_known = is_known and click.run_id in output.run_ids
    failed, context = partial(_failed, reply), output.context
    if is_known and click.do in _STARTS and click.has_form:
        reply(said="Starts as soon as the kernel is free")
        views = output.view(click.n) if output.view else OutputView(output, click.n)
        start_by_click(
            lambda: asked(click, output),
            show=views.open,
            n=click.n,
            no_more=views.no_more,
            failed=failed,
            context=context,
        )
    elif is_known:
        aside(lambda: do(click, reply), failed=failed, context=context)


def _check_updates(output: Output, run_id: str) -> None:
    """Nothing is asked whose result could not be shown."""
    if not output.takes_updates:
        raise UsageError(
            f"this page was loaded anew: %agent show {visible(run_id[:8])} in a cell gives the run "
            "with buttons that work"
        )


def _free(output: Output, run_id: str) -> RunRecord:
    """One of the runs of an output in which nothing is at work."""
    _check_updates(output, run_id)
    if output.at_work:
        raise UsageError("a run in this output is still running; stop it or wait for its end")
    return output.load(run_id)


def _do(output: Output, click: Click, reply: Callable[..., None]) -> None:
    """Do what starts no run. In a thread of its own: the kernel may be busy."""
    run = output.load(click.run_id)
    if click.do == "cell":
        reply(said="Copied: paste it into a cell", text=cell_text(run))
    elif click.do in _TITLES and not click.has_form:
        _check_updates(output, run.id)
        reply(form=form_of(click, run))
    elif click.do == "compare":
        _free(output, run.id)
        both = [current_store().load(click.fields.get("other", "")), run]
        output.add(*(it.id for it in sorted(both, key=lambda it: it.started_at)))
        output.show_saved()


def _do_in_list(output: ListOutput, click: Click, reply: Callable[..., None]) -> None:
    if click.do == "show":
        _check_updates(output, click.run_id)
        output.open(click.run_id)
        reply(said="")
    elif click.do == "search" and output.search:
        reply(list=output.search(click.fields.get("search", "")[:_SEARCH_CHARS]).node(output.id))


def _reply(output: Output, run_id: str, **said: object) -> None:
    if _actions is not None:
        _actions.send({"run": run_id, "at": output.id, **said})


def _failed(reply: Callable[..., None], error: Exception) -> None:
    reply(said=visible(redact_truncated(str(error))))
