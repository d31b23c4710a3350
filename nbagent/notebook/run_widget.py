"""Live view of a run: events go to the page as small messages, and clicks come back.

Owns the widget, the batching of ops, and the meaning of a page's messages. The folder `page` is the
part in the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard, cast

import anywidget
import traitlets

from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.canonical import json_object
from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.ports import RunControls, Sink
from nbagent.contracts.records import RunRecord
from nbagent.notebook import comms
from nbagent.notebook.outputs import Output, Part, running_metadata
from nbagent.notebook.page_module import script, stylesheet
from nbagent.notebook.page_proof import FinalDisplay
from nbagent.session.frontend import frontend
from nbagent.view.live import LivePicture, Op, merge_op
from nbagent.view.node import Node, h
from nbagent.view.question import (
    answer_error_node,
    preview_node,
    read_answer,
    read_fields,
    why_node,
)
from nbagent.view.run_picture import PAUSING, STOPPING, page, picture

INTERVAL_S = 0.05
"""20 messages per second: 10,000 deltas then cost 0.3 MB instead of 200 MB."""
_MAX_KEPT_VIEWS = 3
"""Replaced views whose widget stays open, since a reloaded page may show them again."""
_KEY_CHARS = 200
_FIRST_SAVE_CHARS = 4_000
"""First threshold for saving a running picture: it must have grown by this number of characters."""


@dataclass(frozen=True, slots=True, eq=False)
class _ReplacedView:
    """A live view that was replaced by a saved picture."""

    output: Output
    widget: RunWidget


_replaced: list[_ReplacedView] = []


class RunWidget(anywidget.AnyWidget):
    """Widget of live runs. A running run sends only ops; a newly loaded page gets all."""

    _esm = script()
    _css = stylesheet()
    kind = traitlets.Unicode("run").tag(sync=True)
    pictures = traitlets.List().tag(sync=True)

    def __init__(self, pictures: Callable[[], list[Node]]) -> None:
        """Show the present pictures, which `pictures` draws. It is called from any thread."""
        self._current_pictures = pictures
        super().__init__(pictures=pictures())

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """Return the state for a page, always with the present pictures."""
        # Bypass the trait: its notification would send the pictures a second time.
        if key is None or "pictures" in key:
            self._trait_values["pictures"] = self._current_pictures()
        return cast("dict[str, Any]", super().get_state(key, drop_defaults))


def comm_id(widget: object) -> str:
    """Return the id of a widget's comm."""
    return str(cast("Any", widget).model_id)


def listen(widget: Any, on_message: Callable[[object], object]) -> None:
    """Hand what a page says to `on_message`, also while a cell runs; see `comms.register`."""
    widget.on_msg(lambda _widget, content, _buffers: on_message(content))
    comms.register(comm_id(widget), on_message)


class OpBatcher:
    """Collects ops and sends them at most every `interval_s`; the first ones at once.

    Belongs to the event loop that is running when it gets its first ops.
    """

    def __init__(
        self,
        send: Callable[[list[Op]], None],
        *,
        draw: Callable[[], list[Op]] = list,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """Send by `send` what `draw` draws. Both must not raise: a timer would lose the error."""
        self._send, self._draw = send, draw
        self._interval_s = interval_s
        self._pending: list[Op] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ops: list[Op]) -> None:
        """Add ops."""
        for op in ops:
            merge_op(self._pending, op)
        self.send_soon()

    def send_soon(self) -> None:
        """Draw and send what changed: now, or with the next message."""
        if self._timer is None:
            self.flush()

    def drop(self) -> None:
        """Drop the waiting ops."""
        self._pending = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flush(self) -> None:
        """Send the waiting ops now."""
        ops = [*self._draw(), *self._pending]
        self.drop()
        # Without ops the timer is not renewed, so the next op is sent at once.
        if ops:
            self._send(ops)
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.flush)


