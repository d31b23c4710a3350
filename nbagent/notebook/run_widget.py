"""Live view of a run: its events become small messages to the pages, and clicks come back.

`LiveRun` is the view in any widget, also the panel's; `RunOutput` is an output with one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.ports import RunControls
from nbagent.contracts.records import RunRecord
from nbagent.notebook.live_output import LiveOutput
from nbagent.notebook.live_updates import Shown
from nbagent.notebook.messages import Message
from nbagent.notebook.outputs import Output, Part, running_metadata
from nbagent.session.frontend import frontend
from nbagent.view.live import LivePicture
from nbagent.view.live_changes import Op
from nbagent.view.live_state import PAUSING, STOPPING
from nbagent.view.node import Node, h
from nbagent.view.question import (
    answer_error_node,
    preview_node,
    read_answer,
    read_fields,
    why_node,
)
from nbagent.view.run_picture import page, picture

_FIRST_SAVE_CHARS = 4_000
"""First threshold for saving a running picture: it must have grown by this number of characters."""


class LiveRun(Shown):
    """Sink of one run: updates the pages that show it, and handles their clicks."""

    name = "live view"

    def __init__(
        self,
        run: RunRecord,
        controls: RunControls,
        *,
        send: Callable[[dict[str, Any]], object] = lambda message: None,
        ended: Callable[[RunRecord], object] = lambda run: None,
        kernel_id: str = "",
    ) -> None:
        """Follow a run from its start.

        Args:
            run: its record at the start.
            controls: stops the run and answers its questions.
            send: sends one message to all pages. Any thread.
            ended: called exactly once when the run has ended, even after a failure.
            kernel_id: `data-kernel` of the last picture's buttons.
        """
        super().__init__(run.id)
        self.can_answer = False
        """True while a page shows the run, so that a person can answer questions there."""
        self.unfolded: set[str] = set()
        """Keys of the folds that the person opened."""
        self.run_id, self._kernel_id = run.id, kernel_id
        self._controls, self._ended = controls, ended
        self._live = LivePicture(run)
        self.updates.send, self.updates.on_error = send, self._fail
        self._replies: dict[str, Node] = {}
        """Parts of questions that answer a message, to be sent with the next changes."""
        self._is_over = False
        self._failure: Exception | None = None
        """Failure of the view; raised when the run has ended. A sink that raises is detached, and
        this one must still see the end."""

    def whole(self) -> Node:
        """Draw the present picture. Any thread."""
        return self._live.picture(frozenset(self.unfolded), self._kernel_id)

    def parts(self) -> dict[str, Node]:
        """Draw the run as one part; its own parts are marked by events."""
        return {self.key: self.whole()}

    def changes(self) -> list[Op]:
        """Draw the parts that events marked, and the texts that grew."""
        changes = self._live.draw_changes(frozenset(self.unfolded), self._kernel_id)
        replies, self._replies = self._replies, {}
        return [*changes, *(["put", key, node, ""] for key, node in replies.items())]

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
        self.updates.begin()
        is_end = isinstance(event, RunFinished)
        if self._failure is None:
            try:
                self._live.update(event)
                if is_end:
                    self.updates.end()
                else:
                    self.updates.changed()
            except Exception as error:
                self._fail(error)
        if is_end:
            self._end(event.run)
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """End the view without a final event."""
        self._end(self._live.record())

    def _end(self, run: RunRecord) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended(run)

    def _fail(self, error: Exception) -> None:
        # Nobody can answer in a broken view: a question there would wait without end.
        self._failure, self.can_answer = error, False

    # Messages of the pages: any thread

    def on_pages(self, is_shown: bool) -> None:
        """Let a person answer while a page shows the run."""
        self.can_answer = is_shown and self._failure is None

    def on_message(self, message: Message) -> None:
        """Handle a click, an answer or a fold."""
        if message.run not in ("", self.key):
            return
        match message.kind:
            case "fold" if message.key:
                # Folds that the person opened stay open in the saved picture.
                keep = self.unfolded.add if message.open else self.unfolded.discard
                keep(message.key)
            case "stop" | "pause" if not self._is_over:
                self._controls.stop(after_turn=message.kind == "pause")
                self._live.show_stopping(PAUSING if message.kind == "pause" else STOPPING)
                self.updates.changed_elsewhere()
            case "answer_all":
                # Only the questions that the page named: the person has not seen a newer one.
                for question_id, question in self._live.open_questions():
                    if question_id in message.questions:
                        self._answer(question_id, question, PersonAnswer(choice="once"))
            case "answer" | "preview":
                # Also one that was answered elsewhere: a later answer is told so.
                if question := self._live.asked_question(message.question):
                    self._on_answer(message, question)
            case _:
                pass

    def _on_answer(self, message: Message, question: Question) -> None:
        """Handle an answer, or edited arguments that need a preview."""
        question_id = message.question
        if message.kind == "answer":
            read = read_answer(
                {"choice": message.choice, "reason": message.reason, "fields": message.fields},
                question,
            )
        else:
            read = read_fields(message.fields, question)
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
        self._reply(f"{question_id}/why", why_node(question_id, why))
        self._reply(f"{question_id}/pieces", preview_node(question_id, pieces))

    def _show_answer_error(self, question_id: str, text: str) -> None:
        self._reply(f"{question_id}/said", answer_error_node(question_id, text))

    def _reply(self, key: str, node: Node) -> None:
        """Put a part that is not in the run's state, after the changes of the state."""
        self._replies = {**self._replies, key: node}
        self.updates.changed_elsewhere()


