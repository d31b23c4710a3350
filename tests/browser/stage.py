"""One live view in a plain page, with a stub of the widget's model, and the Python side of it.

Owns no expectations: what a person should see stands in the tests.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Dialog, Locator, Page
from stories import Story

from nbagent.contracts import events
from nbagent.contracts.approval import PreviewPiece
from nbagent.notebook.page_module import script, stylesheet
from nbagent.view.live import LivePicture, Op
from nbagent.view.run_picture import picture

VIEWS = """
async ([source, css]) => {
  document.head.appendChild(document.createElement("style")).textContent = css;
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const make = (await import(url)).default;
  window.begin = (given, el) => {
    const heard = {};
    const model = {
      ...given, sent: [],
      get: (key) => model[key],
      send: (content) => model.sent.push(content),
      on: (name, callback) => { heard[name] = callback; },
      off: (name) => { delete heard[name]; },
    };
    const widget = make();
    const end = widget.initialize({ model });
    const leave = el && widget.render({ model, el });
    return { model, end, leave, hear: (message) => heard["msg:custom"](message),
      change: (name) => heard[`change:${name}`](),
      render: (more) => widget.render({ model, el: more }) };
  };
}
"""


def load_views(page: Page, *more: str) -> None:
    """Let the page know what the widget sends: `begin({kind, pictures}, element)` shows them."""
    page.evaluate(VIEWS, [script(*more), stylesheet()])


CONTRAST = """
(root) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgb = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255);
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((v, i) => v * a + under[i] * (1 - a));
  const light = (c) => c.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    const chain = [];
    for (let n = node; n; n = n.parentElement) chain.unshift(getComputedStyle(n).backgroundColor);
    return chain.reduce((under, text) => over(rgb(text), under), [1, 1, 1]);
  };
  const ratio = (color, under) => {
    const [a, b] = [light(over(rgb(color), under)), light(under)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const texts = {};
  for (const node of root.querySelectorAll("*")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
    if (!own && !node.matches("textarea, input[type=text], select")) continue;
    const style = getComputedStyle(node);
    if (!node.checkVisibility() || style.fontSize === "0px") continue;
    if (node.closest("style, option, :disabled, [role=status]")) continue;
    texts[node.className || node.tagName] = ratio(style.color, ground(node));
  }
  const focus = root.querySelector("summary");
  focus.blur();
  focus.focus({ focusVisible: true });
  const outline = getComputedStyle(focus);
  return {
    texts,
    outline: outline.outlineStyle === "none" ? 0 : ratio(outline.outlineColor, ground(focus)),
    width: parseFloat(outline.outlineWidth),
  };
}
"""
"""The contrast of each text, by its class, and of the outline of what has the focus."""

OVERFLOWS = """
(root, [what, but]) => [...root.querySelectorAll(what)].filter((node) =>
  node.checkVisibility() && !node.closest(but) &&
  node.getBoundingClientRect().right > root.getBoundingClientRect().right + 1)
  .map((node) => node.className || node.tagName)
"""
"""Lists the nodes that reach over the right edge."""

PIECES = (
    PreviewPiece(
        "diff of a.md", "--- a.md\n+++ a.md\n@@ -1,2 +1,2 @@\n same\n-old\n+n\u202eew", "diff"
    ),
    PreviewPiece("script", "import os\nprint(os.getcwd())", "code"),
)
"""A diff and a script, as a person is shown them before an answer."""


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
        self.live = LivePicture(begun, clock=lambda: 0.0)
        load_views(page)
        page.evaluate(
            "given => { window.stub = begin(given, document.getElementById('here')) }",
            {"kind": "run", "pictures": [self.live.picture()]},
        )

    def play(self, given: list[events.Event]) -> None:
        """Fold events, and send their ops as one batch."""
        for event in given:
            self.live.update(event)
        self.hear(self.live.draw_changes())

    def hear(self, ops: list[Op]) -> None:
        """Send ops."""
        self.page.evaluate("m => stub.hear(m)", {"run": self.story.run.id, "ops": ops})

    def finish(self) -> None:
        """Send the last picture."""
        self.hear([["done", picture(self.story.run)]])

    def turn(self, place: int) -> Locator:
        return self.page.locator(".nba-turn").nth(place)

    def is_open(self, place: int) -> bool:
        return bool(self.turn(place).evaluate("node => node.open"))

    @property
    def sent(self) -> list[Any]:
        """Messages that the page has sent to the kernel."""
        sent = self.page.evaluate("stub.model.sent")
        return [message for message in sent if message["kind"] != "ready"]


PROBE = "http://probe.test/x"


def until_handlers_ran(page: Page) -> None:
    """Wait until a handler that the page's texts may have smuggled in has run.

    An image that is added now fails after those that are there already: handlers of theirs have
    run before its own.
    """
    page.evaluate(
        """url => new Promise((done) => {
          const image = new Image();
          image.onerror = () => requestAnimationFrame(() => setTimeout(done));
          image.src = url;
        })""",
        PROBE,
    )


def until(story: Story, kind: type[events.Event], nth: int = 0) -> int:
    """The place just after the nth event of a kind."""
    return [i for i, event in enumerate(story.events) if isinstance(event, kind)][nth] + 1


def asked_by(page: Page) -> list[str]:
    """Collect dialogs and windows that the page opens from now on."""
    asked: list[str] = []

    def note(dialog: Dialog) -> None:
        asked.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note)
    page.on("popup", lambda popup: asked.append(popup.url))
    return asked
