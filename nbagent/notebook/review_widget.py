"""Widget in which a person labels answers one at a time, by buttons or keys.

`PersonReview` owns the shown texts, their order and the labels.
"""

from __future__ import annotations

import threading
from functools import partial

from nbagent.notebook.clicks import reason, run_in_thread
from nbagent.notebook.live_output import LiveOutput
from nbagent.notebook.live_updates import Shown
from nbagent.notebook.messages import Message
from nbagent.notebook.outputs import Output
from nbagent.notebook.page_proof import wait_for_page
from nbagent.session.frontend import PersonReview
from nbagent.view.node import Node, h
from nbagent.view.review import REASON_CHARS, REVIEW_KEY, review_node
from nbagent.view.run_picture import page


class LiveReview(Shown):
    """Live widget of a review."""

    def __init__(self, review: PersonReview) -> None:
        """Show the review in the cell that runs now."""
        super().__init__(REVIEW_KEY)
        self._review, self._problem, self._is_done = review, "", False
        self._lock = threading.Lock()
        """Locked from the check of the case's number until the next case is shown."""
        self._output = Output()
        self.view = LiveOutput(self._output, self)
        self._show(f"{review.total:,} answers to label; run the cell again to continue.")

    def parts(self) -> dict[str, Node]:
        """Draw the present case as one part."""
        return {REVIEW_KEY: self.whole()}

    def whole(self) -> Node:
        """Draw the present case."""
        return review_node(self._review, self._problem)

    def on_message(self, message: Message) -> None:
        """Handle a click or a key. Any thread."""
        if message.run == REVIEW_KEY and message.kind in ("label", "skip", "back"):
            # In a thread of its own: a label is written to disk, which must not block messages.
            context = self._output.context
            run_in_thread(partial(self._act, message), on_error=self._failed, context=context)

    def _act(self, message: Message) -> None:
        with self._lock:
            if message.case_number != str(self._review.position):
                return  # a second click on the previous case
            self._problem = ""
            if message.kind == "skip":
                self._review.skip()
            elif message.kind == "back":
                self._review.back()
            elif message.value in map(str, range(1, self._review.scale + 1)):
                self._review.label(int(message.value), _reason_of(message))
            self.updates.send_whole()
            if not self._review.shown() and not self._is_done:
                self._is_done = True  # once: redrawing an output moves the page
                self._show(f"All {self._review.total:,} answers are labelled.")

    def _failed(self, error: Exception) -> None:
        self._problem = reason(error)
        self.updates.send_whole()

    def _show(self, text: str) -> None:
        self.view.show(page(h("div", "nba-run", h("p", "", text))), text)


def _reason_of(message: Message) -> str | None:
    """Return the reason that the person typed; None if there is none."""
    return message.fields.get("reason", "")[:REASON_CHARS].strip() or None


def show_review(review: PersonReview) -> bool:
    """Show the widget of a review, and wait until a page shows it; False if none does."""
    display = LiveReview(review).view.display
    display.settle()  # the widget stays: nothing replaces it at the end
    return wait_for_page(display)
