"""What the panel does: send, stop, go on, begin anew, reopen. One of three doors to the session.

A click only asks: the run is started by the kernel's main thread when it is free, so that no cell
is ever held up. Its events come in on the engine's thread.
"""

# IPython's display functions have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextvars
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.display import display

from nbagent.contracts import events
from nbagent.contracts.errors import NbagentError, UsageError, error_from_info
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook import kernel, surface
from nbagent.notebook.live_view import Action, LiveViewSink, RunView
from nbagent.notebook.panel import choices
from nbagent.notebook.panel.form import Form
from nbagent.notebook.panel.parts import BoxState, Message, filtered
from nbagent.notebook.panel.saved import KEPT, saved
from nbagent.notebook.panel.talk import Talk
from nbagent.notebook.panel.words import error_words, lineage, recent_runs
from nbagent.notebook.template import Rendered, render
from nbagent.providers.choice import choose_model
from nbagent.run import Run
from nbagent.runtime import Courier
from nbagent.session.frontend import Cell, Frontend, frontend
from nbagent.session.prepare import Ask
from nbagent.settings import RunOptions, effective
from nbagent.view.view_state import status_of

WAITS_FOR = "the kernel, which a cell keeps busy"
ASKS = "Waiting for you: a tool call is to be allowed or denied"
FORGOTTEN = "All of this conversation was forgotten; the next prompt begins a new one"
_SAVED = "nbagent-panel-saved"
_WIDGET = "application/vnd.jupyter.widget-view+json"
_log = logging.getLogger("nbagent")