class LiveRun:
    """Sink of one run: updates the pages that show it, and handles their clicks."""

    name = "live view"

    def __init__(
        self,
        run: RunRecord,
        controls: RunControls,
        *,
        send: Callable[[dict[str, Any]], object],
        ended: Callable[[RunRecord], object] = lambda run: None,
        kernel_id: str = "",
        display: FinalDisplay | None = None,
    ) -> None:
        """Follow a run from its start.

        Args:
            run: its record at the start.
            controls: stops the run and answers its questions.
            send: sends one message to all pages. Any thread.
            ended: called exactly once when the run has ended, even after a failure.
            kernel_id: `data-kernel` of the last picture's buttons.
            display: brings the end to the front end. While no page shows the run, it is printed.
        """
        self.can_answer = False
        """True while a page shows the run, so that a person can answer questions there."""
        self._display = display
        self._lines = RunLines() if display is not None and display.may_be_unseen else None
        self.unfolded: set[str] = set()
        """Keys of the folds that the person opened."""
        self.run_id, self._kernel_id = run.id, kernel_id
        self._controls, self._send, self._ended = controls, send, ended
        self._live = LivePicture(run)
        self._batcher = OpBatcher(self._send_ops, draw=self._draw_changes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False
        self._failure: Exception | None = None
        """Failure of the view; raised when the run has ended. A sink that raises is detached, and
        this one must still see the end."""

    def picture(self) -> Node:
        """Draw the present picture. Any thread."""
        return self._live.picture(frozenset(self.unfolded), self._kernel_id)

    def saved_picture(self) -> Node:
        """Draw the run so far without buttons, for a file that is saved now."""
        run = self._live.record()
        note = (
            f"saved while the run was running; %agent show {run.id[:8]} shows all of it. "
            "Trust this notebook to watch and answer"
        )
        run = run.model_copy(update={"notices": (*run.notices, note)})
        return picture(run, unfolded=frozenset(self.unfolded), actions=False)

    @property
    def is_asking(self) -> bool:
        """True if a question is open."""
        return bool(self._live.open_questions())

    def handle(self, event: Event) -> None:
        """Apply one event and send its changes soon. On the engine's loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if self._display is not None:
                self._display.begin(self._print_lines)
        if self._lines is not None:
            self._lines.handle(event)
        if self._failure is None:
            try:
                self._live.update(event)
                if isinstance(event, RunFinished):
                    self._batcher.drop()
                self._batcher.send_soon()
            except Exception as error:
                self._fail(error)
        if isinstance(event, RunFinished):
            self._end(event.run)
            if self._failure is not None:
                raise self._failure

    def _print_lines(self) -> None:
        """Print the run, since no page shows it. On the engine's loop."""
        if self._lines is not None:
            self._lines.print()

    def _draw_changes(self) -> list[Op]:
        try:
            return self._live.draw_changes(frozenset(self.unfolded), self._kernel_id)
        except Exception as error:
            self._fail(error)
            return []

    def close(self) -> None:
        """End the view without a final event."""
        self._batcher.drop()
        self._end(self._live.record())

    def _end(self, run: RunRecord) -> None:
        if not self._is_over:
            self._is_over = True
            self._drop_lines()
            self._ended(run)

    def _drop_lines(self) -> None:
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()

    def _fail(self, error: Exception) -> None:
        # Nobody can answer in a broken view: a question there would wait without end.
        self._failure, self.can_answer = error, False

    # Messages of the pages: any thread, untrusted

    def on_message(self, message: object) -> None:
        """Handle a message of a page: a click, an answer, a fold, or a page that is ready."""
        content = json_object(message) or {}
        if content.get("run", self.run_id) != self.run_id:
            return
        match content:
            case {"kind": "ready"}:
                self._on_ready(content.get("page"))
            case {"kind": "closed", "page": page} if self._display is not None and is_page(page):
                self._display.page_closed(page, tab_of(content))
                self.can_answer = self.can_answer and self._display.has_open_page
            case {"kind": "fold", "key": str(key), "open": is_open} if len(key) <= _KEY_CHARS:
                # Folds that the person opened stay open in the saved picture.
                keep = self.unfolded.add if is_open is True else self.unfolded.discard
                keep(key)
            case {"kind": "stop" | "pause" as kind} if not self._is_over:
                self._controls.stop(after_turn=kind == "pause")
                self._live.show_stopping(PAUSING if kind == "pause" else STOPPING)
                self._send_soon([])
            case {"kind": "answer_all", "questions": list(shown)}:
                # Only the questions that the page named: the person has not seen a newer one.
                for question_id, question in self._live.open_questions():
                    if question_id in shown:
                        self._answer(question_id, question, PersonAnswer(choice="once"))
            case {"kind": "answer" | "preview", "question": str(question_id)}:
                # Also one that was answered elsewhere: a later answer is told so.
                if question := self._live.asked_question(question_id):
                    self._on_answer(content, question_id, question)
            case _:
                pass

    def _on_ready(self, page: object) -> None:
        # Without a page it is a model that no output shows, such as that of an untrusted notebook.
        if not is_page(page):
            return
        self.can_answer = self._failure is None
        if self._display is not None:
            self._display.page_ready(page)
            self.call_soon(self._drop_lines)
        if self._is_over or self._loop is None:
            self._send_whole(page)
        else:
            self.call_soon(self._send_whole, page)

    def _send_whole(self, page: int | str) -> None:
        """Send the whole picture to one page, after the ops that it already includes."""
        if not self._is_over:
            self._batcher.flush()
        self._send_ops([["done", self.picture()]], page=page)

    def _on_answer(self, message: dict[str, Any], question_id: str, question: Question) -> None:
        """Handle an answer, or edited arguments that need a preview."""
        if message["kind"] == "answer":
            read = read_answer(message, question)
        else:
            read = read_fields(message.get("fields", {}), question)
        if isinstance(read, str):
            self._show_answer_error(question_id, read)
        elif isinstance(read, PersonAnswer):
            self._answer(question_id, question, read)
        elif read is not None:
            show = partial(self._show_pieces, question_id)
            self._controls.preview(question.tool_call_id, read, show)

    def _answer(self, question_id: str, question: Question, answer: PersonAnswer) -> None:
        call_id = question.tool_call_id
        if not self._controls.answer(call_id, answer, question=question):
            why = self._controls.answered(call_id)
            self._show_answer_error(question_id, f"{why}; your answer changed nothing")

    def _show_pieces(self, question_id: str, why: str, pieces: Sequence[PreviewPiece]) -> None:
        self._show_answer_error(question_id, "")
        made = {"why": why_node(question_id, why), "pieces": preview_node(question_id, pieces)}
        self._send_soon([["put", f"{question_id}/{part}", node, ""] for part, node in made.items()])

    def _show_answer_error(self, question_id: str, text: str) -> None:
        self._send_soon([["put", f"{question_id}/said", answer_error_node(question_id, text), ""]])

    # Sending

    def _send_soon(self, ops: list[Op]) -> None:
        self.call_soon(self._add_unless_over, ops)

    def _add_unless_over(self, ops: list[Op]) -> None:
        # The ops were drawn in another thread, perhaps before the last event. Sent after the last
        # picture, a head with "Running" would stay on the page for good.
        if not self._is_over:
            self._batcher.add(ops)

    def call_soon(self, work: Callable[..., object], *args: object) -> None:
        """Call `work` on the engine's loop, between two events."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the kernel is going down
                self._loop.call_soon_threadsafe(work, *args)

    def _send_ops(self, ops: list[Op], page: int | str | None = None) -> None:
        message: dict[str, Any] = {"run": self.run_id, "ops": ops}
        try:
            self._send(message if page is None else {**message, "page": page})
        except Exception as error:
            self._fail(error)


class RunLines:
    """Prints a run as lines, once it is known that no page shows it."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._printer: Sink | None = None

    def handle(self, event: Event) -> None:
        """Print an event, or keep it until it is known. The end is shown by a display."""
        if isinstance(event, RunFinished):
            return
        if self._printer is None:
            self._events.append(event)
        else:
            self._printer.handle(event)

    def print(self) -> None:
        """Print from the start of the run on."""
        self._printer = frontend().printer()
        events, self._events = self._events, []
        for event in events:
            self._printer.handle(event)

    def close(self) -> None:
        """End the last line."""
        if self._printer is not None:
            self._printer.close()


def is_page(page: object) -> TypeGuard[int | str]:
    """True if this can be the id of a view in a page."""
    return isinstance(page, int | str) and len(str(page)) <= _KEY_CHARS


def tab_of(message: dict[str, Any]) -> str:
    """Return the id of the browser tab that sent a message; empty if there is none."""
    tab = message.get("tab")
    return tab if isinstance(tab, str) and len(tab) <= _KEY_CHARS else ""


class LiveOutput:
    """Live views in an output, replaced by saved pictures at the end.

    Of one run, or of several runs side by side that answer one request again.
    """

    def __init__(self, output: Output, n: int = 1) -> None:
        """Prepare to show `n` runs below the output's pictures; `open` adds each."""
        self._output, self._n = output, n
        self._display = FinalDisplay(output)
        self._live_runs: list[LiveRun] = []
        self._finished: list[RunRecord] = []
        self._saved, self._unsaved = _FIRST_SAVE_CHARS, 0
        """Characters of the last saved picture, and of the ops sent since."""
        self._was_asking = self._is_over = False

    def open(self, run: RunRecord, controls: RunControls) -> LiveRun:
        """Open the view of a starting run; it is the run's sink."""
        ended, kernel_id = self._ended, self._output.id
        live = LiveRun(
            run,
            controls,
            send=self._send,
            ended=ended,
            kernel_id=kernel_id,
            display=self._display,
        )
        n_before = len(self._output.parts)
        self._output.running_id, self._output.remove_live = (
            run.id,
            partial(live.call_soon, self._remove_live),
        )
        self._output.add(run.id)
        self._live_runs.append(live)
        if len(self._live_runs) > 1:
            self.widget.send({"run": run.id, "ops": [["done", live.picture()]]})
        else:
            self._place = n_before
            self.widget = RunWidget(
                lambda: [
                    *self._output.nodes(n_before),
                    *(live_run.picture() for live_run in self._live_runs),
                ]
            )
            listen(self.widget, self._on_message)
            self._show_live(self._saved_html())
        return live

    def _show_live(self, html: str) -> None:
        run_id = self._live_runs[0].run_id
        self._output.show_live(
            comm_id(self.widget),
            html=html,
            text=f"… run {run_id[:8]} is running; %agent show {run_id[:8]} shows it",
            metadata=running_metadata(run_id),
        )

    def _saved_html(self) -> str:
        lives = [live.saved_picture() for live in self._live_runs]
        return page(h("div", "", *self._output.nodes(self._place), *lives))

    def _on_message(self, message: object) -> None:
        for live in self._live_runs:
            live.on_message(message)

    def _send(self, message: dict[str, Any]) -> None:
        # A redrawn output may move, and a click on a question could then hit another button: save
        # when a question opens, and not again until it is answered.
        is_asking = any(live.is_asking for live in self._live_runs)
        if is_asking and not self._was_asking:
            self._save()
        self._was_asking = is_asking
        self.widget.send(message)
        if message["ops"][0][0] != "done":
            self._unsaved += len(str(message["ops"]))
            # Only when it has doubled: all saved pictures together then stay linear in size.
            if self._unsaved > self._saved and not is_asking and self._output.running_id:
                self._save(2 * self._saved)

    def _save(self, more_than: int = 0) -> None:
        """Save the present picture in the output if it is longer than `more_than` characters."""
        self._unsaved = 0
        made = self._saved_html()
        if len(made) > more_than:
            self._saved = len(made)
            self._show_live(made)

    def _remove_live(self, removed: Sequence[Part]) -> None:
        """Remove deleted runs from the page, the widget's state and the saved output."""
        if not self._output.running_id:
            return
        self.widget.send_state("pictures")
        for part in removed:
            self.widget.send({"run": " ".join(part), "ops": [["done", h("div", "")]]})
        self._save()

    def _ended(self, run: RunRecord) -> None:
        self._finished.append(run)
        self._end()

    def on_fewer(self) -> None:
        """Handle that fewer runs start than requested. Any thread."""
        self._n = len(self._live_runs)
        for live in self._live_runs[:1]:
            live.call_soon(self._end)

    def _end(self) -> None:
        """Save the pictures after the last run has ended. On the engine's loop."""
        if self._is_over or len(self._finished) < self._n:
            return
        self._is_over = True
        self._output.running_id, self._output.remove_live = "", None
        for live in self._live_runs:
            self._output.unfolded[live.run_id] = frozenset(live.unfolded)
        if self._n > 1:
            ids = [live.run_id for live in self._live_runs]
            index = self._output.parts.index((ids[0],))
            self._output.parts.insert(index, (self._finished[0].parent_id or "", *ids))
        self._display.end(self._show_end)

    def _show_end(self) -> None:
        if self._display.is_below:
            # A page that did not apply the update shows the run twice otherwise.
            with suppress(Exception):
                self.widget.send({"below": self._output.id})
        self._output.show_saved(*self._finished)
        retire(self._output, self.widget)


def retire(output: Output, widget: RunWidget) -> None:
    """Retire a live view that was replaced by a saved picture."""
    if any(view.widget is widget for view in _replaced):
        return  # its end was shown a second time, below
    # Keep the model open for a while: a reloaded page asks for it.
    _replaced.append(_ReplacedView(output, widget))
    # In other outputs no saved picture arrives: the page keeps showing the widget.
    spare = [one for one in _replaced if not one.output.is_boxed]
    for view in spare[:-_MAX_KEPT_VIEWS]:
        _replaced.remove(view)
        close_widget(view.widget)


def close_views(run_id: str) -> None:
    """Close replaced views of a deleted run: their widget models still hold its pictures."""
    for view in [one for one in _replaced if any(run_id in part for part in one.output.parts)]:
        _replaced.remove(view)
        close_widget(view.widget)


def close_widget(widget: RunWidget) -> None:
    """Close a widget; its pages are no longer listened to."""
    comms.unregister(comm_id(widget))
    widget.close()
