"""The live view of a run: what happens goes to the page as small messages, and clicks come back.

Owns the widget, the batches and what a message of the page means. The page's half is `live.js`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any, cast

import anywidget
import traitlets

from nbagent.contracts.approval import PersonAnswer, PreviewPiece, Question
from nbagent.contracts.canonical import json_object
from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.ports import RunControls
from nbagent.contracts.records import RunRecord
from nbagent.notebook import comms
from nbagent.notebook.outputs import Output, Part
from nbagent.view.live import LivePicture, Op, merge
from nbagent.view.node import Node, h
from nbagent.view.picture import PAUSING, STOPPING, live_sheet, page, picture
from nbagent.view.question import preview_node, read_answer, read_fields, said_node, why_node

INTERVAL_S = 0.05
"""20 batches a second."""
_KEPT_OPEN = 3
"""Views that a saved picture has replaced; a page that is loaded anew may still show them."""
_KEY_CHARS = 200
_FIRST_SAVE = 4_000
"""Characters of a picture that is not worth keeping yet; half of it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Replaced:
    """A live view that a saved picture has replaced."""

    output: Output
    widget: RunWidget


_replaced: list[_Replaced] = []


def _text(name: str) -> str:
    return files("nbagent.notebook").joinpath(name).read_text("utf-8")


def script(*more: str) -> str:
    """`live.js`, with other files behind it: one module for a widget."""
    return "\n".join(_text(name) for name in ("live.js", *more))


def sheet(*more: str) -> str:
    """The sheet of living pictures, with other files behind it."""
    return "\n".join([live_sheet(), *(_text(name) for name in more)])


class RunWidget(anywidget.AnyWidget):
    """The widget. While a run goes on only ops are sent; a page that is loaded gets the whole."""

    _esm = script()
    _css = sheet()
    kind = traitlets.Unicode("run").tag(sync=True)
    pictures = traitlets.List().tag(sync=True)

    def __init__(self, pictures: Callable[[], list[Node]]) -> None:
        """Show what `pictures` gives: as they are now, from any thread."""
        self._now = pictures
        super().__init__(pictures=pictures())

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """What a page is given; the pictures in it are always the present ones."""
        # Set silently: a notification would send them once more.
        if key is None or "pictures" in key:
            self._trait_values["pictures"] = self._now()
        return cast("dict[str, Any]", super().get_state(key, drop_defaults))


def comm_id(widget: object) -> str:
    """The id that the page's messages to a widget carry."""
    return str(cast("Any", widget).model_id)


def listen(widget: Any, heard: Callable[[object], object]) -> None:
    """Hand what a page says to `heard`, also while a cell runs; see `comms.register`."""
    widget.on_msg(lambda _widget, content, _buffers: heard(content))
    comms.register(comm_id(widget), heard)


class Batcher:
    """Collects ops and sends them at most every `interval_s`; the first ones at once.

    Lives on one event loop: the one that is running when it gets its first ops.
    """

    def __init__(self, send: Callable[[list[Op]], None], *, interval_s: float = INTERVAL_S) -> None:
        """Send by `send`, which does not raise: in a timer nobody would see it."""
        self._send = send
        self._interval_s = interval_s
        self._pending: list[Op] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, ops: list[Op]) -> None:
        """Take ops."""
        for op in ops:
            merge(self._pending, op)
        if self._timer is None:
            self.flush()

    def drop(self) -> None:
        """Forget what waits."""
        self._pending = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flush(self) -> None:
        """Send what waits now."""
        ops = self._pending
        self.drop()
        if ops:
            self._send(ops)
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self.flush)


