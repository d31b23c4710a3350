"""Exports a run as a document: an HTML page, or Markdown in which text stays text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import groupby

from nbagent.contracts.records import RunRecord
from nbagent.view.markdown import INLINE
from nbagent.view.node import Node, is_allowed, text_of
from nbagent.view.run_picture import page, picture
from nbagent.view.text_format import sanitize_value

# The policy forbids scripts and requests, so that even a mistake in escaping could not run or load
# anything.
_HTML_HEAD = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
    '<meta name="viewport" content="width=device-width">\n<title>{title}</title>\n'
    "<style>:root{{color-scheme:light dark}}body{{font:14px/1.5 system-ui,sans-serif;"
    "margin:24px auto;max-width:860px;padding:0 12px}}</style>\n</head>\n<body>\n"
)
_OMITTED_TAGS = ("button", "i", "progress", "input", "textarea", "select")
"""Tags without text of a run. `i` is a segment of a bar."""
_INLINE = INLINE | {"br", "img", "ins", "del", "kbd", "label"}
_MARKUP_CHARS = re.compile(r"[`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINE_START = re.compile(r"(?=[-+#=])|\d{1,9}(?=[.)])")
# Code and formulas cannot contain escapes. If they have such a character, they are written as text.
_NO_CODE = re.compile(r"[`<>|&]|://")
_NO_MATH = re.compile(r"[<>&`\[\]|!:\n]")
_MARKUP = {"em": "*", "strong": "**", "b": "**", "s": "~~", "del": "~~", "ins": "**"}
"""Tags to Markdown, which has no mark for inserted text."""


def html_document(run: RunRecord) -> str:
    """Write one HTML file that needs no network and no script."""
    title = escape(f"run {run.id[:8]} · {sanitize_value(run.model)}")
    return (
        f"{_HTML_HEAD.format(title=title)}{page(picture(run, actions=False))}\n</body>\n</html>\n"
    )


def markdown_document(run: RunRecord) -> str:
    """Write the run as Markdown: `<details>` for folded parts, else text, tables and code."""
    return f"{markdown(picture(run, actions=False))}\n"


def markdown(node: Node) -> str:
    """Convert a tree of nodes to Markdown."""
    return _blocks([node])


def _blocks(nodes: Sequence[Node]) -> str:
    """Join blocks with empty lines; neighbouring inline nodes become one paragraph."""
    blocks: list[str] = []
    for inline, group in groupby(nodes, lambda node: isinstance(node, str) or node[0] in _INLINE):
        members = list(group)
        blocks += [_inline(members)] if inline else map(_block, members)
    return "\n\n".join(filter(None, blocks))


def _block(node: Node) -> str:
    tag, attributes, children = _split_node(node)
    match tag:
        case _ if tag in _OMITTED_TAGS:
            return ""
        case "details":
            return _details(children)
        case "ul" | "ol":
            first = str(attributes.get("start", "1"))
            start = int(first) if first.isdecimal() else 1
            marks = (f"{start + i}. " if tag == "ol" else "- " for i in range(len(children)))
            items = zip(marks, children, strict=False)
            return "\n".join(
                mark + _indented(_block(item), " " * len(mark)) for mark, item in items
            )
        case "blockquote":
            return "> " + _indented(_blocks(children), "> ")
        case "pre":
            text = text_of(node).replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
            fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
            return f"{fence}\n{text}\n{fence}"
        case "table":
            return _table(node)
        case "hr":
            return "---"
        case "h3" | "h4" | "h5" | "h6":
            return f"{'#' * int(tag[1])} {_inline(children)}"
        case _:
            return _blocks(children)


def _split_node(node: Node) -> tuple[str, dict[str, str], list[Node]]:
    return ("span", {}, [node]) if isinstance(node, str) else (node[0], node[1], node[2:])


def _details(children: Sequence[Node]) -> str:
    summary = next((text_of(child) for child in children if child[0] == "summary"), "")
    body = _blocks([child for child in children if child[0] != "summary"])
    # HTML, not Markdown: `<summary>` starts a block in which Markdown is not parsed.
    title = escape(" ".join(summary.split())).replace("://", ":&#8203;//")
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>" if body else title


def _indented(text: str, indent: str) -> str:
    return re.sub(r"\n(?=[^\n])" if indent.isspace() else r"\n", f"\n{indent}", text)


def _table(node: Node) -> str:
    rows = [[_inline(cell[2:]).replace("\\\n", " ") for cell in row[2:]] for row in _rows(node)]
    if not rows:
        return ""
    width = max(map(len, rows))
    lines = [f"| {' | '.join([*row, *[''] * (width - len(row))])} |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * width, *lines[1:]])


def _rows(node: Node) -> list[Node]:
    if isinstance(node, str):
        return []
    return [node] if node[0] == "tr" else [row for child in node[2:] for row in _rows(child)]


def _inline(nodes: Sequence[Node]) -> str:
    return re.sub(r"  +", " ", "".join(map(_inline_text, nodes))).strip(" ")


def _inline_text(node: Node) -> str:
    if isinstance(node, str):
        return _escaped(node)
    tag, attributes, children = _split_node(node)
    inner = "" if tag in _OMITTED_TAGS else "".join(map(_inline_text, children))
    if tag == "br":
        return "\\\n"
    if tag == "img":
        source = attributes.get("src", "")
        return f"![{_escaped(attributes.get('alt', ''))}]({source})" * is_allowed("src", source)
    if tag == "a" and attributes.get("href"):
        # The address is shown as text: a link of a model may run a command of JupyterLab, and a
        # reader cannot tell.
        return f"{inner} ({_escaped(attributes['href'])})"
    text = text_of(node)
    if tag == "code" and text.strip() and not _NO_CODE.search(text):
        return f"`{' '.join(text.split())}`"
    if "nba-math" in attributes.get("class", "") and not _NO_MATH.search(text):
        return text
    if tag in _MARKUP and inner.strip():
        around = _MARKUP[tag]
        return inner.replace(inner.strip(" "), f"{around}{inner.strip(' ')}{around}")
    return inner


def _escaped(text: str) -> str:
    """Escape text on one line: no HTML, mark-up, link or formula remains active."""
    lead, tail = " " * text[:1].isspace(), " " * text[-1:].isspace()
    # As an entity: a backslash would undo the next escape, and `\(` starts a formula in Jupyter.
    line = escape(" ".join(text.split()), quote=False).replace("\\", "&#92;")
    if start := _LINE_START.match(line):  # would start a list or a heading
        line = f"{start[0]}\\{line[start.end() :]}"
    marked = _MARKUP_CHARS.sub(lambda it: f"\\{it[0]}", line)
    # A zero-width space: many renderers turn a plain address into a link.
    return f"{lead}{marked.replace('://', ':&#8203;//')}{tail}" if line else lead
