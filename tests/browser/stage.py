"""One live view in a plain page, with a stub of the widget's model, and the Python side of it.

Owns no expectations: what a person should see stands in the tests.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, Page
from stories import Story

from nbagent.contracts import events
from nbagent.notebook.live_state import LiveState, state_for_front_end
from nbagent.notebook.live_view import RunView
from nbagent.notebook.view_state import view_of
from nbagent.notebook.view_types import Op, ViewState

_STUB = """
async ([source, css, state]) => {
  const sheet = document.head.appendChild(document.createElement("style"));
  sheet.textContent = css;
  const heard = {};
  const model = {
    state, sent: [],
    get: (key) => model[key],
    send: (content) => model.sent.push(content),
    on: (name, callback) => { heard[name] = callback; },
    off: (name) => { delete heard[name]; },
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const widget = (await import(url)).default();
  widget.initialize({ model });
  const el = document.getElementById("here");
  window.stub = {
    model, heard, widget,
    ops: (ops) => heard["msg:custom"]({ ops }),
    finish: (state) => { model.state = state; heard["change:state"](); },
    leave: widget.render({ model, el }),
    again: () => { window.stub.leave(); window.stub.leave = widget.render({ model, el }); },
  };
}
"""


class Stage:
    """A page with one live view, and the Python side that feeds it."""

    def __init__(self, page: Page, story: Story, *, theme: str = "light") -> None:
        self.page, self.story = page, story
        self.requests: list[str] = []
        self.failures: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.failures.append(str(error)))
        ground = "#fff" if theme == "light" else "#15171a"
        page.set_content(
            f'<!doctype html><body style="margin:24px;background:{ground}"><div id="here"></div>'
        )
        begun = story.run.model_copy(update={"turns": (), "phase": "Running"})
        self.live = LiveState(begun, clock=lambda: 0.0)
        # What the widget sends: without comments.
        source = str(RunView._esm), str(RunView._css)  # pyright: ignore[reportPrivateUsage]
        page.evaluate(_STUB, [*source, self.live.snapshot()])

    def play(self, given: list[events.Event]) -> None:
        """Fold events, and send their ops as one batch."""
        ops: list[Op] = []
        for event in given:
            ops += self.live.fold(event)
        self.page.evaluate("ops => stub.ops(ops)", ops)

    def finish(self, state: ViewState | None = None) -> None:
        """Sync the last picture."""
        state = state_for_front_end(state or view_of(self.story.run))
        self.page.evaluate("state => stub.finish(state)", state)

    def turn(self, place: int) -> Locator:
        """The turn at a place, from 0."""
        return self.page.locator(".nba-turn").nth(place)

    def is_open(self, place: int) -> bool:
        """Whether a turn is unfolded."""
        return bool(self.turn(place).evaluate("node => node.open"))

    @property
    def sent(self) -> list[Any]:
        """What the view has sent to the kernel."""
        return self.page.evaluate("stub.model.sent")


def until(story: Story, kind: type[events.Event], nth: int = 0) -> int:
    """The place just after the nth event of a kind."""
    return [i for i, event in enumerate(story.events) if isinstance(event, kind)][nth] + 1
