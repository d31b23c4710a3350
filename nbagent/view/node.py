"""Pictures as trees: a node is a text, or `[tag, attributes, *children]`.

Two functions draw them: `html` in `view/printers` and `build` in `notebook/page`. Only these two
keep untrusted text from becoming markup: text is escaped, tags and attributes come from the closed
lists here, which the page gets as JSON (`closed_lists`).
"""

from __future__ import annotations

import re
from typing import Any

Node = str | list[Any]
"""A text, or `[tag, attributes, *children]`: plain JSON."""


def name_set(names: str) -> frozenset[str]:
    """Return the set of names in a text."""
    return frozenset(names.split())


TAGS = name_set(
    "div span p b i em strong s ins del small sub sup code pre kbd h3 h4 h5 h6 ul ol li blockquote"
    " a br hr img table caption thead tbody tr th td details summary progress section header footer"
    " button textarea input select option label"
)
ATTRIBUTES = name_set(
    # `data-` alone would let a text run a command of JupyterLab (`data-commandlinker-command`).
    "class title role open hidden disabled checked selected start align scope colspan alt value max"
    " type rows placeholder tabindex spellcheck aria-label aria-hidden aria-live aria-expanded"
    " aria-invalid data-key data-do data-field data-run data-turn data-kernel data-question"
    " data-since data-clock data-grows data-lm-suppress-shortcuts"
)
VALUES = {
    "href": re.compile(r"(?:[hH][tT][tT][pP][sS]?|[mM][aA][iI][lL][tT][oO]):[\s\S]+"),
    "src": re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}"),
    "style": re.compile(r"flex-grow:\d+"),
}
"""Attributes whose value must match a pattern."""
LIVE_ONLY = name_set("data-key data-since data-clock data-grows aria-live")
"""Attributes without meaning in a saved page; `html` omits them."""
VOID = name_set("br hr img input")
INLINE = name_set("em strong s a code span b i small sub sup br img ins del kbd label")
"""Tags that stand inside a line of text."""


def h(tag: str, cls: str = "", *children: Node | None, **attributes: str | None) -> Node:
    """Return an element. Children and attributes that are None, and empty texts, are omitted.

    Args:
        tag: one of `TAGS`.
        cls: its classes.
        children: its child nodes.
        attributes: `data_key="C01"` for `data-key`, `open_=""` for `open`.
    """
    others = {n.rstrip("_").replace("_", "-"): v for n, v in attributes.items() if v is not None}
    attrs = {"class": cls, **others} if cls else others
    return [tag, attrs, *(child for child in children if child is not None and child != "")]


def line(cls: str, text: str) -> Node | None:
    """Return a line of text; None if the text is empty."""
    return h("div", cls, text) if text else None


def is_allowed(name: str, value: str) -> bool:
    """True if a picture may have this attribute with this value."""
    pattern = VALUES.get(name)
    return bool(pattern.fullmatch(value)) if pattern else name in ATTRIBUTES


def text_of(node: Node) -> str:
    """Return the text in a tree."""
    return node if isinstance(node, str) else "".join(map(text_of, node[2:]))


def split_node(node: Node) -> tuple[str, dict[str, str], list[Node]]:
    """Return tag, attributes and children of a node; a text is a `span`."""
    return ("span", {}, [node]) if isinstance(node, str) else (node[0], node[1], node[2:])


def first_class(node: Node) -> str:
    """Return the first class of a node: by it a node is styled and printed."""
    return str(split_node(node)[1].get("class", "")).partition(" ")[0]


def closed_lists() -> dict[str, Any]:
    """Return the lists of this file as JSON, for `build` in the page."""
    patterns = {name: pattern.pattern for name, pattern in VALUES.items()}
    return {"tags": sorted(TAGS), "attributes": sorted(ATTRIBUTES), "values": patterns}
