"""Unfinished response of a turn: reasoning, text block by block, calls.

Returns the ops that change the page, and the present parts of the turn's picture.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbagent.contracts.secrets import StreamFilter
from nbagent.view.markdown import MAX_CHARS, BlockSplitter
from nbagent.view.node import Node, h, line
from nbagent.view.text_format import sanitize_prose, sanitize_value, truncate
from nbagent.view.turn_request import label_node

Op = list[Any]
"""`["put", key, node, parent]`, `["add", key, text]` or `["done", node]`."""
ARGUMENTS_CHARS = 4_000
_REASONING_CHARS = 12_000
_MAX_CALLS = 200


def reasoning_node(key: str, text: str, expression: str) -> Node:
    """Draw the reasoning of a turn."""
    shown, note = truncate(text, _REASONING_CHARS, has_all=f"{expression}.message.reasoning")
    thought = h("div", "nba-think", shown, data_key=f"{key}/reasoning/0")
    parts = [label_node("reasoning"), thought, line("nba-note", note)] if text else []
    return h("div", "", *parts, data_key=f"{key}/reasoning")


def progress_node(card: str, text: str) -> Node:
    """Draw the progress text of a call."""
    return h("div", "nba-note", text, data_key=f"{card}/progress")


class _Stream:
    """Text that arrives in pieces: bounded, with secrets hidden."""

    def __init__(self, limit: int, show: Callable[[str], str]) -> None:
        self._filter = StreamFilter()
        self._show = show
        self._left = limit
        self._pieces: list[str] = []

    def feed(self, piece: str) -> str:
        """Add a piece; return the text that may be shown now.

        A possible start of a secret is held back until it is decided.
        """
        if self._left <= 0:
            return ""
        shown = self._show(self._filter.feed(piece))[: self._left]
        self._left -= len(shown)
        if self._left <= 0:
            shown += "\n… (more than is shown while it streams)"
        self._pieces.append(shown)
        return shown

    @property
    def text(self) -> str:
        return "".join(self._pieces)


class TurnDraft:
    """Response of a turn while it streams: reasoning, text block by block, calls."""

    def __init__(self, turn_id: str) -> None:
        self.key = turn_id
        self._calls: list[tuple[str, _Stream]] = []
        self.replace_text("")
        self.replace_reasoning("")

    def add_text(self, text: str) -> list[Op]:
        """Add text. Closed blocks are drawn as Markdown, the open one as plain text."""
        shown = self.text.feed(text)
        if not shown:
            return []
        key, begins = f"{self.key}/text", not self._closed and not self._blocks.tail
        closed = self._blocks.feed(shown)
        block_key = f"{key}/{len(self._closed)}"
        if not closed:
            return [
                ["put", block_key, self._open_block(), key] if begins else ["add", block_key, shown]
            ]
        self._closed.append(h("div", "", *closed, data_key=block_key))
        tail = self._open_block()
        return [["put", block_key, self._closed[-1], key], ["put", tail[1]["data-key"], tail, key]]

    def _open_block(self) -> list[Any]:
        key = f"{self.key}/text/{len(self._closed)}"
        return ["div", {"class": "nba-plain", "data-key": key}, self._blocks.tail]

    def add_reasoning(self, text: str) -> list[Op]:
        """Add reasoning."""
        begins = not self.reasoning.text
        shown = self.reasoning.feed(text)
        if shown and begins:
            return [["put", f"{self.key}/reasoning", reasoning_node(self.key, shown, ""), self.key]]
        return [["add", f"{self.key}/reasoning/0", shown]] if shown else []

    def add_call(self, index: int, name: str, text: str) -> list[Op]:
        """Add to a call: its name or a piece of its arguments."""
        # The index comes from the client of a model, which may be of another package.
        if not 0 <= index <= min(len(self._calls), _MAX_CALLS):
            return []
        begins = index == len(self._calls)
        if begins:
            self._calls.append(("", _Stream(ARGUMENTS_CHARS, sanitize_value)))
        known, stream = self._calls[index]
        shown = stream.feed(text)
        if begins or (name and name != known):
            self._calls[index] = (name, stream)
            return [self._call_op(index)]
        return [["add", f"{self.key}/draft/{index}/text", shown]] if shown else []

    def replace_text(self, text: str) -> None:
        """Set the whole text so far."""
        self.text = _Stream(MAX_CHARS, sanitize_prose)
        self._blocks = BlockSplitter()
        self._closed: list[Node] = []
        self.add_text(text)

    def replace_reasoning(self, text: str) -> None:
        """Set the whole reasoning so far."""
        self.reasoning = _Stream(_REASONING_CHARS, sanitize_prose)
        self.add_reasoning(text)

    def replace_call(self, index: int, name: str, arguments: str) -> list[Op]:
        """Set the name and all arguments so far of a call."""
        if not 0 <= index < len(self._calls):
            return self.add_call(index, name, arguments)
        self._calls[index] = (name, _Stream(ARGUMENTS_CHARS, sanitize_value))
        self._calls[index][1].feed(arguments)
        return [self._call_op(index)]

    def _call_op(self, index: int) -> Op:
        return ["put", f"{self.key}/draft/{index}", self._call_node(index), f"{self.key}/tools"]

    def _call_node(self, index: int) -> Node:
        name, stream = self._calls[index]
        key = f"{self.key}/draft/{index}"
        return h(
            "div",
            "nba-card nba-busy",
            h("code", "nba-call", name or "a call"),
            h("span", "nba-res", " being written"),
            h("pre", "", stream.text, data_key=f"{key}/text"),
            data_key=key,
        )

    def parts(self) -> list[Node]:
        """Draw the reasoning, text and calls of the turn's body as they are now."""
        tail = [self._open_block()] if self._blocks.tail else []
        drafts = map(self._call_node, range(len(self._calls)))
        return [
            reasoning_node(self.key, self.reasoning.text, ""),
            h("div", "nba-text", *self._closed, *tail, data_key=f"{self.key}/text"),
            h("div", "", *drafts, data_key=f"{self.key}/tools"),
        ]
