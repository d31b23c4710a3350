"""The panel: a prompt box, a form and a conversation beside the cells. `panel()` opens it.

One for a kernel, however often it is shown. It is an output like others: the buttons below its runs
are those of `actions`. What is typed comes as messages and is kept by the kernel, never in a trait:
a notebook may be saved with those. A click only asks: the kernel's main thread begins the run when
it is free, and no cell is held up.
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

from nbagent.contracts.canonical import json_object
from nbagent.contracts.errors import NbagentError, UsageError, error_from_info
from nbagent.contracts.messages import TextPart
from nbagent.contracts.ports import RunControls
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_truncated, register_environment
from nbagent.notebook import actions, kernel, panel_lists
from nbagent.notebook.clicks import aside, later, start_by_click
from nbagent.notebook.outputs import Output, Views
from nbagent.notebook.panel_form import Form, filtered
from nbagent.notebook.prompt_names import evaluate
from nbagent.notebook.run_widget import LiveView, comm_id, listen, script, sheet
from nbagent.providers.default_model import choose_model
from nbagent.run import Run
from nbagent.session.frontend import frontend
from nbagent.session.request import Ask
from nbagent.session.stores import current_store
from nbagent.session.template import render
from nbagent.settings.options import RunOptions
from nbagent.settings.sources import effective
from nbagent.view.labels import is_unfinished
from nbagent.view.node import Node
from nbagent.view.words import visible

Told = dict[str, Any]
"""A message of the page; hostile until it was read by `_text`."""
SHOWN = 30
"""So many runs of a conversation stand on the page at first."""
_DRAFT_CHARS = 100_000
_EXPORTS = ("md", "html", "jsonl", "openai")
FORGOTTEN = "All of this conversation was forgotten; the next prompt begins a new one"
_WIDGET = "application/vnd.jupyter.widget-view+json"


class PanelWidget(anywidget.AnyWidget):
    """The widget. Its state has no pictures: a page asks for them when it is ready."""

    _esm = script("panel.js")
    _css = sheet("panel.css")
    kind = traitlets.Unicode("panel").tag(sync=True)
    fields = traitlets.List().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)


class Panel(Output):
    """The panel of this kernel: one conversation at a time, shown in as many places as wanted."""

    def __init__(self) -> None:
        """Begin with an empty conversation and the form as the settings say."""
        super().__init__()
        self._lock = threading.RLock()
        self._form = Form()
        self._known: dict[str, RunRecord] = {}
        """Runs of the conversation that need not be loaded."""
        self._lives: dict[str, LiveView] = {}
        """The views of what is at work: one run, or several answers to one request side by side."""
        self._left = 0
        """So many of them have not ended."""
        self._error = self._told = self._draft = self._usual = ""
        self._asked: dict[str, str] = {}
        """What was sent and has not begun yet: prompts by the ids of the messages."""
        self.view = lambda n: Views(partial(self._open, "", "", n), partial(self._no_more, n))
        self.widget = PanelWidget(fields=Form.fields())
        listen(self.widget, self.heard)
        shell: Any = get_ipython()
        shell.events.register("post_run_cell", lambda _result: self._later(self.refresh))

    # Shown

    def show(self) -> None:
        """Display the panel below the cell that runs now, and its saved form."""
        # What a tool prints goes to the cell where the panel was shown last.
        self.context = contextvars.copy_context()
        self.refresh()
        view = {"version_major": 2, "version_minor": 0, "model_id": comm_id(self.widget)}
        display({_WIDGET: view}, raw=True)  # elsewhere the saved form below says all
        self._save(update=False)

    def _save(self, *, update: bool = True) -> None:
        bundle, metadata = panel_lists.saved([self.load(run_id) for run_id in self.run_ids])
        display(bundle, raw=True, display_id=self.id, update=update, metadata=metadata)

    def show_saved(self, *at_hand: RunRecord) -> None:
        """Draw the conversation anew: something else than a run was added."""
        self._thread()
        self._save()

    def _push(self, error: str | None = None) -> None:
        """Tell every page how things stand. Any thread."""
        with self._lock:
            self._error = self._error if error is None else error
            last, free = self._last, not self.at_work
            self.widget.state = {
                **self._form.state(),
                "working": self.at_work,
                "can_continue": free and last is not None and is_unfinished(last),
                "goes_on": last is not None,
                "usual": last.model if last else self._usual,
                "status": self._told if free else "At work",
                "error": self._error,
                "totals": panel_lists.totals([self.load(run_id) for run_id in self.run_ids]),
            }

    @property
    def _last(self) -> RunRecord | None:
        """The run that the next words go on from."""
        # Of several answers to one request none, until one is chosen: what was asked again.
        runs = (self.load(part[0]) for part in reversed(self.parts) if len(part) != 2)
        return next((run for run in runs if run.turns or run.messages), None)

    def refresh(self) -> None:
        """Offer what there is now: the notebook may have other tools than before."""
        try:
            self._usual = effective().model or choose_model(os.environ).model_id
            self._form.offer(frontend().namespace())
            self._push()
        except NbagentError as error:
            self._fail(error)

    def _thread(self, page: str = "", n: int = SHOWN) -> None:
        """Send the conversation to one page, or to all."""
        drawn = [self._node(records) for records in self._loaded(self.parts[-n:])]
        told = {"draft": self._draft, "pictures": drawn, "more": max(0, len(self.parts) - n)}
        # A page that is being loaded may have missed the last change of the state.
        self.widget.send({"kind": "thread", "page": page, "state": self.widget.state, **told})

    def load(self, run_id: str) -> RunRecord:
        """A run of the conversation."""
        return self._known.get(run_id) or current_store().load(run_id)

    def _node(self, records: list[RunRecord]) -> Node:
        live = self._lives.get(records[0].id) if len(records) == 1 else None
        return super()._node(records) if live is None else live.picture()

    # Heard

    def heard(self, content: object) -> None:
        """A message of a page, in whichever thread it arrived: also while a cell runs."""
        try:
            self.context.copy().run(self._do, json_object(content) or {})
        except Exception as error:
            self._fail(error)

    def _do(self, told: Told) -> None:
        name, value, page = (_text(told, key) for key in ("name", "value", "page"))
        match told.get("kind"):
            case "ready" if page:
                self._thread(page)
                # After it: what was sent meanwhile is in the pictures that this brings.
                self._tell_views(told)
            case "draft":
                self._draft = filtered(_text(told, "text")[:_DRAFT_CHARS])
            case "field":
                self._form.set(name, value)
                self._push("")
            case "attach":
                self._form.attach(name, _text(told, "data"))
                self._push("")
            case "detach":
                self._form.detach(value)
                self._push("")
            case "send" | "continue" as kind:
                self._ask(_text(told, "id"), _text(told, "prompt"), is_send=kind == "send")
            case "stop" | "pause":
                self._stop(told)
            case "open":
                self._open_run(value)
            case "new":
                self._begin(())
            case "more":
                self._thread(page, len(self.parts))
            case "list":
                self._aside(lambda: self._list(name, value))
            case "export":
                self._aside(lambda: self._export(value, _text(told, "run"), page))
            case _:
                self._tell_views(told)

    def _tell_views(self, told: Told) -> None:
        for live in [*self._lives.values()]:
            live.heard(told)

    def _stop(self, told: Told) -> None:
        with self._lock:
            withdrawn = dict(self._asked)
            self._asked.clear()
        for asked, prompt in withdrawn.items():
            self._refused(asked, prompt)
        self._tell_views({"kind": told["kind"]})

    def _ask(self, asked: str, prompt: str, *, is_send: bool) -> None:
        self._asked[asked] = prompt
        start_by_click(
            lambda: self._wanted(self._asked[asked], is_send=is_send),
            show=partial(self._open, asked, prompt, 1),
            failed=partial(self._not_begun, asked),
            context=self.context,
        )

    # Done, in the kernel's main thread

    def _wanted(self, prompt: str, *, is_send: bool) -> Ask:
        if self.at_work:
            raise UsageError("a run of this panel is still at work; stop it or wait for its end")
        self.refresh()
        parent, attached = self._last, self._form.attached()
        options, dropped = self.options(parent)
        rendered = render(prompt, partial(evaluate, get_ipython()))
        walks = options.workflow or options.document or (parent and parent.workflow)
        is_silent = not rendered.prompt.strip() and not attached and (walks or not is_send)
        parts = rendered.parts or (TextPart(text=rendered.prompt),)
        is_new = not options.document and parent is None
        return Ask(
            prompt=None if is_silent else rendered.prompt,
            parts=(*parts, *attached) if attached else rendered.parts,
            template=prompt if rendered.expressions else None,
            options=options,
            kind="start" if is_new else "continue" if parent and is_send else "resume",
            parent_id=parent.id if parent else None,
            dropped=dropped,
        )

    def options(self, run: RunRecord | None) -> tuple[RunOptions, tuple[str, ...]]:
        """What the form says, for a run that goes on from `run` or is its fork."""
        return self._form.options(run)

    def _open(
        self, asked: str, prompt: str, n: int, run: RunRecord, controls: RunControls
    ) -> LiveView:
        """The view of a run that begins, one of `n`."""
        ended = partial(self._ended, prompt, controls)
        live = LiveView(run, controls, send=self.widget.send, ended=ended, kernel_id=self.id)
        live.heard({"kind": "ready"})  # somebody clicked, so somebody can be asked
        with self._lock:
            self._left = self._left or n
            self._lives[run.id], self.at_work, self._told = live, run.id, ""
            self._draft = "" if self._draft.strip() == filtered(prompt).strip() else self._draft
            self._known[run.id] = run
            if asked and self._asked.pop(asked, None) is None:
                controls.stop()  # it was taken back in this moment
            self.add(run.id)
            self._form.detach()
            self._push("")
        self.widget.send({"kind": "taken", "id": asked, "prompt": filtered(prompt)})
        self.widget.send({"run": run.id, "ops": [["done", live.picture()]]})
        return live

    def _not_begun(self, asked: str, error: Exception) -> None:
        prompt = self._asked.pop(asked, None)
        if prompt is not None:  # else it was taken back
            self._refused(asked, prompt)
            self._fail(error)

    def _refused(self, asked: str, prompt: str) -> None:
        """What was asked is not done: its words go back, also to a page that was loaded anew."""
        self.widget.send({"kind": "refused", "id": asked, "prompt": filtered(prompt)})

    def _ended(self, prompt: str, controls: RunControls, run: RunRecord) -> None:
        """The run that was at work is over, or broke before it had begun. Any thread."""
        with self._lock:
            self._known[run.id] = run
            self._fewer_left(1)
            if run.phase == "Running":  # nothing of it is kept, and only its controls know why
                run = getattr(controls, "record", run)
                self._leave_out({run.id})
                self._thread()
                self._refused("", prompt)
                self._fail(error_from_info(run.error) if run.error else UsageError("it broke off"))
            else:
                self._push("")
        self._later(self._settle)

    def _no_more(self, n: int) -> None:
        """Fewer than `n` answers to one request begin."""
        with self._lock:
            if self._lives:
                self._fewer_left(n - len(self._lives))
        self._later(self._settle)

    def _fewer_left(self, n: int) -> None:
        """So many ended, or never began; after the last one nothing is at work."""
        self._left -= n
        if self._left == 0:
            answers, self._lives, self.at_work = [*self._lives], {}, ""
            if len(answers) > 1:
                asked = next(run.parent_id for i in answers if (run := self._known.get(i)))
                self.add(asked or "", *answers)
                self._thread()

    def _settle(self) -> None:
        self.refresh()
        self._save()

    def _later(self, work: Callable[[], object]) -> None:
        later(work, failed=self._fail, context=self.context)

    def _fail(self, error: Exception) -> None:
        """Say in one line what is wrong and what to do about it."""
        said = f"nbagent itself failed: {type(error).__name__}: {error}"
        said = error.message if isinstance(error, NbagentError) else said
        self._push(" ".join(visible(redact_truncated(said)).splitlines()))

    # The conversation

    def _open_run(self, run_id: str) -> None:
        """Show a run, with those that it goes on from; the next words go on."""
        if not self.at_work:
            runs = panel_lists.lineage(run_id)
            self._begin(runs)
            self._form.fill(runs[-1], frontend().namespace())
            self._push()

    def _begin(self, runs: Sequence[RunRecord]) -> None:
        if not self.at_work:
            self._known = {run.id: run for run in runs}
            self.parts = [(run.id,) for run in runs]
            self._changed()

    def drop(self, run_ids: Collection[str]) -> None:
        """Runs were deleted: they go from the page, and the conversation goes on without them."""
        if any(not set(part).isdisjoint(run_ids) for part in self.parts):
            self._leave_out(run_ids)
            self._changed("" if self.parts else FORGOTTEN)

    def _leave_out(self, run_ids: Collection[str]) -> None:
        self.parts = [part for part in self.parts if set(part).isdisjoint(run_ids)]
        self._known = {i: run for i, run in self._known.items() if i not in run_ids}

    def _changed(self, told: str = "") -> None:
        """The conversation is another one."""
        self._told = told
        self._push("")
        self._thread()
        self._later(self._settle)

    # Other things that a page wants: done beside the kernel, which may be busy

    def _aside(self, work: Callable[[], object]) -> None:
        aside(work, failed=self._fail, context=self.context)

    def _list(self, name: str, value: str) -> None:
        """Send what can be chosen: models, packages, runs, or the runs of the session."""
        node = panel_lists.listed(name, value, self._last)
        self.widget.send({"kind": "list", "key": name, "node": node})

    def _export(self, ending: str, run_id: str, page: str) -> None:
        """Give the page a run of the conversation as a file."""
        if run_id not in self.run_ids or ending not in _EXPORTS:
            raise UsageError("there is nothing to export yet")
        text = Run(self.load(run_id), current_store()).export(ending)
        name = f"run-{run_id[:8]}.{ending.replace('openai', 'openai.jsonl')}"
        self.widget.send({"kind": "file", "page": page, "name": name, "text": text})


def _text(told: Told, name: str) -> str:
    """A text of a message; nothing where there is none."""
    found = told.get(name)
    return found if isinstance(found, str) else ""


_panel: Panel | None = None


def panel_of_this_kernel() -> Panel:
    """The panel, made when it is first wanted."""
    global _panel
    _panel = _panel or Panel()
    return _panel


def panel(*, show: bool = True) -> PanelWidget | None:
    """Open the panel below this cell; `%agent panel` is the same.

    A kernel has one panel. Called again, it shows the same one with its conversation once more.

    Args:
        show: False gives its widget instead, for an `ipywidgets.VBox` or `Tab`.

    Raises:
        UsageError: this is no notebook.
    """
    if not kernel.in_kernel():
        raise UsageError(
            "the panel needs a notebook: run nbagent.panel() in a cell of JupyterLab or "
            "Notebook 7; in a script write nbagent.Agent(model=…).run('…'), in a terminal %%agent"
        )
    register_environment()
    actions.offer()
    if not show:
        panel_of_this_kernel().refresh()
        return panel_of_this_kernel().widget
    if kernel.is_headless():
        display(panel_lists.saved((), panel_lists.HEADLESS)[0], raw=True)
    else:
        panel_of_this_kernel().show()
    return None
