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
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anywidget
import traitlets
from IPython.core.getipython import get_ipython
from IPython.display import display

from nbagent.contracts.canonical import json_object
from nbagent.contracts.chat import TextPart
from nbagent.contracts.errors import NbagentError, UsageError, error_from_info
from nbagent.contracts.ports import RunControls
from nbagent.contracts.records import RunRecord
from nbagent.contracts.secrets import redact_cut, register_environment
from nbagent.notebook import actions, kernel, panel_lists
from nbagent.notebook.clicks import aside, later, start_by_click
from nbagent.notebook.outputs import Output
from nbagent.notebook.panel_form import Form, filtered
from nbagent.notebook.run_view import LiveView, comm_id, listen, script, sheet
from nbagent.notebook.template import evaluate, render
from nbagent.providers.choice import choose_model
from nbagent.run import Run
from nbagent.session.frontend import frontend
from nbagent.session.prepare import Ask
from nbagent.session.stores import current_store
from nbagent.settings import RunOptions, effective
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
        self._live: LiveView | None = None
        """The view of the run that is at work."""
        self._error = self._told = self._draft = self._usual = ""
        self._asked: dict[str, str] = {}
        """What was sent and has not begun yet: prompts by the ids of the messages."""
        self.view = partial(self._open, "", "")
        self.widget = PanelWidget(fields=Form.fields())
        listen(self.widget, self.heard)
        shell: Any = get_ipython()
        shell.events.register("post_run_cell", lambda _result: self._later(self._refresh))

    # Shown

    def show(self) -> None:
        """Display the panel below the cell that runs now, and its saved form."""
        # What a tool prints goes to the cell where the panel was shown last.
        self.context = contextvars.copy_context()
        self.refresh()
        view = {"version_major": 2, "version_minor": 0, "model_id": comm_id(self.widget)}
        display({_WIDGET: view}, raw=True)  # elsewhere the saved form below says all
        self._save(update=False)

    def refresh(self) -> None:
        """Offer what there is now: the notebook may have other tools than before."""
        actions.offer()
        self._refresh()

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
        runs = map(self.load, reversed(self.run_ids))
        return next((run for run in runs if run.turns or run.messages), None)

    def _refresh(self) -> None:
        try:
            self._usual = effective().model or choose_model(os.environ).model_id
            self._form.offer(frontend().namespace())
            self._push()
        except NbagentError as error:
            self._fail(error)

    def _thread(self, page: str = "", n: int = SHOWN) -> None:
        """Send the conversation to one page, or to all."""
        drawn = [self._node([*map(self.load, part)]) for part in self.parts[-n:]]
        told = {"draft": self._draft, "pictures": drawn, "more": max(0, len(self.parts) - n)}
        # A page that is being loaded may have missed the last change of the state.
        self.widget.send({"kind": "thread", "page": page, "state": self.widget.state, **told})

    def load(self, run_id: str) -> RunRecord:
        """A run of the conversation."""
        return self._known.get(run_id) or current_store().load(run_id)

    def _node(self, records: list[RunRecord]) -> Node:
        live = self._live
        is_live = live is not None and [run.id for run in records] == [self.at_work]
        return live.picture() if live is not None and is_live else super()._node(records)

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
                if self._live is not None:
                    # After it: what was sent meanwhile is in the picture that this brings.
                    self._live.heard(told)
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
            case _ if self._live is not None and told.get("run") == self.at_work:
                self._live.heard(told)
            case _:
                pass

    def _stop(self, told: Told) -> None:
        with self._lock:
            live, withdrawn = self._live, dict(self._asked)
            self._asked.clear()
        for asked, prompt in withdrawn.items():
            self._refused(asked, prompt)
        if live is not None:
            live.heard({"kind": told["kind"]})

    def _ask(self, asked: str, prompt: str, *, is_send: bool) -> None:
        self._asked[asked] = prompt
        start_by_click(
            lambda: self._wanted(asked, is_send=is_send),
            show=partial(self._open, asked, prompt),
            failed=lambda error: self._not_begun(asked, prompt, error),
            context=self.context,
        )

    # Done, in the kernel's main thread

    def _wanted(self, asked: str, *, is_send: bool) -> Ask:
        prompt = self._asked.pop(asked, None)
        if prompt is None:
            raise _Withdrawn
        if self.at_work:
            raise UsageError("a run of this panel is still at work; stop it or wait for its end")
        self._refresh()
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

    def _open(self, asked: str, prompt: str, run: RunRecord, controls: RunControls) -> LiveView:
        """The view of a run that begins."""
        ended = partial(self._ended, prompt, controls)
        live = LiveView(run, controls, send=self.widget.send, ended=ended, kernel_id=self.id)
        live.heard({"kind": "ready"})  # somebody clicked, so somebody can be asked
        with self._lock:
            self._live, self.at_work, self._told = live, run.id, ""
            self._draft = "" if self._draft.strip() == filtered(prompt).strip() else self._draft
            self._known[run.id] = run
            self.add(run.id)
            self._form.detach()
            self._push("")
        self.widget.send({"kind": "taken", "id": asked, "prompt": filtered(prompt)})
        self.widget.send({"run": run.id, "ops": [["done", live.picture()]]})
        return live

    def _not_begun(self, asked: str, prompt: str, error: Exception) -> None:
        if not isinstance(error, _Withdrawn):
            self._refused(asked, prompt)
            self._fail(error)

    def _refused(self, asked: str, prompt: str) -> None:
        """What was asked is not done: its words go back, also to a page that was loaded anew."""
        self.widget.send({"kind": "refused", "id": asked, "prompt": filtered(prompt)})

    def _ended(self, prompt: str, controls: RunControls, run: RunRecord) -> None:
        """The run that was at work is over, or broke before it had begun. Any thread."""
        with self._lock:
            words, self._live, self.at_work = "", None, ""
            self._known[run.id] = run
            if run.phase == "Running":  # nothing of it is kept, and only its controls know why
                run = getattr(controls, "record", run)
                broke = error_from_info(run.error) if run.error else UsageError("it broke off")
                words = self._error_words(broke)
                self._take_out(run.id)
                self._thread()
                self._refused("", prompt)
            self._push(words)
        self._later(self._settle)

    def _settle(self) -> None:
        self._refresh()
        self._save()

    def _later(self, work: Callable[[], object]) -> None:
        later(work, failed=self._fail, context=self.context)

    def _fail(self, error: Exception) -> None:
        self._push(self._error_words(error))

    def _error_words(self, error: Exception) -> str:
        """One line that says what is wrong and what to do about it."""
        said = f"nbagent itself failed: {type(error).__name__}: {error}"
        said = error.message if isinstance(error, NbagentError) else said
        return " ".join(visible(redact_cut(said)).splitlines())

    # The conversation

    def _open_run(self, run_id: str) -> None:
        """Show a run, with those that it goes on from; the next words go on."""
        if not self.at_work:
            runs = panel_lists.lineage(run_id)
            self._begin(runs)
            self._form.fill(runs[-1], frontend().namespace())
            self._push()

    def _begin(self, runs: Sequence[RunRecord]) -> None:
        if self.at_work:
            return
        with self._lock:
            self._known = {run.id: run for run in runs}
            self.parts = [(run.id,) for run in runs]
            self._told = ""
            self._push("")
        self._thread()
        self._later(self._settle)

    def _take_out(self, run_id: str) -> None:
        self.parts = [part for part in self.parts if run_id not in part]
        self._known.pop(run_id, None)

    def drop(self, run_id: str) -> None:
        """A run was deleted: it goes from the page, and the conversation goes on without it."""
        with self._lock:
            self._take_out(run_id)
            self._told = "" if self.parts else FORGOTTEN
            self._push("")
        self._thread()
        self._later(self._settle)

    # Other things that a page wants: done beside the kernel, which may be busy

    def _aside(self, work: Callable[[], object]) -> None:
        aside(work, failed=self._fail, context=self.context)

    def _list(self, name: str, value: str) -> None:
        """Send what can be chosen: models, packages, runs, or the runs of the session."""
        last = self._last
        made = panel_lists.listed(name, value, last)
        self.widget.send({"kind": "list", "key": name, "node": made})

    def _export(self, ending: str, run_id: str, page: str) -> None:
        """Give the page a run of the conversation as a file."""
        if run_id not in self.run_ids or ending not in _EXPORTS:
            raise UsageError("there is nothing to export yet")
        text = Run(self.load(run_id), current_store()).export(ending)
        name = f"run-{run_id[:8]}.{ending.replace('openai', 'openai.jsonl')}"
        self.widget.send({"kind": "file", "page": page, "name": name, "text": text})


class _Withdrawn(Exception):
    """A prompt was taken back before its run began."""


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
    if not show:
        panel_of_this_kernel().refresh()
        return panel_of_this_kernel().widget
    if kernel.is_headless():
        display(panel_lists.saved((), panel_lists.HEADLESS)[0], raw=True)
    else:
        panel_of_this_kernel().show()
    return None
