"""Markdown → nodes: no HTML, no images, only http, https and mailto links. Never raises.

The front end's MathJax typesets formulas that use a closed list of commands; others stay text. Code
of a few languages is highlighted here. `BlockSplitter` draws a text that is still streaming.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.tree import SyntaxTreeNode

from nbagent.view.node import Node, h, name_set

MAX_CHARS = 60_000
"""A longer text is shown unchanged, in one block."""
_MAX_LINES = 4_000
_MAX_NODES = 20_000
_MAX_EFFORT = 16_000_000
"""Sum over the paragraphs of (number of special characters)²: the parser's time is quadratic."""
_TEXTS = ("text", "text_special", "html_inline", "html_block")
_TAGS = name_set("p h3 h4 h5 h6 ul ol li blockquote em strong s a table thead tbody tr")
_LOWERED_HEADINGS = {"h1": "h3", "h2": "h4", "h3": "h5", "h4": "h6", "h5": "h6"}
"""Headings of an answer rank below those of the notebook."""
INLINE = name_set("em strong s a code span b i small sub sup")


def markdown_nodes(text: str) -> list[Node]:
    """Parse a Markdown text; return hostile or too costly text as one `pre`."""
    return list(_nodes_of(text)) if text.strip() else []


@lru_cache(maxsize=64)
def _nodes_of(text: str) -> Sequence[Node]:
    # Cached: a live picture draws the same texts again and again.
    if not is_costly(text):
        try:
            tree = SyntaxTreeNode(_parser().parse(text))
            if sum(1 for _ in tree.walk()) <= _MAX_NODES:
                return tuple(node for child in tree.children for node in _nodes(child))
        except (RecursionError, ValueError, IndexError):
            pass
    return (h("pre", "", text),)


def is_costly(text: str) -> bool:
    """True if parsing would block the event loop for about 0.1 s or more."""
    if len(text) > MAX_CHARS or text.count("\n") > _MAX_LINES:
        return True
    effort = 0
    for paragraph in text.split("\n\n"):
        effort += sum(paragraph.count(mark) for mark in "[]*_`~<&\\|>#$") ** 2
    return effort > _MAX_EFFORT


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": 24})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = _is_link  # pyright: ignore[reportAttributeAccessIssue]
    # Before escapes, which would take the backslash of `\(`.
    parser.inline.ruler.before("escape", "math", _math_rule)
    return parser


def _is_link(address: str) -> bool:
    try:
        return urlsplit(address).scheme.lower() in ("http", "https", "mailto")
    except ValueError:  # such as `http://[`
        return False


def _nodes(token: SyntaxTreeNode) -> list[Node]:
    if token.type in _TEXTS:
        return [token.content]
    if token.type in ("softbreak", "hardbreak", "hr"):
        return [
            "\n" if token.type == "softbreak" else h("br" if token.type == "hardbreak" else "hr")
        ]
    if token.type == "code_inline":
        return [h("code", "", token.content)]
    if token.type == "math":
        return [h("span", "nba-math mathjax_process tex2jax_process", token.content)]
    if token.type in ("fence", "code_block"):
        return [code_node(token.content, token.info.split()[0] if token.info.strip() else "")]
    if token.type == "image":  # as text: an image would be loaded from a server
        return [f"[image: {token.content} — {token.attrs.get('src', '')}]"]
    if token.type == "table":
        _align_numbers(token)
    children = [node for child in token.children for node in _nodes(child)]
    tag = _LOWERED_HEADINGS.get(token.tag, token.tag)
    if token.type in ("td", "th"):
        side = str(token.attrs.get("style", "")).removeprefix("text-align:")
        return [table_cell(tag, children, right=side == "right")]
    if token.type == "inline" or token.hidden or tag not in _TAGS:
        return children
    attributes = {name: str(token.attrs[name]) for name in ("href", "start") if name in token.attrs}
    return [h(tag, "", *children, **attributes)]


