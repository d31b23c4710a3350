"""What a model is writing in a turn: its reasoning, its text block by block, its calls.

Gives the ops that change the page, and the parts of the turn's picture as they are now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nbagent.contracts.secrets import StreamFilter
from nbagent.view.markdown import MAX_CHARS, Blocks
from nbagent.view.node import Node, h
from nbagent.view.picture import ARGUMENTS_CHARS, REASONING_CHARS, reasoning_node
from nbagent.view.words import clean, visible

Op = list[Any]
"""`["put", key, node, parent]`, `["add", key, text]`, `["drop", key]` or `["done", node]`."""
_MOST_DRAFTS = 200


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
    def is_empty(self) -> bool:
        """Whether nothing was shown of it."""
        return not self._pieces

    @property
    def text(self) -> str:
        return "".join(self._pieces)


class Writing:
    """What a model writes in a turn: reasoning, text block by block, calls."""

    def __init__(self, turn_id: str) -> None:
        self.key = turn_id
        self.text = _Stream(MAX_CHARS, clean)
        self.reasoning = _Stream(REASONING_CHARS, clean)
        self._blocks = Blocks()
        self._closed: list[Node] = []
        self._drafts: list[tuple[str, _Stream]] = []

    def more_text(self, text: str) -> list[Op]:
        """Whole blocks are drawn as they close; the open one is text."""
        shown = self.text.feed(text)
        if not shown:
            return []
        begins = not self._closed and not self._blocks.tail
        closed = self._blocks.feed(shown)
        key = f"{self.key}/text"
        if not closed:
            open_key = f"{key}/{len(self._closed)}"
            node = ["put", open_key, self._open_block(), key]
            return [node if begins else ["add", open_key, shown]]
        place = len(self._closed)
        self._closed.append(h("div", "", *closed, data_key=f"{key}/{place}"))
        return [
            ["put", f"{key}/{place}", self._closed[-1], key],
            ["put", f"{key}/{place + 1}", self._open_block(), key],
        ]

    def _open_block(self) -> Node:
        place = len(self._closed)
        return h("div", "nba-plain", self._blocks.tail, data_key=f"{self.key}/text/{place}")

    def more_reasoning(self, text: str) -> list[Op]:
        """More of what the model thinks aloud."""
        begins = self.reasoning.is_empty
        shown = self.reasoning.feed(text)
        if not shown:
            return []
        if begins:
            return [["put", f"{self.key}/reasoning", reasoning_node(self.key, shown, ""), self.key]]
        return [["add", f"{self.key}/reasoning/0", shown]]

    def more_call(self, index: int, name: str, text: str) -> list[Op]:
        """More of a call."""
        if not 0 <= index <= min(len(self._drafts), _MOST_DRAFTS):
            return []
        begins = index == len(self._drafts)
        if begins:
            self._drafts.append(("", _Stream(ARGUMENTS_CHARS, visible)))
        known, stream = self._drafts[index]
        shown = stream.feed(text)
        if name:
            self._drafts[index] = (name, stream)
        if begins or (name and name != known):
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

    def parts(self) -> dict[str, Node]:
        """The parts of the turn's body as they are now."""
        key = f"{self.key}/text"
        tail = [self._open_block()] if self._blocks.tail else []
        parts: dict[str, Node] = {"text": h("div", "nba-text", *self._closed, *tail, data_key=key)}
        if thought := reasoning_node(self.key, self.reasoning.text, ""):
            parts["reasoning"] = thought
        drafts = map(self._draft, range(len(self._drafts)))
        parts["tools"] = h("div", "", *drafts, data_key=f"{self.key}/tools")
        return parts
