"""The live view of a run: one widget, ops in batches, the whole picture once at the end.

Owns the widget, the batching and the sink that feeds it. What is drawn is in `live/`.
"""

# ipywidgets and anywidget have no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import anywidget
import traitlets

from nbagent.contracts.events import Event, RunFinished
from nbagent.contracts.ports import RunControls
from nbagent.notebook import live_source
from nbagent.view.live_state import LiveState, state_for_front_end
from nbagent.view.question_before import Unclear, call_of, read_answer
from nbagent.view.static_html import style
from nbagent.view.view_types import Op, ViewState

INTERVAL_S = 0.05
"""20 batches a second."""
Action = dict[str, Any]
"""A message of the front end: `{"kind": "ready"}`, `{"kind": "stop"}`, `{"kind": "answer", …}`."""


class RunView(anywidget.AnyWidget):
    """The widget. While a run goes on only ops are sent; `state` is synced at its end."""

    _esm = live_source.joined()
    _css = style() + live_source.question_style()
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, state: ViewState, *, live: Callable[[], ViewState] | None = None) -> None:
        """Show a picture.

        Args:
            state: the picture to begin with.
            live: gives the picture as it is now, while the run goes on: for a page that is
                loaded anew in mid-run. Any thread.
        """
        self._live = live
        self._callbacks: list[Callable[[Action], None]] = []
        super().__init__(state=state_for_front_end(state))
        self.on_msg(self._heard)

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """What the front end is given; the picture in it is always the present one."""
        live = self._live
        # Set silently: a notification would send the whole picture once more.
        if live is not None and (key is None or "state" in key):
            self._trait_values["state"] = state_for_front_end(live())
        return cast("dict[str, Any]", super().get_state(key, drop_defaults))

    def show_batch(self, ops: list[Op]) -> None:
        """Send ops to every front end, as one message."""
        self.send({"ops": ops})

    def finish(self, state: ViewState, *, shown: bool = True) -> None:
        """Sync the whole, last picture; not `shown` keeps it for pages that ask for it later."""
        self._live = None
        if not shown:
            self._trait_values["state"] = state_for_front_end(state)
            return
        # Cleared first, silently: an equal value would not be sent.
        self._trait_values["state"] = {}
        self.state = state_for_front_end(state)

    def on_action(self, callback: Callable[[Action], None]) -> None:
        """Call back for each message of the front end, in whichever thread it arrives."""
        self._callbacks.append(callback)

    def act(self, content: object) -> None:
        """Take a message of the front end that came another way than the widget's own."""
        if isinstance(content, dict):
            for callback in self._callbacks:
                callback(cast("Action", content))

    def _heard(self, _widget: Any, content: Any, _buffers: Any) -> None:
        self.act(content)


class Batcher:
    """Collects ops and sends them at most every `interval_s`; the first ones at once.

    Lives on one event loop: the one that is running when it gets its first ops.
    """

    def __init__(self, send: Callable[[list[Op]], None], *, interval_s: float = INTERVAL_S) -> None:
        self._send = send
        self._interval_s = interval_s
        self._pending: list[Op] = []
        self._timer: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None

    def add(self, ops: list[Op]) -> None:
        """Take ops. Raises what sending the batch before has raised."""
        if self._failure is not None:
            raise self._failure
        for op in ops:
            merge(self._pending, op)
        if self._pending and self._timer is None:
            self._flush()
            if self._failure is not None:
                raise self._failure

    def drop(self) -> None:
        """Forget what waits, and stop: the whole picture follows."""
        self._pending = []
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._timer = None
        if not self._pending:
            return
        ops, self._pending = self._pending, []
        try:
            self._send(ops)
        except Exception as error:
            # In a timer nobody would see it; the sink that adds next is the one to be detached.
            self._failure = error
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._interval_s, self._flush)