def _align_numbers(table: SyntaxTreeNode) -> None:
    """Align columns of numbers to the right unless the table sets an alignment."""
    rows = [row.children for part in table.children for row in part.children]
    for head, *cells in zip(*rows, strict=False):
        texts = [cell.children[0].content.strip("*_`") for cell in cells if cell.children]
        if "style" not in head.attrs and are_numbers(texts):
            for cell in (head, *cells):
                cell.attrs["style"] = "text-align:right"


_NUMBER = re.compile(r"\s*(?:[-+−]?[\d,.]+(?:e[-+]?\d+)?%?|nan|NaN|null|)\s*")


def are_numbers(texts: Sequence[str]) -> bool:
    """True if all cells of a column are numbers or missing, and at least one is not empty."""
    return all(map(_NUMBER.fullmatch, texts)) and any(map(str.strip, texts))


def table_cell(tag: str, children: Sequence[Node], *, right: bool = False) -> Node:
    """Return a table cell, aligned explicitly: style sheets of front ends differ."""
    side = "right" if right else None
    return h(tag, "nba-r" if right else "nba-l", *children, align=side)


# Formulas

# Lengths are limited: a dollar without its partner would be searched to the end of the text.
_MATH = re.compile(
    r"\\\((.{1,600}?)\\\)|\\\[(.{1,600}?)\\\]|\$\$([^$]{1,600})\$\$"
    # One dollar: no space inside it and no digit after it, so that prices stay prices.
    r"|\$(?![\s$])([^$\n]{1,600})(?<![\s\\])\$(?!\d)",
    re.DOTALL,
)
_TEX_TOKEN = re.compile(r"\\([A-Za-z]+|[,;:!{}|%&#_\\ ])|[^\\%$#]", re.DOTALL)
_MAX_BRACE_DEPTH = 12
_OVERSIZED_TEX = re.compile(r"\\\\\s*\[|'{4}")
"""Explicit line heights (`\\\\[9999em]`) and long rows of primes, which can fill the page."""
_TEX_COMMANDS = name_set(
    "frac dfrac tfrac sqrt sum prod int iint oint lim min max sup inf log ln exp sin cos tan arcsin"
    " arccos arctan sinh cosh tanh det dim ker gcd arg deg Pr alpha beta gamma delta epsilon"
    " varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi pi rho sigma tau upsilon phi"
    " varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega cdot times"
    " div pm mp ast star circ bullet oplus otimes le leq ge geq ne neq approx equiv sim simeq cong"
    " propto ll gg subset subseteq supset supseteq in notin ni cup cap setminus emptyset forall"
    " exists neg land lor to rightarrow leftarrow Rightarrow Leftarrow leftrightarrow"
    " Leftrightarrow mapsto implies iff infty partial nabla hbar ell Re Im angle perp parallel mid"
    " ldots cdots vdots ddots dots quad qquad left right big Big bigg Bigg langle rangle lvert"
    " rvert lVert rVert lfloor rfloor lceil rceil hat bar vec dot ddot tilde overline underline"
    " overbrace underbrace binom mathbb mathbf mathrm mathcal mathit mathsf text textbf"
    " operatorname boldsymbol displaystyle limits nolimits prime top bot not begin end pmod bmod"
)
_ENVIRONMENTS = re.compile(r"\\(?:begin|end)(?!\{(?:[pbvBV]?matrix|cases|aligned|array)\})")


