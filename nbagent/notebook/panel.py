"""The panel: a prompt box, a form and a conversation beside the cells. `panel()` opens it.

One per kernel, even if it is shown several times. `button_actions` handles the buttons below its
runs, as in other outputs. Typed text arrives as messages and is never stored in a trait, because a
notebook may be saved with its traits. The kernel's main thread starts a run when it is free.
"""

# ipywidgets and anywidget have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nbagent.contracts.errors import NbagentError, UsageError, error_from_info
from nbagent.contracts.messages import TextPart
from nbagent.contracts.ports import RunControls
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_truncated, register_environment
from nbagent.export.formats import FORMATS
from nbagent.notebook import button_actions, kernel, panel_lists
from nbagent.notebook.case_page import CASE_CODE, LiveCases, batch_cases
from nbagent.notebook.clicks import run_in_thread, run_on_main_loop, start_by_click
from nbagent.notebook.live_output import comm_id, listen
from nbagent.notebook.messages import Message, read_message
from nbagent.notebook.outputs import Output
from nbagent.notebook.page_module import script, stylesheet
from nbagent.notebook.panel_form import Form, without_keys
from nbagent.notebook.panel_sidecar import PanelPosition, SidecarTab, panel_position
from nbagent.notebook.prompt_names import evaluate
from nbagent.notebook.run_widget import LiveRun
from nbagent.providers.default_model import choose_default_model
from nbagent.run import Run
from nbagent.session.frontend import frontend
from nbagent.session.inherit import without_foreign_options
from nbagent.session.models import resolve_settings
from nbagent.session.request import RunRequest
from nbagent.session.stores import current_store
from nbagent.session.template import render
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import current_settings
from nbagent.view.advice import for_panel
from nbagent.view.case_table import CASES_KEY
from nbagent.view.node import Node
from nbagent.view.page_code import read_page_file
from nbagent.view.run_status import is_unfinished, waits_for_words
from nbagent.view.text_format import sanitize_value
from nbagent.view.theme import cases_stylesheet

MAX_SHOWN_RUNS = 30
"""Runs of a conversation that a page shows at first."""
_DRAFT_CHARS = 2_000_000
"""A longer draft is in its page only."""
ALL_FORGOTTEN = "All runs of this conversation were deleted; the next prompt starts a new one"
_WIDGET = "application/vnd.jupyter.widget-view+json"


class PanelWidget(anywidget.AnyWidget):
    """Widget of the panel. Its traits have no pictures: a page asks for them when it is ready."""

    _esm = script(*CASE_CODE, "panel.js")
    _css = f"{stylesheet()}\n{cases_stylesheet()}\n{read_page_file('panel.css')}"
    kind = traitlets.Unicode("panel").tag(sync=True)
    fields = traitlets.List().tag(sync=True)
    exports = traitlets.List().tag(sync=True)
    """Formats of the export buttons, each as `[word, title]`."""
    state = traitlets.Dict().tag(sync=True)


