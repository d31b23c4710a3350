"""Unfinished response of a turn: reasoning, text block by block, calls.

Marks what changed on the page, and draws the present parts of the turn's picture.
"""

from __future__ import annotations

from collections.abc import Callable

from nbagent.contracts.secrets import StreamFilter
from nbagent.view.live_changes import Changes
from nbagent.view.markdown import MAX_CHARS, BlockSplitter
from nbagent.view.node import Node, h, line
from nbagent.view.text_format import sanitize_prose, sanitize_value, truncate
from nbagent.view.turn_request import label_node

ARGUMENTS_CHARS = 4_000
_REASONING_CHARS = 12_000
_MAX_CALLS = 200
_DRAWN_CHARS = 240_000
"""Messages of one streaming text hold about this many characters of drawn blocks: thousands of tiny
code blocks are many times as large as their text. Further text is plain until the answer is whole.
"""


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

    def __init__(self, turn_id: str, changes: Changes) -> None:
        """Begin an empty response, which marks its changes in `changes`."""
        self.key = turn_id
        self._changes = changes
        self._calls: list[tuple[str, _Stream]] = []
        self.replace_text("")
        self.replace_reasoning("")

    def add_text(self, text: str) -> None:
        """Add text. Closed blocks are drawn as Markdown, the open one as plain text."""
        shown = self.text.feed(text)
        if not shown:
            return
        began = bool(self._blocks.tail)
        has_closed = self._close_blocks(shown)
        open_block = self._open_block_index()
        if has_closed or not began:
            self._mark_block(open_block)
        else:
            self._changes.append(f"{self.key}/text/{open_block}", shown)

    def _close_blocks(self, text: str) -> bool:
        """Add text to the open block; return True if blocks closed."""
        if self._drawn_chars > _DRAWN_CHARS:
            self._blocks.tail += text
            return False
        closed = self._blocks.feed(text)
        if closed:
            self._closing += closed
            self._drawn_chars += len(str(closed))
            self._mark_block(len(self._closed))
        return bool(closed)

    def close_group(self) -> None:
        """End the group of closed blocks: it was sent, and later blocks form the next one."""
        if self._closing:
            self._closed.append(self._closing)
            self._closing = []

    def _open_block_index(self) -> int:
        return len(self._closed) + bool(self._closing)

    def _mark_block(self, index: int) -> None:
        key = f"{self.key}/text"
        self._changes.mark(f"{key}/{index}", lambda: self._block_node(index), key)

    def _block_node(self, index: int) -> Node | None:
        """Draw a group of closed blocks, or the open block behind the last group."""
        key = f"{self.key}/text/{index}"
        if index < self._open_block_index():
            group = self._closed[index] if index < len(self._closed) else self._closing
            return h("div", "", *group, data_key=key)
        return h("div", "nba-plain", self._blocks.tail, data_key=key) if self._blocks.tail else None

    def add_reasoning(self, text: str) -> None:
        """Add reasoning."""
        began = bool(self.reasoning.text)
        shown = self.reasoning.feed(text)
        if not shown:
            return
        if began:
            self._changes.append(f"{self.key}/reasoning/0", shown)
        else:
            self._changes.mark(f"{self.key}/reasoning", self._reasoning_node, self.key)

    def _reasoning_node(self) -> Node:
        return reasoning_node(self.key, self.reasoning.text, "")

    def add_call(self, index: int, name: str, text: str) -> None:
        """Add to a call: its name or a piece of its arguments."""
        # The index comes from the client of a model, which may be of another package.
        if not 0 <= index <= min(len(self._calls), _MAX_CALLS):
            return
        begins = index == len(self._calls)
        if begins:
            self._calls.append(("", _Stream(ARGUMENTS_CHARS, sanitize_value)))
        known, stream = self._calls[index]
        shown = stream.feed(text)
        if begins or (name and name != known):
            self._calls[index] = (name, stream)
            self._mark_call(index)
        elif shown:
            self._changes.append(f"{self.key}/draft/{index}/text", shown)

    def replace_text(self, text: str) -> None:
        """Set the whole text so far."""
        self.text = _Stream(MAX_CHARS, sanitize_prose)
        self._blocks = BlockSplitter()
        self._closed: list[list[Node]] = []
        """Groups of closed blocks: those of one message are one part of the page."""
        self._closing: list[Node] = []
        """Blocks that closed since the last message."""
        self._drawn_chars = 0
        self.add_text(text)

    def replace_reasoning(self, text: str) -> None:
        """Set the whole reasoning so far."""
        self.reasoning = _Stream(_REASONING_CHARS, sanitize_prose)
        self.add_reasoning(text)

    def replace_call(self, index: int, name: str, arguments: str) -> None:
        """Set the name and all arguments so far of a call."""
        if not 0 <= index < len(self._calls):
            self.add_call(index, name, arguments)
            return
        self._calls[index] = (name, _Stream(ARGUMENTS_CHARS, sanitize_value))
        self._calls[index][1].feed(arguments)
        self._mark_call(index)

    def _mark_call(self, index: int) -> None:
        key = f"{self.key}/draft/{index}"
        self._changes.mark(key, lambda: self._call_node(index), f"{self.key}/tools")

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
        blocks = map(self._block_node, range(self._open_block_index() + 1))
        drafts = map(self._call_node, range(len(self._calls)))
        return [
            self._reasoning_node(),
            h("div", "nba-text", *blocks, data_key=f"{self.key}/text"),
            h("div", "", *drafts, data_key=f"{self.key}/tools"),
        ]
