"""Pictures as trees: a node is a text, or `[tag, attributes, *children]`.

Two printers draw them: `html` here and `build` in `notebook/page`. Only these two keep untrusted
text from becoming markup: text is escaped, tags and attributes come from the closed lists here. The
page gets them with its module.
"""

from __future__ import annotations

import re
from html import escape
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


def html(node: Node) -> str:
    """Print a node as HTML without scripts.

    Nodes with a class in `STYLES` get an inline style: the sanitizer of an untrusted notebook keeps
    inline styles and drops style sheets.
    """
    if isinstance(node, str):
        return _escape(node)
    tag, attributes, *children = node
    if tag not in TAGS:  # tags are written in the code, so this is a mistake in it
        raise ValueError(f"{tag!r} is not in view.node.TAGS")
    attrs = dict(attributes)
    style = STYLES.get(str(attrs.get("class", "")).partition(" ")[0], "")
    attrs_text = "".join(
        f' {name}="{_escape(value)}"' if value else f" {name}"
        for name, value in attrs.items()
        if name not in LIVE_ONLY and name != "style" and is_allowed(name, value)
    )
    if is_allowed("style", attrs.get("style", "")):
        style = f"{style};{attrs['style']}" if style else attrs["style"]
    attrs_text += f' style="{style}"' if style else ""
    if "href" in attrs and is_allowed("href", attrs["href"]):
        attrs_text += ' rel="noopener noreferrer nofollow" target="_blank"'
    if tag in VOID:
        return f"<{tag}{attrs_text}>"
    return f"<{tag}{attrs_text}>{''.join(map(html, children))}</{tag}>"


def _escape(text: str) -> str:
    # Line ends too: an empty line would end an HTML block in a Markdown export.
    return escape(text).replace("\n", "&#10;").replace("\r", "&#13;")


def is_allowed(name: str, value: str) -> bool:
    """True if a picture may have this attribute with this value."""
    pattern = VALUES.get(name)
    return bool(pattern.fullmatch(value)) if pattern else name in ATTRIBUTES


def closed_lists() -> dict[str, Any]:
    """Return the lists of this file as JSON, for `build` in the page."""
    patterns = {name: pattern.pattern for name, pattern in VALUES.items()}
    return {"tags": sorted(TAGS), "attributes": sorted(ATTRIBUTES), "values": patterns}


def text_of(node: Node) -> str:
    """Return the text in a tree."""
    return node if isinstance(node, str) else "".join(map(text_of, node[2:]))


STYLES = {
    "nba-run": "max-width:860px;border:1px solid #8885;border-radius:8px;overflow:hidden",
    "nba-head": "display:flex;flex-wrap:wrap;gap:2px 10px;padding:6px 12px;background:#8881",
    "nba-bar": "display:flex;height:4px;background:#8885",
    "nba-i-model": "height:4px;background:#3574f0",
    "nba-i-tool": "height:4px;background:#e8883a",
    "nba-i-wait": "height:4px;background:#c9ced6",
    "nba-i-bad": "height:4px;background:#c8372d",
    "nba-i-ok": "height:4px;background:#2b8a57",
    "nba-turn": "padding:3px 12px",
    "nba-line": "display:inline-flex;flex-wrap:wrap;gap:0 9px;width:calc(100% - 24px)",
    "nba-sum": "flex:1 1 180px;overflow:hidden",
    "nba-end": "padding:5px 14px",
    "nba-num": "float:right;margin-left:auto;opacity:.7",
    "nba-body": "padding:2px 12px 10px 30px",
    "nba-card": "border:1px solid #8885;border-radius:5px;padding:6px 10px;margin-top:6px",
    "nba-prompt": "margin:0;padding:7px 12px",
    "nba-wide": "padding:3px 12px",
    "nba-sep": "margin:0;border:0;border-top:1px solid #8885",
    "nba-answer": "padding:10px 14px;font-size:14px",
    "nba-foot": "padding:4px 14px 8px;font-size:11px;opacity:.7",
    "nba-img": "max-width:100%",
    "nba-do": "display:none",
    "nba-think": "white-space:pre-wrap",
    "nba-l": "text-align:left",
    "nba-r": "text-align:right",
    "nba-del": "background:rgba(200,55,45,.18)",
    "nba-ins": "background:rgba(43,138,87,.2)",
    "nba-flow": "border-bottom:1px solid #8885;padding:6px 12px",
    "nba-graph": "display:flex;flex-wrap:wrap;gap:6px 10px;list-style:none;margin:0;padding:6px 0",
    "nba-step": "border:1px solid #8885;border-radius:6px;padding:3px 9px",
    "nba-past": "border:1px solid #8885;border-radius:6px;padding:3px 9px;background:#8881",
    "nba-here": "border:2px solid #3574f0;border-radius:6px;padding:2px 8px",
    "nba-way": "opacity:.75",
    "nba-branches": "list-style:none;margin:0;padding:0 0 0 18px",
    "nba-rows": "margin:4px 0",
    "nba-cell": "text-align:left;padding:2px 14px 2px 0;white-space:pre-wrap",
    "nba-notes": "margin:4px 0;white-space:pre-wrap",
}
"""Inline style by first class: the whole look in a notebook that is not trusted yet.

Plain values only: JupyterLab's sanitizer drops a style with `var()`, `color-mix()`, `overflow-wrap`
and the like."""