class Panel:
    """The panel of this kernel: one conversation at a time, shown in as many places as wanted."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        self._asked: dict[str, str] = {}
        """What was sent and not begun yet: prompts by the ids of the messages."""
        self._working = ""
        """The id of the run that is at work."""
        self._controls: RunControls | None = None
        self._last: RunRecord | None = None
        """The run that the next words go on from."""
        self._recent: list[RunRecord] = []
        """The last runs of the conversation, for the saved form."""
        self._typed = ""
        """The prompt of the run that is at work, as it was typed."""
        self._beginning = False
        self._waits = ""
        self._error = ""
        self._told = ""
        """What became of the conversation, until the next one begins."""
        self._system = choices.usual().system
        self._extra: tuple[str, ...] = ()
        self.form = Form(
            self._state(), hear=self._hear, reopen=self.reopen, begin_anew=self.begin_anew
        )
        self.form.fill(choices.usual())
        self._talk = Talk(self.form.talk)
        kernel.register(self.form.box.comm_id, self.form.box.act)
        surface.when_forgotten(self.forget)
        self._watch_cells()

    # Shown

    def show(self) -> None:
        """Display the panel below the cell that runs now, and its saved form."""
        # What a tool prints goes to the cell where the panel was shown last.
        self._context = contextvars.copy_context()
        self._refresh()
        model_id = str(self.form.root.model_id)
        view = {"version_major": 2, "version_minor": 0, "model_id": model_id}
        # No text: where the widget cannot be shown, the saved form below says all.
        display({_WIDGET: view}, raw=True)
        self._save(update=False)

    def _save(self, *, update: bool) -> None:
        last = self._recent[-1:]
        metadata = surface.metadata_of(last[0]) if last else {}
        form = saved(self._recent)
        display(form, raw=True, display_id=_SAVED, update=update, metadata=metadata)

    def _state(self) -> BoxState:
        last = self._last
        status = "At work" if self._working else self._told
        if self._working and self._waits:
            status = self._waits
        elif not self._working and last is not None and _resumable(last):
            status = f"{status_of(last)['word']}. Continue goes on from there."
        return {
            "working": bool(self._working),
            "can_continue": not self._working and last is not None and _resumable(last),
            "goes_on": last is not None,
            "status": status,
            "error": self._error,
            "system": self._system,
            "hints": choices.HINTS,
        }

    def _push(self) -> None:
        """Tell the box how things stand. Any thread."""
        with self._lock:
            self.form.box.state = dict(self._state())

    def _refresh(self) -> None:
        """Bring what the form lists up to date: tools, models, the last runs."""
        settings, trouble = effective(), ""
        offered: list[choices.Offered] = []
        try:
            offered = choices.offered_tools(frontend().namespace(), settings.tools, self._extra)
        except NbagentError as error:
            trouble = error_words(error)
        fresh = choices.left_out(offered, settings.tools) - {*self.form.choices().offered}
        self.form.offer(offered, self.form.unticked | fresh, trouble)
        listed, models = recent_runs()
        self.form.list_runs(listed)
        default = settings.model or choose_model(os.environ).model_id
        self.form.suggest([*models, default, "offline:demo"], default)
        self.form.totals.value = self._talk.totals() or "nbagent panel"
        self.form.note.value = self._talk.note()
        self.form.note.layout.display = None if self._talk.folded else "none"
        self.form.hold(bool(self._working))

    def _watch_cells(self) -> None:
        shell = get_ipython()
        if shell is not None:
            shell.events.register("post_run_cell", self.after_cell)

    def after_cell(self, _result: object = None) -> None:
        """A cell may have made or changed a tool, or run an agent."""
        try:
            self._refresh()
        except Exception:
            _log.debug("the panel was not refreshed", exc_info=True)

    # Heard

    def _hear(self, message: Message) -> None:
        """A message of the box, in whichever thread it arrived: also while a cell runs."""
        # Copied, as a context can be entered once at a time only.
        self._context.copy().run(self._heard, message)

    def _heard(self, message: Message) -> None:
        kind = message.get("kind")
        if kind == "ready":
            self.form.box.heard()
        elif kind == "stop":
            self._stop()
        elif kind == "system":
            self._system = filtered(message.get("text", ""))
            self._push()
        elif kind in ("send", "continue"):
            asked, prompt = str(message.get("id")), str(message.get("prompt", ""))
            self._system = filtered(message.get("system", ""))
            with self._lock:
                self._asked[asked] = prompt
                self._push()
            self._later(lambda: self._begin(asked, going_on=kind == "continue"))

    def _later(self, work: Callable[[], None]) -> None:
        """Do this in the kernel's main thread, as soon as it is free."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self._error = error_words(error)
                self._push()

        loop = kernel.main_loop()
        if loop is None:
            guarded()
        else:
            loop.call_soon_threadsafe(guarded, context=self._context.copy())

    def _stop(self) -> None:
        with self._lock:
            controls, withdrawn = self._controls, dict(self._asked)
            self._asked.clear()
        for asked, prompt in withdrawn.items():
            self.form.box.refused(asked, prompt)
        if controls is not None:
            controls.stop()

    # Done, in the kernel's main thread

    def _begin(self, asked: str, *, going_on: bool) -> None:
        with self._lock:
            prompt = self._asked.pop(asked, None)
            if prompt is None:
                return  # withdrawn by Stop
            self._beginning, self._error, self._told = True, "", ""
        words = ""
        try:
            self._start(prompt, going_on=going_on)
        except Exception as error:
            words = error_words(error)
        with self._lock:
            # The run may have broken off before it was started altogether.
            self._beginning, self._error = False, words or self._error
            if self._error:
                self.form.box.refused(asked, prompt)
            else:
                self.form.box.taken(asked)
            self._push()

    def _start(self, prompt: str, *, going_on: bool) -> None:
        if self._working:
            raise UsageError("a run of this panel is still at work; stop it or wait for its end")
        self._refresh()
        parent = self._last
        options, dropped = self.form.choices().options(parent)
        rendered = Rendered("", (), ()) if going_on else render(prompt, _evaluate)
        self._typed = prompt
        ask = Ask(
            prompt=None if going_on else rendered.prompt,
            parts=rendered.parts,
            template=prompt if rendered.expressions else None,
            options=options,
            kind="resume" if going_on else "start" if parent is None else "continue",
            parent_id=parent.id if parent is not None else None,
            dropped=dropped,
        )
        with Run.starting(ask, here=PanelFrontend(self)):
            pass  # nobody waits for it

    def open(self, run: RunRecord, controls: RunControls) -> Sink:
        """The view of a run that begins."""
        view, sink = self._talk.begin(run, controls)
        with self._lock:
            self._working, self._controls, self._waits = run.id, controls, ""
        self.form.hold(True)
        self.form.note.value = self._talk.note()
        return PanelSink(self, run, controls, view, sink)

    def waits(self, words: str) -> None:
        """A tool waits for the kernel, or no longer does. Any thread."""
        if words != self._waits:
            self._waits = words
            self._push()

    def ended(self, run: RunRecord) -> None:
        """A run of the panel is over. Any thread."""
        with self._lock:
            if self._working != run.id:
                return
            self._working, self._controls, self._waits = "", None, ""
            if run.turns or run.messages:
                self._last = run
            self._recent = [*self._recent, run][-KEPT:]
            self._talk.count(run)
            self._push()
        self._later(self._settle)

    def lost(self, run: RunRecord) -> None:
        """A run broke before it had begun: nothing of it is kept. Any thread."""
        with self._lock:
            self._working, self._controls, self._waits = "", None, ""
            self._error = (
                error_words(error_from_info(run.error)) if run.error else "the run broke off"
            )
            if not self._beginning:
                self.form.box.refused("", self._typed)
            self._push()
        self._later(lambda: self._talk.end(run))
        self._later(self._refresh)

    def _settle(self) -> None:
        self._refresh()
        self._save(update=True)

    def begin_anew(self) -> None:
        """Leave the conversation; the next prompt begins another one."""
        if self._working:
            return
        self._talk.clear()
        self._last, self._recent, self._error, self._told = None, [], "", ""
        self._push()
        self._settle()

    def reopen(self, run_id: str) -> None:
        """Show one of the last runs, with those that it goes on from; the next words go on."""
        if self._working:
            return
        try:
            runs = lineage(run_id)
        except NbagentError as error:
            self._error = error_words(error)
            self._push()
            return
        self._talk.clear()
        self._talk.show(runs)
        self._last, self._recent = runs[-1], list(runs[-KEPT:])
        self._error = self._told = ""
        chosen, tools = choices.of_run(runs[-1])
        self._system = chosen.system
        self.form.fill(chosen)
        self._tick(tools)
        self._push()
        self._settle()

    def _tick(self, tools: Any) -> None:
        self._extra = choices.words_in(tools)
        offered = choices.offered_tools(frontend().namespace(), effective().tools, self._extra)
        self.form.offer(offered, choices.left_out(offered, tools))

    def _left(self) -> Sequence[RunRecord]:
        for run_id in reversed(self._talk.run_ids):
            with suppress(NbagentError):  # a run that broke before it began is not in the store
                return lineage(run_id)
        return ()

    def forget(self, run_ids: tuple[str, ...]) -> None:
        """Runs were deleted: they go from the page, and the conversation goes on without them."""
        gone = {*run_ids} & {*self._talk.run_ids}
        if self._working or not gone:
            self._later(self._refresh)
            return
        with self._lock:
            self._talk.drop(gone)
            # What goes on from a deleted run is deleted with it, so what is left is whole.
            runs = self._left()
            self._last, self._recent = runs[-1] if runs else None, list(runs[-KEPT:])
            self._told = "" if runs else FORGOTTEN
            if not self.form.talk.children:
                self._talk.show(runs)
            self._push()
        self._settle()