class LiveView:
    """The sink of one run: feeds the pages that show it, and takes what is clicked there."""

    name = "live view"

    def __init__(
        self,
        run: RunRecord,
        controls: RunControls,
        *,
        send: Callable[[dict[str, Any]], object],
        ended: Callable[[RunRecord], object] = lambda run: None,
        kernel_id: str = "",
    ) -> None:
        """Follow a run.

        Args:
            run: its record as it begins.
            controls: what stops it and answers its questions.
            send: sends one message to all pages. Any thread.
            ended: is called once, when the run is over, come what may.
            kernel_id: of the page actions that the buttons of the last picture belong to.
        """
        self.can_answer = False
        """Whether a page has said that it is there: its answers come the same way."""
        self.unfolded: set[str] = set()
        """Keys of what the person reads."""
        self.run_id, self._kernel_id = run.id, kernel_id
        self._controls, self._send, self._ended = controls, send, ended
        self._live = LivePicture(run)
        self._batcher = Batcher(self._send_ops)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False
        self._failure: Exception | None = None
        """What broke it; raised when the run is over."""

    def picture(self) -> Node:
        """The picture as it is now. Any thread."""
        return self._live.picture(frozenset(self.unfolded), self._kernel_id)

    def saved_picture(self) -> Node:
        """What a file that is saved now keeps: the run as far as it goes, without buttons."""
        run = self._live.record()
        note = f"saved while the run was at work; %agent show {run.id[:8]} has all of it"
        run = run.model_copy(update={"notices": (*run.notices, note)})
        return picture(run, unfolded=frozenset(self.unfolded), actions=False)

    @property
    def is_asking(self) -> bool:
        """Whether a question is open."""
        return bool(self._live.open_questions())

    def handle(self, event: Event) -> None:
        """Fold one event, and send what it changed soon. On the engine's loop."""
        self._loop = self._loop or asyncio.get_running_loop()
        if self._failure is None:
            try:
                ops = self._live.fold(event)
                if isinstance(event, RunFinished):
                    self._batcher.drop()
                    ops = [["done", self.picture()]]
                self._batcher.add(ops)
            except Exception as error:
                self._fail(error)
        if isinstance(event, RunFinished):
            self._end(event.run)
            if self._failure is not None:
                raise self._failure

    def close(self) -> None:
        """Send no more."""
        self._batcher.drop()
        self._end(self._live.record())

    def _end(self, run: RunRecord) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended(run)

    def _fail(self, error: Exception) -> None:
        self._failure, self.can_answer = error, False

    # What the page says. Any thread; hostile until it was checked.

    def heard(self, message: object) -> None:
        """Do what a person clicked or typed, or greet a page."""
        told = json_object(message) or {}
        if told.get("run", self.run_id) != self.run_id:
            return
        match told:
            case {"kind": "ready"}:
                self._on_ready(told.get("page"))
            case {"kind": "fold", "key": str(key), "open": is_open} if len(key) <= _KEY_CHARS:
                # What the person reads stays unfolded in the saved picture.
                keep = self.unfolded.add if is_open is True else self.unfolded.discard
                keep(key)
            case {"kind": "stop" | "pause" as kind} if not self._is_over:
                self._controls.stop(after_turn=kind == "pause")
                self._tell(self._live.stopping(PAUSING if kind == "pause" else STOPPING))
            case {"kind": "answer_all", "questions": list(shown)}:
                # Those that stand in the page: one that came meanwhile was not seen.
                for question_id, question in self._live.open_questions():
                    if question_id in shown:
                        self._controls.answer(question.tool_call_id, PersonAnswer(choice="once"))
            case {"kind": "answer" | "preview", "question": str(question_id)}:
                if question := self._live.asked(question_id):
                    self._on_answer(told, question_id, question)
            case _:
                pass

    def _on_ready(self, page: object) -> None:
        self.can_answer = self._failure is None
        if not isinstance(page, int | str) or len(str(page)) > _KEY_CHARS:
            return
        if self._is_over or self._loop is None:
            self._send_whole(page)
        else:
            self.soon(self._send_whole, page)

    def _send_whole(self, page: int | str) -> None:
        """Give one page the picture, which has all in it that was sent before."""
        if not self._is_over:
            self._batcher.flush()
        self._send_ops([["done", self.picture()]], page=page)

    def _on_answer(self, told: dict[str, Any], question_id: str, question: Question) -> None:
        """An answer, or other arguments of which a preview is wanted."""
        if told["kind"] == "answer":
            read = read_answer(told, question)
        else:
            read = read_fields(told.get("fields", {}), question)
        if isinstance(read, str):
            self._say(question_id, read)
        elif isinstance(read, PersonAnswer):
            self._controls.answer(question.tool_call_id, read)
        elif read is not None:
            show = partial(self._show_pieces, question_id)
            self._controls.preview(question.tool_call_id, read, show)

    def _show_pieces(self, question_id: str, why: str, pieces: Sequence[PreviewPiece]) -> None:
        self._say(question_id, "")
        made = {"why": why_node(question_id, why), "pieces": preview_node(question_id, pieces)}
        self._tell([["put", f"{question_id}/{part}", node, ""] for part, node in made.items()])

    def _say(self, question_id: str, words: str) -> None:
        self._tell([["put", f"{question_id}/said", said_node(question_id, words), ""]])

    # Sending

    def _tell(self, ops: list[Op]) -> None:
        self.soon(self._batcher.add, ops)

    def soon(self, work: Callable[..., object], *given: object) -> None:
        """Do this on the engine's loop, between two events."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the kernel is going down
                self._loop.call_soon_threadsafe(work, *given)

    def _send_ops(self, ops: list[Op], page: int | str | None = None) -> None:
        message: dict[str, Any] = {"run": self.run_id, "ops": ops}
        try:
            self._send(message if page is None else {**message, "page": page})
        except Exception as error:
            self._fail(error)


class OutputView:
    """The live views in an output, and their swap to the saved pictures at the end.

    Of one run, or of several that answer one request again, side by side.
    """

    def __init__(self, output: Output, n: int = 1) -> None:
        """Show `n` runs below what the output holds; `open` begins each."""
        self._output, self._n = output, n
        self._lives: list[LiveView] = []
        self._over: list[RunRecord] = []
        self._saved, self._unsaved = _FIRST_SAVE, 0
        """Characters of the picture in the output, and of what was sent since."""
        self._was_asking = self._is_over = False

    def open(self, run: RunRecord, controls: RunControls) -> LiveView:
        """The view of a run that begins, which is its sink."""
        ended, kernel_id = self._ended, self._output.id
        live = LiveView(run, controls, send=self._send, ended=ended, kernel_id=kernel_id)
        place = len(self._output.parts)
        self._output.at_work, self._output.take_out = run.id, partial(live.soon, self._take_out)
        self._output.add(run.id)
        self._lives.append(live)
        if len(self._lives) > 1:
            self.widget.send({"run": run.id, "ops": [["done", live.picture()]]})
        else:
            self._place = place
            self.widget = RunWidget(
                lambda: [*self._output.nodes(place), *(one.picture() for one in self._lives)]
            )
            listen(self.widget, self._heard)
            self._output.show_live(comm_id(self.widget))
        return live

    def _heard(self, message: object) -> None:
        for live in self._lives:
            live.heard(message)

    def _send(self, message: dict[str, Any]) -> None:
        # Drawn anew, an output may move: not under the mouse of a person who is asked.
        is_asking = any(live.is_asking for live in self._lives)
        if is_asking and not self._was_asking:
            self._save()
        self._was_asking = is_asking
        self.widget.send(message)
        if message["ops"][0][0] != "done":
            self._unsaved += len(str(message["ops"]))
            if self._unsaved > self._saved and not is_asking and self._output.at_work:
                self._save(2 * self._saved)

    def _save(self, more_than: int = 0) -> None:
        """Keep the picture so far in the output, if it has so many characters."""
        self._unsaved = 0
        lives = [live.saved_picture() for live in self._lives]
        made = page(h("div", "", *self._output.nodes(self._place), *lives))
        if len(made) > more_than:
            self._saved = len(made)
            self._output.show_live(comm_id(self.widget), made)

    def _take_out(self, gone: Sequence[Part]) -> None:
        """Take what was deleted out of the page, of the widget's state and of the file."""
        if not self._output.at_work:
            return
        self.widget.send_state("pictures")
        for part in gone:
            self.widget.send({"run": " ".join(part), "ops": [["done", h("div", "")]]})
        self._save()

    def _ended(self, run: RunRecord) -> None:
        self._over.append(run)
        self._end()

    def no_more(self) -> None:
        """Fewer runs begin than were wanted. Any thread."""
        self._n = len(self._lives)
        for live in self._lives[:1]:
            live.soon(self._end)

    def _end(self) -> None:
        """After the last run the pictures are saved. On the engine's loop."""
        if self._is_over or len(self._over) < self._n:
            return
        self._is_over = True
        self._output.at_work, self._output.take_out = "", None
        for live in self._lives:
            self._output.unfolded[live.run_id] = frozenset(live.unfolded)
        if self._n > 1:
            ids = [live.run_id for live in self._lives]
            place = self._output.parts.index((ids[0],))
            self._output.parts.insert(place, (self._over[0].parent_id or "", *ids))
        self._output.show_saved(*self._over)
        retire(self._output, self.widget)


def retire(output: Output, widget: RunWidget) -> None:
    """The saved picture has replaced this live view, whose clicks mean nothing any more."""
    comms.unregister(comm_id(widget))
    # The model stays open, so that a reloaded page can show it.
    _replaced.append(_Replaced(output, widget))
    spare = [one for one in _replaced if one.output.takes_updates]
    for one in spare[:-_KEPT_OPEN]:
        _replaced.remove(one)
        one.widget.close()


def forget_views(run_id: str) -> None:
    """Close what still shows a run that was deleted: a widget's model holds whole pictures."""
    for one in [one for one in _replaced if any(run_id in part for part in one.output.parts)]:
        _replaced.remove(one)
        one.widget.close()
