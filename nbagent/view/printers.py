"""Prints trees of nodes: `html` for pages and files, `plain_text` for terminals, and `markdown`.

With `build` in the page, `html` is the place that keeps untrusted text from becoming markup: text
is escaped, tags and attributes come from the closed lists of `view.node`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from nbagent.view.node import (
    INLINE,
    LIVE_ONLY,
    TAGS,
    VOID,
    Node,
    first_class,
    is_allowed,
    split_node,
    text_of,
)
from nbagent.view.text_format import one_line
from nbagent.view.theme import STYLES

# HTML

_ONE_LINE = frozenset({"nba-top", "nba-foot"})
"""Parts that differ in each run: times and ids. They stay on one line, for diffs."""
_SAME_LINE = INLINE | VOID | {"td", "th", "button", "textarea", "select", "option"}


def html(node: Node, *, breaks: bool = True) -> str:
    """Print a node as HTML without scripts, a line for each block: files are compared by lines.

    Nodes with a class in `STYLES` get an inline style: the sanitizer of an untrusted notebook keeps
    inline styles and drops style sheets.
    """
    if isinstance(node, str):
        return _html_text(node)
    tag, attributes, *children = node
    if tag not in TAGS:  # tags are written in the code, so this is a mistake in it
        raise ValueError(f"{tag!r} is not in view.node.TAGS")
    opened = f"<{tag}{_html_attributes(attributes)}>"
    if tag in VOID:
        return opened
    breaks = breaks and first_class(node) not in _ONE_LINE
    pieces = (
        ("\n" if breaks and _starts_line(child) else "") + html(child, breaks=breaks)
        for child in children
    )
    return f"{opened}{''.join(pieces)}</{tag}>"


def _starts_line(child: Node) -> bool:
    # The head stays on the line of its run, which has the run's id: both differ in each run.
    is_inline = isinstance(child, str) or child[0] in _SAME_LINE
    return not is_inline and first_class(child) != "nba-top"


def _html_attributes(attributes: dict[str, str]) -> str:
    style = STYLES.get(str(attributes.get("class", "")).partition(" ")[0], "")
    text = "".join(
        f' {name}="{_html_value(value)}"' if value else f" {name}"
        for name, value in attributes.items()
        if name not in LIVE_ONLY and name != "style" and is_allowed(name, value)
    )
    if is_allowed("style", attributes.get("style", "")):
        style = f"{style};{attributes['style']}" if style else attributes["style"]
    text += f' style="{style}"' if style else ""
    if "href" in attributes and is_allowed("href", attributes["href"]):
        text += ' rel="noopener noreferrer nofollow" target="_blank"'
    return text


def _html_text(text: str) -> str:
    # A quote in a text is harmless, and short; behind `=` it would look like an attribute.
    text = escape(text, quote=False).replace('="', "=&quot;").replace("='", "=&#x27;")
    first, *rows = text.replace("\r", "&#13;").split("\n")
    # An empty line would end an HTML block in a Markdown export, so its line end is an entity.
    return "".join([first, *(("\n" if row.strip() else "&#10;") + row for row in rows)])


def _html_value(text: str) -> str:
    return escape(text).replace("\r", "&#13;").replace("\n", "&#10;")


# Text

_SILENT = frozenset({"button", "i", "progress", "input", "textarea", "select", "option"})
"""Tags without text of a run. `i` is a segment of a bar."""
_FOLDED = frozenset({"nba-flow"})
"""Folds that are open on a page and one line in a text."""
_FACT_CHARS = 300
_PROMPT_CHARS = 200
_COLUMN_CHARS = 24
"""Width of a column; a longer cell is printed on a line of its own."""
_NOTE_INDENT = " " * 5
_MARKS = {"del": "[-{}-]", "ins": "{{+{}+}}"}


def plain_text(node: Node, *, unfold: bool = False, omitted: Collection[str] = frozenset()) -> str:
    """Print a node as plain text.

    A closed fold is one line, and below it the facts in it (class `nba-fact`).

    Args:
        node: the tree.
        unfold: True prints the bodies of closed folds too.
        omitted: first classes of the parts to leave out.
    """
    node = _without(node, omitted) if omitted else node
    return _joined_lines(_text_lines(node, unfold))


def _without(node: Node, omitted: Collection[str]) -> Node:
    if isinstance(node, str):
        return node
    shown = [child for child in node[2:] if first_class(child) not in omitted]
    return [*node[:2], *(_without(child, omitted) for child in shown)]


def _joined_lines(lines: Sequence[str]) -> str:
    """Join lines; several empty ones become one."""
    return re.sub(r"\n(?:[^\S\n]*\n){2,}", "\n\n", "\n".join(map(str.rstrip, lines))).strip("\n")


def _text_lines(node: Node, unfold: bool) -> list[str]:
    tag, attributes, children = split_node(node)
    look = first_class(node)
    match tag:
        case _ if tag in _SILENT:
            return []
        case "details":
            return _fold_lines(children, look, is_open=unfold or "open" in attributes)
        case "table":
            return _table_lines(node)
        case "hr":
            return [""]
        case "pre":
            return _inline_text([*children]).split("\n")
        case "blockquote" if look == "nba-prompt":
            return _prompt_lines(children, unfold)
        case _ if look in _JOINED:
            return _JOINED[look](children)
        case _ if look == "nba-answer":
            return ["", *PLAIN.blocks(children).split("\n"), ""]
        case _ if "nba-counts" in str(attributes.get("class", "")).split():
            return [_bar_text(children)]
        case "ul" | "ol":
            return PLAIN.block(node).split("\n")
        case "h3" | "h4" | "h5" | "h6":
            return [_inline_text(children)]
        case _:
            return _children_lines(children, unfold)


def _children_lines(children: Sequence[Node], unfold: bool) -> list[str]:
    """Print children: neighbouring inline ones on one line, each block on its own lines."""
    lines: list[str] = []
    for is_inline, group in groupby(children, _is_inline):
        members = list(group)
        if is_inline:
            inline = _inline_text(members).strip(" ")
            lines += inline.split("\n") if inline.strip() else []
        else:
            lines += [line for member in members for line in _text_lines(member, unfold)]
    return lines


def _prompt_lines(children: Sequence[Node], unfold: bool) -> list[str]:
    """Quote a prompt: each text on one line, and the rows of its tables."""
    lines: list[str] = []
    for is_table, group in groupby(children, lambda child: first_class(child) == "nba-wide-table"):
        texts = _children_lines([*group], unfold)
        lines += texts if is_table else [one_line(" ".join(texts), _PROMPT_CHARS)]
    return [f"> {text}" for text in lines if text.strip()]


def _is_inline(node: Node) -> bool:
    if isinstance(node, str):
        return True
    return node[0] in INLINE and first_class(node) not in _JOINED


def _inline_text(nodes: Sequence[Node]) -> str:
    return "".join(map(_inline_piece, nodes))


def _inline_piece(node: Node) -> str:
    if isinstance(node, str):
        return node
    tag, attributes, children = split_node(node)
    if tag in _SILENT:
        return ""
    if tag == "br":
        return "\n"
    if tag == "img":
        return f"[image: {attributes.get('alt', '')}]"
    inner = _inline_text(children)
    if inner and first_class(node) == "nba-num":
        return f"({inner})"
    return _MARKS[tag].format(inner) if tag in _MARKS and inner else inner


def _head_lines(children: Sequence[Node]) -> list[str]:
    """`✓ Answered · model · 3 turns`."""
    first, *texts = [t for t in (_inline_piece(child).strip() for child in children) if t]
    has_mark = first_class(children[0]) == "nba-mark"
    row = f"{first} {' · '.join(texts)}" if has_mark else " · ".join([first, *texts])
    return [row.removesuffix(" ·")]


def _fold_line(children: Sequence[Node]) -> list[str]:
    """Line of a fold, and the notices below it."""
    below = [child for child in children if first_class(child) == "nba-below"]
    texts = (_inline_piece(child).strip() for child in children if child not in below)
    notices = [f"{_NOTE_INDENT}{_inline_piece(child)}" for child in below]
    return ["  ".join(filter(None, texts)), *notices]


def _foot_lines(children: Sequence[Node]) -> list[str]:
    """Identity, times and next step on one line; the table of times is left out."""
    summaries = [
        split_node(child)[2][0] if split_node(child)[0] == "details" else child
        for child in children
    ]
    return [" · ".join(filter(None, (_inline_piece(shown).strip() for shown in summaries)))]


def _figure_lines(children: Sequence[Node]) -> list[str]:
    """`[image: figure 1 · a plot]`; the line below a picture says the same."""
    return [_inline_piece(child) for child in children[:1]]


def _fold_lines(children: Sequence[Node], look: str, *, is_open: bool) -> list[str]:
    summary, *body = children or [""]
    lines = _children_lines(split_node(summary)[2], False)
    if is_open and look not in _FOLDED:
        return [*lines, *(f"  {line}" for part in body for line in _text_lines(part, True))]
    return [*lines, *(f"{_NOTE_INDENT}{fact}" for part in body for fact in _facts(part))]


def _facts(node: Node) -> Iterator[str]:
    """Facts in a closed fold; a `title` names what a fact is about."""
    if isinstance(node, str) or node[0] == "details":
        return
    if "nba-fact" in str(node[1].get("class", "")).split():
        title = node[1].get("title", "")
        fact = one_line(_inline_text(node[2:]), _FACT_CHARS)
        yield f"{title}: {fact}" if title else fact
        return
    for child in node[2:]:
        yield from _facts(child)


def _table_lines(table: Node) -> list[str]:
    """Print a table. In a listing, columns without a text are left out, and useless headings."""
    rows = [row[2:] for row in _rows(table)]
    cells = [[" ".join(_inline_text(cell[2:]).split("\n")).strip() for cell in row] for row in rows]
    width = max(map(len, cells), default=0)
    right = {i for row in rows[-1:] for i, cell in enumerate(row) if first_class(cell) == "nba-r"}
    cells = [[*row, *[""] * (width - len(row))] for row in cells]
    if first_class(table) != "nba-rows":
        return [*aligned(cells, range(width), right)]
    has_heads = bool(rows) and split_node(rows[0][-1])[1].get("scope") == "col"
    columns = [i for i in range(width) if any(row[i] for row in cells[has_heads:])]
    return [*aligned(cells[has_heads and len(columns) < 2 :], columns, right)]


def _list_lines(children: Sequence[Node]) -> list[str]:
    """Print a listing: below its title its lines are indented; empty lines separate its parts."""
    titles = [child for child in children if split_node(child)[0] == "h4"]
    parts = [child for child in children if first_class(child) == "nba-list"]
    own = [_text_lines(child, False) for child in children if child not in (*titles, *parts)]
    lines = [
        line for n, block in enumerate(own) for line in ([""] * (n > 0 and not titles) + block)
    ]
    head = [_inline_text(title[2:]) for title in titles]
    blocks = [[*head, *(f"  {line}" if titles else line for line in lines)]]
    blocks += [_text_lines(part, False) for part in parts]
    return "\n\n".join("\n".join(block) for block in blocks if block).split("\n")


_JOINED: dict[str, Callable[[Sequence[Node]], list[str]]] = {
    "nba-head": _head_lines,
    "nba-line": _fold_line,
    "nba-foot": _foot_lines,
    "nba-figure": _figure_lines,
    "nba-list": _list_lines,
}
"""Parts with a form of their own, by class."""


def _rows(node: Node) -> list[list[Node]]:
    if isinstance(node, str):
        return []
    return [node] if node[0] == "tr" else [row for child in node[2:] for row in _rows(child)]


def aligned(
    rows: Sequence[Sequence[str]], columns: Sequence[int], right: Collection[int] = ()
) -> Iterator[str]:
    """Print some columns of rows aligned; those in `right` at the right."""
    widths = {i: max(min(len(row[i]), _COLUMN_CHARS) for row in rows) for i in columns if rows}
    for row in rows:
        line = ""
        for i in columns:
            if i != columns[-1] and len(row[i]) > widths[i]:
                yield line + row[i]
                line = " " * (len(line) + widths[i] + 2)
            elif i in right:
                line += f"{row[i]:>{widths[i]}}  "
            else:
                line += f"{row[i]:<{widths[i]}}  "
        if line.strip():
            yield line.rstrip()


_BAR_MARKS = {"nba-i-ok": "#", "nba-i-bad": "x", "nba-i-model": ">", "nba-i-left": "."}
_BAR_CHARS = 30


def _bar_text(segments: Sequence[Node]) -> str:
    shares = [split_node(part)[1]["style"].partition(":")[2] for part in segments]
    return bar_text([(first_class(part), int(n)) for part, n in zip(segments, shares, strict=True)])


def bar_text(counts: Sequence[tuple[str, int]]) -> str:
    """Print a bar from the class and the count of each segment: `[####x>>..]`."""
    total, bar, done = sum(count for _, count in counts) or 1, "", 0
    for look, count in counts:
        done += count
        # At least one character: a few failed cases of many must not disappear.
        bar += _BAR_MARKS.get(look, ".") * max(1, round(_BAR_CHARS * done / total) - len(bar))
    return f"[{bar[:_BAR_CHARS]}]"


# Markdown

_MARKUP_CHARS = re.compile(r"[`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_LINE_START = re.compile(r"(?=[-+#=])|\d{1,9}(?=[.)])")
# Code and formulas cannot contain escapes. If they have such a character, they are written as text.
_NO_CODE = re.compile(r"[`<>|&]|://")
_NO_MATH = re.compile(r"[<>&`\[\]|!:\n]")
_MARKUP = {"em": "*", "strong": "**", "b": "**", "s": "~~", "del": "~~", "ins": "**"}
"""Tags to Markdown, which has no mark for inserted text."""


def markdown(node: Node) -> str:
    """Print a node as Markdown: `<details>` for folds, else text, tables and code."""
    return _ESCAPED.blocks([node])


@dataclass(frozen=True, slots=True)
class Markdown:
    """Markdown in two forms: with escapes for a file, and as it is read in a terminal."""

    escapes: bool

    def blocks(self, nodes: Sequence[Node]) -> str:
        """Join blocks with empty lines; neighbouring inline nodes become one paragraph."""
        blocks: list[str] = []
        for inline, group in groupby(nodes, lambda n: isinstance(n, str) or n[0] in INLINE):
            members = list(group)
            blocks += [self._inline(members)] if inline else map(self.block, members)
        return "\n\n".join(filter(None, blocks))

    def block(self, node: Node) -> str:
        """Print one block."""
        tag, attributes, children = split_node(node)
        match tag:
            case _ if tag in _SILENT:
                return ""
            case "details":
                return self._details(children)
            case "ul" | "ol":
                first = str(attributes.get("start", "1"))
                start = int(first) if first.isdecimal() else 1
                marks = (f"{start + i}. " if tag == "ol" else "- " for i in range(len(children)))
                items = zip(marks, children, strict=False)
                return "\n".join(
                    mark + _indented(self.block(item), " " * len(mark)) for mark, item in items
                )
            case "blockquote":
                return "> " + _indented(self.blocks(children), "> ")
            case "pre":
                return _fenced(text_of(node))
            case "table":
                return self._table(node)
            case "hr":
                return "---"
            case "h3" | "h4" | "h5" | "h6":
                return f"{'#' * int(tag[1])} {self._inline(children)}"
            case _ if first_class(node) == "nba-figure" and not self.escapes:
                return _figure_lines(children)[0]
            case _:
                return self.blocks(children)

    def _details(self, children: Sequence[Node]) -> str:
        summary = next((text_of(child) for child in children if child[0] == "summary"), "")
        body = self.blocks([child for child in children if child[0] != "summary"])
        # HTML, not Markdown: `<summary>` starts a block in which Markdown is not parsed.
        title = escape(" ".join(summary.split())).replace("://", ":&#8203;//")
        folded = f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"
        return folded if body else title

    def _table(self, node: Node) -> str:
        if not self.escapes:
            return "\n".join(_table_lines(node))
        rows = [[self._cell(cell) for cell in row[2:]] for row in _rows(node)]
        if not rows:
            return ""
        width = max(map(len, rows))
        lines = [f"| {' | '.join([*row, *[''] * (width - len(row))])} |" for row in rows]
        return "\n".join([lines[0], "|" + " --- |" * width, *lines[1:]])

    def _cell(self, cell: Node) -> str:
        return self._inline(split_node(cell)[2]).replace("\\\n", " ")

    def _inline(self, nodes: Sequence[Node]) -> str:
        inline = "".join(map(self._inline_text, nodes))
        return re.sub(r"  +", " ", inline).strip(" ") if self.escapes else inline.strip(" ")

    def _inline_text(self, node: Node) -> str:
        if isinstance(node, str):
            return _escaped(node) if self.escapes else node
        tag, attributes, children = split_node(node)
        inner = "" if tag in _SILENT else "".join(map(self._inline_text, children))
        if tag == "br":
            return "\\\n" if self.escapes else "\n"
        if tag == "img":
            return self._image(attributes)
        if tag == "a" and (address := attributes.get("href")):
            # The address is shown as text: a link of a model may run a command of JupyterLab, and
            # a reader cannot tell.
            return f"{inner} ({_escaped(address) if self.escapes else address})"
        text = text_of(node)
        if tag == "code" and text.strip() and not (self.escapes and _NO_CODE.search(text)):
            return f"`{' '.join(text.split())}`"
        if "nba-math" in attributes.get("class", "") and not _NO_MATH.search(text):
            return text
        if tag in _MARKUP and inner.strip():
            around = _MARKUP[tag]
            return inner.replace(inner.strip(" "), f"{around}{inner.strip(' ')}{around}")
        return inner

    def _image(self, attributes: dict[str, str]) -> str:
        source, alt = attributes.get("src", ""), attributes.get("alt", "")
        if not self.escapes:
            return f"[image: {alt}]"
        return f"![{_escaped(alt)}]({source})" * is_allowed("src", source)


PLAIN, _ESCAPED = Markdown(escapes=False), Markdown(escapes=True)


def _fenced(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}\n{text}\n{fence}"


def _indented(text: str, indent: str) -> str:
    return re.sub(r"\n(?=[^\n])" if indent.isspace() else r"\n", f"\n{indent}", text)


def _escaped(text: str) -> str:
    """Escape text on one line: no HTML, mark-up, link or formula remains active."""
    lead, tail = " " * text[:1].isspace(), " " * text[-1:].isspace()
    # As an entity: a backslash would undo the next escape, and `\(` starts a formula in Jupyter.
    line = escape(" ".join(text.split()), quote=False).replace("\\", "&#92;")
    if start := _LINE_START.match(line):  # would start a list or a heading
        line = f"{start[0]}\\{line[start.end() :]}"
    marked = _MARKUP_CHARS.sub(lambda mark: f"\\{mark[0]}", line)
    # A zero-width space: many renderers turn a plain address into a link.
    return f"{lead}{marked.replace('://', ':&#8203;//')}{tail}" if line else lead