class PanelFrontend(Frontend):
    """The process's frontend, with the panel as its view.

    No cell made these runs: a cell that goes on must not take one for its own, and an interrupt of
    the last cell does not mean it.
    """

    waits_for = WAITS_FOR

    def __init__(self, panel: Panel) -> None:
        """Show runs in a panel."""
        self._panel, self._process = panel, frontend()

    def namespace(self) -> Mapping[str, Any]:
        """The names of the notebook."""
        return self._process.namespace()

    def cell(self) -> Cell:
        """The notebook alone."""
        return Cell(notebook=self._process.cell().notebook)

    def adopt(self, courier: Courier) -> None:
        """Let the idle kernel run synchronous tools."""
        self._process.adopt(courier)

    def set_last(self, run: object) -> None:
        """Put a handle into `_run`."""
        self._process.set_last(run)

    def open(self, run: RunRecord, controls: RunControls, options: RunOptions) -> Sink:
        """The panel."""
        return self._panel.open(run, controls)


class PanelSink:
    """Feeds the view of a run in the panel, and tells the panel of its end. On the engine."""

    name = "panel"

    def __init__(
        self,
        panel: Panel,
        run: RunRecord,
        controls: RunControls,
        view: RunView,
        sink: LiveViewSink,
    ) -> None:
        self._panel, self._run, self._controls = panel, run, controls
        self._view, self._sink = view, sink
        self._failure: Exception | None = None
        self._over = False
        self._asked: set[str] = set()
        """The calls that the person is asked about now."""
        view.on_action(self._on_action)
        kernel.register(surface.comm_id(view), view.act)

    @property
    def can_answer(self) -> bool:
        """Whether a front end with buttons is there."""
        return self._failure is None and self._sink.can_answer

    def handle(self, event: events.Event) -> None:
        """Feed the view; whatever becomes of it, the panel hears of the end."""
        try:
            if self._failure is None:
                self._sink.handle(event)
        except Exception as error:
            self._failure = error
        if isinstance(event, events.Waiting):
            self._panel.waits(event.text)
        elif isinstance(event, events.TextDelta | events.ReasoningDelta | events.ToolCallDelta):
            self._panel.waits(ASKS if self._asked else "")
        elif isinstance(event, events.ApprovalRequested):
            self._asked.add(event.tool_call_id)
            self._panel.waits(ASKS)
        elif isinstance(event, events.ToolCallStarted):
            self._answered(event.tool_call_id)
        elif isinstance(event, events.ToolCallFinished):
            self._answered(event.tool_run.tool_call_id)
        elif isinstance(event, events.TurnFinished):
            self._panel.waits("")
        elif isinstance(event, events.RunFinished):
            self._over = True
            self._panel.ended(event.run)
            if self._failure is not None:
                raise self._failure

    def _answered(self, call: str) -> None:
        self._asked.discard(call)
        self._panel.waits(ASKS if self._asked else "")

    def close(self) -> None:
        """Stop feeding the view, which stays."""
        self._sink.close()
        kernel.unregister(surface.comm_id(self._view))
        if not self._over:
            # The store failed before the run began: nobody told its end.
            self._over = True
            self._panel.lost(getattr(self._controls, "record", self._run))

    def _on_action(self, action: Action) -> None:
        if action.get("kind") == "stop":
            self._controls.stop()


class _There:
    """The one panel of this process."""

    panel: Panel | None = None


def panel_of_this_kernel() -> Panel:
    """The panel, made when it is first wanted."""
    if _There.panel is None:
        _There.panel = Panel()
    return _There.panel


def _resumable(run: RunRecord) -> bool:
    ended = run.phase in ("Completed", "Running")
    return not ended and run.stop_reason not in ("answered", "content_filter")


def _evaluate(expression: str) -> object:
    namespace: Any = frontend().namespace()
    return eval(compile(expression, "<prompt>", "eval"), namespace)