class Panel(Output):
    """The panel of this kernel: one conversation at a time, shown in any number of places."""

    def __init__(self) -> None:
        """Start with an empty conversation and a form filled from the settings."""
        super().__init__()
        self._lock = threading.RLock()  # reentrant: `_open` and `_ended` push the state inside it
        self._form = Form()
        self._records: dict[str, RunRecord] = {}
        """Records of the conversation in memory, by run id."""
        self._live_runs: dict[str, LiveRun] = {}
        """The view of the running run, by its id."""
        self._cases: LiveCases | None = None
        """All cases of a batch, which are shown in place of the conversation."""
        self._error = self._status = self._draft = self._default_model = ""
        self._tab, self._notice = SidecarTab(), ""
        self._has_listed = False
        """True if a page has asked for a list since the last report of a change."""
        self._unsent_prompts: dict[str, str] = {}
        """Prompts that have not started yet, by the ids of their messages."""
        self.open_view = partial(self._open, "", "")
        exports = [[word, row.title] for word, row in FORMATS.items() if row.in_panel]
        self.widget = PanelWidget(fields=Form.fields(), exports=exports)
        listen(self.widget, self.on_message)
        shell: Any = get_ipython()
        shell.events.register("post_run_cell", self._on_cell_run)

    # Display

    def show(self, where: PanelPosition = "below") -> None:
        """Display the panel below the cell that runs now, and its saved form.

        At the right, the page has one line below the cell while the panel is there.
        """
        # Prints of tools go to the cell where the panel was shown last.
        self.context = contextvars.copy_context()
        self.refresh()
        display(self._view, raw=True)  # front ends without widgets use the saved form
        self._save(update=False)
        self._move(where)

    @property
    def _view(self) -> dict[str, Any]:
        view = {"version_major": 2, "version_minor": 0, "model_id": comm_id(self.widget)}
        return {_WIDGET: view}

    def _move(self, where: str) -> None:
        """Open or close the tab at the right."""
        self._notice = ""
        if where == "right":
            self._notice = self._tab.open(self._view)
        else:
            self._tab.close()
        self._push_state()

    def _save(self, *, update: bool = True) -> None:
        bundle, metadata = panel_lists.saved_form([self.load(run_id) for run_id in self.run_ids])
        display(bundle, raw=True, display_id=self.id, update=update, metadata=metadata)

    def show_saved(self, *at_hand: RunRecord) -> None:
        """Redraw the conversation after a part other than a run was added."""
        self._send_conversation()
        self._save()

    def _push_state(self, error: str | None = None) -> None:
        """Send the present state to every page. Any thread."""
        with self._lock:
            self._error = self._error if error is None else error
            last, free = self._last, not self.running_id
            self.widget.state = {
                **self._form.state(),
                "working": self.running_id,
                "can_continue": free and last is not None and is_unfinished(last),
                "goes_on": last is not None,
                "waits": free and last is not None and waits_for_words(last),
                "beside": self._tab.is_open,
                "notice": self._notice,
                "usual": last.model if last else self._default_model,
                "status": self._status if free else "Running",
                "error": self._error,
                "totals": panel_lists.totals_text([self.load(run_id) for run_id in self.run_ids]),
            }

    @property
    def _last(self) -> RunRecord | None:
        """The run that the next prompt continues; None for a new conversation."""
        # A comparison (two ids) is skipped. A list of answers counts as the original run, until the
        # person chooses an answer.
        runs = (self.load(part[0]) for part in reversed(self.parts) if len(part) != 2)
        return next((run for run in runs if run.turns or run.messages), None)

    def _on_cell_run(self, _result: object) -> None:
        self._run_on_main_loop(self.refresh)
        self._lists_changed()

    def _lists_changed(self) -> None:
        """Let the pages ask again for the lists that they show. Any thread."""
        if self._has_listed:
            self._has_listed = False
            self.widget.send({"kind": "lists"})

    def refresh(self) -> None:
        """Update the form: the notebook may have other tools than before."""
        try:
            self._default_model = (
                current_settings().model or choose_default_model(os.environ).model_id
            )
            self._form.update_tools(frontend().namespace())
            self._push_state()
        except NbagentError as error:
            self._fail(error)

    def _send_conversation(self, page: str = "", n: int = MAX_SHOWN_RUNS) -> None:
        """Send the conversation to one page, or to all."""
        cases = self._cases
        drawn = [cases.picture()] if cases else self._draw(self._load_parts(self.parts[-n:]))
        conversation = {
            "draft": self._draft,
            "pictures": drawn,
            "more": 0 if cases else max(0, len(self.parts) - n),
        }
        # With the state: a page that is loading may have missed its last change.
        self.widget.send(
            {"kind": "thread", "page": page, "state": self.widget.state, **conversation}
        )
        for ops in cases.rest() if cases else ():
            self.widget.send({"run": CASES_KEY, "ops": ops, "page": page})

    def load(self, run_id: str) -> RunRecord:
        """Return the record of a run of the conversation."""
        return self._records.get(run_id) or current_store().load(run_id)

    def _node(self, records: list[RunRecord], choice: str) -> Node:
        live = self._live_runs.get(records[0].id) if len(records) == 1 else None
        return super()._node(records, choice) if live is None else live.picture()

    # Messages of the pages

    def on_message(self, content: object) -> None:
        """Handle a message of a page in the thread where it arrived, also while a cell runs."""
        try:
            if message := read_message(content):
                self.context.copy().run(self._dispatch, message)
        except Exception as error:
            self._fail(error)

    def _dispatch(self, message: Message) -> None:
        match message.kind:
            case "ready" if message.page:
                self._on_ready(message.page)
            case "draft":
                is_short = len(message.text) <= _DRAFT_CHARS
                self._draft = without_keys(message.text) if is_short else ""
            case "field":
                self._form.set(message.name, message.value)
                self._push_state(self._form.problem(message.name))
            case "attach":
                self._form.attach(message.name, message.data)
                self._push_state()  # without "": one of several files may have been refused
            case "detach":
                self._form.detach(message.value)
                self._push_state("")
            case "send" | "continue" as kind:
                self._submit(message.id, message.prompt, is_send=kind == "send")
            case "stop" | "pause":
                self._stop(message.kind)
            case "open" | "label" if message.run == CASES_KEY:
                if self._cases is not None:
                    self._run_in_thread(partial(self._cases.act, message))
            case "open" if message.name == "batch":
                self._run_in_thread(partial(self._open_cases, message.value))
            case "open":
                self._open_run(message.value)
            case "new":
                self._set_conversation(())
            case "below":
                self._move("below")
            case "more":
                self._send_conversation(str(message.page), len(self.parts))
            case "list":
                self._run_in_thread(partial(self._list, message))
            case "export":
                self._run_in_thread(partial(self._export, message))
            case _:
                self._forward_to_views(message)

    def _on_ready(self, page: int | str) -> None:
        # Read before the pictures are drawn: a run that ends meanwhile leaves `_live_runs`, and
        # this page would show it as running for good.
        live_runs = [*self._live_runs.values()]
        self._send_conversation(str(page))
        # In this order: the views then send pictures that include everything up to now.
        for live in live_runs:
            live.updates.page_ready(page)

    def _forward_to_views(self, message: Message) -> None:
        for live in [*self._live_runs.values()]:
            live.on_message(message)

    def _stop(self, kind: str) -> None:
        with self._lock:
            withdrawn = dict(self._unsent_prompts)
            self._unsent_prompts.clear()
        for message_id, prompt in withdrawn.items():
            self._return_prompt(message_id, prompt)
        self._forward_to_views(Message(kind=kind))

    def _submit(self, message_id: str, prompt: str, *, is_send: bool) -> None:
        self._unsent_prompts[message_id] = prompt
        # If Stop withdraws the prompt first, the look-up fails and `_on_start_error` ignores it.
        start_by_click(
            lambda: self._request(self._unsent_prompts[message_id], is_send=is_send),
            show=partial(self._open, message_id, prompt),
            on_error=partial(self._on_start_error, message_id),
            context=self.context,
        )

    # Runs

    def _request(self, prompt: str, *, is_send: bool) -> RunRequest:
        if self.running_id:
            raise UsageError("a run of this panel is still running; stop it or wait for its end")
        self.refresh()
        parent, attached = self._last, self._form.attached()
        options, dropped = self.options(parent)
        literal = not resolve_settings(options, current_settings()).template
        rendered = render(prompt, partial(evaluate, get_ipython(), in_cell=False), literal=literal)
        walks = options.workflow or options.document or (parent and parent.workflow)
        is_silent = not rendered.prompt.strip() and not attached and (walks or not is_send)
        parts = rendered.parts or (TextPart(text=rendered.prompt),)
        is_new = not options.document and parent is None
        return RunRequest(
            prompt=None if is_silent else rendered.prompt,
            parts=(*parts, *attached) if attached else rendered.parts,
            template=prompt if rendered.expressions else None,
            options=options,
            kind="start" if is_new else "continue" if parent and is_send else "resume",
            parent_id=parent.id if parent else None,
            not_inherited=dropped,
            notices=rendered.warnings,
        )

    def options(self, run: RunRecord | None) -> tuple[RunOptions, tuple[str, ...]]:
        """Options of the form for a run that continues or forks `run`."""
        return self._form.options(run)

    def _open(self, message_id: str, prompt: str, run: RunRecord, controls: RunControls) -> LiveRun:
        """Open the view of a starting run."""
        ended = partial(self._ended, prompt, controls)
        live = LiveRun(run, controls, send=self.widget.send, ended=ended, kernel_id=self.id)
        live.can_answer = True  # a person clicked in a page
        with self._lock:
            self._live_runs[run.id], self.running_id, self._status = live, run.id, ""
            self._draft = "" if self._draft.strip() == without_keys(prompt).strip() else self._draft
            self._records[run.id] = run
            if message_id and self._unsent_prompts.pop(message_id, None) is None:
                controls.stop()  # the person cancelled it while it was starting
            had_cases = self._close_cases()
            self.add(run.id)
            self._form.detach()
            self._push_state("")
        self.widget.send({"kind": "taken", "id": message_id, "prompt": without_keys(prompt)})
        if had_cases:
            self._send_conversation()
        self.widget.send({"run": run.id, "ops": [["done", live.picture()]]})
        return live

    def _on_start_error(self, message_id: str, error: Exception) -> None:
        prompt = self._unsent_prompts.pop(message_id, None)
        if prompt is not None:  # None: the person cancelled it
            self._return_prompt(message_id, prompt)
            self._fail(error)

    def _return_prompt(self, message_id: str, prompt: str) -> None:
        """Return a prompt that did not start to the pages, reloaded ones included."""
        self.widget.send({"kind": "refused", "id": message_id, "prompt": without_keys(prompt)})

    def _ended(self, prompt: str, controls: RunControls, run: RunRecord) -> None:
        """Handle the end of a run, or a failure before it started. Any thread."""
        with self._lock:
            self._records[run.id] = run
            self._live_runs, self.running_id = {}, ""
            if run.phase == "Running":  # it never started: only the controls know the reason
                run = getattr(controls, "record", run)
                self._remove_from_conversation({run.id})
                self._send_conversation()
                self._return_prompt("", prompt)
                self._fail(
                    error_from_info(run.error)
                    if run.error
                    else UsageError("the run failed before it started")
                )
            else:
                self._push_state("")
        self._run_on_main_loop(self._refresh_and_save)

    def _refresh_and_save(self) -> None:
        self.refresh()
        self._save()
        self._lists_changed()

    def _run_on_main_loop(self, work: Callable[[], object]) -> None:
        run_on_main_loop(work, on_error=self._fail, context=self.context)

    def _fail(self, error: Exception) -> None:
        """Show an error in one line."""
        text = f"nbagent itself failed: {type(error).__name__}: {error}"
        text = for_panel(error.message) if isinstance(error, NbagentError) else text
        self._push_state(" ".join(sanitize_value(redact_truncated(text)).splitlines()))

    # The conversation

    def _open_run(self, run_id: str) -> None:
        """Show a run and the runs that it continues; the next prompt continues it."""
        if not self.running_id:
            runs = panel_lists.lineage(run_id)
            self._set_conversation(runs)
            run = runs[-1]
            # The form's values are the person's choice at the next run, so none is another's.
            if current_store().is_foreign(run.id):
                run = without_foreign_options(run)
            self._form.fill(run, frontend().namespace())
            self._push_state()

    def _open_cases(self, name: str) -> None:
        """Show all cases of a batch; the next prompt, run or conversation is shown instead."""
        cases = LiveCases(batch_cases(name))
        cases.updates.send = self.widget.send
        self._cases = cases
        cases.on_pages(True)
        self._push_state("")
        self._send_conversation()

    def _close_cases(self) -> bool:
        """Show the conversation again; True if cases were shown."""
        cases, self._cases = self._cases, None
        if cases is not None:
            cases.on_pages(False)
            cases.updates.send = lambda message: None
        return cases is not None

    def _set_conversation(self, runs: Sequence[RunRecord]) -> None:
        self._close_cases()
        if not self.running_id:
            self._records = {run.id: run for run in runs}
            self.parts = [(run.id,) for run in runs]
            self._conversation_changed()

    def remove_runs(self, run_ids: Collection[str]) -> None:
        """Remove deleted runs; the conversation continues without them."""
        if any(not set(part).isdisjoint(run_ids) for part in self.parts):
            self._remove_from_conversation(run_ids)
            self._conversation_changed("" if self.parts else ALL_FORGOTTEN)
        else:
            self._lists_changed()

    def _remove_from_conversation(self, run_ids: Collection[str]) -> None:
        self.parts = [part for part in self.parts if set(part).isdisjoint(run_ids)]
        self._records = {i: run for i, run in self._records.items() if i not in run_ids}

    def _conversation_changed(self, status: str = "") -> None:
        """Update the pages after the conversation has changed."""
        self._status = status
        self._push_state("")
        self._send_conversation()
        self._run_on_main_loop(self._refresh_and_save)

    # Lists and files: made in a thread, since the kernel may be busy

    def _run_in_thread(self, work: Callable[[], object]) -> None:
        run_in_thread(work, on_error=self._fail, context=self.context)

    def _list(self, message: Message) -> None:
        """Send a page a list to choose from: models, packages, runs, or the session's tree."""
        self._has_listed = True  # before reading: a later change is reported
        node = panel_lists.list_node(message.name, message.value, self._last)
        reply = {"kind": "list", "key": message.name, "node": node, "page": message.page}
        self.widget.send(reply)

    def _export(self, message: Message) -> None:
        """Send a run to the page as a file.

        The page may still show the conversation of before, so any run of the store can be named.
        """
        run_id, ending = message.run, message.value
        if not run_id or not (row := FORMATS.get(ending)):
            raise UsageError("there is nothing to export yet")
        text = Run(self.load(run_id), current_store()).export(ending)
        name = f"run-{run_id[:8]}.{row.ending}"
        self.widget.send({"kind": "file", "page": message.page, "name": name, "text": text})
        self._push_state("")  # an error of an earlier export is no longer true