class RunLines:
    """Prints a run as lines, once it is known that no page shows it."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        # Made now: later a tool may run, whose capture would take the lines for its own prints.
        self._printer = frontend().printer()
        self._prints = False

    def handle(self, event: Event) -> None:
        """Print an event, or keep it until it is known. The end is shown by a display."""
        if isinstance(event, RunFinished):
            return
        if self._prints:
            self._printer.handle(event)
        else:
            self._events.append(event)

    def print(self) -> None:
        """Print from the start of the run on."""
        self._prints = True
        events, self._events = self._events, []
        for event in events:
            self._printer.handle(event)

    def close(self) -> None:
        """End the last line."""
        if self._prints:
            self._printer.close()


class RunOutput(LiveOutput):
    """Sink of one run in an output: live in pages, else as lines; a saved picture at the end."""

    name = "live view"

    def __init__(self, output: Output, run: RunRecord, controls: RunControls) -> None:
        """Show a starting run below the output's pictures."""
        self._run_id, above = run.id, len(output.parts)
        output.add(run.id)
        output.running_id, output.remove_live = run.id, self._remove_soon
        self._live = LiveRun(run, controls, ended=self._ended, kernel_id=output.id)
        super().__init__(output, self._live, above=above)
        self._lines = RunLines() if self.display.may_be_unseen else None
        self._saved, self._unsaved = _FIRST_SAVE_CHARS, 0
        """Characters of the last saved picture, and of the ops sent since."""
        self._was_asking = False
        # Where no update is applied the first picture stays, so it does not say "Running".
        first = self._started_html() if self.display.may_be_unseen else self._saved_html()
        self._show(first)

    @property
    def can_answer(self) -> bool:
        """True if a person can answer questions in a page."""
        return self._live.can_answer

    def handle(self, event: Event) -> None:
        """Show or print an event. On the engine's loop."""
        self.display.begin(self._print_lines)
        if self._lines is not None:
            if self.display.has_page:
                self._drop_lines()
                self._save()
            else:
                self._lines.handle(event)
        self._live.handle(event)

    def close(self) -> None:
        """End the view without a final event."""
        self._live.close()

    def _print_lines(self) -> None:
        if self._lines is not None:
            self._lines.print()

    def _drop_lines(self) -> None:
        lines, self._lines = self._lines, None
        if lines is not None:
            lines.close()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, and save the picture now and then for a file that is saved meanwhile."""
        # A redrawn output may move, and a click on a question could then hit another button: save
        # when a question opens, and not again until it is answered.
        is_asking = self._live.is_asking
        if is_asking and not self._was_asking:
            self._save()
        self._was_asking = is_asking
        super().send(message)
        if message["ops"][0][0] != "done":
            self._unsaved += len(str(message["ops"]))
            # Only when it has doubled: all saved pictures together then stay linear in size.
            if self._unsaved > self._saved and not is_asking and self.output.running_id:
                self._save(2 * self._saved)

    def _save(self, more_than: int = 0) -> None:
        """Save the present picture in the output if it is longer than `more_than` characters."""
        self._unsaved = 0
        made = self._saved_html()
        if len(made) > more_than:
            self._saved = len(made)
            self._show(made)

    def _started_html(self) -> str:
        short = self._run_id[:8]
        return page(h("div", "nba-note", f"run {short} has started; %agent show {short} shows it"))

    def _saved_html(self) -> str:
        return page(h("div", "", *self.output.nodes(self.above), self._live.saved_picture()))

    def _show(self, html: str) -> None:
        short = self._run_id[:8]
        text = f"… run {short} is running; %agent show {short} shows it"
        self.show(html, text, running_metadata(self._run_id))

    def _remove_soon(self, removed: Sequence[Part]) -> None:
        self._live.updates.call_soon(self._remove, removed)

    def _remove(self, removed: Sequence[Part]) -> None:
        """Remove deleted runs from the page, the widget's state and the saved output."""
        if not self.output.running_id:
            return
        self.widget.send_state("pictures")
        for part in removed:
            self.widget.send({"run": " ".join(part), "ops": [["done", h("div", "")]]})
        self._save()

    def _ended(self, run: RunRecord) -> None:
        """Save the picture after the run has ended. On the engine's loop."""
        self._drop_lines()
        self.output.running_id, self.output.remove_live = "", None
        self.output.unfolded[run.id] = frozenset(self._live.unfolded)
        self.end(lambda: self.output.show_saved(run))
