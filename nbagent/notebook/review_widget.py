"""A person labels answers, one at a time: a widget with five buttons, and keys that do the same.

What is shown, in which order, and where labels are kept is the review's; see `PersonReview`.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from nbagent.contracts.canonical import json_object
from nbagent.contracts.secrets import redact_truncated
from nbagent.notebook.clicks import aside
from nbagent.notebook.outputs import Output
from nbagent.notebook.run_widget import RunWidget, comm_id, listen
from nbagent.session.frontend import PersonReview
from nbagent.view.node import Node, h, line
from nbagent.view.picture import ROOT, page
from nbagent.view.words import clean, cut, one_line, visible

KEY = "review"
_TITLE_CHARS = 200
_TEXT_CHARS = 4_000
_MOST_TEXTS = 40


def review_node(review: PersonReview, problem: str = "") -> Node:
    """The case that waits for a label, and its buttons; at the end, that there is none left.

    Args:
        review: what is labelled.
        problem: why the last label could not be kept.
    """
    shown, title = review.shown(), one_line(visible(review.title), _TITLE_CHARS)
    title = title if shown else "✓ No answer is left to label"
    place = f"{min(review.place, review.total):,} of {review.total:,}"
    texts = [node for heading, text in shown[:_MOST_TEXTS] for node in _text_nodes(heading, text)]
    return h(
        "div",
        f"{ROOT} nba-review",
        h("div", "nba-head", h("strong", "nba-phase", title), h("span", "nba-facts", place)),
        h("div", "nba-answer", *texts) if texts else None,
        h("div", "nba-foot", *_buttons(review, is_open=bool(shown))),
        line("nba-end nba-error", problem),
        role="group",
        aria_label="answers to label",
        tabindex="0",
        data_run=KEY,
        data_lm_suppress_shortcuts="true",
    )


def _text_nodes(heading: str, text: str) -> list[Node]:
    shown, note = cut(clean(text), _TEXT_CHARS, has_all="the run")
    label = h("div", "nba-lab", one_line(visible(heading), _TITLE_CHARS))
    return [label, h("div", "nba-plain", shown), *filter(None, [line("nba-note", note)])]


def _buttons(review: PersonReview, *, is_open: bool) -> list[Node]:
    """Each names the case that it means: a second click must not label the next one."""
    at = {"type": "button", "data_turn": str(review.place)}
    back = h("button", "", "← Back", data_do="back", title="Backspace", **at)
    if not is_open:
        return [back] if review.total else []
    rates = [
        h("button", "", name, data_do="label", value=name, title=f"Key {name}", **at)
        for name in map(str, range(1, review.scale + 1))
    ]
    skip = h("button", "", "Skip", data_do="skip", title="Key 0", **at)
    hint = h("small", "", f"keys 1–{review.scale}, 0 skips, Backspace goes back")
    return [*rates, skip, *([back] if review.place > 1 else ()), hint]


class LiveReview:
    """The widget of a review."""

    def __init__(self, review: PersonReview) -> None:
        """Show it in the cell that runs now."""
        self._review, self._problem = review, ""
        self._lock = threading.Lock()
        """Held from the check which case is meant until the next one is shown."""
        self._output = Output()
        self.widget = RunWidget(lambda: [self._picture()])
        listen(self.widget, self.heard)
        saved = f"{page('')}<p>{review.total:,} answers to label; run the cell again to go on.</p>"
        self._output.show_live(comm_id(self.widget), saved)

    def heard(self, message: object) -> None:
        """Do what a person clicked or typed, or greet a page. Any thread."""
        told = json_object(message) or {}
        if told.get("kind") == "ready":
            self._send()
        elif told.get("run") == KEY and told.get("kind") in ("label", "skip", "back"):
            # Not in the thread that receives messages: a label is written to the disk.
            context = self._output.context
            aside(partial(self._do, told), failed=self._failed, context=context)

    def _do(self, told: dict[str, Any]) -> None:
        with self._lock:
            if told.get("place") != str(self._review.place):
                return  # a second click, meant for the case before
            self._problem = ""
            if told["kind"] == "skip":
                self._review.skip()
            elif told["kind"] == "back":
                self._review.back()
            elif (value := str(told.get("value"))) in map(str, range(1, self._review.scale + 1)):
                self._review.label(int(value))
            self._send()

    def _failed(self, error: Exception) -> None:
        self._problem = visible(redact_truncated(str(error)))
        self._send()

    def _picture(self) -> Node:
        return review_node(self._review, self._problem)

    def _send(self) -> None:
        self.widget.send({"run": KEY, "ops": [["done", self._picture()]]})


def show_review(review: PersonReview) -> None:
    """Show the widget, and return at once."""
    LiveReview(review)