_panel: Panel | None = None


def panel_of_this_kernel() -> Panel:
    """Return the panel; create it on first use."""
    global _panel
    _panel = _panel or Panel()
    return _panel


def panel(*, where: PanelPosition = "below", show: bool = True) -> PanelWidget | None:
    """Open the panel below this cell, as `%agent panel` does, or at the right of JupyterLab.

    A kernel has one panel. Another call shows the same panel with its conversation again, in front
    of the other tabs at the right.

    Args:
        where: `right` opens a tab that stays while you scroll; it needs the package sidecar. In a
            front end without that extension the panel stays below the cell.
        show: False returns its widget instead, for an `ipywidgets.VBox` or `Tab`.

    Raises:
        UsageError: this is not a notebook, or `where` is not a position.
    """
    panel_position(where)
    if not kernel.in_kernel():
        raise UsageError(
            "the panel needs a notebook: run nbagent.panel() in a cell of JupyterLab or "
            "Notebook 7; in a script write nbagent.Agent(model=…).run('…'), in a terminal %%agent"
        )
    register_environment()
    button_actions.enable_buttons()
    if not show:
        panel_of_this_kernel().refresh()
        return panel_of_this_kernel().widget
    if not kernel.page_may_come():
        display(panel_lists.saved_form((), panel_lists.HEADLESS)[0], raw=True)
    else:
        panel_of_this_kernel().show(where)
    return None