def _math_rule(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    match = _MATH.match(state.src, state.pos, state.posMax)
    if match is None:
        return False
    is_formula = is_tex(match[match.lastindex or 0])
    # Other dollars are ordinary text. `\(` stays as it is: Markdown would drop its backslash.
    if not is_formula and match[0].startswith("$"):
        return False
    if not silent:
        state.push("math" if is_formula else "text", "", 0).content = match[0]
    state.pos = match.end()
    return True


def is_tex(source: str) -> bool:
    """True if a formula uses known commands only and its braces are balanced."""
    at = depth = 0
    while at < len(source):
        token = _TEX_TOKEN.match(source, at)
        if token is None or (token[1] and token[1].isalpha() and token[1] not in _TEX_COMMANDS):
            return False
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if not 0 <= depth <= _MAX_BRACE_DEPTH:
            return False
        at = token.end()
    is_ours = not _ENVIRONMENTS.search(source) and not _OVERSIZED_TEX.search(source)
    return depth == 0 and bool(source.strip()) and is_ours


# Code

_LANGUAGES = name_set(
    "python py python3 javascript js bash sh shell yaml json sql html css r julia toml diff rust rs"
)
"""Languages whose Pygments lexer runs in bounded time; other code is plain text."""
_ALIASES = {
    **dict.fromkeys(("typescript", "ts"), "javascript"),
    "console": "bash",
    "ipython": "python",
    "yml": "yaml",
}
_MAX_CODE = 6_000
"""Longest highlighted code. For hostile text some lexers take quadratic time, 0.5 s at this length;
the one for C takes cubic time and is not used."""
_CLASS_OF_TOKENS = {
    "nba-kc": ("Comment",),
    "nba-kk": ("Keyword", "Operator.Word"),
    "nba-ks": ("Literal.String",),
    "nba-kn": ("Literal.Number",),
    "nba-kf": ("Name.Function", "Name.Class", "Name.Decorator", "Name.Builtin"),
    "nba-minus": ("Generic.Deleted",),
    "nba-plus": ("Generic.Inserted",),
}


def code_node(text: str, language: str = "") -> Node:
    """Draw a block of code with a copy button."""
    button = h("button", "nba-do", data_do="copy", title="Copy")
    return h("div", "nba-code", button, h("pre", "", *highlight(text, language)))


def highlight(text: str, language: str) -> list[Node]:
    """Highlight code: spans with a class for each kind of token; plain text if unknown."""
    name = _ALIASES.get(language.lower(), language.lower())
    if name not in _LANGUAGES or len(text) > _MAX_CODE:
        return [text]
    # Late: most answers hold no code.
    from pygments import lexers

    untyped: Any = lexers
    runs: list[list[str]] = []
    # By default Pygments drops empty lines at both ends.
    for kind, piece in untyped.get_lexer_by_name(name, stripnl=False).get_tokens(text):
        kinds = str(kind).removeprefix("Token.")
        look = next(
            (look for look, starts in _CLASS_OF_TOKENS.items() if kinds.startswith(starts)), ""
        )
        look = look if piece.strip() else ""
        if runs and runs[-1][0] == look:
            runs[-1][1] += piece
        else:
            runs.append([look, piece])
    return [h("span", look, piece) if look else piece for look, piece in runs]


# Streaming text


class BlockSplitter:
    """Splits a growing text into closed blocks and an open one, the last of its top level."""

    def __init__(self) -> None:
        self.tail = ""
        """Text of the open block."""
        self._next = 0

    def feed(self, text: str) -> list[Node]:
        """Add text; return the nodes of the blocks that it closed.

        The tail is parsed again only when it has a new line and has grown by a quarter, so all
        parses together cost as much as a few parses of the whole text.
        """
        # A block ends where the next line starts, so one character of the next line is needed.
        new = self.tail[-1:] + text
        self.tail += text
        if "\n" not in new or len(self.tail) < self._next:
            return []
        start = self._start_of_last_block()
        closed, self.tail = self.tail[:start], self.tail[start:]
        self._next = len(self.tail) * 5 // 4 if len(self.tail) > 1_000 else 0
        return markdown_nodes(closed)

    def _start_of_last_block(self) -> int:
        if is_costly(self.tail):
            return 0
        tops = [token for token in _parser().parse(self.tail) if token.level == 0 and token.map]
        first = tops[-1].map[0] if tops and tops[-1].map else 0
        return sum(len(line) + 1 for line in self.tail.split("\n")[:first])


def prose_text(nodes: Sequence[Node], skip: Sequence[str] = ("button",)) -> str:
    """Return the text of nodes without some tags; blocks are separated by a space."""
    pieces: list[str] = []
    for node in nodes:
        if isinstance(node, str):
            pieces.append(node)
        elif node[0] not in skip:
            around = "" if node[0] in INLINE else " "
            pieces.append(f"{around}{prose_text(node[2:], skip)}{around}")
    return "".join(pieces)
