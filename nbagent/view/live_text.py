"""What a model is writing in a turn: its reasoning, its text block by block, its calls.

Gives the ops that change the page, and the parts of the turn's picture as they are now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbagent.contracts.secrets import StreamFilter
from nbagent.view.markdown import MAX_CHARS, Blocks
from nbagent.view.node import Node, h, line
from nbagent.view.turn_request import label_node
from nbagent.view.words import clean, cut, visible

Op = list[Any]
"""`["put", key, node, parent]`, `["add", key, text]` or `["done", node]`."""
ARGUMENTS_CHARS = 4_000
_REASONING_CHARS = 12_000
_MOST_DRAFTS = 200


def reasoning_node(key: str, text: str, place: str) -> Node:
    """What the model of a turn thought aloud."""
    shown, note = cut(text, _REASONING_CHARS, has_all=f"{place}.message.reasoning")
    thought = h("div", "nba-think", shown, data_key=f"{key}/reasoning/0")
    parts = [label_node("reasoning"), thought, line("nba-note", note)] if text else []
    return h("div", "", *parts, data_key=f"{key}/reasoning")


def progress_node(card: str, words: str) -> Node:
    """How far the call of a card is, as its tool says."""
    return h("div", "nba-note", words, data_key=f"{card}/progress")


class _Stream:
    """A text that arrives in pieces: secrets hidden, bounded."""

    def __init__(self, limit: int, show: Callable[[str], str]) -> None:
        self._filter = StreamFilter()
        self._show = show
        self._left = limit
        self._pieces: list[str] = []

    def feed(self, piece: str) -> str:
        """What may be shown of it now."""
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


class Writing:
    """What a model writes in a turn: reasoning, text block by block, calls."""

    def __init__(self, turn_id: str) -> None:
        self.key = turn_id
        self.text = _Stream(MAX_CHARS, clean)
        self.reasoning = _Stream(_REASONING_CHARS, clean)
        self._blocks = Blocks()
        self._closed: list[Node] = []
        self._drafts: list[tuple[str, _Stream]] = []

    def more_text(self, text: str) -> list[Op]:
        """Whole blocks are drawn as they close; the open one is text."""
        shown = self.text.feed(text)
        if not shown:
            return []
        key, begins = f"{self.key}/text", not self._closed and not self._blocks.tail
        closed = self._blocks.feed(shown)
        place = f"{key}/{len(self._closed)}"
        if not closed:
            return [["put", place, self._open_block(), key] if begins else ["add", place, shown]]
        self._closed.append(h("div", "", *closed, data_key=place))
        tail = self._open_block()
        return [["put", place, self._closed[-1], key], ["put", tail[1]["data-key"], tail, key]]

    def _open_block(self) -> list[Any]:
        key = f"{self.key}/text/{len(self._closed)}"
        return ["div", {"class": "nba-plain", "data-key": key}, self._blocks.tail]

    def more_reasoning(self, text: str) -> list[Op]:
        """More of what the model thinks aloud."""
        begins = not self.reasoning.text
        shown = self.reasoning.feed(text)
        if shown and begins:
            return [["put", f"{self.key}/reasoning", reasoning_node(self.key, shown, ""), self.key]]
        return [["add", f"{self.key}/reasoning/0", shown]] if shown else []

    def more_call(self, index: int, name: str, text: str) -> list[Op]:
        """More of a call."""
        if not 0 <= index <= min(len(self._drafts), _MOST_DRAFTS):
            return []
        begins = index == len(self._drafts)
        if begins:
            self._drafts.append(("", _Stream(ARGUMENTS_CHARS, visible)))
        known, stream = self._drafts[index]
        shown = stream.feed(text)
        if begins or (name and name != known):
            self._drafts[index] = (name, stream)
            return [["put", f"{self.key}/draft/{index}", self._draft(index), f"{self.key}/tools"]]
        return [["add", f"{self.key}/draft/{index}/text", shown]] if shown else []

    def _draft(self, index: int) -> Node:
        name, stream = self._drafts[index]
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
        """Of the turn's body its reasoning, text and calls, as they are now."""
        tail = [self._open_block()] if self._blocks.tail else []
        drafts = map(self._draft, range(len(self._drafts)))
        return [
            reasoning_node(self.key, self.reasoning.text, ""),
            h("div", "nba-text", *self._closed, *tail, data_key=f"{self.key}/text"),
            h("div", "", *drafts, data_key=f"{self.key}/tools"),
        ]