def merge(pending: list[Op], op: Op) -> None:
    """Add an op to those that wait: text joins text, a newer head or card replaces the older."""
    last = pending[-1] if pending else None
    match op:
        case {"op": "text" | "reasoning"} if last and last["op"] == op["op"]:
            if last["turn"] == op["turn"]:
                last["text"] += op["text"]
                return
        case {"op": "draft"} if last and last["op"] == "draft":
            if (last["turn"], last["index"]) == (op["turn"], op["index"]):
                last["name"] = op["name"] or last["name"]
                last["text"] += op["text"]
                return
        case {"op": "head"}:
            pending[:] = [old for old in pending if old["op"] != "head"]
        case {"op": "tool"}:
            key = (op["turn"], op["tool"]["key"])
            pending[:] = [
                old
                for old in pending
                if old["op"] != "tool" or (old["turn"], old["tool"]["key"]) != key
            ]
        case {"op": "state"}:
            pending.clear()
        case _:
            pass
    pending.append(op)


class LiveViewSink:
    """Feeds a `RunView` with the events of its run. On the engine's loop."""

    name = "live view"

    def __init__(
        self,
        view: RunView,
        live: LiveState,
        *,
        controls: RunControls | None = None,
        interval_s: float = INTERVAL_S,
        stays: bool = True,
    ) -> None:
        """Feed a view.

        Args:
            view: the widget.
            live: the picture of the run.
            controls: where the answers to questions go.
            interval_s: seconds between two batches.
            stays: False when a saved picture takes the view's place as soon as the run is over.
        """
        self.view = view
        self._live = live
        self._controls = controls
        self.can_answer = False
        """Whether a front end has said that it is there: its answers come the same way."""
        self._stays = stays
        self._n_pages = 0
        self._batcher = Batcher(view.show_batch, interval_s=interval_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done = False
        view.on_action(self._on_action)

    def handle(self, event: Event) -> None:
        """Fold one event, and send what it changed soon."""
        self._loop = self._loop or asyncio.get_running_loop()
        ops = self._live.fold(event)
        if isinstance(event, RunFinished):
            self._done = True
            self._batcher.drop()
            # A page that was loaded anew gets no update of the cell's output.
            self.view.finish(self._live.snapshot(), shown=self._stays or self._n_pages > 1)
        elif ops:
            self._batcher.add(ops)

    def close(self) -> None:
        """Send no more."""
        self._done = True
        self._batcher.drop()

    def _on_action(self, action: Action) -> None:
        """A front end is ready, or a person answers. Any thread."""
        match action.get("kind"):
            case "ready":
                self._on_ready(action)
            case "answer" if not self._done:
                self._on_answer(action)
            case _:
                pass

    def _on_ready(self, action: Action) -> None:
        """Give it the picture, which may have moved on."""
        self.can_answer = self._controls is not None
        self._n_pages += 1
        if self._done:
            # It began with the picture of a run that goes on, and missed the end.
            if action.get("running"):
                self.view.show_batch([{"op": "state", "state": self._state()}])
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(self._send_all)

    def _on_answer(self, action: Action) -> None:
        call = call_of(action)
        answer = read_answer(action, self._live.asked(call))
        if isinstance(answer, Unclear):
            self.view.show_batch(
                [{"op": "unclear", "call": call, "nth": answer.nth, "text": answer.words}]
            )
        elif answer is not None and self._controls is not None:
            self._controls.answer(call, answer)

    def _state(self) -> ViewState:
        return state_for_front_end(self._live.snapshot())

    def _send_all(self) -> None:
        if not self._done:
            # What sending raises is raised again by the next `handle`.
            with suppress(Exception):
                self._batcher.add([{"op": "state", "state": self._state()}])


def live_view(
    live: LiveState, *, controls: RunControls | None = None, stays: bool = True
) -> tuple[RunView, LiveViewSink]:
    """A widget for a run that begins, and the sink that feeds it."""
    view = RunView(live.snapshot(), live=live.snapshot)
    return view, LiveViewSink(view, live, controls=controls, stays=stays)
