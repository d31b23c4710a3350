"""Widget in which a person labels answers one at a time, by buttons or keys.

`PersonReview` owns the shown texts, their order and the labels.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.secrets import redact_truncated
from nbagent.notebook.clicks import run_in_thread
from nbagent.notebook.outputs import Output
from nbagent.notebook.page_proof import FinalDisplay, wait_for_page
from nbagent.notebook.run_widget import RunWidget, comm_id, is_page, listen
from nbagent.session.frontend import PersonReview
from nbagent.view.node import Node, h, line
from nbagent.view.run_picture import ROOT_CLASS, page
from nbagent.view.text_format import one_line, sanitize_prose, sanitize_value, truncate

REVIEW_KEY = "review"
_TITLE_CHARS = 200
_TEXT_CHARS = 4_000
_MAX_TEXTS = 40


def review_node(review: PersonReview, problem: str = "") -> Node:
    """Draw the case that waits for a label, with its buttons, or the end of the review.

    Args:
        review: the review.
        problem: why the last label could not be stored.
    """
    shown, title = review.shown(), one_line(sanitize_value(review.title), _TITLE_CHARS)
    title = title if shown else "✓ All answers are labelled"
    position = f"{min(review.position, review.total):,} of {review.total:,}"
    texts = [node for heading, text in shown[:_MAX_TEXTS] for node in _text_nodes(heading, text)]
    return h(
        "div",
        f"{ROOT_CLASS} nba-review",
        h("div", "nba-head", h("strong", "nba-phase", title), h("span", "nba-facts", position)),
        h("div", "nba-answer", *texts) if texts else None,
        h("div", "nba-foot", *_buttons(review, is_open=bool(shown))),
        line("nba-end nba-error", problem),
        role="group",
        aria_label="answers to label",
        tabindex="0",
        data_run=REVIEW_KEY,
        data_lm_suppress_shortcuts="true",
    )


def _text_nodes(heading: str, text: str) -> list[Node]:
    shown, note = truncate(sanitize_prose(text), _TEXT_CHARS, has_all="the run")
    label = h("div", "nba-lab", one_line(sanitize_value(heading), _TITLE_CHARS))
    return [label, h("div", "nba-plain", shown), *filter(None, [line("nba-note", note)])]


def _buttons(review: PersonReview, *, is_open: bool) -> list[Node]:
    """Draw the buttons. Each has its case's number: a double click must not label the next case."""
    at = {"type": "button", "data_turn": str(review.position)}
    back = h("button", "", "← Back", data_do="back", title="Backspace", **at)
    if not is_open:
        return [back] if review.total else []
    rates = [
        h("button", "", name, data_do="label", value=name, title=f"Key {name}", **at)
        for name in map(str, range(1, review.scale + 1))
    ]
    skip = h("button", "", "Skip", data_do="skip", title="Key 0", **at)
    hint = h("small", "", f"keys 1–{review.scale}, 0 skips, Backspace goes back")
    return [*rates, skip, *([back] if review.position > 1 else ()), hint]


class LiveReview:
    """Live widget of a review."""

    def __init__(self, review: PersonReview) -> None:
        """Show the review in the cell that runs now."""
        self._review, self._problem, self._is_done = review, "", False
        self._lock = threading.Lock()
        """Locked from the check of the case's number until the next case is shown."""
        self._output = Output()
        self.display = FinalDisplay(self._output)
        self.widget = RunWidget(lambda: [self._picture()])
        listen(self.widget, self.on_message)
        self._show_live(f"{review.total:,} answers to label; run the cell again to continue.")

    def _show_live(self, text: str) -> None:
        html = page(h("div", "nba-run", h("p", "", text)))
        self._output.show_live(comm_id(self.widget), html=html, text=text)

    def on_message(self, message: object) -> None:
        """Handle an untrusted message of a page: a click, or a page that is ready. Any thread."""
        content = json_object(message) or {}
        kind, where = content.get("kind"), content.get("page")
        if kind in ("ready", "closed"):
            if is_page(where):
                if kind == "ready":
                    self.display.page_ready(where)
                else:
                    self.display.page_closed(where)
            self._send()
        elif content.get("run") == REVIEW_KEY and content.get("kind") in ("label", "skip", "back"):
            # In a thread of its own: a label is written to disk, which must not block messages.
            context = self._output.context
            run_in_thread(partial(self._act, content), on_error=self._failed, context=context)

    def _act(self, message: dict[str, Any]) -> None:
        with self._lock:
            if message.get("place") != str(self._review.position):
                return  # a second click on the previous case
            self._problem = ""
            if message["kind"] == "skip":
                self._review.skip()
            elif message["kind"] == "back":
                self._review.back()
            elif (value := str(message.get("value"))) in map(str, range(1, self._review.scale + 1)):
                self._review.label(int(value))
            self._send()
            if not self._review.shown() and not self._is_done:
                self._is_done = True  # once: redrawing an output moves the page
                self._show_live(f"All {self._review.total:,} answers are labelled.")

    def _failed(self, error: Exception) -> None:
        self._problem = sanitize_value(redact_truncated(str(error)))
        self._send()

    def _picture(self) -> Node:
        return review_node(self._review, self._problem)

    def _send(self) -> None:
        self.widget.send({"run": REVIEW_KEY, "ops": [["done", self._picture()]]})


def show_review(review: PersonReview) -> bool:
    """Show the widget of a review, and wait until a page shows it; False if none does."""
    view = LiveReview(review)
    view.display.settle()  # the widget stays: nothing replaces it at the end
    return wait_for_page(view.display)
