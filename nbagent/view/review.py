"""Picture of a review: the prompt, the row and the answer of one case, and the labels to choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nbagent.view.markdown import markdown_nodes, table_cell
from nbagent.view.node import Node, h, line
from nbagent.view.result_tables import prompt_blocks
from nbagent.view.run_picture import ROOT_CLASS
from nbagent.view.text_format import one_line, sanitize_prose, sanitize_value, truncate

REVIEW_KEY = "review"
"""`data-run` of a review, by which clicks find it."""
PROMPT, ANSWER = "prompt", "answer"
"""Headings of the first and the last text of a case; those between are the columns of its row."""
REASON_CHARS = 2_000
_TITLE_CHARS = 200
_TEXT_CHARS = 4_000
_CELL_CHARS = 1_000
_MAX_COLUMNS = 40
_HAS_ALL = "the run"


class ReviewCases(Protocol):
    """The parts of a review that are drawn."""

    @property
    def title(self) -> str: ...
    @property
    def position(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def scale(self) -> int: ...
    def shown(self) -> tuple[tuple[str, str], ...]: ...


def review_node(review: ReviewCases, problem: str = "") -> Node:
    """Draw the case that waits for a label, with its buttons, or the end of the review.

    Args:
        review: the review.
        problem: why the last label could not be stored.
    """
    shown, title = review.shown(), one_line(sanitize_value(review.title), _TITLE_CHARS)
    title = title if shown else "✓ All answers are labelled"
    position = f"{min(review.position, review.total):,} of {review.total:,}"
    return h(
        "div",
        f"{ROOT_CLASS} nba-review",
        h("div", "nba-head", h("strong", "nba-phase", title), h("span", "nba-facts", position)),
        *_case_nodes(shown),
        h("div", "nba-foot", *_buttons(review, is_open=bool(shown))),
        line("nba-end nba-error", problem),
        role="group",
        aria_label="answers to label",
        tabindex="0",
        data_run=REVIEW_KEY,
        data_lm_suppress_shortcuts="true",
    )


def _case_nodes(shown: Sequence[tuple[str, str]]) -> list[Node]:
    """Draw a case: its prompt, its row as a table, and the answer as Markdown."""
    if not shown:
        return []
    *row, (_, answer) = shown
    prompt = row.pop(0)[1] if row and row[0][0] == PROMPT else ""
    blocks, note = prompt_blocks(sanitize_prose(prompt), _TEXT_CHARS, has_all=_HAS_ALL)
    quoted = h("blockquote", "nba-prompt", *blocks, line("nba-note", note)) if blocks else None
    text, rest = truncate(sanitize_prose(answer), _TEXT_CHARS, has_all=_HAS_ALL)
    parts = [
        quoted,
        h("div", "nba-wide nba-wide-table", _row_table(row)) if row else None,
        h("hr", "nba-sep"),
        h("div", "nba-answer", *(markdown_nodes(text) or ["(no text)"]), line("nba-note", rest)),
    ]
    return [part for part in parts if part is not None]


def _row_table(row: Sequence[tuple[str, str]]) -> Node:
    rows: list[Node] = []
    for name, text in row[:_MAX_COLUMNS]:
        shown, note = truncate(sanitize_prose(text), _CELL_CHARS, has_all=_HAS_ALL)
        cell = table_cell("td", [shown, *filter(None, [line("nba-note", note)])])
        heading = one_line(sanitize_value(name), _TITLE_CHARS)
        rows.append(h("tr", "", h("th", "nba-l", heading, scope="row"), cell))
    return h("table", "", *rows)


def _buttons(review: ReviewCases, *, is_open: bool) -> list[Node]:
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
    why = h(
        "input",
        "nba-reason",
        type="text",
        placeholder="Reason, stored with the label",
        aria_label="Reason for the label",
        data_field="reason",
    )
    hint = h("small", "", f"keys 1–{review.scale}, 0 skips, Backspace goes back")
    return [why, *rates, skip, *([back] if review.position > 1 else ()), hint]
