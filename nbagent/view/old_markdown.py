"""Markdown → a small tree of allowed nodes, plain JSON, from which every view is built.

A node is a text or `[tag, attributes, children]`. What is not allowed becomes text: no HTML,
no image, no address but http, https and mailto (another one is shown, not linked). Draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

Node = str | list[Any]
"""A text, or `[tag, attributes, children]`."""

_BLOCK_TAGS = ("p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "hr")
_INLINE_TAGS = ("code", "em", "strong", "s", "a", "br")
_TABLE_TAGS = ("table", "thead", "tbody", "tr", "th", "td")
TAGS = frozenset((*_BLOCK_TAGS, *_INLINE_TAGS, *_TABLE_TAGS))
MAX_CHARS = 60_000
"""A longer text is shown as it is, in one block."""
MAX_DEPTH = 24
_MAX_NODES = 20_000
_SCHEMES = ("http", "https", "mailto")
_MAX_LINES = 4_000
_MAX_EFFORT = 16_000_000
"""Sum over the paragraphs of (brackets, stars, backticks, …)²: what the parser is slow with."""


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": MAX_DEPTH})
    return parser.enable(["table", "strikethrough"])


def tree_of(text: str) -> list[Node]:
    """The nodes of a Markdown text. Never fails; hostile input comes back as one `pre`."""
    if not text.strip():
        return []
    if _is_costly(text):
        return _as_it_is(text)
    try:
        builder = _Builder()
        builder.walk(_parser().parse(text))
    except (RecursionError, ValueError, IndexError):
        return _as_it_is(text)
    return builder.root if builder.nodes <= _MAX_NODES else _as_it_is(text)


def _as_it_is(text: str) -> list[Node]:
    return [["pre", {}, [text]]]


def _is_costly(text: str) -> bool:
    """Whether the parser would hold up the loop it runs on (a tenth of a second or so)."""
    if len(text) > MAX_CHARS or text.count("\n") > _MAX_LINES:
        return True
    effort = 0
    for paragraph in text.split("\n\n"):
        effort += sum(paragraph.count(mark) for mark in "[]*_`~<&\\|>#") ** 2
    return effort > _MAX_EFFORT


class _Builder:
    """Turns the parser's flat tokens into the tree; counts what it makes."""

    def __init__(self) -> None:
        self.root: list[Node] = []
        self.nodes = 0
        self._open: list[list[Node]] = [self.root]
        self._refused: list[str] = []
        """Of each link that is open: its address, when that is not allowed."""

    def walk(self, tokens: Sequence[Token]) -> None:
        for token in tokens:
            if token.type == "inline":
                self.walk(token.children or [])
            elif token.nesting == 1:
                self._enter(token)
            elif token.nesting == -1:
                # A tight list's paragraph was not entered.
                if not (token.tag == "p" and token.hidden):
                    self._open.pop()
                if token.tag == "a" and (address := self._refused.pop()):
                    self._text(f" ({address})")
            else:
                self._leaf(token)

    def _enter(self, token: Token) -> None:
        if token.tag == "p" and token.hidden:
            return
        children: list[Node] = []
        if token.tag == "a":
            address = str(token.attrs.get("href", ""))
            self._refused.append("" if _is_allowed(address) else address or "#")
            if self._refused[-1]:
                self._open.append(self._open[-1])
                return
        # What is too deep, or unknown, gives its content to the node around it.
        if token.tag in TAGS and len(self._open) <= MAX_DEPTH:
            self._add([token.tag, _attributes(token), children])
            self._open.append(children)
        else:
            self._open.append(self._open[-1])

    def _leaf(self, token: Token) -> None:
        kind = token.type
        if kind in ("text", "text_special"):
            self._text(token.content)
        elif kind == "softbreak":
            self._text("\n")
        elif kind == "hardbreak":
            self._add(["br", {}, []])
        elif kind == "hr":
            self._add(["hr", {}, []])
        elif kind == "code_inline":
            self._add(["code", {}, [token.content]])
        elif kind in ("fence", "code_block"):
            language = token.info.split()[:1]
            self._add(["pre", {"lang": language[0][:20]} if language else {}, [token.content]])
        elif kind == "image":
            source = str(token.attrs.get("src", ""))
            self._text(f"[image: {token.content} — {source}]" if source else "[image]")
        elif token.content:
            self._text(token.content)

    def _text(self, text: str) -> None:
        last = self._open[-1]
        if last and isinstance(last[-1], str):
            last[-1] += text
        elif text:
            self._add(text)

    def _add(self, node: Node) -> None:
        self.nodes += 1
        self._open[-1].append(node)


def _attributes(token: Token) -> dict[str, Any]:
    if token.tag == "a":
        return {"href": str(token.attrs.get("href", ""))}
    if token.tag == "ol":
        start = token.attrs.get("start", 1)
        return {"start": start} if isinstance(start, int) and start != 1 else {}
    if token.tag in ("th", "td"):
        style = str(token.attrs.get("style", ""))
        side = style.removeprefix("text-align:")
        return {"align": side} if side in ("right", "center") else {}
    return {}


def _is_allowed(address: str) -> bool:
    try:
        return urlsplit(address).scheme.lower() in _SCHEMES
    except ValueError:
        return False


def words_of(nodes: Sequence[Node]) -> Iterator[str]:
    """The texts in a tree, in order; blocks are separated by a space."""
    for node in nodes:
        if isinstance(node, str):
            yield node
        else:
            around = "" if node[0] in _INLINE_TAGS and node[0] != "br" else " "
            yield around
            yield from words_of(node[2])
            yield around
